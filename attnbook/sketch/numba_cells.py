"""Answer queries from the cells of one table, each read from end to end, in compiled loops.

The cells of `LearnedCells` hold many keys, and different cells hold different ones. So nothing is
gathered or compared: keys and values lie a second time in the order of the table.
"""

import math

import numpy as np

from attnbook.compilers.jit import compile_inner, compile_sums
from attnbook.compilers.register_tiles import prefetch
from attnbook.sketch.numba_candidates import COUNT, find_buckets, most_candidates

GROUP = 8
"""How many queries have their places in directories prefetched together."""

AHEAD = 16
"""How many keys ahead of the one that is scored are prefetched, into the next cell too."""


@compile_inner
def answer_cells(query, key, value, ordered, signatures, tables, before, scale, out, start, stop):
    """Answer queries start … stop, whose signatures name different cells.

    `ordered` are the keys and values of the sorted part, place by place. Keys whose weights all
    together are below the rounding of the largest weight are left out of the sums.
    """
    n_columns, dtype = signatures.shape[1], query.dtype.type
    rounding = 2.0**-24 if query.itemsize == 4 else 2.0**-53
    begins = np.empty((GROUP, n_columns), np.int64)
    stops = np.empty((GROUP, n_columns), np.int64)
    heads = np.empty((GROUP, n_columns), np.int64)
    scores = np.empty(512, query.dtype)
    keys, values = ordered
    for first in range(start, stop, GROUP):
        n = min(GROUP, stop - first)
        find_buckets(signatures, tables, first, n, begins, stops, heads)
        for g in range(n):
            i = first + g
            most = most_candidates(tables, begins, stops, heads, g)
            if most > len(scores):
                scores = np.empty(2 * most, query.dtype)
            count, top, best = _score(
                *(query, i, key, keys, tables, before, dtype(scale)),
                *(begins, stops, heads, g, scores),
            )
            for j in range(value.shape[1]):
                out.output[i, j] = 0
            mass = 0.0
            if best >= 0:
                least = top + dtype(math.log(rounding / count))
                at = 0
                for c in range(n_columns):
                    for place in range(begins[g, c], stops[g, c]):
                        if scores[at] >= least:
                            share = math.exp(scores[at] - top)
                            mass += share
                            _add(out.output, i, dtype(share), values, place)
                        at += 1
                    link = heads[g, c]
                    while link >= 0:
                        if scores[at] >= least:
                            share = math.exp(scores[at] - top)
                            mass += share
                            _add(out.output, i, dtype(share), value, tables.side_first + link)
                        at += 1
                        link = np.int64(tables.side_next[0, link])
                for j in range(value.shape[1]):
                    out.output[i, j] /= dtype(mass)
            out.found[0, i] = top + math.log(mass) if best >= 0 else -np.inf
            out.found[1, i], out.found[2, i] = top, -np.inf
            out.found[3, i], out.found[4, i] = count, best


@compile_inner
def _score(query, i, key, keys, tables, before, scale, begins, stops, heads, g, scores):
    """Write the score of each candidate of query i, -inf for one that does not count.

    Return how many count, the largest score and its row, or -inf and -1.
    """
    n_columns, width, line = begins.shape[1], keys.shape[1], 64 // keys.itemsize
    stop = before[i] if len(before) else np.int64(COUNT)
    all_count = tables.n_dead == 0 and len(before) == 0
    none = query.dtype.type(-np.inf)
    at, count, top, best, place_of_best = 0, 0, none, -1, -1
    for c in range(n_columns):
        end = stops[g, c]
        # what comes after this cell: the next one of this query, or the first of the next query
        following = end
        if c + 1 < n_columns:
            following = begins[g, c + 1]
        elif g + 1 < len(begins):
            following = begins[g + 1, 0]
        for place in range(begins[g, c], end):
            ahead = place + AHEAD
            ahead = (ahead if ahead < end else following + ahead - end) * width
            for k in range(0, width, line):
                prefetch(keys, ahead + k)
            score = dot(query, i, keys, place) * scale
            if not all_count:
                row = _row(tables, place)
                if row >= stop or not tables.alive[row]:
                    scores[at] = none
                    at += 1
                    continue
            if score > top:
                top, place_of_best, best = score, place, -1
            scores[at] = score
            at += 1
            count += 1
        link = heads[g, c]
        while link >= 0:
            row = tables.side_first + link
            score = dot(query, i, key, row) * scale
            if row >= stop or not tables.alive[row]:
                score = none
            else:
                count += 1
            if score > top:
                top, best = score, row
            scores[at] = score
            at += 1
            link = np.int64(tables.side_next[0, link])
    if best < 0 and place_of_best >= 0:
        best = _row(tables, place_of_best)
    return count, top, best


@compile_inner
def _row(tables, place):
    """Return the row that stands at a place of the sorted part."""
    row = tables.entries[0, place] & ((1 << tables.bits) - 1)
    return np.int64(tables.rows[row]) if len(tables.rows) else row


@compile_sums
def dot(x, i, y, j):
    """Return the product of row i of `x` and row j of `y`."""
    total = x.dtype.type(0)
    for k in range(x.shape[1]):
        total += x[i, k] * y[j, k]
    return total


@compile_sums
def _add(output, i, weight, value, j):
    for k in range(value.shape[1]):
        output[i, k] += weight * value[j, k]
