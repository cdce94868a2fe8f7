"""Right hash tables of every kind that readers might hand in, and three hash functions."""

import numpy as np


class RobinHood:
    """A right table: a list of slots, None or [key, value]."""

    most = 0.75

    def __init__(self, n_slots=8):
        self.slots = [None] * n_slots
        self.n = 0

    @property
    def n_slots(self):
        return len(self.slots)

    def hash(self, key):
        return key

    def home(self, key):
        return self.hash(key) % len(self.slots)

    def next(self, slot):
        return (slot + 1) % len(self.slots)

    def away(self, slot):
        """Return how far the entry of a slot is from its home."""
        return (slot - self.home(self.slots[slot][0])) % len(self.slots)

    def ends(self, slot, away):
        """Tell whether a search ends at a slot."""
        return self.slots[slot] is None or self.away(slot) < away

    def same(self, slot, key):
        return self.slots[slot][0] == key

    def find(self, key):
        slot, away = self.home(key), 0
        while not self.ends(slot, away):
            if self.same(slot, key):
                return slot
            slot, away = self.next(slot), away + 1
        return None

    def get(self, key):
        slot = self.find(key)
        return None if slot is None else self.slots[slot][1]

    def is_full(self):
        return self.n + 1 > self.most * len(self.slots)

    def insert(self, key, value):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot][1] = value
            return
        if self.is_full():
            self.grow()
        self.put([key, value])
        self.n += 1

    def swaps(self, slot, away):
        return self.away(slot) < away

    def put(self, entry):
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None:
            if self.swaps(slot, away):
                away, entry, self.slots[slot] = self.away(slot), self.slots[slot], entry
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry

    def grow(self):
        old, self.slots = self.slots, [None] * (2 * len(self.slots))
        for entry in old:
            if entry is not None:
                self.put(entry)

    def moves_back(self, slot):
        return self.slots[slot] is not None and self.away(slot) > 0

    def move(self, slot, after):
        self.slots[slot] = self.slots[after]

    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return False
        after = self.next(slot)
        while self.moves_back(after):
            self.move(slot, after)
            slot, after = after, self.next(after)
        self.slots[slot] = None
        self.n -= 1
        return True


class Counting(RobinHood):
    """The same with everything that the check looks at."""

    def __len__(self):
        return self.n

    def __contains__(self, key):
        return self.find(key) is not None

    def displacements(self):
        return np.array([self.away(i) for i, x in enumerate(self.slots) if x is not None])


class Linear(RobinHood):
    """Linear probing without swaps, with tombstones: a slot is None, [key, value] or []."""

    used = 0

    def away(self, slot):
        return 0 if not self.slots[slot] else super().away(slot)

    def ends(self, slot, away):
        return self.slots[slot] is None

    def same(self, slot, key):
        return self.slots[slot] and self.slots[slot][0] == key

    def swaps(self, slot, away):
        return False

    def is_full(self):
        return self.used + 1 > self.most * len(self.slots)

    def put(self, entry):
        super().put(entry)
        self.used += 1

    def grow(self, factor=None):
        entries = [x for x in self.slots if x]
        factor = factor or (2 if 2 * len(entries) > self.most * len(self.slots) else 1)
        self.slots, self.used = [None] * (factor * len(self.slots)), 0
        for entry in entries:
            self.put(entry)

    def delete(self, key):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot] = []
            self.n -= 1
        return slot is not None


class LinearCounting(Linear):
    def displacements(self):
        return [self.away(i) for i, x in enumerate(self.slots) if x]


class Chained:
    """A list of entries a slot; delete raises KeyError, and there is no n_slots to choose."""

    def __init__(self):
        self.buckets = [[] for _ in range(4)]

    def bucket(self, key):
        return self.buckets[hash(key) % len(self.buckets)]

    def get(self, key, default=None):
        return dict(self.bucket(key)).get(key, default)

    def insert(self, key, value):
        self.remove(key)
        self.bucket(key).append((key, value))
        if sum(map(len, self.buckets)) > len(self.buckets):
            entries = [entry for bucket in self.buckets for entry in bucket]
            self.buckets = [[] for _ in range(3 * len(self.buckets) + 1)]
            for key, value in entries:
                self.bucket(key).append((key, value))

    def remove(self, key):
        bucket = self.bucket(key)
        bucket[:] = [entry for entry in bucket if entry[0] != key]

    def delete(self, key):
        if key not in dict(self.bucket(key)):
            raise KeyError(key)
        self.remove(key)


class OfDict(dict):
    insert = dict.__setitem__

    def delete(self, key):
        self.pop(key, None)


class OfArrays:
    """Arrays of keys, values and displacements, of a size that has to be given."""

    def __init__(self, size, dtype=np.int64):
        self.n, self.dtype = 0, dtype
        self.clear(size)

    def clear(self, size):
        self.key, self.value = np.zeros(size, self.dtype), np.zeros(size, np.int64)
        self.away = np.full(size, -1)

    def insert(self, key, value):
        i = self.find(key)
        if i >= 0:
            self.value[i] = value
            return
        if self.n >= len(self.key) // 2:
            old = [*zip(self.key[self.away >= 0], self.value[self.away >= 0], strict=True)]
            self.clear(2 * len(self.key))
            for pair in old:
                self.put(*pair)
        self.put(key, value)
        self.n += 1

    def put(self, key, value):
        i, away = int(key) % len(self.key), 0
        while self.away[i] >= 0:
            if self.away[i] < away:
                key, self.key[i] = int(self.key[i]), key
                value, self.value[i] = int(self.value[i]), value
                away, self.away[i] = int(self.away[i]), away
            i, away = (i + 1) % len(self.key), away + 1
        self.key[i], self.value[i], self.away[i] = key, value, away

    def find(self, key):
        i = int(key) % len(self.key)
        while self.away[i] >= 0:
            if self.key[i] == key:
                return i
            i = (i + 1) % len(self.key)
        return -1

    def get(self, key):
        i = self.find(key)
        return self.value[i] if i >= 0 else None

    def delete(self, key):
        i = self.find(key)
        if i < 0:
            return np.False_
        while self.away[(i + 1) % len(self.key)] > 0:
            j = (i + 1) % len(self.key)
            self.key[i], self.value[i], self.away[i] = self.key[j], self.value[j], self.away[j] - 1
            i = j
        self.away[i] = -1
        self.n -= 1
        return np.True_


def made(*bases, **methods):
    """Return a table with some methods replaced."""
    return type("Table", bases or (RobinHood,), methods)


SquareRootHome = made(Counting, home=lambda self, key: int(abs(key) ** 0.5) % len(self.slots))
OneHome = made(Counting, home=lambda self, key: 3 % len(self.slots))


def make_counting():
    return Counting(16)


def multiplied(self, key):
    return (key * 0x9E3779B97F4A7C15 % 2**64) >> 32


_RANDOM = np.random.default_rng(5).integers(2**62, size=(8, 256)).tolist()


def tabulated(self, key):
    hashed = 0
    for table, byte in zip(_RANDOM, (key % 2**64).to_bytes(8, "little"), strict=True):
        hashed ^= table[byte]
    return hashed


HASHES = {"remainder": None, "multiplied": multiplied, "tabulated": tabulated}


def with_hash(make, name):
    """Return the table with another hash function."""
    if HASHES[name] is None or not isinstance(make, type):
        return make
    return type(make.__name__, (make,), {"hash": HASHES[name]})


_UNKNOWN = "it has no method `displacements`"
RIGHT = (
    *((with_hash(RobinHood, name), _UNKNOWN) for name in HASHES),
    *((with_hash(Counting, name), "") for name in HASHES),
    *((with_hash(Linear, name), _UNKNOWN) for name in HASHES),
    (Chained, "delete raises KeyError for a key that is not stored."),
    *((OfDict, _UNKNOWN), (OfArrays, _UNKNOWN), (make_counting, "")),
    *((SquareRootHome, ""), (OneHome, None)),
)
"""Right tables, and what is remarked upon: of the last one, whether it was too slow, or nothing."""
