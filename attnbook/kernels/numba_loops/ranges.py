"""What a rule lets the rows of a panel see: the next tile of keys, and what is hidden in a tile.

The loops read the ranges of `Intervals` as they are. They jump over the keys that no row of a panel
sees, so the work is proportional to the tiles that are seen, and they hide keys only in a tile that
some rows see in part.
"""

import itertools

import numpy as np

from attnbook.compilers.jit import compile_fused
from attnbook.kernels.numba_loops.arrays import RANGES, Work

_HIDDEN = np.float32(-np.inf)


@compile_fused
def following(group, i, n_q):
    """Return the group and the query of the next row; to divide for each would take longer."""
    return (group, i + 1) if i + 1 < n_q else (group + 1, 0)


@compile_fused
def first_open(work, at, key):
    """Return which of the ranges from `at` on is the first to end after `key`; n_ranges if none."""
    first, after = 0, work.n_ranges
    while first < after:  # they are sorted, and those that are empty end at n_k
        middle = (first + after) // 2
        if work.range_stops[at + middle] > key:
            after = middle
        else:
            first = middle + 1
    return first


@compile_fused
def range_at(work, at, which, end):
    """Return the start and the stop of a range, at most `end`; both are `end` if there is none."""
    if which >= work.n_ranges:
        return end, end
    start, stop = work.range_starts[at + which], work.range_stops[at + which]
    return min(np.int64(start), end), min(np.int64(stop), end)


@compile_fused
def next_seen(work, head, first, rows, key, end, most):
    """Return the next tile of keys that some rows see, and how far all rows see all keys.

    Returns
    -------
    key : the first key from `key` on that a row sees, or `end`
    keys : at most `most`; the last of them is seen, too. 0 if there are no more
    sure : from `key` to this one, exclusive, every row sees every key
    """
    begin, latest, earliest = end, key, end  # start of a range, and stop
    group, i = divmod(first, work.n_q)
    for _ in range(rows):
        at = work.starts[RANGES, head, group] + i * work.n_ranges
        start, stop = range_at(work, at, first_open(work, at, key), end)
        begin = min(begin, max(start, key))
        latest, earliest = max(latest, start), min(earliest, stop)
        group, i = following(group, i, work.n_q)
    limit = min(begin + most, end)
    sure = earliest if latest <= begin else begin
    if begin == end or sure >= limit:
        return begin, limit - begin, sure
    last = begin
    group, i = divmod(first, work.n_q)
    for _ in range(rows):
        at = work.starts[RANGES, head, group] + i * work.n_ranges
        which = first_open(work, at, limit - 1)  # it may hold the last key, else the one before
        start, stop = range_at(work, at, which, limit)
        if start < limit:
            last = limit
        elif which:
            last = max(last, min(np.int64(work.range_stops[at + which - 1]), limit))
        if last == limit:
            break
        group, i = following(group, i, work.n_q)
    return begin, last - begin, sure


@compile_fused
def hide_unseen(work, head, first, rows, key, keys, scores):
    """Replace the scores of keys outside the ranges of their rows by -inf, whatever they are."""
    end = key + keys
    group, i = divmod(first, work.n_q)
    for r in range(rows):
        at = work.starts[RANGES, head, group] + i * work.n_ranges
        which, shown = first_open(work, at, key), key
        while shown < end:
            start, stop = range_at(work, at, which, end)
            for j in range(shown - key, start - key):
                scores[j, r] = _HIDDEN
            which, shown = which + 1, stop
        group, i = following(group, i, work.n_q)


@compile_fused
def all_seen(work, head, first, rows, key, keys):
    """Return whether every row sees every one of these keys."""
    group, i = divmod(first, work.n_q)
    for _ in range(rows):
        at = work.starts[RANGES, head, group] + i * work.n_ranges
        start, stop = range_at(work, at, first_open(work, at, key), key + keys)
        if start > key or stop < key + keys:
            return False
        group, i = following(group, i, work.n_q)
    return True


def longest_first(work: Work, width: int, n_chunks: int) -> np.ndarray:
    """Return the tasks of `attend` in an order that keeps all threads busy to the end.

    The heads that see most go first, and within a head the panels, or chunks of them, that see
    most; the panels of a head stay together, since they read the same keys.
    """
    shape = (-1, work.n_q, work.n_ranges)
    starts, stops = work.range_starts.reshape(shape), work.range_stops.reshape(shape)
    sequence, head = np.unique(sequences(work), axis=0, return_inverse=True)
    bounds = work.n_k * np.arange(n_chunks + 1) // n_chunks
    firsts = np.arange(0, sequence.shape[1] * work.n_q, width)
    seen = []
    for groups in sequence:
        of_chunk = (
            (np.clip(stops[groups], a, b) - np.clip(starts[groups], a, b)).sum(axis=-1).ravel()
            for a, b in itertools.pairwise(bounds)
        )
        seen.append(np.stack([np.add.reduceat(x, firsts) for x in of_chunk], axis=-1).ravel())
    of_head = np.stack(seen)
    tasks = np.argsort(-of_head, axis=-1, kind="stable")[head.ravel()]
    heads = np.argsort(-of_head.sum(axis=-1)[head.ravel()], kind="stable")
    return (tasks[heads] + heads[:, np.newaxis] * of_head.shape[1]).ravel()


def sequences(work: Work) -> np.ndarray:
    """Return which of the arrays (n_q, m) of ranges each head and group reads, (heads, groups)."""
    return work.starts[RANGES] // (work.n_q * work.n_ranges)
