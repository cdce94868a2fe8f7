"""Sines, learned tables and rotations against plain loops, in every library and dtype."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import assert_raises, error_rows
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


def test_sinusoidal_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    like = strict.asarray([0.0], device=strict.Device("device1"))
    assert positions.sinusoidal(3, 4, like=like).device == like.device
    x = strict.asarray(np.ones((3, 4)), device=like.device)
    assert positions.rotary(x).device == like.device
    assert positions.learned(x, 2).device == like.device
    meta = torch.empty(3, 4, device="meta")
    assert positions.sinusoidal(3, 4, like=meta).device.type == "meta"
    assert positions.rotary(meta).shape == (3, 4)


@given(EVEN, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_products_of_rows_depend_on_the_difference_alone(d, p, q, shift):
    table = positions.sinusoidal(101, d)
    expected = math.fsum(math.cos((p - q) / 10000 ** (2 * i / d)) for i in range(d // 2))
    assert math.isclose(table[p] @ table[q], expected, abs_tol=1e-12)
    assert math.isclose(table[p + shift] @ table[q + shift], expected, abs_tol=1e-12)


@given(EVEN, st.integers(0, 40), st.booleans())
def test_a_step_is_the_same_rotation_everywhere(d, k, interleaved):
    table = positions.sinusoidal(50, d, interleaved=interleaved)
    steps = {}
    for i in range(d // 2):
        sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
        a = k / 10000 ** (2 * i / d)
        steps[sine, cosine] = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    for (sine, cosine), step in steps.items():
        pair = table[: 50 - k, [sine, cosine]]
        np.testing.assert_allclose(pair @ step.T, table[k:, [sine, cosine]], atol=1e-12)


@given(COUNT, EVEN)
def test_the_two_layouts_are_permutations_of_each_other(n, d):
    halves, mixed = positions.sinusoidal(n, d), positions.sinusoidal(n, d, interleaved=True)
    order = [place for i in range(d // 2) for place in (i, i + d // 2)]
    np.testing.assert_array_equal(mixed, halves[:, order])


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


@given(st.integers(0, 99), EVEN, STARTS, st.booleans())
def test_rotary_keeps_lengths(seed, d, start, interleaved):
    x = np.random.default_rng(seed).standard_normal((3, 5, d))
    got = positions.rotary(x, start=start, interleaved=interleaved)
    np.testing.assert_allclose(np.sum(got**2, axis=-1), np.sum(x**2, axis=-1))


@given(st.integers(0, 99), EVEN, st.integers(0, 500), st.booleans())
def test_rotated_scores_depend_on_the_distance_alone(seed, d, shift, interleaved):
    rng = np.random.default_rng(seed)
    query, key = rng.standard_normal((2, 7, d))
    layout = {"interleaved": interleaved}
    here = positions.rotary(query, **layout) @ positions.rotary(key, **layout).T
    there = positions.rotary(query, start=shift, **layout) @ (
        positions.rotary(key, start=shift, **layout).T
    )
    np.testing.assert_allclose(there, here, atol=1e-11)
    # one token at each of its places says the same as all at once
    for p in range(7):
        row = positions.rotary(query[p : p + 1], start=p, **layout)
        np.testing.assert_allclose(row[0], positions.rotary(query, **layout)[p], atol=1e-13)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_gradcheck_and_vmap(interleaved):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

    def function(x):
        return positions.rotary(x, start=2, interleaved=interleaved)

    assert torch.autograd.gradcheck(function, (x,))
    torch.testing.assert_close(torch.func.vmap(function)(x), function(x))


# Errors.


def raises(function, *arguments, **options):
    return function(*arguments, **options)


SINE, TABLE, TURN = positions.sinusoidal, positions.learned, positions.rotary
ONES = np.ones((3, 4))
OF_TABLE = "start + n must be at most the 3 positions of the table, got "
OF_X = "x must have shape (..., n, d) with even d >= 2, got "
ERRORS = """
raises(SINE, 3.0, 4)
    TypeError: n must be an int, got float
raises(SINE, -1, 4)
    ValueError: n must be at least 0, got -1
raises(SINE, 3, True)
    TypeError: d_model must be an int, got bool
raises(SINE, 3, 5)
    ValueError: d_model must be even and at least 2, got 5
raises(SINE, 3, 0)
    ValueError: d_model must be even and at least 2, got 0
raises(SINE, 3, 4, start=-1)
    ValueError: start must be at least 0, got -1
raises(SINE, 3, 4, start=1.0)
    TypeError: start must be an int, got float
raises(SINE, 3, 4, base=0)
    ValueError: base must be above 0, got 0
raises(SINE, 3, 4, base=-1)
    ValueError: base must be finite and at least 0, got -1.0
raises(SINE, 3, 4, base="e")
    TypeError: base must be a real number, got str
raises(SINE, 3, 4, like=[1.0])
    TypeError: like must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
raises(SINE, 3, 4, like=np.arange(3))
    TypeError: like must have a real floating dtype, got int64
raises(TABLE, [[1.0]], 1)
    TypeError: table must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
raises(TABLE, np.ones((3, 4), int), 1)
    TypeError: table must have a real floating dtype, got int64
raises(TABLE, np.ones((2, 3, 4)), 1)
    ValueError: table must have shape (N, d_model), got (2, 3, 4)
raises(TABLE, np.ones(4), 1)
    ValueError: table must have shape (N, d_model), got (4,)
raises(TABLE, ONES, 4)
    ValueError: start + n must be at most the 3 positions of the table, got 4
raises(TABLE, ONES, 2, start=2)
    ValueError: start + n must be at most the 3 positions of the table, got 4
raises(TABLE, ONES, -1)
    ValueError: n must be at least 0, got -1
raises(TABLE, ONES, 1, start=-1)
    ValueError: start must be at least 0, got -1
raises(TURN, [[1.0, 2.0]])
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
raises(TURN, np.ones((3, 4), int))
    TypeError: x must have a real floating dtype, got int64
raises(TURN, np.ones(4))
    ValueError: x must have shape (..., n, d) with even d >= 2, got (4,)
raises(TURN, np.ones((2, 3, 5)))
    ValueError: x must have shape (..., n, d) with even d >= 2, got (2, 3, 5)
raises(TURN, np.ones((3, 0)))
    ValueError: x must have shape (..., n, d) with even d >= 2, got (3, 0)
raises(TURN, ONES, start=-1)
    ValueError: start must be at least 0, got -1
raises(TURN, ONES, start="0")
    TypeError: start must be an int, got str
raises(TURN, ONES, base=0)
    ValueError: base must be above 0, got 0
positions.sinusoidal(3, 4, interleaved=1)
    TypeError: interleaved must be a bool, got int
positions.rotary(np.ones((3, 4)), interleaved="no")
    TypeError: interleaved must be a bool, got str
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_error(call, kind, message):
    assert_raises(call, kind, message, globals())
