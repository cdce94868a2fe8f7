"""Cross-polytope hashing in compiled loops: 16 vectors are rotated side by side.

The operations and their order are those of `CrossPolytopeHash`, so the codes are the same to the
last bit, ties included.
"""

import math

import numpy as np

from attnbook.compilers.jit import compile_inner
from attnbook.hashing.numba_probes import extend, largest_first

LANES = 16


@compile_inner
def corner_rows(x, arrays, joined, start, stop):
    """Write the probes of rows start … stop, row by row; return how many numbers do not fit."""
    n_tables, n_projections = arrays.offsets.shape
    D, d = arrays.panels.shape[2], x.shape[1]
    n_probes = joined.shape[1] // n_tables
    given = np.zeros((D, LANES), x.dtype)
    y = np.empty((n_projections, D, LANES), x.dtype)
    codes = np.empty((n_projections, LANES), np.int64)
    highest = np.empty(LANES, x.dtype)
    room = min(n_probes, 2 * D)
    scratch = (
        np.empty((2, n_probes), x.dtype),
        np.empty((2, n_probes), np.int64),
        np.empty(room, x.dtype),
        np.empty(room, np.int64),
    )
    n_bad = 0
    for first in range(start, stop, LANES):
        n = min(LANES, stop - first)
        for r in range(n):
            for k in range(d):
                given[k, r] = x[first + r, k]
                n_bad += not (abs(x[first + r, k]) < np.inf)  # also for NaN
        for t in range(n_tables):
            for j in range(n_projections):
                _rotate(given, arrays.panels[t * n_projections + j], y[j])
                if n_probes == 1:
                    _closest(y[j], highest, codes[j])
            for r in range(n):
                own = joined[first + r, t * n_probes : (t + 1) * n_probes]
                if n_probes == 1:
                    own[0] = 0
                    for j in range(n_projections):
                        own[0] += codes[j, r] * arrays.multipliers[j]
                else:
                    _probe(y[:, :, r], arrays.multipliers, own, scratch)
    return n_bad


@compile_inner
def _rotate(x, signs, y):
    """Write H D_3 H D_2 H D_1 x for the columns of `x`."""
    D, lanes = x.shape
    root = x.dtype.type(math.sqrt(D))
    y[:] = x
    for i in range(signs.shape[0]):
        for k in range(D):
            for r in range(lanes):
                y[k, r] *= signs[i, k]
        half = 1
        while half < D:
            for block in range(0, D, 2 * half):
                for k in range(block, block + half):
                    for r in range(lanes):
                        low, high = y[k, r], y[k + half, r]
                        y[k, r], y[k + half, r] = low + high, low - high
            half *= 2
        for k in range(D):
            for r in range(lanes):
                y[k, r] /= root


@compile_inner
def _closest(y, highest, codes):
    """Write the first corner that is closest to each column."""
    D, lanes = y.shape
    highest[:] = y[0]
    codes[:] = 0
    for sign in (1, -1):
        for k in range(D):
            code = k if sign > 0 else D + k
            for r in range(lanes):
                number = y[k, r] if sign > 0 else -y[k, r]
                if number > highest[r]:
                    highest[r], codes[r] = number, code


@compile_inner
def _probe(y, multipliers, joined, scratch):
    """Write the probes of one vector in one table; `y` (κ, D) is the vector rotated."""
    costs, sums, near, corners = scratch
    D, n_probes = y.shape[1], len(joined)
    prices, changes = np.empty(len(near), near.dtype), np.empty(len(near), np.int64)
    own, n = np.int64(0), 1
    costs[0, 0], sums[0, 0] = 0, 0
    for j in range(y.shape[0]):
        found = largest_first(y[j], near.dtype.type(1), 0, 0, near, corners)
        found = largest_first(y[j], near.dtype.type(-1), D, found, near, corners)
        own += corners[0] * multipliers[j]
        for i in range(1, found):
            gap = near[0] - near[i]
            prices[i - 1] = gap * gap
            changes[i - 1] = (corners[i] - corners[0]) * multipliers[j]
        n = extend(costs, sums, n, prices, changes, found - 1)
    for p in range(n_probes):
        joined[p] = own + sums[0, p]
