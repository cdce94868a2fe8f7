"""Programs of several processes: what they import is imported once, before they part."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def start(script: Path, *arguments: Any, limit: float | None = None, **environment: str) -> Any:
    """Run a script of the tests, with one thread a process, and return the finished process."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, *map(str, (script, *arguments))]
    return subprocess.run(command, env=environment, timeout=limit, capture_output=True, text=True)


def forked(size: int, work: Callable[[int], object]) -> list[int]:
    """Return the exit codes of `size` children, each of which calls `work` with its rank."""
    children = []
    for rank in range(size):
        if not (child := os.fork()):
            work(rank)
            sys.exit()
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
