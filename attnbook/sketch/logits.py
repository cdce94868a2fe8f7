"""Sums and maxima over logits, where -inf stands for a key that does not count."""

from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.empty_rows import finite, maximum, or_one


def masked(scores: Array, kept: Array) -> Array:
    """Return the scores with -inf in place of those that are not kept."""
    xp = array_namespace(scores)
    return xp.where(kept, scores, xp.full_like(scores, -xp.inf))


def log_sum(logits: Array) -> Array:
    """Return log Σ exp along the last axis, -inf over nothing."""
    xp = array_namespace(logits)
    shift = finite(maximum(logits, -1))
    total = xp.sum(xp.exp(logits - shift), axis=-1)
    return masked(xp.log(or_one(total)) + shift[..., 0], total > 0)


def count_and_largest(logits: Array) -> tuple[Array, Array]:
    """Return how many of `logits` (n_q, M) are not -inf, and the largest, -inf where none is."""
    xp = array_namespace(logits)
    count = xp.astype(xp.count_nonzero(logits > -xp.inf, axis=-1), xp.int64)
    return count, maximum(logits, -1)[..., 0]


def first_of_largest(rows: Array, logits: Array) -> tuple[Array, Array]:
    """Return row and score of the largest of `logits` (n_q, M), -1 and -inf where none counts."""
    xp = array_namespace(logits)
    largest = maximum(logits, -1)[..., 0]
    if rows.shape[1] == 0:
        return xp.full_like(largest, -1, dtype=xp.int64), largest
    place = xp.argmax(logits, axis=-1, keepdims=True)
    best = xp.take_along_axis(rows, place, axis=-1)[..., 0]
    return xp.where(largest == -xp.inf, xp.full_like(best, -1), best), largest
