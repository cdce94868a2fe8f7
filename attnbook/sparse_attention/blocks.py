r"""Sparse attention in blocks: means of blocks say which blocks a query reads.

.. math:: o_i = g_i^c\, o_i^{\text{compressed}} + g_i^s\, o_i^{\text{selected}}
                + g_i^w\, o_i^{\text{window}}
"""

from typing import Annotated, Any

import array_api_compat

from attnbook.arrays.arguments import check_float, check_floats, check_int
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.attention_arguments import check_attention
from attnbook.kernels.naive import scores_of, softmax_of
from attnbook.sparse_attention.selection import selected_attention_of, top_keys_of


def pool_blocks(
    x: Annotated[Array, "... n d"], block: int, pooling: Annotated[Array, "b"] | None = None
) -> Annotated[Array, "... n_blocks d"]:
    r"""Compress each whole block of tokens into one: their mean, or a weighted sum.

    .. math:: \bar x_m = \sum_{t=0}^{b-1} p_t\, x_{mb + t}

    Parameters
    ----------
    x : array, shape (..., n, d), real floating dtype
        Keys or values.
    block : int
        The number b of tokens in a block, at least 1.
    pooling : array, shape (b,), of the dtype of `x`, optional
        p, such as learned weights for the positions inside a block; 1/b by default.

    Returns
    -------
    array, shape (..., ⌊n / b⌋, d)
        In the dtype of `x`. float16 and bfloat16 are computed in float32. Tokens after the last
        whole block are left out.

    Raises
    ------
    TypeError
        If `x` and `pooling` are not arrays of one library and one real floating dtype, or `block`
        is not an int.
    ValueError
        If `block` is below 1, `x` has fewer than two axes, or `pooling` has another shape.

    Notes
    -----
    Cost: O(n d) time.

    References
    ----------
    Yuan et al. (2025), "Native sparse attention", where a small network compresses each block.

    Examples
    --------
    >>> import numpy as np
    >>> pool_blocks(np.array([[1.0], [3.0], [5.0], [9.0], [7.0]]), 2)
    array([[2.],
           [7.]])
    """
    check_float("x", x)
    block = check_int("block", block, at_least=1)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., n, d), got {tuple(x.shape)}")
    if pooling is not None:
        check_floats(x=x, pooling=pooling)
        _check_pooling(pooling, block)
    wide = None if pooling is None else to_accumulate(pooling)
    pooled = pool_blocks_of(to_accumulate(x), block, wide)
    return array_namespace(x).astype(pooled, x.dtype, copy=False)


def pool_blocks_of(x: Array, block: int, pooling: Array | None) -> Array:
    xp = array_namespace(x)
    n_blocks, d = x.shape[-2] // block, x.shape[-1]
    blocks = xp.reshape(x[..., : n_blocks * block, :], (*x.shape[:-2], n_blocks, block, d))
    return xp.mean(blocks, axis=-2) if pooling is None else xp.matmul(pooling, blocks)


def _check_pooling(pooling: Array, block: int) -> None:
    if tuple(pooling.shape) != (block,):
        raise ValueError(f"pooling must have shape ({block},), got {tuple(pooling.shape)}")


def block_sparse_attention(
    query: Annotated[Array, "... h n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    gates: Annotated[Array, "... h n_q 3"],
    *,
    block: int,
    n_selected: int,
    window: int,
    pooling: Annotated[Array, "b"] | None = None,
    scale: float | None = None,
) -> Annotated[Array, "... h n_q d_v"]:
    r"""Add up attention over means of blocks, over the best blocks, and over a window.

    .. math:: o_i = g_i^c\, o_i^{\text{compressed}} + g_i^s\, o_i^{\text{selected}}
                    + g_i^w\, o_i^{\text{window}}

    It is causal: the **last** query is aligned with the last key, as in `attention`. The
    **compressed** branch attends to the mean keys and values of all blocks that end no later than
    the query. The **selected** branch attends to the tokens of those n_selected of these blocks
    whose compressed weights, added up over the h heads, are largest. The **window** branch attends
    to the newest keys, which include those of the block that is not yet whole.

    Parameters
    ----------
    query : array, shape (..., h, n_q, d_k), real floating dtype
        The h query heads of one KV head. They read the same blocks.
    key, value : arrays, shapes (..., n_k, d_k) and (..., n_k, d_v)
    gates : array, shape (..., h, n_q, 3)
        How much the compressed, the selected and the window branch count, usually sigmoids of a
        projection of the token.
    block : int
        Tokens in a block, at least 1.
    n_selected : int
        Blocks that a query reads, at least 0.
    window : int
        The newest keys that a query reads, at least 1, its own included.
    pooling : array, shape (block,), optional
        As in `pool_blocks`.
    scale : float, optional
        1/√d_k by default.

    Returns
    -------
    array, shape (..., h, n_q, d_v)
        In the dtype of `query`. float16 and bfloat16 are computed in float32. A branch in which a
        query sees nothing yet gives zeros.

    Raises
    ------
    TypeError
        If the arrays are not of one library and one real floating dtype, or a number is not an int.
    ValueError
        If shapes do not match, a number is too small, or there are more queries than keys.

    Notes
    -----
    A query reads n_k / block means and n_selected · block + window tokens.
    Cost: O(h n_q (n_k / block + n_selected · block + window) (d_k + d_v)) time.

    References
    ----------
    Yuan et al. (2025), "Native sparse attention: hardware-aligned and natively trainable sparse
    attention"; chapter `variants`.

    Examples
    --------
    >>> import numpy as np
    >>> query, key, value = np.zeros((1, 1, 2)), np.zeros((4, 2)), np.arange(4.0)[:, None]
    >>> for gates in np.eye(3):  # the branches one by one
    ...     options = {"block": 2, "n_selected": 1, "window": 1}
    ...     print(block_sparse_attention(query, key, value, gates[None, None], **options)[0, 0])
    [1.5]
    [0.5]
    [3.]
    """
    block = check_int("block", block, at_least=1)
    n_selected = check_int("n_selected", n_selected)
    window = check_int("window", window, at_least=1)
    arrays = {"query": query, "key": key, "value": value}
    check_floats(**arrays, gates=gates)
    if query.ndim < 3:
        raise ValueError(f"query must have shape (..., h, n_q, d_k), got {tuple(query.shape)}")
    one = {"query": query[..., 0, :, :]} if query.shape[-3] else {"query": query}
    scale = check_attention({**arrays, **one}, None, None, scale)
    n_q, n_k = query.shape[-2], key.shape[-2]
    if n_q > n_k:
        raise ValueError(f"query must have at most the {n_k} tokens of key, got {n_q}")
    if tuple(gates.shape[-3:]) != (query.shape[-3], n_q, 3):
        raise ValueError(
            f"gates must have shape (..., {query.shape[-3]}, {n_q}, 3) to match query, "
            f"got {tuple(gates.shape)}"
        )
    axes = [tuple(query.shape[:-3]), tuple(gates.shape[:-3])]
    axes += [tuple(x.shape[:-2]) for x in (key, value)]
    if broadcast_shapes(*axes) is None:
        raise ValueError(f"leading axes must broadcast, got {', '.join(map(str, axes))}")
    if pooling is not None:
        check_floats(query=query, pooling=pooling)
        _check_pooling(pooling, block)
        pooling = to_accumulate(pooling)
    wide = [to_accumulate(x) for x in (query, key, value, gates)]
    sizes = block, n_selected, window
    output = _block_sparse_of(wide[0], wide[1], wide[2], wide[3], sizes, pooling, scale)
    return array_namespace(query).astype(output, query.dtype, copy=False)


def _block_sparse_of(
    query: Array,
    key: Array,
    value: Array,
    gates: Array,
    sizes: tuple[int, int, int],
    pooling: Array | None,
    scale: float,
) -> Array:
    xp, (block, n_selected, window) = array_namespace(query), sizes
    place = {"device": array_api_compat.device(query)}
    n_q, n_k = query.shape[-2], key.shape[-2]
    own = xp.arange(n_k - n_q, n_k, **place)[:, None]  # of each query, (n_q, 1)
    rows = xp.permute_dims(query, (*range(query.ndim - 3), -2, -3, -1))  # (..., n_q, h, d_k)
    pooled_key, pooled_value = (pool_blocks_of(x, block, pooling) for x in (key, value))
    ends = xp.arange(1, pooled_key.shape[-2] + 1, **place) * block - 1
    keys, values = pooled_key[..., None, :, :], pooled_value[..., None, :, :]
    weights = softmax_of(scores_of(query, keys, ends <= own, None, scale), axis=-1)
    compressed = xp.matmul(weights, values)  # (..., h, n_q, d_v)
    read = tokens_of(blocks_of(weights, ends <= own, n_selected), block)
    near = own - xp.arange(window, **place)
    near = xp.where(near < 0, xp.full_like(near, -1), near)
    branches: list[Any] = [compressed]
    for selected in (read, near):
        output = selected_attention_of(rows, key, value, selected, scale)
        branches.append(xp.permute_dims(output, (*range(output.ndim - 3), -2, -3, -1)))
    weighted: list[Any] = [gates[..., i : i + 1] * x for i, x in enumerate(branches)]
    return weighted[0] + weighted[1] + weighted[2]


def blocks_of(weights: Array, visible: Array, n_selected: int) -> Array:
    """Return the blocks (..., n_q, n_selected) of largest weight, summed over heads; −1 if none."""
    xp = array_namespace(weights)
    total = xp.sum(weights, axis=-3)  # (..., n_q, n_blocks)
    return top_keys_of(xp.where(visible, total, xp.full_like(total, -xp.inf)), n_selected)


def tokens_of(blocks: Array, block: int) -> Array:
    """Return the tokens (..., n_q, n_selected · block) of the blocks of each query."""
    xp = array_namespace(blocks)
    inside = xp.arange(block, device=array_api_compat.device(blocks))
    tokens = blocks[..., None] * block + inside
    tokens = xp.where(blocks[..., None] < 0, xp.full_like(tokens, -1), tokens)
    return xp.reshape(tokens, (*blocks.shape[:-1], blocks.shape[-1] * block))
