"""The repetition penalty in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


@documented
def repetition_penalty(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the repetition penalty: logits of tokens that have occurred are made smaller.

    Runs `f` on tokens that occur once, twice and not at all, on none, on penalties of 1 and more,
    in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, ids, penalty)``, by position, on (V,), integers (n,) and a number of
        at least 1. It returns logits (V,): those of tokens in `ids` are divided by `penalty` where
        they are above 0 and multiplied by it where they are below; the others stay.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_penalty(logits, ids, penalty):
    ...     logits = logits + 0
    ...     logits[ids] = logits[ids] / penalty
    ...     return logits
    >>> check.repetition_penalty(my_penalty).mistake
    'negative logits divided'
    """
    return run(REPETITION_PENALTY, f, time_limit)


def _smaller(z, penalty):
    return np.where(z > 0, z / penalty, z * penalty)


def _penalised(steps: Any, logits, ids, penalty):
    changed = logits
    for _ in range(steps.times(ids)):
        z = steps.enter(changed)
        seen = steps.seen(ids, len(logits))
        changed = np.where(seen, steps.change(z, penalty), steps.other(z))
    if steps.each:
        for token in ids.tolist():
            one = np.arange(len(logits)) == token
            changed = np.where(one, steps.change(changed, penalty), changed)
    return steps.leave(changed)


def _seen(ids, n):
    return np.isin(np.arange(n), ids)


def _log_softmax(z):
    top = np.max(z)
    return z - top - np.log(np.sum(np.exp(z - top)))


def _softmax(z):
    return np.exp(_log_softmax(z))


def the_right_ones_change(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether those logits change that should, and in which of them the change is wrong."""
    z, ids, penalty = case.arguments.values()
    if values[0].shape != z.shape or penalty == 1:
        return None
    changed, occurred = np.flatnonzero(~np.isclose(values[0], z)).tolist(), np.unique(ids).tolist()
    if changed != occurred:
        return f"Here you change the logits of the tokens {changed}; those in `ids` are {occurred}."
    off = z[~np.isclose(values[0], np.where(_seen(ids, len(z)), _smaller(z, penalty), z))]
    if np.all(off > 0) or np.all(off < 0):
        side = "above" if off[0] > 0 else "below"
        return f"Here you change the right logits, but those {side} 0 in a wrong way."
    return "Here you change the right logits, but in a wrong way."


_STEPS: dict[str, Any] = {
    "times": lambda ids: 1,
    "each": False,  # whether every occurrence counts
    "enter": lambda z: z,
    "seen": _seen,
    "change": _smaller,
    "other": lambda z: z,  # of the tokens that did not occur
    "leave": lambda z: z,
}

_DIFFERENCES = (
    lambda z, c: z - c,
    lambda z, c: z - np.log(c),
    lambda z, c: z - (c - 1),
)

REPETITION_PENALTY = Check(
    name="repetition_penalty",
    parameters=("logits", "ids", "penalty"),
    results={"logits": "(V,)"},
    compute=_penalised,
    steps=_STEPS,
    stages=(
        Stage(
            tuple(
                Case({"logits": 2 * draw(60, n), "ids": np.array(ids), "penalty": penalty})
                for n, ids, penalty in (
                    *((5, [1, 3], 1.5), (7, [2, 5, 2, 0], 1.25), (7, [6, 6, 6], 2.0)),
                    *((5, [4, 0, 1, 2, 3], 1.25), (5, [0, 2], 1.0), (11, [7, 1, 4, 7, 10], 1.5)),
                )
            )
        ),
        Stage(
            (
                Case(
                    {
                        "logits": (2 * draw(61, 7)).astype("f4"),
                        "ids": np.array([3, 3, 1]),
                        "penalty": 1.5,
                    }
                ),
            )
        ),
        Stage(
            (Case({"logits": draw(62, 5), "ids": np.array([], dtype=np.int64), "penalty": 1.5}),),
            beyond="no token at all",
        ),
    ),
    mistakes=mistakes(
        """
        negative logits divided: You divide all logits of the tokens that occurred. A negative logit
            divided by more than 1 gets larger, so the token gets likelier: multiply it instead.
        all multiplied: You multiply all logits of the tokens that occurred. A positive logit gets
            larger by that: divide it.
        rewarded: You make tokens that occurred likelier: divide positive logits and multiply
            negative ones, not the reverse.
        one sign alone: You leave the logits of one sign as they are. Those above 0 are divided,
            those below are multiplied.
        another factor: You divide and multiply by another number than the penalty: its square, its
            root or 1 more.
        absolute value: You multiply or divide the size of a logit and lose its sign.
        every occurrence counts: A token that occurred three times gets the penalty three times. It
            gets it once, however often it occurred.
        token off by one: You change the logit of the token before or behind each. Ids count from 0.
        presence penalty [the OpenAI API]: you subtract one number from the logit of each token that
            occurred. Here a logit above 0 is divided by the penalty and one below is multiplied.
        frequency penalty [the OpenAI API]: you subtract the penalty once for each time that a token
            occurred. Here a token gets it once, as a factor: a logit above 0 is divided by the
            penalty and one below is multiplied.
        subtracted: You divide the logits of one sign and subtract from those of the other. Those
            above 0 are divided by the penalty, those below are multiplied.
        others penalised: You change the logits of the tokens that did not occur. Those stay.
        all tokens: You change the logits of all tokens, whether or not they occurred.
        last token alone: You change the logit of the last token alone. All tokens so far count.
        first token alone: You change the logit of the first token alone. All tokens so far count.
        one token left out: You leave out the first or the last of the tokens so far. All count.
        places for tokens: You change the first logits, as many as there are tokens. The numbers in
            `ids` say which: logits[ids].
        banned: You give tokens that occurred no chance at all. They become less likely.
        of log probabilities: You take a log softmax before the penalty. All numbers are negative
            then, and the penalty of a likely token nearly vanishes. Apply it to the logits.
        of probabilities: You take a softmax, or a softmax and its logarithm, around the penalty. It
            changes the logits and returns them.
        nothing changed: You return the logits that you were given.
        set to 0: You put 0 in the place of a logit: of the negative ones, of the positive ones, or
            of both. Positive ones are divided and negative ones multiplied.
        sign turned: You turn the sign of logits. It stays: those above 0 are divided, those below
            are multiplied.
        compared with another number: You compare with another number than 0, such as 1 or the mean
            of the logits. Those above 0 are divided.
        repeated ones alone: You change the tokens that occurred more than once, or exactly once.
            Every token that occurred gets the penalty.
        others lost: The tokens that did not occur get 0, or no chance at all. They stay as they
            are.
        """,
        {
            "negative logits divided": each("change", lambda z, c: z / c),
            "all multiplied": each("change", lambda z, c: z * c),
            "rewarded": each(
                "change", lambda z, c: np.where(z > 0, z * c, z / c), lambda z, c: z + c
            ),
            "one sign alone": each(
                "change", lambda z, c: np.where(z > 0, z / c, z), lambda z, c: np.minimum(z, z * c)
            ),
            "set to 0": each(
                "change",
                lambda z, c: np.where(z > 0, z / c, 0),
                lambda z, c: np.where(z > 0, 0, z * c),
                lambda z, c: 0 * z,
            ),
            "sign turned": each(
                "change",
                lambda z, c: -z,
                lambda z, c: np.where(z > 0, -z / c, z * c),
                lambda z, c: -_smaller(z, c),
            ),
            "compared with another number": each(
                "change",
                lambda z, c: np.where(z > 1, z / c, z * c),
                lambda z, c: np.where(z > np.mean(z), z / c, z * c),
                lambda z, c: np.where(z > c, z / c, z * c),
            ),
            "another factor": each(
                "change",
                *(
                    lambda z, c, of=of: _smaller(z, of(c))
                    for of in (np.square, np.sqrt, lambda c: 1 + c, np.exp)
                ),
            ),
            "absolute value": each(
                "change",
                lambda z, c: np.where(z > 0, np.abs(z) / c, np.abs(z) * c),
                lambda z, c: np.abs(z) / c,
            ),
            "every occurrence counts": ({"times": lambda ids: 0, "each": True},),
            "repeated ones alone": each(
                "seen",
                lambda ids, n: np.bincount(ids, minlength=n) > 1,
                lambda ids, n: np.bincount(ids, minlength=n) == 1,
            ),
            "token off by one": each(
                "seen", lambda ids, n: _seen(ids + 1, n), lambda ids, n: _seen(ids - 1, n)
            ),
            "frequency penalty": tuple(
                {"times": lambda ids: 0, "each": True, "change": change} for change in _DIFFERENCES
            ),
            "presence penalty": each("change", *_DIFFERENCES),
            "subtracted": each(
                "change",
                lambda z, c: np.where(z > 0, z / c, z - c),
                lambda z, c: np.where(z > 0, z - c, z * c),
            ),
            "others lost": each("other", lambda z: 0 * z, lambda z: np.full_like(z, -np.inf)),
            "others penalised": each("seen", lambda ids, n: ~_seen(ids, n)),
            "all tokens": each("seen", lambda ids, n: np.arange(n) >= 0),
            "last token alone": each("seen", lambda ids, n: np.isin(np.arange(n), ids[-1:])),
            "first token alone": each("seen", lambda ids, n: np.isin(np.arange(n), ids[:1])),
            "one token left out": each(
                "seen", lambda ids, n: _seen(ids[1:], n), lambda ids, n: _seen(ids[:-1], n)
            ),
            "places for tokens": each("seen", lambda ids, n: np.arange(n) < len(ids)),
            "banned": each("change", lambda z, c: np.full_like(z, -np.inf)),
            "of log probabilities": each("enter", _log_softmax),
            "of probabilities": (
                {"enter": _softmax, "change": lambda z, c: z / c},
                {"enter": _softmax},
                *(
                    {"enter": _softmax, "change": lambda z, c: z / c, "leave": leave}
                    for leave in (np.log, lambda q: q / np.sum(q))
                ),
                *each("leave", _softmax, _log_softmax),
            ),
            "nothing changed": each("change", lambda z, c: z),
        },
    ),
    properties=(the_right_ones_change,),
)
