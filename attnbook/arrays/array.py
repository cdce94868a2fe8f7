"""Arrays of any library: what they have in common, their shapes and their dtypes."""

from typing import Annotated, Any, Protocol, TypeVar

import array_api_compat


class Array(Protocol):
    """An array of NumPy, CuPy, PyTorch or another Array API library: what all of them can do.

    In signatures, ``Annotated[Array, "... n_q d_k"]`` names the axes; ``...`` are leading axes.
    The tests read these strings and check every call against them.
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


class MaskRule(Protocol):
    """What attention asks of a `masking.Rule`, whose room lies above this one."""

    is_causal: bool
    leading: tuple[int, ...]

    def intervals(self, n_q: int, n_k: int | None = None) -> Any: ...
    def dense(self, n_q: int, n_k: int | None = None, *, like: Array | None = None) -> Any: ...


Mask = Annotated[Array, "..."] | MaskRule
"""A boolean array, **True = may attend**, or a rule."""

A = TypeVar("A", bound=Array)


array_namespace = array_api_compat.array_namespace


def library(x: Array) -> str:
    """Return the short name of the library that `x` belongs to, such as ``"numpy"``."""
    return array_namespace(x).__name__.removeprefix("array_api_compat.")


def dtype_name(dtype: Any) -> str:
    """Return the bare name of a dtype of any library, such as ``"float32"``."""
    return str(dtype).split(".")[-1]  # not .name, which hides a foreign byte order such as ">f4"


def accumulation_dtype(xp: Any, dtype: Any) -> Any:
    """Return the dtype to compute in: float32 for half precision, else `dtype` itself."""
    if dtype in (xp.float32, xp.float64):  # to write out a dtype takes long
        return dtype
    half = str(dtype).endswith(("float16", "f2"))  # bfloat16 too, and ">f2" of another byte order
    return xp.float32 if half else dtype


def to_accumulate(x: Any) -> Any:
    """Return `x` in the dtype to compute in: float32 for half precision, else as it is."""
    xp = array_namespace(x)
    if x.dtype in (xp.float32, xp.float64):
        return x
    return xp.astype(x, accumulation_dtype(xp, x.dtype), copy=False)


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
