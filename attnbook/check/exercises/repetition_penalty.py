"""The repetition penalty in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def repetition_penalty(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the repetition penalty: it lowers the logits of tokens that have occurred.

    Runs `f` on tokens that occur once, twice and not at all, on no tokens, on penalties of 1 and
    more, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, ids, penalty)``, by position, on (V,), integers (n,) and a number of
        at least 1. It returns logits (V,): those of tokens in `ids` are divided by `penalty` if
        they are above 0 and multiplied by it if they are below; the others are unchanged.

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


def smaller(z, penalty):
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


def occurs(ids, n):
    return np.isin(np.arange(n), ids)


def log_softmax(z):
    top = np.max(z)
    return z - top - np.log(np.sum(np.exp(z - top)))


def softmax(z):
    return np.exp(log_softmax(z))


def the_right_ones_change(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether those logits change that should, and in which of them the change is wrong."""
    z, ids, penalty = case.arguments.values()
    if values[0].shape != z.shape or penalty == 1:
        return None
    changed, occurred = np.flatnonzero(~np.isclose(values[0], z)).tolist(), np.unique(ids).tolist()
    if changed != occurred:
        return f"Here you change the logits of the tokens {changed}; those in `ids` are {occurred}."
    off = z[~np.isclose(values[0], np.where(occurs(ids, len(z)), smaller(z, penalty), z))]
    if np.all(off > 0) or np.all(off < 0):
        side = "above" if off[0] > 0 else "below"
        return f"Here you change the right logits, but those {side} 0 in a wrong way."
    return "Here you change the right logits, but in a wrong way."


TEXT = Text(globals())

REPETITION_PENALTY = Check(
    name="repetition_penalty",
    parameters=("logits", "ids", "penalty"),
    results={"logits": "(V,)"},
    compute=_penalised,
    steps=TEXT.steps,
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
    mistakes=TEXT.mistakes,
    properties=(the_right_ones_change,),
)
