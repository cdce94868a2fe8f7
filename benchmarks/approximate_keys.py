"""What the ways to attend are compared on: heads of trained models, and toys."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks import approximate_toys, real_keys

CHECKED = 128  # queries of a head that are compared with float64
TOYS = tuple(approximate_toys.KINDS)
VALIDATION, TEST = "validation", "test"


class Case(NamedTuple):
    """Keys of one kind and length."""

    keys: str
    n: int
    is_causal: bool
    draw: Callable[[str], tuple[np.ndarray, ...]]  # query, key and value of a part, (h, n, d)
    places: tuple[tuple[int, int], ...] = ()  # layer and head of each of them
    all_heads: "Callable[[], Case] | None" = None

    @property
    def about(self):
        """The fields that name it."""
        return {"keys": self.keys, "n": self.n, "causal": self.is_causal}

    def place(self, i: int) -> dict[str, int]:
        """Return where head i is in its model."""
        return (
            dict(zip(("layer", "head"), self.places[i], strict=True))
            if self.places
            else {"head": i}
        )

    def every(self) -> "Case":
        """Return the case with all heads of the model, where there is more than one layer."""
        return self.all_heads() if self.all_heads else self


LAYERS = 6


def writer(name: str, n: int, every: bool = False) -> Case:
    """Return one head of each layer of a writer over n tokens of plays, or `every` head."""
    places = [(i, i) for i in range(LAYERS)]
    if every:
        places = [(i, j) for i in range(LAYERS) for j in range(LAYERS)]

    def draw(part):
        layers = [x.repeated() for x in real_keys.layers(n, part=part, name=name)]
        return tuple(np.stack([layers[i][k][j] for i, j in places]) for k in range(3))

    return Case(name.replace("_", " "), n, True, draw, tuple(places), lambda: writer(name, n, True))


def toy(kind: str, n: int, heads: int = 2) -> Case:
    """Return drawn keys, as `approximate_toys.KINDS` says."""

    def draw(part):
        return approximate_toys.draw(kind, n, heads, seed={VALIDATION: 1, TEST: 0}[part])

    return Case(kind, n, False, draw)


def checked_rows(n: int, start: int = 0) -> np.ndarray:
    """Return the queries that are compared, evenly spread."""
    return np.unique(np.linspace(start, n - 1, min(CHECKED, n - start)).astype(int))


def exact(query, key, value, rows, is_causal) -> np.ndarray:
    """Return float64 attention of the queries in `rows`, (h, len(rows), d_v)."""
    weights = weights_of(query, key, rows, is_causal)
    return np.stack([w @ v.astype(np.float64) for w, v in zip(weights, value, strict=True)])


def weights_of(query, key, rows, is_causal):
    """Yield the float64 weights of the queries in `rows`, head by head."""
    for q, k in zip(query, key, strict=True):
        scores = q[rows].astype(np.float64) @ k.T.astype(np.float64) / math.sqrt(q.shape[-1])
        if is_causal:
            scores[np.arange(len(k)) > rows[:, None]] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        yield scores


def errors(output, expected) -> np.ndarray:
    """Return the mean over queries of |o - exact| / |exact|, head by head."""
    apart = np.linalg.norm(np.asarray(output, np.float64) - expected, axis=-1)
    return np.mean(apart / np.linalg.norm(expected, axis=-1), axis=-1)
