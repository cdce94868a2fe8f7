"""How search grows with the number of keys."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnbook.hashing import plan
from benchmarks import search_rivals
from benchmarks.search_planted import (
    DISTANCE,
    NPROBES,
    Planted,
    about,
    asking,
    few,
    planted,
    timed,
    told,
)
from benchmarks.search_rivals import BATCH, SDPA, SKETCH, Rival

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 4_000_000)
QUICK_SIZES = (500, 1_000, 2_000)
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # Student's t, 1 … 8 degrees


def growth(*, quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Return a row for each n and rival, and how time grows with n."""
    rows: list[dict[str, Any]] = []
    for n in QUICK_SIZES if quick else SIZES:
        data = planted(n, 64 if quick else BATCH, seed=n)
        chosen = plan(n, 0.01, DISTANCE, None, None, sample=data.key[:64])
        rivals = [search_rivals.sketch(data.key, chosen)]
        rivals[0].kept["times"] = 1 if n > 10**6 else 3
        rivals.append(next(search_rivals.exact(data.key)))
        rivals[1].batch = 64
        if n <= 300_000:
            maker = search_rivals.inverted(data.key, 2 ** round(math.log2(4 * math.sqrt(n))))
            rivals += [
                one for one, _ in search_rivals.tuned([(maker, NPROBES)], *few(data.chosen_by))
            ]
        rivals[0].built()
        rivals[0].ask(rivals[0].built(), data.test[0][:64])  # compiles
        for one, row in zip(rivals, compared(rivals, data, 1, quick=quick), strict=True):
            row |= {"n": n, "mode": "batch", "candidates": None, "index_bytes": None}
            rows.append(row | one.facts(one.built(), data.test[0]))
            log(f"growth: n = {n}: {told(rows[-1])}")
    fits = []
    for name in (SKETCH, SDPA, "faiss IVF"):
        own = [row for row in rows if row["implementation"] == name]
        for what in ("query", "build") if name != SDPA else ("query",):
            times_of = [
                r["per_query"] if what == "query" else r["build_seconds"]["median"] for r in own
            ]
            if len(own) > 2:
                found = fit([row["n"] for row in own], times_of)
                fits.append({"of": what, "implementation": name} | found)
    return {"rows": rows, "fits": fits}


def compared(
    rivals: list[Rival], data: Planted, baseline: int, *, quick: bool
) -> list[dict[str, Any]]:
    """Return a row for each rival in batches: times, speed beside the baseline, and recall."""
    asks = {i: asking(one, data.test[0], "batch") for i, one in enumerate(rivals)}
    times = timed(asks, quick=quick, rounds=2)
    base = times[baseline]["per_query"]
    rows = []
    for i, one in enumerate(rivals):
        rows.append(about(one) | times[i] | {"speed": base / times[i]["per_query"]})
        rows[-1]["recall"] = one.recall(*few(data.test))
    return rows


def fit(sizes: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Return the exponent of growth with n, and the half-width of its 95 % interval."""
    x, y = np.log(sizes) - np.mean(np.log(sizes)), np.log(times) - np.mean(np.log(times))
    exponent = (x * y).sum() / (x * x).sum()
    free = len(x) - 2
    error = np.sqrt(((y - exponent * x) ** 2).sum() / free / (x * x).sum())
    return {"exponent": float(exponent), "half_width": float(T_975[free - 1] * error)}
