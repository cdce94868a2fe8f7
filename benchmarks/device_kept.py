"""The folder of `python -m benchmarks device`: three files, whole whenever the machine is gone.

`device.DEVICE.json` says how each step went, on each GPU that the folder has seen. `records.zip`
holds the records of the benchmarks, with all that was measured so far. `log.txt` has all that was
printed. A file is replaced in one move, beside which its next form grows under another name;
`log.txt` grows by whole lines.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

from benchmarks import harness, provenance
from benchmarks.device_plan import RefusedError, Step
from benchmarks.tables import TO_COME, is_whole

RECORDS, LOG = "records.zip", "log.txt"
DONE, PART, FAILED, KILLED = "done", "in part", "failed", "killed"  # how a step went


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
        If `out` holds a trial and this is none, or the other way round.
    """

    def __init__(self, out: Path, work: Path, head: dict[str, Any]):
        self.out, self.work = out, work
        self.device = provenance.place(head["provenance"]["device"])
        self.path = out / f"device.{self.device}.json"
        self.record = head | {"steps": {}, "calls": [head["provenance"]]}
        for path in out.glob("device.*.json"):
            before = json.loads(path.read_text("utf-8"))["quick"]
            if before != head["quick"]:
                raise RefusedError(
                    f"{out} must hold records of the same --quick, {head['quick']}, got {before}: "
                    "name another folder by --out"
                )
        if self.path.exists():
            earlier = json.loads(self.path.read_text("utf-8"))
            self.record = earlier | {"calls": [*earlier["calls"], head["provenance"]]}
        if (out / RECORDS).exists():
            with zipfile.ZipFile(out / RECORDS) as packed:
                packed.extractall(work)

    def is_done(self, step: Step) -> bool:
        """Return whether an earlier call, or this one, did the step: its whole table is there."""
        if step.command:
            return self.record["steps"].get(step.name, {}).get("status") == DONE
        record = self._measured(step)
        return record is not None and is_whole(record, step.table)

    def is_begun(self, step: Step) -> bool:
        """Return whether there is something of the table of a step."""
        record = self._measured(step)
        return record is not None and step.table in record["table_seconds"]

    def to_come(self, step: Step) -> int:
        """Return how many parts of the table of a step no process has begun."""
        record = self._measured(step) or {}
        return sum(row.get("reason") == TO_COME for row in record.get(step.table, []))

    def faults(self, step: Step) -> int:
        """Return how many candidates are known that end the GPU, in parts that are to come."""
        record = self._measured(step) or {}
        return sum(len(row.get("faults", [])) for row in record.get(step.table, []))

    def was_tried(self, step: Step) -> bool:
        """Return whether the step failed before, or was killed at its limit, not at a deadline."""
        facts = self.record["steps"].get(step.name, {})
        return facts.get("status") == FAILED or facts.get("at_limit", False)

    def _measured(self, step: Step) -> dict[str, Any] | None:
        """Return the record of the benchmark of a step; none where there is none."""
        path = self._path(step)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def _path(self, step: Step) -> Path:
        return self.work / f"{step.benchmark}.{self.device}.json"

    def take(self, step: Step) -> None:
        """Write what a step has measured, also where its process has ended amid its table."""
        if step.command:
            return
        partial = self._path(step).with_suffix(".partial")
        if partial.exists():
            partial.replace(self._path(step))
        record = self._measured(step)
        if record is None:
            return
        # the command that repeats it, and not that of the process of a step
        record["provenance"]["command"] = self.record["provenance"]["command"]
        harness.write(record, self._path(step))
        growing = self.out / f"{RECORDS}.writing"
        with zipfile.ZipFile(growing, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(self.work.glob("*.json")):
                packed.write(path, path.name)
        growing.replace(self.out / RECORDS)

    def keep(self, step: Step, **facts: Any) -> None:
        """Write how a step went."""
        self.record["steps"][step.name] = facts
        harness.write(self.record, self.path)

    def tell(self, line: str) -> None:
        """Print a line, and add it to the log."""
        harness.log(line)
        with (self.out / LOG).open("a", encoding="utf-8") as log:
            log.write(line + "\n")
