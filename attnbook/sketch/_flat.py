"""The arrays of a `BucketIndex`, and the loops over them: run as Python, or compiled by Numba."""

import functools
import types
from typing import NamedTuple

import numpy as np

from attnbook.hashing import robin_hood
from attnbook.compilers.python_or_numba import compiled
from attnbook.hashing.robin_hood import VALUE, find_slot, insert_one

LOW = 2**31 - 1  # the lower half of two numbers in one int64, such as start << 31 | count


class Flat(NamedTuple):
    """All arrays of an index, for compiled loops."""

    slots: np.ndarray  # (total, 3) maps of all tables: signature -> start << 31 | count
    slot_starts: np.ndarray  # (L + 1,) where the map of each table starts
    order: np.ndarray  # (L, n_main) int32, rows bucket by bucket
    mixer: np.ndarray  # (8, 256) of the hash of all maps
    side_slots: np.ndarray  # (L, m, 3) signature -> first << 31 | last of its chain
    side_next: np.ndarray  # (L, room) int32, the next of the chain or -1
    side_signatures: np.ndarray  # (room, L)
    side_first: int  # row of the first in the side table; those that follow count on
    n_side: int
    alive: np.ndarray  # (room,) boolean, False for what was removed
    n_dead: int  # removed rows that still stand in tables
    n_rows: int  # ever added


def walk_bucket(flat, t, signature, most, rows):
    """Write at most `most` live rows of a bucket to `rows`, as far as there is room.

    Return their number, which is right without room too.
    """
    n, room = 0, rows.shape[0]
    table = flat.slots[flat.slot_starts[t] : flat.slot_starts[t + 1]]
    slot = find_slot(table, flat.mixer, signature)
    if slot >= 0:
        start, count = table[slot, VALUE] >> 31, table[slot, VALUE] & LOW
        if room == 0 and flat.n_dead == 0:
            n = min(count, most)
        else:
            for place in range(start, start + count):
                if n == most:
                    break
                row = flat.order[t, place]
                if flat.n_dead == 0 or flat.alive[row]:
                    if n < room:
                        rows[n] = row
                    n += 1
    if flat.n_side > 0 and n < most:
        slot = find_slot(flat.side_slots[t], flat.mixer, signature)
        link = flat.side_slots[t, slot, VALUE] >> 31 if slot >= 0 else -1
        while link >= 0 and n < most:
            row = flat.side_first + link
            if flat.alive[row]:
                if n < room:
                    rows[n] = row
                n += 1
            link = flat.side_next[t, link]
    return n


def count_buckets(flat, signatures, most, counts):
    """Write the number of live rows of every bucket, at most `most`."""
    nothing = np.zeros(0, dtype=np.int64)
    for q in range(signatures.shape[0]):
        for t in range(signatures.shape[1]):
            counts[q, t] = walk_bucket(flat, t, signatures[q, t], most, nothing)


def read_buckets(flat, signatures, counts, rows):
    """Write the live rows of every bucket."""
    for q in range(signatures.shape[0]):
        for t in range(signatures.shape[1]):
            walk_bucket(flat, t, signatures[q, t], counts[q, t], rows[q, t, : counts[q, t]])


def chain(flat, first, stop):
    """Put rows `first` to `stop` of the side table at the end of the chains of their signatures.

    Return how far from home one of them went.
    """
    farthest = 0
    for t in range(flat.side_slots.shape[0]):
        slots = flat.side_slots[t]
        for row in range(first, stop):
            signature = flat.side_signatures[row, t]
            slot = find_slot(slots, flat.mixer, signature)
            if slot < 0:
                _, far = insert_one(slots, flat.mixer, signature, row << 31 | row)
                farthest = max(farthest, far)
            else:
                ends = slots[slot, VALUE]
                flat.side_next[t, ends & LOW] = row
                slots[slot, VALUE] = ends >> 31 << 31 | row
    return farthest


FUNCTIONS = (walk_bucket, count_buckets, read_buckets, chain)


@functools.cache
def functions(impl: str) -> types.SimpleNamespace:
    """Return the functions above by name: as they are, or compiled by Numba."""
    if impl == "numba":
        return compiled(*FUNCTIONS, known=robin_hood.functions("numba"))
    return types.SimpleNamespace(**{function.__name__: function for function in FUNCTIONS})
