"""Run a reader's function so that whatever it does, the caller goes on.

It runs in a thread of its own with a limit of computing time: of the processor time of that thread,
so a busy machine changes nothing. What it prints is held back, warnings are off, and every
exception is caught, those of `sys.exit` and Ctrl-C among them.
"""

import contextlib
import contextvars
import ctypes
import dis
import io
import linecache
import os
import sys
import sysconfig
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IDLE_SECONDS = 60.0
IDLE_SHARE = 0.02
"""What computes less than this share of so many seconds on the clock on the wall waits: a thread
here. Where submissions are graded it is a process, and the seconds are fewer. What stands in line
for a processor that others have, for more than half of them, does not wait."""

LONGEST_LOOK = 0.1
"""Seconds that count at most between two looks: where more passed, the machine stood still or was
busy, for whoever looks as well as for the thread."""

LONGEST_LINE = 80
"""How much of a line of the reader's code is quoted."""

PRINTS = "it prints; the check holds the text back."
"""What is remarked upon where a call printed something."""

WALL_FACTOR = 10.0
"""Where threads have no clock of their own, the limit is so many times as far, on the wall."""

_LIBRARY_FOLDERS = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),  # attnbook itself
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")),
)
_one_at_a_time = threading.Lock()  # standard output and warning filters belong to the process


class Budget:
    """Seconds of computing that calls share, and how much is spent.

    Inside of a call, as in a check within a check, what is spent counts for the outer one too.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.spent = 0.0
        self.unlimited = False  # a call ran where no thread can be started
        self._outer = _current.get()

    @property
    def left(self) -> float:
        own = self.seconds - self.spent
        return own if self._outer is None else min(own, self._outer.left)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a report says of the limit of time."""
        missing = "no thread can be started here, so no limit of time was set."
        return (missing,) if self.unlimited else ()

    def spend(self, seconds: float) -> None:
        self.spent += seconds
        if self._outer is not None:
            self._outer.spend(seconds)


_current: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("_current", default=None)


class _Abandoned(BaseException):
    """Ends a thread that ran out of time; no `except Exception` of the reader's stops it."""


class _Sink(io.TextIOBase):
    """Standard output that keeps nothing but whether something was written."""

    used = False

    def write(self, text: str) -> int:
        self.used = True
        return len(text)


@dataclass(frozen=True)
class Outcome:
    """What one call did: returned a value, raised an error, or was stopped.

    `stopped` is empty, or completes "Your function …" in a message on why it was ended.
    """

    value: Any
    error: BaseException | None
    stopped: str
    printed: bool


class _Work:
    """One call in a thread, and the clock of that thread."""

    def __init__(self, function: Callable, arguments: tuple, keywords: dict[str, Any]):
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.value: Any = None
        self.error: BaseException | None = None
        self.clock: int | None = None
        self.seconds: float | None = None  # of computing, once it is done

    def __call__(self) -> None:
        began = seconds_of_this_thread()
        with contextlib.suppress(AttributeError, OSError):  # not every platform has such clocks
            self.clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            _thread_count_of_torch()
            with np.errstate(all="ignore"):
                self.value = self.function(*self.arguments, **self.keywords)
        except BaseException as error:
            self.error = error
        ended = seconds_of_this_thread()
        self.seconds = None if began is None or ended is None else ended - began

    def computed(self) -> float | None:
        """Return the seconds that the thread has computed so far, None if nobody knows."""
        if self.seconds is not None:
            return self.seconds
        try:
            return None if self.clock is None else time.clock_gettime(self.clock)
        except OSError:  # it has just ended
            return None


def seconds_of_this_thread() -> float | None:
    """Return what this thread has computed, None if nobody knows."""
    try:
        return time.thread_time()
    except (AttributeError, OSError):  # not every platform has such clocks
        return None


def call(function: Callable, arguments: tuple, keywords: dict[str, Any], budget: Budget) -> Outcome:
    """Call `function` and wait for it until the computing time of `budget` is spent."""
    work, sink = _Work(function, arguments, keywords), _Sink()
    if budget.left <= 0:
        return Outcome(None, None, _not_done(budget.seconds), sink.used)
    if _current.get() is not None:  # the call around this one holds the lock and keeps things quiet
        stopped = _run(work, budget)
    else:
        with _one_at_a_time, warnings.catch_warnings(), contextlib.redirect_stdout(sink):
            warnings.simplefilter("ignore")
            stopped = _run(work, budget)
    if stopped:
        return Outcome(None, None, stopped, sink.used)
    return Outcome(work.value, work.error, "", sink.used)


def _not_done(seconds: float, clock: str = "") -> str:
    return (
        f"is not done after {seconds:g} seconds{clock}. Look for a loop that never ends, or one "
        "that does far too much work for so small an input."
    )


def _thread_count_of_torch() -> None:
    """Give this thread the number of threads that the caller set with `torch.set_num_threads`.

    OpenMP keeps that number for each thread; PyTorch sets it in a new one when it is first asked.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):  # while it is imported it has not
        torch.get_num_threads()


def _run(work: _Work, budget: Budget) -> str:
    """Run `work` and return why it was stopped, or nothing."""
    context = contextvars.copy_context()
    context.run(_current.set, budget)
    if sys.platform == "emscripten":  # a browser has no threads, and its page a button that stops
        context.run(work)
        return ""
    thread = threading.Thread(target=context.run, args=(work,), daemon=True)
    try:
        thread.start()
    except RuntimeError:
        budget.unlimited = True
        context.run(work)
        return ""
    stopped = ""
    try:
        stopped = _wait(thread, work, budget)
        return stopped
    finally:  # also when the user interrupts the wait
        # where Python 3.11 traces, it stands still while an exception is due in a blocked thread
        blocked = stopped.startswith("waits") and sys.gettrace() is not None
        if thread.is_alive() and not blocked:
            _hush()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Abandoned)
            )


def _wait(thread: threading.Thread, work: _Work, budget: Budget) -> str:
    """Wait until the thread is done, and spend what it computes; return why it must be stopped."""
    charged, mark = 0.0, budget.spent
    waited = moved = 0.0
    in_line: float | None = None  # not asked of a call that is done at once
    now = time.monotonic()
    while thread.is_alive():
        # in short waits, for only between two of them does a check inside a check see that it is
        # abandoned, and abandons in turn what it waits for
        thread.join(min(max(budget.left, 0.005), 0.05))
        before, now = now, time.monotonic()
        waited += min(now - before, LONGEST_LOOK)
        computed = work.computed()
        if computed is not None:
            budget.spend(computed - charged)
            charged = computed
        if budget.spent > mark + IDLE_SHARE * IDLE_SECONDS:  # also by a check within
            mark, moved, in_line = budget.spent, waited, None
        if not thread.is_alive():
            break
        if in_line is None:
            in_line = sum(seconds_in_line().values())
        if budget.left <= 0:
            return _not_done(budget.seconds)
        if work.clock is not None and waited - moved > IDLE_SECONDS:
            if sum(seconds_in_line().values()) - in_line > IDLE_SECONDS / 2:
                moved, in_line = waited, None
                continue
            return (
                f"waits: for {IDLE_SECONDS:g} seconds on the clock on the wall it has computed "
                "next to nothing. Look for a sleep, for input(), or for a lock nobody releases."
            )
        if work.clock is None and waited > WALL_FACTOR * budget.left:
            return _not_done(WALL_FACTOR * budget.seconds, " on the clock on the wall")
    if work.seconds is not None:
        budget.spend(max(0.0, work.seconds - charged))
    return "" if budget.left > 0 else _not_done(budget.seconds)


def seconds_in_line(process: int | str = "self") -> dict[str, float]:
    """Return how long each thread of a process stood in line for a processor, where it is told."""
    seconds = {}
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):  # Linux alone has them
        with contextlib.suppress(OSError, ValueError, IndexError):
            seconds[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    return seconds


def _hush() -> None:
    """Let Python say nothing of an `_Abandoned` that meets its thread outside of the call.

    Where an exception cannot go on, in a callback of a weak reference say, or where the thread has
    just done its work, Python prints it. This one is ours and no news to the reader; all others are
    printed as before.
    """
    for module, name in ((sys, "unraisablehook"), (threading, "excepthook")):
        before = getattr(module, name)
        if getattr(before, "hushes", None) is not _Abandoned:
            setattr(module, name, _without_abandoned(before))


def _without_abandoned(before: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a hook for what nobody caught that is silent about an `_Abandoned`."""

    def hook(uncaught: Any) -> None:
        if uncaught.exc_type is not _Abandoned:
            before(uncaught)

    hook.hushes = _Abandoned  # type: ignore[attr-defined]
    return hook


def error_text(error: BaseException) -> str:
    """Return type and first line of the text of any error, also of one that cannot be printed."""
    told = traceback.TracebackException(type(error), error, None)
    told.__notes__ = None  # which stand behind the text
    return [*told.format_exception_only()][-1].strip().splitlines()[0].rstrip(".")


def describe_error(error: BaseException) -> str:
    """Return type, first line of the text, and the last line of the reader's code on the way."""
    text, frames = error_text(error), _frames_of_the_reader(error)
    if not frames:
        return text
    code, line = frames[-1].tb_frame.f_code, frames[-1].tb_lineno
    path, name = code.co_filename, code.co_name
    place = f"{text}, at line {line} of {name}"
    source = linecache.getline(path, line).strip()
    source = source if len(source) <= LONGEST_LINE else f"{source[: LONGEST_LINE - 1]}…"
    return f"{place}: `{source}`" if source else place


def how_far(error: BaseException) -> tuple[int, ...]:
    """Return where in the reader's code an error came up: the further on, the larger."""
    return tuple(frame.tb_lasti for frame in _frames_of_the_reader(error))


def is_deliberate(error: BaseException) -> bool:
    """Tell whether the reader's code raised the error itself, by raise or assert."""
    frames = _frames_of_the_reader(error)
    if not frames or frames[-1].tb_next is not None:
        return False
    code = dis.get_instructions(frames[-1].tb_frame.f_code)
    return any(x.offset == frames[-1].tb_lasti and x.opname == "RAISE_VARARGS" for x in code)


def _frames_of_the_reader(error: BaseException) -> list[types.TracebackType]:
    """Return the traceback of an error without what belongs to a library."""
    frames, rest = [], error.__traceback__
    while rest is not None:
        path = rest.tb_frame.f_code.co_filename
        if not path.startswith(("<frozen", *_LIBRARY_FOLDERS)):
            frames.append(rest)
        rest = rest.tb_next
    return frames
