"""Run operations on a table beside a dict, and make a run that fails as short as it gets."""

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnbook.check.engine.calls import Finding, Found, kind_of
from attnbook.check.engine.sandbox import PRINTS, Budget, Outcome, call, describe_error
from attnbook.check.engine.signatures import bare, binds, signature_of

N_SLOTS = 8
"""What a table is made with, if it takes a number of slots: small, so that keys soon collide."""

SIMPLE_KEYS = (1, 2, 3, 0, 8, 16, 24, 9, 7, 15, -1)
"""What a key is replaced by, if a run still fails: the first that does."""

TRIALS = 150_000
"""How many steps are run in all to make one run shorter."""

LONGEST = 12
"""How many steps of a run are shown."""

_thread_time = getattr(time, "thread_time", time.process_time)


@dataclass(frozen=True)
class Step:
    """One operation: insert, get, delete, in or len."""

    name: str
    key: int = 0
    value: int = 0

    def __str__(self) -> str:
        shown = {"insert": f"insert({self.key}, {self.value})", "len": "len()"}
        return shown.get(self.name, f"{self.name}({self.key})")


@dataclass(frozen=True)
class Failure:
    """A run that fails at its last step.

    `kind` is "lost" (the key is stored and not found), "ghost" (it is found and not stored), "other
    value", "length", "answer" (of delete), "raises" or "hangs".
    """

    steps: tuple[Step, ...]
    kind: str
    got: Any = None
    expected: Any = None
    error: BaseException | None = None
    grew: bool | None = None  # whether the table got larger, if that can be seen

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def before(self) -> tuple[Step, ...]:
        return self.steps[:-1]

    def named(self, name: str) -> list[Step]:
        """Return the steps of that name before the last one."""
        return [step for step in self.before if step.name == name]

    def __str__(self) -> str:
        shown = [str(step) for step in self.steps]
        if len(shown) > LONGEST:
            left_out = len(shown) - LONGEST + 1
            shown = [*shown[: LONGEST - 4], f"… {left_out} more …", *shown[-3:]]
        what = f"returned {self.got}, expected {self.expected}"
        what = f"raised {describe_error(self.error)}" if self.error is not None else what
        what = "does not come back" if self.kind == "hangs" else what
        return f"{', '.join(shown)} {what}."


class TooSlow(Exception):  # noqa: N818
    """The time is spent, on many steps each of which did end."""


class Tables:
    """Makes empty tables, runs steps on them, and counts the time that they compute."""

    def __init__(self, make: Callable, budget: Budget):
        self.new, self.made_with = _maker(make)
        self.budget = budget
        self.methods: set[str] = set()
        self.answers = False  # whether to look at what delete returns
        self.same_objects = False  # whether a key is one object in all steps of a run
        self.n_slots: int | None = None  # of an empty table, if it tells
        self.n_slots_at_end: int | None = None  # after the last step of the last run
        self.grew: bool | None = None  # in the last run, if that can be seen
        self.runs = 0
        self.slowest = 0.0
        self.hung = False  # whether a run did not end, with all the time that there is for one
        self.remarks: list[str] = []

    @property
    def hurried(self) -> bool:
        """Whether half of the time is over."""
        return self.budget.left < self.budget.seconds / 2

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def do(self, work: Callable, *given: Any, seconds: float) -> tuple[Outcome, float]:
        """Call `work` safely for so long; return what it did and how long it computed."""
        if self.budget.left <= 0:
            raise TooSlow
        own = Budget(min(seconds, self.budget.left))
        outcome = call(work, given, {}, own)
        self.budget.spent += own.spent
        self.budget.unlimited |= own.unlimited
        if outcome.printed:
            self.remark(PRINTS)
        return outcome, own.spent

    def run(self, steps: Sequence[Step], *, quick: bool = False) -> Failure | None:
        """Return how the run fails, or None.

        A quick one counts as endless a good deal sooner, if an endless run is known already. Until
        then it is asked again without hurry, as is one that went on after the step that took so
        long: Python may have collected its garbage there.
        """
        place = [0, 0.0]  # which step it is at, and since when
        limit = max(0.1, 20 * self.slowest) if quick else self.budget.seconds / 4
        outcome, spent = self.do(self._compare, steps, place, seconds=limit)
        self.runs += 1
        done = tuple(steps[: int(place[0]) + 1])  # what fails in making it, fails in its first
        if outcome.stopped:
            went_on = spent - place[1] < spent / 2
            if quick and (went_on or not self.hung):
                return self.run(steps)
            if went_on:
                raise TooSlow
            self.hung = True
            return Failure(done, "hangs")
        self.slowest = max(self.slowest, spent)
        if outcome.error is not None:
            return Failure(done, "raises", error=outcome.error)
        return outcome.value

    def fails(self, steps: Sequence[Step], kind: str) -> bool:
        failure = self.run(steps, quick=True)
        return failure is not None and failure.kind == kind

    def _compare(self, steps: Sequence[Step], place: list[float]) -> Failure | None:
        begin = _thread_time()
        table, stored = self.new(), dict[int, int]()
        size = size_of(table)
        for i, step in enumerate(steps):
            place[:] = i, _thread_time() - begin
            kind, got, expected = self._take(step, table, stored)
            self.grew = None if size is None else size_of(table) != size
            if kind:
                plain = got is None or isinstance(got, (int, float, np.generic))
                shown = got if plain else kind_of(got)
                return Failure(tuple(steps[: i + 1]), kind, shown, expected, grew=self.grew)
        self.n_slots_at_end = slots_of(table)
        return None

    def _take(self, step: Step, table: Any, stored: dict[int, int]) -> tuple[str, Any, Any]:
        """Do one step on both; return how the results differ, with what came and what should."""
        # a sum of its own, since equal numbers need not be one object
        key = step.key if self.same_objects else step.key + 2**70 - 2**70
        expected = stored.get(key)
        if step.name == "insert":
            table.insert(key, step.value)
            stored[key] = step.value
            return "", None, None
        if step.name == "get":
            got = table.get(key)
            if expected is None:
                return "" if got is None else "ghost", got, None
            missed = "lost" if got is None else "other value"
            return "" if equal(got, expected) else missed, got, expected
        if step.name == "in":
            got, there = key in table, key in stored
            return "" if got == there else "lost" if there else "ghost", got, there
        if step.name == "len":
            got, expected = len(table), len(stored)
            return "" if got == expected else "length", got, expected
        there, got = stored.pop(key, None) is not None, None
        try:
            got = table.delete(key)
        except KeyError:
            if there:
                raise
            self.remark("delete raises KeyError for a key that is not stored.")
        told = self.answers and isinstance(got, (bool, np.bool)) and bool(got) != there
        return "answer" if told else "", got, there

    def shortest(self, failure: Failure) -> Failure:
        """Return a run that fails likewise and from which no step can be left out."""
        smaller = _Smaller(self, failure)
        with contextlib.suppress(TooSlow):  # no time left: take it as it is
            smaller.leave_out_steps()
            smaller.simplify()
            again = self.run(smaller.failure.steps)
            if again is not None and again.kind == failure.kind:
                return again
        return failure


class _Smaller:
    """A failure that is made smaller step by step, as long as it stays one of its kind."""

    def __init__(self, tables: Tables, failure: Failure):
        self.tables, self.failure = tables, failure
        self.left = TRIALS

    @property
    def done(self) -> bool:
        return self.left < 0 or self.tables.hurried

    def _holds(self, steps: Sequence[Step]) -> bool:
        self.left -= len(steps)
        found = self.tables.run(steps, quick=True) if not self.done else None
        if found is None or found.kind != self.failure.kind:
            return False
        self.failure = found
        return True

    def leave_out_steps(self) -> None:
        """Leave out halves, quarters and so on, down to single steps until all are needed."""
        size = len(self.failure.steps)
        while True:
            size = size // 2 or 1
            at_first, i = self.failure.steps, 0
            while i < len(self.failure.before) and not self.done:
                steps = self.failure.steps
                after = min(i + size, len(steps) - 1)  # the last step is the one that fails
                if not self._holds(steps[:i] + steps[after:]):
                    i += size
            if self.done or (size == 1 and self.failure.steps == at_first):
                return

    def simplify(self) -> None:
        """Give the keys small numbers, and the values 10, 20, …, where it fails all the same."""
        tens = itertools.count(10, 10)
        self._holds(
            [replace(s, value=next(tens)) if s.name == "insert" else s for s in self.failure.steps]
        )
        keys = list(dict.fromkeys(step.key for step in self.failure.steps))
        if self._holds(self._renamed(dict(zip(keys, itertools.count(1), strict=False)))):
            return
        if self.failure.kind == "hangs":  # each run of these takes long
            return
        for key in keys:
            end = SIMPLE_KEYS.index(key) if key in SIMPLE_KEYS else len(SIMPLE_KEYS)
            for simple in SIMPLE_KEYS[:end]:
                if self.done:
                    return
                taken = any(step.key == simple for step in self.failure.steps)
                if not taken and self._holds(self._renamed({key: simple})):
                    break

    def _renamed(self, new: dict[int, int]) -> list[Step]:
        return [replace(step, key=new.get(step.key, step.key)) for step in self.failure.steps]


def equal(got: Any, expected: int) -> bool:
    """Tell whether a number came back that is `expected`; True and False are no numbers here."""
    if isinstance(got, (bool, np.bool)):
        return False
    with contextlib.suppress(Exception):  # whatever comes back may refuse to be compared
        return bool(got == expected)
    return False


def slots_of(table: Any) -> int | None:
    """Return how many slots a table has, if it tells."""
    with contextlib.suppress(Exception):  # an object may do anything when it is asked
        if isinstance(table.n_slots, (int, np.integer)):
            return int(table.n_slots)
    return None


def size_of(table: Any) -> int | None:
    """Return a number that grows with the slots of a table, None if it cannot be seen.

    Unless the table tells its slots, it is the length of its longest list or array. What is short
    while the table is empty may hold the entries one by one, and tells nothing.
    """
    with contextlib.suppress(Exception):
        held = (x for x in vars(table).values() if isinstance(x, (list, np.ndarray)))
        longest = max(map(len, held), default=0)
        return slots_of(table) or (longest if longest > 1 else None)
    return slots_of(table)


def _maker(make: Callable) -> tuple[Callable[[], Any], str]:
    """Return how an empty table is made, with few slots if their number can be chosen, in words."""
    signature = signature_of(make)
    if signature is None:
        return make, ""
    if "n_slots" in signature.parameters:
        return lambda: make(n_slots=N_SLOTS), f" with n_slots={N_SLOTS}"
    if binds(signature, 0):
        return make, ""
    if binds(signature, 1):
        return lambda: make(N_SLOTS), f" made with {N_SLOTS}"
    message = (
        f"Your table is made with {bare(signature)}, but the check calls it without arguments, or "
        "with a number of slots, `n_slots`. Every further argument needs a default value."
    )
    raise Found(Finding("wrong arguments", message))
