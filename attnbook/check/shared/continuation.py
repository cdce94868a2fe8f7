"""Greedy decoding in steps: what the model reads, which token is taken, and when to stop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.text import Text
from attnbook.check.shared.toy_models import LONGEST, TooLong

# The steps. `ids` are those of one sequence so far, the start first.


def filled_up(rows, filler):
    return [row + [filler] * (max(map(len, rows)) - len(row)) for row in rows]


def read_whole(s, model, ids):
    """Return what is taken from the logits of a model that reads the whole prefix."""
    logits = model(np.array(s.prefix(ids), dtype=np.int64))
    return int(s.pick(s.bar(s.row(logits), ids)))


def read_step_by_step(s, model, ids):
    """Return what is taken from the last logits of a step with a cache."""
    cache, logits = None, np.zeros(1)
    for i, token in s.feed(list(enumerate(ids))):
        logits, cache = model(token, s.place(i), cache)
    return int(s.pick(s.bar(logits, ids)))


def decode(read: Callable, s: Any, model, start, stop, max_length):
    """Return the ids of one start, or of each start, filled up with `stop`."""

    def one_sequence(one, count, ends):
        ids = [one]
        while len(ids) <= count and not ends(ids, stop):
            if len(ids) > LONGEST:  # two mistakes together may never end
                raise TooLong
            ids = s.append(ids, read(s, model, ids))
        return ids

    count = s.count(max_length)
    if not isinstance(start, np.ndarray):
        ids = np.array(s.shown(one_sequence(start, count, s.ends), stop), dtype=np.int64)
        return s.result(ids, stop, max_length + len(s.shown([start], stop)))
    rows = [one_sequence(int(one), count, s.ends) for one in start]
    filled = s.rows(rows, lambda one, count: one_sequence(one, count, lambda *given: False), stop)
    first = 1 - len(s.shown([0], stop))  # 1 if the start is not shown
    return np.array(filled, dtype=np.int64)[:, first:]


def without_start(ids, stop):
    return ids[1:]


def without_stop(ids, stop):
    return ids[:-1] if len(ids) > 1 and ids[-1] == stop else ids


def without_both(ids, stop):
    return without_stop(ids, stop)[1:]


def barred(logits, ids):
    """Return the logits, or rows of them, without a chance for `ids`."""
    logits = logits.copy()
    logits[..., [token for token in ids if token < logits.shape[-1]]] = -np.inf
    return logits


def prefixes(pairs):
    return [pair for n in range(len(pairs)) for pair in pairs[: n + 1]]


def anew(pairs):
    """Count the places of all that is read from 0 to the end."""
    return [(i, token) for i, (_, token) in enumerate(pairs)]


TEXT = Text(globals())

PREFIX_MISTAKES = TEXT["prefix mistakes"]

CACHE_MISTAKES = TEXT["cache mistakes"]

TOKEN_MISTAKES = TEXT["token mistakes"]


BATCH_MISTAKES = TEXT["batch mistakes"]
