"""The GPU of the tests of sketches: CuPy, or its stand-in that runs the kernels on the CPU."""

import contextlib
from dataclasses import dataclass
from typing import Any

import cupy_on_cpu
import numpy as np
import pytest
from cases import need_gpu


@dataclass(frozen=True)
class Gpu:
    """CuPy or its stand-in, and the ways to and from it."""

    cupy: Any

    @property
    def stands_in(self):
        return isinstance(self.cupy, cupy_on_cpu.CupyOnCpu)

    def to(self, x, dtype=None):
        return self.cupy.asarray(np.asarray(x, dtype=dtype))

    def host(self, x):
        return x.get()

    def index(self, signatures, seed=0):
        from attnbook.sketch.cuda_index import CudaIndex

        index = CudaIndex(np.shape(signatures)[1], seed=seed)
        index.add(self.to(signatures, np.int64))
        return index


GPUS = ["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)]


@contextlib.contextmanager
def opened(name):
    """Give the GPU, or its stand-in with the kernels compiled for the CPU; skip where it is not."""
    if name == "gpu":
        yield Gpu(need_gpu("cupy"))
        return
    cupy_on_cpu.compiler()  # skips without one
    module = cupy_on_cpu.CupyOnCpu()
    with cupy_on_cpu.installed(module):
        yield Gpu(module)
