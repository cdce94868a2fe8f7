"""Rows with nothing to attend to: their weights are zeros, not NaN, and so are their gradients."""

from attnbook.arrays.array import Array, array_namespace


def maximum(x: Array, axis: int) -> Array:
    """Return the maximum along `axis`, which it keeps; −∞ where there is nothing."""
    xp = array_namespace(x)
    if x.shape[axis] == 0:  # the standard leaves the maximum of nothing undefined; here it is -inf
        return xp.sum(x, axis=axis, keepdims=True) - xp.inf
    return xp.max(x, axis=axis, keepdims=True)


def finite(maximum: Array) -> Array:
    """Return what a row is to be shifted by: its maximum, or 0 where that is −∞."""
    xp = array_namespace(maximum)
    return xp.where(maximum == -xp.inf, xp.zeros_like(maximum), maximum)


def shift(x: Array, axis: int) -> Array:
    """Return what `x` is to be shifted by along `axis`: its maximum, or 0 where that is −∞."""
    xp = array_namespace(x)
    if x.shape[axis] == 0:
        return xp.sum(x, axis=axis, keepdims=True)
    highest = xp.max(x, axis=axis, keepdims=True)
    return xp.where(highest == -xp.inf, xp.zeros_like(highest), highest)


def or_one(total: Array) -> Array:
    """Return what a row is to be divided by: its total, or 1 where that is 0."""
    xp = array_namespace(total)
    return xp.where(total == 0, xp.ones_like(total), total)
