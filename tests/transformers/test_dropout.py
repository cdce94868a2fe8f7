"""Dropout: how many numbers, which ones, and what becomes of the others, in every library."""

import math

import numpy as np
import pytest
import torch
from cases import DTYPES, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import dropout

RATES = st.sampled_from((0, 0.0, 0.1, 0.25, 0.5, 0.9))
SHAPES = st.sampled_from(((7,), (2, 3, 5), (0, 3), (1,), ()))


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, RATES, st.integers(0, 99))
def test_the_draw_is_numpys(library, dtype, shape, rate, seed):
    need(library, dtype)
    numbers = np.random.default_rng(seed + 1).standard_normal(shape)
    x = library.array(numbers, dtype)
    got = dropout(x, rate, seed)
    assert library.same_kind(got, x)
    assert tuple(got.shape) == shape
    kept = np.random.default_rng(seed).random(shape) >= rate
    scaled = library.numpy(library.array(library.numpy(x) / (1 - rate), dtype))
    np.testing.assert_allclose(library.numpy(got), np.where(kept, scaled, 0), rtol=1e-2)
    if dtype in ("float64", "float32"):
        np.testing.assert_allclose(library.numpy(got), np.where(kept, scaled, 0), rtol=1e-6)
    np.testing.assert_array_equal(library.numpy(x), library.numpy(library.array(numbers, dtype)))


def test_a_generator_goes_on_and_a_seed_begins_anew(library):
    x, rng = library.array(np.ones(64)), np.random.default_rng(3)
    first, second = (library.numpy(dropout(x, 0.5, rng)) for _ in range(2))
    assert not np.array_equal(first, second)
    for seed in (3, np.int64(3)):
        np.testing.assert_array_equal(library.numpy(dropout(x, 0.5, seed)), first)


def test_what_is_dropped_leaves_no_trace(library):
    x = library.array(np.array([math.inf, math.nan, -math.inf, 1.0] * 8))
    got = library.numpy(dropout(x, 0.5, 0))
    kept = np.random.default_rng(0).random(32) >= 0.5
    assert (got[~kept] == 0).all()
    np.testing.assert_array_equal(got[kept], np.tile([math.inf, math.nan, -math.inf, 2.0], 8)[kept])


def test_gradient_is_that_of_the_kept_numbers():
    x = torch.ones(64, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.75, 0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert set(x.grad.tolist()) == {0.0, 4.0}
    assert torch.autograd.gradcheck(lambda x: dropout(x, 0.3, 0), (x,))


ONES = np.ones(3)
ERRORS = """
dropout(np.arange(3), 0.1, 0)
    TypeError: x must have a real floating dtype, got int64
dropout(ONES, 1, 0)
    ValueError: rate must be below 1, got 1.0
dropout(ONES, -0.1, 0)
    ValueError: rate must be finite and at least 0, got -0.1
dropout(ONES, True, 0)
    TypeError: rate must be a real number, got bool
dropout(ONES, 0.1, np.random.RandomState(0))
    TypeError: rng must be a numpy.random.Generator or an int, got RandomState
dropout(ONES, 0.1, -1)
    ValueError: rng must be at least 0 if it is a seed, got -1
"""

test_error = error_test(ERRORS, globals())
