"""Build the tables that `bucket_tables` describes, with Numba.

Scrambled signatures are spread evenly whatever the signatures are. So one pass deals the rows of a
table into parts of about a thousand by their first bits, and each part is then sorted into its
cells by the next bits, inside the cache. A cell has about one row; several are put in order.
"""

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_inner, compile_loops
from attnbook.sketch.bucket_tables import bits_for, scrambled

PART = 10
"""A part has about 2**10 rows."""

MOST_PARTS = 12
"""There are at most 2**12 parts, so that the ends of all stay in the cache while rows are dealt."""

CROWD = 32
"""With more rows than this in a cell, insertion would be slow."""


def build_tables(
    signatures: np.ndarray, salt: int, *, n_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return `starts` and `entries` of signatures (n, L). The place of a row is its number here.

    It is fastest with signatures that lie in memory column by column, as `numba_signatures` returns
    them. It costs O(n L) expected, and 16 bytes of scratch a row, whatever L is.
    """
    n, n_tables = signatures.shape
    n_threads, bits = n_threads_for(n, n_threads), bits_for(n)
    part_bits = min(MOST_PARTS, max(0, bits - PART))
    n_parts = 2**part_bits
    starts = np.empty((n_tables, 2**bits + 1), dtype=np.int32)
    entries = np.empty((n_tables, n), dtype=np.int64)
    dealt = np.empty((n, 2), dtype=np.int64)  # scrambled signature, and row
    counts = np.zeros((n_threads, n_parts), dtype=np.int64)
    for t in range(n_tables):
        column = signatures[:, t]

        def count(start, stop, thread, column=column):
            _count(column, salt, part_bits, counts[thread], start, stop)

        in_parts(count, n, n_threads)
        sizes = counts.sum(axis=0)
        ends = np.append(0, np.cumsum(sizes))
        places = ends[:-1] + np.cumsum(counts, axis=0) - counts  # (n_threads, n_parts)

        def deal(start, stop, thread, column=column, places=places):
            _deal(column, salt, part_bits, places[thread], dealt, start, stop)

        in_parts(deal, n, n_threads)

        def sort(first, stop, thread, ends=ends, starts=starts[t], entries=entries[t]):
            _sort(dealt, ends, bits, part_bits, starts, entries, first, stop)

        in_parts(sort, n_parts, min(n_threads, n_parts))
        starts[t, -1] = n
    return starts, entries


scrambled_one = compile_inner(scrambled)


@compile_inner
def _first_bits(hashed, bits):
    """Return the first bits of 64 as a number."""
    return (hashed >> 1 >> (63 - bits)) & ((1 << bits) - 1)  # a shift by 64 would be undefined


@compile_loops
def _count(column, salt, part_bits, counts, start, stop):
    """Count how many of rows start … stop go to each part."""
    counts[:] = 0
    column = column[start:stop]
    for i in range(len(column)):
        counts[_first_bits(scrambled_one(column[i], salt), part_bits)] += 1


@compile_loops
def _deal(column, salt, part_bits, places, dealt, start, stop):
    """Write rows start … stop to the places of their parts."""
    column = column[start:stop]
    for i in range(len(column)):
        hashed = scrambled_one(column[i], salt)
        part = _first_bits(hashed, part_bits)
        place = places[part]
        dealt[place, 0], dealt[place, 1] = hashed, start + i
        places[part] = place + 1


@compile_loops
def _sort(dealt, ends, bits, part_bits, starts, entries, first, stop):
    """Sort parts first … stop: write where their cells start, and the entries."""
    n_cells = 1 << (bits - part_bits)
    mask, shift = n_cells - 1, 64 - bits
    at = np.empty(n_cells + 1, np.int64)
    for part in range(first, stop):
        a, b = ends[part], ends[part + 1]
        at[:] = 0
        for i in range(a, b):
            at[((dealt[i, 0] >> shift) & mask) + 1] += 1
        at[0] = a
        for cell in range(n_cells):
            starts[part * n_cells + cell] = at[cell]
            at[cell + 1] += at[cell]
        for i in range(a, b):
            cell = (dealt[i, 0] >> shift) & mask
            entries[at[cell]] = dealt[i, 0] << bits | dealt[i, 1]
            at[cell] += 1
        begin = a
        for cell in range(n_cells):
            _put_in_order(entries[begin : at[cell]])
            begin = at[cell]


@compile_inner
def _put_in_order(x):
    """Sort the few entries of a cell. Rows of one signature are in order already."""
    for i in range(1, len(x)):
        entry = x[i]
        if x[i - 1] > entry:
            if len(x) > CROWD:
                x.sort()
                return
            j = i
            while j > 0 and x[j - 1] > entry:
                x[j] = x[j - 1]
                j -= 1
            x[j] = entry
