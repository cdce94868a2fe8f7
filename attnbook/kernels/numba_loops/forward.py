"""The loops of the rung *packed*: tiles whose sums stay in registers, and keys split in chunks.

As in `plain`, a panel of queries stands one query a column. A product of tiles is made a
block of sums at a time (`register_tiles.multiply`): as many as there are registers for, each of which is
written once, when it is done. The panel is packed; keys and values are read where they are, one
number at a time, which every lane gets.

Where there are few panels the keys are split in chunks, each with a maximum, a total and weighted
sums of its own, and these are merged in the order of the keys. How many depends on the sizes
alone, so the bits do not depend on the threads.
"""

import numpy as np

from attnbook.compilers.jit import compile_fused, compile_loops
from attnbook.compilers.register_tiles import claim, multiply, multiply_onto, multiply_top, weigh
from attnbook.kernels.numba_loops.panels import (
    KEY,
    VALUE,
    aligned,
    clear,
    count_seen,
    gather,
    hide,
    raise_top,
    step_up,
    write,
)

KEYS = 128
"""Keys of a tile: its scores stay in the innermost cache."""

_ZERO = np.float32(0)


@compile_fused
def meet(tile, work, task, start, stop, space):
    """Let a panel of queries meet the keys from `start` to `stop`."""
    panel, limits, scores, weighted, vectors = space
    below, top, safe = vectors[0], vectors[1], vectors[2]
    factor, total, tile_total = vectors[3], vectors[4], vectors[5]
    head, first, rows = task
    width, d_k, d_v = tile.width, work.d_k, work.d_v
    lowest, highest = gather(work, head, first, rows, panel, limits)
    clear(weighted, total, top, below)
    for key in range(start, min(stop, highest + 1), KEYS):
        keys = min(KEYS, stop - key)
        allowed = rows * keys
        if work.has_mask:
            allowed = count_seen(work, head, first, rows, key, keys)
            if allowed == 0:
                continue
        row = work.key_row
        at = work.starts[KEY, head, 0] + key * row
        if work.has_bias or allowed < rows * keys or key + keys - 1 > lowest:
            for j in range(0, keys, tile.rows):
                n, to = min(tile.rows, keys - j), j * width
                multiply(
                    tile, work.key, at + j * row, row, 1, panel, 0, width, scores, to, width, n, d_k
                )
            hide(work, head, first, rows, key, keys, allowed, limits, lowest, scores)
            raise_top(scores, keys, top)
        else:
            for j in range(0, keys, tile.rows):
                n, to = min(tile.rows, keys - j), j * width
                here = at + j * row
                multiply_top(
                    tile, work.key, here, row, 1, panel, 0, width, scores, to, width, n, d_k, top
                )
        step_up(top, below, factor, safe)
        weigh(tile, scores, 0, keys, safe, tile_total)
        row = work.value_row
        at = work.starts[VALUE, head, 0] + key * row
        for c in range(0, d_v, tile.rows):
            n, to = min(tile.rows, d_v - c), c * width
            multiply_onto(
                *(tile, work.value, at + c, 1, row, scores, 0, width),
                *(weighted, to, width, n, keys, factor),
            )
        for r in range(width):
            total[r] = total[r] * factor[r] + tile_total[r]


@compile_loops
def attend(tile, work, n_chunks, counter, partial, output, log_total):
    """Take panels, or chunks of them, one after the other until `counter` has passed them all."""
    width, n_rows = tile.width, work.starts.shape[2] * work.n_q
    panels = -(-n_rows // width)
    n_tasks = work.starts.shape[1] * panels * n_chunks
    panel, limits = aligned(work.d_k, width), np.empty(width, np.int32)
    scores, weighted, vectors = aligned(KEYS, width), aligned(work.d_v, width), aligned(6, width)
    top, total = vectors[1], vectors[4]
    space = (panel, limits, scores, weighted, vectors)
    while True:
        i = claim(counter)
        if i >= n_tasks:
            break
        place, chunk = divmod(n_tasks - 1 - i, n_chunks)  # under a causal mask the longest first
        head, first = place // panels, place % panels * width
        rows = min(width, n_rows - first)
        start, stop = work.n_k * chunk // n_chunks, work.n_k * (chunk + 1) // n_chunks
        meet(tile, work, (head, first, rows), start, stop, space)
        if n_chunks == 1:
            write(work, head, first, rows, weighted, top, total, output, log_total)
        else:
            for r in range(width):
                for c in range(work.d_v):
                    partial[place, chunk, c, r] = weighted[c, r]
                partial[place, chunk, work.d_v, r] = top[r]
                partial[place, chunk, work.d_v + 1, r] = total[r]


@compile_loops
def merge(work, partial, output, log_total):
    """Write the output of the panels from the sums of their chunks, in the order of the keys."""
    n_places, n_chunks, height, width = partial.shape
    d_v, n_rows = height - 2, work.starts.shape[2] * work.n_q
    panels = -(-n_rows // width)
    weighted, vectors = np.empty((d_v, width), np.float32), np.empty((5, width), np.float32)
    below, top, safe, factor, total = vectors[0], vectors[1], vectors[2], vectors[3], vectors[4]
    for place in range(n_places):
        clear(weighted, total, top, below)
        for chunk in range(n_chunks):
            for r in range(width):
                top[r] = max(top[r], partial[place, chunk, d_v, r])
        for chunk in range(n_chunks):
            for r in range(width):
                below[r] = partial[place, chunk, d_v, r]
            step_up(top, below, factor, safe)
            for c in range(d_v):
                for r in range(width):
                    weighted[c, r] += factor[r] * partial[place, chunk, c, r]
            for r in range(width):
                total[r] += factor[r] * partial[place, chunk, d_v + 1, r]
        head, first = place // panels, place % panels * width
        rows = min(width, n_rows - first)
        write(work, head, first, rows, weighted, top, total, output, log_total)
