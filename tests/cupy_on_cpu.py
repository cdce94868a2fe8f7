"""A stand-in for CuPy on a machine without a GPU: NumPy's functions, and kernels run on the CPU.

The package asks CuPy for arrays, for a few of NumPy's functions and for a RawModule of its kernels.
Here an array hides its numbers in a class that is not NumPy's, so that an array that was not moved
is refused as CuPy refuses it. The module is the same source compiled by a C++ compiler (see
cuda_on_cpu.cpp). What a GPU would have to do, and how often the host would wait for it, is noted in
`TRAFFIC`.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.mixins import NDArrayOperatorsMixin

ON_CPU = Path(__file__).with_name("cuda_on_cpu.cpp")
MADE = Path(__file__).parents[1] / "_build" / "kernels_on_cpu"
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
def version_of(command: str) -> str:
    """Return what a compiler says first of itself."""
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.partition("\n")[0]


@functools.cache
def compiled(code: str, expressions: tuple[str, ...]) -> ctypes.CDLL:
    """Compile kernels for the CPU, unless an earlier process has, and load them.

    Templates are made as in `expressions`. ``make clean`` deletes what was compiled.
    """
    plain = re.findall(r'^extern "C" __global__ void (\w+)', code, re.MULTILINE)
    names = "".join(f"KERNEL({name}),\n" for name in (*plain, *expressions))
    shared = re.search(r"extern __shared__ (\w+) memory\[\];", code)
    options = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-fPIC", "-fsanitize=alignment", "-c"]
    options += [f"-DSHARED={shared.group(1) if shared else 'int64'}"]
    by = compiler()
    made_of = [by, version_of(by), code, names, *options, ON_CPU.read_text("utf-8")]
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:20]
    library = MADE / f"{digest}.so"
    if not library.exists():
        MADE.mkdir(parents=True, exist_ok=True)
        build(library, code, names, options)
    loaded = ctypes.CDLL(str(library))
    loaded.launch.restype = ctypes.c_char_p
    return loaded


def build(library: Path, code: str, names: str, options: list[str]) -> None:
    """Compile kernels into a file, which is whole as soon as it is there, whoever else makes it."""
    with tempfile.TemporaryDirectory(dir=MADE) as folder:
        source, listed, made, linked = (f"{folder}/{x}" for x in ("cu", "names", "o", "so"))
        Path(source).write_text(code, "utf-8")
        Path(listed).write_text(names, "utf-8")
        options = [*options, f'-DKERNELS="{source}"', f'-DNAMES="{listed}"']
        for arguments in ([*options, str(ON_CPU), "-o", made], ["-shared", made, "-o", linked]):
            done = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        Path(linked).replace(library)


class Traffic:
    """What was sent to the GPU: kernels and functions of CuPy that make new arrays."""

    def __init__(self):
        self.work: list[str] = []
        self.waits = 0

    def note(self, name: str) -> None:
        """Note a piece of work."""
        self.work.append(name)

    def wait(self) -> None:
        """Note that the host waits."""
        self.waits += 1


TRAFFIC = Traffic()


@contextlib.contextmanager
def watched():
    """Count anew, and give `TRAFFIC`."""
    TRAFFIC.work.clear()
    TRAFFIC.waits = 0
    yield TRAFFIC


WAITING = ("flatnonzero", "nonzero", "unique")
"""Functions whose results have a size that only the GPU knows."""


class GpuArray(NDArrayOperatorsMixin):
    """`cupy.ndarray`: it does not mix with NumPy's, and only `get` gives its numbers away.

    What CuPy's arrays lack is absent here too: for one they are no index, and those of CuPy 13 have
    no `mT`. Indices out of range raise, where CuPy wraps them around.
    """

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None):
        if memptr is None:
            self._host = np.empty(shape, dtype)
            if self._host.size:  # with what no result should be
                self._host.view(np.uint8).fill(0xA5)
        else:
            self._host = np.lib.stride_tricks.as_strided(memptr.array, shape, strides)

    @classmethod
    def of(cls, host: np.ndarray) -> "GpuArray":
        """Return these numbers of NumPy's on the GPU, without a copy."""
        made = cls.__new__(cls)
        made._host = host
        return made

    def __array__(self, *options, **named):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self):
        """Copy to the host, as all methods that make numbers of Python."""
        TRAFFIC.wait()
        return np.array(self._host)

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __repr__(self):
        return repr(self.get())

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, where):
        arrays = [x for x in (where if isinstance(where, tuple) else (where,)) if is_array(x)]
        if arrays:
            TRAFFIC.note("getitem")
        if any(x.dtype == bool for x in arrays):
            TRAFFIC.wait()  # for the size of the result
        return on_gpu(self._host[on_host(where)])

    def __setitem__(self, where, value):
        TRAFFIC.note("setitem")
        self._host[on_host(where)] = on_host(value)

    def astype(self, dtype, *, copy=True):
        if not copy and self.dtype == dtype:
            return self
        TRAFFIC.note("astype")
        with np.errstate(all="ignore"):
            return GpuArray.of(self._host.astype(dtype))

    def swapaxes(self, one, two):
        return GpuArray.of(self._host.swapaxes(one, two))

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        plain = on_host(inputs)
        TRAFFIC.note(ufunc.__name__)
        if out:
            options["out"] = on_host(out)
        with np.errstate(all="ignore"):  # a GPU does not warn
            result = on_gpu(getattr(ufunc, method)(*plain, **options))
        return out[0] if out else result

    shape = property(lambda self: self._host.shape)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    dtype = property(lambda self: self._host.dtype)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: self._host.flags)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    T = property(lambda self: GpuArray.of(self._host.T))
    data = property(lambda self: Memory(self._host))
    device = property(lambda self: Device())


class Memory:
    """`cupy.cuda.MemoryPointer`: where an array begins."""

    def __init__(self, array: np.ndarray):
        self.array, self.ptr = array, array.ctypes.data


class Device:
    """`cupy.cuda.Device`: the one that there is."""

    id = 0
    attributes = {"MultiProcessorCount": 4}  # noqa: RUF012

    def __init__(self, number: Any = None):
        assert number is None or int(number) == self.id

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device)

    def __hash__(self):
        return self.id

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass


def is_array(x: Any) -> bool:
    """Return whether `x` is an array of NumPy's or of the GPU."""
    return isinstance(x, (np.ndarray, GpuArray))


def on_host(x: Any) -> Any:
    """Return the numbers of what is on the GPU, also in tuples and lists; refuse NumPy's arrays."""
    if isinstance(x, GpuArray):
        return x._host
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    return type(x)(map(on_host, x)) if isinstance(x, (tuple, list)) else x


def on_gpu(x: Any) -> Any:
    """Return results of NumPy's as arrays on the GPU, single numbers too."""
    if isinstance(x, tuple):
        return tuple(map(on_gpu, x))
    return GpuArray.of(np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x


def makes_arrays(arguments: tuple, result: Any) -> bool:
    """Return whether a function of NumPy's has written numbers, so that it is no view."""
    given = [x for x in arguments if isinstance(x, np.ndarray)]
    made = [
        x
        for x in (result if isinstance(result, tuple) else (result,))
        if isinstance(x, (np.ndarray, np.generic))
    ]
    views = [y for y in made if any(np.may_share_memory(x, y) for x in given)]
    return result is None or len(views) < len(made)


class CupyOnCpu:
    """What `import cupy` gives in a test; `asked` notes the names that were taken from it.

    With `strided` kernels take arrays whose elements do not lie one after the other.
    """

    ndarray = GpuArray
    __spec__ = ModuleSpec("cupy", None)
    __all__ = tuple(x for x in np.__all__ if x[0] != "_" and x not in ("unstack", "vecdot"))

    def __init__(self, strided: bool = False):
        self.asked, self.strided = set(), strided
        self.seed = 0  # of the order in which threads run
        self.cuda = SimpleNamespace(
            Device=Device,
            get_current_stream=self.current_stream,
            alloc_pinned_memory=self.pinned,
            is_available=lambda: False,
        )

    def asarray(self, x: Any, dtype: Any = None) -> GpuArray:
        """Copy an array to the GPU."""
        self.asked.add("asarray")
        if isinstance(x, GpuArray):
            return x.astype(x.dtype if dtype is None else dtype, copy=False)
        TRAFFIC.note("asarray")
        return GpuArray.of(np.array(x, dtype=dtype))

    def empty(self, shape: Any, dtype: Any = float) -> GpuArray:
        """Return an array full of what no result should be."""
        self.asked.add("empty")
        return GpuArray(shape, dtype)

    def argsort(self, x: GpuArray, axis: int = -1, kind: str | None = None) -> GpuArray:
        """Sort stably, as CuPy always does."""
        self.asked.add("argsort")
        TRAFFIC.note("argsort")
        return GpuArray.of(np.argsort(on_host(x), axis=axis, kind="stable"))

    def current_stream(self) -> "Stream":
        """Return the stream that work goes to."""
        self.asked.add("cuda.get_current_stream")
        return Stream()

    def pinned(self, n_bytes: int) -> "Pinned":
        """Return memory of the host that the GPU can reach, with anything in it."""
        self.asked.add("cuda.alloc_pinned_memory")
        return np.full(n_bytes, 0xA5, np.uint8).view(Pinned)

    def RawModule(self, **options: Any) -> "Module":  # noqa: N802
        """Return the kernels."""
        self.asked.add("RawModule")
        return Module(self, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(np, name)
        if name not in self.__all__ or not callable(found) or isinstance(found, type):
            return found

        @functools.wraps(found)
        def function(*arguments: Any, **options: Any) -> Any:
            self.asked.add(name)
            arguments = on_host(arguments)
            options = {key: on_host(x) for key, x in options.items()}
            with np.errstate(all="ignore"):
                result = found(*arguments, **options)
            if makes_arrays(arguments, result):
                TRAFFIC.note(name)
            if name in WAITING:
                TRAFFIC.wait()
            return on_gpu(result)

        return function


@contextlib.contextmanager
def installed(cupy: CupyOnCpu):
    """Let `import cupy` give this, also to array_api_compat, whose code for CuPy runs then."""

    def loaded() -> list[str]:
        """The modules of CuPy, with those that array_api_compat wraps around them."""
        ours = re.compile(r"(array_api_compat\.)?cupyx?(\.|$)")
        return [name for name in sys.modules if ours.match(name)]

    def forget() -> None:
        for function in vars(helpers).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()

    helpers = sys.modules["array_api_compat.common._helpers"]
    package = sys.modules["array_api_compat"]
    before = {name: sys.modules.pop(name) for name in loaded()}
    wrapped = vars(package).pop("cupy", None)
    plain_erf = np.vectorize(math.erf, otypes=["d"])
    special = SimpleNamespace(erf=lambda x: GpuArray.of(plain_erf(on_host(x)).astype(x.dtype)))
    modules = {
        "cupy": cupy,
        "cupy.cuda": cupy.cuda,
        "cupy.cuda.device": cupy.cuda,
        "cupy.linalg": np.linalg,
        "cupy.fft": np.fft,
        # a real CuPy loads this when it is looked at, as Hypothesis does; and would ask this one
        "cupyx": SimpleNamespace(),
        "cupyx.scipy": SimpleNamespace(),
        "cupyx.scipy.special": special,
    }
    sys.modules.update(modules)
    forget()
    try:
        importlib.import_module("array_api_compat.cupy")
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
        vars(package).pop("cupy", None)
        if wrapped is not None:
            package.cupy = wrapped
        forget()


class Pinned(np.ndarray):
    """Page-locked memory."""

    @property
    def ptr(self) -> int:
        """The address, on both sides."""
        return self.ctypes.data


class Stream:
    """`cupy.cuda.Stream`, whose work is done at once."""

    def synchronize(self):
        TRAFFIC.wait()


class Module:
    """`cupy.RawModule` of the kernels."""

    def __init__(self, cupy: CupyOnCpu, *, code: str, options: tuple, name_expressions: tuple):
        self.cupy, self.expressions = cupy, name_expressions
        self.kernels = compiled(code, name_expressions)

    def get_function(self, name: str) -> "Function":
        """Return the kernel; templates must have been named before."""
        assert name in self.expressions if "<" in name else True, name
        return Function(self, name)

    def launch(self, name: str, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0):
        """Run a kernel as CuPy would: arrays by address, NumPy's numbers by value."""
        held, addresses = [], []
        for x in args:
            if isinstance(x, GpuArray):
                assert self.cupy.strided or x.flags.c_contiguous, name
                held.append(ctypes.c_void_p(x.data.ptr))
                addresses.append(ctypes.addressof(held[-1]))
            else:
                assert isinstance(x, np.generic), (name, type(x))
                held.append(np.array(x))
                addresses.append(held[-1].ctypes.data)

        TRAFFIC.note(name)
        self.cupy.seed += 1
        error = self.kernels.launch(
            name.encode(),
            *(ctypes.c_uint(*grid), ctypes.c_uint(*block), ctypes.c_size_t(shared_mem)),
            (ctypes.c_void_p * len(addresses))(*addresses),
            *(ctypes.c_size_t(len(addresses)), ctypes.c_uint(self.cupy.seed)),
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
