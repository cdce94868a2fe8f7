"""softmax, log_softmax and RunningSoftmax against loops, in every library and dtype."""

import functools
import itertools
import math
import re

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, masks, need
from hypothesis import example, given
from hypothesis import strategies as st

import attnbook

FUNCTIONS = {
    "softmax": (attnbook.softmax, oracle.softmax),
    "log_softmax": (attnbook.log_softmax, oracle.log_softmax),
}
both = pytest.mark.parametrize("name", FUNCTIONS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


quiet = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@st.composite
def tensors(draw):
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 5)), min_size=1, max_size=3)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return draw(st.sampled_from((1.0, 30.0))) * rng.standard_normal(shape), axis


@both
@dtypes
@given(tensors())
def test_agrees_with_the_loop(library, name, dtype, tensor):
    need(library, dtype)
    function, loop = FUNCTIONS[name]
    x = library.array(tensor[0], dtype)
    before = library.numpy(x).copy()
    got = function(x, tensor[1])
    assert library.same_kind(got, x)
    np.testing.assert_array_equal(library.numpy(x), before)  # nothing is written to it
    close(library.numpy(got), loop(before, tensor[1]), dtype, size=1.0)


ROWS = {
    "one": [3.0],
    "equal": [7.0] * 5,
    "±1e4": [1e4, -1e4, 0.0, 9.99e3, 1e4],
    "−inf": [-math.inf, 0.0, 1.0],
    "all −inf": [-math.inf] * 3,
    "one −inf": [-math.inf],
    "+inf": [math.inf, 0.0, -math.inf],
    "all +inf": [math.inf] * 2,
    "NaN": [math.nan, 0.0],
    "NaN beside −inf": [math.nan, -math.inf],
    "NaN beside +inf": [math.nan, math.inf],
    "subnormal": [6e-8, 1e-310, -1e-310, 0.0],
    "negative zero": [-0.0, 0.0],
    "far below": [0.0, -87.0, -103.0, -745.0, -1e4],
    "half of the largest half": [32752.0, -32752.0, 32752.0],
    "a logarithm that is not rounded to zero": [0.0, -1000.0, -2000.0],
}


@both
@dtypes
@quiet
@pytest.mark.parametrize("row", ROWS)
def test_agrees_with_the_loop_at_the_extremes(library, name, dtype, row):
    need(library, dtype)
    function, loop = FUNCTIONS[name]
    # beside an ordinary row, which must stay as it would be alone
    x = library.array([ROWS[row], list(range(len(ROWS[row])))], dtype)
    close(library.numpy(function(x)), loop(library.numpy(x)), dtype, size=1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_largest_numbers_do_not_overflow(library, dtype):
    huge = float(np.finfo(dtype).max)
    x = library.array([[huge, huge, -huge / 4], [-huge, -huge, -huge]], dtype)
    with np.errstate(over="ignore"):  # huge − (−huge / 4) may round to infinity, which is right
        got = library.numpy(attnbook.softmax(x))
    np.testing.assert_allclose(got, [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)


@dtypes
def test_half_precision_rounds_once(library, dtype):
    # 4099 equal scores: float16 counts no further than 2048, bfloat16 no further than 256
    need(library, dtype)
    got = library.numpy(attnbook.softmax(library.array(np.zeros(4099), dtype)))
    expected = library.numpy(library.array(np.array(1 / 4099), dtype))
    np.testing.assert_allclose(got, np.full(4099, expected), rtol=1e-6)


@both
def test_axis_defaults_to_the_last_and_takes_numpy_integers(library, name):
    function, loop = FUNCTIONS[name]
    x = np.random.default_rng(0).standard_normal((3, 5, 7))
    np.testing.assert_allclose(library.numpy(function(library.array(x))), loop(x, -1), atol=1e-12)
    got = function(library.array(x), np.int64(-2))
    np.testing.assert_allclose(library.numpy(got), loop(x, 1), atol=1e-12)


def test_strided_arrays_and_foreign_byte_order():
    x = np.random.default_rng(0).standard_normal((6, 10))
    np.testing.assert_allclose(
        attnbook.softmax(x[::-2, ::3]), oracle.softmax(x[::-2, ::3]), atol=1e-12
    )
    np.testing.assert_allclose(attnbook.softmax(x.T, 0), oracle.softmax(x.T, 0), atol=1e-12)
    foreign = x.astype(x.dtype.newbyteorder())
    got = attnbook.softmax(foreign)
    assert got.dtype == foreign.dtype
    np.testing.assert_allclose(got, oracle.softmax(x), atol=1e-12)
    half = np.zeros(4099, np.dtype(np.float16).newbyteorder())  # summed in float32
    np.testing.assert_array_equal(attnbook.softmax(half), np.float16(1 / 4099))


@both
@dtypes
def test_gradients_are_finite_where_a_row_is_masked(name, dtype):
    rows = [[-math.inf, -math.inf, -math.inf], [0.5, -math.inf, 2.0], [1e4, -1e4, 0.0]]
    x = torch.tensor(rows, dtype=getattr(torch, dtype), requires_grad=True)
    y = FUNCTIONS[name][0](x)
    torch.where(torch.isinf(y), 0.0, y).sum().backward()
    assert x.grad.dtype == x.dtype
    assert bool(torch.isfinite(x.grad).all())


@both
def test_gradients_equal_torch_and_finite_differences(name):
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    function = FUNCTIONS[name][0]
    assert torch.autograd.gradcheck(function, (x, 0))
    assert torch.autograd.gradgradcheck(function, (x, 1))
    torchs = getattr(torch, name)
    torch.testing.assert_close(function(x, 0), torchs(x, 0))


# RunningSoftmax


def read(library, scores, value):
    return attnbook.RunningSoftmax.read(library.array(scores), library.array(value))


def same_state(library, ours, theirs, rtol=1e-12):
    for x, y in ((ours.output(), theirs.output()), (ours.log_total(), theirs.log_total())):
        assert library.same_kind(x, y)
        np.testing.assert_allclose(library.numpy(x), library.numpy(y), rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(library.numpy(ours.maximum), library.numpy(theirs.maximum))


@st.composite
def tiled(draw):
    """Draw scores with −∞ in them, values, and a way to cut the keys into tiles."""
    n_q, d_v = draw(st.sampled_from((0, 1, 3))), draw(st.sampled_from((0, 1, 2)))
    n_k = draw(st.sampled_from((0, 1, 2, 5, 11)))
    leading = draw(st.sampled_from(((), (2,), (2, 3))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from((1.0, 100.0, 1e300)))
    scores = spread * rng.standard_normal((*leading, n_q, n_k))
    mask = masks(rng, scores.shape)[draw(st.sampled_from(("none", "random", "empty row", "empty")))]
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    value = rng.standard_normal((*leading, n_k, d_v))
    cuts = sorted(draw(st.lists(st.integers(0, n_k), max_size=4)))
    return scores, value, [0, *cuts, n_k]


def states(library, case):
    scores, value, cuts = case
    return [
        read(library, scores[..., i:j], value[..., i:j, :]) for i, j in itertools.pairwise(cuts)
    ]


@given(tiled())
@example((np.zeros((1, 1)), np.ones((1, 1)), [0, 0, 1, 1]))
@example((np.full((2, 3), -np.inf), np.ones((3, 1)), [0, 1, 2, 3]))
def test_any_split_of_the_keys_gives_the_whole(library, case):
    scores, value, _ = case
    state = functools.reduce(attnbook.RunningSoftmax.merge, states(library, case))
    exact = oracle.weighted_sum(oracle.softmax(scores), value)
    close(library.numpy(state.output()), exact, "float64", size=4.0)
    log_total = torch.logsumexp(torch.tensor(scores), -1, keepdim=True).numpy()
    np.testing.assert_allclose(library.numpy(state.log_total()), log_total, rtol=1e-12, atol=1e-12)


@given(tiled())
def test_merge_is_associative_commutative_and_has_a_neutral_element(library, case):
    scores, value, _ = case
    a, b, c = states(library, (scores, value, [0, case[2][1], case[2][-2], scores.shape[-1]]))
    same_state(library, a.merge(b).merge(c), a.merge(b.merge(c)))
    same_state(library, a.merge(b), b.merge(a))
    nothing = read(library, scores[..., :0], value[..., :0, :])
    assert nothing.maximum.shape == nothing.total.shape == a.total.shape
    assert (library.numpy(nothing.maximum) == -np.inf).all()
    same_state(library, a.merge(nothing), a, rtol=0)
    same_state(library, nothing.merge(a), a, rtol=0)


@dtypes
def test_half_precision_is_kept_in_float32(library, dtype):
    need(library, dtype)
    # one key at a time: in half precision the total would stop growing
    scores, value = library.array(np.zeros((1, 1)), dtype), library.array(np.ones((1, 1)), dtype)
    state = attnbook.RunningSoftmax.read(scores, value)
    for _ in range(12):
        state = state.merge(state)  # 4096 equal keys
    odd = attnbook.RunningSoftmax.read(scores, library.array(np.full((1, 1), 3.0), dtype))
    state = state.merge(odd)
    wide = library.array(np.zeros(1), "float32" if dtype in HALF else dtype).dtype
    assert state.weighted.dtype == state.total.dtype == state.maximum.dtype == wide
    assert state.dtype == scores.dtype
    assert state.output().dtype == scores.dtype
    assert library.numpy(state.total) == 4097
    assert library.numpy(state.weighted) == 4099
    np.testing.assert_allclose(library.numpy(state.log_total()), math.log(4097), rtol=1e-6)


def test_values_broadcast_against_scores(library):
    rng = np.random.default_rng(0)
    scores, value = rng.standard_normal((3, 1, 2, 5)), rng.standard_normal((7, 5, 2))
    state = read(library, scores[..., :2], value[..., :2, :])
    state = state.merge(read(library, scores[..., 2:], value[..., 2:, :]))
    exact = oracle.weighted_sum(oracle.softmax(scores), value)
    close(library.numpy(state.output()), exact, "float64", size=4.0)


@quiet
def test_infinity_and_nan_stay_in_their_row(library):
    scores = np.array([[math.inf, 0.0], [math.nan, 0.0], [1.0, 1.0]])
    state = read(library, scores, np.array([[2.0], [4.0]]))
    merged = state.merge(read(library, np.zeros((3, 1)), np.zeros((1, 1))))
    output = library.numpy(merged.output())
    assert np.isnan(output[:2]).all()
    np.testing.assert_allclose(output[2], 6 * math.e / (2 * math.e + 1))


def test_gradients_flow_through_merges():
    scores = torch.tensor([[0.3, -1.0, 2.0, -math.inf], [-math.inf] * 4], dtype=torch.float64)
    value = torch.tensor([[1.0, 5.0], [2.0, 7.0], [3.0, 1.0], [0.5, 2.0]], dtype=torch.float64)

    def merged(s, v):
        first, second = (
            attnbook.RunningSoftmax.read(s[:, i], v[i]) for i in (slice(2), slice(2, 4))
        )
        return first.merge(second).output()

    def whole(s, v):
        return attnbook.softmax(s) @ v

    leaves = scores.requires_grad_(), value.requires_grad_()
    ours, theirs = (torch.autograd.grad((f(*leaves) ** 2).sum(), leaves) for f in (merged, whole))
    torch.testing.assert_close(ours, theirs)


def test_repr_and_identity():
    state = attnbook.RunningSoftmax.read(np.zeros((1, 1)), np.ones((1, 1)))
    assert state == state
    assert state != attnbook.RunningSoftmax.read(np.zeros((1, 1)), np.ones((1, 1)))
    with pytest.raises(AttributeError, match=re.escape("cannot assign to field 'total'")):
        state.total = np.zeros((1, 1))
