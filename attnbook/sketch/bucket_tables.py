"""Sorted buckets and a Robin Hood map for each table: the plain build that the fast one matches."""

import numpy as np

from attnbook.hashing._slots import DISPLACEMENT, EMPTY, KEY, VALUE, free_slots, slots_for
from attnbook.hashing.buckets import sort_buckets
from attnbook.hashing.robin_hood import home_slot

LOAD_FACTOR = 0.75
"""Of the maps; a search then reads 2.5 slots on average."""


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
        order[t] = buckets.order
        values = buckets.starts[:-1] << 31 | np.diff(buckets.starts)
        maps.append(filled_slots(buckets.signatures, values, mixer))
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
