"""A submission in a process of its own, and the proxies of what it hands over."""

import builtins
import contextlib
import importlib
import inspect
import os
import signal
import time
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnbook.check.engine.sandbox import seconds_in_line
from course import wire
from course.exercises import Exercise
from course.limits import bounded
from course.parents import Looks, Parent, Parents

IDLE_SECONDS = 20.0
"""Seconds of waiting, in all, after which a submission is ended: fewer than where a reader's own
code is checked, since a class holds many that wait. To compute or to stand in line is no waiting.
"""

LONGEST_WAIT = 300.0
"""Seconds of waiting after which a submission is ended, also where it computes or stands in line:
many submissions share the machine."""

LARGEST_CALL = 10**6
"""Numbers that a submission may pass to a function that runs on this side."""

LARGEST_RESULT = 512
"""Megabytes that such a function may take, which a few integers may ask for."""

LONGEST_NAME, LONGEST_TEXT = 100, 500
"""Letters of what a worker says of a type, and of an error."""

KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)
EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Limits:
    """What a submission may use for one exercise.

    Attributes
    ----------
    seconds : int
        Processor time.
    megabytes : int
        Memory of the process.
    """

    seconds: int = 10
    megabytes: int = 2048


USUAL = Limits()

NOT_STARTED = (
    "not started",
    "The grader could not prepare this exercise. This is not your fault, so tell your teacher.",
)


THEIRS = "raised by the submission"
"""A note to an error, which the check itself might raise, too."""


class Ending(Exception):  # noqa: N818
    """The submission cannot be asked any more: why, by a name and in a sentence."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name, self.message = name, message


class Remote:
    """An object of the worker, of which public parts can be read and which can be called."""

    def __init__(self, session: "Session", number: int, about: dict[str, Any]):
        self._session, self._number, self._about = session, number, about
        with contextlib.suppress(KeyError, ValueError, TypeError, IndexError):
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(name, KINDS[kind], default=None if known else EMPTY)
                    for name, kind, known in about["signature"]
                ]
            )

    def __call__(self, *given: Any, **options: Any) -> Any:
        if not self._about.get("callable"):
            raise TypeError(f"{self._about.get('type')!r} object is not callable")
        return self._session.ask(self._number, given=given, options=options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in (self._about.get("parts") or ()):
            raise AttributeError(f"{self._about.get('type')!r} object has no attribute {name!r}")
        return self._session.ask(self._number, part=name)


class Session:
    """A worker with one submission in it. As a context it ends the worker."""

    def __init__(self, exercise: Exercise, source: str, limits: Limits, parents: Parents):
        functions = None if exercise.needs_packages else functions_of(exercise.uses)
        self.limits = limits
        self.functions: list[Callable] = []  # of this side, by the numbers that the worker knows
        self.spent, self.ending = 0.0, Ending("", "")
        self.kept: tuple[str, ...] = ()
        self.raised = ""  # with which error the submission ended once it had bound its names
        self.job: dict[str, Any] = {
            "given": exercise.given,
            "source": source,
            "names": exercise.names,
            "functions": functions or {},
            "seconds": limits.seconds,
            "megabytes": limits.megabytes,
        }
        self.parents = parents
        self.real = (exercise.uses or ["arrays"]) if functions is None else []
        self.parent: Parent | None = None  # while its process runs
        self.line = wire.Line(-1, -1)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: Any) -> None:
        self._kill()
        if self.parent is not None:
            self.parent.end()
        if self.line.reading >= 0:
            self.line.close()

    def _kill(self) -> None:
        if self.parent is not None:  # until `end` is asked no other process has its number
            os.kill(self.child, signal.SIGKILL)

    def answers(self, optional: Collection[str] = ()) -> dict[str, Any]:
        """Run the submission and return what it hands over, by name.

        Those of the `optional` names may be absent, though not all names, which counts as None.
        What is bound before the submission raises is handed over.

        Raises
        ------
        Ending
            If it raises, or runs out of what it may use, or a name is not there.
        """
        try:
            begun = self.parents.begin(self.job["given"], self.real)
        except wire.Ended:
            raise self._end(*NOT_STARTED) from None
        self.parent, self.child, self.line = begun
        self.clock = Clock(self.child)
        self._send(self.job)
        self.kept = tuple(map(str, self._receive().get("kept", ())))
        told = self._reply()
        raised = _of_error(told) if "raised" in told else None
        absent = [name for name in self.job["names"] if name in told.get("absent", ())]
        if absent and (set(absent) - set(optional) or absent == self.job["names"]):
            if raised:
                raise self._end(*raised)
            listed = ", ".join(f"`{name}`" for name in absent)
            raise self._end("not handed in", f"Your submission has no {listed}.")
        self.raised = raised[1] if raised else ""
        return {name: self.ask(i) for i, name in enumerate(self.job["names"])}

    def ask(self, number: int, **what: Any) -> Any:
        """Read an object of the worker or a part of it, or call it."""
        if self.ending.name:
            raise self.ending
        self._send({"number": number, **what})
        told = self._reply()
        if "raised" in told:
            error = _error_of(told)
            error.add_note(THEIRS)
            raise error
        return told.get("result")

    def _reply(self) -> dict[str, Any]:
        """Return what comes back, and call for the worker what it asks for until then.

        What this side computes for that is of the seconds that the worker may use.
        """
        while True:
            before = time.thread_time()
            told = self._receive()
            if "call" in told:
                self._send(self._called(told))
            self.spent += time.thread_time() - before
            if self.spent > self.limits.seconds:
                raise self._end(*_too_long(self.limits))
            if "call" not in told:
                return told

    def _called(self, told: dict[str, Any]) -> dict[str, Any]:
        """Call a function of this side for the worker."""
        try:
            function = self.functions[told["call"]]
            given, options = told["given"], dict(told["options"])
            if _count([given, options]) > LARGEST_CALL:
                raise ValueError("the arguments are too large")
            with bounded(LARGEST_RESULT):
                result = function(*given, **options)
                wire.pack(result, _nothing)
        except Exception as error:
            result = error
        return {"raised": str(result)} if isinstance(result, Exception) else {"result": result}

    def _refer(self, value: Any) -> wire.Reference:
        if isinstance(value, Remote) and value._session is self:
            return wire.Reference(value._number, {})
        if (about := wire.taken_apart(value)) is not None:
            return wire.Reference(-1, about)
        if not callable(value):
            raise TypeError(f"{type(value).__name__} cannot be passed to a submission")
        self.functions.append(value)
        return wire.Reference(len(self.functions) - 1, {"side": "judge"})

    def _send(self, value: Any) -> None:
        message = wire.pack(value, self._refer)
        self.clock.resume()  # what passed since the last message is no fault of its own
        try:
            self.line.send(message, self._watch)
        except wire.Ended:
            raise self._ended() from None

    def _receive(self) -> dict[str, Any]:
        try:
            message = self.line.receive(self._watch)
            with bounded(LARGEST_RESULT):
                told = wire.unpack(*message, self._known)
        except wire.Ended as ended:
            if "gone" not in str(ended):
                raise self._end("no answer", f"Your submission was stopped: {ended}.") from None
            raise self._ended() from None
        if not isinstance(told, dict):
            raise self._end("no answer", "Your submission was stopped, because it sends no answer.")
        return told

    def _known(self, reference: wire.Reference) -> Any:
        if reference.number < 0:
            return wire.put_together(reference.about, importlib.import_module("attnbook"))
        about = dict(reference.about)
        name = str(about.get("type"))[:LONGEST_NAME]
        kind = type(name, (Remote,), {})  # the name stands in errors
        return kind(self, reference.number, about)

    def _watch(self) -> None:
        if self.clock.is_idle():
            raise self._end(
                "waits",
                f"Your submission has waited for {IDLE_SECONDS:g} seconds in all instead of "
                "computing. Look for a sleep, for input(), for a lock, or for output that nobody "
                "reads.",
            )

    def _ended(self) -> Ending:
        """Say why the worker is gone."""
        assert self.parent is not None
        status, self.parent = self.parent.end(), None
        if -status in (9, 24):  # SIGKILL and SIGXCPU, by the limit of processor time
            return self._end(*_too_long(self.limits))
        if status == 0:
            return self._end("exits", "Your submission ends the program. Return the result.")
        return self._end("crashes", "Your submission crashes Python or needs too much memory.")

    def _end(self, name: str, message: str) -> Ending:
        self._kill()
        self.ending = Ending(name, message)
        return self.ending


class Clock(Looks):
    """Tells whether a process waits, of itself: it neither computes nor stands in line to do so.

    What it computes and how long it stands in line are known where the system tells them.
    """

    def __init__(self, process: int):
        super().__init__()
        self.path = Path(f"/proc/{process}")
        self.began = self._used(), seconds_in_line(process)
        self.process, self.busy = process, 0.0

    def _used(self) -> float:
        try:
            parts = (self.path / "stat").read_text().rpartition(")")[2].split()
            return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def is_idle(self) -> bool:
        """Return whether it has waited for too long, in all."""
        if self.look() > LONGEST_WAIT:
            return True
        if self.waited - self.busy < IDLE_SECONDS:
            return False
        used, in_line = self.began
        threads = seconds_in_line(self.process).items()
        in_lines = [seconds - in_line.get(thread, 0.0) for thread, seconds in threads]
        self.busy = max(self.busy, self._used() - used + max(in_lines, default=0.0))
        return self.waited - self.busy >= IDLE_SECONDS


def functions_of(uses: list[str]) -> dict[str, Callable] | None:
    """Return the functions of attnbook that an exercise uses; None if it uses more than functions.

    These take arrays and return arrays, so that they can run on this side for a submission.
    """
    package = importlib.import_module("attnbook")
    found: dict[str, Callable] = {}
    for use in uses:
        thing: Any = package
        for part in use.split("."):
            if part not in getattr(thing, "__all__", ()):
                return None
            thing = getattr(thing, part)
        if inspect.isfunction(thing):
            found[use] = thing
        elif not isinstance(thing, types.ModuleType):
            return None
    return found


def _count(x: Any) -> int:
    if isinstance(x, (list, tuple)):
        return sum(map(_count, x))
    if isinstance(x, dict):
        return sum(map(_count, x.values()))
    return int(np.size(x))


def _nothing(value: Any) -> wire.Reference:
    raise TypeError(f"{type(value).__name__} cannot be passed to a submission")


def _too_long(limits: Limits) -> tuple[str, str]:
    return "hangs", (
        f"Your submission is not done after {limits.seconds} seconds of computing. Look for a loop "
        "that never ends, or for one that does far too much work for such a small input."
    )


def _parts_of(told: dict[str, Any]) -> tuple[str, str, str]:
    """Return type, text and place of an error, no longer than the worker makes them."""
    most = {"raised": LONGEST_NAME, "text": LONGEST_TEXT, "place": LONGEST_TEXT}
    kind, text, place = (str(told.get(key, ""))[:length] for key, length in most.items())
    return kind, text, place


def _of_error(told: dict[str, Any]) -> tuple[str, str]:
    kind, text, place = _parts_of(told)
    if kind == "NotAtHand":
        return "not available", f"Your submission needs something that it may not use: {text}."
    parts = [f"{kind}: {text}" if text else kind, place]
    return "raises", f"Your submission raises {', '.join(filter(None, parts))}."


def _error_of(told: dict[str, Any]) -> BaseException:
    """Return the error that the worker tells of, as one of the same name."""
    kind, text, place = _parts_of(told)
    text = ", ".join(filter(None, [text, place]))
    fields = {"__module__": "builtins", "__str__": lambda error: text}  # KeyError quotes its text
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(Exception):
            return type(kind, (known,), fields)(text)
    return type(kind if kind.isidentifier() else "Error", (Exception,), fields)(text)
