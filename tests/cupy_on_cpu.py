"""A stand-in for CuPy on a machine without a GPU: NumPy's functions, and kernels run on the CPU.

The package asks CuPy for arrays, for a few of NumPy's functions and for a RawModule of its kernels.
Here the arrays are NumPy's in a class of their own, so that an array that was not moved is refused
as CuPy refuses it, and the module is the same source compiled by a C++ compiler (see
cuda_on_cpu.cpp).
"""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")


def compiler() -> str:
    """Return the C++ compiler, or skip the test."""
    if not sys.platform.startswith("linux"):
        pytest.skip("cuda_on_cpu.cpp switches stacks as Linux does")
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler, which runs the kernels on the CPU")


@functools.cache
def compiled(folder: Path, code: str, expressions: tuple[str, ...]) -> ctypes.CDLL:
    """Compile kernels for the CPU in `folder`, and load them; templates as in `expressions`."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    source, names, library = (folder / name for name in ("kernels.cu", "names.inc", "kernels.so"))
    source.write_text(code, "utf-8")
    plain = re.findall(r'^extern "C" __global__ void (\w+)', code, re.MULTILINE)
    names.write_text("".join(f"KERNEL({name}),\n" for name in (*plain, *expressions)), "utf-8")
    shared = re.search(r"extern __shared__ (\w+) memory\[\];", code)
    made = folder / "kernels.o"
    options = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-fPIC", "-fsanitize=alignment", "-c"]
    options += [f'-DKERNELS="{source}"', f'-DNAMES="{names}"']
    options += [f"-DSHARED={shared.group(1) if shared else 'int64'}"]
    for arguments in (
        [*options, str(HERE / "cuda_on_cpu.cpp"), "-o", str(made)],
        ["-shared", str(made), "-o", str(library)],
    ):
        done = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    loaded.launch.restype = ctypes.c_char_p
    return loaded


class GpuArray(np.ndarray):
    """An array that stands for one on the GPU: it does not mix with NumPy's own."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        _refuse_numpy(inputs)
        plain = [x.view(np.ndarray) if isinstance(x, GpuArray) else x for x in inputs]
        if "out" in options:
            options["out"] = tuple(x.view(np.ndarray) for x in options["out"])
        with np.errstate(all="ignore"):  # a GPU does not warn
            return _on_gpu(getattr(ufunc, method)(*plain, **options))


def _refuse_numpy(arguments):
    for x in arguments:
        if type(x) is np.ndarray:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        if isinstance(x, (tuple, list)):
            _refuse_numpy(x)


def _on_gpu(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_on_gpu, result))
    is_array = isinstance(result, (np.ndarray, np.generic))
    return np.asarray(result).view(GpuArray) if is_array else result


class CupyOnCpu:
    """What `import cupy` gives in a test; `asked` notes the names that were taken from it.

    With `ndarray=np.ndarray` arrays are NumPy's own: for code that takes any array library. With
    `strided` kernels take arrays whose elements do not lie one after the other.
    """

    def __init__(self, folder: Path, ndarray: type = GpuArray, strided: bool = False):
        self.folder, self.ndarray, self.asked = folder, ndarray, set()
        self.strided = strided
        self.n_processors = 4
        self.cuda = SimpleNamespace(Device=self.device)
        self.seed = 0  # of the order in which threads run

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        """Copy an array to the GPU."""
        self.asked.add("asarray")
        return np.array(x, dtype=dtype).view(self.ndarray)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array full of what no result should be."""
        self.asked.add("empty")
        x = np.empty(shape, dtype)
        if x.size:
            x.view(np.uint8).fill(0xA5)
        return x.view(self.ndarray)

    def argsort(self, x: Any) -> Any:
        """Sort stably, as CuPy always does."""
        self.asked.add("argsort")
        return np.argsort(x.view(np.ndarray), kind="stable").view(self.ndarray)

    def device(self, number: int = 0) -> SimpleNamespace:
        """Return the GPU."""
        self.asked.add("cuda")
        return SimpleNamespace(id=0, attributes={"MultiProcessorCount": self.n_processors})

    def RawModule(self, **options: Any) -> "Module":  # noqa: N802
        """Return the kernels."""
        self.asked.add("RawModule")
        return Module(self, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(np, name)
        self.asked.add(name)
        if self.ndarray is np.ndarray:
            return function

        @functools.wraps(function)
        def on_gpu(*arguments: Any, **options: Any) -> Any:
            _refuse_numpy((*arguments, *options.values()))
            with np.errstate(all="ignore"):
                return _on_gpu(function(*arguments, **options))

        return on_gpu


class Module:
    """`cupy.RawModule` of the kernels."""

    def __init__(self, cupy: CupyOnCpu, *, code: str, options: tuple, name_expressions: tuple):
        self.cupy, self.expressions = cupy, name_expressions
        self.kernels = compiled(cupy.folder, code, name_expressions)

    def get_function(self, name: str) -> "Function":
        """Return the kernel; templates must have been named before."""
        assert name in self.expressions if "<" in name else True, name
        return Function(self, name)

    def launch(self, name: str, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0):
        """Run a kernel as CuPy would: arrays by address, NumPy's numbers by value."""
        held, addresses = [], []
        for x in args:
            if isinstance(x, self.cupy.ndarray):
                assert self.cupy.strided or x.flags.c_contiguous, name
                held.append(ctypes.c_void_p(x.ctypes.data))
                addresses.append(ctypes.addressof(held[-1]))
            else:
                assert isinstance(x, np.generic), (name, type(x))
                held.append(np.array(x))
                addresses.append(held[-1].ctypes.data)
        self.cupy.seed += 1
        error = self.kernels.launch(
            name.encode(),
            *(ctypes.c_uint(*grid), ctypes.c_uint(*block), ctypes.c_size_t(shared_mem)),
            (ctypes.c_void_p * len(args))(*addresses),
            *(ctypes.c_size_t(len(args)), ctypes.c_uint(self.cupy.seed)),
        )
        assert error is None, f"{name}: {error.decode()}"


class Function:
    """A kernel of a `Module`; one that takes more shared memory than usual must have asked."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, module: Module, name: str):
        self.module, self.name = module, name

    def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes, self.name
        self.module.launch(self.name, grid, block, args, shared_mem=shared_mem)
