"""Decoding from pages: keys and values are found through a block table, and split as in `decode`.

A program attends from all queries of one key head of one sequence to a range of its keys, which it
loads row by row from wherever their pages lie. The TMA takes no table, so pointers do it. A
sequence shorter than others leaves its last programs less to read, or nothing. `decode` merges the
ranges.

Kwon et al. (2023), "Efficient memory management for large language model serving with
PagedAttention".
"""

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.decode import MERGED_AT_ONCE, merge_kernel, parts_of
from attnbook.kernels.triton_kernels.forward import HIDDEN, LOG2E, empty_state, power, product
from attnbook.kernels.triton_kernels.operands import MAX_WIDTH, launch, precision_of

KEYS, KEYS_SINGLE = (64, 32), (32, 16)
"""Keys of a tile, of float32 fewer: for rows of up to 128 numbers, and for wider ones."""

MOST_ROWS = 128
"""Queries of a key head, all of which one program holds."""


@triton.jit(do_not_specialize=["heads", "most", "n_q", "splits"])
def page_kernel(
    query,  # (sequences, heads, rows, d_k)
    keys,  # (pages, heads, SIZE, d_k)
    values,
    table,  # (sequences, most)
    lengths,
    parts,  # of each range: weighted values, maximum and total of every row
    heads,  # of keys
    most,
    n_rows,  # of all heads
    n_q,
    splits,
    scale,
    d_k,
    d_v,
    ROWS: tl.constexpr,  # queries of a key head
    SIZE: tl.constexpr,  # keys of a page
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend from all queries of one key head of a sequence to one range of its keys."""
    place, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    sequence, head = place // heads, place % heads
    length = tl.load(lengths + sequence).to(tl.int32)
    n_tiles = tl.cdiv(length, BLOCK_K)
    first, end = split * n_tiles // splits, (split + 1) * n_tiles // splits
    of_k, of_v = tl.arange(0, D_K)[None, :], tl.arange(0, D_V)[None, :]
    rows = tl.arange(0, BLOCK_Q)
    inside = (rows < ROWS)[:, None]
    first_row = place.to(tl.int64) * ROWS
    places = (first_row + rows)[:, None] * d_k + of_k
    own = tl.load(query + places, mask=inside & (of_k < d_k), other=0.0)
    last_seen = length - n_q + rows % n_q
    top, total, weighted = empty_state(BLOCK_Q, D_V)
    for i in tl.range(first, end):
        columns = i * BLOCK_K + tl.arange(0, BLOCK_K)
        there = columns < length
        page = table + sequence.to(tl.int64) * most + columns // SIZE
        page = tl.load(page, mask=there, other=0).to(tl.int64)
        at = ((page * heads + head) * SIZE + columns % SIZE)[:, None]
        written = there[:, None]
        key = tl.load(keys + at * d_k + of_k, mask=written & (of_k < d_k), other=0.0)
        scores = product(own, key.T, PRECISION) * scale
        scores = tl.where(columns[None, :] <= last_seen[:, None], scores, HIDDEN)
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(higher == HIDDEN, 0.0, higher)
        weights, fade = power(scores - shift[:, None], own.dtype), power(top - shift, own.dtype)
        total = total * fade + tl.sum(weights, 1)
        value = tl.load(values + at * d_v + of_v, mask=written & (of_v < d_v), other=0.0)
        weighted = product(weights.to(value.dtype), value, PRECISION, weighted * fade[:, None])
        top = higher
    sums, tops, totals = parts_of(parts, n_rows, splits, D_V)
    places = split.to(tl.int64) * n_rows + first_row + rows
    tl.store(tops + places, top, mask=rows < ROWS)
    tl.store(totals + places, total, mask=rows < ROWS)
    tl.store(sums + places[:, None] * D_V + of_v, weighted, mask=inside)


def paged_attention(query, key_pages, value_pages, block_table, lengths, scale, splits=None):
    """Return the output of checked tensors, none of which requires a gradient."""
    (b, h, n_q, d_k), (_, heads, size, d_v) = query.shape, value_pages.shape
    if max(d_k, d_v) > MAX_WIDTH:
        name, letter, d = ("query", "d_k", d_k) if d_k > MAX_WIDTH else ("value_pages", "d_v", d_v)
        raise ValueError(
            f"{name} must have {letter} of at most {MAX_WIDTH} for impl='triton', got {d}"
        )
    rows = h // heads * n_q
    if rows > MOST_ROWS:
        raise ValueError(
            f"query must have at most {MOST_ROWS} rows per key head for impl='triton', got {rows}"
        )
    output, n_rows = query.new_zeros((b, h, n_q, d_v)), b * h * n_q
    most, single = block_table.shape[1], query.dtype == torch.float32
    if 0 in (n_rows, most, d_v, key_pages.shape[0]):
        return output
    if d_k == 0:  # all scores are 0
        query, key_pages = (x.new_zeros((*x.shape[:-1], 1)) for x in (query, key_pages))
        d_k = 1
    arrays = [x.detach().contiguous() for x in (query, key_pages, value_pages)]
    arrays += [x.contiguous() for x in (block_table, lengths)]
    is_wide = max(d_k, d_v) > 128
    block = (KEYS_SINGLE if single else KEYS)[is_wide]
    splits = splits or _splits(tiling.cdiv(most * size, block), b * heads, query.device)
    wide_k, wide_v = tiling.padded(d_k), tiling.padded(d_v)
    parts = query.new_empty(splits * n_rows * (wide_v + 2), dtype=torch.float32)
    sizes = (heads, most, n_rows, n_q, splits, scale if single else scale * LOG2E.value, d_k, d_v)
    precision = precision_of(query.dtype)
    kinds = (rows, size, tiling.padded(rows), block, wide_k, wide_v, precision)
    ieee = precision == "ieee"
    options = {"num_warps": 4, "num_stages": 1 if ieee else 3, "enable_fp_fusion": not ieee}
    if ieee and is_wide:  # both factors of a product lie in registers
        options |= {"num_warps": 8, "maxnreg": 255}
    device = query.device
    launch(page_kernel, b * heads * splits, device, *arrays, parts, *sizes, *kinds, **options)
    log_total = query.new_empty(n_rows, dtype=torch.float32)
    at_once = min(MERGED_AT_ONCE // wide_v, 64)
    after = (parts, output, log_total, n_rows, splits, d_v, wide_v, at_once)
    launch(merge_kernel, n_rows, device, *after)
    return output


def _splits(n_tiles, programs, device):
    """Return into how many ranges the keys of each sequence are cut: enough for the device."""
    most = min(tiling.cdiv(n_tiles, tiling.TILES_EACH), tiling.MOST_SPLITS)
    wanted = tiling.PER_PROCESSOR * tiling.processors_of(device) // programs
    return max(1, min(most, wanted))
