"""The forward pass of the rung *packed*: panels of queries meet all keys.

A panel stands one query a column, and meets a tile of keys at a time. The scores of a tile, its
weights and its weighted sums are then rows that are treated alike, and nothing leaves the inner
caches in between. The panel is copied; keys and values are read where they are.

Where there are few panels the keys are split in chunks, each with a maximum, a total and weighted
sums of its own, and these are merged in the order of the keys.

Threads take pieces of work from a counter, one after the other. Which thread takes which changes no
bit: a piece is computed by one, in one order, and into how many chunks the keys are cut depends on
the queries and keys of a key head alone. So a text has the same bits in a batch of any size, unless
the texts of a batch share their keys.
"""

import math
from collections.abc import Callable

import numpy as np

from attnbook.arrays.array import Array
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_fused, compile_loops
from attnbook.compilers.listed_rows import tiles_of
from attnbook.compilers.register_tiles import Tile, claim
from attnbook.kernels.numba_loops.arrays import KEY, RANGES, VALUE, Work, arrange, restored
from attnbook.kernels.numba_loops.few_queries import attend_few, merge
from attnbook.kernels.numba_loops.panels import (
    aligned,
    clear,
    count_seen,
    gather,
    hide,
    pair_rows,
    raise_top,
    step_up,
    write,
)
from attnbook.kernels.numba_loops.products import add_values, product, weigh
from attnbook.kernels.numba_loops.ranges import longest_first, next_seen

KEYS = 128
"""Keys of a tile, whose columns are those of the registers: its scores stay in the inner cache."""

WORTH = 2**20
"""Multiplications that are worth another thread."""

FEW = 8
"""Queries of a key head for which the memory is slower than the loops without tiles."""

ENOUGH = 16
"""Pieces of work that keep several cores busy: a head of fewer panels is split by keys."""

PIECES, LEAST = 64, 1024
"""Most chunks of keys of a head, and keys of a chunk that are worth its merging."""


def forward(
    tile: Tile, arguments: tuple, *, few: bool, n_threads: int | None = None
) -> tuple[Array, Array]:
    """Return the output and log_total of the checked `arguments`, by products of a tile's shape.

    `few` lets a few queries go without tiles. Their scores are then sums in another order than the
    backward pass makes them in, so it is for calls that none follows.
    """
    query, _, value = arguments[:3]
    work, leading, _ = arrange(*arguments, pairs=tile.pairs)
    few = few and work.starts.shape[2] * work.n_q <= FEW
    if few and tile.pairs:  # these loops have no words for them
        work, leading, _ = arrange(*arguments)
    shape, d_v = (*leading, work.n_q), value.shape[-1]
    n_rows = math.prod(shape)
    if n_rows and work.n_k:
        size = n_rows * work.n_k * (work.d_k + work.d_v)
        n_threads = n_threads_for(size, n_threads, WORTH)
        make = _without_tiles if few else _by_panels
        output, (top, total) = make(tile, work, arguments[3], n_threads)
    else:
        output, (top, total) = np.zeros((n_rows, work.d_v), np.float32), np.zeros((2, n_rows))
    with np.errstate(divide="ignore"):
        log_total = top + np.log(total)  # float64: e**(score - log_total) is to be exact
    output = output[:, :d_v].reshape(*shape, d_v)
    return restored(output, query), restored(log_total.reshape(*shape, 1), query, exact=True)


def _by_panels(tile, work, mask, n_threads):
    n_rows = work.starts.shape[2] * work.n_q
    n_chunks = max(1, min(work.n_k // LEAST, ENOUGH // -(-n_rows // tile.width)))
    partial = _partial(work, n_chunks if n_chunks > 1 else 0)

    rows, pairs = work.starts[0].size * work.n_q, tile.pairs
    output = np.empty((rows, -(-work.d_v // 2) if pairs else work.d_v), np.float32)
    ends = np.empty((2, rows))
    order = np.empty(0, np.int64)  # for work that is all alike, or longest at the end
    if isinstance(mask, Intervals):
        key = ("order", work.starts[RANGES].tobytes(), work.starts.shape, tile.width, n_chunks)
        order = mask.made(key, lambda: longest_first(work, tile.width, n_chunks))

    def take(counter):
        words = np.empty(KEYS // 2 * work.d_v, np.uint32) if pairs else None
        attend(tile, words, work, n_chunks, order, counter, partial, output, ends)

    share(take, n_threads)
    if n_chunks > 1:
        return _merged(work, partial)
    return output.view(np.uint16) if pairs else output, ends


def _without_tiles(tile, work, mask, n_threads):
    n_chunks = max(1, min(work.n_k // LEAST, PIECES))
    partial, tiles = _partial(work, n_chunks), tiles_of(tile.lanes)
    share(lambda counter: attend_few(tiles, work, None, None, counter, partial), n_threads)
    return _merged(work, partial)


def _merged(work, partial):
    rows = work.starts[0].size * work.n_q
    output, ends = np.zeros((rows, work.d_v), np.float32), np.empty((2, rows))
    merge(work, None, partial, output, ends)
    return output, ends


def _partial(work: Work, n_chunks: int) -> np.ndarray:
    """Return room for the weighted sums, the total and the maximum of each row in each chunk."""
    _, n_heads, n_groups = work.starts.shape
    return np.empty((n_heads * n_chunks, n_groups * work.n_q, work.d_v + 2), np.float32)


def share(function: Callable[..., None], n_threads: int) -> None:
    """Call ``function(counter)`` in so many threads, with one counter for all."""
    counter = np.zeros(1, np.int64)
    in_parts(lambda *_: function(counter), n_threads, n_threads)


@compile_loops
def attend(tile, words, work, n_chunks, order, counter, partial, output, ends):
    """Take panels, or chunks of them, one after the other until `counter` has passed them all.

    words : room for the values of a tile of keys in pairs of bfloat16 numbers, or None.
    order : of the tasks, from `longest_first`; not read where there are no ranges.
    ends : (2, rows), the maximum and the total of each row of the output, written
    """
    width = tile.width
    n_rows = work.starts.shape[2] * work.n_q
    panels = -(-n_rows // width)
    n_tasks = work.starts.shape[1] * panels * n_chunks
    wide_k, wide_v = work.d_k + -work.d_k % 16, work.d_v + -work.d_v % 16
    panel, limits = aligned(wide_k, width), np.empty(width, np.int32)
    queries, sums = aligned(width, wide_k), aligned(width, wide_v)
    scores, weighted = aligned(KEYS, width), aligned(wide_v, width)
    vectors = aligned(6, width)
    top, total = vectors[1], vectors[4]
    space = (queries, panel, limits, scores, weighted, vectors)
    while True:
        i = claim(counter)
        if i >= n_tasks:
            break
        task = order[i] if work.has_ranges else n_tasks - 1 - i  # the longest first, if causal
        place, chunk = divmod(task, n_chunks)
        head, first = place // panels, place % panels * width
        rows = min(width, n_rows - first)
        start, stop = work.n_k * chunk // n_chunks, work.n_k * (chunk + 1) // n_chunks
        meet(tile, work, (head, first, rows), start, stop, space, words)
        for r in range(width):
            top[r] *= work.unit
        if n_chunks == 1:
            write(tile, work, head, first, rows, weighted, sums, vectors, output, ends, words)
        else:
            for r in range(rows):
                for c in range(work.d_v):
                    partial[head * n_chunks + chunk, first + r, c] = weighted[c, r]
                partial[head * n_chunks + chunk, first + r, work.d_v] = total[r]
                partial[head * n_chunks + chunk, first + r, work.d_v + 1] = top[r]


@compile_fused
def meet(tile, work, task, start, stop, space, words):
    """Let a panel of queries meet the keys from `start` to `stop`."""
    queries, panel, limits, scores, weighted, vectors = space
    below, top, safe = vectors[0], vectors[1], vectors[2]
    factor, total, tile_total = vectors[3], vectors[4], vectors[5]
    head, first, rows = task
    width = tile.width
    lowest, highest = gather(tile, work, head, first, rows, queries, panel, limits, words)
    if words is None:
        step, depth = 1, work.d_k
    else:
        pair_rows(tile, panel)
        step, depth = 2, work.d_k // 2
    clear(weighted, total, top, below)
    end, key, keys = min(stop, highest + 1), start, 0
    sure = start  # all keys from the present one to this one are seen by all, by their ranges
    while key + keys < end:
        key += keys  # first those that all queries see, then the others
        keys = min(KEYS, (lowest + 1 if key <= lowest else end) - key, end - key)
        allowed = rows * keys
        if work.has_mask:
            allowed = count_seen(work, head, first, rows, key, keys)
            if allowed == 0:
                continue
        if work.has_ranges and key + keys > sure:
            key, keys, sure = next_seen(work, head, first, rows, key, end, KEYS)
            if keys == 0:
                break
            allowed = rows * keys if key + keys <= sure else 0
        row = work.key_row
        at = work.starts[KEY, head, 0] + key * row
        if work.has_bias or allowed < rows * keys or key + keys - 1 > lowest:
            product(tile, work.key, at, row, step, panel, scores, keys, width, depth, None)
            hide(work, head, first, rows, key, keys, allowed, limits, lowest, scores)
            raise_top(scores, keys, top)
        else:
            product(tile, work.key, at, row, step, panel, scores, keys, width, depth, top)
        step_up(top, below, factor, safe, work.unit)
        weigh(tile, scores, keys, safe, tile_total, work.unit, words)
        at = work.starts[VALUE, head, 0] + key * work.value_row
        add_values(tile, work, at, words, scores, weighted, keys, factor)
        for r in range(width):
            total[r] = total[r] * factor[r] + tile_total[r]
