"""The softmax with a learned sink in steps, and the ways to get it wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def sink_softmax(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention weights with a learned sink, one more score in the softmax of each head.

    Runs `f` on sizes that are all different primes, on a square, on one query and one key, on a
    sink far above and far below the scores, on scores of ±1000, on hidden keys (a score of −∞) and
    a row in which all keys are hidden, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(scores, sinks)``, by position, on the scores (h, n_q, n_k), which are already
        scaled and masked, and one sink for each head, (h,). It returns the weights (h, n_q, n_k) of
        the keys, exp(s_ij) / (exp(sink) + Σ_j exp(s_ij)), so that the weights of a row sum to less
        than 1.

    Examples
    --------
    >>> from attnbook import check, softmax
    >>> check.sink_softmax(lambda scores, sinks: softmax(scores) + sinks[:, None, None]).mistake
    'sink added to the weights'
    """
    return run(SINK_SOFTMAX, f, time_limit)


def normalised(powers, axis=-1):
    total = np.sum(powers, axis=axis, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def softmax_of(scores, axis=-1):
    top = np.max(scores, axis=axis, keepdims=True)
    return normalised(np.exp(scores - np.where(top == -np.inf, 0, top)), axis)


def columns(weights, share):
    """Return the weights with the share of the sink behind them."""
    share = np.broadcast_to(share, (*weights.shape[:-1], 1))
    return np.concatenate([weights, share], axis=-1)


def with_first(weights, first):
    return np.concatenate([first + 0 * weights[..., :1], weights[..., 1:]], axis=-1)


def _weights(s: Any, scores, sinks):
    scores, sink = s.scores(scores), s.sink(sinks)
    top = s.top(scores, sink)
    powers, of_sink = s.power(scores - top), s.power(sink - top)
    total = s.total(powers, of_sink, sink)
    return s.leave(s.divide(powers, total, sink, scores), of_sink / total)


def rows_sum_to_less_than_one(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether rows sum to more than 1, or the sink changes nothing."""
    scores, weights = case.arrays["scores"], values[0]
    if weights.shape != scores.shape:
        return None
    if np.max(np.sum(weights, axis=-1)) > 1 + 1e-4:
        return "A row of your weights sums to more than 1. The sink takes a share, so none may."
    raised = again(sinks=case.arrays["sinks"] + 1)
    if raised and raised[0].shape == weights.shape and np.any(raised[0] > weights + 1e-4):
        return "A larger sink must lower the weights of all keys; it raises some of yours."
    return None


def _case(h: int, m: int, n: int, dtype: str = "float64", by: float = 1, shift: float = 0) -> Case:
    scores, sinks = by * draw(83, h, m, n), draw(84, h) + shift
    return Case({"scores": scores.astype(dtype), "sinks": sinks.astype(dtype)})


def _hidden(h: int, m: int, n: int) -> Case:
    scores = np.where(np.tri(m, n, dtype=bool), draw(85, h, m, n), -np.inf)
    scores[0, -1] = -np.inf  # all keys
    return Case({"scores": scores, "sinks": draw(86, h)}, about=", with hidden keys")


TEXT = Text(globals())

SINK_SOFTMAX = Check(
    name="sink_softmax",
    parameters=("scores", "sinks"),
    results={"weights": "(h, n_q, n_k)"},
    compute=_weights,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                *(_case(2, 3, 5), _case(3, 5, 7), _case(3, 3, 3), _case(2, 1, 4)),
                *(_case(2, 3, 1), _case(1, 1, 1), _case(2, 3, 5, shift=3.0)),
            )
        ),
        Stage((_case(2, 3, 5, by=1000), _case(2, 3, 5, shift=1000), _case(2, 3, 5, shift=-1000))),
        Stage((_hidden(2, 3, 5), _hidden(3, 4, 4))),
        Stage((_case(2, 3, 5, dtype="float32"),)),
    ),
    mistakes=TEXT.mistakes,
    variants=TEXT.variants,
    properties=(rows_sum_to_less_than_one,),
)
