"""Probabilities that hashes agree: one code, a table of κ codes, one of L tables or two of them."""

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
    r"""Return the probability to meet in one table or more, :math:`1 - (1 - p^\kappa)^L`.

    Two vectors meet in a table if all κ codes agree (AND), and L tables are L independent trials
    (OR). `p` is the probability that one code agrees, a number or an array. Small probabilities
    keep their digits.
    """
    table = p**n_projections
    if isinstance(table, (int, float)):
        return 1.0 if table >= 1 else -math.expm1(n_tables * math.log1p(-table))
    xp = array_namespace(table)
    sure = table >= 1  # log1p(-1) is -inf
    safe = xp.where(sure, xp.zeros_like(table), table)
    return xp.where(sure, xp.ones_like(table), -xp.expm1(n_tables * xp.log1p(-safe)))


def at_least_twice(p: Any, n_tables: int, n_projections: int) -> Any:
    r"""Return the probability to meet twice or more, :math:`\sum_{t \ge 2} B(t; L, p^\kappa)`.

    B is the binomial distribution of the number of tables, of L, in which two vectors meet. `p` is
    the probability that one code agrees, an array from 0 to 1. Small probabilities keep their
    digits, since for them the first terms are added up and nothing is subtracted from 1.
    """
    xp, few = array_namespace(p), 9
    f = p**n_projections
    sure = f >= 1
    safe = xp.where(sure, xp.zeros_like(f), f)
    missed = xp.log1p(-safe)
    whole = 1 - xp.exp((n_tables - 1) * missed) * (1 + (n_tables - 1) * safe)
    term = math.comb(n_tables, 2) * safe**2 * xp.exp((n_tables - 2) * missed)
    total = xp.zeros_like(term)
    for t in range(2, min(few, n_tables) + 1):
        total = total + term
        term = term * ((n_tables - t) / (t + 1)) * (safe / (1 - safe))
    found = xp.where(n_tables * safe < 0.1, total, whole)
    return xp.where(sure, xp.ones_like(f), found)


def log_chance(probability: Array) -> Array:
    """Return the logarithm, of the smallest number where a probability has underflowed to 0."""
    xp = array_namespace(probability)
    least = xp.finfo(probability.dtype).smallest_normal
    return xp.log(xp.where(probability > least, probability, xp.full_like(probability, least)))
