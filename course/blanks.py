"""Blanks: what an answer has where the solution has numbers, and what its check is given instead.

NaN is neither near a number nor far from it, and an array without numbers agrees with every number,
so that a comparison may let both pass; None would end the check. Infinity is far from all numbers.
"""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.move import move


def read(x: Any) -> np.ndarray:
    """Return numbers, or arrays of any library, as one array, with NaN in the place of a mask."""
    if isinstance(x, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(x), np.nan, np.ma.getdata(x))
    return move(x, "numpy") if array_api_compat.is_array_api_obj(x) else np.asarray(x)


def blanks(x: Any) -> set[str]:
    """Return which blanks a result holds: "NaN", "None", and "no number" where one is empty."""
    if isinstance(x, dict):
        x = [*x.values(), 0]
    if isinstance(x, (list, tuple)):
        return set().union(*map(blanks, x)) if x else {"no number"}
    if not isinstance(x, (float, complex)) and not hasattr(x, "__array__"):
        return {"None"} if x is None else set()
    x = read(x)
    if not x.size:
        return {"no number"}
    if x.dtype.kind == "O":
        return blanks(x.ravel().tolist())
    return {"NaN"} if x.dtype.kind in "fc" and np.isnan(x).any() else set()


def filled(x: Any, usual: set[str]) -> Any:
    """Return a result with infinity in the place of all blanks but the usual ones."""
    if isinstance(x, dict):
        return {key: filled(part, usual) for key, part in x.items()}
    if isinstance(x, (list, tuple)) and x:
        parts = [filled(part, usual) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    found = blanks(x) - usual
    if "NaN" in found and (y := read(x)).dtype.kind in "fc":
        return np.where(np.isnan(y), np.inf, y)[()]
    return np.float64(math.inf) if found else x  # it has a shape


def passed_on(function: Callable, change: Callable[[Any], Any]) -> Callable:
    """Return a function that changes what another one returns."""

    @functools.wraps(function)
    def changed(*given: Any, **options: Any) -> Any:
        return change(function(*given, **options))

    return changed


def guarded(x: Any, *usual: str) -> Any:
    """Return an answer, numbers or a function, with infinity in the place of unusual blanks."""
    if callable(x):
        return passed_on(x, functools.partial(filled, usual={*usual}))
    known = isinstance(x, numbers.Number) or is_numbers(x)
    return filled(x, {*usual}) if known else math.inf


def nothing(*given: Any, **options: Any) -> None:
    """Return None: the function in the place of one that is missing."""


def is_numbers(x: Any) -> bool:
    """Return whether this is a number, or an array or lists of numbers."""
    try:
        return read(x).dtype.kind in "biufc"
    except ValueError:  # lists of several lengths
        return False


def wrong(right: Any) -> Any:
    """Return what is wrong everywhere, in the shape of what is right."""
    right = np.asarray(right)
    return ~right if right.dtype == bool else np.full(right.shape, np.inf)[()]
