"""Tell from the shortest run that fails what is wrong with a table.

Where a table stores a key, when it grows and what a slot holds are the reader's own affair, so no
model computes its answers. What tells a mistake is which operations it takes, and which keys.
"""

import contextlib
import itertools
from dataclasses import replace

import numpy as np

from attnbook.check.engine.sandbox import describe_error
from attnbook.check.engine.text import Text
from attnbook.check.shared.table_runs import N_SLOTS, Failure, Step, Tables, TooSlow, equal

TEXT = Text(globals())

MESSAGES = TEXT.sentences

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
