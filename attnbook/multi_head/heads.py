r"""Multi-head attention: several heads side by side, each over its own projection of the inputs.

.. math:: \text{MultiHead}(X, Y, Z) = \bigl[\,A_1 Z W_V^{(1)} \;\big|\; \dots \;\big|\;
          A_h Z W_V^{(h)}\,\bigr]\, W_O
"""

import math
from typing import Annotated, Any

import array_api_compat

from attnbook import kernels
from attnbook.arrays.arguments import (
    Array,
    accumulation_dtype,
    and_causal,
    array_namespace,
    broadcast_shapes,
    check_array,
    check_boolean,
    check_int,
    check_mask,
)
from attnbook.arrays.projections import check_inputs, project
from attnbook.kernels import REFERENCE, check_impl
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.single_head.attention import weights_of


def split_heads(
    x: Annotated[Array, "... n d_model"], n_heads: int
) -> Annotated[Array, "... h n d"]:
    """Cut every row of `x` into `n_heads` pieces, one a head: (..., n, h·d) to (..., h, n, d).

    Head i gets the columns i·d to (i + 1)·d - 1 of every row.

    Parameters
    ----------
    x : array, shape (..., n, d_model), of any dtype
    n_heads : int
        Number of heads h, at least 1; it must divide d_model.

    Returns
    -------
    array, shape (..., h, n, d_model / h)

    Raises
    ------
    TypeError
        If `x` is not an array or `n_heads` is not an int.
    ValueError
        If `x` has fewer than 2 axes, or `n_heads` is below 1 or does not divide d_model.

    Notes
    -----
    A bare reshape to (..., h, n, d) has the right shape and the wrong numbers: it cuts the rows
    of the sequence into groups, not each row into heads (claim 10).
    Cost: a view where the library can, else a copy of `x`.

    References
    ----------
    Chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> split_heads(np.arange(8).reshape(2, 4), 2)
    array([[[0, 1],
            [4, 5]],
    <BLANKLINE>
           [[2, 3],
            [6, 7]]])
    """
    check_array("x", x)
    n_heads = check_int("n_heads", n_heads, at_least=1)
    if x.ndim < 2 or x.shape[-1] % n_heads:
        raise ValueError(
            f"x must have shape (..., n, d_model) with d_model divisible by n_heads = {n_heads}, "
            f"got {tuple(x.shape)}"
        )
    return split_heads_of(x, n_heads)


def merge_heads(x: Annotated[Array, "... h n d"]) -> Annotated[Array, "... n d_model"]:
    """Put the heads side by side again: (..., h, n, d) to (..., n, h·d).

    Parameters
    ----------
    x : array, shape (..., h, n, d), of any dtype

    Returns
    -------
    array, shape (..., n, h·d)
        Row i holds row i of head 0, then of head 1, and so on: the inverse of `split_heads`.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If `x` has fewer than 3 axes.

    Notes
    -----
    Cost: a copy of `x`.

    References
    ----------
    Chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8).reshape(2, 4)
    >>> merge_heads(split_heads(x, 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    check_array("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have shape (..., h, n, d), got {tuple(x.shape)}")
    return merge_heads_of(x)


def multi_head_attention(
    query: Annotated[Array, "... n_q d_query"],
    key: Annotated[Array, "... n_k d_key"],
    value: Annotated[Array, "... n_k d_value"],
    weights: MultiHeadWeights,
    mask: Annotated[Array, "..."] | None = None,
    *,
    is_causal: bool = False,
    impl: str = REFERENCE,
    return_weights: bool = False,
) -> Any:
    r"""Apply all heads at once: project, split, attend, join, and project back if there is a W_O.

    .. math:: \bigl[\,\operatorname{head}_1 \mid \dots \mid \operatorname{head}_h\,\bigr]\, W_O,
        \qquad \operatorname{head}_i
        = \operatorname{Attention}(XW_Q^{(i)},\, YW_K^{(i)},\, ZW_V^{(i)})

    Parameters
    ----------
    query : array X, shape (..., n_q, d_query)
    key : array Y, shape (..., n_k, d_key)
    value : array Z, shape (..., n_k, d_value)
        Self-attention passes one array three times.
    weights : MultiHeadWeights
    mask : boolean array that broadcasts to (..., h, n_q, n_k), optional
        **True = may attend.** A mask of 2 axes holds for all heads and sequences; one for each
        sequence of a batch needs an axis for the heads, (batch, 1, n_q, n_k), and one that hides
        padding is (batch, 1, 1, n_k). With as many sequences as queries a mask (batch, n_k) cannot
        be told from one of (n_q, n_k), and is taken for that.
    is_causal : bool
        Also hide every key that comes later than its query, as in `attention`.
    impl : str
        Who attends, as in `attention`; the projections are the same for all.
    return_weights : bool
        Also return the attention weights of every head, which the reference alone keeps.

    Returns
    -------
    array, shape (..., n_q, d_out), or (..., n_q, h·d_v) without W_O
        And with `return_weights` a pair of it and the weights (..., h, n_q, n_k).

    Raises
    ------
    TypeError
        As in `attention`.
    ValueError
        If an input is not as wide as its matrix is high, or leading axes or the mask do not
        broadcast. A mask of 3 axes that fits as one for each head and as one for each sequence is
        refused: say which by an axis of length 1. Also as in `attention`, and if weights are
        wanted of another `impl` than the reference.

    Notes
    -----
    A query that may see no key gets zeros from every head, and so the row b_O, or zeros, as its
    output. The scores of each head are divided by √d_k, the width of the *head*.
    In half precision the projections are rounded to that precision, the attention is not; under
    ``torch.autocast`` PyTorch decides instead. A NaN in a hidden token reaches every query, since
    0 · NaN is NaN.
    With n_kv_heads below n_heads the keys and values are projected once for each group. The
    reference then repeats them: the cache of a decoder shrinks, this function's own memory does
    not. The others read each group's keys where they are.
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
    >>> output, shares = multi_head_attention(x, x, x, weights, return_weights=True)
    >>> output.shape, shares.shape
    ((3, 5, 8), (3, 2, 5, 5))
    """
    if not isinstance(weights, MultiHeadWeights):
        raise TypeError(f"weights must be MultiHeadWeights, got {type(weights).__name__}")
    check_impl(impl, return_weights)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be a bool, got {type(is_causal).__name__}")
    inputs = {"query": query, "key": key, "value": value}
    check_inputs(inputs, {"query": weights.W_Q, "key": weights.W_K, "value": weights.W_V})
    if mask is not None:
        leading = broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2])) or ()
        shape = (*leading, weights.n_heads, query.shape[-2], key.shape[-2])
        check_head_mask(mask, shape)
        check_mask(mask, query, shape)
    output, shares = multi_head_attention_of(query, key, value, weights, mask, None, impl, is_causal)
    return (output, shares) if return_weights else output


def check_head_mask(mask, shape, name="mask"):
    """Raise if `mask` looks made for a batch and lacks the axes of length 1 that say so."""
    check_boolean(mask, name)
    *leading, n_heads, n_q, n_k = shape
    got, batch = tuple(mask.shape), leading[-1] if leading else None
    if got == (batch, n_k) and batch not in (1, n_q):
        raise ValueError(
            f"{name} must broadcast to (..., h, n_q, n_k) = {shape}, got {got}; "
            f"one row of keys a sequence is {name}[:, None, None]"
        )
    if mask.ndim < 3 or got[-3] == 1:
        return
    fits_sequences = mask.ndim == 3 and got[0] == batch
    if got[-3] != n_heads:
        hint = f"; one mask a sequence is {name}[:, None]" if fits_sequences else ""
        entries = "1 entry" if n_heads == 1 else f"1 or {n_heads} entries"
        raise ValueError(
            f"{name} must have {entries} on the axis of the heads, the third from the right, "
            f"got shape {got}{hint}"
        )
    if fits_sequences:
        raise ValueError(
            f"{name} must say what its first axis is, since there are {n_heads} heads and "
            f"{n_heads} sequences: {name}[None] has one mask a head, {name}[:, None] one a "
            f"sequence; got shape {got}"
        )


# The mathematics. These may rely on checked arrays.


def split_heads_of(x, n_heads):
    xp = array_namespace(x)
    *leading, n, d_model = x.shape
    cut = xp.reshape(x, (*leading, n, n_heads, d_model // n_heads))
    # tuples, since PyTorch's vmap knows no moveaxis of single axes
    return xp.moveaxis(cut, (-2,), (-3,))  # (..., h, n, d)


def merge_heads_of(x):
    xp = array_namespace(x)
    *leading, h, n, d = x.shape
    return xp.reshape(xp.moveaxis(x, (-3,), (-2,)), (*leading, n, h * d))


def repeat_heads(x, n_heads):
    """Give head i of `n_heads` the key or value head of its group."""
    if x.shape[-3] == n_heads:
        return x
    xp = array_namespace(x)
    group = n_heads // x.shape[-3]
    mine = xp.arange(n_heads, device=array_api_compat.device(x)) // group  # 0 0 1 1 …
    return xp.take(x, mine, axis=-3)  # repeat would do, but is another function in PyTorch


def multi_head_attention_of(
    query, key, value, weights, mask, turn=None, impl=REFERENCE, is_causal=False
):
    heads = keys_and_values(key, value, weights, turn)
    return attend(query, heads, weights, mask, turn, impl, is_causal)


def keys_and_values(key, value, weights, turn=None):
    """Project and split what is attended to; `turn` rotates the keys by their positions."""
    k = split_heads_of(project(key, weights.W_K, weights.b_K), weights.n_kv_heads)
    v = split_heads_of(project(value, weights.W_V, weights.b_V), weights.n_kv_heads)
    return (k if turn is None else turn(k)), v  # (..., h_kv, n_k, d_k), (..., h_kv, n_k, d_v)


def attend(query, heads, weights, mask, turn=None, impl=REFERENCE, is_causal=False):
    """Project and split the queries, attend with every head, join, and project back.

    `heads` are keys and values, (..., h_kv, n_k, d_k) and (..., h_kv, n_k, d_v). Also returns the
    weights of every head, or None where `impl` keeps none.
    """
    xp = array_namespace(query)
    q = split_heads_of(project(query, weights.W_Q, weights.b_Q), weights.n_heads)
    q = q if turn is None else turn(q)  # (..., h, n_q, d_k)
    k, v = heads
    if impl == REFERENCE:
        mixed, A = _mixed(q, k, v, mask, is_causal)
        A = xp.astype(A, query.dtype, copy=False)
    else:
        mixed, A = _mixed_by(impl, q, k, v, mask, is_causal), None
    output = xp.astype(merge_heads_of(mixed), query.dtype, copy=False)  # (..., n_q, h·d_v)
    if weights.W_O is not None:
        output = project(output, weights.W_O, weights.b_O)
    return output, A


def _mixed(q, k, v, mask, is_causal):
    """Return the mixed values of every head, (..., h, n_q, d_v), and its weights."""
    xp = array_namespace(q)
    wide, n_heads = accumulation_dtype(xp, q.dtype), q.shape[-3]
    q, k, v = (xp.astype(repeat_heads(x, n_heads), wide, copy=False) for x in (q, k, v))
    mask = and_causal(mask, q, k) if is_causal else mask
    A = weights_of(q, k, mask, None, 1 / math.sqrt(q.shape[-1]))  # (..., h, n_q, n_k)
    return xp.matmul(A, v), A


def _mixed_by(impl, q, k, v, mask, is_causal):
    """Return the same of a kernel, which reads each key head once for its group of queries."""
    xp = array_namespace(q)
    *leading, h, n_q, d_k = q.shape
    h_kv, scale = k.shape[-3], 1 / math.sqrt(d_k)
    if h_kv == h:
        return kernels.attention(impl, q, k, v, mask, None, scale, is_causal)
    groups = (h_kv, h // h_kv)
    q = xp.reshape(q, (*leading, *groups, n_q, d_k))
    k, v = (xp.expand_dims(x, axis=-3) for x in (k, v))  # (..., h_kv, 1, n_k, d)
    if mask is not None and mask.ndim > 2:
        *before, heads, rows, columns = mask.shape
        mask = xp.reshape(mask, (*before, *(groups if heads == h else (1, 1)), rows, columns))
    mixed = kernels.attention(impl, q, k, v, mask, None, scale, is_causal)
    *leading, _, _, _, d_v = mixed.shape
    return xp.reshape(mixed, (*leading, h, n_q, d_v))
