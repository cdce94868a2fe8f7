r"""Rung 1, *naive*: the formula as it is written, all scores at once. It is the reference.

.. math:: \operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\beta\,QK^\top + B)\,V

One head, many heads and every layer call it unless another `impl` is given, and every other rung
must agree with it. Each step makes a new array of n_q × n_k numbers per head, which travels to
memory and back. Any library, any device; gradients flow through PyTorch's autograd.
"""

from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.attention_arguments import to_compute
from attnbook.arrays.empty_rows import finite, maximum, or_one


def softmax_of(x: Array, axis: int) -> Array:
    xp = array_namespace(x)
    weights = xp.exp(x - finite(maximum(x, axis)))
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


def weights_of(
    query: Array, key: Array, mask: Array | None, bias: Array | None, scale: float
) -> Array:
    """Return the weights of attention, of checked arrays in the dtype to compute in."""
    return softmax_of(scores_of(query, key, mask, bias, scale), axis=-1)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> Array:
    """Return the output; about four arrays of all scores at once."""
    xp = array_namespace(query)
    (q, k, v), mask, bias = to_compute([query, key, value], mask, bias, is_causal)
    output = xp.matmul(weights_of(q, k, mask, bias, scale), v)  # (..., n_q, d_v)
    return xp.astype(output, query.dtype, copy=False)
