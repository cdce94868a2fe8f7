"""What the compiled rungs do around their loops: results made, few queries sent a way of their own.

Threads take pieces of work from a counter, one after the other. Which thread takes which changes no
bit: a piece is computed by one, in one order, and how many pieces there are depends on sizes alone.
"""

import math
from collections.abc import Callable

import numpy as np

from attnbook.arrays.arguments import Array
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.kernels.numba_loops.arrays import arrange, restored
from attnbook.kernels.numba_loops.decode import attend_few, merge_few
from attnbook.kernels.numba_loops.panels import Work

WORTH = 2**20
"""Multiplications that are worth another thread."""

FEW = 8
"""Queries of a key head for which the memory is slower than the loops without tiles."""

PIECES, LEAST = 64, 1024
"""Chunks of keys that keep many cores busy, and keys of a chunk that are worth its merging."""

Panels = Callable[[Work, int, np.ndarray, np.ndarray], None]
"""``panels(work, n_threads, output, log_total)`` writes rows of the output and their totals."""


def compute(
    panels: Panels, arguments: tuple, *, few: bool, n_threads: int | None = None
) -> tuple[Array, Array]:
    """Return the output and log_total of the checked `arguments`, whose tiles `panels` makes.

    `few` lets a few queries go without tiles. Their scores are then sums in another order than the
    backward pass makes them in, so it is for calls that none follows.
    """
    query = arguments[0]
    work, leading, d_v = arrange(*arguments)
    shape = (*leading, work.n_q)
    output = np.zeros((math.prod(shape), work.d_v), np.float32)
    log_total = np.full(len(output), -np.inf)  # float64: e**(score - log_total) is to be exact
    if len(output) and work.n_k:
        size = len(output) * work.n_k * (work.d_k + work.d_v)
        n_threads = n_threads_for(size, n_threads, WORTH)
        if few and work.starts.shape[2] * work.n_q <= FEW:
            _decode(work, n_threads, output, log_total)
        else:
            panels(work, n_threads, output, log_total)
    output = output[:, :d_v].reshape(*shape, d_v)
    return restored(output, query), restored(log_total.reshape(*shape, 1), query, exact=True)


def share(function: Callable[..., None], n_threads: int) -> None:
    """Call ``function(counter)`` in so many threads, with one counter for all."""
    counter = np.zeros(1, np.int64)
    in_parts(lambda *_: function(counter), n_threads, n_threads)


def _decode(work, n_threads, output, log_total):
    _, heads, groups = work.starts.shape
    n_chunks = max(1, min(work.n_k // LEAST, PIECES // heads))
    partial = np.empty((heads, n_chunks, groups * work.n_q, work.d_v + 2), np.float32)
    share(lambda counter: attend_few(work, n_chunks, counter, partial), n_threads)
    merge_few(work, partial, output, log_total)
