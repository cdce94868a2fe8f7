"""Everything that needs a GPU, in one command: the GPU tests and every benchmark on CUDA.

Needs no Jupyter. Writes `device.json` (provenance, and the status of each step), `gpu-tests.txt`,
`doctor.txt` and one record for each benchmark.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, provenance


def run(names: Sequence[str], out: Path, *, quick: bool, command: str) -> int:
    """Run all steps, write into `out`, and return 0 if all of them succeed."""
    provenance.require("cuda")
    record: dict[str, Any] = harness.record("device", "cuda", command)
    python = [sys.executable, "-m"]
    pytest = ["pytest", "-m", "gpu", "-ra", "-p", "no:cacheprovider"]
    record["steps"] = [
        step("doctor", [*python, "attnbook", "doctor"], out / "doctor.txt"),
        step("GPU tests", [*python, *pytest], out / "gpu-tests.txt"),
    ]
    for name in names:
        arguments = ["--device", "cuda", "--out", str(out.resolve())]
        arguments += ["--quick"] if quick else []
        record["steps"].append(step(name, [*python, "benchmarks", name, *arguments]))
    failed = [done["name"] for done in record["steps"] if done["status"] != 0]
    harness.write(record, out / "device.json")
    harness.log(f"failed: {', '.join(failed)}" if failed else "all steps succeeded")
    return 1 if failed else 0


def step(name: str, command: list[str], text: Path | None = None) -> dict[str, Any]:
    """Run `command` in the repository and return how it went; its output also goes to `text`."""
    harness.log(f"{name}: {' '.join(command)}")
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=provenance.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout, end="", file=sys.stderr, flush=True)
    if text is not None:
        text.write_text(done.stdout, encoding="utf-8")
    last = (done.stdout.strip().splitlines() or [""])[-1]
    seconds = round(time.perf_counter() - start, 1)
    return {"name": name, "status": done.returncode, "seconds": seconds, "last_line": last}
