"""What both hashes share: checked projections, and the chance to meet in one of several tables."""

import math
import numbers
from typing import Any

from attnbook.arrays.arguments import (
    Array,
    accumulation_dtype,
    array_namespace,
    check_float,
    check_floats,
    check_same_home,
)


def check_directions(directions: Array) -> None:
    """Raise unless `directions` is a float array (n_tables, n_projections, d), none of them 0."""
    check_float("directions", directions)
    if directions.ndim != 3 or 0 in directions.shape:
        raise ValueError(
            "directions must have shape (n_tables, n_projections, d) with each at least 1, "
            f"got {tuple(directions.shape)}"
        )


def projected(x: Array, directions: Array) -> Array:
    """Return a·x for every point and direction: (..., d) to (..., n_tables, n_projections).

    Half precision is computed in float32. Raises TypeError for another library or no floats,
    ValueError for another device or width, and where a projection is not finite.
    """
    x, directions = _widened("x", x, directions)
    xp = array_namespace(x)
    bad = ValueError("x must be finite and have finite projections, got NaN or infinity")
    if not bool(xp.all(xp.isfinite(x))):
        raise bad
    n_tables, n_projections, d = directions.shape
    flat = xp.reshape(directions, (n_tables * n_projections, d))
    along = xp.matmul(xp.reshape(x, (-1, d)), xp.matrix_transpose(flat))
    if not bool(xp.all(xp.isfinite(along))):
        raise bad
    return xp.reshape(along, (*x.shape[:-1], n_tables, n_projections))


def pair(query: Array, key: Array, directions: Array) -> tuple[Array, Array]:
    """Return queries and keys in the dtype to compute in, or raise as `projected`."""
    check_floats(query=query, key=key)
    return _widened("query", query, directions)[0], _widened("key", key, directions)[0]


def _widened(name, x, directions):
    check_float(name, x)
    check_same_home("directions", directions, name, x)
    d = directions.shape[-1]
    if x.ndim == 0 or x.shape[-1] != d:
        raise ValueError(
            f"{name} must have shape (..., {d}) to match the directions, got {tuple(x.shape)}"
        )
    xp = array_namespace(x)
    wide = accumulation_dtype(xp, x.dtype)
    return xp.astype(x, wide, copy=False), xp.astype(directions, wide, copy=False)


def root(x: Array) -> Array:
    """Return the square root, 0 of what is not above 0, where its derivative is 0 and not NaN."""
    xp = array_namespace(x)
    some = x > 0
    roots = xp.sqrt(xp.where(some, x, xp.ones_like(x)))
    return xp.where(some, roots, xp.zeros_like(roots))


def unit(x: Array) -> Array:
    """Return vectors at length 1, zeros as they are; no square overflows or vanishes."""
    xp = array_namespace(x)
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    zero = largest == 0
    scaled = x / xp.where(zero, xp.ones_like(largest), largest)
    lengths = root(xp.sum(scaled * scaled, axis=-1, keepdims=True))
    return scaled / xp.where(zero, xp.ones_like(lengths), lengths)


def check_within(name: str, x: Any, most: float, shown: str) -> None:
    """Raise unless `x` is a number, or an array of floats, from 0 to `most`."""
    if isinstance(x, numbers.Real) and not isinstance(x, bool):
        try:
            inside = 0 <= float(x) <= most
        except OverflowError:  # an int or a Fraction beyond the largest float
            inside = False
    else:
        check_float(name, x)
        xp = array_namespace(x)
        inside = bool(xp.all((x >= 0) & (x <= most)))
    if not inside:  # also for NaN
        raise ValueError(f"{name} must be from 0 to {shown}, got {x}")


def at_least_once(p: Any, n_tables: int, n_projections: int) -> Any:
    r"""Return the chance to meet in one table or more, :math:`1 - (1 - p^K)^L`.

    Meeting in a table takes K equal codes (AND); L tables give L independent chances (OR). `p` is
    a number or an array of chances of one equal code. Small chances keep their digits.
    """
    table = p**n_projections
    if isinstance(table, (int, float)):
        return 1.0 if table >= 1 else -math.expm1(n_tables * math.log1p(-table))
    xp = array_namespace(table)
    sure = table >= 1  # log1p(-1) is -inf
    safe = xp.where(sure, xp.zeros_like(table), table)
    return xp.where(sure, xp.ones_like(table), -xp.expm1(n_tables * xp.log1p(-safe)))


def log_chance(probability: Array) -> Array:
    """Return the logarithm, of the smallest number where a chance has underflowed to 0."""
    xp = array_namespace(probability)
    least = xp.finfo(probability.dtype).smallest_normal
    return xp.log(xp.where(probability > least, probability, xp.full_like(probability, least)))
