r"""Attention in one CUDA C++ kernel: tiles in shared memory, a running softmax in registers.

In `tiled.cu` every number is read once where it can be: a block of threads keeps a tile of queries,
walks over the keys and values a tile at a time through shared memory, and holds scores, maxima,
sums and outputs in registers. No score goes to the GPU's memory. Tiles that the causal mask or a
rule hides are not visited. Where few queries face many keys, the keys are split among blocks, and a
second kernel merges what they found.

All products run on the GPU's ordinary cores. Its Tensor Cores, for which Triton writes the code,
are the next rung.

References: `attnbook.kernels.tiled`; Dao (2023), "FlashAttention-2"; Dao et al. (2023),
"Flash-Decoding" (the split over keys).
"""

import functools
from typing import Any

import cupy
import numpy as np

from attnbook.arrays.intervals import Intervals
from attnbook.compilers.cuda import Source
from attnbook.kernels.cuda.arrays import Inputs, ranges_of

KERNELS = Source(("compilers/numbers.cu", "kernels/cuda/layout.cu", "kernels/cuda/tiled.cu"))

# As in tiled.cu: threads of a block, rows and columns of their grid.
THREADS, ROWS, COLUMNS = 128, 8, 16

BLOCKS = {64: (8, 4, 3), 128: (8, 4, 2), 256: (4, 2, 2)}
"""For each DIM of the kernel R and C, the queries and keys of a thread, and how many such blocks a
multiprocessor runs at once."""

LEAST_TILES = 4
"""Of keys in a part: fewer are not worth a merge."""


def attention(
    query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: float, is_causal: bool
) -> Any:
    """Return `attnbook.attention` of CuPy arrays of float16, bfloat16 or float32.

    Takes checked arrays, as every rung does; `mask` may be the `Intervals` of a rule. Keys and
    values that heads share are not repeated, and masks and biases not broadcast: the kernel finds
    them by steps.

    Raises
    ------
    ValueError
        If d_k or d_v is above 256.

    Notes
    -----
    Sums are float32 for every dtype, in a fixed order: the same call on the same GPU gives the
    same bits. A head of a larger batch may have other last bits, since its keys are cut in fewer
    parts. d_k and d_v are padded on the chip to 64, 128 or 256; above 64 a block takes 99 KiB
    of shared memory, which GPUs since Ampere (2020) have.
    Cost: O(n_q n_k (d_k + d_v)) time, half of it if causal; O(n_q d_v) memory for parts of the
    output, only where the keys are split.
    """
    for name, x in (("query", query), ("value", value)):
        if x.shape[-1] > max(BLOCKS):
            raise ValueError(
                f"{name} must have a width of at most {max(BLOCKS)} for impl='cupy_tiled', "
                f"got {x.shape[-1]}"
            )
    if query.shape[-2] == 1 and _shares_keys(query, key, value):
        # one query in each head of a group: the group becomes the axis of queries
        query = _swapped(query, query.ndim)
        mask = _among_queries(mask, query) if isinstance(mask, Intervals) else mask
        mask, bias = (
            x if x is None or isinstance(x, Intervals) else _swapped(x, query.ndim)
            for x in (mask, bias)
        )
        grouped = _attend(query, key, value, mask, bias, scale, False)
        return cupy.ascontiguousarray(_swapped(grouped, grouped.ndim))
    return _attend(query, key, value, mask, bias, scale, is_causal)


def _shares_keys(query: Any, key: Any, value: Any) -> bool:
    """Say whether the last leading axis of `query` meets only one head of keys and values."""
    return query.ndim > 2 and all(x.ndim < 3 or x.shape[-3] == 1 for x in (key, value))


def _swapped(x: Any, ndim: int) -> Any:
    """Return (..., group, 1, n) as (..., 1, group, n)."""
    return cupy.swapaxes(x[(None,) * (ndim - x.ndim)], -3, -2)


def _among_queries(seen: Intervals, swapped: Any) -> Intervals:
    """Return the ranges of one query in each head of a group, for queries (..., 1, group, d)."""
    group = swapped.shape[-2]

    def make() -> Intervals:
        starts, stops = (
            np.broadcast_to(
                x[(None,) * (3 - x.ndim)], (*x.shape[:-3], group, 1, x.shape[-1])
            ).swapaxes(-3, -2)
            for x in (seen.starts, seen.stops)
        )
        return Intervals(starts, stops, seen.n_k)

    return seen.made(("among queries", group), make)


def _attend(
    query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: float, is_causal: bool
) -> Any:
    x = Inputs.of(query, key, value, mask, bias)
    if x.output.size == 0:
        return x.output
    width = next(dim for dim in BLOCKS if max(x.d_k, x.d_v) <= dim)
    r, c, at_once = BLOCKS[width]
    if x.n_q <= ROWS:
        r = 1  # a tile of 8 queries
    queries, keys = r * ROWS, c * COLUMNS
    seen = mask if isinstance(mask, Intervals) else None
    if seen is not None:
        at_once = 2  # its threads have more registers
    n_tiles = -(-x.n_q // queries) * x.n_heads
    n_parts, tiles_a_part = _parts(n_tiles, -(-x.n_k // keys), at_once)
    n_rows = x.n_heads * x.n_q
    parts = ends = x.output  # not touched
    if n_parts > 1:
        parts = cupy.empty((n_parts, n_rows, x.d_v), dtype=np.float32)
        ends = cupy.empty((n_parts, n_rows, 2), dtype=np.float32)
    numbers = (x.n_heads, x.n_q, x.n_k, x.d_k, x.d_v)
    counts = (is_causal, n_parts, tiles_a_part * keys)
    args = (
        *(*x.vectors, *x.extra, *x.where, *map(np.int32, numbers), np.float32(scale)),
        *(*map(np.int32, counts), *ranges_of(seen, queries), x.output, parts, ends),
    )
    shared_bytes = 4 * (queries + 2 * keys) * (width + 4)
    name = f"attend<{x.type}, {width}, {r}, {c}{', true' if seen is not None else ''}>"
    KERNELS.launch(cupy, name, n_tiles * n_parts, THREADS, args, shared_bytes)
    if n_parts > 1:
        args = (parts, ends, np.int32(n_parts), np.int64(n_rows), np.int32(x.d_v), x.output)
        n_blocks = -(-x.output.size // THREADS)
        KERNELS.launch(cupy, f"merge<{x.type}>", n_blocks, THREADS, args)
    return x.output


def _parts(n_blocks: int, n_key_tiles: int, at_once: int) -> tuple[int, int]:
    """Return into how many parts to split the keys, and the tiles of a part.

    So many that all blocks run at once, if without that half of the GPU would be idle.
    """
    room = at_once * _n_processors(cupy, cupy.cuda.Device().id)
    wanted = max(1, min(room // n_blocks, n_key_tiles // LEAST_TILES))
    tiles = max(1, -(-n_key_tiles // wanted))
    return max(1, -(-n_key_tiles // tiles)), tiles


@functools.cache
def _n_processors(cupy: Any, device: int) -> int:
    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]
