"""Checks of arguments: one reader for each kind, which every public function uses.

An error says the name of the argument, what was expected and what came. The arrays of one call
are of one library, on one device and of one floating dtype.
"""

import math
import numbers
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, dtype_name, library

LARGEST = 2**31 - 1
"""The largest int that an argument can be, unless its function says otherwise."""

FLOATS = (np.float64, np.float32, np.float16)


def check_array(name: str, x: Array) -> None:
    """Raise TypeError unless `x` is an array."""
    if type(x) is np.ndarray and x.dtype.isbuiltin == 1 and x.dtype.kind != "V":
        return  # the most common arrays, soon told
    # np.matrix multiplies with *, a masked array hides numbers: neither follows the standard
    odd = isinstance(x, (type, np.matrix, np.ma.MaskedArray))
    if odd or not array_api_compat.is_array_api_obj(x):
        raise TypeError(
            f"{name} must be an array of NumPy, CuPy, PyTorch or another Array API library, "
            f"got {type(x).__name__}"
        )
    layout = str(getattr(x, "layout", "torch.strided")).removeprefix("torch.")
    if layout == "strided" and getattr(x, "is_nested", False):
        layout = "nested"
    if layout != "strided":
        raise TypeError(f"{name} must be dense, got a {layout} array")
    # records of several fields, and FP8, in which no library computes
    dtype: Any = x.dtype  # type: ignore[union-attr]  # the guard above narrows to a bare protocol
    kind = dtype_name(dtype)
    if kind.startswith("float8") or getattr(dtype, "type", None) is np.void:
        raise TypeError(f"{name} must have a dtype to compute in, got {kind}")


def check_same_home(name: str, x: Array, like_name: str, like: Array) -> None:
    """Raise unless `x` is an array of the same library and on the same device as `like`."""
    check_array(name, x)
    if type(x) is not type(like) and library(x) != library(like):
        raise TypeError(
            f"{name} must be an array of the same library as {like_name} ({library(like)}), "
            f"got {library(x)}"
        )
    ours, theirs = array_api_compat.device(x), array_api_compat.device(like)
    if ours != theirs:
        raise ValueError(f"{name} must be on the same device as {like_name} ({theirs}), got {ours}")


def check_float(name: str, x: Array) -> None:
    """Raise TypeError unless `x` is an array of real floating-point numbers."""
    if type(x) is np.ndarray and x.dtype.type in FLOATS:
        return  # the most common arrays, soon told
    check_array(name, x)
    # CuPy borrows its bfloat16 from ml_dtypes, and does not count it among NumPy's dtypes
    if dtype_name(x.dtype) != "bfloat16" and not array_namespace(x).isdtype(
        x.dtype, "real floating"
    ):
        raise TypeError(f"{name} must have a real floating dtype, got {dtype_name(x.dtype)}")


def check_floats(**arrays: Array) -> None:
    """Raise unless all `arrays` share one library, one device and one real floating dtype.

    The first is the one that the others are compared with.
    """
    (first_name, first), *others = arrays.items()
    check_float(first_name, first)
    for name, x in others:
        if x is first or (type(x) is type(first) is np.ndarray and x.dtype == first.dtype):
            continue
        check_same_home(name, x, first_name, first)
        if x.dtype != first.dtype:
            check_float(name, x)
            raise TypeError(
                f"{name} must have the dtype of {first_name} ({dtype_name(first.dtype)}), "
                f"got {dtype_name(x.dtype)}"
            )


def check_axis(axis: int, ndim: int) -> int:
    """Return `axis` as a number from 0 to `ndim` - 1, or raise."""
    if isinstance(axis, bool) or not isinstance(axis, numbers.Integral):
        raise TypeError(f"axis must be an int, got {type(axis).__name__}")
    if ndim == 0:
        raise ValueError("x must have at least 1 axis, got shape ()")
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis must be from {-ndim} to {ndim - 1}, got {axis}")
    return int(axis) % ndim


def check_number(name: str, x: float) -> float:
    """Return `x` as a finite float of at least 0, or raise."""
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {type(x).__name__}")
    try:
        number = float(x)
    except OverflowError:  # an int or a Fraction beyond the largest float
        number = math.inf if x > 0 else -math.inf
    if not 0 <= number < math.inf:  # also false for NaN
        raise ValueError(f"{name} must be finite and at least 0, got {number}")
    return number


def check_positive(name: str, x: float) -> float:
    """Return `x` as a finite float above 0, or raise."""
    if (number := check_number(name, x)) == 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return number


def check_int(name: str, n: int, at_least: int = 0, at_most: int = LARGEST) -> int:
    """Return `n` as an int from `at_least` to `at_most`, or raise."""
    if isinstance(n, bool) or not isinstance(n, numbers.Integral):
        raise TypeError(f"{name} must be an int, got {type(n).__name__}")
    if n < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {n}")
    if n > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {n}")
    return int(n)


def check_bool(name: str, flag: bool) -> bool:
    """Return `flag`, or raise TypeError unless it is True or False."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be a bool, got {type(flag).__name__}")
    return flag


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value`, or raise ValueError unless it is one of `choices`."""
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return value
    got = type(value).__name__ if array_api_compat.is_array_api_obj(value) else repr(value)
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {got}")


def check_path(name: str, path: "str | os.PathLike") -> Path:
    """Return `path` as a Path, or raise TypeError unless it is a path or a string."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path or a str, got {type(path).__name__}")
    return Path(path)


def generator(rng: Any, name: str = "rng") -> "np.random.Generator":
    """Return `rng`, a Generator or a seed, as a Generator, or raise."""
    if isinstance(rng, bool) or not isinstance(rng, (np.random.Generator, int, np.integer)):
        raise TypeError(
            f"{name} must be a numpy.random.Generator or an int, got {type(rng).__name__}"
        )
    if not isinstance(rng, np.random.Generator) and rng < 0:
        raise ValueError(f"{name} must be at least 0 if it is a seed, got {rng}")
    return np.random.default_rng(rng)


def check_ids(name, ids, n_known, like_name, like):
    """Raise unless `ids` are integers from 0 to `n_known` - 1 that live where `like` does.

    With `n_known` None they may be any integers.
    """
    check_same_home(name, ids, like_name, like)
    xp = array_namespace(ids)
    if not xp.isdtype(ids.dtype, "integral"):
        raise TypeError(f"{name} must be an array of integers, got {dtype_name(ids.dtype)}")
    if ids.ndim == 0:
        raise ValueError(f"{name} must have shape (..., n), got ()")
    torch = sys.modules.get("torch")
    if n_known is None or 0 in ids.shape or (torch and torch.compiler.is_compiling()):
        return  # inside torch.compile reading a number would cut the graph in two
    if library(ids) == "torch":  # which has no minimum of its wider unsigned integers
        ids = xp.astype(ids, xp.int64, copy=False)
    try:
        least, most = int(xp.min(ids)), int(xp.max(ids))
    except RuntimeError:  # PyTorch's, for numbers that cannot be read: in vmap, on the meta device
        return
    if least < 0 or most >= n_known:
        raise ValueError(
            f"{name} must be from 0 to {n_known - 1} to be known to {like_name}, "
            f"got {least if least < 0 else most}"
        )
