"""Several cores for compiled loops that release the interpreter's lock."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

WORTH = 2**14
"""Fewer pieces of work than this a thread take less time than to wake it."""

_inside = threading.local()  # `.part` is set in a thread that works on a part


def n_threads_for(n: int, n_threads: int | None = None, worth: int = WORTH) -> int:
    """Return how many threads to use for `n` pieces of work.

    `n_threads` if it is given; else one for every `worth` pieces, at most the cores of the process
    and at most OMP_NUM_THREADS, if that is set, as the other libraries have it.
    """
    if n_threads is None and n < 2 * worth:  # to ask for the cores takes longer than one query
        return 1
    return n_threads or min(_cores(), n // worth)


def in_parts(function: Callable[[int, int, int], None], n: int, n_threads: int) -> None:
    """Call ``function(start, stop, part)`` on `n_threads` even parts of 0 … `n`, side by side.

    One after the other, where the caller is itself a part: it would wait for its own thread.
    """
    bounds = [n * part // n_threads for part in range(n_threads + 1)]
    parts = list(zip(bounds, bounds[1:], range(n_threads), strict=False))
    if n_threads == 1 or getattr(_inside, "part", False):
        for part in parts:
            function(*part)
        return
    pool = _pool(n_threads - 1)
    others = [pool.submit(function, *part) for part in parts[1:]]
    try:
        function(*parts[0])
    finally:
        wait(others)  # they use the caller's arrays
    for other in others:
        other.result()


@functools.cache
def _pool(n_threads):
    def enter():
        _inside.part = True

    return ThreadPoolExecutor(n_threads, "attnbook", initializer=enter)


if hasattr(os, "register_at_fork"):  # a child process has the pools but none of their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _cores():
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores
