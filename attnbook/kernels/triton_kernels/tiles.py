"""The tiles of the Triton kernels: which of them a mask leaves to visit, and how they compile.

`tiles_to_visit` reads a mask once and lists, for each tile of queries, first the tiles of keys
that are visible as a whole, which need no masking, then those that are visible in part. Hidden
tiles are on no list. The masks of a causal call are joined with the causal order.

The sizes of the tiles stand in `tile_sizes`.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels.operands import launch
from attnbook.kernels.triton_kernels.ranges import lists_of
from attnbook.kernels.triton_kernels.tile_sizes import MOST_HELD as MOST_HELD
from attnbook.kernels.triton_kernels.tile_sizes import Tile as Tile
from attnbook.kernels.triton_kernels.tile_sizes import tile_for as tile_for

PER_PROCESSOR, TILES_EACH = 2, 4
"""How many programs of decoding fit on a multiprocessor, and the fewest tiles worth a program."""
MOST_SPLITS = 132
"""Into no more ranges are keys cut: merging reads those of a row one after another."""


def cdiv(n, block):
    """Return how many blocks hold n; that of Triton takes microseconds."""
    return -(-n // block)


def padded(d):
    """Return the width of a tile of rows of d numbers: a power of 2, at least 16."""
    return max(1 << (d - 1).bit_length(), 16)


def splits_of_keys(x, n_tiles, programs):
    """Return into how many ranges decoding cuts its tiles of keys: enough for the whole device."""
    most = min(cdiv(n_tiles, TILES_EACH), MOST_SPLITS)
    return max(1, min(most, PER_PROCESSOR * processors_of(x.query.device) // programs))


@lru_cache
def processors_of(device):
    """Return how many multiprocessors a device has."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def head_at(place, B, G):
    """Return a head by its places along the three leading axes."""
    return place // (B * G), place // G % B, place % G


@triton.jit
def head_of(pointer, strides, head):
    """Return where the rows of one head begin; 64 bits, since arrays pass 2³¹ numbers."""
    a, b, g = head
    pointer += a.to(tl.int64) * strides[0] + b.to(tl.int64) * strides[1]
    return pointer + g.to(tl.int64) * strides[2]


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k"])
def kinds_kernel(
    mask,
    kinds,
    strides,
    A,
    B,
    G,
    n_q,
    n_k,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Store of one tile of the mask: 0 hidden, 1 visible in part, 2 visible as a whole."""
    k_tiles = tl.cdiv(n_k, BLOCK_K)
    q_tiles = tl.cdiv(n_q, BLOCK_Q)
    place = tl.program_id(0)
    tile_k, tile_q = place % k_tiles, place // k_tiles % q_tiles
    head = head_at(place // k_tiles // q_tiles, B, G)
    rows = tile_q * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None]
    columns = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    mask = head_of(mask, strides, head)
    mask += rows.to(tl.int64) * strides[3] + columns.to(tl.int64) * strides[4]
    inside = (rows < n_q) & (columns < n_k)
    there = (rows < n_q) & (columns < tl.cdiv(n_k, 16) * 16)  # to the end of the last vector
    seen = (tl.load(mask, mask=there, other=0) != 0) & inside
    if CAUSAL:
        seen = seen & (columns <= rows + (n_k - n_q))
    # Rows past the end are no reason to mask; columns past the end are.
    whole = tl.min(tl.min((seen | (rows >= n_q)).to(tl.int32), 1), 0)
    some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
    tl.store(kinds + place, (whole * some + some).to(tl.int8))


def tiles_to_visit(x, tile, of_keys=False, together=False):
    """List the tiles of keys that each tile of queries visits, or, `of_keys`, the transpose.

    Returns an int32 array (..., tiles of one side, 2 + at most tiles of the other) and its strides
    along A, B, G and the last two axes. A row holds how many tiles are visible as a whole, how many
    at all, and which, in this order. Without a mask there is none, and the kernels count. From
    `Intervals` the list is made on the host, and the tiles of the queries of all heads that share
    one of keys may be taken `together`.
    """
    if x.mask is None:
        return x.query, (0,) * 5  # no kernel will read it
    if x.intervals is not None:
        return _from_intervals(x, tile, of_keys, together)
    strides = x.layout.strides[3]
    own = [size if step else 1 for size, step in zip(x.sizes[:3], strides[:3], strict=True)]
    n_tiles = cdiv(x.n_q, tile.block_q), cdiv(x.n_k, tile.block_k)
    kinds = torch.empty((*own, *n_tiles), dtype=torch.int8, device=x.mask.device)
    launch(
        kinds_kernel,
        kinds.numel(),
        x.mask.device,
        x.mask,
        kinds,
        strides,
        *(*own, x.n_q, x.n_k),
        BLOCK_Q=tile.block_q,
        BLOCK_K=tile.block_k,
        CAUSAL=x.is_causal,
    )
    if of_keys:
        kinds = kinds.transpose(-1, -2)
    order = torch.argsort(kinds, dim=-1, descending=True, stable=True)
    counts = [(kinds == 2).sum(-1, keepdim=True), (kinds > 0).sum(-1, keepdim=True)]
    tiles = torch.cat([*counts, order], dim=-1).to(torch.int32).contiguous()
    strides = [step if size > 1 else 0 for size, step in zip(own, tiles.stride()[:3], strict=True)]
    return tiles, (*strides, *tiles.stride()[3:])


def _from_intervals(x, tile, of_keys, together):
    strides = x.layout.strides[3]  # of the ranges, which lie as the lists do, but for the size
    heads = x.G if together and x.n_shared > 1 and strides[2] else 1
    blocks = x.n_q if together else tile.block_q, tile.block_k
    lists = lists_of(x.intervals, *blocks, x.mask.device, of_keys=of_keys, heads=heads)
    size, own = x.n_q * x.mask.shape[-1] * heads, lists.stride()
    a, b, g = (step // size * own[0] for step in strides[:3])
    return lists, (a, b, g, *own[1:])


NO_MASK, ARRAY, RANGES = 0, 1, 2
"""What hides keys: nothing but the causal order, an array, or `Intervals`."""


class Kind(NamedTuple):
    """What a kernel is compiled for."""

    D_K: int  # widths of the tiles of rows
    D_V: int
    BLOCK_Q: int  # queries and keys of a tile
    BLOCK_K: int
    CAUSAL: bool
    MASK: int  # NO_MASK, ARRAY or RANGES
    BIAS: bool
    APART: bool  # as `Tile.apart`
    MASK_STEP: int  # from key to key, 0 or 1
    BIAS_STEP: int
    RANGES: int  # of keys that each query may see, a power of 2; 0 if they are no `Intervals`
    PRECISION: str  # as `precision_of`


def options(x, tile):
    """Return what a kernel is compiled for, and how."""
    has_bias = x.bias is not None
    mask = NO_MASK if x.mask is None else ARRAY if x.intervals is None else RANGES
    ranges = x.mask.shape[-1] // 2 if mask == RANGES else 0
    ieee = x.precision == "ieee"
    sizes = (padded(x.d_k), padded(x.d_v), tile.block_q, tile.block_k)
    steps = (0 if ranges else x.layout.strides[3][4], x.layout.strides[4][4])
    kind = Kind(*sizes, x.is_causal, mask, has_bias, tile.apart, *steps, ranges, x.precision)
    return kind, {
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        # a tile of bias takes registers of its own, beside the fewer of half precision
        "maxnreg": None if has_bias and x.precision == "half" else tile.registers,
        # "ieee": a score must have the same bits in the forward and in the backward pass
        "enable_fp_fusion": not ieee,
    }
