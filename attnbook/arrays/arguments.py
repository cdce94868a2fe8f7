"""Checks of arguments: one reader for each kind, which every public function uses.

An error says the name of the argument, what was expected and what came. The arrays of one call
are of one library, on one device and of one floating dtype.
"""

import math
import numbers
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import array_api_compat
import numpy as np


class Array(Protocol):
    """An array of NumPy, CuPy, PyTorch or another Array API library: what all of them can do.

    In signatures ``Annotated[Array, "... n_q d_k"]`` names the axes, leading axes as ``...``. The
    tests read these strings and check every call against them.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __float__(self) -> float: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __abs__(self) -> Any: ...
    def __invert__(self) -> Any: ...
    def __and__(self, other: Any, /) -> Any: ...
    def __or__(self, other: Any, /) -> Any: ...
    def __eq__(self, other: object, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...


A = TypeVar("A", bound=Array)

array_namespace = array_api_compat.array_namespace

LARGEST = 2**31 - 1
"""The largest int that an argument can be, unless its function says otherwise."""


def library(x: Array) -> str:
    """Return the short name of the library that `x` belongs to, such as ``"numpy"``."""
    return array_namespace(x).__name__.removeprefix("array_api_compat.")


def check_array(name: str, x: Array) -> None:
    """Raise TypeError unless `x` is an array."""
    # np.matrix multiplies with *, a masked array hides numbers: neither follows the standard
    odd = isinstance(x, (type, np.matrix, np.ma.MaskedArray))
    if odd or not array_api_compat.is_array_api_obj(x):
        raise TypeError(
            f"{name} must be an array of NumPy, CuPy, PyTorch or another Array API library, "
            f"got {type(x).__name__}"
        )
    layout = str(getattr(x, "layout", "torch.strided")).removeprefix("torch.")
    if layout != "strided" or getattr(x, "is_nested", False):
        raise TypeError(f"{name} must be dense, got a {layout} array")


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


def dtype_name(dtype: Any) -> str:
    """Return the bare name of a dtype of any library, such as ``"float32"``."""
    return str(dtype).split(".")[-1]  # not .name, which hides a foreign byte order such as ">f4"


def accumulation_dtype(xp: Any, dtype: Any) -> Any:
    """Return the dtype to compute in: float32 for half precision, else `dtype` itself."""
    return xp.float32 if str(dtype).endswith("float16") else dtype  # bfloat16 too


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that `shapes` broadcast to, or None where they do not."""
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for i in range(1, len(shape) + 1):
            if result[-i] == 1:
                result[-i] = shape[-i]
            elif shape[-i] not in (1, result[-i]):
                return None
    return tuple(result)


def sum_to_shape(x: A, shape: tuple[int, ...]) -> A:
    """Sum `x` over the axes along which `shape` was broadcast: the transpose of broadcasting."""
    xp = array_namespace(x)
    extra = x.ndim - len(shape)
    stretched = [i for i in range(len(shape)) if shape[i] == 1 and x.shape[extra + i] != 1]
    axes = tuple(range(extra)) + tuple(extra + i for i in stretched)
    return xp.reshape(xp.sum(x, axis=axes), shape) if axes else x


def check_leading_axes(arrays):
    """Raise ValueError unless the axes before the last two of all `arrays` broadcast."""
    leading: tuple[int, ...] = ()
    for name, x in arrays.items():
        both = broadcast_shapes(leading, tuple(x.shape[:-2]))
        if both is None:
            raise ValueError(
                f"{name} must have leading axes that broadcast with {leading}, "
                f"got shape {tuple(x.shape)}"
            )
        leading = both


def to_compute(arrays, mask, bias, is_causal):
    """Return checked arrays, mask and bias as the mathematics takes them.

    Half precision is widened to float32, and a causal call has its mask joined with the given one.
    """
    query, key = arrays[:2]
    if is_causal:
        mask = and_causal(mask, query, key)
    xp = array_namespace(query)
    wide = accumulation_dtype(xp, query.dtype)
    if wide is not query.dtype:
        arrays = [xp.astype(x, wide, copy=False) for x in arrays]
        bias = None if bias is None else xp.astype(bias, wide, copy=False)
    return arrays, mask, bias


def and_causal(mask, query, key):
    """Return `mask`, if any, where a key comes no later than its query."""
    n_q, n_k = query.shape[-2], key.shape[-2]
    causal = causal_mask(query, slice(0, n_q), slice(0, n_k), n_k - n_q)
    return causal if mask is None else mask & causal


def causal_mask(like, rows, keys, offset):
    """Return which keys are no later than each query; query i stands at key i + `offset`."""
    xp, device = array_namespace(like), array_api_compat.device(like)
    own = xp.arange(rows.start + offset, rows.stop + offset, device=device)
    return xp.arange(keys.start, keys.stop, device=device) <= own[:, None]


def check_attention(arrays, mask, bias, scale, is_causal=False):
    """Return the scale of attention between `arrays`, or raise if anything does not fit."""
    check_floats(**arrays)
    for name, x in arrays.items():
        if x.ndim < 2:
            axes = {"query": "n_q, d_k", "key": "n_k, d_k", "value": "n_k, d_v"}[name]
            raise ValueError(f"{name} must have shape (..., {axes}), got {tuple(x.shape)}")
    query, key = arrays["query"], arrays["key"]
    (n_q, d_k), n_k = query.shape[-2:], key.shape[-2]
    if key.shape[-1] != d_k:
        raise ValueError(
            f"key must have shape (..., n_k, {d_k}) to match query, got {tuple(key.shape)}"
        )
    if "value" in arrays and arrays["value"].shape[-2] != n_k:
        raise ValueError(
            f"value must have shape (..., {n_k}, d_v) to match key, "
            f"got {tuple(arrays['value'].shape)}"
        )
    check_leading_axes(arrays)
    scores_leading = broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2])) or ()
    scores_shape = (*scores_leading, n_q, n_k)
    if mask is not None:
        check_mask(mask, query, scores_shape)
    if bias is not None:
        _check_bias(bias, query, scores_shape)
    if scale is not None:
        scale = check_number("scale", scale)
    elif d_k == 0:
        raise ValueError("query must have d_k of at least 1 for the default scale 1/√d_k, got 0")
    else:
        scale = 1 / math.sqrt(d_k)  # a Python float: np.sqrt would turn float32 into float64
    check_bool("is_causal", is_causal)
    return scale


def check_mask(mask, query, scores_shape, name="mask", query_name="query"):
    """Raise unless `mask` is boolean, lives where `query` does and broadcasts to the scores."""
    check_same_home(name, mask, query_name, query)
    check_boolean(mask, name)
    _check_broadcast(name, mask, scores_shape)


def check_boolean(mask, name="mask"):
    """Raise TypeError unless `mask` is a boolean array; say what it looks like instead."""
    check_array(name, mask)
    if not array_namespace(mask).isdtype(mask.dtype, "bool"):
        raise TypeError(
            f"{name} must be boolean, True = may attend, "
            f"got {dtype_name(mask.dtype)}; {_mask_hint(mask)}"
        )


def _mask_hint(mask):
    xp = array_namespace(mask)
    try:
        if bool(xp.all((mask == 0) | (mask == 1))):
            return "it looks like a boolean mask stored as numbers: pass mask == 1"
        if xp.isdtype(mask.dtype, ("integral", "real floating")) and float(xp.min(mask)) < -1000:
            return "it looks like an additive mask: pass mask == 0, which is True where it allows"
    except Exception:  # numbers that cannot be read here: inside vmap, on the meta device
        pass
    return "numbers that are added to the scores go in bias="


def _check_bias(bias, query, scores_shape):
    check_array("bias", bias)
    if array_namespace(bias).isdtype(bias.dtype, "bool"):
        raise TypeError(
            "bias must have the dtype of query, got bool; a mask of what may be attended to "
            "goes in mask="
        )
    check_floats(query=query, bias=bias)
    _check_broadcast("bias", bias, scores_shape)


def _check_broadcast(name, x, scores_shape):
    if broadcast_shapes(tuple(x.shape), scores_shape) != scores_shape:
        raise ValueError(
            f"{name} must broadcast to the shape of the scores (..., n_q, n_k) = {scores_shape}, "
            f"got {tuple(x.shape)}"
        )
