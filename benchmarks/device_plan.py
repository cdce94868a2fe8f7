"""What `python -m benchmarks device` does on a GPU, in the order of its worth.

A step is a table of a benchmark, or a command. Each is a process of its own: what hangs or breaks
the GPU ends one step. The seconds are guesses for an NVIDIA H100 with 16 cores; those that a call
took stand in its `device.json`.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import NamedTuple

ROOMS = ("tests/kernels", "tests/sketch")  # whose tests are steps of their own
# pytest-benchmark warns beside pytest-xdist, and warnings are errors
OFF = ("-p", "no:cacheprovider", "-p", "no:benchmark")
PYTEST = ("pytest", "-v", "-m", "gpu", "-ra", "--durations=10", *OFF)  # -v: each by its name
MOST_WORKERS = 14  # each has the GPU's libraries in memory once
TEST_SECONDS = 120  # of a test that hangs
START_SECONDS = 15.0  # of a process until it measures


class RefusedError(ValueError):
    """What was asked for cannot be done."""


class Step(NamedTuple):
    """Something to be done on a GPU."""

    name: str  # BENCHMARK.TABLE, or what else there is to do
    usual: float  # seconds; it is not begun when fewer are left
    limit: float  # seconds after which it is killed
    command: tuple[str, ...] = ()  # of what is no table, after `python -m`

    @property
    def benchmark(self) -> str:
        """The benchmark, or nothing where it is a command."""
        return "" if self.command else self.name.partition(".")[0]

    @property
    def table(self) -> str:
        """The name of the table in the record of its benchmark."""
        return self.name.partition(".")[2]


DOCTOR = "doctor"  # whose verdicts stay on the machine, and say who is measured

PLAN = (
    # what the goals are about, in nine minutes also where each is killed
    Step(DOCTOR, 80, 150, ("attnbook", "doctor", "--gpu")),
    Step("exact.ceilings", 20, 50),
    Step("exact.goals", 110, 160),
    Step("search.million", 50, 100),
    Step("exact.decode", 30, 60),
    Step("tests.kernels", 150, 280, (*PYTEST, ROOMS[0])),
    Step("tests.sketch", 40, 120, (*PYTEST, ROOMS[1])),
    Step("exact.rows", 200, 280),
    Step("attention.parity", 20, 60),
    Step("exact.half", 40, 120),
    Step("attention.rows", 50, 150),
    Step("tests.rest", 100, 280, (*PYTEST, "tests", *(f"--ignore={room}" for room in ROOMS))),
    Step("exact.widths", 40, 120),
    Step("exact.skipping", 40, 120),
    Step("train.rows", 50, 150),
    Step("exact.bfloat16", 60, 150),
    Step("decode.parity", 30, 90),
    Step("decode.rows", 90, 200),
    Step("decode.batches", 60, 150),
    Step("decode.speculative", 90, 200),
    Step("decode.prefill", 60, 150),
    Step("multi_head.parity", 20, 60),
    Step("multi_head.rows", 60, 150),
    Step("multi_head.decoding", 40, 120),
    Step("transformer.parity", 20, 60),
    Step("transformer.rows", 40, 120),
    Step("transformer.parts", 40, 120),
    Step("train.parts", 40, 120),
    Step("masking.rows", 120, 240),
    Step("masking.making", 60, 120),
    Step("masking.documents", 30, 90),
    Step("linear_attention.rows", 60, 180),
    Step("linear_attention.decoding", 30, 90),
    Step("train.compiled", 150, 280),
)


def chosen(asked: Sequence[str] | None) -> list[Step]:
    """Return the steps of these names, in this order; a benchmark's name stands for its tables.

    Names may be joined by commas. Without names all steps are returned. Raises RefusedError for a
    name that there is not.
    """
    if not asked:
        return list(PLAN)
    found: dict[str, Step] = {}
    for name in (part for joined in asked for part in joined.split(",") if part):
        steps = [step for step in PLAN if name in (step.name, step.name.partition(".")[0])]
        if not steps:
            names = ", ".join(step.name for step in PLAN)
            raise RefusedError(
                f"--tables must be of {names}, or what stands before a dot, got {name!r}"
            )
        found |= {step.name: step for step in steps}
    return list(found.values())


def arguments(step: Step, folder: str, seconds: float, quick: bool) -> list[str]:
    """Return the command of a step, after `python -m`, that has so many seconds until it is killed.

    Tests run side by side, each within a limit, where the plugins for it are installed. A table
    leaves out what would exceed its time, so that it is written before.
    """
    if step.command:
        return [*step.command, *(_of_plugins() if step.command[0] == "pytest" else ())]
    given = ["--device", "cuda", "--only", step.table, "--out", folder]
    given += ["--seconds", f"{max(1.0, seconds - START_SECONDS):.0f}"]
    return ["benchmarks", step.benchmark, *given, *(["--quick"] if quick else [])]


def _of_plugins() -> list[str]:
    """Return the options of pytest-xdist and pytest-timeout, if they are installed."""
    found = []
    if importlib.util.find_spec("xdist"):
        workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - 2))
        found += ["-n", str(workers), "--dist", "worksteal"]
    if importlib.util.find_spec("pytest_timeout"):
        # the other method waits until a call in C, such as one that waits for a GPU, is over
        found += ["--timeout", str(TEST_SECONDS), "--timeout-method", "thread"]
    return found


def described() -> str:
    """Return a line for each step, for the help."""
    lines = [f"  {step.name:<22}{step.usual:>6.0f} s{step.limit:>9.0f} s" for step in PLAN]
    total = sum(step.usual for step in PLAN)
    return "\n".join(
        [
            "steps, in the order of their worth: about how long, and when they are killed",
            *lines,
            f"  {'all':<22}{total:>6.0f} s",
        ]
    )
