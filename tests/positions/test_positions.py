"""Sines, learned tables and rotations against plain loops, in every library and dtype."""

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import positions

dtypes = pytest.mark.parametrize("dtype", DTYPES)
EVEN = st.sampled_from((2, 4, 6, 14))
COUNT = st.sampled_from((0, 1, 2, 5, 7))
STARTS = st.sampled_from((0, 1, 11, 4099))
BASES = st.sampled_from((10000.0, 10000, 0.5, 1.0, 3.0))


# sinusoidal


@given(COUNT, EVEN, STARTS, st.booleans(), BASES)
def test_sinusoidal_agrees_with_the_loop(n, d, start, interleaved, base):
    got = positions.sinusoidal(n, d, start=start, interleaved=interleaved, base=base)
    assert type(got) is np.ndarray
    assert got.dtype == np.float64
    expected = oracle.sinusoidal(n, d, start, interleaved, base)
    assert got.shape == (n, d)
    # the angle is rounded too, and a late position has a large one
    allowed = 1e-15 + 4 * 2.0**-52 * (start + n) * max(1, base ** (2 / d - 1))
    np.testing.assert_allclose(got, expected, rtol=0, atol=allowed)


def test_sinusoidal_by_default_stands_in_halves_from_position_0():
    got = positions.sinusoidal(5, 6)
    np.testing.assert_allclose(got, oracle.sinusoidal(5, 6, 0, False, 10000.0), atol=1e-15)
    np.testing.assert_array_equal(got[0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(
        positions.sinusoidal(5, 6, interleaved=True)[0], [0, 1, 0, 1, 0, 1]
    )


@dtypes
@pytest.mark.parametrize("interleaved", [False, True])
def test_sinusoidal_is_made_where_like_is(library, dtype, interleaved):
    need(library, dtype)
    like = library.array(np.ones((3, 2)), dtype)
    options = {"start": 100_003, "interleaved": interleaved}
    got = positions.sinusoidal(5, 6, like=like, **options)
    assert library.same_kind(got, like)
    # computed in float64 and rounded once, however late the position
    exact = library.array(positions.sinusoidal(5, 6, **options), dtype)
    np.testing.assert_array_equal(library.numpy(got), library.numpy(exact))


# learned


@dtypes
@given(st.integers(0, 5), st.integers(0, 5))
def test_learned_returns_rows_of_the_table(library, dtype, n, start):
    need(library, dtype)
    numbers = np.arange(30.0).reshape(10, 3)
    table = library.array(numbers, dtype)
    got = positions.learned(table, n, start=start)
    assert library.same_kind(got, table)
    np.testing.assert_array_equal(library.numpy(got), numbers[start : start + n])


def test_learned_begins_at_0_and_keeps_the_graph():
    table = torch.arange(10.0).reshape(5, 2).requires_grad_()
    np.testing.assert_array_equal(positions.learned(table, 2).detach(), [[0, 1], [2, 3]])
    positions.learned(table, np.int64(2), start=np.int8(1)).sum().backward()
    np.testing.assert_array_equal(table.grad, np.array([[0, 1, 1, 0, 0]] * 2).T)
    assert tuple(positions.learned(table, 0, start=5).shape) == (0, 2)


# rotary


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    st.sampled_from(((), (2,), (3, 1), (0,))), COUNT, EVEN, STARTS, st.booleans(), BASES,
    st.integers(0, 99),
)  # fmt: skip
def test_rotary_agrees_with_complex_numbers(
    library, dtype, leading, n, d, start, interleaved, base, seed
):
    x = np.random.default_rng(seed).standard_normal((*leading, n, d))
    mine = library.array(x, dtype)
    got = positions.rotary(mine, start=start, interleaved=interleaved, base=base)
    assert library.same_kind(got, mine)
    expected = oracle.rotary(library.numpy(mine), start, interleaved, base)
    if dtype == "float32":
        close(library.numpy(got), expected, dtype, size=4)
    else:
        allowed = 1e-14 + 16 * 2.0**-52 * (start + n) * max(1, base ** (2 / d - 1))
        np.testing.assert_allclose(library.numpy(got), expected, rtol=0, atol=allowed)
    np.testing.assert_array_equal(library.numpy(mine), library.numpy(library.array(x, dtype)))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_rounds_half_precision_once(library, dtype, interleaved):
    need(library, dtype)
    x = library.array(np.random.default_rng(0).standard_normal((2, 7, 6)), dtype)
    got = positions.rotary(x, start=1000, interleaved=interleaved)
    assert library.same_kind(got, x)
    expected = oracle.rotary(library.numpy(x), 1000, interleaved)
    close(library.numpy(got), expected, dtype, size=4)


def test_rotary_by_default_pairs_the_halves_from_position_0():
    x = np.random.default_rng(0).standard_normal((5, 6))
    got = positions.rotary(x)
    np.testing.assert_allclose(got, oracle.rotary(x, 0, False, 10000.0), atol=1e-14)
    np.testing.assert_array_equal(got[0], x[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_gradcheck_and_vmap(interleaved):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

    def function(x):
        return positions.rotary(x, start=2, interleaved=interleaved)

    assert torch.autograd.gradcheck(function, (x,))
    torch.testing.assert_close(torch.func.vmap(function)(x), function(x))


# Errors.


ONES = np.ones((3, 4))
ERRORS = """
positions.sinusoidal(3.0, 4)
    TypeError: n must be an int, got float
positions.sinusoidal(-1, 4)
    ValueError: n must be at least 0, got -1
positions.sinusoidal(3, True)
    TypeError: d_model must be an int, got bool
positions.sinusoidal(3, 5)
    ValueError: d_model must be even and at least 2, got 5
positions.sinusoidal(3, 0)
    ValueError: d_model must be even and at least 2, got 0
positions.sinusoidal(3, 4, start=-1)
    ValueError: start must be at least 0, got -1
positions.sinusoidal(3, 4, base=0)
    ValueError: base must be above 0, got 0.0
positions.sinusoidal(3, 4, like=np.arange(3))
    TypeError: like must have a real floating dtype, got int64
positions.learned(np.ones((2, 3, 4)), 1)
    ValueError: table must have shape (N, d_model), got (2, 3, 4)
positions.learned(ONES, 2, start=2)
    ValueError: start + n must be at most the 3 positions of the table, got 4
positions.learned(ONES, -1)
    ValueError: n must be at least 0, got -1
positions.learned(ONES, 1, start=-1)
    ValueError: start must be at least 0, got -1
positions.rotary(np.ones((3, 4), int))
    TypeError: x must have a real floating dtype, got int64
positions.rotary(np.ones((2, 3, 5)))
    ValueError: x must have shape (..., n, d) with even d >= 2, got (2, 3, 5)
positions.rotary(ONES, start=-1)
    ValueError: start must be at least 0, got -1
positions.rotary(ONES, base=0)
    ValueError: base must be above 0, got 0.0
positions.sinusoidal(3, 4, interleaved=1)
    TypeError: interleaved must be a bool, got int
positions.rotary(np.ones((3, 4)), interleaved="no")
    TypeError: interleaved must be a bool, got str
"""

test_error = error_test(ERRORS, globals())
