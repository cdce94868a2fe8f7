"""The tables of a `BucketIndex`: sorted buckets with a directory, and a side table for new rows.

A signature is scrambled to 64 bits that look random, in a way that can be undone. Rows are sorted
by these bits. The first `bits` of them name a cell of about one row, and a directory says where
each cell starts. The other bits stand in the entry of a row, beside its number, and tell which rows
of a cell have the signature. So nothing of the signature is lost, and an entry takes 8 bytes. That
a directory with as many places as rows saves a part of each key is known from Knuth (TAOCP 3, 6.4,
exercise 13) and as quotienting (Cleary 1984). A look-up reads two places in memory, one in the
directory and one among the entries.

The loops are written in the part of Python that Numba compiles. `numba_build` sorts the tables.
"""

import functools
import types
from typing import Annotated, NamedTuple

import numpy as np

from attnbook.compilers.python_or_numba import compiled
from attnbook.hashing import robin_hood
from attnbook.hashing.robin_hood import VALUE, find_slot, insert_one

LOAD_FACTOR = 0.75
"""The load of the maps of the side table. A search then reads 2.5 slots on average."""

LOW = 2**31 - 1  # the lower half of two numbers in one int64, such as first << 31 | last

FIRST_MULTIPLIER, SECOND_MULTIPLIER = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""The multipliers of SplitMix64 (Steele, Lea and Flood 2014), odd, so that they have inverses."""

FIRST_INVERSE, SECOND_INVERSE = (
    (pow(odd, -1, 2**64) + 2**63) % 2**64 - 2**63 for odd in (FIRST_MULTIPLIER, SECOND_MULTIPLIER)
)


class BucketTables(NamedTuple):
    """All arrays of an index, as compiled loops take them."""

    starts: np.ndarray  # (L, 2**bits + 1) int32, where each cell starts in `entries`
    entries: np.ndarray  # (L, n_main) int64, other bits << bits | place, cell by cell, ascending
    rows: np.ndarray  # (n_main,) int32, the row of each place; empty where it is the place itself
    bits: int  # at least 1, and 2**bits >= n_main
    salt: int  # of `scrambled`
    mixer: np.ndarray  # (8, 256) of the hash of the side maps
    side_slots: np.ndarray  # (L, m, 3) signature -> first << 31 | last of its chain
    side_next: np.ndarray  # (L, room) int32, the next of the chain or -1
    side_signatures: np.ndarray  # (room, L)
    side_first: int  # row of the first in the side table; those that follow count on
    n_side: int
    alive: np.ndarray  # (room,) boolean, False for what was removed
    n_dead: int  # removed rows that still stand in tables
    n_rows: int  # ever added


def scrambled(x, salt):
    """Return 64 bits that look random for an int64 or an array of them, different bits for each."""
    x = x ^ salt
    x = (x ^ ((x >> 30) & (2**34 - 1))) * FIRST_MULTIPLIER
    x = (x ^ ((x >> 27) & (2**37 - 1))) * SECOND_MULTIPLIER
    return x ^ ((x >> 31) & (2**33 - 1))


def unscrambled(x: Annotated[np.ndarray, "n"], salt: int) -> Annotated[np.ndarray, "n"]:
    """Return the int64 numbers that `scrambled` made these of."""
    x = x ^ ((x >> 31) & (2**33 - 1)) ^ ((x >> 62) & 3)
    x = x * SECOND_INVERSE
    x = x ^ ((x >> 27) & (2**37 - 1)) ^ ((x >> 54) & (2**10 - 1))
    x = x * FIRST_INVERSE
    return x ^ ((x >> 30) & (2**34 - 1)) ^ ((x >> 60) & 15) ^ salt


def bits_for(n: int) -> int:
    """Return the bits of a directory for n rows: it has at least a cell for each, at most 2 n."""
    return max(1, (n - 1).bit_length())


def stored(tables: BucketTables, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Return signatures and places of all entries of table t."""
    bits, entries = tables.bits, tables.entries[t]
    cell = np.repeat(np.arange(2**bits), np.diff(tables.starts[t]).astype(np.intp))
    hashed = cell << (64 - bits) | (entries >> bits) & (2 ** (64 - bits) - 1)
    return unscrambled(hashed, tables.salt), entries & (2**bits - 1)


def first_not_below(entries, t, start, stop, bits, wanted):
    """Return the first place from `start` on whose entry has other bits of at least `wanted`."""
    while start < stop:
        middle = (start + stop) >> 1
        if entries[t, middle] >> bits < wanted:
            start = middle + 1
        else:
            stop = middle
    return start


def walk_bucket(tables, t, signature, hashed, rows):
    """Write the live rows of a bucket to `rows`, as far as there is room.

    Return their number, which is right even where there is no room.
    """
    n, room, bits, entries = 0, rows.shape[0], tables.bits, tables.entries
    cell = (hashed >> (64 - bits)) & ((1 << bits) - 1)
    wanted = (hashed << bits) >> bits
    stop = tables.starts[t, cell + 1]
    place = first_not_below(entries, t, tables.starts[t, cell], stop, bits, wanted)
    if room == 0 and tables.n_dead == 0:  # -2**63 is before all others
        end = first_not_below(entries, t, place, stop, bits, wanted + 1)
        n = end - place
    else:
        while place < stop and entries[t, place] >> bits == wanted:
            row = entries[t, place] & ((1 << bits) - 1)
            if tables.rows.shape[0] > 0:
                row = np.int64(tables.rows[row])
            if tables.n_dead == 0 or tables.alive[row]:
                if n < room:
                    rows[n] = row
                n += 1
            place += 1
    if tables.n_side > 0:
        slot = find_slot(tables.side_slots[t], tables.mixer, signature)
        link = tables.side_slots[t, slot, VALUE] >> 31 if slot >= 0 else -1
        while link >= 0:
            row = tables.side_first + link
            if tables.alive[row]:
                if n < room:
                    rows[n] = row
                n += 1
            link = tables.side_next[t, link]
    return n


def walk_buckets(tables, signatures, hashed, counts, rows):
    """Write the number of live rows of every bucket, and the rows as far as fit.

    The columns of a table stand side by side, one for each bucket that a query asks for in it.
    """
    n_probes = signatures.shape[1] // tables.starts.shape[0]
    for q in range(signatures.shape[0]):
        for c in range(signatures.shape[1]):
            counts[q, c] = walk_bucket(
                tables, c // n_probes, signatures[q, c], hashed[q, c], rows[q, c]
            )


def chain(tables, first, stop):
    """Put rows `first` to `stop` of the side table at the end of the chains of their signatures.

    Return how far from home one of them went.
    """
    farthest = 0
    for t in range(tables.side_slots.shape[0]):
        slots = tables.side_slots[t]
        for row in range(first, stop):
            signature = tables.side_signatures[row, t]
            slot = find_slot(slots, tables.mixer, signature)
            if slot < 0:
                _, far = insert_one(slots, tables.mixer, signature, row << 31 | row)
                farthest = max(farthest, far)
            else:
                ends = slots[slot, VALUE]
                tables.side_next[t, ends & LOW] = row
                slots[slot, VALUE] = ends >> 31 << 31 | row
    return farthest


FUNCTIONS = (first_not_below, walk_bucket, walk_buckets, chain)


@functools.cache
def functions() -> types.SimpleNamespace:
    """Return the functions above by name, compiled by Numba."""
    return compiled(*FUNCTIONS, known=robin_hood.functions("numba"))
