"""Integers that int64 can hold: one, or an array of them."""

import numbers
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import Array, dtype_name


def check_int64(name: str, x: int) -> int:
    """Return `x` as an int that int64 can hold, or raise."""
    if isinstance(x, bool) or not isinstance(x, numbers.Integral):
        raise TypeError(f"{name} must be an int, got {type(x).__name__}")
    if not -(2**63) <= x < 2**63:
        raise ValueError(f"{name} must fit into int64, got {x}")
    return int(x)


def check_int64s(name: str, x: Annotated[Array, "..."], shape: tuple = ("n",)) -> np.ndarray:
    """Return `x` as a contiguous int64 array of such a shape, letters for any size, or raise."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, got {type(x).__name__}")
    if x.dtype.kind not in "iu" or x.dtype == np.uint64:
        raise TypeError(f"{name} must have integers that fit into int64, got {dtype_name(x.dtype)}")
    fits = [
        isinstance(wanted, str) or wanted == n for wanted, n in zip(shape, x.shape, strict=False)
    ]
    if x.ndim != len(shape) or not all(fits):
        wanted = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
        raise ValueError(f"{name} must have shape {wanted}, got {x.shape}")
    x = np.ascontiguousarray(x, dtype=np.int64)
    return x if x.flags.writeable else x.copy()  # Numba compiles anew for read-only arrays
