"""CUDA C++ in files of its own, compiled by CuPy when a kernel is first launched.

CuPy is imported when it is first needed. It hands the source to NVRTC, NVIDIA's run-time compiler,
and keeps what that makes in a folder of the user, so that only the first process waits for it.
"""

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from attnbook.arrays.array import dtype_name
from attnbook.arrays.move import how_to_install

OPTIONS = ("-std=c++17",)

NULL = np.uint64(0)
"""A pointer to nothing; None would be no argument at all."""

ALWAYS_SHARED = 48 * 1024
"""Bytes of shared memory that every GPU gives a block; more must be asked for."""


def import_cupy() -> Any:
    """Return the module cupy, or raise ImportError that says how to get it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(f"impl='cupy' needs CuPy: {how_to_install('cupy')}") from error
    return cupy


@functools.cache  # spelling out a dtype takes longer than a small kernel
def name_of(dtype: Any) -> str:
    """Return the bare name of a dtype."""
    return dtype_name(dtype)


class HostFlag:
    """A number in the memory of the host, 0 at first, that kernels can set to 1.

    Kernels write to `pointer` and the host reads after it has waited, so that no copy is needed:
    CUDA gives page-locked memory the same address on both sides.
    """

    def __init__(self, cupy: Any):
        self._cupy = cupy
        memory = cupy.cuda.alloc_pinned_memory(4)
        self.pointer = np.uint64(memory.ptr)
        self._number = np.frombuffer(memory, np.int32, 1)
        self._number[0] = 0

    def is_set(self) -> bool:
        """Wait for the current stream, and return whether a kernel has set it."""
        self._cupy.cuda.get_current_stream().synchronize()
        return bool(self._number[0])


@dataclass(frozen=True)
class Source:
    """CUDA files that are compiled as one, and their kernels.

    Attributes
    ----------
    files : tuple of str
        Paths inside the package; each file may use what the ones before it define.
    together : tuple of str
        Kernels that are templates, as they are used, to compile all at once; where it is empty
        each is compiled alone, when it is first launched.
    """

    files: tuple[str, ...]
    together: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the text of the files."""
        folder = resources.files("attnbook")
        return "\n".join(folder.joinpath(name).read_text("utf-8") for name in self.files)

    def launch(
        self,
        cupy: Any,
        name: str,
        n_blocks: int,
        n_threads: int,
        args: tuple,
        shared_bytes: int = 0,
    ) -> None:
        """Run a kernel; `args` are arrays and NumPy numbers of the kernel's own types."""
        kernel = _kernel(cupy, self, name)
        if shared_bytes > ALWAYS_SHARED:
            kernel.max_dynamic_shared_size_bytes = shared_bytes  # on this GPU
            kernel.preferred_shared_memory_carveout = 100  # per cent: little is left to the cache
        kernel((n_blocks,), (n_threads,), args, shared_mem=shared_bytes)


@functools.cache
def _module(cupy: Any, source: Source, names: tuple[str, ...]) -> Any:
    return cupy.RawModule(code=source.text(), options=OPTIONS, name_expressions=names)


@functools.cache
def _kernel(cupy: Any, source: Source, name: str) -> Any:
    module = _module(cupy, source, source.together or (name,))
    return module.get_function(name)  # CuPy loads it on every GPU that it is used on
