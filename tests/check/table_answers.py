"""Hash tables that readers might hand in to the check of one, right and wrong.

A wrong table stands under the name of the mistake that the check must find. All are subclasses of
one right table, or small ones of their own, and each is tried with three hash functions.
"""

import numpy as np


class RobinHood:
    """A right table: a list of slots, None or [key, value]."""

    most = 0.75

    def __init__(self, n_slots=8):
        self.slots = [None] * n_slots
        self.n = 0

    def hash(self, key):
        return key

    @property
    def n_slots(self):
        return len(self.slots)

    def home(self, key):
        return self.hash(key) % len(self.slots)

    def next(self, slot):
        return (slot + 1) % len(self.slots)

    def away(self, slot):
        """Return how far the entry of a slot is from its home."""
        return (slot - self.home(self.slots[slot][0])) % len(self.slots)

    def find(self, key):
        slot, away = self.home(key), 0
        while self.slots[slot] is not None and self.away(slot) >= away:
            if self.slots[slot][0] == key:
                return slot
            slot, away = self.next(slot), away + 1
        return None

    def get(self, key):
        slot = self.find(key)
        return None if slot is None else self.slots[slot][1]

    def insert(self, key, value):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot][1] = value
            return
        if self.n + 1 > self.most * len(self.slots):
            self.grow()
        self.put([key, value])
        self.n += 1

    def put(self, entry):
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None:
            if self.away(slot) < away:
                away, entry, self.slots[slot] = self.away(slot), self.slots[slot], entry
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry

    def grow(self):
        old, self.slots = self.slots, [None] * (2 * len(self.slots))
        for entry in old:
            if entry is not None:
                self.put(entry)

    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return False
        after = self.next(slot)
        while self.slots[after] is not None and self.away(after) > 0:
            self.slots[slot] = self.slots[after]
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
    """Linear probing without swaps, with tombstones: a slot is None, "gone" or [key, value]."""

    used = 0

    def find(self, key):
        slot = self.home(key)
        while self.slots[slot] is not None:
            if self.slots[slot] != "gone" and self.slots[slot][0] == key:
                return slot
            slot = self.next(slot)
        return None

    def insert(self, key, value):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot][1] = value
            return
        if self.used + 1 > self.most * len(self.slots):
            self.grow()
        self.put([key, value])
        self.n += 1

    def put(self, entry):
        slot = self.home(entry[0])
        while self.slots[slot] is not None:
            slot = self.next(slot)
        self.slots[slot] = entry
        self.used += 1

    def grow(self):
        entries = [x for x in self.slots if x is not None and x != "gone"]
        factor = 2 if 2 * len(entries) > self.most * len(self.slots) else 1
        self.slots, self.used = [None] * (factor * len(self.slots)), 0
        for entry in entries:
            self.put(entry)

    def delete(self, key):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot] = "gone"
            self.n -= 1
        return slot is not None


class LinearCounting(Linear):
    def displacements(self):
        stored = [(i, x) for i, x in enumerate(self.slots) if x is not None and x != "gone"]
        return [(i - self.home(x[0])) % len(self.slots) for i, x in stored]


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

    def __init__(self, size):
        self.n = 0
        self.clear(size)

    def clear(self, size):
        self.key, self.value = np.zeros(size, np.int64), np.zeros(size, np.int64)
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


def make_counting():
    return Counting(16)


RIGHT = (RobinHood, Counting, Linear, Chained, OfDict, OfArrays, make_counting)


# Wrong tables.


class Shared(RobinHood):
    def __init__(self, n_slots=8, slots=[None] * 8):
        self.slots, self.n = slots, 0


_one = RobinHood()


def always_the_same():
    return _one


class MissingRaises(RobinHood):
    def get(self, key):
        return self.slots[self.find(key)][1]


class MissingRaisesKeyError(RobinHood):
    def get(self, key):
        slot = self.find(key)
        if slot is None:
            raise KeyError(key)
        return self.slots[slot][1]


class MissingIsMinusOne(RobinHood):
    def get(self, key, default=-1):
        slot = self.find(key)
        return default if slot is None else self.slots[slot][1]


class MissingIsFalse(RobinHood):
    def get(self, key):
        slot = self.find(key)
        return slot is not None and self.slots[slot][1]


class Marked(RobinHood):
    """Free slots are those with a certain key."""

    mark = 0

    def find(self, key):
        slot = self.home(key)
        for _ in range(len(self.slots)):
            there = self.slots[slot] or [self.mark, 0]
            if there[0] == key:
                return slot
            if there[0] == self.mark:
                return None
            slot = self.next(slot)
        return None

    def get(self, key):
        slot = self.find(key)
        return None if slot is None else (self.slots[slot] or [0, 0])[1]

    def insert(self, key, value):
        slot = self.find(key)
        if slot is not None and self.slots[slot] is None:
            self.slots[slot] = [key, value]
        else:
            super().insert(key, value)


class MarkedMinusOne(RobinHood):
    def __init__(self, n_slots=8):
        super().__init__(n_slots)

    def find(self, key):
        return None if key == -1 else super().find(key)


class ValueOr(RobinHood):
    def get(self, key):
        slot = self.find(key)
        return (slot is not None and self.slots[slot][1]) or None


class ValueMinusOne(RobinHood):
    def get(self, key):
        value = super().get(key)
        return None if value == -1 else value


class NegativeKeys(RobinHood):
    def find(self, key):
        return None if key < 0 else super().find(key)


class FloatKeys(RobinHood):
    def insert(self, key, value):
        super().insert(int(float(key)), value)

    def get(self, key):
        return super().get(int(float(key)))

    def delete(self, key):
        return super().delete(int(float(key)))


class Int32Keys(RobinHood):
    def __init__(self, n_slots=8):
        super().__init__(n_slots)
        self.keys = np.zeros(8, dtype=np.int32)

    def insert(self, key, value):
        self.keys[0] = key
        super().insert(key, value)


class WrappedKeys(RobinHood):
    def insert(self, key, value):
        super().insert(int(np.int64(key).astype(np.int32)), value)


class StoresNothing(RobinHood):
    def put(self, entry):
        return


class KeepsOld(RobinHood):
    def insert(self, key, value):
        if self.find(key) is None:
            super().insert(key, value)


class AddsUp(RobinHood):
    def insert(self, key, value):
        super().insert(key, value + (self.get(key) or 0))


class ShiftsWithoutCounting(RobinHood):
    """Store displacements, and leave them as they are when an entry moves back."""

    def away(self, slot):
        return self.slots[slot][2]

    def put(self, entry):
        slot, entry = self.home(entry[0]), [*entry[:2], 0]
        while self.slots[slot] is not None:
            if self.slots[slot][2] < entry[2]:
                entry, self.slots[slot] = self.slots[slot], entry
            slot, entry[2] = self.next(slot), entry[2] + 1
        self.slots[slot] = entry


class SecondEntry(RobinHood):
    def insert(self, key, value):
        if self.n + 1 > self.most * len(self.slots):
            self.grow()
        self.put([key, value])
        self.n += 1


class SecondEntryInFront(SecondEntry):
    def put(self, entry):
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None:
            if self.away(slot) <= away:
                away, entry, self.slots[slot] = self.away(slot), self.slots[slot], entry
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry


class SwapsBeforeItLooks(RobinHood):
    """Compare keys while walking, but after a swap with the key that was pushed out."""

    def insert(self, key, value):
        if self.n + 1 > self.most * len(self.slots):
            self.grow()
        slot, away, entry = self.home(key), 0, [key, value]
        while self.slots[slot] is not None:
            if self.away(slot) <= away and self.slots[slot][0] != entry[0]:
                away, entry, self.slots[slot] = self.away(slot), self.slots[slot], entry
            elif self.slots[slot][0] == entry[0]:
                self.slots[slot] = entry
                return
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry
        self.n += 1


class DeletesNothing(RobinHood):
    def delete(self, key):
        return self.find(key) is not None


class Hole(RobinHood):
    def delete(self, key):
        slot = self.find(key)
        if slot is not None:
            self.slots[slot] = None
            self.n -= 1


class ShiftsOne(RobinHood):
    """Move one entry back, and no more."""

    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return
        after = self.next(slot)
        self.slots[slot] = None
        if self.slots[after] is not None and self.away(after) > 0:
            self.slots[slot], self.slots[after] = self.slots[after], None
        self.n -= 1


class ShiftsTooMuch(RobinHood):
    """Move entries back that are at home already."""

    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return
        after = self.next(slot)
        while self.slots[after] is not None:
            self.slots[slot] = self.slots[after]
            slot, after = after, self.next(after)
        self.slots[slot] = None
        self.n -= 1


class DeletesHome(RobinHood):
    def delete(self, key):
        self.slots[self.home(key)] = None


class DeletesNext(RobinHood):
    def delete(self, key):
        stored = [i for i, x in enumerate(self.slots) if x is not None]
        if stored:
            self.slots[stored[0]] = None
            self.n -= 1


class ClearsAll(RobinHood):
    def delete(self, key):
        there = self.find(key) is not None
        self.slots = [None] * len(self.slots)
        self.n = 0
        return there


class TakesFreed(Linear):
    def insert(self, key, value):
        slot = self.home(key)
        while self.slots[slot] not in (None, "gone") and self.slots[slot][0] != key:
            slot = self.next(slot)
        if self.slots[slot] in (None, "gone"):
            self.used += self.slots[slot] is None
            if self.used > self.most * len(self.slots):
                self.grow()
                return self.insert(key, value)
            self.n += 1
        self.slots[slot] = [key, value]


class NoWayBack(RobinHood):
    def __init__(self, n_slots=8):
        super().__init__(n_slots)
        self.deleted = set()

    def delete(self, key):
        there = super().delete(key)
        self.deleted.add(key)
        return there

    def get(self, key):
        return None if key in self.deleted else super().get(key)


class ComesBack(Linear):
    """Mark deleted keys, and forget the marks when the table grows."""

    def __init__(self, n_slots=8):
        super().__init__(n_slots)
        self.marks = set()

    def get(self, key):
        return None if key in self.marks else super().get(key)

    def insert(self, key, value):
        self.marks.discard(key)
        super().insert(key, value)

    def grow(self):
        super().grow()
        self.marks = set()

    def delete(self, key):
        there = self.get(key) is not None
        self.marks.add(key)
        return there


class ComparesNothing(RobinHood):
    def find(self, key):
        return None if self.slots[self.home(key)] is None else self.home(key)


class ComparesHomes(RobinHood):
    def find(self, key):
        slot = self.home(key)
        while self.slots[slot] is not None:
            if self.home(self.slots[slot][0]) == self.home(key):
                return slot
            slot = self.next(slot)
        return None


class Overwrites(RobinHood):
    def put(self, entry):
        self.slots[self.home(entry[0])] = entry


class DropsPushedOut(RobinHood):
    def put(self, entry):
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None and self.away(slot) >= away:
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry


class LooksAtHome(RobinHood):
    def find(self, key):
        there = self.slots[self.home(key)]
        return None if there is None or there[0] != key else self.home(key)


class LooksAtTwo(Linear):
    def find(self, key):
        for slot in (self.home(key), self.next(self.home(key))):
            if self.slots[slot] not in (None, "gone") and self.slots[slot][0] == key:
                return slot
        return None


class StopsEarly(RobinHood):
    """Search as if there were swaps, and insert without any."""

    def put(self, entry):
        slot = self.home(entry[0])
        while self.slots[slot] is not None:
            slot = self.next(slot)
        self.slots[slot] = entry


class StopsAtEqual(RobinHood):
    def find(self, key):
        slot, away = self.home(key), 0
        while self.slots[slot] is not None and (self.away(slot) > away or away == 0):
            if self.slots[slot][0] == key:
                return slot
            slot, away = self.next(slot), away + 1
        return None


class StartsAtZero(RobinHood):
    """After a swap go on as if the entry were at home."""

    def put(self, entry):
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None:
            if self.away(slot) < away:
                entry, self.slots[slot] = self.slots[slot], entry
                away = -1
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry


class SwapsKeyAlone(RobinHood):
    def put(self, entry):
        entry = list(entry)
        slot, away = self.home(entry[0]), 0
        while self.slots[slot] is not None:
            if self.away(slot) < away:
                away, there = self.away(slot), self.slots[slot]
                entry[0], there[0] = there[0], entry[0]
            slot, away = self.next(slot), away + 1
        self.slots[slot] = entry


class ShiftsKeyAlone(RobinHood):
    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return
        after = self.next(slot)
        while self.slots[after] is not None and self.away(after) > 0:
            self.slots[slot] = [self.slots[after][0], self.slots[slot][1]]
            slot, after = after, self.next(after)
        self.slots[slot] = None
        self.n -= 1


class NoWrap(RobinHood):
    def next(self, slot):
        return slot + 1


class NoWrapInFind(RobinHood):
    def find(self, key):
        for slot in range(self.home(key), len(self.slots)):
            if self.slots[slot] is None:
                return None
            if self.slots[slot][0] == key:
                return slot
        return None


class NoWrapInDelete(RobinHood):
    def delete(self, key):
        slot = self.find(key)
        if slot is None:
            return
        after = slot + 1
        while after < len(self.slots) and self.slots[after] is not None and self.away(after) > 0:
            self.slots[slot] = self.slots[after]
            slot, after = after, after + 1
        self.slots[slot] = None
        self.n -= 1


class NoWrapInAway(RobinHood):
    def away(self, slot):
        return slot - self.home(self.slots[slot][0])


class StaysInPlace(RobinHood):
    def find(self, key):
        slot = self.home(key)
        while self.slots[slot] is not None and self.slots[slot][0] != key:
            pass
        return None if self.slots[slot] is None else slot


class PassesFree(RobinHood):
    def find(self, key):
        slot = self.home(key)
        while self.slots[slot] is None or self.slots[slot][0] != key:
            slot = self.next(slot)
        return slot


class NoGrowth(RobinHood):
    def grow(self):
        pass


class NoGrowthLinear(Linear):
    def grow(self):
        pass


class NoGrowthError(RobinHood):
    def grow(self):
        raise MemoryError("the table is full")


class NoGrowthSilent(RobinHood):
    def insert(self, key, value):
        if self.find(key) is not None or self.n + 1 <= self.most * len(self.slots):
            super().insert(key, value)


class GrowsWhenFull(RobinHood):
    most = 1

    def find(self, key):
        slot = self.home(key)
        while self.slots[slot] is not None:
            if self.slots[slot][0] == key:
                return slot
            slot = self.next(slot)
        return None


class GrowsWithoutHash(RobinHood):
    def grow(self):
        self.slots = self.slots + [None] * len(self.slots)


class GrowsEmpty(RobinHood):
    def grow(self):
        self.slots = [None] * (2 * len(self.slots))


class ForgetsTheNewOne(RobinHood):
    def insert(self, key, value):
        if self.find(key) is None and self.n + 1 > self.most * len(self.slots):
            self.grow()
        else:
            super().insert(key, value)


class LosesValues(RobinHood):
    def grow(self):
        old, self.slots = self.slots, [None] * (2 * len(self.slots))
        for i, entry in enumerate(old):
            if entry is not None:
                self.put([entry[0], i])


class KeepsTombstones(Linear):
    """Grow by the number of keys, so that marks fill the slots."""

    def insert(self, key, value):
        self.used = self.n
        super().insert(key, value)


class DoublesForTombstones(Linear):
    def grow(self):
        entries = [x for x in self.slots if x is not None and x != "gone"]
        self.slots, self.used = [None] * (2 * len(self.slots)), 0
        for entry in entries:
            self.put(entry)


class CountsOverwrites(Counting):
    def insert(self, key, value):
        self.n += self.find(key) is not None
        super().insert(key, value)


class CountsMissing(Counting):
    def delete(self, key):
        self.n -= self.find(key) is None
        return super().delete(key)


class CountsOn(Counting):
    inserted = 0

    def insert(self, key, value):
        self.inserted += self.find(key) is None
        super().insert(key, value)

    def __len__(self):
        return self.inserted


class CountsSlots(Counting):
    def __len__(self):
        return len(self.slots)


class AlwaysTrue(Counting):
    def delete(self, key):
        super().delete(key)
        return True


class ContainsHome(Counting):
    def __contains__(self, key):
        return self.slots[self.home(key)] is not None


class ContainsNothing(Counting):
    def __contains__(self, key):
        return self.get(key) == key


WRONG = {
    "shared storage": Shared,
    "shared storage 2": always_the_same,
    "missing key raises": MissingRaises,
    "missing key raises 2": MissingRaisesKeyError,
    "missing key gives a value": MissingIsMinusOne,
    "missing key gives a value 2": MissingIsFalse,
    "a key marks free slots": Marked,
    "a key marks free slots 2": MarkedMinusOne,
    "a value counts as missing": ValueOr,
    "a value counts as missing 2": ValueMinusOne,
    "negative keys": NegativeKeys,
    "large keys": FloatKeys,
    "large keys 2": Int32Keys,
    "large keys 3": WrappedKeys,
    "nothing stored": StoresNothing,
    "old value kept": KeepsOld,
    "values added up": AddsUp,
    "second entry": SecondEntry,
    "second entry 2": SecondEntryInFront,
    "second entry 3": SwapsBeforeItLooks,
    "delete keeps the key": DeletesNothing,
    "delete leaves a hole": Hole,
    "delete leaves a hole 2": ShiftsOne,
    "delete leaves a hole 3": ShiftsTooMuch,
    "delete leaves a hole 4": ShiftsWithoutCounting,
    "delete takes another key": DeletesHome,
    "delete takes another key 2": DeletesNext,
    "delete takes another key 3": ClearsAll,
    "freed slot taken too early": TakesFreed,
    "no way back": NoWayBack,
    "deleted keys come back": ComesBack,
    "keys not compared": ComparesNothing,
    "keys not compared 2": ComparesHomes,
    "collision overwrites": Overwrites,
    "swapped entry lost": DropsPushedOut,
    "swapped entry lost 2": StartsAtZero,
    "search gives up": LooksAtHome,
    "search gives up 2": LooksAtTwo,
    "search gives up 3": StopsEarly,
    "search gives up 4": StopsAtEqual,
    "key and value parted": SwapsKeyAlone,
    "key and value parted 2": ShiftsKeyAlone,
    "end of the table": NoWrap,
    "end of the table 2": NoWrapInFind,
    "end of the table 3": NoWrapInDelete,
    "end of the table 4": NoWrapInAway,
    "endless search": StaysInPlace,
    "endless search 2": PassesFree,
    "no growth": NoGrowth,
    "no growth 2": NoGrowthError,
    "no growth 3": NoGrowthSilent,
    "no growth 4": GrowsWhenFull,
    "keys lost at growth": GrowsWithoutHash,
    "keys lost at growth 2": GrowsEmpty,
    "keys lost at growth 3": ForgetsTheNewOne,
    "keys lost at growth 4": LosesValues,
    "tombstones never freed": KeepsTombstones,
    "tombstones never freed 2": NoGrowthLinear,
    "tombstones never freed 3": DoublesForTombstones,
    "overwriting counted": CountsOverwrites,
    "missing deletions counted": CountsMissing,
    "deletions not counted": CountsOn,
    "wrong length": CountsSlots,
    "answer of delete": AlwaysTrue,
    "membership": ContainsHome,
    "membership 2": ContainsNothing,
}


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
