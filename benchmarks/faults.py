"""Candidates that end the GPU for their process: each is named, and left out when tried again."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LEFT_OUT: list[Mapping[str, Any]] = []
"""The faults of candidates that do not run now: the fields that name each, and why."""


class FaultError(RuntimeError):
    """A candidate has failed so that this process can measure no more on its GPU."""

    def __init__(self, about: Mapping[str, Any], why: str):
        super().__init__(f"{dict(about)}: {why}")
        self.fault = {"about": dict(about), "why": why}


@contextlib.contextmanager
def leaving_out(faults: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Let candidates of these faults not run inside; their rows say why."""
    LEFT_OUT[:] = faults
    try:
        yield
    finally:
        LEFT_OUT.clear()


def known(about: Mapping[str, Any]) -> str | None:
    """Return why the candidate with these fields does not run, or None if it does."""
    found = (fault["why"] for fault in LEFT_OUT if fault["about"] == dict(about))
    return next((f"it ended the process that measured it: {why}" for why in found), None)


@contextlib.contextmanager
def blaming(about: Mapping[str, Any], why: str | None = None) -> Iterator[None]:
    """Let an error inside name the candidate with these fields, and `why` if that is known."""
    try:
        yield
    except Exception as error:
        raise FaultError(about, why or reason(error)) from error


def reason(error: Exception) -> str:
    """Return one line that says why something could not run."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line}".removesuffix(": ")
