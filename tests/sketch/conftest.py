"""Fixtures of the tests of sketches."""

import pytest
from sketch_gpu import GPUS, opened


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """A folder for the kernels that are compiled for the CPU, once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module", params=GPUS)
def gpu(request, kernels):
    with opened(request.param, kernels) as gpu:
        yield gpu


@pytest.fixture(params=["reference", "numba"])
def impl(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param
