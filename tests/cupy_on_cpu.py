"""A stand-in for CuPy on a machine without a GPU: NumPy's functions, and kernels run on the CPU.

The package asks CuPy for arrays, for a few of NumPy's functions and for a RawModule of its kernels.
Here the arrays are NumPy's in a class of their own, so that an array that was not moved is refused
as CuPy refuses it, and the module is the same source compiled by a C++ compiler (see
cuda_on_cpu.cpp). What a GPU would have to do, and how often the host would wait for it, is noted in
`TRAFFIC`.
"""

import contextlib
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


class Traffic:
    """What was sent to the GPU: kernels, graphs and functions of CuPy that make new arrays."""

    def __init__(self):
        self.work: list[str] = []
        self.waits = 0
        self.captured: list | None = None  # launches of the graph that is being captured
        self.is_inside = False  # a function of CuPy, whose parts are not counted

    def note(self, name: str) -> None:
        """Note a piece of work."""
        assert self.captured is None, f"{name} in a capture"
        if not self.is_inside:
            self.work.append(name)

    def wait(self) -> None:
        """Note that the host waits."""
        assert self.captured is None, "a wait in a capture"
        if not self.is_inside:
            self.waits += 1

    @contextlib.contextmanager
    def inside(self):
        """Do not count the parts of what is done here."""
        before, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = before


TRAFFIC = Traffic()


@contextlib.contextmanager
def watched():
    """Count anew, and give `TRAFFIC`."""
    TRAFFIC.work.clear()
    TRAFFIC.waits = 0
    yield TRAFFIC


WAITING = ("flatnonzero", "nonzero", "unique")
"""Functions whose results have a size that only the GPU knows."""


class GpuArray(np.ndarray):
    """An array that stands for one on the GPU: it does not mix with NumPy's own."""

    def get(self):
        """Copy to the host, as all methods that make numbers of Python."""
        TRAFFIC.wait()
        return np.array(self.view(np.ndarray))

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __index__(self):
        return self.get().__index__()

    def item(self, *where):
        return self.get().item(*where)

    def tolist(self):
        return self.get().tolist()

    def __setitem__(self, where, value):
        TRAFFIC.note("setitem")
        super().__setitem__(where, value)

    def astype(self, dtype, copy=True):
        if copy or self.dtype != dtype:
            TRAFFIC.note("astype")
        return super().astype(dtype, copy=copy)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        _refuse_numpy(inputs)
        TRAFFIC.note(ufunc.__name__)
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
        self.seed = 0  # of the order in which threads run
        self.streams = [Stream(is_null=True)]
        self.cuda = SimpleNamespace(
            Device=self.device,
            Stream=self.stream,
            get_current_stream=self.current_stream,
            alloc_pinned_memory=self.pinned,
        )

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        """Copy an array to the GPU."""
        self.asked.add("asarray")
        TRAFFIC.note("asarray")
        return np.array(x, dtype=dtype).view(self.ndarray)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an array full of what no result should be."""
        self.asked.add("empty")
        assert TRAFFIC.captured is None, "an allocation in a capture"
        x = np.empty(shape, dtype)
        if x.size:
            x.view(np.uint8).fill(0xA5)
        return x.view(self.ndarray)

    def argsort(self, x: Any) -> Any:
        """Sort stably, as CuPy always does."""
        self.asked.add("argsort")
        TRAFFIC.note("argsort")
        return np.argsort(x.view(np.ndarray), kind="stable").view(self.ndarray)

    def device(self, number: int = 0) -> SimpleNamespace:
        """Return the GPU."""
        self.asked.add("cuda")
        return SimpleNamespace(id=0, attributes={"MultiProcessorCount": self.n_processors})

    def stream(self, non_blocking: bool = False) -> "Stream":
        """Return a new stream."""
        self.asked.add("cuda.Stream")
        return Stream(self.streams)

    def current_stream(self) -> "Stream":
        """Return the stream that work goes to."""
        self.asked.add("cuda.get_current_stream")
        return self.streams[-1]

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
        function = getattr(np, name)
        self.asked.add(name)
        if self.ndarray is np.ndarray:
            return function

        @functools.wraps(function)
        def on_gpu(*arguments: Any, **options: Any) -> Any:
            _refuse_numpy((*arguments, *options.values()))
            with np.errstate(all="ignore"), TRAFFIC.inside():
                result = _on_gpu(function(*arguments, **options))
            given = [x for x in arguments if isinstance(x, GpuArray)]
            if not any(np.may_share_memory(x, result) for x in given if result is not None):
                TRAFFIC.note(name)
            if name in WAITING:
                TRAFFIC.wait()
            return result

        return on_gpu


class Pinned(np.ndarray):
    """Page-locked memory."""

    @property
    def ptr(self) -> int:
        """The address, on both sides."""
        return self.ctypes.data


class Stream:
    """`cupy.cuda.Stream`, whose work is done at once, or noted while it is captured."""

    def __init__(self, streams: list | None = None, is_null: bool = False):
        self.streams, self.is_null = streams, is_null

    def __enter__(self):
        self.streams.append(self)
        return self

    def __exit__(self, *raised):
        assert self.streams.pop() is self

    def synchronize(self):
        TRAFFIC.wait()

    def begin_capture(self):
        assert not self.is_null, "the null stream cannot be captured"
        assert self.streams[-1] is self, "work goes to another stream"
        assert TRAFFIC.captured is None, "two captures at once"
        TRAFFIC.captured = []

    def end_capture(self):
        launches, TRAFFIC.captured = TRAFFIC.captured, None
        return Graph(launches)


class Graph:
    """`cupy.cuda.Graph`: launches with the arguments that they were captured with."""

    def __init__(self, launches: list):
        self.launches = launches

    def launch(self):
        TRAFFIC.note("graph")
        for launch in self.launches:
            launch()


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

        def run():
            assert len(held) == len(addresses)  # they stay with the launch
            self.cupy.seed += 1
            error = self.kernels.launch(
                name.encode(),
                *(ctypes.c_uint(*grid), ctypes.c_uint(*block), ctypes.c_size_t(shared_mem)),
                (ctypes.c_void_p * len(addresses))(*addresses),
                *(ctypes.c_size_t(len(addresses)), ctypes.c_uint(self.cupy.seed)),
            )
            assert error is None, f"{name}: {error.decode()}"

        if TRAFFIC.captured is not None:
            TRAFFIC.captured.append(run)
            return
        TRAFFIC.note(name)
        run()


class Function:
    """A kernel of a `Module`; one that takes more shared memory than usual must have asked."""

    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, module: Module, name: str):
        self.module, self.name = module, name

    def __call__(self, grid: tuple, block: tuple, args: tuple, *, shared_mem: int = 0) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes, self.name
        self.module.launch(self.name, grid, block, args, shared_mem=shared_mem)
