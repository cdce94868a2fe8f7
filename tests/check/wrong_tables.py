"""Wrong hash tables, by the mistake that the check must find: the right one, a method replaced."""

import numpy as np
from right_tables import Counting, Linear, OfDict, RobinHood, made


def storing(kind):
    """Return a table that stores ``kind(value)``."""
    return made(insert=lambda self, key, value: RobinHood.insert(self, key, kind(value)))


def raise_key_error(self, key):
    if self.find(key) is None:
        raise KeyError(key)
    return self.slots[self.find(key)][1]


def free_slots_hold_zero(self, key):
    slot = self.home(key)
    for _ in self.slots:
        there = self.slots[slot] or [0, 0]
        if there[0] == key:
            self.slots[slot] = self.slots[slot] or there
            return slot
        if there[0] == 0:
            return None
        slot = self.next(slot)
    return None


def storing_keys(change, find=True):
    """Return a table that stores ``change(key)``, and that looks for it or for the key itself."""

    def insert(self, key, value):
        RobinHood.insert(self, change(key), value)

    def look_for(self, key):
        return RobinHood.find(self, change(key) if find else key)

    return made(insert=insert, find=look_for)


def in_an_int32(key):
    np.zeros(1, dtype=np.int32)[0] = key
    return key


def wrapped(key):
    return int(np.int64(key).astype(np.int32))


def compare_after_the_swap(self, key, value):
    if self.is_full():
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


def insert_once(self, key, value):
    if self.find(key) is None:
        RobinHood.insert(self, key, value)


def clear_home(self, key):
    self.slots[self.home(key)] = None


def take_freed(self, key, value):
    slot = self.home(key)
    while self.slots[slot] and self.slots[slot][0] != key:
        slot = self.next(slot)
    if not self.slots[slot]:
        self.used += self.slots[slot] is None
        if self.used > self.most * len(self.slots):
            self.grow()
            return self.insert(key, value)
        self.n += 1
    self.slots[slot] = [key, value]


class StopsAtMarks(Linear):
    """Linear probing whose get ends at a slot that a delete has freed."""

    def get(self, key):
        slot = self.home(key)
        while self.slots[slot]:
            if self.slots[slot][0] == key:
                return self.slots[slot][1]
            slot = self.next(slot)
        return None


class Lasting(OfDict):
    """A dict that forgets the oldest key when there is more than a number of them."""

    most = 1

    def insert(self, key, value):
        self[key] = value
        if len(self) > self.most:
            del self[next(iter(self))]


class ComesBack(Linear):
    """Mark deleted keys, and forget the marks when the table grows."""

    marks = frozenset()

    def get(self, key):
        return None if key in self.marks else super().get(key)

    def insert(self, key, value):
        self.marks = self.marks - {key}
        super().insert(key, value)

    def grow(self):
        super().grow()
        self.marks = frozenset()

    def delete(self, key):
        there = self.get(key) is not None
        self.marks = self.marks | {key}
        return there


def start_anew_after_a_swap(self, entry):
    slot, away = self.home(entry[0]), 0
    while self.slots[slot] is not None:
        if self.away(slot) < away:
            entry, self.slots[slot], away = self.slots[slot], entry, -1
        slot, away = self.next(slot), away + 1
    self.slots[slot] = entry


def swap_keys_alone(self, entry):
    entry, slot, away = list(entry), self.home(entry[0]), 0
    while self.slots[slot] is not None:
        if self.away(slot) < away:
            away, there = self.away(slot), self.slots[slot]
            entry[0], there[0] = there[0], entry[0]
        slot, away = self.next(slot), away + 1
    self.slots[slot] = entry


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


_one = RobinHood()
WRONG = {
    "shared storage": lambda: _one,
    "missing key raises": made(get=raise_key_error),
    "missing key gives a value": made(
        get=lambda self, key: -1 if self.find(key) is None else self.slots[self.find(key)][1]
    ),
    "a key marks free slots": made(find=free_slots_hold_zero),
    "a value counts as missing": made(get=lambda self, key: RobinHood.get(self, key) or None),
    "negative keys": made(find=lambda self, key: None if key < 0 else RobinHood.find(self, key)),
    "large values": storing(wrapped),
    "large keys": storing_keys(in_an_int32, find=False),
    "identity": made(same=lambda self, slot, key: self.slots[slot][0] is key),
    "nothing stored": made(put=lambda self, entry: None),
    "old value kept": made(insert=insert_once),
    "values added up": made(
        insert=lambda self, key, value: RobinHood.insert(self, key, value + (self.get(key) or 0))
    ),
    "second entry": made(insert=compare_after_the_swap),
    "delete keeps the key": made(delete=lambda self, key: self.find(key) is not None),
    "delete leaves a hole": made(moves_back=lambda self, slot: False),
    "entries not exchanged": made(
        Counting,
        swaps=lambda self, slot, away: self.away(slot) < away - 1,
        ends=lambda self, slot, away: self.slots[slot] is None,
    ),
    "delete takes another key": made(delete=clear_home),
    "freed slot taken too early": made(Linear, insert=take_freed),
    "deleted keys come back": ComesBack,
    "keys not compared": made(
        same=lambda self, slot, key: self.home(self.slots[slot][0]) == self.home(key)
    ),
    "keys changed": made(
        **{
            name: lambda self, key, *value, name=name: getattr(RobinHood, name)(
                self, key % 1000, *value
            )
            for name in ("insert", "get", "delete")
        }
    ),
    "not a stored value": made(get=lambda self, key: self.find(key)),
    "collision overwrites": made(
        put=lambda self, entry: self.slots.__setitem__(self.home(entry[0]), entry)
    ),
    "earlier key lost": made(put=start_anew_after_a_swap),
    "search gives up": made(
        ends=lambda self, slot, away: (
            self.slots[slot] is None or (away > 0 and self.away(slot) <= away)
        )
    ),
    "key and value parted": made(put=swap_keys_alone),
    "end of the table": made(
        moves_back=lambda self, slot: slot > 0 and RobinHood.moves_back(self, slot)
    ),
    "endless search": made(
        ends=lambda self, slot, away: False,
        same=lambda self, slot, key: self.slots[slot] is not None and self.slots[slot][0] == key,
    ),
    "no growth": made(ends=lambda self, slot, away: self.slots[slot] is None, most=1),
    "keys lost at growth": made(
        grow=lambda self: setattr(self, "slots", self.slots + [None] * len(self.slots))
    ),
    "keys lost among many": made(Lasting, most=9),
    "one key alone": Lasting,
    "no way back": StopsAtMarks,
    "tombstones never freed": made(Linear, grow=lambda self: Linear.grow(self, 2)),
    "overwriting counted": CountsOverwrites,
    "missing deletions counted": CountsMissing,
    "deletions not counted": CountsOn,
    "wrong length": made(Counting, __len__=lambda self: len(self.slots)),
    "answer of delete": made(Counting, delete=lambda self, key: [RobinHood.delete(self, key)] > []),
    "membership": made(
        Counting, __contains__=lambda self, key: self.slots[self.home(key)] is not None
    ),
    "displacements": made(Counting, displacements=lambda self: [0] * len(self.slots)),
    "negative displacement": made(
        Counting,
        displacements=lambda self: [
            i - self.home(x[0]) for i, x in enumerate(self.slots) if x is not None
        ],
    ),
    "displacement at home": made(
        Counting, displacements=lambda self: Counting.displacements(self) + 1
    ),
    "displacements all 0": made(
        Counting, displacements=lambda self: 0 * Counting.displacements(self)
    ),
}
