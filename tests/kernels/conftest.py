"""Fixtures of the tests of the kernels: the CUDA rungs on the CPU, and on a GPU."""

import dataclasses
from collections.abc import Iterator

import cupy_on_cpu
import pytest
from cases import need_gpu
from cuda_rungs import TEMPLATES, Gpu, imported


@pytest.fixture(scope="session")
def stand_in() -> Gpu:
    """The CUDA rungs with kernels that are compiled for the CPU: see cupy_on_cpu.py."""
    cupy_on_cpu.compiler()  # skips without one
    cupy = cupy_on_cpu.CupyOnCpu(strided=True)
    with imported(cupy) as modules:
        for name, templates in TEMPLATES.items():  # one run of the compiler for all of them
            together = dataclasses.replace(modules[name].KERNELS, together=templates)
            modules[name].KERNELS = together
    return Gpu(cupy, modules)


@pytest.fixture(scope="session", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request) -> Iterator[Gpu]:
    """The stand-in, and a GPU where there is one (`pytest -m gpu`)."""
    if request.param == "cpu":
        yield request.getfixturevalue("stand_in")
        return
    cupy = need_gpu("cupy")
    with imported(cupy) as modules:
        pass
    yield Gpu(cupy, modules)
