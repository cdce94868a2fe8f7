"""One step of beam search: which continuations of which hypotheses stay."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Way, draw, each


@documented
def beam_step(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check one step of beam search: the best of all continuations of all hypotheses.

    Runs `f` on hypotheses that are near and far, on places that hold none (−∞), on tokens that
    may not come (−∞), on one hypothesis, on more beams than hypotheses and on fewer, and on as many
    as there are continuations.

    Parameters
    ----------
    f : callable
        Called as ``f(totals, log_p, n_beams)``, by position: log p of each hypothesis so far, (m,),
        those of the next token after each, (m, V), and how many continuations stay. It returns two
        integer arrays (n_beams,), best first: the parents, numbers of the hypotheses that are
        continued, and the tokens that continue them.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_step(totals, log_p, n_beams):
    ...     best = np.argsort(-log_p, axis=None)[:n_beams]
    ...     return best // log_p.shape[1], best % log_p.shape[1]
    >>> check.beam_step(my_step).mistake
    'totals forgotten'
    """
    return run(BEAM_STEP, f, time_limit)


def _best(scores, n_beams):
    return np.argsort(-scores, axis=None, kind="stable")[:n_beams]


def _allowed(scores, n_beams, instead):
    """Return the best continuations, with another place where only those of −∞ are left."""
    best = _best(scores, n_beams)
    return np.where(scores.flat[best] == -np.inf, instead, best)


def _one_of_each(scores, n_beams):
    """Return the best continuation of each of the first hypotheses."""
    tokens = np.argmax(scores, axis=1)
    flat = np.arange(len(scores)) * scores.shape[1] + tokens
    best = flat[np.argsort(-np.max(scores, axis=1), kind="stable")]
    return np.resize(best, n_beams)


def _in_their_order(scores, n_beams):
    """Return the best continuation of each hypothesis, in the order of the hypotheses."""
    return np.arange(len(scores)) * scores.shape[1] + np.argmax(scores, axis=1)


def _divided_by(width: Callable) -> tuple[Way, ...]:
    """Return the ways to divide by another number: in both results, or for the parents alone."""
    return (
        {"width": width},
        {"width": width, "tokens": lambda best, divisor, n_tokens: best % n_tokens},
    )


def _each_token_once(scores, n_beams):
    """Return the best continuation of each token, those that come best."""
    places = np.argmax(scores, axis=0) * scores.shape[1] + np.arange(scores.shape[1])
    return places[np.argsort(-np.max(scores, axis=0), kind="stable")][:n_beams]


def _beams(steps: Any, totals, log_p, n_beams):
    scores = steps.add(totals[:, None], log_p)
    best = steps.pick(scores, n_beams)
    divisor = steps.width(*log_p.shape, n_beams)
    return steps.results(best // divisor, steps.tokens(best, divisor, log_p.shape[1]))


_STEPS: dict[str, Callable] = {
    "add": np.add,
    "pick": _best,
    "width": lambda m, n_tokens, n_beams: n_tokens,
    "tokens": lambda best, divisor, n_tokens: best % divisor,
    "results": lambda parents, tokens: (parents, tokens),
}


def _logs(seed: int, m: int, n_tokens: int) -> np.ndarray:
    z = 2 * draw(seed, m, n_tokens)
    return z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))


def _case(m: int, n_tokens: int, n_beams: int, spread: float = 1.0, **changes: Any) -> Case:
    totals = -4 + spread * draw(68, m) - changes.get("lower", 0.0)
    log_p = _logs(69, m, n_tokens)
    totals[list(changes.get("empty", ()))] = -np.inf
    log_p[:, list(changes.get("barred", ()))] = -np.inf
    return Case({"totals": totals, "log_p": log_p, "n_beams": n_beams})


BEAM_STEP = Check(
    name="beam_step",
    parameters=("totals", "log_p", "n_beams"),
    results={"parents": "(n_beams,)", "tokens": "(n_beams,)"},
    compute=_beams,
    steps=_STEPS,
    stages=(
        Stage(
            (
                *(_case(2, 5, 2), _case(3, 7, 3), _case(3, 7, 3, spread=3.0), _case(5, 3, 5)),
                *(_case(1, 7, 4), _case(2, 5, 4), _case(4, 4, 4), _case(5, 3, 2)),
            )
        ),
        Stage((_case(3, 7, 3, empty=(0, 2)), _case(3, 5, 3, barred=(1, 2)))),
        Stage((_case(1, 5, 5, barred=(1,)),), may_raise="as many beams as continuations"),
        Stage((_case(3, 5, 3, lower=2000.0),)),
    ),
    mistakes=mistakes(
        """
        totals forgotten: You compare the continuations without log p of what they continue. Add the
            total of each hypothesis to its row.
        one of each: You keep the best continuation of each hypothesis: that is several greedy
            searches side by side. The best of all continuations stay, and a hypothesis may have
            several of them or none.
        worst first: You keep the least likely. argsort sorts upwards: turn the sign.
        token off by one: Your tokens are one too large or too small. Ids count from 0.
        places for tokens: Your tokens are places in the flat array. The token is place % V.
        not sorted: You keep the right continuations, but not with the best one first.
        parents and tokens exchanged: You return the tokens first and then the parents.
        divided by the number of hypotheses: You divide the place in the flat array by the number of
            rows. A row has V numbers: parent = place // V, token = place % V.
        divided by the number of beams: You divide the place in the flat array by n_beams. A row has
            V numbers: parent = place // V, token = place % V.
        multiplied: You multiply logarithms. Probabilities multiply, so their logarithms add.
        subtracted: You subtract the totals from log p, or log p from the totals. They are added.
        probabilities added: You take exp of the totals, or of log p, before you add. The sum of
            logarithms is the logarithm of the product.
        probabilities multiplied: You multiply probabilities. Those of a long sequence are too small
            for a float and become 0. Add their logarithms.
        best hypothesis alone: You continue the best hypothesis alone.
        total of another hypothesis: You add the totals to the wrong rows. Write totals[:, None], so
            that row i of log p gets total i.
        best left out: You leave out the best continuation. Begin at place 0.
        best alone: You return the best continuation again and again. Return the n_beams best.
        one continuation twice: You return a continuation again, such as the best one. Each comes
            once: where fewer may come than there are beams, those of −∞ take the places left.
        each token once: You keep each token once. Two hypotheses may go on with the same one.
        read by columns: You count the places column by column. The numbers of a row follow each
            other: parent = place // V, token = place % V.
        parents lost: You return the first hypothesis as the parent of each. It is place // V.
        one too many: You return one continuation more than n_beams, or one less.
        log p forgotten: You compare the totals alone. Add log p of the token.
        totals doubled: The totals count twice as much as log p. Add them as they are.
        larger for the sum: You take the larger or the smaller of total and log p. Add them.
        """,
        {
            "totals forgotten": each("add", lambda t, p: p + 0),
            "one of each": (
                *each("pick", _one_of_each, lambda s, k: _one_of_each(s, len(s))[:k]),
                *each("pick", _in_their_order, lambda s, k: _in_their_order(s, k)[:k]),
            ),
            "worst first": each("pick", lambda s, k: np.argsort(s, axis=None, kind="stable")[:k]),
            "best left out": each("pick", lambda s, k: _best(s, k + 1)[1:]),
            "best alone": each("pick", lambda s, k: np.full(k, np.argmax(s))),
            "one continuation twice": each(
                "pick",
                lambda s, k: _best(s, k)[np.maximum(np.arange(k) - 1, 0)],
                lambda s, k: np.append(_best(s, k - 1), np.argmax(s)),
                lambda s, k: _best(s, k)[np.minimum(np.arange(k), k - 2)],
                lambda s, k: _allowed(s, k, np.argmax(s)),
                lambda s, k: _allowed(s, k, 0),
            ),
            "each token once": each("pick", _each_token_once),
            "read by columns": (
                {"pick": lambda s, k: _best(s.T, k)},
                {
                    "width": lambda m, n_tokens, n_beams: m,
                    "results": lambda parents, tokens: (tokens, parents),
                },
            ),
            "token off by one": each("results", lambda i, j: (i, j + 1), lambda i, j: (i, j - 1)),
            "places for tokens": each("tokens", lambda best, *others: best),
            "parents lost": each("results", lambda i, j: (0 * i, j)),
            "one too many": each(
                "pick", lambda s, k: _best(s, k + 1), lambda s, k: _best(s, k - 1)
            ),
            "log p forgotten": each("add", lambda t, p: t + 0 * p),
            "totals doubled": each("add", lambda t, p: 2 * t + p),
            "larger for the sum": each("add", np.maximum, np.minimum),
            "not sorted": each(
                "pick", lambda s, k: _best(s, k)[::-1], lambda s, k: np.sort(_best(s, k))
            ),
            "parents and tokens exchanged": each("results", lambda i, j: (j, i)),
            "divided by the number of hypotheses": _divided_by(lambda m, n_tokens, n_beams: m),
            "divided by the number of beams": _divided_by(lambda m, n_tokens, n_beams: n_beams),
            "multiplied": each("add", np.multiply),
            "subtracted": each("add", lambda t, p: p - t, lambda t, p: t - p),
            "probabilities added": each(
                "add",
                lambda t, p: np.exp(t) + np.exp(p),
                lambda t, p: t + np.exp(p),
                lambda t, p: np.exp(t) + p,
            ),
            "probabilities multiplied": each("add", lambda t, p: np.exp(t) * np.exp(p)),
            "best hypothesis alone": (
                {"add": lambda t, p: np.where(t == np.max(t), t + p, -1e9 + p)},
                {
                    "add": lambda t, p: np.where(t == np.max(t), t + p, -np.inf),
                    "pick": lambda s, k: _best(s, min(k, s.shape[1])),
                },
            ),
            "total of another hypothesis": each(
                "add", lambda t, p: t[::-1] + p, lambda t, p: np.resize(t, p.shape[1]) + p
            ),
        },
    ),
    kind="integral",
)
