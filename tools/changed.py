"""Test what was changed, within a minute: `python tools/changed.py [--since main] [--list]`.

Every changed file asks for the tests nearest to it: those of its name, of its room, and those that
import it. The nearest run first. After 50 seconds the rest is left to `make test`, and said so.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 50
ALWAYS = ("tests/test_rooms.py", "tests/test_readme.py")  # quick, and anything may break them
NAME, ROOM, MENTION = range(3)


def changed(since: str) -> list[str]:
    """Return the paths that differ from where this branch left `since`, new files among them."""
    base = _git("merge-base", since, "HEAD")
    tracked = _git("diff", "--name-only", *base)
    return tracked + _git("ls-files", "--others", "--exclude-standard")


def nearest(changes: list[str], root: Path = ROOT) -> list[str]:
    """Return the test files for `changes`, the nearest first."""
    tests = {path.relative_to(root).as_posix(): path for path in root.glob("tests/**/test_*.py")}
    found: dict[str, int] = {}
    for test, path in tests.items():
        text = path.read_text("utf8")
        ranks = [rank for change in changes if (rank := _rank(test, text, change)) is not None]
        if ranks:
            found[test] = min(ranks)
    by_rank = sorted(found, key=lambda test: (found[test], tests[test].stat().st_size))
    return [*by_rank, *(test for test in ALWAYS if test in tests and test not in found)]


def _rank(test: str, text: str, change: str) -> int | None:
    """Return how near `test` is to the changed file, None if it has nothing to do with it."""
    path, own = Path(change), Path(test)
    if test == change or own.stem == f"test_{path.stem.strip('_')}":
        return NAME
    folders = [part for part in path.parts[:-1] if part not in ("attnbook", "tests")]
    if folders and (folders[0] in own.parts or own.stem.startswith(f"test_{folders[0][:-1]}")):
        return ROOM
    words = (*path.parts[:-1], path.stem) if path.suffix == ".py" else (path.name,)
    said = all(re.search(rf"\b{re.escape(word)}\b", text) for word in words if word != "tests")
    return MENTION if said else None


class Deadline:
    """Stops pytest when time is up."""

    def __init__(self, seconds: float):
        self.seconds, self.start, self.is_up = seconds, time.monotonic(), False

    def pytest_runtest_logfinish(self, nodeid, location):
        self.is_up = time.monotonic() - self.start > self.seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if self.is_up:
            item.session.shouldstop = f"{self.seconds} s are over; `make test` runs the rest"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="main", help="a branch or commit (default: main)")
    parser.add_argument("--list", action="store_true", help="list the test files but run none")
    chosen = parser.parse_args(arguments)
    changes = changed(chosen.since)
    tests = nearest(changes)
    print(f"{len(tests)} test files, the nearest first: {' '.join(tests)}", flush=True)
    if chosen.list:
        return 0
    deadline = Deadline(SECONDS)
    doctests = [path for path in changes if re.fullmatch(r"(attnbook|course)/.*\.py", path)]
    present = [path for path in (*tests, *doctests) if (ROOT / path).exists()]
    options = ["-q", "-x", "--tb=short", "--doctest-modules", "--doctest-ignore-import-errors"]
    status = pytest.main([*options, *present], plugins=[deadline])
    return 0 if deadline.is_up and status == pytest.ExitCode.INTERRUPTED else int(status)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.split()


if __name__ == "__main__":
    sys.exit(main())
