"""A cache beside an n-gram model: what followed the same ids earlier in the text being read."""

from collections import Counter
from typing import NamedTuple

import numpy as np

KINDS = 8  # of contexts, by how often they were seen: once, 2 to 3 times, 4 to 7, ...


class Seen(NamedTuple):
    """What the text so far says about each next id, a row for each length of context from 0."""

    followed: np.ndarray  # how often this id followed the context
    totals: np.ndarray  # how often anything did


def seen(ids: np.ndarray, longest: int, window: int | None) -> Seen:
    """Return what followed the same contexts before, among the last `window` ids or all."""
    text = ids.tolist()
    found = Seen(*np.zeros((2, longest + 1, len(text)), np.int64))
    for m in range(longest + 1):
        counts: Counter[tuple[int, ...]] = Counter()  # of contexts, and of contexts with an id
        for i in range(m, len(text)):
            if window is not None and i - window - 1 >= m:
                _count(counts, text, i - window - 1, m, -1)
            context = tuple(text[i - m : i])
            found.totals[m, i] = counts[context]
            found.followed[m, i] = counts[(*context, text[i])]
            _count(counts, text, i, m, 1)
    return found


def _count(counts: Counter[tuple[int, ...]], text: list[int], i: int, m: int, by: int) -> None:
    counts[tuple(text[i - m : i])] += by
    counts[tuple(text[i - m : i + 1])] += by


class Cache:
    """Weights of what was seen, by the length of the context and by how often it was seen.

    From the shortest context to the longest, the probability becomes ``w * followed / total +
    (1 - w) * p``, where ``p`` is that of the shorter context, and at first that of the model.
    """

    def __init__(self, longest: int) -> None:
        self.weights = np.full((longest + 1, KINDS), 0.1)

    def fit(self, p: np.ndarray, text: Seen, rounds: int = 30) -> "Cache":
        """Make a validation text probable, by expectation maximization for one length at a time."""
        for m in range(len(self.weights)):
            is_seen, share, kind = _row(text, m)
            n = np.bincount(kind, is_seen, minlength=KINDS)
            for _ in range(rounds):
                w = self.weights[m, kind]
                from_cache = np.where(is_seen, w * share / (w * share + (1 - w) * p), 0)
                self.weights[m] = np.bincount(kind, from_cache, minlength=KINDS) / np.maximum(n, 1)
            p = self._mixed(m, p, text)
        return self

    def probabilities(self, p: np.ndarray, text: Seen) -> np.ndarray:
        """Return the probabilities with the cache from those of the model alone."""
        for m in range(len(self.weights)):
            p = self._mixed(m, p, text)
        return p

    def _mixed(self, m: int, p: np.ndarray, text: Seen) -> np.ndarray:
        is_seen, share, kind = _row(text, m)
        w = np.where(is_seen, self.weights[m, kind], 0)
        return w * share + (1 - w) * p


def _row(text: Seen, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    totals = np.maximum(text.totals[m], 1)
    kind = np.minimum(np.log2(totals).astype(int), KINDS - 1)
    return text.totals[m] > 0, text.followed[m] / totals, kind
