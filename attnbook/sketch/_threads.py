"""Two or more cores for compiled loops that release the interpreter lock."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WORTH = 2**14
"""Fewer pieces of work than this a thread take less time than to wake it."""


def n_threads_for(n: int, n_threads: int | None = None, worth: int = WORTH) -> int:
    """Return how many threads to use for `n` pieces of work.

    `n_threads` if it is given; else one for every `worth` pieces, at most the cores of the process.
    """
    return n_threads or max(1, min(_cores(), n // worth))


def in_parts(function: Callable[[int, int, int], None], n: int, n_threads: int) -> None:
    """Call ``function(start, stop, part)`` on `n_threads` even parts of 0 … `n`, side by side."""
    if n_threads == 1:
        function(0, n, 0)
        return
    bounds = [n * part // n_threads for part in range(n_threads + 1)]
    others = [
        _pool(n_threads - 1).submit(function, bounds[part], bounds[part + 1], part)
        for part in range(1, n_threads)
    ]
    function(bounds[0], bounds[1], 0)
    for other in others:
        other.result()


@functools.cache
def _pool(n_threads):
    return ThreadPoolExecutor(n_threads, thread_name_prefix="attnbook")


if hasattr(os, "register_at_fork"):  # a child process has the pool but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
