"""Chances that hashes agree: for one code, for a table of κ codes, and for one of L tables."""

import math
import numbers
from typing import Any

import array_api_compat

from attnbook.arrays.arguments import check_float
from attnbook.arrays.array import Array, array_namespace


def check_within(name: str, x: Any, most: float, shown: str) -> None:
    """Raise unless `x` is a number, or an array of floats, from 0 to `most`."""
    if isinstance(x, numbers.Real) and not isinstance(x, bool):
        try:
            inside = 0 <= float(x) <= most
        except OverflowError:  # an int or a Fraction beyond the largest float
            inside = False
    else:
        check_float(name, x)
        if str(array_api_compat.device(x)) == "meta":
            raise ValueError(f"{name} must hold numbers, got an array on the meta device")
        xp = array_namespace(x)
        inside = bool(xp.all((x >= 0) & (x <= most)))
    if not inside:  # also for NaN
        raise ValueError(f"{name} must be from 0 to {shown}, got {x}")


def at_least_once(p: Any, n_tables: int, n_projections: int) -> Any:
    r"""Return the chance to meet in one table or more, :math:`1 - (1 - p^\kappa)^L`.

    Two vectors meet in a table if all κ codes agree (AND), and L tables give L independent chances
    (OR). `p` is the chance that one code agrees, a number or an array. Small chances keep their
    digits.
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
