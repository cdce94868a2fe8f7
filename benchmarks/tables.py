"""The tables of a benchmark: measured one after another, each within its time, and kept at once.

A table is a list of steps, such as one for each size, in the order of their worth. Before each step
the log says what comes and how long the rest may take. A step that would exceed the time of its
table is left out, and leaves a row that says why. Before each step and after each table the record
so far is written beside the place of the whole one, so that an interrupted run loses one step.
There a step that is still to come is a row left out, too: where the record has such rows, of the
same commit, versions and driver, its table goes on with them. Tables that nobody asked for are
passed over, and stay as they are in the record.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import faults, harness

SECONDS, QUICK_SECONDS = 1200.0, 120.0  # for one table
AGAIN = ("date", "commit", "device", "cpu", "versions", "load_average")  # kept of a later table
LEFT_OUT = "left out: "  # so begins the reason in the row of a step that did not run
TO_COME = f"{LEFT_OUT}the process ended before"
UNDER_WAY = f"{LEFT_OUT}the process ended meanwhile"


class Step(NamedTuple):
    """A part of a table."""

    about: Mapping[str, Any]  # what tells it from the others of its table
    work: float  # about how much, in any unit that the steps of a table share
    run: Callable[[], list[dict[str, Any]]]  # returns its rows


def is_left_out(row: Mapping[str, Any]) -> bool:
    """Return whether a row stands for a step that did not run."""
    return str(row.get("reason", "")).startswith(LEFT_OUT)


def is_whole(record: Mapping[str, Any], name: str) -> bool:
    """Return whether a table of a record was measured, and no step of it left out."""
    return name in record["table_seconds"] and not any(map(is_left_out, record[name]))


class Tables:
    """The record of a benchmark while it grows.

    Parameters
    ----------
    record : mapping
        What is known before anything is measured.
    path : Path, optional
        Where the whole record goes; without it nothing is written.
    seconds : float
        How long a table may take. A step that has begun is not interrupted.
    log : function
        Takes each line of progress.
    clock : function
        Tells the time in seconds.
    again : mapping, optional
        The provenance of tables that are measured later than the others of `record`.
    only : collection of str, optional
        The names of the tables to measure; without it all are.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        path: Path | None = None,
        *,
        seconds: float = SECONDS,
        log: Callable[[str], None] = harness.log,
        clock: Callable[[], float] = time.perf_counter,
        again: Mapping[str, Any] | None = None,
        only: Collection[str] | None = None,
    ):
        self.record = {"table_seconds": {}, **record}
        self.again, self.only = again, only
        self.names: list[str] = []
        """Of all tables so far, measured or passed over."""
        self.path, self.seconds, self.log, self.clock = path, seconds, log, clock

    def add(self, **facts: Any) -> None:
        """Put into the record what is no table."""
        self.record |= facts

    def _is_wanted(self, name: str) -> bool:
        self.names.append(name)
        return self.only is None or name in self.only

    def parity(self, cases: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Put into the record, and tell, which cases agree with the reference."""
        if not self._is_wanted("parity"):
            return
        start = self.clock()
        self.record["parity"] = rows = cases()
        for row in rows:
            if not row["holds"]:
                self.log(f"parity fails: {row}")
        self.log(f"parity: {sum(row['holds'] for row in rows)} of {len(rows)} cases hold")
        self._close("parity", start)

    def whole(self, name: str, table: Callable[[], Any]) -> Any:
        """Measure a table of one piece and return it."""
        if not self._is_wanted(name):
            return self.record.get(name)
        self.log(f"{name} begins")
        start = self.clock()
        self.record[name] = table()
        self._close(name, start)
        return self.record[name]

    def measure(
        self, name: str, steps: Sequence[Step] | Callable[[], Sequence[Step]], *told: str
    ) -> list[dict[str, Any]]:
        """Measure a table and return its rows; `told` are the fields that the log tells apart.

        `steps` may be a function that returns them, called only if the table is asked for. Where
        the record has rows of it that were left out, their steps alone are measured; what was under
        way when a process ended comes last.
        """
        if not self._is_wanted(name):
            return self.record.get(name, [])
        steps = steps() if callable(steps) else steps
        rows, todo = self._to_do(name, steps)
        start, seen = self.clock(), list[tuple[float, float]]()
        before = self.record["table_seconds"].get(name, 0.0)
        for i, (step, row) in enumerate(todo):
            spent = self.clock() - start
            left = self.seconds - spent
            wanted = expected(seen, step.work)
            title = f"{name} {i + 1} of {len(todo)}, {shown(step.about)}"
            if seen and wanted > left:
                row["reason"] = (
                    f"{LEFT_OUT}it takes about {wanted:.0f} s, and {max(left, 0):.0f} s remain"
                )
                self.log(f"{title}: {row['reason']}")
                continue
            rest = sum(expected(seen, later.work) for later, _ in todo[i:])
            soon = f"about {duration(min(rest, left))} to go, " if seen else ""
            self.log(f"{title}: {soon}{duration(left)} allowed")
            row["reason"] = UNDER_WAY
            self._keep(name, before + spent)
            begun = self.clock()
            try:
                with faults.leaving_out(row.get("faults", [])):
                    found = step.run()
            except faults.FaultError as error:  # who it was does not run when it is tried again
                row["faults"] = [*row.get("faults", []), error.fault]
                self._keep(name, before + self.clock() - start)
                raise
            seen.append((step.work, self.clock() - begun))
            place = next(j for j, other in enumerate(rows) if other is row)
            rows[place : place + 1] = found
            if told and found:
                self.log(harness.summary(found, *told))
        self._close(name, start, before)
        return rows

    def _to_do(
        self, name: str, steps: Sequence[Step]
    ) -> tuple[list[dict[str, Any]], list[tuple[Step, dict[str, Any]]]]:
        """Return the rows of a table, and each step that is to be measured with its row there."""
        earlier = self.record.get(name, [])
        missing = [{**step.about, **dict.fromkeys(harness.MEASURED)} for step in steps]
        for row in missing:
            row["reason"] = TO_COME
        todo = list(zip(steps, missing, strict=True))
        alike = self._is_alike(name)
        if not alike and any(map(is_left_out, earlier)):
            self.log(f"{name}: measured anew, since its rows are of another commit or installation")
        if not alike or not any(map(is_left_out, earlier)):
            self.record[name] = missing
            self.record["table_seconds"].pop(name, None)
            return missing, todo
        known = {_named(row): row for row in earlier if is_left_out(row)}
        todo = [(step, known.pop(_named(row))) for step, row in todo if _named(row) in known]
        todo.sort(key=lambda pair: pair[1]["reason"] == UNDER_WAY)
        self.log(f"{name}: goes on with {len(todo)} of {len(steps)} steps, which were left out")
        for row in known.values():
            self.log(f"{name}: has no such step here, it stays left out: {row}")
        return earlier, todo

    def _is_alike(self, name: str) -> bool:
        """Return whether the rows of a table so far may stand beside those of this call."""
        if self.again is None:
            return True
        earlier = self.record.get("measured", {}).get(name) or self.record["provenance"]
        return _installed(earlier) == _installed(self.again)

    def _close(self, name: str, start: float, before: float = 0.0) -> None:
        """Note how long a table took, and write the record so far."""
        seconds = self.clock() - start
        self.log(f"{name}: {duration(seconds)}")
        self._keep(name, before + seconds)

    def _keep(self, name: str, seconds: float) -> None:
        """Write the record so far, with a table that took so long until now."""
        self.record["table_seconds"][name] = round(seconds, 1)
        if self.again is not None:
            later = {fact: self.again[fact] for fact in AGAIN}
            self.record.setdefault("measured", {})[name] = later
        if self.path is not None:
            harness.write(self.record, self.path.with_suffix(".partial"))

    def finish(self) -> Path:
        """Write the whole record in the place of the former one, and return its path."""
        if self.path is None:
            raise ValueError("path must be a place to write to, got None")
        harness.write(self.record, self.path.with_suffix(".partial")).replace(self.path)
        return self.path


def _installed(place: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the rows of a table must share: commit, versions, driver and CUDA."""
    device = place["device"]
    return place["commit"], place.get("versions"), device.get("driver"), device.get("cuda")


def _named(row: Mapping[str, Any]) -> str:
    """Return what tells the row of a step that did not run from the others of its table."""
    dropped = {"reason", "faults", *harness.MEASURED}
    return json.dumps({k: x for k, x in row.items() if k not in dropped}, sort_keys=True)


class Runs:
    """The runs that are finished, in a file beside the record; without a place for it, nowhere."""

    def __init__(self, path: Path | None):
        self.path = None if path is None else path.with_suffix(".runs.partial")
        known = self.path is not None and self.path.exists()
        lines = self.path.read_text("utf-8").splitlines() if known else []
        self.rows = dict(json.loads(line) for line in lines)

    def get(self, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the row of this key, and make it where it is missing."""
        if key not in self.rows:
            self.rows[key] = make()
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.rows[key]]) + "\n")
        return self.rows[key]

    def clear(self) -> None:
        """Forget all of them."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def steps(
    timings: Callable[..., list[dict[str, Any]]],
    device: str,
    sizes: Sequence[int],
    dtypes: Sequence[str],
    *,
    quick: bool,
    name: str = "n",
    power: int = 2,
) -> list[Step]:
    """Return a step for each size and dtype, whose work grows with this power of the size."""
    return [
        Step({name: n, "dtype": dtype}, n**power, partial(timings, device, dtype, n, quick=quick))
        for n in sizes
        for dtype in dtypes
    ]


def expected(seen: Sequence[tuple[float, float]], work: float) -> float:
    """Return about how many seconds `work` takes, given the works and seconds seen so far.

    A part of the time does not depend on the work, and a first step may compile what later ones
    use. So this is the lower of two guesses: on the line through the largest step and the largest
    of the smaller ones, and in proportion to the quickest one; after a single one nothing tells how
    it grows. What is less work than the largest step is expected on the line through the nearest
    step that is no smaller and the one next to it, in proportion where there is one amount of work
    alone: no less than that, and no longer than a step of as much work or more took.
    """
    if not seen:
        return 0.0
    most, seconds = max(seen)
    smaller = [step for step in seen if step[0] < most]
    if work <= most:
        return _of_less_work(seen, work)
    if not smaller:
        return seconds
    less, before = max(smaller)
    line = seconds + max(0.0, seconds - before) * (work - most) / (most - less)
    return min(line, work * min(took / done for done, took in seen))


def _of_less_work(seen: Sequence[tuple[float, float]], work: float) -> float:
    """Return about how many seconds `work` takes, no more than that of the largest step seen."""
    no_smaller = [(done, took) for done, took in seen if done >= work]
    at_most = min(took for _, took in no_smaller)
    done, took = min(no_smaller)
    others = [step for step in seen if step[0] != done]
    in_proportion = took * work / done if work < done else took
    if not others:
        return in_proportion
    other, its_time = min(others, key=lambda step: abs(step[0] - work))
    line = took + (its_time - took) * (work - done) / (other - done)
    return min(at_most, max(in_proportion, line))


def duration(seconds: float) -> str:
    """Return a time as one reads it: seconds below two minutes, minutes above."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def shown(about: Mapping[str, Any]) -> str:
    """Return the fields of a step as a phrase."""
    return ", ".join(f"{name} = {value}" for name, value in about.items())
