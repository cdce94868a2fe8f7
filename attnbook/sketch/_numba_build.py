"""Build the tables of a sketch fast: signatures, sorted buckets and Robin Hood maps, with Numba.

A million keys of width 64 in five tables of 16 projections take less time than one pass of k-means
over them. What makes the difference, in order:

- the products with the directions stay in registers, and their codes are joined at once, so no
  (n, n_tables * n_projections) array is ever written;
- rows are sorted by the hash of their signature, not by the signature: those are spread evenly, so
  one pass deals them into parts that fit into the cache, whatever the signatures are;
- the order by hash is the order of the maps too, so these are written from front to back, without
  one insertion.
"""

from typing import Any

import numba
import numpy as np

from attnbook.sketch._build import LOAD_FACTOR, slots_for
from attnbook.sketch._simd import LANES, prefetch, project_tile
from attnbook.sketch._threads import in_parts, n_threads_for
from attnbook.sketch.robin_hood import DISPLACEMENT, EMPTY, KEY, VALUE, functions
from attnbook.sketch.simhash import SimHash
from attnbook.sketch.stable_hash import FARTHEST, StableHash

HASH_BITS = 31
"""Bits of the hash that homes are made of."""

PART_BITS = 10
"""The rows of a large table are dealt into 2**10 parts."""

FINE_BITS = 11
"""A part is sorted by so many bits at once, and small differences then by insertion."""

CROWD = 32
"""So many rows with the same fine bits are too many to sort by insertion."""

LOW = 2**31 - 1


def compile_loops(function):
    """Compile without the interpreter's lock, and keep the machine code for later processes."""
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


def signatures(
    hash: Any, x: np.ndarray, *, n_threads: int | None = None
) -> np.ndarray:
    """Return the signatures of the rows of `x`, as ``hash.signatures(x)``, in one pass."""
    directions = np.asarray(hash.directions, dtype=x.dtype)
    n_tables, n_projections, d = directions.shape
    if isinstance(hash, StableHash):
        # a·x/r + b/r: the division is done once, on the directions
        directions = directions / x.dtype.type(hash.width)
        offsets = np.asarray(hash.offsets, dtype=x.dtype) / x.dtype.type(hash.width)
        multipliers = hash.multipliers
    else:
        offsets = np.zeros((n_tables, n_projections), dtype=x.dtype)
        multipliers = np.left_shift(1, np.arange(n_projections))
    n_panels = -(-n_tables * n_projections // LANES)
    flat = np.zeros((n_panels * LANES, d), dtype=x.dtype)
    flat[: n_tables * n_projections] = directions.reshape(-1, d)
    panels = np.ascontiguousarray(flat.reshape(n_panels, LANES, d).transpose(0, 2, 1))
    joined = np.empty((n_tables, len(x)), dtype=np.int64)
    signs = isinstance(hash, SimHash)
    x = np.ascontiguousarray(x)
    ok = np.zeros(64, dtype=bool)

    def work(start, stop, part):
        ok[part] = _join_codes(x, panels, offsets, multipliers, signs, joined, start, stop)

    t = n_threads_for(len(x), n_threads, 256)
    in_parts(work, len(x), t)
    if not ok[:t].all():
        raise ValueError("x must be finite")
    return joined.T


@compile_loops
def _join_codes(x, panels, offsets, multipliers, signs, joined, start, stop):
    """Write the signatures of rows start … stop; return whether all codes fit."""
    n_tables, n_projections = offsets.shape
    n_panels, d, lanes = panels.shape
    projected = np.empty((LANES, n_panels, LANES), x.dtype)
    codes = projected.reshape(LANES, n_panels * LANES)
    tail = np.zeros((LANES, d), x.dtype)
    line = 64 // x.itemsize
    ahead = -(-LANES * d // (n_panels * line)) * line
    farthest = x.dtype.type(FARTHEST)
    n_bad = 0
    for first in range(start, stop, LANES):
        n_rows = min(LANES, stop - first)
        rows, at = x, first
        if n_rows < LANES:
            tail[:n_rows] = x[first:stop]
            rows, at = tail, 0
        for p in range(n_panels):
            # the rows of the next tile, a few lines at a time, so that they are there in time
            for i in range(p * ahead, (p + 1) * ahead, line):
                prefetch(x, (first + 2 * LANES) * d + i)
            project_tile(rows, at, panels, p, projected)
        for t in range(n_tables):
            for r in range(n_rows):
                signature = np.int64(0)
                bad = np.int64(0)
                if signs:
                    for j in range(n_projections):
                        number = codes[r, t * n_projections + j]
                        signature += np.int64(number >= 0) * multipliers[j]
                        bad += not (abs(number) <= farthest)
                else:
                    for j in range(n_projections):
                        code = np.floor(codes[r, t * n_projections + j] + offsets[t, j])
                        signature += np.int64(code) * multipliers[j]
                        bad += not (abs(code) <= farthest)
                joined[t, first + r] = signature
                n_bad += bad
    return n_bad == 0


def build_tables(
    signatures: np.ndarray, mixer: np.ndarray, *, n_threads: int | None = None
):
    n, n_tables = signatures.shape
    threads = n_threads_for(n, n_threads)
    part_bits = min(12, max(0, n.bit_length() - 10))
    fine_bits = min(16, max(1, n.bit_length() - part_bits))
    n_parts = 2**part_bits
    order = np.empty((n_tables, n), dtype=np.int32)
    hashes = np.empty(n, dtype=np.int32)
    rows = np.empty((n, 2), dtype=np.int64)
    groups = np.empty((n, 2), dtype=np.int64)
    n_groups = np.empty(n_parts, dtype=np.int64)
    counts = np.zeros((threads, n_parts), dtype=np.int64)
    bound = n_tables * slots_for(n, LOAD_FACTOR)
    slots = np.empty((bound, 3), dtype=np.int64)  # memory is only taken where it is written
    slot_starts = np.zeros(n_tables + 1, dtype=np.int64)
    insert_all = functions("numba").insert_all
    for t in range(n_tables):
        column = signatures[:, t]

        def count(start, stop, part):
            _hash_and_count(column, mixer, part_bits, hashes, counts[part], start, stop)

        in_parts(count, n, threads)
        total = counts.sum(axis=0)
        starts = np.concatenate([[0], np.cumsum(total)])
        places = starts[:-1] + np.cumsum(counts, axis=0) - counts

        def deal(start, stop, part):
            _deal(column, hashes, part_bits, places[part], rows, start, stop)

        in_parts(deal, n, threads)
        largest = int(total.max())

        def group(start, stop, part):
            _group(rows, starts, part_bits, fine_bits, largest, order[t], groups, n_groups, start, stop)

        in_parts(group, n_parts, min(threads, n_parts))
        n_slots = slots_for(int(n_groups.sum()), LOAD_FACTOR)
        slot_starts[t + 1] = slot_starts[t] + n_slots
        table = slots[slot_starts[t] : slot_starts[t + 1]]
        rest = []

        def place(start, stop, part):
            rest.append(_place(groups, starts, n_groups, part_bits, table, start, stop))

        in_parts(place, n_parts, min(threads, n_parts))
        for left in rest:
            insert_all(table, mixer, left[:, 0].copy(), left[:, 1].copy(), 0, 0, n_slots, n_slots)
    return order, slots[: slot_starts[-1]], slot_starts


@compile_loops
def _hash_and_count(column, mixer, part_bits, hashes, counts, start, stop):
    counts[:] = 0
    shift = HASH_BITS - part_bits
    for i in range(start, stop):
        key = column[i]
        hashed = mixer[0, key & 255]
        for b in range(1, 8):
            hashed ^= mixer[b, (key >> (8 * b)) & 255]
        hashed >>= 31
        hashes[i] = hashed
        counts[hashed >> shift] += 1


@compile_loops
def _deal(column, hashes, part_bits, places, rows, start, stop):
    shift = HASH_BITS - part_bits
    for i in range(start, stop):
        hashed = np.int64(hashes[i])
        part = hashed >> shift
        place = places[part]
        places[part] = place + 1
        rows[place, 0] = column[i]
        rows[place, 1] = hashed << 31 | i


@compile_loops
def _group(rows, starts, part_bits, fine_bits, largest, order, groups, n_groups, first, stop):
    """Sort each part by hash, row; write order and groups (signature, hash << 31 | count)."""
    fine_shift = HASH_BITS - part_bits - fine_bits
    n_fine = 2**fine_bits
    keys = np.empty(largest, np.int64)
    other = np.empty(largest, np.int64)
    counts = np.empty(n_fine + 1, np.int64)
    for p in range(first, stop):
        base = starts[p]
        m = starts[p + 1] - base
        for i in range(m):
            keys[i] = rows[base + i, 1] >> 31 << 32 | i
        crowd = _count(keys, m, 32 + fine_shift, counts)
        if crowd > CROWD:
            _count(keys, m, 32, counts)
            _move(keys, m, 32, counts, other)
            for i in range(m):
                keys[i] = other[i]
            _count(keys, m, 32 + fine_shift, counts)
        _move(keys, m, 32 + fine_shift, counts, other)
        for i in range(1, m):
            key = other[i]
            j = i
            while j > 0 and other[j - 1] > key:
                other[j] = other[j - 1]
                j -= 1
            other[j] = key
        _regroup(other, m, rows, base, keys)
        g = base - 1
        before = np.int64(-1)
        signature = np.int64(0)
        for i in range(m):
            hashed = other[i] >> 32
            row = base + (other[i] & 0xFFFFFFFF)
            order[base + i] = rows[row, 1] & LOW
            if hashed == before and rows[row, 0] == signature:
                groups[g, 1] += 1
            else:
                g += 1
                before = hashed
                signature = rows[row, 0]
                groups[g, 0] = signature
                groups[g, 1] = hashed << 31 | 1
        n_groups[p] = g + 1 - base

@compile_loops
def _count(keys, m, shift, counts):
    n = len(counts) - 1
    counts[:] = 0
    for i in range(m):
        counts[((keys[i] >> shift) & (n - 1)) + 1] += 1
    most = np.int64(0)
    for i in range(n):
        most = max(most, counts[i + 1])
        counts[i + 1] += counts[i]
    return most


@compile_loops
def _move(keys, m, shift, counts, other):
    n = len(counts) - 1
    for i in range(m):
        f = (keys[i] >> shift) & (n - 1)
        other[counts[f]] = keys[i]
        counts[f] += 1


@compile_loops
def _regroup(keys, m, rows, base, room):
    """different signatures of one hash"""
    i = 1
    while i < m:
        if keys[i] >> 32 == keys[i - 1] >> 32 and rows[base + (keys[i] & 0xFFFFFFFF), 0] != rows[base + (keys[i - 1] & 0xFFFFFFFF), 0]:
            s = i
            while s > 0 and keys[s - 1] >> 32 == keys[i] >> 32:
                s -= 1
            e = i + 1
            while e < m and keys[e] >> 32 == keys[i] >> 32:
                e += 1
            while s < e:
                sig = rows[base + (keys[s] & 0xFFFFFFFF), 0]
                w = s
                u = 0
                for y in range(s, e):
                    if rows[base + (keys[y] & 0xFFFFFFFF), 0] == sig:
                        keys[w] = keys[y]
                        w += 1
                    else:
                        room[u] = keys[y]
                        u += 1
                for y in range(u):
                    keys[w + y] = room[y]
                s = w
            i = e
        i += 1


@compile_loops
def _place(groups, starts, n_groups, part_bits, slots, first, stop):
    n_slots = len(slots)
    shift = HASH_BITS - part_bits
    slot = ((np.int64(first) << shift) * n_slots) >> 31
    end = ((np.int64(stop) << shift) * n_slots) >> 31
    for p in range(first, stop):
        start = starts[p]
        for g in range(starts[p], starts[p] + n_groups[p]):
            signature = groups[g, 0]
            hashed = groups[g, 1] >> 31
            count = groups[g, 1] & LOW
            home = (hashed * n_slots) >> 31
            while slot < home:
                slots[slot, DISPLACEMENT] = EMPTY
                slots[slot, 0] = 0
                slots[slot, 1] = 0
                slot += 1
            if slot < end:
                slots[slot, KEY] = signature
                slots[slot, VALUE] = start << 31 | count
                slots[slot, DISPLACEMENT] = slot - home
                slot += 1
                start += count
            else:
                n_left = np.int64(0)
                for p2 in range(p, stop):
                    n_left += n_groups[p2]
                left = np.empty((n_left, 2), np.int64)
                n_left = 0
                g2 = g
                st = start
                for p2 in range(p, stop):
                    if p2 > p:
                        g2 = starts[p2]
                        st = starts[p2]
                    while g2 < starts[p2] + n_groups[p2]:
                        left[n_left, 0] = groups[g2, 0]
                        left[n_left, 1] = st << 31 | (groups[g2, 1] & LOW)
                        st += groups[g2, 1] & LOW
                        g2 += 1
                        n_left += 1
                return left[:n_left]
    while slot < end:
        slots[slot, 0] = 0
        slots[slot, 1] = 0
        slots[slot, DISPLACEMENT] = EMPTY
        slot += 1
    return np.empty((0, 2), np.int64)
