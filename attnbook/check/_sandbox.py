"""Run a reader's function so that whatever it does, the caller goes on.

It runs in a thread of its own with a time limit. What it prints is held back, warnings are off, and
every exception is caught, those of `sys.exit` and Ctrl-C among them.
"""

import contextlib
import contextvars
import ctypes
import io
import linecache
import os
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_LIBRARY_FOLDERS = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),  # attnbook itself
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")),
)
_one_at_a_time = threading.Lock()  # standard output and warning filters belong to the process

_inside = contextvars.ContextVar("_inside", default=False)


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
    """What one call did: returned a value, raised an error, or ran out of time."""

    value: Any
    error: BaseException | None
    timed_out: bool
    printed: bool


def call(
    function: Callable, arguments: tuple, keywords: dict[str, Any], deadline: float
) -> Outcome:
    """Call `function` and wait for it until `deadline`, a value of `time.monotonic`."""
    result: dict[str, Any] = {}

    def work():
        try:
            _thread_count_of_torch()
            with np.errstate(all="ignore"):
                result["value"] = function(*arguments, **keywords)
        except BaseException as error:
            result["error"] = error

    sink = _Sink()
    finished = False
    left = deadline - time.monotonic()
    if left > 0 and _inside.get():  # the call around this one holds the lock and keeps things quiet
        finished = _run(work, deadline)
    elif left > 0 and _one_at_a_time.acquire(timeout=left):
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(sink):
                warnings.simplefilter("ignore")
                finished = _run(work, deadline)
        finally:
            _one_at_a_time.release()
    if not finished:
        return Outcome(None, None, True, sink.used)
    return Outcome(result.get("value"), result.get("error"), False, sink.used)


def _thread_count_of_torch() -> None:
    """Give this thread the number of threads that the caller set with `torch.set_num_threads`.

    OpenMP keeps that number for each thread; PyTorch sets it in a new one when it is first asked.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):  # while it is imported it has not
        torch.get_num_threads()


def _run(work: Callable[[], None], deadline: float) -> bool:
    if sys.platform == "emscripten":  # Python in a browser has no threads
        work()
        return True
    context = contextvars.copy_context()
    context.run(_inside.set, True)
    thread = threading.Thread(target=context.run, args=(work,), daemon=True)
    thread.start()
    try:
        # in short waits, for only between two of them does a check inside a check see that it is
        # abandoned, and abandons in turn what it waits for
        while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, 0.05))
        return not thread.is_alive()
    finally:  # also when the user interrupts the wait
        if thread.is_alive():
            _hush()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Abandoned)
            )


def _hush() -> None:
    """Let Python say nothing of an `_Abandoned` that meets its thread inside a clean-up.

    Where an exception cannot go on, in a callback of a weak reference say, Python prints it. This
    one is ours and no news to the reader; all others are printed as before.
    """
    before = sys.unraisablehook
    if getattr(before, "hushes", None) is _Abandoned:
        return

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is not _Abandoned:
            before(unraisable)

    hook.hushes = _Abandoned  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def error_text(error: BaseException) -> str:
    """Return type and first line of the text of any error, also of one that cannot be printed."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[0].rstrip(".")


def describe_error(error: BaseException) -> str:
    """Return type, first line of the text, and the last line of the reader's code on the way."""
    text = error_text(error)
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(("<frozen", *_LIBRARY_FOLDERS))
    ]
    if not frames:
        return text
    path, line, name = frames[-1]
    place = f"{text}, at line {line} of {name}"
    source = linecache.getline(path, line).strip()
    return f"{place}: `{source}`" if source else place
