"""The tables of a `BucketIndex`: sorted buckets, a Robin Hood map for each, and a side table.

The loops are written in the part of Python that Numba compiles: `functions` says how they run.
`build_tables` is the plain build that the fast one of `numba_build` matches.
"""

import functools
import types
from typing import NamedTuple

import numpy as np

from attnbook.compilers.python_or_numba import compiled
from attnbook.hashing import robin_hood
from attnbook.hashing.buckets import sort_buckets
from attnbook.hashing.robin_hood import (
    DISPLACEMENT,
    EMPTY,
    KEY,
    VALUE,
    find_slot,
    free_slots,
    home_slot,
    insert_one,
    slots_for,
)

LOAD_FACTOR = 0.75
"""Of the maps; a search then reads 2.5 slots on average."""

LOW = 2**31 - 1  # the lower half of two numbers in one int64, such as start << 31 | count


class BucketTables(NamedTuple):
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


def walk_bucket(tables, t, signature, most, rows):
    """Write at most `most` live rows of a bucket to `rows`, as far as there is room.

    Return their number, which is right without room too.
    """
    n, room = 0, rows.shape[0]
    table = tables.slots[tables.slot_starts[t] : tables.slot_starts[t + 1]]
    slot = find_slot(table, tables.mixer, signature)
    if slot >= 0:
        start, count = table[slot, VALUE] >> 31, table[slot, VALUE] & LOW
        if room == 0 and tables.n_dead == 0:
            n = min(count, most)
        else:
            for place in range(start, start + count):
                if n == most:
                    break
                row = tables.order[t, place]
                if tables.n_dead == 0 or tables.alive[row]:
                    if n < room:
                        rows[n] = row
                    n += 1
    if tables.n_side > 0 and n < most:
        slot = find_slot(tables.side_slots[t], tables.mixer, signature)
        link = tables.side_slots[t, slot, VALUE] >> 31 if slot >= 0 else -1
        while link >= 0 and n < most:
            row = tables.side_first + link
            if tables.alive[row]:
                if n < room:
                    rows[n] = row
                n += 1
            link = tables.side_next[t, link]
    return n


def count_buckets(tables, signatures, most, counts):
    """Write the number of live rows of every bucket, at most `most`."""
    nothing = np.zeros(0, dtype=np.int64)
    for q in range(signatures.shape[0]):
        for t in range(signatures.shape[1]):
            counts[q, t] = walk_bucket(tables, t, signatures[q, t], most, nothing)


def read_buckets(tables, signatures, counts, rows):
    """Write the live rows of every bucket."""
    for q in range(signatures.shape[0]):
        for t in range(signatures.shape[1]):
            walk_bucket(tables, t, signatures[q, t], counts[q, t], rows[q, t, : counts[q, t]])


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


FUNCTIONS = (walk_bucket, count_buckets, read_buckets, chain)


@functools.cache
def functions(impl: str) -> types.SimpleNamespace:
    """Return the functions above by name: as they are, or compiled by Numba."""
    if impl == "numba":
        return compiled(*FUNCTIONS, known=robin_hood.functions("numba"))
    return types.SimpleNamespace(**{function.__name__: function for function in FUNCTIONS})


def build_tables(
    signatures: np.ndarray, mixer: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the tables of signatures (n, L).

    Returns
    -------
    order : int32 array, shape (L, n)
        The rows, bucket by bucket; inside a bucket they ascend.
    slots : int64 array, shape (total, 3)
        One map after the other: key is the signature, value ``start << 31 | count`` in `order`.
    slot_starts : int64 array, shape (L + 1,)
        Where in `slots` the map of each table starts.
    farthest : int
        The largest displacement in `slots`.
    """
    n, n_tables = signatures.shape
    order, maps = np.empty((n_tables, n), dtype=np.int32), []
    for t in range(n_tables):
        buckets = sort_buckets(signatures[:, t])
        order[t], starts = np.asarray(buckets.order), np.asarray(buckets.starts)
        values = starts[:-1] << 31 | np.diff(starts)
        maps.append(filled_slots(np.asarray(buckets.signatures), values, mixer))
    slots, slot_starts = np.concatenate(maps), np.cumsum([0, *map(len, maps)])
    return order, slots, slot_starts, int(np.max(slots[:, DISPLACEMENT]))


def filled_slots(keys: np.ndarray, values: np.ndarray, mixer: np.ndarray) -> np.ndarray:
    r"""Return a Robin Hood table of these entries without inserting one: a sort and a maximum.

    Entries stand in the order of their homes h, each in the first slot that is free and not before
    its home: the i-th one at

    .. math:: p_i = \max(h_i, p_{i-1} + 1) = i + \max_{j \le i} (h_j - j)

    What runs over the end goes on at the start, before all others: so many slots are taken there.
    """
    n_slots = slots_for(len(keys), LOAD_FACTOR)
    homes = home_slot(keys, mixer, n_slots)
    order = np.argsort(homes, kind="stable")
    keys, values, homes = keys[order], values[order], homes[order]
    i = np.arange(len(keys))
    ahead = np.maximum.accumulate(homes - i)
    wrapped = np.count_nonzero(i + ahead >= n_slots)
    places = (i + np.maximum(ahead, wrapped)) % n_slots
    slots = free_slots(n_slots)
    slots[places, KEY], slots[places, VALUE] = keys, values
    slots[places, DISPLACEMENT] = (places - homes) % n_slots
    return slots


def entries(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and values of the taken slots."""
    taken = slots[slots[:, DISPLACEMENT] != EMPTY]
    return taken[:, KEY], taken[:, VALUE]
