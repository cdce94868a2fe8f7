"""Splitting and merging heads, and multi-head attention, in every library and dtype."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import (
    DTYPES,
    EPSILON,
    HALF,
    HeadsCase,
    calls_in_package,
    close,
    every_day,
    heads_cases,
    many_heads,
    masks,
    need,
    recorded,
)
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook

dtypes = pytest.mark.parametrize("dtype", DTYPES)


# split_heads and merge_heads.


@given(
    st.lists(st.sampled_from((0, 1, 2, 3)), max_size=2),
    *(st.sampled_from((0, 1, 2, 3, 5)) for _ in range(2)),
    st.sampled_from((1, 2, 3, 7)),
)
def test_split_takes_every_number_to_its_head(library, leading, n, d, h):
    shape = (*leading, n, h * d)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    x = library.array(numbers)
    heads = attnbook.split_heads(x, h)
    assert library.same_kind(heads, x)
    got = library.numpy(heads)
    assert got.shape == (*leading, h, n, d)
    for *lead, i, t, c in np.ndindex(got.shape):
        assert got[(*lead, i, t, c)] == numbers[(*lead, t, i * d + c)]
    merged = attnbook.merge_heads(heads)
    assert library.same_kind(merged, x)
    np.testing.assert_array_equal(library.numpy(merged), numbers)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "complex128"])
def test_split_and_merge_take_every_dtype(library, dtype):
    x = library.array(np.arange(12).reshape(2, 6) % 5, dtype)
    heads = attnbook.split_heads(x, np.int64(3))
    assert library.same_kind(heads, x)
    assert library.same_kind(attnbook.merge_heads(heads), x)
    assert tuple(heads.shape) == (3, 2, 2)


def test_split_and_merge_without_heads(library):
    # no head at all can be merged, but not split off
    assert tuple(attnbook.merge_heads(library.array(np.ones((0, 3, 2)))).shape) == (3, 0)
    assert tuple(attnbook.split_heads(library.array(np.ones((3, 0))), 5).shape) == (5, 3, 0)


# The function against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(heads_cases())
def test_agrees_with_the_loop(library, dtype, case):
    arguments = case.arguments(library, dtype)
    output, [shares] = recorded(attnbook.multi_head_attention, *arguments)
    assert library.same_kind(output, arguments[0])
    assert library.same_kind(shares, arguments[0])
    exact_output, exact_shares = case.exact(library, dtype)
    close(library.numpy(shares), exact_shares, dtype, size=64.0)
    close(library.numpy(output), exact_output, dtype, size=64.0)
    alone = attnbook.multi_head_attention(*arguments)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(output))
    for x, before in zip(arguments, (case.query, case.key, case.value), strict=False):
        held = library.numpy(library.array(before, dtype))
        np.testing.assert_array_equal(library.numpy(x), held)  # nothing is written to


@pytest.mark.parametrize("dtype", HALF)
@given(heads_cases())
def test_half_precision_rounds_projections_and_nothing_within(library, dtype, case):
    need(library, dtype)
    arguments = case.arguments(library, dtype)
    output, [shares] = recorded(attnbook.multi_head_attention, *arguments)
    assert library.same_kind(output, arguments[0])
    assert library.same_kind(shares, arguments[0])

    def rounded(x):
        return library.numpy(library.array(x, dtype))

    expected = case.exact(library, dtype, rounded=rounded)
    # the loop sums in float64: where a sum lies between two numbers, float32 may round it otherwise
    for got, steps in zip((output, shares), map(rounded, expected), strict=True):
        allowed = 8 * EPSILON[dtype] * (1 + np.abs(steps))
        assert np.all(np.abs(library.numpy(got) - steps) <= allowed)


@dtypes
def test_half_precision_attends_in_float32(library, dtype):
    need(library, dtype)
    # 4099 equal keys: in half precision the total would stop at 2048 or at 256
    one = library.array(np.ones((1, 1)), dtype)
    keys = library.array(np.ones((4099, 1)), dtype)
    weights = attnbook.MultiHeadWeights(one, one, one, n_heads=1)
    got, [shares] = recorded(attnbook.multi_head_attention, one, keys, keys, weights)
    np.testing.assert_allclose(library.numpy(got), [[1.0]], atol=1e-4)
    share = library.numpy(library.array(np.array(1 / 4099), dtype))
    np.testing.assert_allclose(library.numpy(shares), np.full((1, 1, 4099), share), rtol=1e-6)


def test_a_call_is_short():
    """The way from the arguments to the output and back, in calls and files of the package."""
    x, weights = np.ones((3, 5, 8)), attnbook.MultiHeadWeights.init(0, 8, 2)
    calls = calls_in_package(attnbook.multi_head_attention, x, x, x, weights)
    assert len(calls) <= 30
    assert len({file for file, _ in calls}) <= 8


def case_of(leading=(2,), n_q=3, n_k=13, mask=None, seed=1, **options):
    """Return a case of 4 heads with sizes that are all different."""
    options = {"h": 4, "g": 4, "d_out": 17, "bias": True} | options
    weights = many_heads(seed, **options)
    rng = np.random.default_rng(seed)
    shapes = ((n_q, 5), (n_k, 11), (n_k, 7))
    arrays = (rng.standard_normal((*leading, *shape)) for shape in shapes)
    drawn = None
    if mask is not None:
        drawn = masks(rng, (*leading, weights.n_heads, n_q, n_k))[mask]
    return HeadsCase(*arrays, weights, drawn)


@pytest.mark.parametrize(
    "shape",
    [
        *((13,), (3, 13), (3, 1), (1, 3, 13), (1, 1, 13), (4, 3, 13), (4, 1, 1)),
        *((2, 1, 3, 13), (2, 4, 3, 13), (1, 4, 3, 13), (2, 4, 1, 13), (2, 1, 1, 13), ()),
    ],
)
def test_a_mask_of_every_shape_that_broadcasts(library, shape):
    case = case_of()
    mask = np.random.default_rng(2).random(shape) < 0.6
    case = HeadsCase(case.query, case.key, case.value, case.weights, mask)
    output = attnbook.multi_head_attention(*case.arguments(library, "float64"))
    close(library.numpy(output), case.exact(library, "float64")[0], "float64", size=10)


def test_a_query_without_keys_gets_the_bias_of_the_output(library):
    case = case_of(mask="empty row")  # the first query sees nothing, in no head
    arguments = case.arguments(library, "float64")
    output, [shares] = recorded(attnbook.multi_head_attention, *arguments)
    np.testing.assert_array_equal(library.numpy(shares)[..., 0, :], np.zeros((2, 4, 13)))
    expected = np.tile(case.weights.b_O, (2, 1))
    np.testing.assert_array_equal(library.numpy(output)[:, 0], expected)
    for d_out, width in ((None, 12), (17, 17)):  # without biases it gets zeros
        case = case_of(mask="empty", d_out=d_out, bias=False)
        output = attnbook.multi_head_attention(*case.arguments(library, "float64"))
        np.testing.assert_array_equal(library.numpy(output), np.zeros((2, 3, width)))
    case = case_of(n_k=0)
    output = attnbook.multi_head_attention(*case.arguments(library, "float64"))
    np.testing.assert_array_equal(library.numpy(output), np.tile(case.weights.b_O, (2, 3, 1)))


# PyTorch's own functions and modules.


def tensors(case, dtype=torch.float64):
    query, key, value = (torch.tensor(x, dtype=dtype) for x in (case.query, case.key, case.value))
    mask = None if case.mask is None else torch.tensor(case.mask)
    return query, key, value, case.weights.to("torch", dtype=str(dtype).split(".")[-1]), mask


@pytest.mark.parametrize(("mask", "g"), [("none", 1), ("random", 2), ("causal", 4)])
def test_agrees_with_torch_scaled_dot_product_attention(g, mask):
    query, key, value, w, mask = tensors(case_of(g=g, mask=mask))
    if mask is not None and mask.ndim == 4:
        mask[..., 0] = True  # PyTorch's own function has no agreed answer for empty rows
    q, k, v = (
        (x @ matrix + bias).unflatten(-1, (heads, -1)).transpose(1, 2)
        for x, matrix, bias, heads in (
            (query, w.W_Q, w.b_Q, 4),
            (key, w.W_K, w.b_K, g),
            (value, w.W_V, w.b_V, g),
        )
    )
    sdpa = torch.nn.functional.scaled_dot_product_attention
    attended = sdpa(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2).flatten(2)
    got = attnbook.multi_head_attention(query, key, value, w, mask)
    torch.testing.assert_close(got, attended @ w.W_O + w.b_O)


GROUPS = [("none", 4), ("empty row", 1), ("empty", 4)]


@pytest.mark.parametrize(("mask", "g"), every_day(GROUPS[1:2], GROUPS))
def test_gradcheck(mask, g):
    case = case_of(leading=(2,), n_q=3, n_k=5, mask=mask, g=g)
    query, key, value, w, mask = tensors(case)
    names = [name for name, x in vars(w).items() if torch.is_tensor(x)]
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    leaves += [getattr(w, name).clone().requires_grad_() for name in names]

    def function(query, key, value, *held):
        weights = attnbook.MultiHeadWeights(
            **dict(zip(names, held, strict=True)), n_heads=4, n_kv_heads=g
        )
        return attnbook.multi_head_attention(query, key, value, weights, mask)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@dtypes
def test_gradients_are_finite_with_empty_rows(dtype):
    query, key, value, w, mask = tensors(case_of(mask="empty row", g=2), getattr(torch, dtype))
    leaves = {k: x.requires_grad_() for k, x in vars(w).items() if torch.is_tensor(x)}
    inputs = [(30 * x).requires_grad_() for x in (query, key, value)]
    attnbook.multi_head_attention(*inputs, w, mask).sum().backward()
    for x in (*inputs, *leaves.values()):
        assert x.grad.dtype == x.dtype
        assert bool(torch.isfinite(x.grad).all())
    assert bool((inputs[0].grad[:, 0] == 0).all())
    assert len(leaves) == 8


def test_vmap():
    query, key, value, w, mask = tensors(case_of(leading=(3,), mask="random", g=2))
    mapped = torch.func.vmap(lambda q, k, v, m: attnbook.multi_head_attention(q, k, v, w, m))
    expected = attnbook.multi_head_attention(query, key, value, w, mask)
    torch.testing.assert_close(mapped(query, key, value, mask), expected)


# Heads one by one.


@pytest.mark.parametrize("own", [False, True], ids=["one W_O", "a W_O each"])
def test_a_list_of_heads_is_the_fused_form(library, own):
    rng = np.random.default_rng(3)
    W_O = rng.standard_normal((12, 17))
    heads = [
        attnbook.SingleHeadWeights(
            *(rng.standard_normal(s) for s in ((5, 2), (11, 2), (7, 3))),
            W_O[3 * i : 3 * i + 3] if own else None,
        )
        for i in range(4)
    ]
    weights = attnbook.MultiHeadWeights.from_heads(heads, None if own else W_O)
    arrays = [rng.standard_normal((2, *s)) for s in ((3, 5), (13, 11), (13, 7))]
    mask = rng.random((2, 1, 3, 13)) < 0.7
    ours = [library.array(x) for x in arrays]
    got = attnbook.multi_head_attention(*ours, library.place(weights), library.array(mask))
    outputs = [
        oracle.single_head_attention(*arrays, **vars(head), mask=mask[:, 0])[0] for head in heads
    ]
    expected = sum(outputs) if own else np.concatenate(outputs, axis=-1) @ W_O
    np.testing.assert_allclose(library.numpy(got), expected, atol=1e-12)


# Errors.


def ones(*shape, dtype="float64"):
    return np.ones(shape, dtype=dtype)


def call(query=(3, 5), key=(13, 11), value=(13, 7), mask=None, weights=None, dtype="float64"):
    arrays = [ones(*x, dtype=dtype) if isinstance(x, tuple) else x for x in (query, key, value)]
    weights = many_heads(0, 4, 2) if weights is None else weights
    return attnbook.multi_head_attention(*arrays, weights, mask)


def masked(mask, batch=()):
    return call((*batch, 3, 5), (*batch, 13, 11), (*batch, 13, 7), mask=mask)


ERRORS = """
masked(np.ones((2, 13), dtype=bool), (2,))
    ValueError: mask must broadcast to (..., h, n_q, n_k) = (2, 4, 3, 13), got (2, 13); one row
    of keys per sequence is mask[:, None, None]
attnbook.split_heads(ones(3, 8), 2.0)
    TypeError: n_heads must be an int, got float
attnbook.split_heads(ones(3, 8), 0)
    ValueError: n_heads must be at least 1, got 0
attnbook.split_heads(ones(8), 2)
    ValueError: x must have shape (..., n, d_model) with d_model divisible by n_heads = 2, got
    (8,)
attnbook.split_heads(ones(2, 3, 8), 5)
    ValueError: x must have shape (..., n, d_model) with d_model divisible by n_heads = 5, got
    (2, 3, 8)
attnbook.merge_heads(ones(3, 8))
    ValueError: x must have shape (..., h, n, d), got (3, 8)
call(weights=attnbook.SingleHeadWeights.init(0, 5, d_k=2, d_v=3))
    TypeError: weights must be MultiHeadWeights, got SingleHeadWeights
call(query=ones(3, 5, dtype=int))
    TypeError: query must have a real floating dtype, got int64
call(dtype="float32")
    TypeError: weights must have the dtype of query (float32), got float64
call(query=(3, 11))
    ValueError: query must have shape (..., n, 5) to match the weights, got (3, 11)
call(key=(2, 13, 5))
    ValueError: key must have shape (..., n, 11) to match the weights, got (2, 13, 5)
call(value=(3, 7))
    ValueError: value must have shape (..., 13, 7) to match key, got (3, 7)
call(query=(2, 3, 5), key=(4, 13, 11))
    ValueError: key must have leading axes that broadcast with (2,), got shape (4, 13, 11)
masked(ones(3, 13, dtype=int))
    TypeError: mask must be boolean, True = may attend, got int64; it looks like a boolean mask
    stored as numbers: pass mask == 1
masked(torch.ones(3, 13, dtype=torch.bool))
    TypeError: mask must be an array of the same library as query (numpy), got torch
masked(ones(13, 3, dtype=bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (4, 3, 13), got
    (13, 3)
masked(ones(3, 1, 3, 13, dtype=bool), batch=(2,))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (2, 4, 3, 13),
    got (3, 1, 3, 13)
masked(ones(2, 3, 13, dtype=bool), batch=(2,))
    ValueError: mask must have 1 or 4 entries on the axis of the heads, the third from the
    right, got shape (2, 3, 13); one mask per sequence is mask[:, None]
masked(ones(5, 3, 13, dtype=bool), batch=(2,))
    ValueError: mask must have 1 or 4 entries on the axis of the heads, the third from the
    right, got shape (5, 3, 13)
masked(ones(1, 2, 3, 13, dtype=bool), batch=(2,))
    ValueError: mask must have 1 or 4 entries on the axis of the heads, the third from the
    right, got shape (1, 2, 3, 13)
masked(ones(4, 3, 13, dtype=bool), batch=(4,))
    ValueError: mask must say what its first axis is, because there are 4 heads and 4 sequences:
    mask[None] has one mask per head, mask[:, None] one per sequence; got shape (4, 3, 13)
masked(ones(4, 1, 13, dtype=bool), batch=(7, 4))
    ValueError: mask must say what its first axis is, because there are 4 heads and 4 sequences:
    mask[None] has one mask per head, mask[:, None] one per sequence; got shape (4, 1, 13)
attnbook.multi_head_attention(*[np.ones((3, 8))] * 3,
attnbook.MultiHeadWeights.init(0, 8, 2), is_causal="no")
    TypeError: is_causal must be a bool, got str
"""

test_error = error_test(ERRORS, globals())


def test_a_mask_that_says_which_axis_it_means_is_taken(library):
    # 4 heads and 4 sequences: three axes are refused, four are not
    rng = np.random.default_rng(0)
    mask = rng.random((4, 3, 13)) < 0.6
    case = case_of(leading=(4,))
    outputs = []
    for drawn in (mask[None], mask[:, None]):
        shaped = HeadsCase(case.query, case.key, case.value, case.weights, drawn)
        output = attnbook.multi_head_attention(*shaped.arguments(library, "float64"))
        close(library.numpy(output), shaped.exact(library, "float64")[0], "float64", size=10)
        outputs.append(library.numpy(output))
    assert not np.allclose(*outputs)
    # one mask for each head is no question where there are not as many sequences
    for leading in ((), (1,), (3,), (4, 1), (4, 3)):
        other = case_of(leading=leading)
        shaped = HeadsCase(other.query, other.key, other.value, other.weights, mask)
        output = attnbook.multi_head_attention(*shaped.arguments(library, "float64"))
        close(library.numpy(output), shaped.exact(library, "float64")[0], "float64", size=10)
