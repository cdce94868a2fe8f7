"""The block without a feed-forward network, against its source number by number."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
from cases import HALF, LAYER_MASKS, close, examples, held, layer_mask, need, recorded, shaken
from error_table import error_test
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import (
    MultiHeadWeights,
    TransformerBlockWeights,
    transformer_block,
)

LETTERS = ("W_query", "W_key", "W_value", "W_attended", "W_output")


def block(seed=0, d=6, n_heads=3):
    return shaken(TransformerBlockWeights.init(0, d, d, n_heads, d), seed)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def loop(x, w, mask=None):
    """Return LayerNorm(y W_o + y) of y = LayerNorm(MultiHead(x W_q, x W_k, x W_v) W_a + x)."""
    q, k, v = (oracle.project(x, matrix) for matrix in (w.W_query, w.W_key, w.W_value))
    a = w.attention
    biases = (a.b_Q, a.b_K, a.b_V, a.b_O, a.n_heads, a.n_kv_heads)
    heads, _ = oracle.multi_head_attention(q, k, v, a.W_Q, a.W_K, a.W_V, a.W_O, *biases, mask=mask)
    y = oracle.norm_of(oracle.project(heads, w.W_attended) + x, w.attention_norm)
    return oracle.norm_of(oracle.project(y, w.W_output) + y, w.output_norm)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=examples(25))
@given(
    st.sampled_from(((), (2,), (3, 1), (0,))), st.sampled_from((0, 1, 2, 5)),
    st.sampled_from(LAYER_MASKS), st.integers(0, 99),
)  # fmt: skip
def test_agrees_with_the_loop(library, dtype, leading, n, kind, seed):
    weights, x = block(seed), library.array(tokens(*leading, n, 6, seed=seed), dtype)
    mask = layer_mask(np.random.default_rng(seed), kind, (*leading, 3, n, n))
    before, placed = library.numpy(x).copy(), library.place(weights, dtype)
    given = None if mask is None else library.array(mask)
    got, [A] = recorded(transformer_block, x, placed, given)
    assert library.same_kind(got, x)
    assert tuple(A.shape) == (*leading, 3, n, n)
    alone = transformer_block(x, placed, given)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))
    close(library.numpy(got), loop(before, held(library, weights, dtype), mask), dtype, size=500)
    np.testing.assert_array_equal(library.numpy(x), before)
    for name, array in placed.arrays().items():
        expected = library.numpy(library.array(weights.arrays()[name], dtype))
        np.testing.assert_array_equal(library.numpy(array), expected)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision(library, dtype):
    need(library, dtype)
    weights, x = block(), library.array(tokens(2, 5, 6), dtype)
    got = transformer_block(x, library.place(weights, dtype))
    assert library.same_kind(got, x)
    exact = loop(library.numpy(x), held(library, weights, dtype))
    atol = {"float16": 0.03, "bfloat16": 0.3}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=atol)


def test_heads_of_other_widths_are_taken(library):
    # d_k and d_v are free, as long as W_O leads back to d_model
    weights = replace(block(), attention=MultiHeadWeights.init(0, 6, 3, d_k=1, d_v=5))
    x = library.array(tokens(4, 6))
    got = library.numpy(transformer_block(x, library.place(weights)))
    close(got, loop(library.numpy(x), weights), "float64", size=100)


def test_init_draws_in_order():
    for rng in (3, np.random.default_rng(3)):
        weights = TransformerBlockWeights.init(rng, 6, 6, 3, 6)
        draws, bound = np.random.default_rng(3), math.sqrt(6 / 12)
        for name in LETTERS:
            matrix = draws.uniform(-bound, bound, (6, 6))
            np.testing.assert_array_equal(getattr(weights, name), matrix, err_msg=name)
        attention = MultiHeadWeights.init(draws, 6, 3)
        for name, x in attention.arrays().items():
            np.testing.assert_array_equal(weights.attention.arrays()[name], x)
        for norm in (weights.attention_norm, weights.output_norm):
            np.testing.assert_array_equal(norm.gain, np.ones(6))
            np.testing.assert_array_equal(norm.bias, np.zeros(6))
    assert weights.attention.n_heads == 3
    assert sum(x.size for x in weights.arrays().values()) == 9 * 36 + 4 * 6


# Errors.


def part(**parts):
    return replace(block(), **parts)


def call(x=(4, 6), weights=None, mask=None, dtype="float64"):
    x = np.ones(x, dtype) if isinstance(x, tuple) else x
    return transformer_block(x, block() if weights is None else weights, mask)


ERRORS = """
TransformerBlockWeights.init(0, 8, 6, 2, 8)
    ValueError: input_dim, hidden_dim and output_dim must agree, since the block adds arrays of
    these widths, got 8, 6 and 8
TransformerBlockWeights.init(0, 0, 8, 2, 8)
    ValueError: input_dim must be at least 1, got 0
TransformerBlockWeights.init(0, 8, 8.0, 2, 8)
    TypeError: hidden_dim must be an int, got float
part(attention=None)
    TypeError: attention must be MultiHeadWeights, got NoneType
part(attention_norm=np.ones(6))
    TypeError: attention_norm must be LayerNormWeights or RMSNormWeights, got ndarray
part(W_output=np.ones((6, 5)))
    ValueError: input_dim, hidden_dim and output_dim must agree, since the block adds arrays of
    these widths, got 6, 6 and 5
part(W_key=np.ones((6, 5)))
    ValueError: W_key must have 6 columns, got (6, 5)
part(W_value=np.ones((5, 6)))
    ValueError: W_value must have 6 rows, got (5, 6)
part(attention=MultiHeadWeights.init(0, 6, 3, output=False))
    ValueError: attention.W_O must have 6 columns, got None
part(attention=MultiHeadWeights.init(0, 6, 3, d_out=5))
    ValueError: attention.W_O must have 6 columns, got (6, 5)
part(attention=MultiHeadWeights.init(0, 9, 3, d_key=6, d_out=6))
    ValueError: attention.W_Q must have 6 rows, got (9, 9)
part(attention=MultiHeadWeights.init(0, 6, 3, d_key=5, d_out=6))
    ValueError: attention.W_K must have 6 rows, got (5, 6)
part(output_norm=LayerNormWeights(np.ones(9)))
    ValueError: output_norm.gain must have 6 columns, got (9,)
call(weights=MultiHeadWeights.init(0, 6, 3))
    TypeError: weights must be TransformerBlockWeights, got MultiHeadWeights
call(dtype="float32")
    TypeError: weights must have the dtype of x (float32), got float64
call((2, 4, 5))
    ValueError: x must have shape (..., n, 6) to match the weights, got (2, 4, 5)
call(mask=np.ones((4, 5), bool))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (3, 4, 4), got
    (4, 5)
"""

test_error = error_test(ERRORS, vars(attnbook) | globals())
