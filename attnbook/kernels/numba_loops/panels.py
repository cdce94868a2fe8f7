"""Panels of queries: how they are filled, what is hidden from them, and how their rows end.

A *panel* is as many queries as a tile is wide. All its tiles stand transposed, one column a query:
what is done to a row of scores (its maximum, its sum, its factor) is then done to whole vectors.
The rows of a head are all the queries that look at the same keys, those of its groups one after
another: row r is query r % n_q of group r // n_q.
"""

import numpy as np

from attnbook.compilers.exponentials import LOG2_E, TO_INTEGER, exp2_coefficients
from attnbook.compilers.jit import compile_fused
from attnbook.compilers.layouts import pair, transpose
from attnbook.kernels.numba_loops.arrays import BIAS, MASK, OUTPUT, QUERY
from attnbook.kernels.numba_loops.ranges import following, hide_unseen

_C0, _C1, _C2, _C3, _C4, _C5 = (np.float32(c) for c in exp2_coefficients())
_LOG2_E, _TO_INTEGER, _LOWEST = np.float32(LOG2_E), np.float32(TO_INTEGER), np.float32(-127)
_LAST = np.int32(127)
_BITS = np.int32(23)
_AT = np.uint64  # an index that is not negative: no test for that stands in a loop
_HALF = np.uint32(16)
_HIDDEN = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0), np.float32(1)


@compile_fused
def exp(x):
    """Return e**x of a float32 that is at most 0, exactly 0 below -87.7, NaN for NaN."""
    x = x * _LOG2_E
    x = _LOWEST if x < _LOWEST else x
    shifted = x + _TO_INTEGER
    f = x - (shifted - _TO_INTEGER)
    power = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
    exponent = (np.float32(shifted).view(np.int32) + _LAST) << _BITS  # of -127: the bits of 0
    return power * np.int32(exponent).view(np.float32)


@compile_fused
def aligned(rows, width):
    """Return an empty tile whose vectors do not cross cache lines, if `width` is full vectors."""
    x = np.empty(rows * width + 16, np.float32)
    skip = (-x.ctypes.data // 4) % 16
    return x[skip : skip + rows * width].reshape((rows, width))


@compile_fused
def turn(tile, a, b):
    """Set B to the transpose of A, whose sides are multiples of a tile's lanes."""
    n, m = a.shape
    for i in range(0, n, tile.lanes):
        for j in range(0, m, tile.lanes):
            transpose(tile, a, i * m + j, m, b, j * n + i, n)


@compile_fused
def gather(tile, work, head, first, rows, queries, panel, limits, words):
    """Fill `panel` with scaled queries, a column each, and `limits` with the last keys they see.

    Return the first and the last of these. With `words`, queries are the bits of bfloat16 numbers.
    `queries` is room for them, a row each.
    """
    lowest = highest = work.n_k - 1
    if work.is_causal:
        lowest, highest = work.n_k, -1
    group, i = divmod(first, work.n_q)
    for r in range(limits.size):
        at = work.starts[QUERY, head, group] + i * work.query_row
        for c in range(work.d_k):
            if words is None:
                x = work.query[_AT(at + c)]
            else:
                x = np.uint32(np.uint32(work.query[_AT(at + c)]) << _HALF).view(np.float32)
            queries[r, c] = x * work.scale
        limits[r] = work.n_k - 1
        if work.is_causal:
            limits[r] = i + work.n_k - work.n_q
            lowest, highest = min(lowest, limits[r]), max(highest, limits[r])
        if r < rows - 1:  # else the last one again, to the end
            group, i = following(group, i, work.n_q)
    turn(tile, queries, panel)
    return lowest, highest


@compile_fused
def clear(weighted, total, top, below):
    """Begin with no key."""
    for c in range(weighted.shape[0]):
        for r in range(weighted.shape[1]):
            weighted[c, r] = _ZERO
    for r in range(total.size):
        total[r], top[r], below[r] = _ZERO, _HIDDEN, _HIDDEN


@compile_fused
def count_seen(work, head, first, rows, key, keys):
    """Return how many of `rows` times `keys` scores the mask leaves."""
    total, before, count = 0, -1, 0
    for r in range(rows):
        group, i = divmod(first + r, work.n_q)
        at = work.starts[MASK, head, group] + i * work.mask_row + key * work.mask_column
        if at != before:  # else the mask is one for all queries
            before, count = at, 0
            if work.mask_column == 1:
                for allowed in work.mask[at : at + keys]:
                    count += allowed != 0  # True may be any other byte
            else:
                for j in range(keys):
                    count += work.mask[at + j * work.mask_column] != 0
        total += count
    return total


@compile_fused
def add_bias(work, head, first, rows, key, keys, scores):
    """Add the bias to a tile of scores."""
    for r in range(rows):
        group, i = divmod(first + r, work.n_q)
        at = work.starts[BIAS, head, group] + i * work.bias_row + key * work.bias_column
        for j in range(keys):
            scores[j, r] += work.bias[at + j * work.bias_column]


@compile_fused
def hide_masked(work, head, first, rows, key, keys, scores):
    """Replace scores that the mask hides by -inf, whatever they are."""
    for r in range(rows):
        group, i = divmod(first + r, work.n_q)
        at = work.starts[MASK, head, group] + i * work.mask_row + key * work.mask_column
        for j in range(keys):  # no branch: a mask may be of any pattern
            score = scores[j, r]
            scores[j, r] = score if work.mask[_AT(at + j * work.mask_column)] else _HIDDEN


@compile_fused
def hide_later(limits, key, keys, scores):
    """Replace the scores of keys after the last one that a query sees by -inf."""
    for j in range(keys):
        here = np.int32(key + j)
        for r in range(scores.shape[1]):
            score = scores[j, r]
            scores[j, r] = score if here <= limits[r] else _HIDDEN


@compile_fused
def hide(work, head, first, rows, key, keys, allowed, limits, lowest, scores):
    """Add the bias to a tile of scores, and hide what its queries may not see."""
    if work.has_bias:
        add_bias(work, head, first, rows, key, keys, scores)
    if work.has_ranges:
        if allowed < rows * keys:
            hide_unseen(work, head, first, rows, key, keys, scores)
    elif allowed < rows * keys:
        hide_masked(work, head, first, rows, key, keys, scores)
    if key + keys - 1 > lowest:
        hide_later(limits, key, keys, scores)


@compile_fused
def raise_top(scores, keys, top):
    """Raise `top` to the largest score of each column; NaN, which is not larger, waits."""
    for j in range(keys):
        for r in range(scores.shape[1]):
            score = scores[j, r]
            top[r] = score if score > top[r] else top[r]


@compile_fused
def step_up(top, below, factor, safe, unit):
    """Set `factor` to what the sums below the old maximum `below` count below the new one, `top`.

    Scores are counted in units of `unit`.

    `safe` is the new maximum, or 0 where no score was seen yet: -inf less -inf would be NaN.
    """
    for r in range(top.size):
        safe[r] = top[r] if top[r] > _HIDDEN else _ZERO
        factor[r] = exp((below[r] - safe[r]) * unit)
        below[r] = top[r]


@compile_fused
def pair_rows(tile, x):
    """Leave the rows 2 i and 2 i + 1 of `x`, rounded to bfloat16, as words in row i."""
    width = x.shape[1]
    for i in range(0, x.shape[0], 2):
        pair(tile, x, i * width, width, i // 2 * width)


@compile_fused
def write(tile, work, head, first, rows, weighted, sums, vectors, output, ends, words):
    """Write the weighted sums, divided by the totals, as rows of the output, and `ends` of it.

    `sums` is room for a row a query. With `words`, the output is words of two bfloat16 numbers.
    """
    top, factor, total = vectors[1], vectors[3], vectors[4]
    for r in range(total.size):
        factor[r] = _ONE / total[r] if total[r] != _ZERO else _ONE
    for c in range(work.d_v):
        for r in range(total.size):
            weighted[c, r] *= factor[r]
    if words is not None:
        pair_rows(tile, weighted)
    turn(tile, weighted, sums)
    group, i = divmod(first, work.n_q)
    for r in range(rows):
        row = work.starts[OUTPUT, head, group] + i
        for c in range(output.shape[1]):
            output[row, c] = sums[r, c]
        ends[0, row], ends[1, row] = top[r], total[r]
        group, i = following(group, i, work.n_q)
