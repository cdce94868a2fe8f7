"""Attention to keys and values in pages.

A rung of `READ_PAGES` has a function ``paged_attention`` beside its ``attention``:

``paged_attention(query, key_pages, value_pages, block_table, lengths, scale)``

takes arrays that `attnbook.decoding.paged_attention` has checked, and returns the output in the
dtype of the query.
"""

from typing import Annotated

from array_api_compat import device

from attnbook.arrays.array import Array, array_namespace, library
from attnbook.kernels import READ_PAGES, REFERENCE, _is_foreign, _native, kernel_for, naive

PAGED = (REFERENCE, *READ_PAGES)
"""The names that ``impl=`` accepts here."""


def paged_attention_of(
    query: Annotated[Array, "b h n_q d_k"],
    key_pages: Annotated[Array, "pages h_kv size d_k"],
    value_pages: Annotated[Array, "pages h_kv size d_v"],
    block_table: Annotated[Array, "b most"],
    lengths: Annotated[Array, "b"],
    scale: float,
) -> Annotated[Array, "b h n_q d_v"]:
    xp, where = array_namespace(query), device(query)
    (b, h, n_q, d_k), (_, h_kv, size, d_v) = query.shape, value_pages.shape
    n_k = block_table.shape[1] * size
    ends = lengths[:, None]
    starts = xp.arange(0, n_k, size, device=where)[None, :]
    block_table = xp.where(starts < ends, block_table, xp.zeros_like(block_table))
    key, value = (gathered(x, block_table) for x in (key_pages, value_pages))  # (b, h_kv, n_k, d)
    keys = xp.arange(n_k, device=where)
    written = (keys < ends)[:, None, :, None]  # (b, 1, n_k, 1)
    value = xp.where(written, value, xp.zeros_like(value))  # 0 times what is left there may be NaN
    last_seen = ends - n_q + xp.arange(n_q, device=where)  # (b, n_q)
    mask = (keys <= last_seen[:, :, None])[:, None, None, :, :]  # (b, 1, 1, n_q, n_k)
    query = xp.reshape(query, (b, h_kv, h // h_kv, n_q, d_k))
    key, value = key[:, :, None, :, :], value[:, :, None, :, :]
    output = naive.attention(query, key, value, mask, None, scale, False)
    return xp.reshape(output, (b, h, n_q, d_v))


def gathered(
    pages: Annotated[Array, "pages h_kv size d"], block_table: Annotated[Array, "b most"]
) -> Annotated[Array, "b h_kv n d"]:
    """Return the rows of the pages that each sequence lists, one page after another."""
    xp = array_namespace(pages)
    (b, most), (n_pages, h_kv, size, d) = block_table.shape, pages.shape
    if n_pages == 0:  # nothing is listed
        return xp.zeros((b, h_kv, most * size, d), dtype=pages.dtype, device=device(pages))
    x = xp.take(pages, xp.reshape(block_table, (-1,)), axis=0)
    x = xp.permute_dims(xp.reshape(x, (b, most, h_kv, size, d)), (0, 2, 1, 3, 4))
    return xp.reshape(x, (b, h_kv, most * size, d))


def paged_attention(
    impl: str,
    query: Array,
    key_pages: Array,
    value_pages: Array,
    block_table: Array,
    lengths: Array,
    scale: float,
) -> Array:
    """Return the output of an implementation of `PAGED` for checked arrays."""
    arguments = (query, key_pages, value_pages, block_table, lengths)
    if impl == REFERENCE:
        return paged_attention_of(*arguments, scale)
    if _is_foreign(query):
        q, k, v, table, n = _native(*arguments)
        output = paged_attention(impl, q, k, v, table, n, scale)
        return array_namespace(query).astype(output, query.dtype)
    function = kernel_for(impl, query).paged_attention
    if library(query) == "torch":
        from attnbook.kernels.autograd import untraced

        return untraced(function, *arguments, scale)
    return function(*arguments, scale)
