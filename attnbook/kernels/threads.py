"""Rung 4, *threads*: the tiles of rung 3 in place, on all cores.

NumPy lets go of Python's lock while it works on an array, so threads run side by side; each has
one tile of scores of its own that it uses again and again. Meanwhile the BLAS gets one thread for
each of ours, or both would wait for each other. That holds for the whole process, so calls from
several threads take turns. Agrees with `attnbook.kernels.tiled`. NumPy alone.
"""

import functools
import os
import threading
from typing import Any

import numpy as np
import threadpoolctl

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.kernels.in_place import exponentials, hide
from attnbook.kernels.naive import widen
from attnbook.kernels.score_tiles import for_each_head, later, tile_of, tiles

ROWS, COLUMNS = 256, 512  # 512 KiB of scores in float32: they stay in the cache of a core
WORTH = 2**19  # multiplications and additions that pay for waking a thread

# two calls at once would each restore what the other had set; a signal may call within a turn
_turn = threading.RLock()
if hasattr(os, "register_at_fork"):  # no child process begins in the midst of a turn
    os.register_at_fork(
        before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release
    )


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None,
    bias: np.ndarray | None,
    scale: float,
    is_causal: bool,
) -> np.ndarray:
    """Return the output; a tile of scores for each thread is all the memory that it needs."""
    q, k, v, bias = widen(query, key, value, bias)
    n_q, n_k = q.shape[-2], k.shape[-2]
    leading = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = (for_each_head(x, leading) for x in (q, k, v))
    mask, bias = (None if x is None else for_each_head(x, leading) for x in (mask, bias))
    output = np.empty((*leading, n_q, v.shape[-1]), dtype=q.dtype)
    jobs = [(head, rows) for head in np.ndindex(*leading) for rows in tiles(n_q, ROWS)]

    def work(start: int, stop: int, part: int) -> None:
        scores = np.empty(ROWS * COLUMNS, dtype=q.dtype)
        for head, rows in jobs[start:stop]:
            of_head = [None if x is None else x[head] for x in (q, k, v, mask, bias)]
            _rows(of_head, scale, is_causal, rows, scores, output[(*head, rows)])

    products = len(jobs) * ROWS * n_k * (q.shape[-1] + v.shape[-1])
    n_threads = min(n_threads_for(products, worth=WORTH), max(len(jobs), 1))
    with _turn, _blas().limit(limits=1):
        in_parts(work, len(jobs), n_threads)
    return output.astype(query.dtype, copy=False)


def _rows(
    of_head: list[Any],
    scale: float,
    is_causal: bool,
    rows: slice,
    scratch: np.ndarray,
    output: np.ndarray,
) -> None:
    """Write the output of one tile of queries of one head."""
    q, k, v, mask, bias = of_head
    n_q, n_k = q.shape[-2], k.shape[-2]
    q = q[rows] * q.dtype.type(scale)
    maximum = np.full((len(q), 1), -np.inf, dtype=q.dtype)
    total = np.zeros_like(maximum)
    output[...] = 0
    for columns in tiles(n_k, COLUMNS):
        if is_causal and later(rows, columns, n_q, n_k):
            break
        if mask is not None and not tile_of(mask, rows, columns).any():
            continue
        shape = len(q), columns.stop - columns.start
        scores = scratch[: shape[0] * shape[1]].reshape(shape)
        np.matmul(q, k[columns].T, out=scores)
        hide(scores, mask, bias, is_causal, rows, columns, n_k - n_q)
        larger, added = exponentials(scores, maximum)
        keep = np.exp(maximum - np.where(larger == -np.inf, 0, larger))
        total = keep * total + added
        output *= keep
        output += scores @ v[columns]
        maximum = larger
    output /= np.where(total == 0, 1, total)


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    """Return what knows the BLAS of this process; looking for it takes a millisecond."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")
