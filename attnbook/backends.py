"""Which array libraries and compilers are here, and how to move an array between libraries."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from attnbook._arrays import Array, check_array, dtype_name, library
from attnbook.kernels import LADDER, REFERENCE

LIBRARIES = ("numpy", "torch", "cupy", "array_api_strict")
"""The libraries that `move` knows by name."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
"""The dtypes that `move` knows by name, where the library has them."""

COMPILERS = ("numba", "triton", "cupy")
"""What has a row of its own in `backends`, with the kernels that it compiles."""


@dataclass(frozen=True)
class Backend:
    """A library or compiler on one kind of device: whether it can run here; if not, what to do.

    Attributes
    ----------
    name : str
        Such as ``"PyTorch, CUDA"``, or ``"Numba, CPU"`` for what compiles kernels.
    available : bool
    detail : str
        Version and device if available, else what is missing.
    remedy : str
        How to get it; empty if available.
    impls : tuple of str
        What ``impl=`` of `attention` can be for arrays of this library on this device, or what this
        compiler makes; empty if not available.
    """

    name: str
    available: bool
    detail: str
    remedy: str = ""
    impls: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.available:
            return f"{self.name}: {self.detail}"
        return f"{self.name}: missing, {self.detail}. {self.remedy}"


def backends() -> list[Backend]:
    """Return what can run attention here, and for each absentee how to get it.

    Imports PyTorch, CuPy, Numba and Triton if they are installed, which takes a few seconds. Never
    raises: what fails to import is reported as missing with the error.

    Returns
    -------
    list of Backend
        NumPy, PyTorch on CPU, CUDA and MPS, and CuPy; then Numba and Triton, which compile kernels
        for arrays of these libraries.
    """
    return [
        Backend("NumPy, CPU", True, f"version {np.__version__}", impls=_impls("numpy", "cpu")),
        *_torch_backends(),
        _cupy_backend(),
        _numba_backend(),
        _triton_backend(),
    ]


def _impls(name: str, kind: str) -> tuple[str, ...]:
    """Return what computes attention of arrays of this library, without a compiler of its own."""
    able = (
        kernel.name
        for kernel in LADDER
        if name in (kernel.takes or (name,))
        and kind == (kernel.device or kind)
        and (kernel.needs in ("", name) or (kernel.needs not in COMPILERS and _has(kernel.needs)))
    )
    return (REFERENCE, *able)


def _compiled(name: str) -> tuple[str, ...]:
    return tuple(kernel.name for kernel in LADDER if kernel.needs == name)


def _has(package: str) -> bool:
    found, _ = _try(lambda: importlib.util.find_spec(package))
    return found is not None


def _import(name: str) -> tuple[Any, str]:
    missing, _ = _try(lambda: importlib.util.find_spec(name) is None)
    if missing:
        return None, f"{name} is not installed"
    module, problem = _try(lambda: importlib.import_module(name))
    return module, problem and f"importing {name} fails with {problem}"


def _try(question: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return question(), ""
    except Exception as error:  # a broken installation or driver can raise anything
        return None, _summary(error)


def _summary(error: Exception) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"


def _torch_backends() -> list[Backend]:
    names = ("PyTorch, CPU", "PyTorch, CUDA", "PyTorch, MPS")
    torch, problem = _import("torch")
    if torch is None:
        return [Backend(name, False, problem, "pip install 'attnbook[torch]'") for name in names]
    version = f"version {torch.__version__}"
    found = [Backend(names[0], True, version, impls=_impls("torch", "cpu"))]
    device, problem = _try(lambda: torch.cuda.is_available() and torch.cuda.get_device_name())
    if device:
        detail = f"{version}, {device}"
        found.append(Backend(names[1], True, detail, impls=_impls("torch", "cuda")))
    elif problem:
        reason = f"asking it fails with {problem}"
        found.append(Backend(names[1], False, reason, "Check the driver with nvidia-smi"))
    elif torch.version.cuda or torch.version.hip:
        remedy = "Check the driver with nvidia-smi"
        found.append(Backend(names[1], False, "PyTorch sees no CUDA device", remedy))
    else:
        remedy = "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org"
        found.append(Backend(names[1], False, "this PyTorch is built for the CPU", remedy))
    if torch.backends.mps.is_available():
        found.append(Backend(names[2], True, version, impls=_impls("torch", "mps")))
    else:
        remedy = "Needs a Mac with Apple silicon"
        found.append(Backend(names[2], False, "PyTorch sees no MPS device", remedy))
    return found


_GPU_EXTRA = "pip install 'attnbook[gpu-cuda13]' (or gpu-cuda12, as the driver asks)"


def _cupy_backend() -> Backend:
    name = "CuPy, CUDA"
    cupy, problem = _import("cupy")
    if cupy is None:
        return Backend(name, False, problem, _GPU_EXTRA)
    device, problem = _try(
        lambda: cupy.cuda.is_available() and cupy.cuda.runtime.getDeviceProperties(0)["name"]
    )
    if not device:
        reason = f"asking it fails with {problem}" if problem else "CuPy sees no CUDA device"
        return Backend(name, False, reason, "Needs an NVIDIA GPU; check the driver with nvidia-smi")
    detail = f"version {cupy.__version__}, {device.decode()}"
    return Backend(name, True, detail, impls=_impls("cupy", "cuda"))


def _numba_backend() -> Backend:
    name = "Numba, CPU"
    numba, problem = _import("numba")
    if numba is None:
        return Backend(name, False, problem, "pip install 'attnbook[fast]'")
    unit, problem = _try(lambda: importlib.import_module("attnbook.kernels.packed").vector_unit())
    if problem:
        reason = f"importing the kernels fails with {problem}"
        return Backend(name, False, reason, "pip install --upgrade 'attnbook[fast]'")
    return Backend(name, True, f"version {numba.__version__}, {unit}", impls=_compiled("numba"))


def _triton_backend() -> Backend:
    name = "Triton, CUDA"
    triton, problem = _import("triton")
    if triton is None:
        return Backend(name, False, problem, _GPU_EXTRA)
    kernel, problem = _try(lambda: importlib.import_module("attnbook.kernels.triton"))
    if problem:
        return Backend(name, False, f"importing the kernel fails with {problem}", _GPU_EXTRA)
    version, impls = f"version {triton.__version__}", _compiled("triton")
    if "cpu" in kernel.DEVICES:
        detail = f"{version}, interpreted on the CPU, since TRITON_INTERPRET is set"
        return Backend(name, True, detail, impls=impls)
    torch, problem = _import("torch")
    device, problem = _try(lambda: torch.cuda.is_available() and torch.cuda.get_device_name())
    if device:
        return Backend(name, True, f"{version}, {device}", impls=impls)
    reason = f"asking PyTorch fails with {problem}" if problem else "PyTorch sees no CUDA device"
    remedy = "Needs an NVIDIA GPU; with TRITON_INTERPRET=1 it runs on the CPU, slowly"
    return Backend(name, False, reason, remedy)


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
        Name of a dtype of that library, such as ``"float32"``; that of `x` by default, with float32
        for a bfloat16 that the library lacks.

    Returns
    -------
    array
        A copy in another library; within one it may share memory with `x`. A move within PyTorch
        keeps the graph of autograd; a move out of it leaves the graph behind.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If `library_name` or `dtype` is unknown; the message lists the known ones. If the library
        cannot hold `x` on this device; the message has its reason.
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
    known = [name for name in DTYPES if hasattr(xp, name)]
    name = dtype_name(x.dtype) if dtype is None else dtype
    if dtype is None and name == "bfloat16" and name not in known:
        name = "float32"  # holds each of its numbers exactly
    if name not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)} for {target}, got {name!r}")
    try:
        if target != source:
            x = xp.asarray(_to_numpy(x, source))
        x = xp.astype(x, getattr(xp, name), copy=False)
        return x if device is None else array_api_compat.to_device(x, device)
    except Exception as error:  # each library has its own for a device that is absent, and others
        where = "its default device" if device is None else f"device {device!r}"
        raise ValueError(f"x cannot be moved to {target}, {where}: {_summary(error)}") from error


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


def _to_numpy(x: Array, source: str) -> np.ndarray:
    if source == "torch":
        # NumPy has no bfloat16; float32 holds each of its numbers exactly
        x = (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy(force=True)
    elif source == "cupy":
        x = x.get()
    # PyTorch wants a writable array in the machine's byte order, with strides of at least 0
    x = np.asarray(x)
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")
