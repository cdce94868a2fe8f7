"""The sketch on a GPU: a million keys, built and asked, beside exact attention by PyTorch there."""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from attnbook.hashing import plan
from benchmarks import inputs, search_planted, search_rivals
from benchmarks.search_planted import DISTANCE, about, asking, planted, timed, told
from benchmarks.search_rivals import BATCH
from benchmarks.tables import Step

PLANS = ((0.01, None), (0.007, None), (0.01, 16))  # δ, and projections, else the planner's
BUILDS, QUICK_BUILDS = 7, 2


def million(*, quick: bool, log: Callable[[str], None], device: str = "cuda") -> list[Step]:
    """Return the steps of batches and of single queries.

    They are asked of the sketch by several plans, and of exact attention by PyTorch. The kernels
    look into one bucket a table. Queries lie on the GPU before the clock starts.
    """
    ready = functools.cache(partial(_rivals, quick, device))

    def rows(mode: str) -> list[dict[str, Any]]:
        data, exact, sketches = ready()
        query, neighbour = data.test
        rivals = [*exact, *sketches]
        asks = {(mode, i): asking(one, query, mode) for i, one in enumerate(rivals)}
        if exact:  # PyTorch's own function, in a batch
            asks.setdefault(("batch", 0), asking(exact[0], query, "batch"))
        times = timed(asks, quick=quick, rounds=7, device=device)
        base = times["batch", 0]["per_query"] if exact else math.nan
        found = []
        for i, rival in enumerate(rivals):
            row = about(rival) | {"mode": mode, "n": len(data.key), **times[mode, i]}
            row["speed"] = base / row["per_query"]
            row |= {"recall": rival.recall(query, neighbour), "candidates": None}
            row |= {"index_bytes": None} | rival.facts(rival.built(), query)
            found.append(row)
            log(f"million: {told(row)}")
        return found

    return [Step({"mode": mode}, 1, partial(rows, mode)) for mode in ("batch", "single")]


def _rivals(
    quick: bool, device: str
) -> tuple[search_planted.Planted, list[search_rivals.Rival], list[search_rivals.Rival]]:
    """Return keys and queries, exact attention, and sketches, which are built."""
    data = planted(search_planted.QUICK_N if quick else search_planted.N, 64 if quick else BATCH)
    here = inputs.libraries(device)
    exact = list(search_rivals.exact(data.key, device)) if "torch" in here else []
    sketches = []
    for delta, K in PLANS if "cupy" in here or device == "cpu" else ():
        made = plan(len(data.key), delta, DISTANCE, None, K, 1, sample=data.key[:64])
        sketches.append(search_rivals.sketch(data.key, made, device=device))
        sketches[-1].built()  # compiles the kernels
        sketches[-1].kept = {"times": QUICK_BUILDS if quick else BUILDS}
    return data, exact, sketches
