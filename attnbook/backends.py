"""Which array libraries are here, and how to move an array from one to another."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from attnbook._arrays import Array, check_array, dtype_name, library

LIBRARIES = ("numpy", "torch", "cupy", "array_api_strict")
"""The libraries that `move` knows by name."""


@dataclass(frozen=True)
class Backend:
    """One array library on one kind of device: whether it can run here and, if not, what to do.

    Attributes
    ----------
    name : str
        Such as ``"PyTorch, CUDA"``.
    available : bool
    detail : str
        Version and device if available, else what is missing.
    remedy : str
        How to get it; empty if available.
    """

    name: str
    available: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        if self.available:
            return f"{self.name}: {self.detail}"
        return f"{self.name}: missing, {self.detail}. {self.remedy}"


def backends() -> list[Backend]:
    """Return what can run attention here, and for each absentee how to get it.

    Imports PyTorch and CuPy if they are installed, which takes a second or two. Never raises: a
    library whose import fails is reported as missing with the error.

    Returns
    -------
    list of Backend
        NumPy, PyTorch on CPU, CUDA and MPS, and CuPy, in this order.
    """
    return [
        Backend("NumPy, CPU", True, f"version {np.__version__}"),
        *_torch_backends(),
        _cupy_backend(),
    ]


def _import(name: str) -> tuple[Any, str]:
    if importlib.util.find_spec(name) is None:
        return None, f"{name} is not installed"
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a broken installation can raise anything
        first_line = (str(error).splitlines() or [""])[0]
        return None, f"importing {name} fails with {type(error).__name__}: {first_line}"


def _torch_backends() -> list[Backend]:
    names = ("PyTorch, CPU", "PyTorch, CUDA", "PyTorch, MPS")
    torch, problem = _import("torch")
    if torch is None:
        return [Backend(name, False, problem, "pip install 'attnbook[torch]'") for name in names]
    version = f"version {torch.__version__}"
    found = [Backend(names[0], True, version)]
    if torch.cuda.is_available():
        found.append(Backend(names[1], True, f"{version}, {torch.cuda.get_device_name()}"))
    elif torch.version.cuda or torch.version.hip:
        remedy = "Check the driver with nvidia-smi"
        found.append(Backend(names[1], False, "PyTorch sees no CUDA device", remedy))
    else:
        remedy = "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org"
        found.append(Backend(names[1], False, "this PyTorch is built for the CPU", remedy))
    if torch.backends.mps.is_available():
        found.append(Backend(names[2], True, version))
    else:
        remedy = "Needs a Mac with Apple silicon"
        found.append(Backend(names[2], False, "PyTorch sees no MPS device", remedy))
    return found


def _cupy_backend() -> Backend:
    name = "CuPy, CUDA"
    install = "pip install 'attnbook[gpu-cuda13]' (or gpu-cuda12, as the driver asks)"
    cupy, problem = _import("cupy")
    if cupy is None:
        return Backend(name, False, problem, install)
    if not cupy.cuda.is_available():
        remedy = "Needs an NVIDIA GPU; check the driver with nvidia-smi"
        return Backend(name, False, "CuPy sees no CUDA device", remedy)
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return Backend(name, True, f"version {cupy.__version__}, {device}")


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
        A device of that library, such as ``"cuda"`` for PyTorch; its default by default. Within
        one library an array stays where it is.
    dtype : str, optional
        Name of a dtype of that library, such as ``"float32"``; that of `x` by default.

    Returns
    -------
    array
        May share memory with `x`. A move within PyTorch keeps the graph of autograd; a move out of
        it leaves the graph behind.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If `library_name` or `dtype` is unknown; the message lists the known ones.
    ImportError
        If the library is not installed; the message says how to get it.

    Examples
    --------
    >>> import numpy as np
    >>> move(np.ones(2), dtype="float32").dtype
    dtype('float32')
    """
    check_array("x", x)
    source = library(x)
    target = source if library_name is None else library_name
    if target not in LIBRARIES:
        raise ValueError(f"library_name must be one of {', '.join(LIBRARIES)}, got {target!r}")
    xp = _namespace(target)
    name = dtype_name(x.dtype) if dtype is None else dtype
    if not isinstance(name, str) or not hasattr(xp, name) or not _is_dtype(xp, getattr(xp, name)):
        raise ValueError(f"dtype must name a dtype of {target}, such as 'float32', got {dtype!r}")
    wanted = getattr(xp, name)
    if target == source:
        x = x if device is None else array_api_compat.to_device(x, device)
        return xp.astype(x, wanted, copy=False)
    return xp.asarray(_to_numpy(x, source), dtype=wanted, device=device)


def _namespace(name: str) -> Any:
    if name == "array_api_strict":
        return _required(name, "test")
    _required(name, {"torch": "torch", "cupy": "gpu-cuda13"}.get(name, ""))
    return importlib.import_module(f"array_api_compat.{name}")


def _required(name: str, extra: str) -> Any:
    module, problem = _import(name)
    if module is None:
        raise ImportError(f"{problem}; pip install 'attnbook[{extra}]'")
    return module


def _is_dtype(xp: Any, candidate: Any) -> bool:
    try:
        return bool(xp.isdtype(candidate, ("bool", "numeric")))
    except (TypeError, ValueError):
        return False


def _to_numpy(x: Array, source: str) -> np.ndarray:
    if source == "torch":
        x = x.detach().cpu()
        # NumPy has no bfloat16; float32 holds each of its numbers exactly
        return (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy()
    if source == "cupy":
        return x.get()
    return np.asarray(x)
