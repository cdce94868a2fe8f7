"""The loops of `self_attention_sketch`, compiled by Numba. Its reference is that docstring.

Arrays are float32 and C-contiguous, widths are multiples of 16, and scores are in units of log 2,
so that weights are powers of two. Each loop takes a range of its work, so that threads share it.
"""

import numba
import numpy as np

from attnbook.sketch._self_simd import product, sign_bits

BLOCK = 64
"""Rows that are taken together."""

BITS = 64
"""Bits of a code."""

ZERO, HALF, INF = (np.float32(x) for x in (0, 0.5, np.inf))


def loops(function):
    """Compile without the interpreter's lock, and keep the machine code for later processes."""
    # everything of "fast" but the promise that there are no infinities
    rules = {"nsz", "arcp", "contract", "afn", "reassoc"}
    return numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=rules)(function)


# Moments


@loops
def column_sums(x, start, stop, total):
    """Add the rows from `start` to `stop` to `total` (float64)."""
    d = x.shape[1]
    part = np.empty(d, dtype=np.float32)
    for first in range(start, stop, 256):
        part[:] = 0
        for i in range(first, min(stop, first + 256)):
            for j in range(d):
                part[j] += x[i, j]
        for j in range(d):
            total[j] += part[j]


@loops
def second_moments(key, value, start, stop, sign, scatter, cross):
    """Add `sign` times KᵀK and KᵀV of the rows from `start` to `stop` (to float64)."""
    d, d_v = key.shape[1], value.shape[1]
    s, c = np.empty((d, d), dtype=np.float32), np.empty((d, d_v), dtype=np.float32)
    for i in range(start, stop, 256):
        m = min(256, stop - i)
        more = i > start
        product(key, i * d, 1, d, key, i * d, d, s, 0, d, (d, d, m), more)
        product(key, i * d, 1, d, value, i * d_v, d_v, c, 0, d_v, (d, d_v, m), more)
    if stop > start:
        for a in range(d):
            for b in range(d):
                scatter[a, b] += sign * s[a, b]
            for b in range(d_v):
                cross[a, b] += sign * c[a, b]


@loops
def group_sums(x, labels, start, stop, sums):
    """Add each row to the sum of its group (float64)."""
    for i in range(start, stop):
        c = labels[i]
        for j in range(x.shape[1]):
            sums[c, j] += x[i, j]


@loops
def group_traces(x, labels, means, start, stop, traces):
    """Add the squared distance of each row from the mean of its group (float64)."""
    for i in range(start, stop):
        c, total = labels[i], ZERO
        for j in range(x.shape[1]):
            step = x[i, j] - means[c, j]
            total += step * step
        traces[c] += total


# Cells


@loops
def nearest(x, start, stop, means_t, half, cells):
    """Write the number of the mean with the largest x·μ - half to `cells`."""
    d, width = means_t.shape
    rows = np.zeros((BLOCK, d), dtype=np.float32)
    near = np.empty((BLOCK, width), dtype=np.float32)
    for i in range(start, stop, BLOCK):
        m = min(BLOCK, stop - i)
        for r in range(m):
            for j in range(d):
                rows[r, j] = x[i + r, j]
        product(rows, 0, d, 1, means_t, 0, width, near, 0, width, (BLOCK, width, d), False)
        for r in range(m):
            best = -INF
            for c in range(width):
                near[r, c] -= half[c]
                best = max(best, near[r, c])
            c = 0
            while near[r, c] < best:
                c += 1
            cells[i + r] = c


@loops
def lloyd(sample, means, steps, means_t, half, cells):
    """Move `means` by Lloyd's steps on the sample; `means_t` and `half` follow."""
    n_cells, d = means.shape
    counts = np.empty(n_cells, dtype=np.int64)
    for step in range(steps + 1):
        half[:] = INF
        for c in range(n_cells):
            square = ZERO
            for j in range(d):
                means_t[j, c] = means[c, j]
                square += means[c, j] * means[c, j]
            half[c] = HALF * square
        if step == steps:
            return
        nearest(sample, 0, len(sample), means_t, half, cells)
        counts[:] = 0
        for i in range(len(sample)):
            counts[cells[i]] += 1
        for c in range(n_cells):
            if counts[c] > 0:
                means[c] = 0
        for i in range(len(sample)):
            for j in range(d):
                means[cells[i], j] += sample[i, j]
        for c in range(n_cells):
            if counts[c] > 0:
                for j in range(d):
                    means[c, j] /= np.float32(counts[c])


@loops
def group(labels, n_groups, starts, order):
    """Sort rows by label into `order`, group c from starts[c] on; labels below 0 are left out."""
    starts[:] = 0
    for i in range(len(labels)):
        if labels[i] >= 0:
            starts[labels[i] + 1] += 1
    for c in range(n_groups):
        starts[c + 1] += starts[c]
    for i in range(len(labels)):
        c = labels[i]
        if c >= 0:
            order[starts[c]] = i
            starts[c] += 1
    for c in range(n_groups, 0, -1):
        starts[c] = starts[c - 1]
    starts[0] = 0


@loops
def take_rows(x, order, start, stop, out):
    """Write ``out[start:stop] = x[order[start:stop]]``."""
    for i in range(start, stop):
        row = order[i]
        for j in range(x.shape[1]):
            out[i, j] = x[row, j]


@loops
def turn_groups(x, order, starts, first, stop, places, out):
    """Write the rows of each group as columns: (d, m), m rounded up to 16, from places[c] on."""
    d = x.shape[1]
    for c in range(first, stop):
        m = starts[c + 1] - starts[c]
        width = (m + 15) // 16 * 16
        turned = out[places[c] : places[c] + d * width].reshape((d, width))
        for r in range(0, m, 16):
            rows = order[starts[c] + r : starts[c] + min(r + 16, m)]
            for j in range(d):
                for a in range(len(rows)):
                    turned[j, r + a] = x[rows[a], j]
        for j in range(d):
            for r in range(m, width):
                turned[j, r] = ZERO


# Tables of codes


@loops
def sign_codes(x, start, stop, directions, thresholds, codes):
    """Write codes of 64 bits: bit j is 1 where x·a_j is at least thresholds[j]."""
    d = x.shape[1]
    rows = np.zeros((BLOCK, d), dtype=np.float32)
    along = np.empty((BLOCK, BITS), dtype=np.float32)
    for i in range(start, stop, BLOCK):
        m = min(BLOCK, stop - i)
        for r in range(m):
            for j in range(d):
                rows[r, j] = x[i + r, j]
        product(rows, 0, d, 1, directions, 0, BITS, along, 0, BITS, (BLOCK, BITS, d), False)
        for r in range(m):
            codes[i + r] = sign_bits(along, r * BITS, thresholds)


@loops
def fill_table(codes, shift, bits, starts, sorted_codes, rows):
    """Sort codes by `bits` of their bits from `shift` on: bucket b stands from starts[b] on."""
    mask = np.uint64((1 << bits) - 1)
    shift = np.uint64(shift)
    starts[:] = 0
    for i in range(len(codes)):
        starts[((codes[i] >> shift) & mask) + np.uint64(1)] += 1
    for b in range(1 << bits):
        starts[b + 1] += starts[b]
    for i in range(len(codes)):
        b = (codes[i] >> shift) & mask
        at = np.uint32(starts[b])
        starts[b] += 1
        sorted_codes[at] = codes[i]
        rows[at] = i
    for b in range(1 << bits, 0, -1):
        starts[b] = starts[b - 1]
    starts[0] = 0
