"""Masks as other libraries write them, against those libraries themselves."""

import re

import numpy as np
import pytest
import torch
from cases import DTYPES, need, recorded
from error_table import error_test
from hypothesis import example, given
from hypothesis.extra import numpy as npst

import attnbook
from attnbook import masking

dtypes = pytest.mark.parametrize("dtype", DTYPES)


def any_mask(min_dims=1):
    return npst.arrays(bool, npst.array_shapes(min_dims=min_dims, max_dims=4, min_side=0))


# Additive masks.


@dtypes
@given(any_mask(min_dims=0))
def test_additive_and_back(library, dtype, mask):
    need(library, dtype)
    mine = library.array(mask)
    added = masking.to_additive(mine, dtype)
    assert library.same_kind(added, library.array(np.zeros(1), dtype))
    np.testing.assert_array_equal(library.numpy(added), np.where(mask, 0.0, -np.inf))
    back = masking.from_additive(added)
    assert library.same_kind(back, mine)
    np.testing.assert_array_equal(library.numpy(back), mask)
    assert library.same_kind(masking.to_additive(mine), library.array(np.zeros(1), "float32"))


@dtypes
def test_from_additive_takes_what_others_write_for_minus_infinity(library, dtype):
    need(library, dtype)
    lowest = {"float16": -65504.0, "bfloat16": -3.3895e38, "float32": -3.4028e38}
    numbers = [0.0, -0.0, -1000.0, -1e4, -np.inf, lowest.get(dtype, -1.7e308)]
    got = masking.from_additive(library.array(np.array(numbers), dtype))
    np.testing.assert_array_equal(library.numpy(got), [True, True, False, False, False, False])


@dtypes
@pytest.mark.parametrize("number", [-990.0, -1.0, 1e-7, 1.0, 1000.0, np.inf, np.nan])
def test_from_additive_refuses_a_bias(library, dtype, number):
    need(library, dtype)
    mask = library.array(np.array([[0.0, -np.inf], [0.0, number]]), dtype)
    message = (
        "mask must hold only 0 and numbers of at most -1000, got others; "
        "numbers that are added to the scores go in bias="
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        masking.from_additive(mask)


def test_from_additive_needs_numbers_to_read():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(ValueError, match="mask must hold numbers that can be read, got"):
        masking.from_additive(torch.zeros(2, device="meta"))


# scaled_dot_product_attention


@given(any_mask(min_dims=0))
def test_to_sdpa_changes_at_most_the_number_of_axes(library, mask):
    mine = library.array(mask)
    got = masking.to_sdpa(mine)
    assert library.same_kind(got, mine)
    expected = mask if mask.ndim > 1 else np.atleast_2d(mask)
    assert tuple(got.shape) == expected.shape
    np.testing.assert_array_equal(library.numpy(got), expected)


@pytest.mark.parametrize(
    "shape", [(), (13,), (3, 13), (3, 1), (1, 13), (4, 3, 13), (2, 1, 3, 13), (2, 4, 1, 13)]
)
def test_to_sdpa_means_the_same_to_torch(shape):
    torch.manual_seed(0)
    arrays = [torch.randn(2, 4, *s) for s in ((3, 5), (13, 5), (13, 7))]
    mask = torch.rand(shape) < 0.6
    if shape:
        mask[..., :1] = True  # PyTorch's own function has no agreed answer for empty rows
    expected = attnbook.attention(*arrays, mask)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    boolean = masking.to_sdpa(mask)
    for theirs in (boolean, masking.to_additive(boolean)):
        torch.testing.assert_close(sdpa(*arrays, attn_mask=theirs), expected)
    if mask.ndim < 2:  # the reason for `to_sdpa`; should PyTorch mend it, this test says so
        with pytest.raises(IndexError, match=r"[Dd]imension"):
            sdpa(*arrays, attn_mask=mask)


@pytest.mark.parametrize(("n_q", "n_k"), [(3, 3), (3, 7), (7, 3), (1, 7)])
def test_is_causal_of_torch_is_aligned_to_the_first_key(n_q, n_k):
    torch.manual_seed(0)
    arrays = [torch.randn(*s) for s in ((n_q, 5), (n_k, 5), (n_k, 2))]
    theirs = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True)
    top_left = torch.ones(n_q, n_k, dtype=torch.bool).tril()
    torch.testing.assert_close(theirs, attnbook.attention(*arrays, top_left))
    ours = attnbook.attention(*arrays, masking.causal(n_q, n_k, like=arrays[0]))
    assert torch.allclose(ours, theirs) == (n_q == n_k)


# nn.MultiheadAttention


@given(any_mask())
def test_to_mha_is_the_opposite_and_its_own_inverse(library, mask):
    mine = library.array(mask)
    theirs = masking.to_mha(mine)
    assert library.same_kind(theirs, mine)
    np.testing.assert_array_equal(library.numpy(theirs), np.logical_not(mask))
    np.testing.assert_array_equal(library.numpy(masking.to_mha(theirs)), mask)


@given(npst.mutually_broadcastable_shapes(num_shapes=1, base_shape=(2, 3, 5, 7), max_dims=4))
@example(npst.BroadcastableShapes(input_shapes=((2, 1, 0, 3),), result_shape=(2, 3, 0, 3)))
def test_to_mha_spreads_and_joins_sequences_and_heads(library, shapes):
    (small,), shape = shapes.input_shapes, shapes.result_shape
    mask = np.random.default_rng(0).random(small) < 0.5
    batch, h, n_q, n_k = shape
    for form in (tuple, list, torch.Size):
        got = masking.to_mha(library.array(mask), form(shape))
        assert library.same_kind(got, library.array(mask))
        assert tuple(got.shape) == (batch * h, n_q, n_k)
        wide = np.broadcast_to(mask, shape)
        for s, i in np.ndindex(batch, h):
            np.testing.assert_array_equal(library.numpy(got)[s * h + i], ~wide[s, i])


@pytest.mark.parametrize(
    "shape", [(3, 13), (1, 13), (4, 3, 13), (2, 1, 3, 13), (2, 4, 3, 13), (2, 1, 1, 13)]
)
def test_to_mha_means_the_same_to_torch(shape):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 4, batch_first=True)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 13, 8)
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    state = module.state_dict()
    W_Q, W_K, W_V = state["in_proj_weight"].T.chunk(3, dim=1)
    weights = attnbook.MultiHeadWeights(W_Q, W_K, W_V, state["out_proj.weight"].T, n_heads=4)
    ours, [A] = recorded(attnbook.multi_head_attention, query, key, key, weights, mask)
    asked = [{"attn_mask": masking.to_mha(mask, (2, 4, 3, 13))}]
    if len(shape) == 2:
        asked.append({"attn_mask": masking.to_mha(mask.expand(3, 13))})
    if shape == (2, 1, 1, 13):
        asked.append({"key_padding_mask": masking.to_mha(mask)[:, 0, 0]})
    for masks in asked:
        theirs = module(query, key, key, average_attn_weights=False, **masks)
        torch.testing.assert_close(theirs, (ours, A))


# Errors.

MASK = np.ones((3, 13), bool)
ERRORS = r"""
masking.to_additive([True])
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
masking.to_additive(masking.Causal())
    TypeError: mask must be a boolean array, since this function reads no rule: pass
    rule.dense(n_q, n_k), got Causal()
masking.to_sdpa(~masking.Chunks(2))
    TypeError: mask must be a boolean array, since this function reads no rule: pass
    rule.dense(n_q, n_k), got ~Chunks(2)
masking.to_mha(masking.Causal() & masking.SlidingWindow(3))
    TypeError: mask must be a boolean array, since this function reads no rule: pass
    rule.dense(n_q, n_k), got (Causal() & SlidingWindow(left=3, right=0))
masking.from_additive(masking.Causal())
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    Causal
masking.to_additive(np.ones(3, int))
    TypeError: mask must be boolean, True = may attend, got int64; it looks like a boolean mask
    stored as numbers: pass mask == 1
masking.to_additive(MASK, 'int64')
    ValueError: dtype must be one of float16, float32, float64, got 'int64'
masking.to_additive(MASK, 'bfloat16')
    ValueError: dtype must be one of float16, float32, float64, got 'bfloat16'
masking.to_additive(torch.tensor([True]), 'float8')
    ValueError: dtype must be one of float16, bfloat16, float32, float64, got 'float8'
masking.from_additive(MASK)
    TypeError: mask must have a real floating dtype, got bool
masking.from_additive(np.zeros(3, int))
    TypeError: mask must have a real floating dtype, got int64
masking.from_additive([0.0])
    TypeError: mask must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
masking.to_sdpa(np.ones(3))
    TypeError: mask must be boolean, True = may attend, got float64; it looks like a boolean mask
    stored as numbers: pass mask == 1
masking.to_mha(np.ones(3, np.uint8))
    TypeError: mask must be boolean, True = may attend, got uint8; it looks like a boolean mask
    stored as numbers: pass mask == 1
masking.to_mha(MASK, 4)
    ValueError: scores_shape must be (batch, h, n_q, n_k), got 4
masking.to_mha(MASK, (4, 3, 13))
    ValueError: scores_shape must be (batch, h, n_q, n_k), got (4, 3, 13)
masking.to_mha(MASK, (2, 4.0, 3, 13))
    TypeError: scores_shape must be an int, got float
masking.to_mha(MASK, (2, -1, 3, 13))
    ValueError: scores_shape must be at least 0, got -1
masking.to_mha(MASK, (2, 4, 5, 13))
    ValueError: mask must broadcast to (2, 4, 5, 13), got (3, 13)
masking.to_mha(np.ones((2, 3, 13), bool), (2, 4, 3, 13))
    ValueError: mask must broadcast to (2, 4, 3, 13), got (2, 3, 13)
masking.to_mha(np.ones((7, 1, 1, 3, 13), bool), (2, 4, 3, 13))
    ValueError: mask must broadcast to (2, 4, 3, 13), got (7, 1, 1, 3, 13)
"""

test_error = error_test(ERRORS, globals())
