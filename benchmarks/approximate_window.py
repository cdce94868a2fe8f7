"""A window of the last keys, and the first keys of all, the attention sinks.

Xiao et al. (2024), "Efficient streaming language models with attention sinks"; Beltagy et al.
(2020), "Longformer", for a window on both sides where attention is not causal.
"""

import math

import numpy as np

from attnbook.kernels import packed


def prepare(key, value, *, window, n_sinks, is_causal, seed=0):
    """Keep keys and values."""
    del seed
    return key, value, window, n_sinks, is_causal


def attend(query, state) -> np.ndarray:
    """Return attention of (h, n, d) queries to `window` keys or up to a half more, and the sinks.

    Queries go in runs of half a window that share their keys.
    """
    key, value, window, n_sinks, is_causal = state
    (h, n, d), scale = query.shape, 1 / math.sqrt(query.shape[-1])
    run = max(1, window // 2)
    seen = window + run
    # queries before `first` see what is before them
    first = -(-max(seen, n_sinks + window) // run) * run if is_causal else 0
    if first >= n or seen >= n:
        return packed.attention(query, key, value, None, None, scale, is_causal)
    whole = first + (n - first) // run * run
    starts = np.arange(first, whole, run)
    out = np.empty((h, n, value.shape[-1]), np.float32)
    if is_causal:
        begin = slice(0, first)
        parts = (x[:, begin] for x in (query, key, value))
        out[:, begin] = packed.attention(*parts, None, None, scale, True)
        of_runs = starts - window
        sinks = np.broadcast_to(np.arange(n_sinks), (len(starts), n_sinks))
    else:
        of_runs = np.clip(starts - window // 2, 0, n - seen)
        sinks = np.empty((len(starts), 0), np.int64)
    rows = np.concatenate([sinks, of_runs[:, None] + np.arange(seen)], axis=1)
    q = query[:, first:whole].reshape(h, len(starts), run, d)
    beside = [x[:, rows] for x in (key, value)]
    found = packed.attention(q, *beside, None, None, scale, is_causal)
    out[:, first:whole] = found.reshape(h, whole - first, -1)
    if whole < n:  # the last run is shorter
        seen_last = slice(n - (n - whole) - window, n) if is_causal else slice(n - seen, n)
        last = [
            np.concatenate([x[:, : n_sinks if is_causal else 0], x[:, seen_last]], axis=1)
            for x in (key, value)
        ]
        parts = (query[:, whole:], *last)
        out[:, whole:] = packed.attention(*parts, None, None, scale, is_causal)
    return out
