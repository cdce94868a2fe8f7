"""Attention to keys and values in pages, which a block table lists for every sequence."""

import math
from typing import Annotated

from array_api_compat import device as array_device

from attnbook.arrays.arguments import check_floats, check_ids, check_number, check_same_home
from attnbook.arrays.array import Array, array_namespace, dtype_name
from attnbook.kernels import REFERENCE, Impl, check_impl, name_of
from attnbook.kernels.paging import PAGED
from attnbook.kernels.paging import paged_attention as computed


def paged_attention(
    query: Annotated[Array, "b h n_q d_k"],
    key_pages: Annotated[Array, "pages h_kv size d_k"],
    value_pages: Annotated[Array, "pages h_kv size d_v"],
    block_table: Annotated[Array, "b most"],
    lengths: Annotated[Array, "b"],
    *,
    scale: float | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "b h n_q d_v"]:
    r"""Return the attention of each sequence to its keys and values, which lie in pages.

    .. math::
        O_i = \operatorname{softmax}(\beta\,Q_i K_i^\top)\,V_i, \qquad
        (K_i)_j = \text{keys}\bigl[\,T_{i, \lfloor j/s \rfloor},\; j \bmod s\,\bigr], \quad j < n_i

    Sequence i has n_i keys. Row i of the block table T lists its pages of s keys in order.

    Parameters
    ----------
    query : array, shape (b, h, n_q, d_k), real floating dtype
        The last n_q tokens of each of b sequences, such as one: query r of sequence i sees key j if
        j ≤ n_i − n_q + r, as under ``is_causal`` in `attention`.
    key_pages : array, shape (pages, h_kv, size, d_k)
        The keys of all sequences. h must be a multiple of h_kv, and the query heads of a group,
        h / h_kv in a row, share a KV head. All rows that a head has in a page stand together in
        memory, so that a kernel reads them in one stretch.
    value_pages : array, shape (pages, h_kv, size, d_v)
    block_table : integer array, shape (b, most)
        The pages of each sequence. Several sequences may list the same page. Entries after the last
        page of a sequence are not read.
    lengths : integer array, shape (b,)
        n_i, from 0 to most · size.
    scale : float, optional
        β, finite and at least 0; 1/√d_k by default.
    impl : str
        ``"reference"``, which gathers the pages first, or a rung that reads the block table:
        ``"packed"`` or ``"triton"``.

    Returns
    -------
    array, shape (b, h, n_q, d_v)
        Has the library, device and dtype of `query`. A query that sees no key gets zeros.

    Raises
    ------
    TypeError
        If the arrays are not of one library and one real floating dtype, the table or the lengths
        are not integers, or `impl` does not take these arrays.
    ValueError
        If shapes do not match, arrays are on different devices, a length or a page is out of range,
        the scale is negative or not finite, `impl` reads no block table, or an array requires a
        gradient, for which only the reference has a backward pass.
    ImportError
        If `impl` needs a package that is not installed.

    Notes
    -----
    What stands in a page after the last key of a sequence is never used, even if it is NaN.
    ``"packed"`` computes in float32 and copies the listed pages of half precision, and it copies
    all pages where they are not C-contiguous. It is for few queries: where a sequence has more than
    about 16, `attention` to gathered keys is faster. With it, a
    sequence has the same bits in a batch of any size.
    Cost: O(h n_q (d_k + d_v) Σ n_i) time. A rung reads every key once for all heads of its group,
    except that a page shared by several sequences is read by each of them. It splits the keys and
    merges the parts by their logsumexp. Memory: the reference makes arrays of b · most · size keys
    and values; a rung keeps a few numbers per 1,024 keys.

    References
    ----------
    Kwon et al. (2023), "Efficient memory management for large language model serving with
    PagedAttention"; chapter `fast_attention`.

    Examples
    --------
    Two sequences of 3 and 2 keys share page 1:

    >>> import numpy as np
    >>> keys, values = np.zeros((4, 1, 2, 5)), np.arange(8.0).reshape(4, 1, 2, 1)
    >>> table, lengths = np.array([[1, 3], [1, -1]]), np.array([3, 2])
    >>> paged_attention(np.ones((2, 1, 1, 5)), keys, values, table, lengths).round(2).reshape(2)
    array([3.67, 2.5 ])
    """
    check_impl(impl)
    if impl not in PAGED:
        raise ValueError(f"impl must be one of {', '.join(PAGED)}, got {name_of(impl)}")
    arrays = {"query": query, "key_pages": key_pages, "value_pages": value_pages}
    check_floats(**arrays)
    for name, x in arrays.items():
        if x.ndim != 4:
            axes = "b, h, n_q, d_k" if name == "query" else "pages, h_kv, size, d"
            raise ValueError(f"{name} must have shape ({axes}), got {tuple(x.shape)}")
        if impl != REFERENCE and getattr(x, "requires_grad", False):
            raise ValueError(f"{name} must need no gradient for impl={impl!r}: detach it")
    (h, _, d_k), (n_pages, h_kv, size, d) = query.shape[1:], key_pages.shape
    if d != d_k:
        expected = f"(pages, h_kv, size, {d_k}) to match query"
        raise ValueError(f"key_pages must have shape {expected}, got {tuple(key_pages.shape)}")
    if tuple(value_pages.shape[:3]) != (n_pages, h_kv, size):
        expected = f"({n_pages}, {h_kv}, {size}, d_v) to match key_pages"
        raise ValueError(f"value_pages must have shape {expected}, got {tuple(value_pages.shape)}")
    if size == 0:
        raise ValueError("key_pages must have at least 1 key per page, got size 0")
    if h_kv == 0 or h % h_kv:
        raise ValueError(f"query must have a multiple of {h_kv} heads, as key_pages has, got {h}")
    if scale is None and d_k == 0:
        raise ValueError("query must have d_k of at least 1 for the default scale 1/√d_k, got 0")
    scale = 1 / math.sqrt(d_k) if scale is None else check_number("scale", scale)
    _check_table(query, block_table, lengths, n_pages, size)
    return computed(impl, query, key_pages, value_pages, block_table, lengths, scale)


def _check_table(query, block_table, lengths, n_pages, size):
    xp = array_namespace(query)
    for name, x, ndim in (("block_table", block_table, 2), ("lengths", lengths, 1)):
        check_same_home(name, x, "query", query)
        if not xp.isdtype(x.dtype, "integral"):
            raise TypeError(f"{name} must be an array of integers, got {dtype_name(x.dtype)}")
        if x.ndim != ndim or x.shape[0] != query.shape[0]:
            axes = f"({query.shape[0]}, most)" if ndim == 2 else f"({query.shape[0]},)"
            raise ValueError(f"{name} must have shape {axes}, got {tuple(x.shape)}")
    most = block_table.shape[1]
    check_ids("lengths", lengths, most * size + 1, "block_table", block_table)
    starts = xp.arange(0, most * size, size, device=array_device(query))
    used = starts[None, :] < lengths[:, None]
    if n_pages == 0 and bool(xp.any(used)):
        raise ValueError("lengths must be 0 where key_pages has no pages, got more")
    pages = xp.where(used, block_table, xp.zeros_like(block_table))
    check_ids("block_table", pages, max(n_pages, 1), "key_pages", query)
