"""Decoding: few queries over many keys, which are split among the programs and merged in order.

One query of one head fills one tile and would keep one program busy. So the keys are cut into
ranges, each program takes the running softmax over one range, and a second kernel merges the
(maximum, total, weighted values) of all ranges, from the first to the last. Query heads that share
a key head lie in one tile, so their keys are read once.

Dao, Haziza, Massa, Sizov (2023), "Flash-Decoding for long-context inference".
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.forward import (
    HIDDEN,
    attend,
    empty_state,
    finish,
    head_of,
    power,
    tiles_of,
)
from attnbook.kernels.triton_kernels.operands import launch

MOST_ROWS = 64
"""Up to so many queries of one key head, this is the path."""


@triton.jit
def range_kernel(
    arrays,
    strides,
    tops,  # of each range: maximum, total and weighted values of every row
    totals,
    weighted,
    sizes,
    splits,
    scales,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,  # how many heads of queries share one of keys
):
    """Attend from all queries of one key head to one range of the keys."""
    A, B, G, n_q, n_k, d_k, d_v = sizes
    head, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    g_own = G // SHARED
    a, b, g = head // (B * g_own), head // g_own % B, head % g_own
    query, key, value, mask, bias = arrays

    # Row r is query r % n_q of head g + r // n_q.
    rows = tl.arange(0, BLOCK_Q)
    there = tl.minimum(rows, SHARED * n_q - 1)[:, None]
    heads, own = (g + there // n_q).to(tl.int64), (there % n_q).to(tl.int64)
    columns = tl.arange(0, D_K)[None, :]
    query = head_of(query, strides[0], a, b, heads) + own * strides[0][3] + columns
    query_tile = tl.load(query, mask=columns < d_k, other=0.0)  # (BLOCK_Q, D_K)
    mask = (head_of(mask, strides[3], a, b, heads) + own * strides[3][3], strides[3][4])
    bias = (head_of(bias, strides[4], a, b, heads) + own * strides[4][3], strides[4][4], scales[1])
    key, value = head_of(key, strides[1], a, b, g), head_of(value, strides[2], a, b, g)
    keys = tiles_of(key, strides[1][3], n_k, d_k, BLOCK_K, D_K)
    values = tiles_of(value, strides[2][3], n_k, d_v, BLOCK_K, D_V)

    # This range: tiles [first, end), of which those before `whole` need no mask.
    n_tiles = tl.cdiv(n_k, BLOCK_K)
    first = (split.to(tl.int64) * n_tiles // splits).to(tl.int32)
    end = ((split.to(tl.int64) + 1) * n_tiles // splits).to(tl.int32)
    seen_by_all = n_k
    if CAUSAL:
        seen_by_all = tl.maximum(n_k - n_q + 1, 0)
    if MASK:
        seen_by_all = 0
    whole = tl.minimum(tl.maximum(seen_by_all // BLOCK_K, first), end)

    state = empty_state(BLOCK_Q, D_V)
    for MASKED in tl.static_range(2):
        state = attend(
            state,
            query_tile,
            keys,
            values,
            whole if MASKED else first,
            end if MASKED else whole,
            key,
            n_k,
            scales[0],
            own.to(tl.int32) + (n_k - n_q),
            mask,
            bias,
            BLOCK_K,
            False,
            MASKED,
            CAUSAL,
            MASK,
            BIAS,
        )
    top, total, sums = state
    n_rows = A * B * G * n_q
    places = split.to(tl.int64) * n_rows + head.to(tl.int64) * (SHARED * n_q) + rows
    columns = tl.arange(0, D_V)[None, :]
    inside = rows < SHARED * n_q
    tl.store(tops + places, top, mask=inside)
    tl.store(totals + places, total, mask=inside)
    tl.store(weighted + places[:, None] * D_V + columns, sums, mask=inside[:, None])


@triton.jit
def merge_kernel(
    tops,
    totals,
    weighted,
    output,
    log_total,
    n_rows,
    splits,
    d_v,
    D_V: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Merge the ranges of one row, AT_ONCE of them at a time."""
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
    finish((top, total, sums), output, log_total, place, place < n_rows, d_v, D_V)


def takes(x):
    """Say whether `Operands` have so few queries that this path is theirs."""
    return x.n_q * x.n_shared <= MOST_ROWS


def forward(x, tile=None, splits=None):
    """Return the output and log Σ exp(score) of `Operands` none of whose sizes is 0."""
    tile = tile or tiling.tile_for(x, tiling.DECODE, tiling.DECODE_SINGLE)
    tile = replace(tile, block_q=tiling.padded(x.n_q * x.n_shared))
    programs = x.heads // x.n_shared
    splits = splits or tiling.splits_of_keys(x, tile, programs)
    n_rows, width = x.heads * x.n_q, tiling.padded(x.d_v)
    tops, totals, weighted = (
        torch.empty(splits * n_rows * size, dtype=torch.float32, device=x.query.device)
        for size in (1, 1, width)
    )
    output = x.empty(x.n_q, x.d_v, x.query.dtype)
    log_total = x.empty(x.n_q, 1, torch.float32)
    launch(
        range_kernel,
        programs * splits,
        x.arrays,
        x.strides,
        tops,
        totals,
        weighted,
        x.sizes,
        splits,
        x.scales,
        **tiling.constants(x, tile),
        SHARED=x.n_shared,
    )
    launch(
        merge_kernel,
        n_rows,
        tops,
        totals,
        weighted,
        output,
        log_total,
        n_rows,
        splits,
        x.d_v,
        D_V=width,
        AT_ONCE=16,
    )
    return output, log_total
