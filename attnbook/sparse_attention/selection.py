"""Select the keys of largest score, and attend exactly to those that were selected."""

from typing import Annotated, Any

import array_api_compat

from attnbook.arrays.arguments import check_array, check_bool, check_float, check_int
from attnbook.arrays.arguments import check_same_home as check_home
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.attention_arguments import (
    array_of,
    causal_mask,
    check_attention,
    check_mask,
)
from attnbook.kernels.naive import softmax_of


def top_keys(
    scores: Annotated[Array, "... n_q n_k"],
    k: int,
    mask: Mask | None = None,
    *,
    is_causal: bool = False,
) -> Annotated[Array, "... n_q n_top"]:
    """Return for each query the k keys of largest score among those that it may see.

    Parameters
    ----------
    scores : array, shape (..., n_q, n_k), real floating dtype
        Scores of any kind, such as those of `indexer_scores`. A key with a score of −∞ is never
        selected.
    k : int
        The number of keys to select for each query, at least 0.
    mask : boolean array that broadcasts to (..., n_q, n_k), or a `masking.Rule`, optional
        **True = may attend.**
    is_causal : bool
        Also hide every key that comes later than its query. The **last** query is aligned with the
        last key, as in `attention`.

    Returns
    -------
    int64 array, shape (..., n_q, min(k, n_k))
        The numbers of the selected keys, best first, of equal scores the earlier key first; −1 in
        the last places of a query that sees fewer keys. Pass it to `selected_attention`.

    Raises
    ------
    TypeError
        If `scores` is not an array of real floating dtype, the mask is not boolean, or the other
        arguments have the wrong type.
    ValueError
        If `k` is negative, `scores` has fewer than two axes, or the mask does not broadcast.

    Notes
    -----
    The scores must not be NaN.
    Cost: O(n_q n_k log n_k) time, since the standard has no partial sort, and O(n_q n_k) memory.

    Examples
    --------
    >>> import numpy as np
    >>> top_keys(np.array([[3.0, 1.0, 9.0], [3.0, 1.0, 9.0]]), 2, is_causal=True)
    array([[0, 1],
           [2, 0]])
    """
    check_float("scores", scores)
    k = check_int("k", k)
    check_bool("is_causal", is_causal)
    if scores.ndim < 2:
        raise ValueError(f"scores must have shape (..., n_q, n_k), got {tuple(scores.shape)}")
    if mask is not None:
        check_mask(mask, scores, tuple(scores.shape), query_name="scores")
        mask = array_of(mask, scores.shape[-2], scores.shape[-1], scores)
    wide = to_accumulate(scores)
    xp = array_namespace(wide)
    if is_causal:
        n_q, n_k = wide.shape[-2:]
        causal = causal_mask(wide, slice(0, n_q), slice(0, n_k), n_k - n_q)
        mask = causal if mask is None else mask & causal
    if mask is not None:
        wide = xp.where(mask, wide, xp.full_like(wide, -xp.inf))
    return top_keys_of(wide, k)


def top_keys_of(scores: Array, k: int) -> Array:
    xp = array_namespace(scores)
    order = xp.argsort(-scores, axis=-1, stable=True)[..., : min(k, scores.shape[-1])]
    order = xp.astype(order, xp.int64, copy=False)
    best = xp.take_along_axis(scores, order, axis=-1)
    return xp.where(best == -xp.inf, xp.full_like(order, -1), order)


def selected_attention(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    selected: Annotated[Array, "... n_q n_top"],
    *,
    scale: float | None = None,
) -> Annotated[Array, "... n_q d_v"]:
    r"""Return exact attention of each query over the keys that were selected for it.

    .. math:: o_i = \sum_{j \in S_i} \frac{e^{\beta q_i \cdot k_j}}
                    {\sum_{l \in S_i} e^{\beta q_i \cdot k_l}}\, v_j, \qquad \beta = 1/\sqrt{d_k}

    Parameters
    ----------
    query, key, value : arrays, shapes (..., n_q, d_k), (..., n_k, d_k) and (..., n_k, d_v)
        As in `attention`. Leading axes broadcast.
    selected : integer array, shape (..., n_q, n_top)
        The numbers of the keys that each query reads; −1 reads none. A key that is listed twice
        counts twice. `top_keys` returns such an array.
    scale : float, optional
        β above, finite and at least 0; 1/√d_k by default.

    Returns
    -------
    array, shape (..., n_q, d_v)
        In the dtype of `query`. float16 and bfloat16 are computed in float32. A query that reads
        no keys gets zeros.

    Raises
    ------
    TypeError
        As in `attention`, and if `selected` is not an array of integers.
    ValueError
        As in `attention`; if `selected` has another number of queries, or a number below −1 or
        above n_k − 1.

    Notes
    -----
    With all visible keys selected it is `attention`. Gradients flow to the keys and values that
    were read, but not through the selection.
    Cost: O(n_q n_top (d_k + d_v)) time and memory, because each query gathers its own keys and
    values.

    See Also
    --------
    attnbook.attention : with a mask, which reads all keys.

    References
    ----------
    DeepSeek-AI (2025), "DeepSeek-V3.2-Exp"; chapter `variants`.

    Examples
    --------
    >>> import numpy as np
    >>> query, key = np.zeros((2, 1)), np.zeros((3, 1))
    >>> value = np.array([[1.0], [2.0], [6.0]])
    >>> selected_attention(query, key, value, np.array([[0, -1], [1, 2]]))
    array([[1.],
           [4.]])
    """
    scale = check_attention({"query": query, "key": key, "value": value}, None, None, scale)
    _check_selected(selected, query, key)
    leading = tuple(x.shape[:-2] for x in (query, key, value, selected))
    if broadcast_shapes(*map(tuple, leading)) is None:
        listed = ", ".join(str(tuple(axes)) for axes in leading)
        raise ValueError(f"leading axes must broadcast, got {listed}")
    one_head, keys, values = to_accumulate(query)[..., None, :], *map(to_accumulate, (key, value))
    output = selected_attention_of(one_head, keys, values, selected, scale)[..., 0, :]
    return array_namespace(query).astype(output, query.dtype, copy=False)


def _check_selected(selected: Array, query: Array, key: Array) -> None:
    """Raise unless `selected` names keys for each query."""
    check_array("selected", selected)
    check_home("selected", selected, "query", query)
    xp, n_q, n_k = array_namespace(selected), query.shape[-2], key.shape[-2]
    if not xp.isdtype(selected.dtype, "integral"):
        raise TypeError(f"selected must have an integer dtype, got {selected.dtype}")
    if selected.ndim < 2 or selected.shape[-2] != n_q:
        raise ValueError(
            f"selected must have shape (..., {n_q}, n_top) to match query, "
            f"got {tuple(selected.shape)}"
        )
    if array_api_compat.size(selected) == 0:
        return
    low, high = int(xp.min(selected)), int(xp.max(selected))
    if low < -1 or high >= n_k:
        got = low if low < -1 else high
        raise ValueError(f"selected must be numbers of {n_k} keys, or -1 for none, got {got}")


def selected_attention_of(
    query: Array, key: Array, value: Array, selected: Array, scale: float
) -> Array:
    """Return the outputs (..., n_q, h, d_v) of h heads (..., n_q, h, d_k) that read alike."""
    xp = array_namespace(query)
    keys, values = gathered(key, selected), gathered(value, selected)  # (..., n_q, n_top, d)
    scores = xp.matmul(query * scale, xp.matrix_transpose(keys))  # (..., n_q, h, n_top)
    none = (selected < 0)[..., None, :]
    scores = xp.where(none, xp.full_like(scores, -xp.inf), scores)
    return xp.matmul(softmax_of(scores, axis=-1), values)


def gathered(x: Array, selected: Array) -> Array:
    """Return the rows (..., n_q, n_top, d) of x (..., n, d); −1 gives some row, or zeros."""
    xp: Any = array_namespace(x)
    *_, n_q, n_top = selected.shape
    n, d = x.shape[-2:]
    leading = broadcast_shapes(tuple(x.shape[:-2]), tuple(selected.shape[:-2])) or ()
    if n == 0:
        where = {"dtype": x.dtype, "device": array_api_compat.device(x)}
        return xp.zeros((*leading, n_q, n_top, d), **where)
    rows = xp.where(selected < 0, xp.zeros_like(selected), selected)
    rows = xp.reshape(xp.astype(rows, xp.int64, copy=False), (*selected.shape[:-2], n_q * n_top, 1))
    rows = xp.broadcast_to(rows, (*leading, n_q * n_top, d))
    found = xp.take_along_axis(xp.broadcast_to(x, (*leading, n, d)), rows, axis=-2)
    return xp.reshape(found, (*leading, n_q, n_top, d))
