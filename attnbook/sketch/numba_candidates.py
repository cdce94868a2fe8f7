"""The candidates of a query: which rows the tables have for it, inside compiled loops."""

from typing import NamedTuple

import numpy as np

from attnbook.compilers.jit import compile_inner
from attnbook.compilers.register_tiles import prefetch
from attnbook.hashing.robin_hood import DISPLACEMENT, KEY, VALUE

COUNT = 2**31 - 1
"""Mask of the lower half of a value in a map, the number of rows in the bucket."""

FEW = 24
"""Up to so many candidates, a new one is compared with each; beyond, a hash set knows them."""


class Limits(NamedTuple):
    """Which candidates count; an empty array allows all."""

    before: np.ndarray
    above: np.ndarray
    allowed: np.ndarray
    max_bucket: int


@compile_inner
def find_buckets(signatures, tables, first, n, homes, runs, heads):
    """Find the buckets of n queries: `runs` as ``start << 31 | count``, and `heads` of side chains.

    Both are -1 where there is none.
    """
    slots, starts = tables.slots, tables.slot_starts
    n_tables, n_main = tables.order.shape
    for g in range(n):
        for t in range(n_tables):
            home = _home(signatures[first + g, t], tables.mixer, starts[t + 1] - starts[t])
            homes[g, t] = home
            prefetch(slots, 3 * (starts[t] + home))
            prefetch(slots, 3 * (starts[t] + home) + 8)  # the next line, for the next slots
    for g in range(n):
        for t in range(n_tables):
            signature = signatures[first + g, t]
            run = _find(slots, starts[t], starts[t + 1] - starts[t], homes[g, t], signature)
            runs[g, t], heads[g, t] = run, -1
            prefetch(tables.order, t * n_main + (run >> 31))
            if tables.n_side > 0:
                n_slots = tables.side_slots.shape[1]
                home = _home(signature, tables.mixer, n_slots)
                side = tables.side_slots.reshape(-1, 3)
                heads[g, t] = _find(side, t * n_slots, n_slots, home, signature) >> 31


@compile_inner
def _home(key, mixer, n_slots):
    """As `robin_hood.home_slot`; a copy, since Numba's cache does not look into other files."""
    hashed = mixer[0, key & 255]
    for i in range(1, 8):
        hashed = hashed ^ mixer[i, (key >> (8 * i)) & 255]
    return ((hashed >> 31) * n_slots) >> 31


@compile_inner
def _find(slots, first, n_slots, home, key):
    """Return the value of `key` in the map ``slots[first:first + n_slots]``, or -1.

    As `robin_hood.find_slot`, from a known home.
    """
    slot, displacement = home, 0
    while slots[first + slot, DISPLACEMENT] >= displacement:
        if slots[first + slot, KEY] == key:
            return slots[first + slot, VALUE]
        displacement += 1
        slot += 1
        if slot == n_slots:
            slot = 0
    return np.int64(-1)


@compile_inner
def most_candidates(tables, limits, runs, heads, g):
    """Return how many candidates query g of the group has at most."""
    most = 0
    for t in range(runs.shape[1]):
        if runs[g, t] >= 0:
            most += min(runs[g, t] & COUNT, limits.max_bucket)
        if heads[g, t] >= 0:
            most += min(tables.n_side, limits.max_bucket)
    return most


@compile_inner
def collect(tables, limits, runs, heads, g, first, rows, times, begin, seen):
    """Write the different candidates of query g of the group to rows[begin:end]; return end.

    `times` counts in how many tables each was found. The order is that of the tables, and inside a
    table ascending.
    """
    query = first + g
    before = limits.before[query] if len(limits.before) else np.int64(COUNT)
    end = begin
    for t in range(runs.shape[1]):
        left = limits.max_bucket
        if runs[g, t] >= 0:
            start = runs[g, t] >> 31
            for place in range(start, start + (runs[g, t] & COUNT)):
                row = np.int64(tables.order[t, place])
                if left == 0 or row >= before:
                    break
                if tables.n_dead == 0 or tables.alive[row]:
                    left -= 1
                    if len(limits.allowed) == 0 or limits.allowed[row]:
                        end = _take(row, rows, times, begin, end, seen, query)
        link = heads[g, t]
        while link >= 0:
            row = tables.side_first + link
            if left == 0 or row >= before:
                break
            if tables.n_dead == 0 or tables.alive[row]:
                left -= 1
                if len(limits.allowed) == 0 or limits.allowed[row]:
                    end = _take(row, rows, times, begin, end, seen, query)
            link = np.int64(tables.side_next[t, link])
    return end


@compile_inner
def _take(row, rows, times, begin, end, seen, query):
    """Add `row` to rows[begin:end], or count it once more if it is there; return the new end.

    Beyond a few, the candidates are in a hash set too: `seen` holds their places, and the query
    that they are of, so that what is left of other queries does not count.
    """
    n = end - begin
    if n <= FEW:
        for c in range(begin, end):
            if rows[c] == row:
                times[c] += 1
                return end
    if n >= FEW:
        if n == FEW:
            for c in range(begin, end):
                seen[_free_place(rows[c], rows, begin, seen, query)] = (query + 1) << 31 | c - begin
        place = _free_place(row, rows, begin, seen, query)
        if seen[place] >> 31 == query + 1:
            times[begin + (seen[place] & COUNT)] += 1
            return end
        seen[place] = (query + 1) << 31 | n
    rows[end], times[end] = row, 1
    return end + 1


@compile_inner
def _free_place(row, rows, begin, seen, query):
    """Return where in `seen` the row is, or a free place for it."""
    mask = len(seen) - 1
    place = (row * 0x9E3779B1 >> 12) & mask  # Knuth's multiplier spreads neighbours
    while seen[place] >> 31 == query + 1 and rows[begin + (seen[place] & COUNT)] != row:
        place = (place + 1) & mask
    return place
