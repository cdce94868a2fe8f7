"""The folder of `python -m benchmarks device`: three files, whole whenever the machine is gone.

`device.json` says how each step went. `records.zip` holds the record of each benchmark, with the
tables measured so far. `log.txt` has all that was printed. A file is replaced in one move, beside
which its next form grows under another name; `log.txt` grows by whole lines.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.device_plan import RefusedError, Step

DEVICE, RECORDS, LOG = "device.json", "records.zip", "log.txt"
DONE, FAILED, KILLED = "done", "failed", "killed"  # how a step went


class Kept:
    """What earlier calls did, and this one so far.

    Parameters
    ----------
    out : Path
        The folder that outlasts the machine.
    work : Path
        Where the benchmarks write; what is there is lost with the machine.
    head : dict
        The record of this call, before its steps: its provenance, and whether it is `quick`.

    Raises
    ------
    RefusedError
        If `out` holds what another device measured, or a trial.
    """

    def __init__(self, out: Path, work: Path, head: dict[str, Any]):
        self.out, self.work = out, work
        self.record = head | {"steps": {}, "calls": [head["provenance"]]}
        if (out / DEVICE).exists():
            earlier = json.loads((out / DEVICE).read_text("utf-8"))
            for what, now, before in (
                ("device", _device(head), _device(earlier)),
                ("--quick", head["quick"], earlier["quick"]),
            ):
                if now != before:
                    raise RefusedError(
                        f"{out} must hold records of the same {what}, {now}, got {before}: "
                        "name another folder by --out"
                    )
            self.record = earlier | {"calls": [*earlier["calls"], head["provenance"]]}
        if (out / RECORDS).exists():
            with zipfile.ZipFile(out / RECORDS) as packed:
                packed.extractall(work)

    def is_done(self, step: Step) -> bool:
        """Return whether an earlier call, or this one, did the step: a table is in its record."""
        if step.command:
            return self._status(step) == DONE
        path = self.work / f"{step.benchmark}.cuda.json"
        return path.exists() and step.table in json.loads(path.read_text("utf-8"))["table_seconds"]

    def was_tried(self, step: Step) -> bool:
        """Return whether the step failed before, or was killed at its limit, not at a deadline."""
        facts = self.record["steps"].get(step.name, {})
        return facts.get("status") == FAILED or facts.get("at_limit", False)

    def _status(self, step: Step) -> str | None:
        return self.record["steps"].get(step.name, {}).get("status")

    def keep(self, step: Step, **facts: Any) -> None:
        """Write what a step measured, and how it went."""
        if not step.command and facts["status"] == DONE:
            self._tell_command(self.work / f"{step.benchmark}.cuda.json")
            growing = self.out / f"{RECORDS}.writing"
            with zipfile.ZipFile(growing, "w", zipfile.ZIP_DEFLATED) as packed:
                for path in sorted(self.work.glob("*.json")):
                    packed.write(path, path.name)
            growing.replace(self.out / RECORDS)
        self.record["steps"][step.name] = facts
        harness.write(self.record, self.out / DEVICE)

    def _tell_command(self, path: Path) -> None:
        """Let a record name the command that repeats it, and not that of the process of a step."""
        record = json.loads(path.read_text("utf-8"))
        record["provenance"]["command"] = self.record["provenance"]["command"]
        harness.write(record, path)

    def tell(self, line: str) -> None:
        """Print a line, and add it to the log."""
        harness.log(line)
        with (self.out / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def _device(record: dict[str, Any]) -> str:
    return record["provenance"]["device"]["name"]
