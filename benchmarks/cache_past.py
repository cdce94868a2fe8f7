"""The long cache of one head in decoding, and what a method reads of it.

A method takes a `Past` and its settings and returns a `Read`: for every decoded query the keys that
are scored, what is added to their scores, what stands for the others, and how many numbers were
read beside the scored keys and values. `answer` makes outputs of it, the same way for all.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attnbook import softmax
from attnbook.hashing.k_means import centres

OBSERVED = 32  # last queries of the prompt, whose attention SnapKV observes


class Prompt:
    """What one head has read before it decodes: queries, keys and values of `first` tokens."""

    def __init__(self, query: np.ndarray, key: np.ndarray, value: np.ndarray):
        self.query, self.key, self.value = query, key, value
        self.scale = 1 / math.sqrt(key.shape[1])
        self._memory: dict[Any, Any] = {}

    @cached_property
    def received(self) -> np.ndarray:
        """What each key received from all queries of the prompt, (first,)."""
        parts = range(0, len(self.query), 512)
        return np.sum([self._weights(slice(i, i + 512)).sum(axis=0) for i in parts], axis=0)

    @cached_property
    def votes(self) -> np.ndarray:
        """What each key received from the last `OBSERVED` queries, (first,)."""
        return self._weights(slice(max(len(self.query) - OBSERVED, 0), None)).sum(axis=0)

    @cached_property
    def middle(self) -> np.ndarray:
        """The mean key: no key of the future has a say in it."""
        return self.key.mean(axis=0)

    def centres(self, n_cells: int, seed: int) -> np.ndarray:
        """Return centres of the keys by k-means."""
        rng = np.random.default_rng(seed)
        return self._kept((n_cells, seed), lambda: centres(self.key, n_cells, rng))

    def graph(self, links: int) -> Any:
        """Return a copy of faiss's graph of the keys by inner product, which is built once."""
        import faiss

        def built():
            made = faiss.IndexHNSWFlat(self.key.shape[1], links, faiss.METRIC_INNER_PRODUCT)
            made.add(self.key)
            return made

        return faiss.clone_index(self._kept(("graph", links), built))

    def _kept(self, name, make):
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]

    def _weights(self, rows):
        scores = self.query[rows] @ self.key.T * self.scale
        place = np.arange(len(self.query))
        return softmax(np.where(place <= place[rows, None], scores, -np.inf))


class Past:
    """The cache of one head while m tokens are decoded after a prompt.

    The decoded query i stands at place ``first + i`` and sees the keys up to its own.
    """

    def __init__(
        self, prompt: Prompt, query: np.ndarray, key: np.ndarray, value: np.ndarray, seed: int = 0
    ):
        self.prompt, self.query, self.seed = prompt, query, seed
        self.key = np.concatenate([prompt.key, key])
        self.value = np.concatenate([prompt.value, value])
        self.n, self.m, self.first = len(self.key), len(key), len(prompt.key)
        self.scale = prompt.scale
        self.place = np.arange(self.first, self.n)  # of each decoded query
        self.width = key.shape[1] + value.shape[1]  # numbers of a key and its value
        self.visible = np.arange(self.n) <= self.place[:, None]  # (m, n)
        self._last: tuple[Any, Any] = (None, None)

    def newest(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, and what it made last if it has the same name."""
        if self._last[0] != name:
            self._last = (name, make())
        return self._last[1]

    @cached_property
    def scores(self) -> np.ndarray:
        """The scores of all keys, (m, n), -inf for the future."""
        return np.where(self.visible, self.query @ self.key.T * self.scale, -np.inf)

    @cached_property
    def exact(self) -> np.ndarray:
        """The outputs of exact attention, (m, d_v)."""
        return softmax(self.scores) @ self.value


def of_text(layers: list[Any], m: int) -> list[list[Past]]:
    """Return the pasts of all layers and heads of a text, of which m tokens are decoded."""
    return [
        [
            Past(Prompt(q[:-m], k[:-m], v[:-m]), q[-m:], k[-m:], v[-m:])
            for q, k, v in zip(*layer.repeated(), strict=True)
        ]
        for layer in layers
    ]


class Read(NamedTuple):
    """What a method reads for m decoded queries."""

    scored: np.ndarray  # (m, n), boolean: the keys that count one by one
    numbers: Any = 0.0  # (m,) or a number: read or multiplied beside the scored keys and values
    bias: Any = 0.0  # (m, n) or 0, added to the scores
    tail: Any = None  # of the other keys: logarithm of their mass, (m,), and output, (m, d_v)


def answer(past: Past, read: Read) -> np.ndarray:
    """Return the outputs (m, d_v): one softmax over what is scored and what stands for the rest."""
    scores = np.where(read.scored & past.visible, past.scores + read.bias, -np.inf)
    return mixed(scores, past.value, read.tail)


def mixed(
    scores: np.ndarray, value: np.ndarray, tail: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """Return attention by scores, -inf for what is not read, with a `tail` as of `Read`."""
    if tail is None:
        return softmax(scores) @ value
    log_mass, output = tail
    weights = softmax(np.concatenate([scores, log_mass[:, None]], axis=1))
    return weights[:, :-1] @ value + weights[:, -1:] * output


def share(past: Past, read: Read) -> tuple[float, float]:
    """Return the mean share of the cache that a query reads or is multiplied by.

    That is: numbers of scored keys and values and those beside them, of the numbers of all keys and
    values that the query sees. Then the share of those beside them alone.
    """
    whole = (past.place + 1) * past.width
    beside = float(np.mean(read.numbers / whole))
    keys = (read.scored & past.visible).sum(axis=1) * past.width
    return float(np.mean(keys / whole)) + beside, beside


def near(past: Past, sinks: int, window: int) -> np.ndarray:
    """Return the first `sinks` keys and the last `window` of each query, its own among them."""
    place = np.arange(past.n)
    return ((place < sinks) | (place > past.place[:, None] - window)) & past.visible


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` largest of each row as a mask, without those of -inf."""
    chosen = np.zeros(values.shape, bool)
    if count > 0:
        rows = np.argpartition(-values, min(count, values.shape[1]) - 1, axis=1)[:, :count]
        np.put_along_axis(chosen, rows, True, axis=1)
    return chosen & (values > -np.inf)
