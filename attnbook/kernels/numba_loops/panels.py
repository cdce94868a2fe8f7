"""Panels of queries: how they are filled, what is hidden from them, and how their rows end.

A *panel* is as many queries as a tile is wide. All its tiles stand transposed, one column a query:
what is done to a row of scores (its maximum, its sum, its factor) is then done to whole vectors.
The rows of a head are all the queries that look at the same keys, those of its groups one after
another: row r is query r % n_q of group r // n_q.
"""

import numpy as np

from attnbook.compilers.exponentials import LOG2_E, TO_INTEGER, exp2_coefficients
from attnbook.compilers.jit import compile_fused
from attnbook.kernels.numba_loops.arrays import BIAS, MASK, OUTPUT, QUERY

_C0, _C1, _C2, _C3, _C4, _C5 = (np.float32(c) for c in exp2_coefficients())
_LOG2_E, _TO_INTEGER, _LOWEST = np.float32(LOG2_E), np.float32(TO_INTEGER), np.float32(-127)
_LAST = np.int32(127)
_BITS = np.int32(23)
_AT = np.uint64  # an index that is not negative: no test for that stands in a loop
_HALF, _BELOW_HALF, _ODD = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)
_HIDDEN = np.float32(-np.inf)
_ZERO = np.float32(0)


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
def gather(work, head, first, rows, panel, limits, words):
    """Fill `panel` with scaled queries, a column each, and `limits` with the last keys they see.

    Return the first and the last of these. With `words`, queries are the bits of bfloat16 numbers.
    """
    d, width = panel.shape
    lowest = highest = work.n_k - 1
    if work.is_causal:
        lowest, highest = work.n_k, -1
    for r in range(width):
        group, i = divmod(first + min(r, rows - 1), work.n_q)  # the last one again, to the end
        at = work.starts[QUERY, head, group] + i * work.query_row
        for c in range(d):
            if words is None:
                x = work.query[_AT(at + c)]
            else:
                x = np.uint32(np.uint32(work.query[_AT(at + c)]) << _HALF).view(np.float32)
            panel[c, r] = x * work.scale
        limits[r] = work.n_k - 1
        if work.is_causal:
            limits[r] = i + work.n_k - work.n_q
            lowest, highest = min(lowest, limits[r]), max(highest, limits[r])
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
                    count += allowed
            else:
                for j in range(keys):
                    count += work.mask[at + j * work.mask_column]
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
    if allowed < rows * keys:
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
def write(work, head, first, rows, weighted, top, total, output, log_total, words):
    """Divide the weighted sums by the totals into the rows of the output.

    With `words`, the output is the bits of bfloat16 numbers.
    """
    for c in range(work.d_v):
        for r in range(total.size):
            weighted[c, r] /= total[r] if total[r] != _ZERO else np.float32(1)
    for r in range(rows):
        group, i = divmod(first + r, work.n_q)
        row = work.starts[OUTPUT, head, group] + i
        for c in range(work.d_v):
            if words is None:
                output[row, c] = weighted[c, r]
            else:  # rounded to the nearest, half to even
                bits = np.float32(weighted[c, r]).view(np.uint32)
                output[row, c] = (bits + _BELOW_HALF + ((bits >> _HALF) & _ODD)) >> _HALF
        log_total[row] = np.float64(top[r]) + np.log(np.float64(total[r]))
