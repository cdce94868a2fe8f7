"""The router of a mixture of experts in steps, and the ways to get it wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def top_k_router(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a top-k router: the gates of the k experts that a token is sent to.

    Runs `f` on several sizes, on one expert per token and on all of them, on one token, on equal
    logits at the cut, on logits of ±1000, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, k)``, by position, on the router's logits (n, E) of n tokens and E
        experts, and an int from 1 to E. It returns the gates (n, E): the softmax over the k largest
        logits of each token, and 0 for the other experts. Exactly k experts are chosen; among equal
        logits at the cut, any may be.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check, softmax
    >>> def my_router(logits, k):
    ...     p = softmax(logits)
    ...     ranks = np.argsort(np.argsort(-p))
    ...     return np.where(ranks < k, p, 0)
    >>> check.top_k_router(my_router).mistake
    'not divided again'
    """
    return run(TOP_K_ROUTER, f, time_limit)


def best(logits, k, axis=-1):
    """Return where the k largest are, the first of equal ones."""
    ranks = np.argsort(np.argsort(-logits, axis=axis, kind="stable"), axis=axis, kind="stable")
    return ranks < k


def softmax_of(scores, axis=-1):
    top = np.max(scores, axis=axis, keepdims=True)
    powers = np.exp(scores - np.where(top == -np.inf, 0, top))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def share(x):
    return x / np.sum(x, axis=-1, keepdims=True)


def chosen(x, kept):
    return np.where(kept, x, 0)


def ranked(gates, logits, k):
    """Return the k gates of each token, from the largest logit down."""
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(gates, order, axis=-1)


def padded(gates, logits, k):
    """Return the gates of the ranked experts, before zeros."""
    return np.pad(ranked(gates, logits, k), ((0, 0), (0, logits.shape[-1] - k)))


def _of_the_first(logits, gates):
    """Return `gates` with those of equal logits moved to the first of them."""
    numbers = np.asarray(logits)
    if getattr(gates, "shape", None) != logits.shape or gates.ndim != 2:
        return gates
    if all(len({*row}) == len(row) for row in numbers.tolist()):
        return gates
    values = np.asarray(gates)
    source = np.empty(numbers.shape, dtype=int)
    for i, (row, own) in enumerate(zip(numbers, values, strict=True)):
        source[i, np.argsort(-row, kind="stable")] = np.lexsort((-own, -row))
    rows = np.arange(len(numbers))[:, np.newaxis] + 0 * source
    return gates[rows.tolist(), source.tolist()]


def _gates(s: Any, logits, k):
    kept = s.kept(logits, k)
    gates = s.gates(s.temper(logits), kept)
    return _of_the_first(logits, s.leave(gates, logits, k))


def k_experts_whose_gates_sum_to_one(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether a token has another number of experts, or its gates another sum."""
    gates, k = values[0], case.arguments["k"]
    if gates.shape != case.arrays["logits"].shape:
        return None
    counts = np.count_nonzero(gates, axis=-1)
    if np.any(counts != k):
        return f"Here a token has {counts[counts != k][0]} gates above 0, but k is {k}."
    sums = np.sum(gates, axis=-1)
    off = np.abs(sums - 1) > 1e-4
    return f"Here the gates of a token sum to {sums[off][0]:.4g}, not to 1." if off.any() else None


def _case(n: int, E: int, k: int, dtype: str = "float64", by: float = 1.0) -> Case:
    return Case({"logits": (by * draw(87, n, E)).astype(dtype), "k": k})


def _equal(k: int, *rows: tuple[float, ...]) -> Case:
    return Case({"logits": np.array(rows), "k": k}, about=", with equal logits")


def _any_of_equals(function: Callable) -> Callable:
    return signed_as(function, lambda logits, k: _of_the_first(logits, function(logits, k)))


TEXT = Text(globals())

TOP_K_ROUTER = Check(
    name="top_k_router",
    parameters=("logits", "k"),
    results={"gates": "(n, E)"},
    compute=_gates,
    steps=TEXT.steps,
    stages=(
        Stage((*(_case(5, 7, k) for k in (2, 3, 1, 7)), _case(3, 3, 2), _case(1, 5, 2))),
        Stage(
            (
                _equal(2, (0.5, 1.0, 0.5, -1.0, 0.5), (2.0, 2.0, 2.0, 0.0, 1.0)),
                _equal(1, (0.25, 0.25, 0.25), (-1.0, 0.5, 0.5)),
            )
        ),
        Stage((_case(5, 7, 3, by=1000.0),)),
        Stage((_case(5, 7, 3, dtype="float32"),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(k_experts_whose_gates_sum_to_one,),
    adapt=_any_of_equals,
)
