"""Build the tables of a sketch fast: sorted buckets and a Robin Hood map for each, with Numba.

Where the plain build sorts by signature and then by home, this one sorts once:

- rows are sorted by the *hash* of their signature. Hashes are spread evenly whatever the signatures
  are, so one pass deals the rows of a table into parts of about a thousand, which are then sorted
  inside the cache;
- homes are in the order of the hashes, so a map is written from front to back, each entry into the
  first free slot from its home on. Only what runs over the end of a thread's share is inserted.
"""

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_inner, compile_loops
from attnbook.hashing.robin_hood import DISPLACEMENT, EMPTY, KEY, VALUE, functions, slots_for
from attnbook.sketch.bucket_tables import LOAD_FACTOR

HASH_BITS = 31
"""Bits of a hash: those that `robin_hood.home_slot` makes homes of."""

PART = 10
"""A part has about 2**10 rows."""

MOST_PARTS = 12
"""There are at most 2**12 parts: while rows are dealt, the end of each stays in the cache."""

CROWD = 32
"""From so many rows in one cell of a part on, insertion would be slow."""

COUNT = 2**31 - 1
"""Mask of the lower half of a value in a map, the count, and of a row beside its hash."""

LAST_32 = 2**32 - 1
"""Mask of the place in a part, beside its hash."""


def build_tables(
    signatures: np.ndarray, mixer: np.ndarray, *, n_threads: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the tables of signatures (n, L), as `bucket_tables.build_tables`, the reference.

    Both find the same rows in the same order. Buckets stand in `order` by the hash of their
    signature here, and entries of one home may have changed places in a map. Signatures that are
    column by column in memory, as `numba_signatures` returns them, are fastest. The cost is
    O(n L) expected, and 36 bytes a row of scratch beside the tables, whatever L is.
    """
    n, n_tables = signatures.shape
    n_threads = n_threads_for(n, n_threads)
    part_bits = min(MOST_PARTS, max(0, n.bit_length() - PART))
    n_parts = 2**part_bits
    order = np.empty((n_tables, n), dtype=np.int32)
    # room for n different signatures a table: memory is taken only where something is written
    slots = np.empty((n_tables * slots_for(n, LOAD_FACTOR), 3), dtype=np.int64)
    slot_starts = np.zeros(n_tables + 1, dtype=np.int64)
    hashes = np.empty(n, dtype=np.int32)
    dealt = np.empty((n, 2), dtype=np.int64)
    groups = np.empty((n, 2), dtype=np.int64)
    n_groups = np.empty(n_parts, dtype=np.int64)
    counts = np.zeros((n_threads, n_parts), dtype=np.int64)
    farthest = 0
    for t in range(n_tables):
        column = signatures[:, t]

        def count(start, stop, thread, column=column):
            _hash_and_count(column, mixer, part_bits, hashes, counts[thread], start, stop)

        in_parts(count, n, n_threads)
        sizes = counts.sum(axis=0)
        starts = np.append(0, np.cumsum(sizes))
        places = starts[:-1] + np.cumsum(counts, axis=0) - counts  # (n_threads, n_parts)

        def deal(start, stop, thread, column=column, places=places):
            _deal(column, hashes, part_bits, places[thread], dealt, start, stop)

        in_parts(deal, n, n_threads)
        most = int(sizes.max())

        def group(first, stop, thread, starts=starts, most=most, order=order[t]):
            _group(dealt, starts, part_bits, most, order, groups, n_groups, first, stop)

        in_parts(group, n_parts, min(n_threads, n_parts))
        slot_starts[t + 1] = slot_starts[t] + slots_for(int(n_groups.sum()), LOAD_FACTOR)
        table = slots[slot_starts[t] : slot_starts[t + 1]]
        shares: list[tuple[int, int, int]] = []

        def place(first, stop, thread, starts=starts, table=table, shares=shares):
            share = _place(groups, starts, n_groups, part_bits, table, first, stop)
            shares.append((int(starts[first]), *share))

        in_parts(place, n_parts, min(n_threads, n_parts))
        farthest = max(farthest, _insert_rest(groups, shares, table, mixer))
    return order, slots[: slot_starts[-1]], slot_starts, farthest


def _insert_rest(groups, shares, table, mixer):
    """Insert the few entries that ran over the end of a share; return the largest displacement."""
    insert_one = functions("numba").insert_one
    farthest = max(far for _, _, far in shares)
    for first, n_left, _ in shares:
        for key, value in groups[first : first + n_left].tolist():
            farthest = max(farthest, insert_one(table, mixer, key, value)[1])
    return farthest


@compile_loops
def _hash_and_count(column, mixer, part_bits, hashes, counts, start, stop):
    """Hash rows start … stop, as `robin_hood.home_slot` does, and count how many go to each part.

    The upper bits of a hash name the part.
    """
    counts[:] = 0
    # slices, since Numba asks of every index that may be negative whether it is
    column, hashes = column[start:stop], hashes[start:stop]
    for i in range(len(column)):
        key = column[i]
        hashed = mixer[0, key & 255]
        for byte in range(1, 8):
            hashed ^= mixer[byte, (key >> (8 * byte)) & 255]
        hashed >>= 62 - HASH_BITS
        hashes[i] = hashed
        counts[hashed >> (HASH_BITS - part_bits)] += 1


@compile_loops
def _deal(column, hashes, part_bits, places, dealt, start, stop):
    """Write rows start … stop to the places of their parts: signature, and hash << 31 | row."""
    column, hashes = column[start:stop], hashes[start:stop]
    for i in range(len(column)):
        hashed = np.int64(hashes[i])
        part = hashed >> (HASH_BITS - part_bits)
        place = places[part]
        dealt[place, 0] = column[i]
        dealt[place, 1] = hashed << 31 | start + i
        places[part] = place + 1


@compile_loops
def _group(dealt, starts, part_bits, most, order, groups, n_groups, first, stop):
    """Sort parts first … stop, and find their groups of rows with one signature."""
    cell_bits = 1  # a part has so many cells that most rows are alone in theirs
    while len(order) >> (part_bits + cell_bits - 1) and cell_bits < 16:
        cell_bits += 1
    cells = np.empty(2**cell_bits + 1, np.uint32)
    keys, other = np.empty(most, np.int64), np.empty(most, np.int64)
    for part in range(first, stop):
        a, b = starts[part], starts[part + 1]
        shift = HASH_BITS - part_bits - cell_bits
        keys_of, other_of = keys[: b - a], other[: b - a]
        n_groups[part] = _group_part(
            dealt[a:b], order[a:b], groups[a:b], keys_of, other_of, cells, cell_bits, shift
        )


@compile_inner
def _group_part(dealt, order, groups, keys, other, cells, cell_bits, shift):
    """Sort the rows of one part by hash and number; write them, and their groups.

    A group is written as signature and ``hash << 31 | count``. Return the number of groups.
    """
    n = len(dealt)
    for i in range(n):
        keys[i] = dealt[i, 1] >> 31 << 32 | i  # hash, and the place in the part
    if _sort_by_cell(keys, 32 + shift, cells, other) < CROWD:
        _insertion_sort(other)
    else:
        # many equal rows, or many signatures of one hash: the lower bits first, then the cell
        for lower in range(0, shift, cell_bits):
            _sort_by_cell(keys, 32 + lower, cells, other)
            keys, other = other, keys
        _sort_by_cell(keys, 32 + shift, cells, other)
    n_groups, clash = _write_groups(dealt, other, order, groups)
    if clash:
        _separate(dealt, other, keys)
        n_groups, _ = _write_groups(dealt, other, order, groups)
    return n_groups


@compile_inner
def _write_groups(dealt, keys, order, groups):
    """Write the rows of sorted keys, and a group where the signature changes.

    Return how many groups there are, and whether two of one hash stand side by side: then one
    signature may have several groups.
    """
    group, clash = -1, False
    signature = before = np.int64(0)
    for i in range(len(keys)):
        place, hashed = keys[i] & LAST_32, keys[i] >> 32
        order[i] = dealt[place, 1] & COUNT
        if group >= 0 and dealt[place, 0] == signature:
            groups[group, 1] += 1
        else:
            clash |= group >= 0 and hashed == before
            group += 1
            signature, before = dealt[place, 0], hashed
            groups[group, 0], groups[group, 1] = signature, hashed << 31 | 1
    return group + 1, clash


@compile_inner
def _sort_by_cell(keys, shift, cells, out):
    """Sort by some bits of the keys, stable; return how many keys have them equal at most."""
    mask = len(cells) - 2
    cells[:] = 0
    for i in range(len(keys)):
        cells[((keys[i] >> shift) & mask) + 1] += 1
    most = np.uint32(0)
    for cell in range(mask + 1):
        most = max(most, cells[cell + 1])
        cells[cell + 1] += cells[cell]
    for i in range(len(keys)):
        cell = (keys[i] >> shift) & mask
        out[cells[cell]] = keys[i]
        cells[cell] += 1
    return most


@compile_inner
def _insertion_sort(keys):
    for i in range(1, len(keys)):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@compile_inner
def _separate(dealt, keys, room):
    """Put the rows of each signature side by side where different signatures have one hash.

    Of a million signatures about a hundred pairs do: 2³¹ hashes make it rare, not impossible.
    `keys` are sorted by hash; the order inside a signature is kept.
    """
    n = len(keys)
    i = 0
    while i < n:
        stop = i + 1
        mixed = False
        while stop < n and keys[stop] >> 32 == keys[i] >> 32:
            mixed |= dealt[keys[stop] & LAST_32, 0] != dealt[keys[i] & LAST_32, 0]
            stop += 1
        while mixed and i < stop:
            signature = dealt[keys[i] & LAST_32, 0]
            n_others = 0
            for j in range(i, stop):
                if dealt[keys[j] & LAST_32, 0] == signature:
                    keys[i] = keys[j]
                    i += 1
                else:
                    room[n_others] = keys[j]
                    n_others += 1
            for j in range(n_others):
                keys[i + j] = room[j]
        i = stop


@compile_loops
def _place(groups, starts, n_groups, part_bits, slots, first, stop):
    """Write the map of parts first … stop, from front to back.

    The n-th entry gets the first slot that is free and not before its home. Entries that run over
    the end of these parts are put back to the front of `groups`, as key and value. Return how many
    they are, and the largest displacement.
    """
    n_slots = len(slots)
    shift = HASH_BITS - part_bits
    slot, end = first << shift, stop << shift  # as hashes; now as homes
    slot, end = (slot * n_slots) >> HASH_BITS, (end * n_slots) >> HASH_BITS
    farthest, n_left = 0, 0
    for part in range(first, stop):
        row = starts[part]  # of the next group, in `order`
        for group in range(starts[part], starts[part] + n_groups[part]):
            key, count = groups[group, 0], groups[group, 1] & COUNT
            home = ((groups[group, 1] >> 31) * n_slots) >> HASH_BITS
            while slot < home:
                slots[slot, KEY], slots[slot, VALUE], slots[slot, DISPLACEMENT] = 0, 0, EMPTY
                slot += 1
            value = row << 31 | count
            if slot < end:
                slots[slot, KEY], slots[slot, VALUE] = key, value
                slots[slot, DISPLACEMENT] = slot - home
                farthest = max(farthest, slot - home)
                slot += 1
            else:
                left = starts[first] + n_left  # before `group`, or `group` itself
                groups[left, 0], groups[left, 1] = key, value
                n_left += 1
            row += count
    while slot < end:
        slots[slot, KEY], slots[slot, VALUE], slots[slot, DISPLACEMENT] = 0, 0, EMPTY
        slot += 1
    return n_left, farthest
