"""What several probes a table save, and what each hash of angles leaves to score."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.hashing import CrossPolytopeHash, SimHash, plan
from benchmarks import search_rivals
from benchmarks.search_planted import (
    DISTANCE,
    LOST_N,
    QUICK_N,
    N,
    asking,
    planted,
    timed,
)
from benchmarks.search_rivals import BATCH

MOST_CANDIDATES = 10.0
ANGLE = 0.5


def probes(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how many tables are needed by how many buckets are looked into."""
    data = planted(QUICK_N if quick else N, 64 if quick else BATCH)
    n = len(data.key)
    rivals = []
    for n_probes in (1, 2) if quick else (1, 2, 4, 8, 16, 32):
        for n_tables in range(1, 9):
            tried = [
                plan(n, 0.01, DISTANCE, n_tables, K, n_probes, sample=data.key[:64])
                for K in (8, 12, 16, 20, 24)
            ]
            made = min(tried, key=lambda p: p.predicted.n_candidates)  # type: ignore[union-attr]
            if made.predicted.n_candidates <= MOST_CANDIDATES:  # type: ignore[union-attr]
                break
        rivals.append((made, search_rivals.sketch(data.key, made)))
    asks = {
        (i, mode): asking(one, data.test[0], mode)
        for i, (_, one) in enumerate(rivals)
        for mode in ("single", "batch")
    }
    times = timed(asks, quick=quick)
    rows = []
    for i, (made, one) in enumerate(rivals):
        row = {
            **{"n_probes": made.n_probes, "n_tables": made.n_tables},
            **{"n_projections": made.n_projections, "width": made.width, "n": n},
            "predicted": made.predicted.n_candidates,  # type: ignore[union-attr]
            "recall": one.recall(*data.test),
            "per_query": times[i, "batch"]["per_query"],
            "per_single_query": times[i, "single"]["per_query"],
            "build_seconds": search_rivals.build_seconds(one),
        }
        rows.append(row | one.facts(one.built(), data.test[0]))
        log(f"probes: {row['n_probes']}: {row['n_tables']} tables, recall {row['recall']:.4f}")
    return rows


def hashes(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how many keys are left to score by each hash of angles, at one recall."""
    n, batch, d = (QUICK_N, 64, 64) if quick else (LOST_N, 1024, 64)
    rows = []
    for draw in range(1 if quick else 2):
        rows += _hashes(n, batch, d, draw, quick=quick, log=log)
    return rows


def _hashes(n, batch, d, draw, *, quick, log):
    rng = np.random.default_rng(1 + draw)
    key = rng.standard_normal((n, d))
    key /= np.linalg.norm(key, axis=1, keepdims=True)
    row = rng.integers(n, size=batch)
    away = rng.standard_normal((batch, d))
    away -= (away * key[row]).sum(1, keepdims=True) * key[row]
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    query = math.cos(ANGLE) * key[row] + math.sin(ANGLE) * away
    key, query = key.astype(np.float32), query.astype(np.float32)
    rows = []
    sizes: dict[type, tuple[int, ...]] = {SimHash: (8, 12, 16), CrossPolytopeHash: (1, 2, 3)}
    for kind, counts in sizes.items():
        p = kind.collision_probability(ANGLE, *((d,) if kind is CrossPolytopeHash else ()))
        for K in counts[:2] if quick else counts:
            n_tables = math.ceil(math.log(0.01) / math.log1p(-(p**K)))
            hash = kind.init(draw, d, n_tables, K).to(dtype="float32")
            one = search_rivals.of_hash(key, hash, settings=f"tables {n_tables}, κ {K}")
            one.kept["times"] = 1
            times = timed({0: asking(one, query, "batch")}, quick=quick)[0]
            named = {"hash": kind.__name__, "draw": draw, "n_tables": n_tables, "n_projections": K}
            named["n"] = n
            rows.append(named | times | {"recall": one.recall(query, row)})
            rows[-1] |= one.facts(one.built(), query)
            log(f"hashes: {rows[-1]}")
    return rows
