"""The array libraries and compilers that are here, and the kernels that each can run."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbook.arrays.move import attempt, how_to_install, import_library
from attnbook.kernels import LADDER, REFERENCE

COMPILERS = ("numba", "triton", "cupy")
"""What has a row of its own in `backends`, with the kernels that it compiles."""


@dataclass(frozen=True)
class Backend:
    """A library or compiler on one kind of device, and whether it can run here.

    Attributes
    ----------
    name : str
        For example ``"PyTorch, CUDA"`` or, for a compiler of kernels, ``"Numba, CPU"``.
    available : bool
    detail : str
        Version and device if it is available; otherwise what is missing.
    remedy : str
        How to install it; empty if it is available.
    impls : tuple of str
        The values of ``impl=`` in `attention` for arrays of this library on this device, or the
        kernels that this compiler makes; empty if it is not available.
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
    """Return what can run attention here, and how to install what is missing.

    The function imports PyTorch, CuPy, Numba and Triton if they are installed, which takes a few
    seconds. It never raises, because it reports a failing import as missing, with the error.

    Returns
    -------
    list of Backend
        NumPy, PyTorch on CPU, CUDA and MPS, and CuPy; then Numba and Triton, which compile kernels
        for arrays of these libraries. `devices` returns what `move` takes.
    """
    return [
        Backend("NumPy, CPU", True, f"version {np.__version__}", impls=_impls("numpy", "cpu")),
        *_torch_backends(),
        _cupy_backend(),
        _numba_backend(),
        _triton_backend(),
    ]


def devices() -> list[tuple[str, str | None]]:
    """Return the libraries and devices that can compute here, as pairs for `move`.

    The function imports PyTorch and CuPy if they are installed, but no compiler, because Triton
    decides at its first import whether it interprets or compiles. It never raises.

    Returns
    -------
    list of (library, device)
        ``("numpy", None)``, and those of ``("torch", "cpu")``, ``("torch", "cuda")`` and
        ``("cupy", None)`` that are available. MPS is not among them because it has no float64.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook
    >>> x = np.eye(3)
    >>> for library, device in attnbook.devices():
    ...     there = attnbook.move(x, library, device=device)
    ...     assert attnbook.softmax(there).shape == (3, 3)
    """
    cpu, cuda, _ = _torch_backends()
    found = {("torch", "cpu"): cpu, ("torch", "cuda"): cuda, ("cupy", None): _cupy_backend()}
    return [("numpy", None), *(place for place, backend in found.items() if backend.available)]


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
    return tuple(k.name for k in LADDER if k.needs == name)


def _has(package: str) -> bool:
    found, _ = attempt(lambda: importlib.util.find_spec(package))
    return found is not None


def _torch_backends() -> list[Backend]:
    torch, problem = import_library("torch")
    if torch is None:
        kinds = ("CPU", "CUDA", "MPS")
        return [Backend(f"PyTorch, {x}", False, problem, how_to_install("torch")) for x in kinds]
    version = f"version {torch.__version__}"
    cpu = Backend("PyTorch, CPU", True, version, impls=_impls("torch", "cpu"))
    device, reason = _cuda_of(torch)
    if device:
        cuda = Backend("PyTorch, CUDA", True, f"{version}, {device}", impls=_impls("torch", "cuda"))
    elif reason or torch.version.cuda or torch.version.hip:
        reason = f"asking it fails with {reason}" if reason else "PyTorch sees no CUDA device"
        cuda = Backend("PyTorch, CUDA", False, reason, "Check the driver with nvidia-smi")
    else:
        remedy = "Needs an NVIDIA GPU and a CUDA build of PyTorch from pytorch.org"
        cuda = Backend("PyTorch, CUDA", False, "this PyTorch is built for the CPU", remedy)
    if torch.backends.mps.is_available():
        mps = Backend("PyTorch, MPS", True, version, impls=_impls("torch", "mps"))
    else:
        remedy = "Needs a Mac with Apple silicon"
        mps = Backend("PyTorch, MPS", False, "PyTorch sees no MPS device", remedy)
    return [cpu, cuda, mps]


def _cuda_of(torch: Any) -> tuple[Any, str]:
    """Return the name of PyTorch's CUDA device, if there is one, and what asking for it raised."""
    return attempt(lambda: torch.cuda.is_available() and torch.cuda.get_device_name())


def _cupy_backend() -> Backend:
    name = "CuPy, CUDA"
    cupy, problem = import_library("cupy")
    if cupy is None:
        return Backend(name, False, problem, how_to_install("cupy"))
    device, problem = attempt(
        lambda: cupy.cuda.is_available() and cupy.cuda.runtime.getDeviceProperties(0)["name"]
    )
    if not device:
        reason = f"asking it fails with {problem}" if problem else "CuPy sees no CUDA device"
        return Backend(name, False, reason, "Needs an NVIDIA GPU; check the driver with nvidia-smi")
    detail = f"version {cupy.__version__}, {device.decode()}"
    return Backend(name, True, detail, impls=_impls("cupy", "cuda"))


def _numba_backend() -> Backend:
    name, remedy = "Numba, CPU", how_to_install("numba")
    numba, problem = import_library("numba")
    if numba is None:
        return Backend(name, False, problem, remedy)
    unit, problem = attempt(
        lambda: importlib.import_module("attnbook.kernels.packed").vector_unit()
    )
    if problem:
        remedy = remedy.replace("install", "install --upgrade")
        return Backend(name, False, f"importing the kernels fails with {problem}", remedy)
    return Backend(name, True, f"version {numba.__version__}, {unit}", impls=_compiled("numba"))


def _triton_backend() -> Backend:
    name, remedy = "Triton, CUDA", how_to_install("triton")
    triton, problem = import_library("triton")
    if triton is None:
        return Backend(name, False, problem, remedy)
    kernel, problem = attempt(lambda: importlib.import_module("attnbook.kernels.triton"))
    if problem:
        return Backend(
            name, False, f"importing the kernel fails with {problem}", how_to_install("triton")
        )
    version, impls = f"version {triton.__version__}", _compiled("triton")
    if "cpu" in kernel.DEVICES:
        detail = f"{version}, interpreted on the CPU, since TRITON_INTERPRET is set"
        return Backend(name, True, detail, impls=impls)
    device, problem = _cuda_of(import_library("torch")[0])
    if device:
        return Backend(name, True, f"{version}, {device}", impls=impls)
    reason = f"asking PyTorch fails with {problem}" if problem else "PyTorch sees no CUDA device"
    remedy = "Needs an NVIDIA GPU; with TRITON_INTERPRET=1 it runs on the CPU, slowly"
    return Backend(name, False, reason, remedy)
