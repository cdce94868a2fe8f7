"""Launches of several real processes, each of which runs many cases, for all tests here."""

import json
import os
import pickle
from pathlib import Path

import pytest
import ring_cases
from filelock import FileLock
from forked import start

LIMIT = 900
"""Seconds after which processes count as hanging. They need ten, on a machine that is idle."""


def launch(job, size, folder):
    """Run `job` in `size` processes; return exit codes, what they found and what they said."""
    worker = Path(__file__).with_name("ring_worker.py")
    done = start(worker, job, size, folder, limit=LIMIT)
    assert done.returncode == 0, done.stderr
    found = {int(path.stem): pickle.loads(path.read_bytes()) for path in folder.glob("*.found")}
    return json.loads(done.stdout), found, done.stderr


def once(tmp_path_factory, name, make):
    """Return what `make(folder)` returns; of all workers of pytest-xdist one makes it, once."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # which the workers of one run share
    made = root / f"{name}.made"
    with FileLock(f"{made}.lock"):
        if not made.exists():
            made.write_bytes(pickle.dumps(make(tmp_path_factory.mktemp(name))))
        return pickle.loads(made.read_bytes())


@pytest.fixture(scope="session")
def equal(tmp_path_factory):
    """What three processes found, in the order of their ranks."""

    def make(folder):
        codes, found, said = launch("equal", ring_cases.SIZE, folder)
        assert codes == [0] * ring_cases.SIZE, said
        return [found[rank] for rank in range(ring_cases.SIZE)]

    return once(tmp_path_factory, "equal", make)


@pytest.fixture(scope="session")
def lost(tmp_path_factory):
    """Exit codes of four processes one of which was killed, what they found, and found before."""

    def make(folder):
        codes, found, said = launch("lost", 4, folder)
        before = {
            int(path.stem): pickle.loads(path.read_bytes()) for path in folder.glob("*.before")
        }
        assert len(before) == 4, said
        return codes, found, before

    return once(tmp_path_factory, "lost", make)
