"""The sketch on a GPU: a million keys, built and asked, beside exact attention by PyTorch there."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from attnbook.hashing import plan
from attnbook.sketch import cuda_graph
from benchmarks import inputs, search_planted, search_rivals
from benchmarks.search_planted import DISTANCE, about, asking, planted, timed, told
from benchmarks.search_rivals import BATCH, SDPA

PLANS = ((0.01, None), (0.007, None), (0.01, 16))  # δ, and projections, else the planner's
BUILDS, QUICK_BUILDS = 7, 2


def by_graph(rival: search_rivals.Rival) -> search_rivals.Rival:
    """Return the sketch of a rival, asked one query at a time by a CUDA graph captured once."""
    graph = functools.cache(cuda_graph.QueryGraph)
    name = f"{rival.implementation}, CUDA graph"
    return replace(rival, implementation=name, ask=lambda sketch, query: graph(sketch).ask(query))


def million(*, quick: bool, log: Callable[[str], None], device: str = "cuda") -> list[dict]:
    """Return rows of the sketch by several plans and of exact attention, single and in batches.

    The kernels look into one bucket a table. Queries lie on the GPU before the clock starts.
    """
    data = planted(search_planted.QUICK_N if quick else search_planted.N, 64 if quick else BATCH)
    query, neighbour = data.test
    rivals: list[search_rivals.Rival] = []
    here = inputs.libraries(device)
    if "torch" in here:
        rivals += search_rivals.exact(data.key, device)
    for delta, K in PLANS if "cupy" in here or device == "cpu" else ():
        made = plan(len(data.key), delta, DISTANCE, None, K, 1, sample=data.key[:64])
        rivals.append(search_rivals.sketch(data.key, made, device=device))
        rivals[-1].built()  # compiles the kernels
        rivals[-1].kept = {"times": QUICK_BUILDS if quick else BUILDS}
    sketches = [rival for rival in rivals if rival.implementation == search_rivals.SKETCH]
    graphs = [by_graph(rival) for rival in sketches if device != "cpu"]
    asks = {
        (mode, i): asking(one, query, mode)
        for mode, asked in (("batch", rivals), ("single", rivals + graphs))
        for i, one in enumerate(asked)
    }
    rivals += graphs
    times = timed(asks, quick=quick, rounds=7, device=device)
    by_sdpa = ("batch", 0) if rivals and rivals[0].implementation == SDPA else None
    base = times[by_sdpa]["per_query"] if by_sdpa else None
    rows = []
    for (mode, i), time in times.items():
        rival = rivals[i]
        row = about(rival) | {"mode": mode, "n": len(data.key), **time}
        row["speed"] = base / row["per_query"] if base else math.nan
        row |= {"recall": rival.recall(query, neighbour), "candidates": None, "index_bytes": None}
        row |= rival.facts(rival.built(), query)
        rows.append(row)
        log(f"million: {told(row)}")
    return rows
