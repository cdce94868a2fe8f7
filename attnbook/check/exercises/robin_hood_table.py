"""The check of a hash table, beside a dict over many operations."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from attnbook.check.engine.calls import Finding, Found, kind_of
from attnbook.check.engine.report import Report
from attnbook.check.engine.sandbox import describe_error
from attnbook.check.properties.probing import budget_of, described, report_of
from attnbook.check.shared.table_mistakes import TEXT, diagnose
from attnbook.check.shared.table_runs import (
    N_SLOTS,
    Failure,
    Step,
    Tables,
    TooSlow,
    equal,
    slots_of,
)

REQUIRED = ("insert", "get", "delete")
METHODS = (*REQUIRED, "displacements")
SPECIAL = {"__len__": "len", "__contains__": "in"}
ENOUGH = 6
"""How many runs that fail are made short, to find the one that is shortest."""

LIVE, ROUNDS = 3, 1200
"""How many keys are stored between the rounds of insertion and deletion, and how many rounds."""

ODD_KEYS = np.array(
    [0, -1, 1, -2, 2**31, -(2**31) - 1, 2**32 + 1, 2**53, 2**53 + 1, 2**62, -(2**62), 2**63 - 1]
)
"""What may stand for a free slot, and what an int32 or a float does not hold."""


@described
def robin_hood_table(make: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a hash table from integers to integers, of Robin Hood or another kind.

    Runs the same operations on a table and on a dict: insertions, overwriting, deletions and
    searches with few keys and with many, small ones, negative ones, keys that share a slot, keys
    and values that use all 64 bits; growth far beyond the first slots; and many insertions and
    deletions of a table that stays small. The report shows a short run that fails, and what it
    means. It holds a remark if the table has no method `displacements`, which returns for each
    stored key how far it is from its home, or if they spread as they do where nothing swaps.

    Some 25 000 operations are run. In a table that begins with hundreds of slots colliding keys are
    rare and a mistake with them is named less surely, so let `n_slots` be an argument.

    Parameters
    ----------
    make : callable
        A class, or a function that returns an empty table. It is called with ``n_slots=8`` if it
        takes an argument of that name, without arguments if it can be, and else with 8. A table
        has the methods ``insert(key, value)``, which overwrites, ``get(key)``, which returns None
        for a key that is not stored, and ``delete(key)``, which may return whether it was stored.
        Keys and values are ints that an int64 holds. If the class has `__len__` and `__contains__`,
        they are checked too.

    Examples
    --------
    >>> from attnbook import check
    >>> class MyTable(dict):
    ...     insert = dict.__setitem__
    ...     def delete(self, key):
    ...         self.clear()
    >>> report = check.robin_hood_table(MyTable)
    >>> report.mistake
    'delete takes another key'
    >>> report.detail.partition(": ")[2]
    'insert(1, 10), delete(2), get(1) returned None, expected 10.'
    """
    budget = budget_of(make, "make", time_limit)
    finding, tables = None, None
    try:
        tables = Tables(make, budget)
        _look_at(tables)
        finding = _judge(tables) or _look_at_displacements(tables)
    except Found as found:
        finding = found.finding
    except TooSlow:
        message = (
            f"The check is not done after {budget.seconds:g} seconds. Your table is right so far, "
            "but slow: is a search longer than it should be?"
        )
        finding = Finding("hangs", message, f"It ran {tables.runs if tables else 0} times.")
    told = (tables.remarks, tables.runs) if tables else ([], 0)
    return report_of("robin_hood_table", "agrees with a dict", finding, *told, budget)


def _look_at(tables: Tables) -> None:
    """Make two tables and use one: the methods are there, and the other stays empty."""
    found: dict[str, Any] = {}

    def use():
        table = tables.new()
        found["made"] = kind_of(table)
        tables.n_slots = slots_of(table)
        tables.methods.update(name for name in METHODS if callable(getattr(table, name, None)))
        tables.methods.update(name for name in SPECIAL if hasattr(type(table), name))
        found["missing"] = [name for name in REQUIRED if name not in tables.methods]
        if not found["missing"]:
            table.insert(7, 10)
            table.get(7)
            table.delete(7)
            table.insert(5, 10)
            found["shared"] = equal(tables.new().get(5), 10)

    outcome, _ = tables.do(use, seconds=tables.budget.seconds / 2)  # it may have to be compiled
    if "missing" not in found:
        does = f"raises {describe_error(outcome.error)}." if outcome.error else "does not end."
        raise Found(Finding("raises", f"Making an empty table {does}"))
    if found["missing"]:
        message = (
            f"What you make is {found['made']} without a method `{found['missing'][0]}`. A table "
            "has insert(key, value), get(key) and delete(key)."
        )
        raise Found(Finding("missing method", message))
    if found.get("shared"):  # an error is looked at in a run of its own
        detail = "After insert(5, 10) into one table, get(5) of a new one returned 10."
        raise Found(Finding("shared storage", TEXT.sentences["shared storage"], detail))


def _judge(tables: Tables) -> Finding | None:
    for least, growing, runs in _stages(tables):
        try:
            failures = _failures(tables, runs)
        except TooSlow:
            if least:
                raise
            tables.remark(
                f"the runs with many keys were cut short after {tables.budget.spent:.2g} seconds: "
                "is a search longer than it should be?"
            )
            return None
        if failures:  # the shortest shows the cause, longer ones what follows from it
            shortest = min(failures, key=lambda failure: len(failure.steps))
            where = f"an empty table{tables.made_with}"
            detail = f"A short run that fails, on {where}: {shortest}"
            return Finding(*diagnose(tables, shortest, growing), detail)
    n_slots = tables.n_slots_at_end or 0  # of the last run, which had few keys at any time
    if n_slots > max(64, 8 * (tables.n_slots or 0)):
        name = "tombstones never freed"
        detail = f"After {ROUNDS} insertions and deletions of new keys it has {n_slots} slots."
        return Finding(
            name, TEXT.sentences[name], f"{detail} No more than {LIVE + 1} keys were stored."
        )
    return None


def _failures(tables: Tables, runs: Iterable[list[Step]]) -> list[Failure]:
    """Return how runs fail, each made as short as it gets."""
    failures: list[Failure] = []
    for steps in runs:
        failure = tables.run(steps)
        if failure is not None:
            failures.append(tables.shortest(failure))
            if len(failures) == ENOUGH or failure.kind == "hangs" or tables.hurried:
                break
    return failures


def _stages(tables: Tables) -> Iterator[tuple[bool, bool, Iterable[list[Step]]]]:
    """Yield runs that belong together, the simple ones first.

    With them, whether there has to be time for them, and whether they are for growth.
    """
    rng = np.random.default_rng(0)
    plain = ("insert", "insert", "delete", "get")
    counted = plain + tuple(step for name, step in SPECIAL.items() if name in tables.methods)

    def growth(n: int, m: int) -> list[list[Step]]:
        small = rng.permutation(np.arange(-n // 2, n)[:n]).tolist()
        return [_growth(small), _growth(_wide(rng, m))]

    yield True, False, [_mixed(rng, keys, 20, plain) for keys in _few_keys(tables, rng, 30)]
    yield True, True, growth(12, 12)
    yield True, True, growth(50, 50)
    yield True, False, [_mixed(rng, keys, 30, plain) for keys in _few_keys(tables, rng, 20, n=6)]
    yield True, False, [_large_values()]
    yield True, True, growth(200, 200)
    tables.answers = True
    yield True, False, [_mixed(rng, keys, 20, counted) for keys in _few_keys(tables, rng, 5)]
    many = (list(range(-20, 20)), [8 * i - 1 for i in range(30)], _wide(rng, 40))
    yield True, False, [_mixed(rng, keys, 200, counted) for keys in many * 2]
    yield False, True, growth(600, 2000)
    yield False, False, [_mixed(rng, _wide(rng, 600), 2400, counted)]
    yield False, False, [_churn()]


def _few_keys(
    tables: Tables, rng: np.random.Generator, rounds: int, n: int = 4
) -> Iterator[list[int]]:
    """Yield keys, so few that a table of 8 slots need not grow."""
    n_slots = tables.n_slots or N_SLOTS
    for _ in range(rounds):
        small = rng.choice(np.arange(-3, 14), size=n, replace=False)
        yield small[:1].tolist()
        yield small.tolist()
        multiples = n_slots * rng.choice(np.arange(-3, 9), size=n, replace=False)
        yield (multiples + rng.choice([-2, -1, 0, 1], size=n)).tolist()
        yield _wide(rng, n)
        yield rng.choice(ODD_KEYS, size=n, replace=False).tolist()


def _wide(rng: np.random.Generator, n: int) -> list[int]:
    return rng.integers(-(2**62), 2**62, size=n).tolist()


def _mixed(
    rng: np.random.Generator, keys: list[int], length: int, names: tuple[str, ...]
) -> list[Step]:
    """Return random operations, and at the end a search for every key."""
    steps = []
    for i in range(length):
        name, key = names[rng.integers(len(names))], keys[rng.integers(len(keys))]
        value = 10 + i if rng.integers(8) else int(rng.integers(-1, 1))
        steps.append(Step(name, key, value if name == "insert" else 0))
    ends = [name for name in names if name in ("get", "in")]
    return steps + [Step(name, key) for key in keys for name in dict.fromkeys(ends)]


def _large_values() -> list[Step]:
    """Return insertions of values of 33 to 63 bits, and searches for each."""
    values = (2**32 + 5, -(2**32) - 7, 2**53 + 1, 2**62 + 3, -(2**62) - 1)
    inserts = [Step("insert", key, value) for key, value in enumerate(values)]
    return inserts + [Step("get", key) for key in range(len(values))]


def _growth(keys: list[int]) -> list[Step]:
    """Return insertions of different keys, then searches for all and for some others."""
    steps = [Step("insert", key, 10 + i) for i, key in enumerate(keys)]
    return steps + [Step("get", key) for key in [*keys, 2**40, -(2**40), 3**30]]


def _churn() -> list[Step]:
    """Return insertions and deletions of ever new keys, few of which are stored at any time."""
    pairs = ((Step("insert", 7 * i, i), Step("delete", 7 * (i - LIVE))) for i in range(ROUNDS))
    return [*(step for pair in pairs for step in pair), Step("get", -5)]


def _look_at_displacements(tables: Tables) -> Finding | None:
    """Look at the displacements, if they are told, and remark on those of a table without swaps."""
    if "displacements" not in tables.methods:
        tables.remark(
            "it has no method `displacements`, so whether it swaps as Robin Hood does was not "
            "checked."
        )
        return None
    found: list[tuple[int, np.ndarray]] = []

    def fill():
        rng = np.random.default_rng(1)
        for sizes in (*[(1, 1, 2)] * 40, (1000, 500, 500)):
            table, stored = tables.new(), 0
            for n in sizes:
                for key in _wide(rng, n):
                    table.insert(key, 10)
                stored += n
                found.append((stored, np.asarray(table.displacements(), dtype=float)))

    with contextlib.suppress(TooSlow):
        outcome, _ = tables.do(fill, seconds=tables.budget.seconds)
        if outcome.error is not None or any(x.ndim != 1 or x.size == 0 for _, x in found):
            tables.remark("`displacements()` does not return a number for each stored key.")
            return None
    for n, distances in found:
        wrong = {
            "displacements": len(distances) != n,
            "negative displacement": np.any(distances < 0),
            "displacement at home": n == 1 and np.any(distances != 0),
            "displacements all 0": n == 1000 and not np.any(distances),
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            shown = ", ".join(f"{x:g}" for x in distances[:12])
            detail = f"After {n} insertion{'s' * (n > 1)} of random keys it begins with {shown}."
            return Finding(name, TEXT.sentences[name], detail)
    if not found or found[-1][0] < 1000:  # no time left
        return None
    distances = max((x for n, x in found if n >= 1000), key=np.mean)
    mean, variance = float(np.mean(distances)), float(np.var(distances))
    # swaps keep the variance below mean + mean², about; without them it is several times that
    if mean > 0.25 and variance > 1.4 * (mean + mean**2):
        tables.remark(
            f"the displacements have mean {mean:.2f} and variance {variance:.1f}, as in a table "
            f"that does not swap; Robin Hood keeps the variance below {mean + mean**2:.1f}. It "
            "swaps wherever the entry that it meets is nearer to its home."
        )
    return None
