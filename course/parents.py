"""Processes that submissions start from: one forks for each, so that Python and NumPy start once.

Such a parent holds what an exercise gives and nothing of any submission, check or secret. It is
not the judge, whose memory must not be copied. Each submission has a pair of pipes of its own, and
its process closes the line to the parent before it reads the submission.
"""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_api_compat
import numpy as np

from course import wire

FORKS = sys.platform == "linux"
"""On macOS the libraries beneath NumPy may not be forked: there a parent is itself the process of
the only submission that it gets."""

OWN = str(Path(__file__).parent)
BEGIN, END = b"b", b"e"
FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


LONGEST_LOOK = 0.5
"""Seconds that count at most between two looks: where more passed, the machine stood still or was
busy, for whoever looks as well as for the one who is waited for."""

LONGEST_START = 300.0
"""Seconds in which a parent must answer: it imports NumPy, and runs what an exercise gives."""


class Looks:
    """Counts the seconds of a wait, by looks at the clock on the wall."""

    def __init__(self) -> None:
        self.looked, self.waited = time.monotonic(), 0.0

    def resume(self) -> None:
        """Leave out what passed since the last look."""
        self.looked = time.monotonic()

    def look(self) -> float:
        """Return the seconds so far."""
        before, self.looked = self.looked, time.monotonic()
        self.waited += min(self.looked - before, LONGEST_LOOK)
        return self.waited


class Parent:
    """A process that is ready for submissions, one at a time."""

    def __init__(self, folder: str, given: str, real: list[str]):
        packages = package_paths() if real else []
        start = f"import sys; sys.path[:0] = {[folder, OWN]!r}; sys.path += {packages!r}; "
        self.control, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start + "import worker; worker.main()"],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=FEW_THREADS,
            cwd=folder,
        )
        theirs.close()
        self.line = wire.Line(self.control.fileno(), self.control.fileno())
        about = {"given": given, "real": real, "library": folder, "packages": packages}
        self._send(wire.pack({**about, "forks": FORKS}, _nothing))

    def begin(self) -> tuple[int, wire.Line]:
        """Start the process of a submission, and return its number and the line to it.

        Raises
        ------
        wire.Ended
            If this parent is gone.
        """
        reading, their_writing = os.pipe()
        their_reading, writing = os.pipe()
        line = wire.Line(reading, writing)
        try:
            socket.send_fds(self.control, [BEGIN], [their_reading, their_writing])
            return self._told(), line
        except (OSError, wire.Ended):
            line.close()
            raise wire.Ended("it is gone") from None
        finally:
            os.close(their_reading)
            os.close(their_writing)

    def end(self) -> int:
        """Return how the process of the submission ended; one that goes on is ended soon.

        What is ended so has only closed its line, and counts as one that ended the program.
        """
        if FORKS:
            try:
                self._send(END)
                return self._told()
            except wire.Ended:
                self.close()
                return 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(2)
        self.close()
        return 0

    def _send(self, message: bytes) -> None:
        self.line.send(message, _within(LONGEST_START))

    def _told(self) -> int:
        return int(wire.unpack(*self.line.receive(_within(LONGEST_START)), _nothing))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.control.close()


class Parents:
    """The parent of the exercise at hand, kept until another one is asked for."""

    def __init__(self, folder: str):
        self.folder = folder
        self.key: tuple[str, ...] | None = None
        self.parent: Parent | None = None

    def begin(self, given: str, real: list[str]) -> tuple[Parent, int, wire.Line]:
        """Start the process of a submission to an exercise that uses `real` parts of attnbook.

        Raises
        ------
        wire.Ended
            If what is given cannot be made ready.
        """
        key = (given, *real) if real else ()
        if self.parent is not None and key == self.key and FORKS:
            with contextlib.suppress(wire.Ended):
                return (self.parent, *self.parent.begin())
        self.close()
        self.key, self.parent = key, Parent(self.folder, given if real else "", real)
        return (self.parent, *self.parent.begin())

    def close(self) -> None:
        """End the parent at hand."""
        if self.parent is not None:
            self.parent.close()
            self.parent = None


@contextlib.contextmanager
def library() -> Iterator[str]:
    """Yield a folder with NumPy and array-api-compat, and nothing else that is installed."""
    with tempfile.TemporaryDirectory(prefix="attnbook-") as folder:
        os.chmod(folder, 0o755)  # for a user who owns nothing, too
        for package in (np, array_api_compat):
            place = Path(str(package.__file__)).parent
            for path in (place, place.with_name(f"{place.name}.libs")):
                if path.exists():
                    os.symlink(path, Path(folder, path.name))
        yield folder


@contextlib.contextmanager
def parents() -> Iterator[Parents]:
    """Yield parents, which end with the context."""
    with library() as folder, contextlib.closing(Parents(folder)) as found:
        yield found


def package_paths() -> list[str]:
    """Return where attnbook and what it needs lie, for exercises that use more than functions."""
    package = importlib.import_module("attnbook")
    places = [str(Path(package.__file__).parents[1])]  # type: ignore[arg-type]
    return [*dict.fromkeys([*places, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])]


def _within(seconds: float) -> Callable[[], None]:
    """Return a watch that ends a wait of more seconds."""
    looks = Looks()

    def watch() -> None:
        if looks.look() > seconds:
            raise wire.Ended("it does not answer")

    return watch


def _nothing(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} cannot be passed to a parent")
