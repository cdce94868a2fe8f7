r"""Rung 1, *naive*: the formula as it is written, all scores at once. It is the reference.

.. math:: \operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\beta\,QK^\top + B)\,V

One head, many heads and every layer call it unless another `impl` is given, and every other rung
must agree with it. Each step makes a new array of n_q × n_k numbers per head, which travels to
memory and back. Any library, any device; gradients flow through PyTorch's autograd.
"""

from typing import Any

from attnbook.arrays.array import Array, accumulation_dtype, array_namespace
from attnbook.arrays.attention_arguments import and_causal
from attnbook.arrays.empty_rows import or_one, shift


def softmax_of(x: Array, axis: int) -> Array:
    xp = array_namespace(x)
    weights = xp.exp(x - shift(x, axis))
    return weights / or_one(xp.sum(weights, axis=axis, keepdims=True))


def scores_of(
    query: Array, key: Array, mask: Array | None, bias: Array | None, scale: float
) -> Array:
    xp = array_namespace(query)
    # (..., n_q, d_k) times (..., d_k, n_k)
    scores = xp.matmul(query * scale, xp.matrix_transpose(key))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = xp.where(mask, scores, xp.full_like(scores, -xp.inf))
    return scores


def capped_scores_of(
    query: Array, key: Array, mask: Array | None, bias: Array | None, scale: float, cap: float
) -> Array:
    """Return the scores with cap · tanh(s / cap) in the place of each product s."""
    xp = array_namespace(query)
    scores = cap * xp.tanh(scores_of(query, key, None, None, scale) / cap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = xp.where(mask, scores, xp.full_like(scores, -xp.inf))
    return scores


def weights_of(
    query: Array,
    key: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool = False,
    cap: float | None = None,
) -> Array:
    """Return the weights of checked arrays, in the dtype to compute in."""
    xp = array_namespace(query)
    if is_causal:
        mask = and_causal(mask, query, key)
    if query.dtype not in (xp.float32, xp.float64):
        query, key, bias = widen(query, key, bias)
    if cap is not None:
        return softmax_of(capped_scores_of(query, key, mask, bias, scale, cap), axis=-1)
    return softmax_of(scores_of(query, key, mask, bias, scale), axis=-1)


def widen(query: Array, *others: Array | None) -> list[Any]:
    """Return the arrays in the dtype to compute in, float32 for half precision; None stays None."""
    xp = array_namespace(query)
    wide = accumulation_dtype(xp, query.dtype)
    return [x if x is None else xp.astype(x, wide, copy=False) for x in (query, *others)]


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    cap: float | None = None,
) -> Array:
    """Return the output; about four arrays of all scores at once."""
    xp = array_namespace(query)
    weights = weights_of(query, key, mask, bias, scale, is_causal, cap)
    output = xp.matmul(weights, xp.astype(value, weights.dtype, copy=False))  # (..., n_q, d_v)
    return xp.astype(output, query.dtype, copy=False)
