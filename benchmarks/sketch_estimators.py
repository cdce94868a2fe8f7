"""Which estimator: the error of each, where all score the same share of the keys."""

import importlib.util
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, move
from attnbook.sketch import LiftedHash, Moments, SimHash, SketchAttention
from benchmarks import inputs, sketch_inputs, sketch_peers
from benchmarks.sketch_inputs import KINDS, Inputs

N, QUICK_N = 32_768, 512
CHECKED = 128  # queries
BUDGET = 0.01  # share of the keys that are scored
TABLES = 75
CASES = (
    *((kind, "following") for kind in KINDS),
    ("random", "bent"),
    ("random", "without a common part"),
    *((kind, "independent") for kind in ("random", "peaked", "clustered")),
)
QUICK_CASES = (("peaked", "following"), ("heavy-tailed", "following"))

METHODS = {
    "estimators": (
        f"Errors where about {BUDGET:.0%} of the keys are scored: {TABLES} tables of "
        "SimHash, as many bits as bring the mean of `share` nearest to that. `best` scores the "
        "keys of largest weight, which no sketch knows beforehand. A sample of all keys has half "
        "of the share to itself beside tables, all of it alone."
    ),
}


def estimators(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the error of each estimator and tail on each kind of keys and values."""
    n = QUICK_N if quick else N
    rows = []
    for kind, values in QUICK_CASES if quick else CASES:
        given = sketch_inputs.draw(kind, n, 1, seed=1, values=values)
        asked = np.arange(0, n, -(-n // CHECKED))
        some = given._replace(query=given.query[:, asked])
        expected = sketch_inputs.exact(some, np.arange(len(asked)))[0]
        own = []
        for name, output, more in _estimates(some):
            found = inputs.errors(output, expected)
            own.append({"keys": kind, "values": values, "n": n, "estimator": name} | more | found)
        shown = ", ".join(f"{row['estimator']} {row['relative']:.3g}" for row in own)
        log(f"estimators, n = {n}: {kind}, {values}: {shown}")
        rows += own
    return rows


def _estimates(given) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name, the output and the cost of each estimate."""
    query, key, value = (x[0] for x in given)
    n, share = len(key), round(BUDGET * len(key))
    yield "best", _best(query, key, value, share), {"share": share / n}
    fits = _bits(query, key, BUDGET)
    half = _bits(query, key, BUDGET / 2)
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "union": (fits, {}),
        "importance": (fits, {"estimator": "importance"}),
        "duplicates": (fits, {"estimator": "duplicates"}),
        "per_table_mean": (fits, {"estimator": "per_table_mean"}),
        "per_table_sum": (fits, {"estimator": "per_table_sum"}),
        "union + moments": (fits, {"tail": "moments"}),
        "union + moments of 128 cells": (fits, {"tail": "moments", "n_cells": 128}),
        "union + uniform": (half, {"tail": "uniform", "n_samples": max(2, share // 2)}),
        "union + heavy": (half, {"n_heavy": share // 2}),
        "union + heavy + moments": (half, {"n_heavy": share // 2, "tail": "moments"}),
        "lifted union + heavy": (
            partial(_lifted, half, key),
            {"n_heavy": share // 2},
        ),
    }
    for name, (hash, options) in ways.items():
        hash = hash() if callable(hash) else hash
        one = SketchAttention(hash, **options)
        one.update(key, value)
        output, evidence = one.attention_output(query, return_evidence=True)
        scored = float(evidence.candidates.mean()) + options.get("n_samples", 0)
        bits = getattr(hash, "hash", hash).n_projections
        yield name, output, {"share": scored / n, "bits": bits}
    sample = np.random.default_rng(5).choice(n, share, replace=False)
    yield "uniform alone", attention(query, key[sample], value[sample]), {"share": share / n}
    yield "moments alone", moments_alone(given)[0], {"share": 0.0}
    if importlib.util.find_spec("torch"):
        placed = [move(x, "torch") for x in given]
        output = sketch_peers.random_features(*placed, n_features=1024)[0]
        yield "FAVOR+ 1024", output, {"share": 0.0}


def moments_alone(given: Inputs, n_cells: int = 1) -> np.ndarray:
    """Return what the closed form says, with no key scored."""
    scale = 1 / math.sqrt(given.key.shape[-1])
    return np.stack(
        [Moments.fit(k, v, n_cells).tail(q, scale)[1] for q, k, v in zip(*given, strict=True)]
    )


def _best(query, key, value, share):
    """Return attention to the keys of largest weight."""
    out = np.empty((len(query), value.shape[1]))
    scores = query.astype(np.float64) @ key.T.astype(np.float64) / math.sqrt(key.shape[1])
    for i, row in enumerate(scores):
        rows = np.argpartition(-row, share - 1)[:share]
        weights = np.exp(row[rows] - row[rows].max())
        out[i] = weights @ value[rows] / weights.sum()
    return out


def _bits(query, key, budget):
    """Return the SimHash whose tables return about a share `budget` of the keys."""
    some, asked = key[:: max(1, len(key) // 2048)], query[:: max(1, len(query) // 64)]
    best, found = math.inf, None
    for bits in range(1, 26):
        hash = SimHash.init(2, key.shape[1], TABLES, bits).to(dtype="float32")
        share = float(hash.retrieval_probability(asked[:, None], some[None]).mean())
        distance = abs(math.log(share / budget))
        if distance < best:
            best, found = distance, hash
    return found


def _lifted(hash, key):
    lifted = SimHash.init(2, key.shape[1] + 1, hash.n_tables, hash.n_projections)
    longest = float(np.linalg.norm(key, axis=1).max())
    return LiftedHash(lifted.to(dtype="float32"), longest)
