"""Robin Hood tables beside linear probing without the swap, theory, and sorted buckets."""

import functools
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.compilers.python_or_numba import compiled
from attnbook.hashing.buckets import sort_buckets
from attnbook.hashing.robin_hood import EMPTY, KEY, VALUE, RobinHoodTable, functions, home_slot
from benchmarks import harness
from benchmarks.faults import reason

LOADS = (0.25, 0.5, 0.75, 0.9)
SLOTS, QUICK_SLOTS = 2**20, 2**10
ROUNDS, QUICK_ROUNDS = 5, 2
ROBIN_HOOD, LINEAR, SORTED = "robin hood", "linear probing", "sorted buckets"

METHODS = {
    "robin_hood": (
        "int64 keys drawn at random go into an empty table of `n_slots` until `load` is reached, "
        "then each is looked up, then as many that are not there; compiled by Numba, one thread. "
        "Nanoseconds per key, spread over rounds. `displacement` counts slots from home; `theory` "
        "is its mean a/(2(1 - a)). Linear probing is the same table and the same hash without the "
        "swap, so its search for a missing key goes on to a free slot. Sorted buckets: the same "
        "keys sorted and looked up by binary search, in NumPy."
    )
}


def insert_linear(slots, mixer, keys, values):
    """Put each key, none of which is there, into the first free slot from its home on."""
    n_slots = slots.shape[0]
    for i in range(keys.shape[0]):
        slot = home_slot(keys[i], mixer, n_slots)
        displacement = 0
        while slots[slot, 2] != EMPTY:
            displacement += 1
            slot += 1
            if slot == n_slots:
                slot = 0
        slots[slot, 0], slots[slot, 1], slots[slot, 2] = keys[i], values[i], displacement


def get_linear(slots, mixer, keys, values):
    """Overwrite `values` where the key is stored; a search ends at a free slot alone."""
    n_slots = slots.shape[0]
    for i in range(keys.shape[0]):
        slot = home_slot(keys[i], mixer, n_slots)
        while slots[slot, 2] != EMPTY:
            if slots[slot, KEY] == keys[i]:
                values[i] = slots[slot, VALUE]
                break
            slot += 1
            if slot == n_slots:
                slot = 0


@functools.cache
def _linear_functions():
    return compiled(insert_linear, get_linear, known=functions("numba"))


class LinearTable:
    """Linear probing, with the slots and the hash of a RobinHoodTable."""

    def __init__(self, n_slots: int):
        self._functions = _linear_functions()
        empty = RobinHoodTable(n_slots, 0.95, impl="numba")
        self.slots, self.mixer = empty.slots, empty.mixer

    def insert_many(self, keys, values):
        """Insert keys that are not there."""
        self._functions.insert_linear(self.slots, self.mixer, keys, values)

    def get_many(self, keys):
        """Return the values of keys, -1 for those that are not there."""
        values = np.full(len(keys), -1)
        self._functions.get_linear(self.slots, self.mixer, keys, values)
        return values

    def displacements(self):
        """Return how far each key is from home."""
        return self.slots[self.slots[:, 2] != EMPTY, 2]


class SortedTable:
    """Sorted buckets asked as a map; each key has a bucket of its own."""

    def insert_many(self, keys, values):
        """Sort keys."""
        self._buckets, self._values = sort_buckets(keys), values

    def get_many(self, keys):
        """Return the values of keys, -1 for those that are not there."""
        starts, counts = self._buckets.find(keys)
        return np.where(counts > 0, self._values[self._buckets.order[starts]], -1)


def robin_hood(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each load and kind of table."""
    n_slots = QUICK_SLOTS if quick else SLOTS
    made: dict[str, Callable[[], Any]] = {
        ROBIN_HOOD: lambda: RobinHoodTable(n_slots, 0.95, impl="numba"),
        LINEAR: lambda: LinearTable(n_slots),
        SORTED: SortedTable,
    }
    rows = []
    for load in LOADS:
        n = int(load * n_slots)
        keys = np.unique(np.random.default_rng(7).integers(-(2**63), 2**63, size=2 * n + 8))
        np.random.default_rng(8).shuffle(keys)
        present, absent = np.split(keys[: 2 * n], 2)
        found: dict[str, dict[str, Any]] = {}
        for name, make in made.items():
            found[name] = {"table": name, "load": load, "n_slots": n_slots, "n": n}
            try:
                found[name] |= _look(make(), present, absent, load)
            except Exception as error:  # no Numba
                found[name]["reason"] = reason(error)
        able = [name for name in made if "reason" not in found[name]]
        times = _times({name: made[name] for name in able}, present, absent, quick=quick)
        for name in able:
            found[name]["nanoseconds"] = times[name]
        for row in found.values():
            rows.append(row)
            log(f"robin hood: {_short(row)}")
    return rows


def _look(table, present, absent, load):
    """Check a table and return the displacements in it; compiles on the way."""
    table.insert_many(present, np.arange(len(present)))
    if not np.array_equal(table.get_many(present), np.arange(len(present))):
        raise AssertionError("a stored key was not found")
    if np.any(table.get_many(absent) != -1):
        raise AssertionError("a key was found that is not stored")
    if isinstance(table, SortedTable):
        return {}
    found = table.displacements()
    quantiles = (("median", 0.5), ("0.99", 0.99), ("0.9999", 0.9999))
    return {
        "theory": load / (2 * (1 - load)),
        "displacement": {
            "mean": float(found.mean()),
            "variance": float(found.var()),
            "largest": int(found.max()),
            **{name: float(np.quantile(found, q)) for name, q in quantiles},
        },
    }


def _times(made, present, absent, *, quick):
    values, draw, order = np.arange(len(present)), random.Random(0), list(made)
    samples: dict[str, dict[str, list[float]]] = {
        name: {"insert": [], "get": [], "get missing": []} for name in made
    }
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        draw.shuffle(order)
        for name in order:
            table = made[name]()
            steps = {
                "insert": lambda table=table: table.insert_many(present, values),
                "get": lambda table=table: table.get_many(present),
                "get missing": lambda table=table: table.get_many(absent),
            }
            for step, run in steps.items():
                start = time.perf_counter()
                run()
                samples[name][step].append((time.perf_counter() - start) / len(present) * 1e9)
    return {
        name: {step: harness.spread(taken) for step, taken in found.items()}
        for name, found in samples.items()
    }


def _short(row):
    about = f"{row['table']} at load {row['load']}"
    if "reason" in row:
        return f"{about} did not run: {row['reason']}"
    times = ", ".join(f"{step} {x['median']:.1f} ns" for step, x in row["nanoseconds"].items())
    if "displacement" not in row:
        return f"{about}: {times}"
    shape = row["displacement"]
    mean = f"mean {shape['mean']:.3f} (theory {row['theory']:.3f}), largest {shape['largest']}"
    return f"{about}: {mean}, {times}"
