"""Launches of several real processes, each of which runs many cases, for all tests here."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import ring_cases

HERE = Path(__file__).parent
LIMIT = 900
"""Seconds after which processes count as hanging. They need ten, on a machine that is idle."""


def launch(job, size, folder):
    """Run `job` in `size` processes; return exit codes, what they found and what they said."""
    paths = [str(HERE.parents[1]), str(HERE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "ring_worker.py"), job, str(rank), str(size), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=LIMIT)[1] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
    found = {
        int(path.stem): pickle.loads(path.read_bytes()) for path in Path(folder).glob("*.found")
    }
    return [process.returncode for process in running], found, said


@pytest.fixture(scope="session")
def equal(tmp_path_factory):
    """What three processes found, in the order of their ranks."""
    codes, found, said = launch("equal", ring_cases.SIZE, tmp_path_factory.mktemp("equal"))
    assert codes == [0] * ring_cases.SIZE, "\n".join(said)
    return [found[rank] for rank in range(ring_cases.SIZE)]


@pytest.fixture(scope="session")
def lost(tmp_path_factory):
    """Exit codes of four processes one of which was killed, what they found, and found before."""
    folder = tmp_path_factory.mktemp("lost")
    codes, found, said = launch("lost", 4, folder)
    before = {int(path.stem): pickle.loads(path.read_bytes()) for path in folder.glob("*.before")}
    assert len(before) == 4, "\n".join(said)
    return codes, found, before
