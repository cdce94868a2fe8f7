"""Fixtures of the tests of sketches."""

import pytest
from sketch_gpu import GPUS, opened


@pytest.fixture(scope="module", params=GPUS)
def gpu(request):
    with opened(request.param) as gpu:
        yield gpu


@pytest.fixture(params=["reference", "numba"])
def impl(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param
