"""The candidates of a query, which are the rows that the tables hold for it, in compiled loops."""

import numpy as np

from attnbook.compilers.jit import compile_inner
from attnbook.compilers.register_tiles import prefetch
from attnbook.hashing import robin_hood
from attnbook.hashing.robin_hood import VALUE
from attnbook.sketch.bucket_tables import first_not_below
from attnbook.sketch.numba_build import scrambled_one

COUNT = 2**31 - 1
"""A mask of 31 bits. It is larger than every row."""

FEW = 24
"""Up to so many candidates a new one is compared with each. Beyond, a hash set holds them."""


_first_not_below = compile_inner(first_not_below)
_find_slot = robin_hood.functions("numba").find_slot


@compile_inner
def find_buckets(signatures, tables, first, n, begins, ends, heads):
    """Find the buckets of n queries: entries `begins` to `ends`, and `heads` of side chains.

    All places in directories are prefetched before the first is read, and then all entries. A head
    is -1 where there is no chain.
    """
    starts, entries, bits = tables.starts, tables.entries, tables.bits
    n_tables, n_main = entries.shape
    n_columns, mask = signatures.shape[1], (1 << bits) - 1
    n_probes = n_columns // n_tables
    for g in range(n):
        for c in range(n_columns):
            hashed = scrambled_one(signatures[first + g, c], tables.salt)
            begins[g, c] = hashed
            prefetch(starts, (c // n_probes) * starts.shape[1] + ((hashed >> (64 - bits)) & mask))
    for g in range(n):
        for c in range(n_columns):
            t, cell = c // n_probes, (begins[g, c] >> (64 - bits)) & mask
            ends[g, c] = starts[t, cell + 1]
            heads[g, c] = starts[t, cell]
            prefetch(entries, t * n_main + heads[g, c])
    for g in range(n):
        for c in range(n_columns):
            t, wanted = c // n_probes, (begins[g, c] << bits) >> bits
            begin = _first_not_below(entries, t, heads[g, c], ends[g, c], bits, wanted)
            ends[g, c] = _first_not_below(entries, t, begin, ends[g, c], bits, wanted + 1)
            begins[g, c], heads[g, c] = begin, -1
    if tables.n_side > 0:
        for g in range(n):
            for c in range(n_columns):
                slots = tables.side_slots[c // n_probes]
                slot = _find_slot(slots, tables.mixer, signatures[first + g, c])
                if slot >= 0:
                    heads[g, c] = slots[slot, VALUE] >> 31


@compile_inner
def most_candidates(tables, begins, ends, heads, g):
    """Return how many candidates query g of the group has at most."""
    most = 0
    for c in range(begins.shape[1]):
        most += ends[g, c] - begins[g, c]
        if heads[g, c] >= 0:
            most += tables.n_side
    return most


@compile_inner
def collect(tables, before, begins, ends, heads, g, first, rows, times, begin, seen):
    """Write the different candidates of query g of the group to rows[begin:end], and return end.

    A candidate of query i counts if its row is below `before[i]`; an empty array allows all.
    `times` counts in how many buckets each was found. They stand in the order of the tables, and
    ascend in each bucket.
    """
    query, mask = first + g, (1 << tables.bits) - 1
    stop = before[query] if len(before) else np.int64(COUNT)
    n_columns, end = begins.shape[1], begin
    n_probes = n_columns // tables.entries.shape[0]
    for c in range(n_columns):
        t = c // n_probes
        for place in range(begins[g, c], ends[g, c]):
            row = tables.entries[t, place] & mask
            if len(tables.rows):
                row = np.int64(tables.rows[row])
            if row >= stop:
                break
            if tables.n_dead == 0 or tables.alive[row]:
                end = _take(row, rows, times, begin, end, seen, query)
        link = heads[g, c]
        while link >= 0:
            row = tables.side_first + link
            if row >= stop:
                break
            if tables.n_dead == 0 or tables.alive[row]:
                end = _take(row, rows, times, begin, end, seen, query)
            link = np.int64(tables.side_next[t, link])
    return end


@compile_inner
def _take(row, rows, times, begin, end, seen, query):
    """Add `row` to rows[begin:end], or count it once more if it is there; return the new end.

    More than a few candidates are in a hash set too. `seen` holds their places and their query, so
    that what other queries left in it does not count.
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
