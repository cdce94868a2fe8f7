"""The sketch on a GPU: a million keys, built and asked, beside exact attention by PyTorch there."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attnbook.hashing import plan
from attnbook.sketch import cuda_graph
from benchmarks import inputs, search_planted, search_rivals
from benchmarks.search_planted import DISTANCE, about, asking, planted, timed, told
from benchmarks.search_rivals import BATCH, SKETCH
from benchmarks.tables import Step

PLANS = ((0.01, None), (0.007, None), (0.01, 16))  # δ, and projections, else the planner's
BUILDS, QUICK_BUILDS = 7, 2
GRAPH = f"{SKETCH}, CUDA graph"


def by_graph(rival: search_rivals.Rival) -> search_rivals.Rival:
    """Return the sketch of a rival, asked one query at a time by a CUDA graph captured once."""
    graph = functools.cache(cuda_graph.QueryGraph)
    return replace(rival, implementation=GRAPH, ask=lambda sketch, query: graph(sketch).ask(query))


def million(*, quick: bool, log: Callable[[str], None], device: str = "cuda") -> list[Step]:
    """Return the steps of batches, of single queries, and of single queries by a CUDA graph.

    They are asked of the sketch by several plans, and of exact attention by PyTorch. The kernels
    look into one bucket a table. Queries lie on the GPU before the clock starts.
    """
    ready = functools.cache(partial(_rivals, quick, device))

    def rows(mode: str, graphs: bool = False) -> list[dict[str, Any]]:
        data, exact, sketches = ready()
        query, neighbour = data.test
        rivals = [by_graph(one) for one in sketches] if graphs else [*exact, *sketches]
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

    found = [Step({"mode": mode}, 1, partial(rows, mode)) for mode in ("batch", "single")]
    if device != "cpu":
        graph = {"mode": "single", "implementation": GRAPH}
        found.append(Step(graph, 1, partial(rows, "single", graphs=True)))
    return found


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
