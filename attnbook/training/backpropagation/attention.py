"""Forwards through softmax attention and its heads, and backwards by the same steps in reverse."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from attnbook.arrays.array import Array, Mask, array_namespace, sum_to_shape
from attnbook.arrays.attention_arguments import array_of, causal_mask
from attnbook.arrays.projections import project
from attnbook.kernels.naive import scores_of, weights_of
from attnbook.multi_head.heads import merge_heads_of, repeat_heads, split_heads_of
from attnbook.multi_head.masks import array_for_heads
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.multi_head.windows import Keys, with_sinks
from attnbook.normalization.normalization import NORMALIZED
from attnbook.positions.piece import AttentionPositions
from attnbook.training.backpropagation.linear import linear_vjp
from attnbook.training.backpropagation.normalization import NORMALIZATION_VJPS


def softmax_vjp(
    weights: Annotated[Array, "... n"], grad_weights: Annotated[Array, "... n"]
) -> Annotated[Array, "... n"]:
    r"""Pull the gradient of the weights A = softmax(S) back to the scores S, row by row.

    .. math:: G_S = A \odot \Bigl(\frac{\partial\mathcal L}{\partial A}
              - \Delta\,\mathbf 1^\top\Bigr), \qquad
              \Delta_i = \sum_j A_{ij} \frac{\partial\mathcal L}{\partial A_{ij}}

    Parameters
    ----------
    weights : array A, shape (..., n)
        The output of `softmax` over the last axis.
    grad_weights : array ∂ℒ/∂A, shape (..., n)

    Returns
    -------
    array, shape (..., n)
        Each row sums to 0. Entries whose weight is 0 are 0, so no gradient reaches a hidden score.

    Examples
    --------
    >>> import numpy as np
    >>> softmax_vjp(np.array([0.5, 0.5, 0.0]), np.array([1.0, 3.0, 9.0]))
    array([-0.5,  0.5,  0. ])
    """
    xp = array_namespace(weights)
    delta = xp.sum(weights * grad_weights, axis=-1, keepdims=True)
    return weights * (grad_weights - delta)


def attention_with_vjp(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    mask: Mask | None = None,
    bias: Annotated[Array, "..."] | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[Annotated[Array, "... n_q d_v"], Callable[[Array], tuple[Array, Array, Array, Array]]]:
    r"""Return `attention`, and a function that pulls its gradient back to all its inputs.

    .. math:: \frac{\partial\mathcal L}{\partial V} = A^\top G, \quad
              \frac{\partial\mathcal L}{\partial A} = G V^\top, \quad
              \frac{\partial\mathcal L}{\partial Q} = \beta\,G_S K, \quad
              \frac{\partial\mathcal L}{\partial K} = \beta\,G_S^\top Q,

    where `softmax_vjp` computes G_S, the gradient with respect to the scores, from that with
    respect to A. With a cap c, the score c · tanh(s / c) replaces s, and the derivative
    1 − tanh²(s / c) multiplies G_S on its way to queries and keys.

    Parameters
    ----------
    query, key, value, mask, bias, scale
        As in `attention`; however, the leading axes must be equal, because they do not broadcast.
    cap : float, optional
        As in `MultiHeadWeights`.

    Returns
    -------
    output : array, shape (..., n_q, d_v)
    vjp : callable
        ``vjp(grad_output)`` is (grad_query, grad_key, grad_value, grad_scores). The last one, of
        shape (..., n_q, n_k), is the gradient with respect to the bias before it is summed over
        the axes along which the bias was broadcast.

    Notes
    -----
    It keeps the weights A of the forward pass, which takes O(n_q n_k) memory; `attention_vjp`
    recomputes them.

    Examples
    --------
    >>> import numpy as np
    >>> output, vjp = attention_with_vjp(np.zeros((1, 2)), np.zeros((4, 2)), np.ones((4, 3)))
    >>> vjp(np.ones((1, 3)))[2][0]
    array([0.25, 0.25, 0.25])
    """
    xp = array_namespace(query)
    seen = array_of(mask, query.shape[-2], key.shape[-2], query)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    A = weights_of(query, key, seen, bias, scale, cap=cap)  # (..., n_q, n_k)

    def vjp(grad_output):
        grad_value = xp.matmul(xp.matrix_transpose(A), grad_output)
        grad_A = xp.matmul(grad_output, xp.matrix_transpose(value))
        grad_scores = softmax_vjp(A, grad_A)
        grad_products = grad_scores
        if cap is not None:
            bounded = xp.tanh(scores_of(query, key, None, None, scale) / cap)
            grad_products = grad_scores * (1 - bounded * bounded)
        grad_query = xp.matmul(grad_products, key) * scale
        grad_key = xp.matmul(xp.matrix_transpose(grad_products), query) * scale
        return grad_query, grad_key, grad_value, grad_scores

    return xp.matmul(A, value), vjp


def multi_head_with_vjp(
    x: Annotated[Array, "... n d_model"],
    weights: MultiHeadWeights,
    mask: Mask | None = None,
    bias: Annotated[Array, "..."] | None = None,
    positions: AttentionPositions | None = None,
) -> tuple[Array, Callable[[Array], tuple[Any, ...]]]:
    """Return multi-head self-attention, and a function that pulls its gradient back to its inputs.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : MultiHeadWeights
    mask, bias
        As in `multi_head_attention`; `masking.causal` makes a causal mask.
    positions : AttentionPositions, optional
        Rotates queries and keys, as `Rotary` does.

    Returns
    -------
    output : array, shape (..., n, d_out)
    vjp : callable
        ``vjp(grad_output)`` is (grad_x, grad_weights, grad_bias); grad_bias is None if there is no
        bias.

    Examples
    --------
    >>> import numpy as np
    >>> weights = MultiHeadWeights.init(0, d_model=8, n_heads=4, n_kv_heads=2)
    >>> output, vjp = multi_head_with_vjp(np.ones((3, 5, 8)), weights)
    >>> grad_x, grad_weights, _ = vjp(output)
    >>> grad_weights.W_K.shape
    (8, 4)
    """
    h, h_kv = weights.n_heads, weights.n_kv_heads
    mask = array_for_heads(mask, x.shape[-2], x.shape[-2], x)
    positions = AttentionPositions() if positions is None else positions
    of_query = split_heads_of(project(x, weights.W_Q, weights.b_Q), h)  # (..., h, n, d_k)
    of_key = split_heads_of(project(x, weights.W_K, weights.b_K), h_kv)
    value = split_heads_of(project(x, weights.W_V, weights.b_V), h_kv)
    query = positions.turned(_normalized(of_query, weights.q_norm), 0)
    key = positions.turned(_normalized(of_key, weights.k_norm), 0)
    keys = Keys(*repeat_heads(key, value, h), _in_window(mask, x, weights.window), bias, False)
    keys = keys if weights.sinks is None else with_sinks(keys, weights.sinks)
    mixed, mix_vjp = attention_with_vjp(query, *keys[:4], weights.scale, weights.cap)
    joined = merge_heads_of(mixed)  # (..., n, h·d_v)
    open_, gate_vjp = _gate_with_vjp(x, joined, weights.W_gate)

    def vjp(grad_output):
        grads: dict[str, Any] = {}
        grad_open = grad_output
        if weights.W_O is not None:
            grad_open, W_O, b_O = linear_vjp(open_, weights.W_O, weights.b_O, grad_output)
            grads = {"W_O": W_O, "b_O": b_O}
        grad_joined, grad_x, grads["W_gate"] = gate_vjp(grad_open)
        grad_query, grad_key, grad_value, grad_scores = mix_vjp(split_heads_of(grad_joined, h))
        if weights.sinks is not None:  # they are the scores of the first key
            grads["sinks"] = sum_to_shape(grad_scores[..., 0], (h, 1))[:, 0]
            grad_key, grad_value = grad_key[..., 1:, :], grad_value[..., 1:, :]
            grad_scores = grad_scores[..., 1:]
        grad_query = positions.turned_back(grad_query, 0)
        grad_key = positions.turned_back(_summed_groups(grad_key, h_kv), 0)
        grad_query, grads["q_norm"] = _normalized_vjp(of_query, weights.q_norm, grad_query)
        grad_key, grads["k_norm"] = _normalized_vjp(of_key, weights.k_norm, grad_key)
        grad_value = _summed_groups(grad_value, h_kv)
        for letter, grad in (("Q", grad_query), ("K", grad_key), ("V", grad_value)):
            W, b = f"W_{letter}", f"b_{letter}"
            way = (getattr(weights, W), getattr(weights, b), merge_heads_of(grad))
            part, grads[W], grads[b] = linear_vjp(x, *way)
            grad_x = grad_x + part
        grad_bias = None if bias is None else sum_to_shape(grad_scores, tuple(bias.shape))
        return grad_x, replace(weights, **grads), grad_bias

    output = open_ if weights.W_O is None else project(open_, weights.W_O, weights.b_O)
    return output, vjp


def _normalized(x, norm):
    return x if norm is None else NORMALIZED[type(norm)](x, norm)


def _normalized_vjp(x, norm, grad_output):
    """Return the gradients of the rows of a head and of its norm, if there is one."""
    return (
        (grad_output, None)
        if norm is None
        else NORMALIZATION_VJPS[type(norm)](x, norm, grad_output)
    )


def _in_window(mask, x, window):
    """Return the mask of tokens `x` that see themselves and the `window` - 1 before them."""
    if window is None:
        return mask
    places = slice(0, x.shape[-2])
    near = causal_mask(x, places, places, 0) & ~causal_mask(x, places, places, -window)
    return near if mask is None else mask & near


def _gate_with_vjp(x, joined, W_gate):
    """Return the joined heads times σ(x W_gate), and what pulls a gradient back to all three."""
    if W_gate is None:
        return joined, lambda grad_output: (grad_output, 0.0, None)
    gate = 0.5 + 0.5 * array_namespace(x).tanh(0.5 * project(x, W_gate))

    def vjp(grad_output):
        grad_logits = grad_output * joined * gate * (1 - gate)
        grad_x, grad_W_gate, _ = linear_vjp(x, W_gate, None, grad_logits)
        return grad_output * gate, grad_x, grad_W_gate

    return joined * gate, vjp


def _summed_groups(grads, n_heads):
    """Return the gradients of `n_heads` shared heads: each is the sum over the heads of a group."""
    xp = array_namespace(grads)
    *leading, h, n, d = grads.shape
    return xp.sum(xp.reshape(grads, (*leading, n_heads, h // n_heads, n, d)), axis=-3)
