"""Decoding: few queries over many keys, which are split among the programs and merged in order.

One query of one head fills one tile and would keep one program busy. So the keys are cut into
ranges, each program takes the running softmax over one range, and a second kernel merges the
(maximum, total, weighted values) of all ranges, from the first to the last. Query heads that share
a key head lie in one tile, so their keys are read once.

Dao, Haziza, Massa, Sizov (2023), "Flash-Decoding for long-context inference".
"""

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.forward import (
    HIDDEN,
    RANGES,
    attend,
    empty_state,
    finish,
    power,
    rows_of,
    tile_of,
)
from attnbook.kernels.triton_kernels.operands import aligned, launch, rows_at
from attnbook.kernels.triton_kernels.tiles import head_at, head_of

MOST_ROWS, MOST_ROWS_SINGLE = 64, 16
"""Up to so many queries of one key head, this is the path; float32 keeps them in registers."""
MERGED_AT_ONCE = 8192
"""So many numbers are merged at once: 64 registers of a thread."""


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k", "splits"])
def range_kernel(
    queries,
    keys,
    values,
    x,
    A,
    B,
    G,
    n_q,
    n_k,
    lists,  # of tiles to visit, if there are `Intervals`, and their strides
    parts,  # of each range: weighted values, maximum and total of every row
    splits,
    KIND: tl.constexpr,
    SHARED: tl.constexpr,  # how many heads of queries share one of keys
):
    """Attend from all queries of one key head to one range of the keys."""
    place, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    sizes = A, B, G, n_q, n_k
    key_head = head_at(place, B, G // SHARED)
    a, b, g = key_head

    # Row r is query r % n_q of head g + r // n_q.
    rows = tl.arange(0, KIND.BLOCK_Q)
    there = tl.minimum(rows, SHARED * n_q - 1)[:, None]
    heads = a, b, (g + there // n_q).to(tl.int64)
    seen = rows_of(there % n_q, x, sizes, heads, KIND)
    query = tile_of(queries, key_head, 0, KIND.BLOCK_Q, KIND.D_K)

    # This range: tiles [first, end), of a list if LISTED; those before `whole` need no mask.
    LISTED: tl.constexpr = KIND.MASK == RANGES
    tiles = head_of(*lists, key_head) if LISTED else x.mask
    n_tiles = tl.load(tiles + 1) if LISTED else tl.cdiv(n_k, KIND.BLOCK_K)
    first = (split.to(tl.int64) * n_tiles // splits).to(tl.int32)
    end = ((split.to(tl.int64) + 1) * n_tiles // splits).to(tl.int32)
    seen_by_all = n_k
    if KIND.CAUSAL:
        seen_by_all = tl.maximum(n_k - n_q + 1, 0)
    if KIND.MASK:
        seen_by_all = 0
    n_whole = tl.load(tiles) if LISTED else seen_by_all // KIND.BLOCK_K
    whole = first
    if KIND.APART:
        whole = tl.minimum(tl.maximum(n_whole, first), end)

    state = empty_state(KIND.BLOCK_Q, KIND.D_V)
    for MASKED in tl.static_range(0 if KIND.APART else 1, 2):
        start, stop = whole if MASKED else first, end if MASKED else whole
        state = attend(
            *(state, query, queries, keys, values, key_head, 0, start, stop, tiles + 2),
            *(x, n_k, seen, LISTED, MASKED, KIND),
        )
    top, total, sums = state
    n_rows = A * B * G * n_q
    weighted, tops, totals = parts_of(parts, n_rows, splits, KIND.D_V)
    places = split.to(tl.int64) * n_rows + place.to(tl.int64) * (SHARED * n_q) + rows
    columns = tl.arange(0, KIND.D_V)[None, :]
    inside = rows < SHARED * n_q
    tl.store(tops + places, top, mask=inside)
    tl.store(totals + places, total, mask=inside)
    tl.store(weighted + places[:, None] * KIND.D_V + columns, sums, mask=inside[:, None])


@triton.jit
def parts_of(parts, n_rows, splits, D_V: tl.constexpr):
    """Return where weighted values, maxima and totals begin, which lie behind one another."""
    n = n_rows.to(tl.int64) * splits
    return parts, parts + n * D_V, parts + n * (D_V + 1)


@triton.jit(do_not_specialize=["n_rows", "splits"])
def merge_kernel(
    parts,  # as range_kernel stored them
    output,
    log_total,
    n_rows,
    splits,
    d_v,
    D_V: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Merge the ranges of one row, AT_ONCE of them at a time."""
    weighted, tops, totals = parts_of(parts, n_rows, splits, D_V)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, D_V)
    top, total, sums = empty_state(1, D_V)
    for first in range(0, splits, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        there = split < splits
        places = split.to(tl.int64) * n_rows + row
        of_top = tl.load(tops + places, mask=there, other=HIDDEN)
        of_total = tl.load(totals + places, mask=there, other=0.0)
        places = places[:, None] * D_V + columns[None, :]
        of_sums = tl.load(weighted + places, mask=there[:, None], other=0.0)
        higher = tl.maximum(top, tl.max(of_top, 0))
        shift = tl.where(higher == HIDDEN, 0.0, higher)
        dtype = output.dtype.element_ty
        fade, share = power(top - shift, dtype), power(of_top - shift, dtype)  # (1,), (AT_ONCE,)
        total = total * fade + tl.sum(of_total * share, 0)
        sums = sums * fade[:, None] + tl.sum(of_sums * share[:, None], 0)[None, :]
        top = higher
    place = row + tl.arange(0, 1)
    finish((top, total, sums), output, log_total, place, place < n_rows, d_v)


def takes(x):
    """Say whether `Operands` have so few queries that this path is theirs."""
    most = MOST_ROWS_SINGLE if x.query.dtype == torch.float32 else MOST_ROWS
    return x.n_q * x.n_shared <= most


def forward(x, tile=None, splits=None):
    """Return the output and log Σ exp(score) of `Operands` none of whose sizes is 0."""
    tile = tile or tiling.tile_for(x, "decode")
    tile = tile._replace(block_q=tiling.padded(x.n_q * x.n_shared))
    programs = x.heads // x.n_shared
    lists = x.query, (0,) * 5  # an array is read whole, and its tiles are not listed
    n_tiles = tiling.cdiv(x.n_k, tile.block_k)
    if x.intervals is not None:
        lists = tiling.tiles_to_visit(x, tile, together=True)
        n_tiles = lists[0].shape[-1] - 2
    splits = splits or tiling.splits_of_keys(x, n_tiles, programs)
    n_rows, width = x.heads * x.n_q, tiling.padded(x.d_v)
    parts = x.query.new_empty(splits * n_rows * (width + 2), dtype=torch.float32)
    results = x.empty(x.n_q, x.d_v, x.query.dtype), x.empty(x.n_q, 1, torch.float32)
    kind, options = tiling.options(x, tile)
    query, key, value = x.rows(kind)
    if x.n_shared > 1:
        query = _together(x, (1, 1, 1, kind.BLOCK_Q, kind.D_K))
    rows = query, key, value
    device = x.query.device
    arguments = (*rows, x.call, *x.sizes, lists, parts, splits, kind, x.n_shared)
    launch(range_kernel, programs * splits, device, *arguments, **options)
    at_once = min(MERGED_AT_ONCE // width, 64)
    launch(merge_kernel, n_rows, device, parts, *results, n_rows, splits, x.d_v, width, at_once)
    return results


def _together(x, block):
    """Return the description of the queries that share a key head as rows of one array."""
    shape, strides = x.layout.rows[0]
    query, (a, b, g, step, one) = x.query, strides
    step = g if x.n_q == 1 else step
    if g != x.n_q * step:  # few numbers, which lie in another order
        query = aligned(query.expand(*x.leading, *query.shape[-2:]).contiguous())
        step = query.stride(-2)
        shape, b = (*x.sizes[:2], *shape[2:]), x.n_shared * x.n_q * step
        a = x.B * b
    return rows_at(
        query, (*shape[:2], 1, x.n_shared * x.n_q, shape[4]), (a, b, a, step, one), block
    )
