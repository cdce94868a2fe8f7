"""One step of beam search: which continuations of which hypotheses stay."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text


@documented
def beam_step(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check one step of beam search: the best of all continuations of all hypotheses.

    Runs `f` on hypotheses with similar and with different totals, on unused beams (−∞), on banned
    tokens (−∞), on one hypothesis, on more and on fewer beams than hypotheses, and on as many beams
    as there are continuations.

    Parameters
    ----------
    f : callable
        Called as ``f(totals, log_p, n_beams)``, by position: log p of each hypothesis so far, (m,),
        log p of every next token after each of them, (m, V), and the number of continuations to
        keep. It returns two integer arrays (n_beams,), best first: the parents, which are the
        indices of the continued hypotheses, and the tokens that continue them.

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


def best_of(scores, n_beams):
    return np.argsort(-scores, axis=None, kind="stable")[:n_beams]


def allowed(scores, n_beams, instead):
    """Return the best continuations, with another place where only those of −∞ are left."""
    best = best_of(scores, n_beams)
    return np.where(scores.flat[best] == -np.inf, instead, best)


def one_of_each(scores, n_beams):
    """Return the best continuation of each of the first hypotheses."""
    tokens = np.argmax(scores, axis=1)
    flat = np.arange(len(scores)) * scores.shape[1] + tokens
    best = flat[np.argsort(-np.max(scores, axis=1), kind="stable")]
    return np.resize(best, n_beams)


def in_their_order(scores, n_beams):
    """Return the best continuation of each hypothesis, in the order of the hypotheses."""
    return np.arange(len(scores)) * scores.shape[1] + np.argmax(scores, axis=1)


def each_token_once(scores, n_beams):
    """Return the best continuation of each token, those that come best."""
    places = np.argmax(scores, axis=0) * scores.shape[1] + np.arange(scores.shape[1])
    return places[np.argsort(-np.max(scores, axis=0), kind="stable")][:n_beams]


def _beams(steps: Any, totals, log_p, n_beams):
    scores = steps.add(totals[:, None], log_p)
    best = steps.pick(scores, n_beams)
    divisor = steps.width(*log_p.shape, n_beams)
    return steps.results(best // divisor, steps.tokens(best, divisor, log_p.shape[1]))


def _logs(seed: int, m: int, n_tokens: int) -> np.ndarray:
    z = 2 * draw(seed, m, n_tokens)
    return z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))


def _case(m: int, n_tokens: int, n_beams: int, spread: float = 1.0, **changes: Any) -> Case:
    totals = -4 + spread * draw(68, m) - changes.get("lower", 0.0)
    log_p = _logs(69, m, n_tokens)
    totals[list(changes.get("empty", ()))] = -np.inf
    log_p[:, list(changes.get("barred", ()))] = -np.inf
    return Case({"totals": totals, "log_p": log_p, "n_beams": n_beams})


TEXT = Text(globals())

BEAM_STEP = Check(
    name="beam_step",
    parameters=("totals", "log_p", "n_beams"),
    results={"parents": "(n_beams,)", "tokens": "(n_beams,)"},
    compute=_beams,
    steps=TEXT.steps,
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
    mistakes=TEXT.mistakes,
    kind="integral",
)
