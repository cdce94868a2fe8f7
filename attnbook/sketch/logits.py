"""Sums and maxima over logits, where -inf stands for a key that does not count."""

from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.empty_rows import maximum as maximum_of


def masked(scores: Array, kept: Array) -> Array:
    """Return the scores with -inf in the place of each that is not kept."""
    xp = array_namespace(scores)
    return xp.where(kept, scores, xp.full_like(scores, -xp.inf))


def log_sum(logits: Array) -> Array:
    """Return log Σ exp along the last axis, -inf over nothing."""
    xp = array_namespace(logits)
    top = maximum_of(logits, -1)
    shift = xp.where(top == -xp.inf, xp.zeros_like(top), top)
    total = xp.sum(xp.exp(logits - shift), axis=-1)
    some = total > 0
    logs = xp.log(xp.where(some, total, xp.ones_like(total))) + shift[..., 0]
    return xp.where(some, logs, xp.full_like(logs, -xp.inf))


def count_and_largest(logits: Array) -> tuple[Array, Array]:
    """Return how many of `logits` (n_q, M) are not -inf, and the largest, -inf where none is."""
    xp = array_namespace(logits)
    count = xp.astype(xp.count_nonzero(logits > -xp.inf, axis=-1), xp.int64)
    return count, maximum_of(logits, -1)[..., 0]


def first_of_largest(rows: Array, logits: Array) -> tuple[Array, Array]:
    """Return row and score of the largest of `logits` (n_q, M), -1 and -inf where none counts."""
    xp = array_namespace(logits)
    largest = maximum_of(logits, -1)[..., 0]
    if rows.shape[1] == 0:
        return xp.full_like(largest, -1, dtype=xp.int64), largest
    place = xp.argmax(logits, axis=-1, keepdims=True)
    best = xp.take_along_axis(rows, place, axis=-1)[..., 0]
    return xp.where(largest == -xp.inf, xp.full_like(best, -1), best), largest
