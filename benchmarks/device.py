"""Everything that needs a GPU, in one command that you may stop: tests, and all tables on CUDA.

Steps run in the order of their worth. Each is a process that is killed at its own limit, and no
step begins that would not be done before the deadline. After each step, `DIR/records.zip` has what
it measured, even if it was killed, `DIR/device.DEVICE.json` has the outcome of the step, and
`DIR/log.txt` has everything that was printed.

A second call with the same DIR continues where the first one stopped, even within a table. However,
a table that was begun on another commit or installation is measured again. If the machine is taken
away, the current table is lost. Steps that failed or were killed are tried again last. On a fresh
machine, the kernels are compared again first. Several GPUs may share a DIR one after the other, but
two calls at the same time would overwrite each other's files.

No Jupyter is needed. If the copy has no git history, set ATTNBOOK_COMMIT to its commit.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import harness, provenance
from benchmarks.device_kept import DONE, FAILED, KILLED, PART, Kept
from benchmarks.device_machine import (
    Machine,
    MachineGoneError,
    Outcome,
    Pretended,
    Processes,
)
from benchmarks.device_plan import RefusedError, Step, chosen, described

PACKING_SECONDS = 10.0  # before the deadline, for what is written last


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command line."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = __doc__, described()
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder of its three files (default: _build/benchmarks/device); "
        "if an earlier call left files there, this call continues",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="finish within so many seconds, with all files written (default: no limit)",
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        metavar="STEP",
        help="only these steps, in this order; `exact` means all its tables (default: all steps)",
    )
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, as a trial")
    parser.add_argument(
        "--pretend",
        action="store_true",
        help="a dry run that measures nothing and needs no GPU: shows in a second what is done "
        "when, and what is written; some steps hang or fail (without --out, it writes nothing)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="with --pretend: draws how long steps take and how they end",
    )
    parser.add_argument(
        "--cut",
        type=float,
        metavar="SECONDS",
        help="with --pretend: the time at which the machine is taken away",
    )


def main(chosen: argparse.Namespace, command: str) -> int:
    """Run the command line and return the exit status."""
    if chosen.cut is not None and not chosen.pretend:
        raise RefusedError("--cut needs --pretend: a machine that is there is not taken away")
    given = {"tables": chosen.tables, "deadline": chosen.deadline, "quick": chosen.quick}
    machine: Machine = Pretended(chosen.seed, chosen.cut) if chosen.pretend else Processes()
    with tempfile.TemporaryDirectory() as nowhere:
        usual = nowhere if chosen.pretend else provenance.ROOT / "_build/benchmarks/device"
        out = chosen.out or Path(usual)
        try:
            return run(out, machine, command=command, **given)
        except MachineGoneError:
            harness.log(f"the pretended machine is gone after {machine.clock():.0f} s")
            return 1


def run(
    out: Path,
    machine: Machine,
    *,
    command: str,
    tables: Sequence[str] | None = None,
    deadline: float | None = None,
    quick: bool = False,
) -> int:
    """Do what an earlier call left, and return 0, or 1 if a step of this call did not end well.

    Raises RefusedError for a step that there is not, or a folder of trials where this is none.
    """
    steps = chosen(tables)
    out.mkdir(parents=True, exist_ok=True)
    head = machine.head(command) | {"quick": quick}
    with tempfile.TemporaryDirectory() as work:
        kept = Kept(out, Path(work), head)
        return _run(steps, kept, machine, deadline)


def _run(steps: Sequence[Step], kept: Kept, machine: Machine, deadline: float | None) -> int:
    end = float("inf") if deadline is None else deadline - PACKING_SECONDS

    def tell(line: str) -> None:
        kept.tell(f"[{machine.clock():5.0f} s] {line}")

    lost = {step.name for step in steps if not machine.remembers(step)}
    waiting = [step for step in steps if step.name in lost or not kept.is_done(step)]
    # what failed comes last, but not what the others need
    waiting.sort(key=lambda step: step.name not in lost and kept.was_tried(step))
    total = sum(step.usual for step in waiting)
    until = "no deadline" if deadline is None else f"deadline {deadline:.0f} s"
    tell(
        f"{len(steps)} steps, {len(steps) - len(waiting)} of them done before; "
        f"the rest takes about {total:.0f} s; {until}; into {kept.out}"
    )
    counts = {DONE: 0, PART: 0, FAILED: 0, KILLED: 0}
    left: list[Step] = []
    for step in waiting:
        start = machine.clock()
        allowed = min(step.limit, end - start)
        if allowed < step.usual:
            left.append(step)
            continue
        tell(f"{step.name}: about {step.usual:.0f} s, killed after {allowed:.0f} s")
        outcome = _done(step, kept, machine, start + allowed, tell)
        seconds = machine.clock() - start
        status = outcome.status
        if status == DONE and not step.command and not kept.is_done(step):
            status = PART if kept.is_begun(step) else FAILED
        counts[status] += 1
        facts = {"status": status, "seconds": round(seconds, 1), "last_line": outcome.last_line}
        facts["at_limit"] = status == KILLED and allowed == step.limit
        kept.keep(step, **facts, call=len(kept.record["calls"]))
        after = f": {outcome.last_line}" if status != DONE else ""
        tell(f"{step.name}: {status} after {seconds:.0f} s{after}")
    if left:
        names, seconds = ", ".join(step.name for step in left), sum(step.usual for step in left)
        tell(f"left, about {seconds:.0f} s: {names}")
    if left or counts[PART]:
        tell("call again with the same --out to go on")
    ended = ", ".join(f"{count} {status}" for status, count in counts.items())
    tell(f"steps of this call: {ended}, {len(left)} left; all is in {kept.out}")
    return 1 if counts[FAILED] + counts[KILLED] else 0


def _done(
    step: Step, kept: Kept, machine: Machine, end: float, tell: Callable[[str], None]
) -> Outcome:
    """Do a step until its end, and return how it went; its table goes on past what fails.

    A fault may end the GPU for the process: then another one measures the parts that are to come,
    and then the part under way, without the candidate whose fault it was, where that is known.
    """
    state = None
    while True:
        seconds = end - machine.clock()
        try:
            outcome = machine.do(step, kept.work, seconds, kept.record["quick"], tell)
        except (KeyboardInterrupt, SystemExit):  # somebody ends this call
            kept.take(step)
            raise
        kept.take(step)
        before, state = state, (kept.to_come(step), kept.faults(step))
        ended = outcome.status != FAILED or machine.clock() >= end
        if ended or state == before or not any(state):
            return outcome
        tell(f"{step.name}: failed, {outcome.last_line}; goes on, {state[0]} parts are to come")
