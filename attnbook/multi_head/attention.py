r"""Multi-head attention: several heads side by side, each over its own projection of the inputs.

.. math:: \text{MultiHead}(X, Y, Z) = \bigl[\,A_1 Z W_V^{(1)} \;\big|\; \dots \;\big|\;
          A_h Z W_V^{(h)}\,\bigr]\, W_O
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from attnbook import kernels
from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import Array, Mask, array_namespace, to_accumulate
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.projections import check_inputs, project
from attnbook.arrays.weights import check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.multi_head.heads import merge_heads_of, repeat_heads, split_heads_of
from attnbook.multi_head.masks import check_head_bias, check_head_mask, visible_to_heads
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.multi_head.windows import Keys, in_window, with_sinks
from attnbook.normalization.normalization import NORMALIZED

KeysAndValues = tuple[Array, Array]
"""Keys (..., h_kv, n_k, d_k) and values (..., h_kv, n_k, d_v) of every head."""

Turn = Callable[[Array], Array]
"""What rotates queries and keys to their positions."""

# The mathematics, of checked arrays.


def keys_and_values(
    key: Array, value: Array, weights: MultiHeadWeights, turn: Turn | None = None
) -> KeysAndValues:
    """Project and split what is attended to; `turn` rotates the keys to their positions."""
    k = split_heads_of(project(key, weights.W_K, weights.b_K), weights.n_kv_heads)
    if weights.k_norm is not None:
        k = NORMALIZED[type(weights.k_norm)](k, weights.k_norm)
    v = split_heads_of(project(value, weights.W_V, weights.b_V), weights.n_kv_heads)
    return (k if turn is None else turn(k)), v  # (..., h_kv, n_k, d_k), (..., h_kv, n_k, d_v)


def attend(
    query: Array,
    heads: KeysAndValues,
    weights: MultiHeadWeights,
    mask: Mask | None,
    *,
    turn: Turn | None = None,
    bias: Array | None = None,
    impl: Impl = REFERENCE,
    is_causal: bool = False,
) -> Array:
    """Project and split the queries, attend with every head, join, and project back.

    `heads` are keys and values, (..., h_kv, n_k, d_k) and (..., h_kv, n_k, d_v); `turn` rotates the
    queries to their positions.
    """
    h = weights.n_heads
    q = split_heads_of(project(query, weights.W_Q, weights.b_Q), h)  # (..., h, n_q, d_k)
    if weights.q_norm is not None:
        q = NORMALIZED[type(weights.q_norm)](q, weights.q_norm)
    q = q if turn is None else turn(q)
    scale = 1 / math.sqrt(q.shape[-1]) if weights.scale is None else weights.scale
    seen: Any = mask
    if mask is not None:
        seen, is_causal = visible_to_heads(mask, q.shape[-2], heads[0].shape[-2], is_causal)
    keys = Keys(*heads, seen, bias, is_causal)
    if weights.window is not None:
        as_ranges = impl in kernels.READ_RANGES
        keys = in_window(keys, q.shape[-2], weights.window, as_ranges=as_ranges)
    if weights.sinks is not None:
        keys = with_sinks(keys, weights.sinks)
    k, v, seen, bias, is_causal = keys
    if weights.n_kv_heads < h and impl != REFERENCE and not callable(impl):
        mixed = _in_groups(impl, q, k, v, seen, bias, scale, is_causal, weights.cap)
    else:
        k, v = repeat_heads(k, v, h) if weights.n_kv_heads < h else (k, v)
        mixed = kernels.attention(impl, q, k, v, seen, bias, scale, is_causal, weights.cap)
    joined = merge_heads_of(mixed)  # (..., n_q, h·d_v)
    if joined.dtype != query.dtype:  # under torch.autocast
        joined = array_namespace(query).astype(joined, query.dtype)
    if weights.W_gate is not None:
        joined = gated(joined, project(query, weights.W_gate))
    return joined if weights.W_O is None else project(joined, weights.W_O, weights.b_O)


def gated(joined: Array, logits: Array) -> Array:
    """Multiply the joined heads by σ of the logits; tanh cannot overflow."""
    xp = array_namespace(joined)
    gate = 0.5 + 0.5 * xp.tanh(0.5 * to_accumulate(logits))
    return xp.astype(to_accumulate(joined) * gate, joined.dtype, copy=False)


def _in_groups(
    impl: Impl,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    cap: float | None,
) -> Array:
    """Attend so that a kernel reads a key head once for all of its queries."""
    xp = array_namespace(q)
    *leading, h, n_q, d_k = q.shape
    groups = (k.shape[-3], h // k.shape[-3])
    q = xp.reshape(q, (*leading, *groups, n_q, d_k))
    k, v = (xp.expand_dims(x, axis=-3) for x in (k, v))  # (..., h_kv, 1, n_k, d)
    mask, bias = (_grouped(x, groups) for x in (mask, bias))
    mixed = kernels.attention(impl, q, k, v, mask, bias, scale, is_causal, cap)
    *leading, _, _, _, d_v = mixed.shape
    return xp.reshape(mixed, (*leading, h, n_q, d_v))


def _grouped(x: Any, groups: tuple[int, int]) -> Any:
    """Return a mask or a bias with the axes of `groups` (h_kv, h/h_kv) for that of the heads."""
    if x is None or x.ndim < 3:
        return x
    if isinstance(x, Intervals):  # all heads share them
        return x.made("groups", lambda: x.with_axes(1))
    *before, heads, n_q, n_k = x.shape
    own = groups if heads == math.prod(groups) else (1, 1)
    return array_namespace(x).reshape(x, (*before, *own, n_q, n_k))


# The functions, which check what they are given.


def multi_head_attention(
    query: Annotated[Array, "... n_q d_query"],
    key: Annotated[Array, "... n_k d_key"],
    value: Annotated[Array, "... n_k d_value"],
    weights: MultiHeadWeights,
    mask: Mask | None = None,
    *,
    bias: Annotated[Array, "..."] | None = None,
    is_causal: bool = False,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n_q d_out"]:
    r"""Apply all heads: project, split, attend, concatenate, and project back if there is a W_O.

    .. math:: \bigl[\,\operatorname{head}_1 \mid \dots \mid \operatorname{head}_h\,\bigr]\, W_O,
        \qquad \operatorname{head}_i
        = \operatorname{Attention}(XW_Q^{(i)},\, YW_K^{(i)},\, ZW_V^{(i)})

    Parameters
    ----------
    query : array X, shape (..., n_q, d_query)
    key : array Y, shape (..., n_k, d_key)
    value : array Z, shape (..., n_k, d_value)
        For self-attention, pass one array three times.
    weights : MultiHeadWeights
    mask : boolean array that broadcasts to (..., h, n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.** A mask with 2 axes applies to all heads and sequences. If each
        sequence of a batch has a mask of its own, the mask needs an axis for the heads,
        (batch, 1, n_q, n_k); a padding mask has shape (batch, 1, 1, n_k). If there are as many
        sequences as queries, a mask (batch, n_k) cannot be distinguished from a mask (n_q, n_k),
        so it is read as the latter.
    bias : array that broadcasts to (..., h, n_q, n_k), optional
        Finite numbers that are added to the scaled scores, in the dtype of `query`; for example
        `positions.alibi`. Its axes are read like those of a mask.
    is_causal : bool
        Also hide every key that comes later than its query, as in `attention`.
    impl : str or callable
        The implementation, as in `attention`; the projections are the same for all of them.

    Returns
    -------
    array, shape (..., n_q, d_out), or (..., n_q, h·d_v) without W_O
        ``impl=kernels.Recorder()`` keeps the attention weights of every head, (..., h, n_q, n_k).

    Raises
    ------
    TypeError
        As in `attention`.
    ValueError
        As in `attention`; also if the width of an input is not the number of rows of its matrix,
        or if the leading axes or the mask do not broadcast. A mask with 3 axes that could be one
        per head as well as one per sequence is refused, so insert an axis of length 1 to say
        which it is.

    Notes
    -----
    The weights may also hold what only some models have: normalised queries and keys, a window, a
    cap of the scores, sinks and a gate; see `MultiHeadWeights`. Every implementation has all of
    them but for the cap, which the reference and functions have: a function gets it as ``cap=``. A
    kernel gets the sink of a head as one more key in front of the others, and so does a function.
    The kernels compute no gradient with respect to sinks, because they compute none for a bias.
    A fully masked query gets zeros from every head, so its output is the row b_O, or zeros. The
    scores of each head are divided by √d_k, where d_k is the width of the *head*, unless `weights`
    has a scale of its own.
    In half precision, the projections are rounded to that precision, but the intermediate results
    of attention are not; under ``torch.autocast``, PyTorch decides instead. A NaN in a hidden token
    reaches every query because 0 · NaN is NaN.
    If n_kv_heads is below n_heads, keys and values are projected once per group. The reference and
    a function of your own then receive them repeated, so although the cache of a decoder shrinks,
    the memory of this function does not. The other rungs read the keys of a group in place.
    Cost: O(n d_model h d_k + h n_q n_k (d_k + d_v)) time, O(h n_q n_k) memory; from
    ``impl="tiled"`` on, O(h (n_q + n_k) (d_k + d_v)) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.2.2; Shazeer (2019), "Fast
    Transformer decoding"; Ainslie et al. (2023), "GQA"; chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = MultiHeadWeights.init(0, d_model=8, n_heads=2)
    >>> x = np.ones((3, 5, 8))
    >>> multi_head_attention(x, x, x, weights).shape
    (3, 5, 8)
    """
    check_impl(impl)
    check_part("weights", weights, MultiHeadWeights)
    check_bool("is_causal", is_causal)
    inputs = {"query": query, "key": key, "value": value}
    check_inputs(inputs, {"query": weights.W_Q, "key": weights.W_K, "value": weights.W_V})
    if mask is not None or bias is not None:
        scores = ("query", query, query.shape[:-1], key.shape[:-1], [weights])
        check_head_mask("mask", mask, *scores)
        check_head_bias("bias", bias, *scores)
    heads = keys_and_values(key, value, weights)
    return attend(query, heads, weights, mask, bias=bias, impl=impl, is_causal=is_causal)
