"""Tell from the shortest run that fails what is wrong with a table.

Where a table stores a key, when it grows and what a slot holds are the reader's own affair, so no
model computes its answers. What tells a mistake is which operations it takes, and which keys.
"""

import contextlib
import itertools
from dataclasses import replace

import numpy as np

from attnbook.check.sandbox import describe_error
from attnbook.check.sentences import sentences
from attnbook.check.table_runs import N_SLOTS, Failure, Step, Tables, TooSlow, equal

MESSAGES = sentences(
    """
    shared storage: A new table holds what was put into another one. Make the slots in __init__, for
        each table its own: a list in the class body, or as a default value, is the same for all.
    missing key raises: get raises an error for a key that is not stored. It returns None then, as
        dict.get does: for a bucket that is empty that is the usual case.
    missing key gives a value: get returns a number for a key that is not stored. A stored value may
        be any number, 0 and −1 among them, so none can mean that there is no such key: return None.
    a key marks free slots: One key is special: your free slots look as if they held it. Any number
        can be a key, 0 and −1 among them. Mark a free slot in another way, such as a displacement
        of −1.
    a value counts as missing: A stored value is taken for no value. 0 is false in Python, so `if
        value:` or `value or default` loses it; −1 may be a value too. Compare keys, and test with
        `is None`.
    negative keys: Negative keys get lost. Signatures are negative as often as not. The remainder %
        of Python and NumPy is never negative for a positive n_slots; math.fmod, C's % and abs are
        other things.
    large keys: Large keys are cut off, so different ones become equal, or cannot be stored or
        found. A signature uses all 64 bits: keep keys in int64. np.zeros makes floats unless it is
        told otherwise, and a float64 holds 53 bits.
    large values: Large values are cut off, or cannot be stored. A value may use all 64 bits: keep
        values in int64. np.zeros makes floats unless told otherwise, and a float64 holds 53 bits.
    identity: Keys are compared with `is`, which asks for one and the same object. Small integers
        happen to be one object each in Python, larger ones are not, and what comes out of an array
        is a new one every time. Compare with ==.
    nothing stored: get finds no key that insert was given. Either insert stores nothing, or they
        look in two different places, or keys are compared with `is` instead of ==.
    old value kept: Inserting a key that is stored already must overwrite its value; here the old
        one stays.
    values added up: Inserting a key that is stored already adds the new value to the old one. It
        takes its place.
    second entry: Inserting a key that is stored already adds a second entry, and when one is
        deleted the other comes to light. While insert walks on, it must compare keys: with every
        entry that it passes, before it swaps with one or takes a free slot.
    delete keeps the key: A deleted key is still found.
    delete leaves a hole: After a delete another key is lost. Most often it had been pushed past the
        slot that is now free, and the search stops there, or it was moved back past its own slot.
        Close the gap: move the entries behind it one slot back, until one is at home or a slot is
        free. (A tombstone, which a search passes, does too.) If entries store their displacement,
        it must be right after each move: one less here, its own after a swap.
    delete takes another key: delete removes a key that it was not asked to remove. Compare keys
        before you clear a slot; for a key that is not stored there is nothing to do.
    freed slot taken too early: insert puts a key into the first slot that a delete has freed,
        though the same key stands further on. Then it is there twice, and when one is deleted the
        other comes to light. Search to the end first.
    no way back: A key that was deleted and is inserted again is not found. Either insert does not
        store it, or the search ends at the mark that delete has left: a search goes on past such a
        mark, and insert may put a key into its slot.
    deleted keys come back: A deleted key is found again after others were inserted: what marks its
        slot as deleted is lost when entries are moved to a larger table, or by a swap.
    keys not compared: Two keys are taken for one: get returns, or insert overwrites, what stands in
        the slot without comparing the keys. That two keys want one slot says nothing about them.
    keys changed: Two different keys are taken for one, though colliding ones are told apart:
        something is done to a key before it is stored or looked for, such as abs or a remainder.
        That is for its home; store and compare the key as it is.
    not a stored value: get returns something that was never stored as a value, such as the key, the
        number of its slot or a value that was changed on the way. Return the value as it came.
    one key alone: Each insertion loses the key that was stored before, whatever the keys are. A
        table holds many.
    collision overwrites: When two keys want one slot, the second one replaces the first, which is
        lost. It has to walk on to another slot, or to carry on the one that it pushes out.
    search gives up: The key that was inserted last is not found, though it is found in an empty
        table. Where its slot is taken, insert and get must walk alike: from home slot by slot to a
        free one. get may stop sooner, at an entry that is nearer to its home than the search has
        come, but only if insert swaps at the same place.
    entries not exchanged: After a delete another key is lost, since insert never exchanges entries,
        or goes on with the displacement of the one that it put down: where a key stands depends on
        which came first. Moving entries back until one is at home
        closes the gap only if keys stand in the order of their homes. So let insert exchange the
        entry in hand with one that is nearer to its home; or, without exchanges, mark the freed
        slot with a tombstone.
    earlier key lost: An insertion loses a key that was stored before. What insert pushes out of a
        slot needs another one: after a swap, go on with the entry that was pushed out, with its
        key, its value and its own displacement, until it has a slot.
    key and value parted: A key comes back with the value of another one. Whatever moves an entry, a
        swap, a delete or growth, must move key and value together.
    end of the table: Runs fail where a search goes past the last slot, and only there. Slot 0
        follows it: (slot + 1) % n_slots in every loop, of insert, get and delete; and a
        displacement is (slot − home) % n_slots.
    endless search: A search never ends though there are free slots. Each round must move on by a
        slot, and end at the key or at a free slot.
    no growth: The table does not grow: it takes a certain number of keys and no more. Before the
        load gets too high, make a table twice as large and insert every entry anew. One slot at
        least must stay free, since that is where the search for a missing key ends.
    keys lost at growth: Keys are lost, or get wrong values, when the table grows. The home of a key
        depends on the number of slots, so entries cannot be copied slot by slot: insert each one
        anew, and then the key that made the table grow.
    keys lost among many: Keys are lost, or get wrong values, where a table holds many. Let it grow,
        and then insert each entry anew, since the home of a key depends on the number of slots.
    tombstones never freed: A table of a few keys fills up, or grows on and on, by inserting and
        deleting: what marks a slot as deleted stays for ever, or deletions are not counted. Close
        the gap when you delete, by moving the entries behind it back, or rebuild the table once in
        a while; count the marks when you decide about it.
    overwriting counted: len counts a key again whose value is overwritten.
    missing deletions counted: len goes down when a key is deleted that is not stored. Count only
        what was removed.
    deletions not counted: len does not go down when a key is deleted.
    wrong length: len differs from the number of keys.
    answer of delete: delete returns the wrong one of True and False. True says that the key was
        stored.
    membership: `in` does not agree with get: it is true for the keys that are stored.
    displacements: displacements() has a number for each stored key and for nothing else: how many
        slots the key is away from its home.
    negative displacement: A displacement is negative. An entry stands at its home or after it, and
        slot 0 follows the last one: the distance is (slot − home) % n_slots.
    displacement at home: The only key of a table stands at its home, so its displacement is 0;
        yours is another. Count the slots that it was moved on, not those that were looked at.
    displacements all 0: displacements() is 0 for every one of 1000 random keys. Where a slot holds
        one key, some have to stand behind their home. Return the distances, (slot − home) %
        n_slots.
    """
)

GENERAL = "Your table differs from a dict, and not in a way that this check knows."
SLIPS = (NameError, AttributeError, TypeError, RecursionError)
"""Errors that are no way to say that a table is full."""
SAMPLES = 240
"""How many random keys a run is tried with."""
MANY = 50
"""As many keys need not be tried with others: it is their number that counts."""


def diagnose(tables: Tables, failure: Failure, growing: bool) -> tuple[str | None, str]:
    """Return name and sentence of the mistake that the shortest run shows."""
    name = None
    with contextlib.suppress(TooSlow):  # no time left to find out
        name = _Case(tables, failure, growing).name()
    if name is not None:
        return name, MESSAGES[name]
    if failure.error is not None:
        return "raises", f"Your table raises {describe_error(failure.error)}."
    return None, GENERAL


class _Case:
    """The shortest run, seen from its last step: what happened to that key before."""

    def __init__(self, tables: Tables, failure: Failure, growing: bool):
        self.tables, self.failure, self.growing = tables, failure, growing
        self.key = failure.last.key
        self.inserts, self.deletes = failure.named("insert"), failure.named("delete")
        self.own_inserts = [step for step in self.inserts if step.key == self.key]
        self.others = {step.key for step in self.inserts} - {self.key}
        self.deletes_of_others = [step for step in self.deletes if step.key != self.key]
        self.deletes_own = len(self.deletes) > len(self.deletes_of_others)

    def name(self) -> str | None:
        rule = getattr(self, f"_{self.failure.kind.replace(' ', '_')}")
        if any(abs(step.value) > 2**31 for step in self.failure.steps) and not self._fails_for(10):
            return "large values"
        return "large keys" if self._needs_large_keys() else rule()

    # What the rules ask.

    def _fails_for(self, value: int) -> bool:
        """Tell whether the run fails with another value in all of its steps."""
        steps = [replace(step, value=value) for step in self.failure.steps]
        return self.tables.fails(steps, self.failure.kind)

    def _fails_with(self, *keys: int) -> bool:
        """Tell whether it fails with one of these keys in the place of that of the last step."""
        steps, own = self.failure.steps, self.key
        runs = ([replace(s, key=key if s.key == own else s.key) for s in steps] for key in keys)
        return any(self.tables.fails(run, self.failure.kind) for run in runs)

    def _share(self, low: int = 0, high: int = 10**6, seed: int = 0) -> float:
        """Return how often the run fails with random keys of a range in the place of its own."""
        rng = np.random.default_rng(seed)
        keys = list(dict.fromkeys(step.key for step in self.failure.steps))
        samples = min(SAMPLES, 20_000 // len(self.failure.steps))
        failed = 0
        for _ in range(samples):
            drawn = rng.integers(low, high, size=len(keys)).tolist()
            new = dict(zip(keys, drawn, strict=True))
            steps = [replace(step, key=new[step.key]) for step in self.failure.steps]
            failed += len(set(drawn)) == len(keys) and self.tables.fails(steps, self.failure.kind)
        return failed / samples

    def _needs_large_keys(self) -> bool:
        """Tell whether the run fails with keys of 62 bits, and with small ones never."""
        if self.failure.kind == "hangs":  # each run of these takes long
            return False
        large = any(abs(step.key) > 2**31 for step in self.failure.steps)
        large = large and self._share(-(2**62), 2**62) > 0
        return large and not any(self._share(seed=seed) for seed in range(4))

    def _at_the_end_alone(self, share: float) -> bool:
        """Tell whether two keys that collide fail at one place only, by how often they do.

        Two random keys share a slot with chance 1/n, and the last slot with chance 1/n². In a
        larger table that is too rare to tell.
        """
        return self._two_in_few_slots() and share < 0.4 / N_SLOTS

    def _two_in_few_slots(self) -> bool:
        n_slots = self.tables.n_slots or (N_SLOTS if self.tables.made_with else None)
        return len(self.others | {self.key}) == 2 and n_slots == N_SLOTS

    # The rules.

    def _hangs(self) -> str | None:
        if self.growing and not self._grew_before():
            return "no growth"
        return "tombstones never freed" if self._by_deletes() else "endless search"

    def _grew_before(self) -> bool:
        """Tell whether the table got larger in the steps before the last one."""
        with contextlib.suppress(TooSlow):  # no time left to find out
            return self.tables.run(self.failure.before) is None and bool(self.tables.grew)
        return False

    def _by_deletes(self) -> bool:
        """Tell whether the run is right without its deletions."""
        without_deletes = [step for step in self.failure.steps if step not in self.deletes]
        with contextlib.suppress(TooSlow):  # no time left to find out
            return bool(self.deletes) and self.tables.run(without_deletes) is None
        return False

    def _raises(self) -> str | None:
        error, last = self.failure.error, self.failure.last
        if last.name == "len":
            return self._length()
        if last.name == "get" and not (self.own_inserts and not self.deletes_own):
            return "missing key raises"
        if last.name == "delete" and isinstance(error, KeyError):
            return self._lost()
        if self.growing and not isinstance(error, SLIPS) and not self._grew_before():
            return "no growth"
        if not isinstance(error, (IndexError, KeyError)):
            return None
        if len(self.deletes) > 2:
            return "tombstones never freed" if self._by_deletes() else None
        return "end of the table" if self._share() < 0.5 else None

    def _ghost(self) -> str | None:
        got, stored = self.failure.got, {step.value for step in self.inserts}
        if self.failure.last.name == "in":
            return "membership"
        if not any(equal(got, value) for value in stored):
            special = not self._fails_with(5, 77, 1001)
            return "a key marks free slots" if special else "missing key gives a value"
        if self.deletes_own and self.deletes_of_others:
            own = max(i for i, s in enumerate(self.failure.before) if s == Step("delete", self.key))
            asked = self.tables.run([*self.failure.steps[:own], Step("get", self.key)])
            if asked is not None and asked.kind == "lost":  # before it was deleted
                return _Case(self.tables, asked, self.growing).name()
        if self.deletes_own and not self.others:
            return "second entry" if len(self.own_inserts) > 1 else "delete keeps the key"
        if self.deletes_own and len(self.own_inserts) > 1:
            return "freed slot taken too early" if self.deletes_of_others else "second entry"
        if self.deletes_own:
            return "deleted keys come back"
        return "large keys" if self._cut_off() else self._taken_for_one()

    def _taken_for_one(self) -> str:
        """Tell by how often two random keys are taken for one: one time in 8 if they collide."""
        changed = self._two_in_few_slots() and self._share() < 0.2 / N_SLOTS
        return "keys changed" if changed else "keys not compared"

    def _cut_off(self) -> bool:
        """Tell whether an int32 or a float takes the key for the one whose value came back."""
        others = {step.key for step in self.inserts if equal(self.failure.got, step.value)}
        return self._share() == 0 and any(
            float(key) == float(self.key) or (key - self.key) % 2**32 == 0
            for key in others - {self.key}
        )

    def _lost(self) -> str | None:
        if self.failure.last.name == "in":
            return "membership"
        if not self.others and not self.deletes:
            return self._lost_alone()
        if self.growing and self._is_full():
            return "no growth"
        if self._by_growth() and not self.deletes:
            return self._lost_at_growth()
        if self.deletes_own and not self.others:
            return "no way back"
        if self.deletes_of_others:
            return self._lost_by_delete()
        if self._at_the_end_alone(self._share()):
            return "end of the table"
        if self.inserts[-1].key == self.key:
            return "search gives up"
        if len(self.others) > 1:
            return "earlier key lost"
        return "one key alone" if self._share() > 0.6 else "collision overwrites"

    def _lost_alone(self) -> str | None:
        if not self._fails_for(10):
            return "a value counts as missing"
        if self._fails_with(1001) and not self._fails_with(5) and self._finds_same_objects():
            return "identity"
        if self._fails_with(5, 77):
            return "nothing stored"
        return "negative keys" if self._fails_with(-7, -1001) else "a key marks free slots"

    def _finds_same_objects(self) -> bool:
        """Tell whether the run is right if each key is one and the same object throughout."""
        self.tables.same_objects = True
        try:
            return not self._fails_with(1001)
        finally:
            self.tables.same_objects = False

    def _is_full(self) -> bool:
        """Tell whether the key came last and further ones get lost as it did."""
        if self.inserts[-1].key != self.key:
            return False
        taken = {step.key for step in self.inserts}
        fresh = [key for key in range(len(taken) + 3) if key not in taken][:3]
        more = [*self.failure.before, *(Step("insert", key, 10) for key in fresh)]
        return all(self.tables.fails([*more, Step("get", key)], "lost") for key in fresh)

    def _by_growth(self) -> bool:
        """Tell whether growth is to blame: the table grew, or other keys get lost as often."""
        if self.failure.grew is not None:
            return self.failure.grew
        return self.growing and (len(self.inserts) > MANY or self._share() > 0.2)

    def _lost_at_growth(self) -> str:
        return "keys lost at growth" if self.failure.grew else "keys lost among many"

    def _lost_by_delete(self) -> str | None:
        stored = {step.key for step in self.inserts}
        if all(step.key not in stored for step in self.deletes):
            return "delete takes another key"
        share = self._share()
        if share > 0.6:
            return "delete takes another key"
        if self._order_counts():
            return "entries not exchanged"
        return "end of the table" if self._at_the_end_alone(share) else "delete leaves a hole"

    def _order_counts(self) -> bool:
        """Tell whether displacements depend on which of the keys came first, as without swaps."""
        keys = list(dict.fromkeys(step.key for step in self.inserts))
        if len(keys) not in (3, 4) or "displacements" not in self.tables.methods:
            return False
        seen: set[tuple] = set()

        def fill():
            for order in itertools.permutations(keys):
                table = self.tables.new()
                for key in order:
                    table.insert(key, 10)
                seen.add(tuple(sorted(int(x) for x in table.displacements())))

        outcome, _ = self.tables.do(fill, seconds=self.tables.budget.seconds / 4)
        return outcome.error is None and not outcome.stopped and len(seen) > 1

    def _other_value(self) -> str | None:
        if self._by_growth():
            return self._lost_at_growth()
        older = [step.value for step in self.own_inserts[:-1]]
        if any(equal(self.failure.got, value) for value in older):
            twice = [*self.failure.before, Step("delete", self.key), Step("get", self.key)]
            if not self.tables.fails(twice, "ghost"):
                return "old value kept"
            return "freed slot taken too early" if self.deletes_of_others else "second entry"
        if older and equal(self.failure.got, sum(step.value for step in self.own_inserts)):
            return "values added up"
        if not any(equal(self.failure.got, step.value) for step in self.inserts):
            return "not a stored value"
        if self._cut_off():
            return "large keys"
        two = len(self.others) == 1 and not self.deletes
        return self._taken_for_one() if two else "key and value parted"

    def _answer(self) -> str | None:
        """Ask get: it may be right about a key of which delete says another thing."""
        asked = self.tables.run([*self.failure.before, Step("get", self.key)])
        return _Case(self.tables, asked, self.growing).name() if asked else "answer of delete"

    def _length(self) -> str:
        n_inserts, n_deletes = len(self.inserts), len(self.deletes)
        keys = {step.key for step in self.inserts}
        if n_inserts > len(keys) and not n_deletes:
            return "overwriting counted"
        if n_deletes and not {step.key for step in self.deletes} & keys:
            return "missing deletions counted"
        if n_deletes == n_inserts == len(keys) == 1:
            return "deletions not counted"
        return "wrong length"
