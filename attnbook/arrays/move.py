"""Moving an array to another library, device or dtype."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Literal, overload

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_array, check_choice
from attnbook.arrays.array import Array, dtype_name, library

LIBRARIES = ("numpy", "torch", "cupy", "array_api_strict")
"""The libraries that `move` knows by name."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
"""The dtypes that `move` knows by name, where the library has them."""


@overload
def move(
    x: Array, library_name: Literal["numpy"], *, device: Any = None, dtype: str | None = None
) -> np.ndarray: ...
@overload
def move(
    x: Array, library_name: str | None = None, *, device: Any = None, dtype: str | None = None
) -> Array: ...
def move(
    x: Array, library_name: str | None = None, *, device: Any = None, dtype: str | None = None
) -> Array:
    """Return the numbers of `x` as an array of another library, device or dtype.

    Parameters
    ----------
    x : array
    library_name : str, optional
        One of ``"numpy"``, ``"torch"``, ``"cupy"``, ``"array_api_strict"``; that of `x` by default.
    device : optional
        A device of that library, such as ``"cuda"`` for PyTorch. The default is the library's own
        default device or, if the library stays the same, the device of `x`.
    dtype : str, optional
        Name of a dtype of that library, such as ``"float32"``. The default is the dtype of `x`, in
        the byte order of this machine; if `x` is bfloat16 and the library lacks it, float32.

    Returns
    -------
    array
        A copy if the library changes; otherwise the result may share memory with `x`. A move
        within PyTorch keeps the autograd graph, but a move to another library drops it.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If `library_name` or `dtype` is unknown; the message lists the known ones. Also if the
        library cannot hold `x` on this device; the message gives the library's reason.
    ImportError
        If the library is not installed; the message says how to install it.

    Examples
    --------
    >>> import numpy as np
    >>> move(np.ones(2), dtype="float32").dtype
    dtype('float32')
    """
    check_array("x", x)
    if hasattr(device, "shape"):
        raise TypeError(f"device must be a device, such as its name, got {type(device).__name__}")
    source = library(x)
    target = source if library_name is None else library_name
    check_choice("library_name", target, LIBRARIES)
    xp = _namespace(target)
    known = [name for name in DTYPES if hasattr(xp, name)]
    name = dtype
    if dtype is None:  # the name that NumPy gives is that of the byte order of this machine, too
        name = x.dtype.name if source == "numpy" else dtype_name(x.dtype)
    if dtype is None and name == "bfloat16" and name not in known:
        name = "float32"  # holds each of its numbers exactly
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)} for {target}, got {name!r}")
    try:
        if target != source:
            x = xp.asarray(_to_numpy(x, source))
        x = xp.astype(x, getattr(xp, name), copy=False)
        return x if device is None else array_api_compat.to_device(x, device)
    except Exception as error:  # each library has its own for a device that is absent, and others
        where = "its default device" if device is None else f"device {device!r}"
        raise ValueError(f"x cannot be moved to {target}, {where}: {summary(error)}") from error


def numbers_of(name: str, x: Array) -> np.ndarray:
    """Return an array of any library in NumPy, or raise if it is none or has no numbers to read."""
    check_array(name, x)
    if isinstance(x, np.ndarray):
        return x
    try:
        return move(x, "numpy")
    except ValueError as error:  # on the meta device, inside vmap
        raise ValueError(f"{name} must hold numbers that can be read, got none") from error


def _namespace(name: str) -> Any:
    if name == "array_api_strict":
        return _required(name)
    _required(name)
    return importlib.import_module(f"array_api_compat.{name}")


def _required(name: str) -> Any:
    module, problem = import_library(name)
    if module is None:
        raise ImportError(f"{problem}; {how_to_install(name)}")
    return module


def _to_numpy(x: Any, source: str) -> np.ndarray:
    if source == "torch":
        # NumPy has no bfloat16; float32 holds each of its numbers exactly
        x = (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy(force=True)
    elif source == "cupy":
        x = x.get()
    # PyTorch wants a writable array in the machine's byte order, with strides of at least 0
    x = np.asarray(x)
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def import_library(name: str) -> tuple[Any, str]:
    """Return the module, or None and the reason why it cannot be imported."""
    missing, _ = attempt(lambda: importlib.util.find_spec(name) is None)
    if missing:
        return None, f"{name} is not installed"
    module, problem = attempt(lambda: importlib.import_module(name))
    return module, problem and f"importing {name} fails with {problem}"


_PACKAGES = {
    "cupy": "'cupy-cuda13x[ctk]' (or 'cupy-cuda12x[ctk]', as the driver asks)",
    "array_api_strict": "array-api-strict",
}


def how_to_install(name: str) -> str:
    """Return the command that installs a library."""
    return f"pip install {_PACKAGES.get(name, name)}"


def attempt(question: Callable[[], Any]) -> tuple[Any, str]:
    """Return the answer and no problem, or None and the problem."""
    try:
        return question(), ""
    except Exception as error:  # a broken installation or driver can raise anything
        return None, summary(error)


def summary(error: Exception) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"
