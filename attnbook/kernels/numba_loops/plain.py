"""The loops of the rung *numba*: a panel of queries meets all keys, a tile of them at a time.

There is nothing here but loops over numbers. The innermost one runs over a row of a tile, whose
numbers do not depend on each other, so LLVM makes it of vectors, whatever the processor has. Four
rows and four terms at a time, each number that is read from the innermost cache is used four times.
"""

import numpy as np

from attnbook.compilers.jit import compile_fused, compile_loops
from attnbook.compilers.register_tiles import claim
from attnbook.kernels.numba_loops.panels import (
    KEY,
    VALUE,
    aligned,
    clear,
    count_seen,
    exp,
    gather,
    hide,
    raise_top,
    step_up,
    write,
)

WIDTH, KEYS = 128, 64
"""Queries of a panel, and keys of a tile."""

_AT = np.uint64  # an index that is not negative, so that no test for that stands in a loop
_ZERO = np.float32(0)


@compile_fused
def product(a, start, a_row, a_column, b, c, rows):
    """Set the first `rows` rows of C to A B, where A[i, k] is ``a[start + i a_row + k a_column]``.

    Each sum is made in the order of k.
    """
    depth, width = b.shape
    for i in range(rows):
        for j in range(width):
            c[i, j] = _ZERO
    whole_rows, whole_depth = rows - rows % 4, depth - depth % 4
    for i in range(0, whole_rows, 4):
        i0, i1, i2, i3 = _AT(i), _AT(i + 1), _AT(i + 2), _AT(i + 3)
        for k in range(0, whole_depth, 4):
            k0, k1, k2, k3 = _AT(k), _AT(k + 1), _AT(k + 2), _AT(k + 3)
            at = start + i * a_row + k * a_column
            w0, w1, w2, w3 = four(a, at, a_column)
            x0, x1, x2, x3 = four(a, at + a_row, a_column)
            y0, y1, y2, y3 = four(a, at + 2 * a_row, a_column)
            z0, z1, z2, z3 = four(a, at + 3 * a_row, a_column)
            for j in range(width):
                r = _AT(j)
                b0, b1, b2, b3 = b[k0, r], b[k1, r], b[k2, r], b[k3, r]
                c[i0, r] = c[i0, r] + w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3
                c[i1, r] = c[i1, r] + x0 * b0 + x1 * b1 + x2 * b2 + x3 * b3
                c[i2, r] = c[i2, r] + y0 * b0 + y1 * b1 + y2 * b2 + y3 * b3
                c[i3, r] = c[i3, r] + z0 * b0 + z1 * b1 + z2 * b2 + z3 * b3
    for i in range(rows):
        for k in range(whole_depth if i < whole_rows else 0, depth):
            number = a[start + i * a_row + k * a_column]
            for j in range(width):
                c[i, j] += number * b[k, j]


@compile_fused
def four(a, at, step):
    """Return four numbers, `step` apart."""
    return a[_AT(at)], a[_AT(at + step)], a[_AT(at + 2 * step)], a[_AT(at + 3 * step)]


@compile_fused
def weigh(scores, keys, top, total):
    """Replace the first `keys` rows of scores by e**(score - top), and sum them in `total`."""
    for r in range(total.size):
        total[r] = _ZERO
    for j in range(keys):
        for r in range(scores.shape[1]):
            weight = exp(scores[j, r] - top[r])
            scores[j, r] = weight
            total[r] += weight


@compile_loops
def attend(work, width, counter, output, log_total):
    """Take panels of `width` queries one after the other until `counter` has passed them all."""
    _, heads, groups = work.starts.shape
    panels = -(-groups * work.n_q // width)
    panel, limits = aligned(work.d_k, width), np.empty(width, np.int32)
    scores, added = aligned(KEYS, width), aligned(work.d_v, width)
    weighted = aligned(work.d_v, width)
    vectors = aligned(6, width)
    below, top, safe, factor, total, tile_total = (
        vectors[0],
        vectors[1],
        vectors[2],
        vectors[3],
        vectors[4],
        vectors[5],
    )
    while True:
        task = claim(counter)
        if task >= heads * panels:
            break
        place = heads * panels - 1 - task  # under a causal mask, the longest first
        head, first = place // panels, place % panels * width
        rows = min(width, groups * work.n_q - first)
        lowest, highest = gather(work, head, first, rows, panel, limits)
        clear(weighted, total, top, below)
        for key in range(0, min(work.n_k, highest + 1), KEYS):
            keys = min(KEYS, work.n_k - key)
            allowed = rows * keys
            if work.has_mask:
                allowed = count_seen(work, head, first, rows, key, keys)
            if allowed == 0:
                continue
            key_at = work.starts[KEY, head, 0] + key * work.key_row
            product(work.key, key_at, work.key_row, 1, panel, scores, keys)
            hide(work, head, first, rows, key, keys, allowed, limits, lowest, scores)
            raise_top(scores, keys, top)
            step_up(top, below, factor, safe)
            weigh(scores, keys, safe, tile_total)
            value_at = work.starts[VALUE, head, 0] + key * work.value_row
            product(work.value, value_at, 1, work.value_row, scores[:keys], added, work.d_v)
            for c in range(work.d_v):
                for r in range(width):
                    weighted[c, r] = weighted[c, r] * factor[r] + added[c, r]
            for r in range(width):
                total[r] = total[r] * factor[r] + tile_total[r]
        write(work, head, first, rows, weighted, top, total, output, log_total)
