"""Interpolated Kneser-Ney models of sequences of ids, of all orders, with tuned discounts.

Chen and Goodman (1998), "An Empirical Study of Smoothing Techniques for Language Modeling". The
longest n-grams are counted as they occur; a shorter one counts how many different ids stand before
it. From each count a discount is taken, one for counts of 1, of 2 and of 3 or more, and what is
taken goes to the order below; below the first order all ids are equally likely.
"""

from typing import NamedTuple

import numpy as np

COUNTS = 3  # counts of 1, of 2, and of 3 or more have a discount each


class Order(NamedTuple):
    """The n-grams of one length in the order of their keys, and what was counted of each."""

    keys: np.ndarray  # the place of the context among the n-grams one shorter, and the last id
    context: np.ndarray  # that place alone
    raw: np.ndarray  # how often the n-gram occurs
    continuations: np.ndarray  # how many different ids stand before it


class Counted(NamedTuple):
    """The counts that one order of a model goes by, and sums of them over each context."""

    counts: np.ndarray
    totals: np.ndarray
    n_with: np.ndarray  # (COUNTS, contexts): how many n-grams have each of the counts


class Read(NamedTuple):
    """What one order counted, for each id of a text."""

    count: np.ndarray  # of the n-gram that ends there
    total: np.ndarray  # of its context
    n_with: np.ndarray  # (COUNTS, ids), of its context


class Ngrams:
    """Kneser-Ney models of the orders 1 to `max_order`, learned from one sequence of ids."""

    def __init__(self, ids: np.ndarray, n_ids: int, max_order: int) -> None:
        self.n_ids, self.max_order = n_ids, max_order
        ids = self._padded(ids)
        start = max_order - 1  # nothing predicts the padding
        self.orders: list[Order] = []
        places, n_contexts = np.zeros(len(ids), np.int64), 1  # all empty n-grams are one
        for n in range(1, max_order + 1):
            keys, first, found = np.unique(
                self._keys(places, ids), return_index=True, return_inverse=True
            )
            raw = np.bincount(found[start:], minlength=len(keys))
            if n > 1:  # each different n-gram is one continuation of its end
                seen = np.bincount(places[first[raw > 0]], minlength=n_contexts)
                self.orders[-1] = self.orders[-1]._replace(continuations=seen)
            self.orders.append(Order(keys, keys // (n_ids + 1), raw, raw))
            places, n_contexts = found, len(keys)
        self._longest = [self._counted(n, self.orders[n - 1].raw) for n in self._all]
        self._shorter = [self._counted(n, self.orders[n - 1].continuations) for n in self._all]

    @property
    def _all(self) -> range:
        return range(1, self.max_order + 1)

    def _padded(self, ids: np.ndarray) -> np.ndarray:
        """Return `ids` after as many times an id of its own as the longest context is long."""
        return np.concatenate((np.full(self.max_order - 1, self.n_ids), ids)).astype(np.int64)

    def _keys(self, places: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return a number for each n-gram, from the place of the context and the last id."""
        return np.concatenate((places[:1] * 0, places[:-1])) * (self.n_ids + 1) + ids

    def _counted(self, n: int, counts: np.ndarray) -> Counted:
        context = self.orders[n - 1].context
        size = len(self.orders[n - 2].keys) if n > 1 else 1
        kinds = np.minimum(counts, COUNTS)
        n_with = [np.bincount(context, kinds == c, minlength=size) for c in range(1, COUNTS + 1)]
        return Counted(counts, np.bincount(context, counts, minlength=size), np.array(n_with))

    def counted(self, n: int, order: int) -> Counted:
        """Return the counts of order `n` in the model of order `order`."""
        return (self._longest if n == order else self._shorter)[n - 1]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Return where each n-gram of another text is, -1 where it is new.

        The result has a row for each n from 0 to `max_order`, and a column for each id, the padding
        included.
        """
        ids = self._padded(ids)
        found = np.zeros((self.max_order + 1, len(ids)), np.int64)
        for n, order in enumerate(self.orders, 1):
            keys = self._keys(found[n - 1], ids)
            at = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            found[n] = np.where(order.keys[at] == keys, at, -1)  # a new context makes no such key
        return found

    def discounts(self, order: int) -> np.ndarray:
        """Return Chen and Goodman's estimate of the discounts, shape (order, COUNTS)."""
        found = np.empty((order, COUNTS))
        for n in range(1, order + 1):
            counts = self.counted(n, order).counts
            n_1, n_2, n_3, n_4 = (max(int((counts == c).sum()), 1) for c in (1, 2, 3, 4))
            y = n_1 / (n_1 + 2 * n_2)
            found[n - 1] = 1 - 2 * y * n_2 / n_1, 2 - 3 * y * n_3 / n_2, 3 - 4 * y * n_4 / n_3
        return np.clip(found, 0.01, (0.99, 1.99, 2.99))

    def read(self, places: np.ndarray, order: int) -> list[Read]:
        """Return what the model of this order counted for each id of a text, order by order."""
        start, found = self.max_order - 1, []
        for n in range(1, order + 1):
            counted, here = self.counted(n, order), places[n, start:]
            context = places[n - 1, start - 1 : -1] if n > 1 else np.zeros_like(here)
            count = np.where(here >= 0, counted.counts[here], 0)
            total = np.where(context >= 0, counted.totals[context], 0)
            found.append(Read(count, total, counted.n_with[:, context]))
        return found

    def probabilities(self, places: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        """Return the probability of each id after those before it, by the model of this order."""
        lowest = np.full(places.shape[1] - self.max_order + 1, 1 / self.n_ids)
        return interpolated(self.read(places, len(discounts)), discounts, lowest)

    def tuned(self, ids: np.ndarray, order: int, steps: tuple[float, ...] = (0.2, 0.08)):
        """Return the discounts that make a validation text cheap: one after another, in turn."""
        read, best = self.read(self.places(ids), order), self.discounts(order)
        for step in steps:
            lower = np.full(len(ids), 1 / self.n_ids)
            for n in range(order):
                cost = bits(interpolated(read[n:], best[n:], lower))
                for c in range(COUNTS):
                    for sign in (1, -1):
                        while True:
                            trial = best.copy()
                            trial[n, c] = np.clip(trial[n, c] + sign * step, 0.001, c + 0.999)
                            new = bits(interpolated(read[n:], trial[n:], lower))
                            if new >= cost:
                                break
                            best, cost = trial, new
                lower = interpolated(read[n : n + 1], best[n : n + 1], lower)
        return best


def interpolated(read: list[Read], discounts: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return probabilities, order by order from those of the order below.

    An n-gram has its discounted share of the total of its context; what the discounts took from all
    n-grams of the context is shared out by the order below. In a context never seen, all is.
    """
    for (count, total, n_with), taken in zip(read, discounts, strict=True):
        kept = count - np.concatenate(([0], taken))[np.minimum(count, COUNTS)]
        p = (kept + (taken @ n_with) * lower) / np.maximum(total, 1)
        lower = np.where(total > 0, p, lower)
    return lower


def bits(probabilities: np.ndarray) -> float:
    """Return how many bits a text costs whose ids have these probabilities."""
    return float(-np.log2(probabilities).sum())


def as_bytes(text: str) -> np.ndarray:
    """Return the bytes of a text as ids."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
