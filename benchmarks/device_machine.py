"""Who does the steps of `python -m benchmarks device`: processes on a GPU, or a pretence."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from attnbook.kernels import verification
from benchmarks import harness, provenance
from benchmarks.device_kept import DONE, FAILED, KILLED
from benchmarks.device_plan import DOCTOR, Step, arguments
from benchmarks.tables import Step as Part
from benchmarks.tables import Tables

READ_SECONDS = 3.0  # for what is still in the pipe when a process has ended
Tell = Callable[[str], None]


class Outcome(NamedTuple):
    """How a step went."""

    status: str  # done, failed or killed
    last_line: str


class Machine(Protocol):
    """What `device.run` asks to work."""

    def clock(self) -> float:
        """Return the seconds since the call began."""

    def head(self, command: str) -> dict[str, Any]:
        """Return the head of the record: what the machine is."""

    def remembers(self, step: Step) -> bool:
        """Return whether what a step leaves on the machine, such as verdicts, is still there."""

    def do(self, step: Step, work: Path, seconds: float, quick: bool, tell: Tell) -> Outcome:
        """Do a step within so many seconds; a table goes into the record in the folder `work`."""


# Processes


class Processes:
    """Each step is a process, whose output is told as it comes."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.commit = "unknown"

    def clock(self) -> float:
        """Return the seconds since the call began."""
        return time.monotonic() - self.start

    def head(self, command: str) -> dict[str, Any]:
        """Return the head of the record. Raises MissingDeviceError without a GPU."""
        provenance.require("cuda")
        signal.signal(signal.SIGTERM, _stop)
        found = harness.record("device", "cuda", command)
        self.commit = found["provenance"]["commit"]
        return found

    def remembers(self, step: Step) -> bool:
        """Return whether there is a verdict on each rung, for this device, driver and source."""
        return step.name != DOCTOR or all(map(verification.verdict_on, verification.names()))

    def do(self, step: Step, work: Path, seconds: float, quick: bool, tell: Tell) -> Outcome:
        """Run the process of a step, and kill it and its children after so many seconds."""
        command = [sys.executable, "-m", *arguments(step, str(work), seconds, quick)]
        last = [""]

        def read(output: IO[str]) -> None:
            with output:
                for line in output:
                    tell("  " + line.rstrip())
                    last[0] = line.strip() or last[0]

        with _process(command, self.commit) as process:
            # beside this, since a grandchild that outlives the kill may hold the output open
            reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
            reader.start()
            try:
                status = DONE if process.wait(seconds) == 0 else FAILED
            except subprocess.TimeoutExpired:
                status = KILLED
                _kill(process)
            reader.join(READ_SECONDS)
        return Outcome(status, last[0])


def _stop(number: int, _: object) -> None:
    """End as Ctrl-C does, with the step under way."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _process(command: list[str], commit: str) -> Iterator[subprocess.Popen]:
    more = {"ATTNBOOK_COMMIT": commit, "PYTHONUNBUFFERED": "1"}
    more["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    process = subprocess.Popen(
        command,
        cwd=provenance.ROOT,
        env=os.environ | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,  # to be killed with its children
    )
    try:
        yield process
    finally:
        _kill(process)
        process.wait()


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# A pretence


class MachineGoneError(Exception):
    """The pretended machine was taken away."""


class _TooLateError(Exception):
    """A pretended step reached its limit."""


class Pretended:
    """A GPU whose steps take no time but that of a clock of its own.

    Each takes about its usual seconds, a few hang and a few fail, by the `seed`. Their tables go
    through the same `Tables` into records of the same form, which say that nothing was measured.
    The machine is gone after `cut` seconds.
    """

    PARTS = 3  # of a table
    HANG, FAIL = 0.06, 0.06  # shares of the steps

    def __init__(self, seed: int = 0, cut: float | None = None):
        self.seed, self.cut, self.now, self.late = seed, cut, 0.0, float("inf")

    def clock(self) -> float:
        """Return the seconds that are pretended to have passed."""
        return self.now

    def head(self, command: str) -> dict[str, Any]:
        """Return the head of the record."""
        place: dict[str, Any] = {
            "device": {"kind": "cuda", "name": "a pretended GPU"},
            "commit": "pretended",
            "versions": {},
        }
        place |= {"command": command, "date": "pretended", "cpu": {}, "load_average": None}
        return {"benchmark": "device", "pretended": True, "provenance": place}

    def remembers(self, step: Step) -> bool:
        """Return True."""
        return True

    def do(self, step: Step, work: Path, seconds: float, quick: bool, tell: Tell) -> Outcome:
        """Pretend a step."""
        self.late = self.now + seconds
        draw = random.Random(f"{self.seed} {step.name}")
        takes, fate = step.usual * draw.uniform(0.4, 1.6), draw.random()
        each = takes / self.PARTS
        rest = float("inf") if fate < self.HANG else each
        try:
            if step.command:
                self._pass(rest * self.PARTS)
            else:
                self._measure(step, work, seconds, (each, rest), tell, fate > 1 - self.FAIL)
        except _TooLateError:
            return Outcome(KILLED, "(a pretended step hung)")
        except ArithmeticError as error:
            return Outcome(FAILED, str(error))
        return Outcome(DONE, "(pretended)")

    def _measure(self, step, work, seconds, takes, tell, breaks):
        head = self.head("")
        path = work / f"{step.benchmark}.{provenance.place(head['provenance']['device'])}.json"
        record, again = head | {"benchmark": step.benchmark}, None
        if path.exists():
            record, again = json.loads(path.read_text("utf-8")), head["provenance"]
        first, rest = takes
        tables = Tables(
            *(record, path),
            seconds=seconds,
            log=lambda line: tell(f"  {line}"),
            clock=self.clock,
            again=again,
        )

        def part(i):
            if breaks:
                raise ArithmeticError("(a pretended step failed)")
            self._pass(rest if i else first)
            return [{"part": i, "pretended": True}]

        parts = [Part({"part": i}, 1.0, partial(part, i)) for i in range(self.PARTS)]
        tables.measure(step.table, parts)
        tables.finish()

    def _pass(self, seconds: float) -> None:
        """Let time pass, until the limit of the step or the end of the machine."""
        until = min(self.now + seconds, self.late)
        if self.cut is not None and until >= self.cut:
            self.now = self.cut
            raise MachineGoneError
        self.now = until
        if until == self.late:
            raise _TooLateError
