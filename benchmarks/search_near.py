"""Search on states of the writer and on harder toys: each method over a grid of settings.

Tables: `near_states`, the nearest of 10,240 and 40,960 states of the writer. `lost`, normal keys
whose far ones are not so far. `hashes` of angles.
"""

import itertools
import math
import os
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import attnbook as ab
from attnbook.data import plays
from attnbook.hashing import LearnedCells, SimHash, plan
from attnbook.models import writer
from benchmarks import search_hashes, search_planted, search_rivals
from benchmarks.harness import METHODS as HARNESS
from benchmarks.search_planted import (
    LOST_N,
    QUICK_LOST_N,
    Walk,
    about,
    asking,
    chosen,
    planted,
    quickly,
    timed,
    told,
)
from benchmarks.search_rivals import RECALL, SDPA, SKETCH
from benchmarks.tables import Step, Tables

DEVICES = ("cpu",)
SIZES, QUICK_SIZES = (10_240, 40_960), (512,)
DRAWS, QUICK_DRAWS = (0, 1), (0,)
LAYERS, WIDTH, WINDOW = 3, 192, 256
FIRST, EVERY = 16, 2  # queries are every second place of a window, after some text
WINDOWS, QUICK_WINDOWS = 16, 2  # of each of the two texts of queries
NEAR = 0.5  # the angle of a key that is to be found, in radians
BATCH = 512
MODES, THREADS = ("single", "batch"), (1, 2)
SCALE = 1e3  # the nearest state holds nearly the whole softmax

NPROBES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192)
REACHES = (
    *(1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80),
    *(96, 128, 192, 256, 384, 512, 1024),
)
PROBES = (1, 2, 4, 8, 16, 32)
SIGNS = ((10, 14, 18), (4, 10, 30))  # κ, and L
STABLE = ((10, 16), (4, 10, 30), (1, 4, 16), (0.5, 0.2, 0.05))  # κ, L, buckets, and δ of the plan
CELLS = (0.5, 1, 2, 4)  # how many times √n
GRAPHS = ((8, 40), (16, 80), (32, 80))  # links, and effort of the build
CODES = ((1,), (24, 48), (4, 16, 64))  # lists as times √n, bytes a key, and how many scored again
LISTS, RATIOS = (128, 256, 512, 1024), (2.0, 3.0, 4.0, 8.0, 22.6)  # of `lost`, from here on
TABLES, DELTAS, QUERIES = (4, 8, 16, 32, 64, 128), (0.05, 0.01, 0.003), 512
CHAPTER = (15, 60)  # κ and L that the chapter plans for 10,240 states

METHODS = {name: HARNESS[name] for name in ("seconds", "reason")} | {
    "per_query": "The median of `seconds`, divided by the number of queries of the call.",
    "speed": "lost: times as fast as exact attention by PyTorch. near_states: as faiss flat.",
    "near_states": (
        f"Keys are states of the writer after {LAYERS} layers at n places of the training plays, "
        "without their mean and of length 1; draw 0 and 1 are of different plays, and draw what is "
        "random anew. Queries are such states of the validation plays, which choose the settings, "
        "and of the test plays, which give times and `recall`: the share of those with a key "
        f"within {NEAR} rad whose nearest key is found. A method has the setting of its grid that "
        f"is fastest on validation queries with recall ≥ {RECALL} there, for each mode, with one "
        "thread; `tried` is the size of the grid. `single`: one query "
        f"a call; `batch`: {BATCH}. Times are over all queries. Our tables score all candidates "
        "and mix their values, by compiled loops; their recall is whether the nearest key is a "
        "candidate. " + search_rivals.SIMPLIFIED
    ),
    "lost": (
        "Normal keys; two of them are `ratio` times as far apart as a query and its neighbour. "
        f"Each method has the setting of its grid that is fastest with recall ≥ {RECALL} on "
        "validation queries, or that of the largest recall, in batches of 64. "
        + search_rivals.SIMPLIFIED
    ),
    "hashes": (
        "Unit vectors of width 64, a neighbour at 0.5 rad. For each hash and κ the tables that "
        "the collision probability asks for, for recall 0.99. All hashes are compiled."
    ),
}


class States(NamedTuple):
    """Keys, and queries with the number of the nearest key: to choose by, and to test."""

    key: np.ndarray
    chosen_by: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    is_near: tuple[np.ndarray, np.ndarray]  # which of these queries have a key within NEAR

    def near(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries that have a near key, with its number."""
        query, row = (self.chosen_by, self.test)[part]
        return query[self.is_near[part]], row[self.is_near[part]]


@cache
def states(n: int, draw: int, *, windows: int = WINDOWS) -> States:
    """Return n states of the writer on training plays, and queries from other plays."""
    text = plays()
    start = (1 + 10 * draw) * 200_000
    key = _states(text.train[start : start + 4 * n], n)
    centre = key.mean(axis=0)
    key = _unit(key - centre)
    parts, near = [], []
    for other in (text.validation, text.test):
        start = draw * len(other) // 2
        found = _states(other[start : start + 4 * windows * WINDOW], windows * WINDOW)
        found = found.reshape(windows, WINDOW, WIDTH)[:, FIRST::EVERY].reshape(-1, WIDTH)
        query = np.random.default_rng(draw).permutation(_unit(found - centre))
        products = [part @ key.T for part in np.array_split(query, 1 + len(query) // 128)]
        parts.append((query, np.concatenate([x.argmax(axis=1) for x in products])))
        near.append(np.concatenate([x.max(axis=1) for x in products]) >= math.cos(NEAR))
    return States(key, *parts, tuple(near))


def _states(text: str, n: int) -> np.ndarray:
    """Return n states after the first layers, each window of tokens read alone."""
    weights = writer().weights
    layers = ab.DecoderWeights(weights.decoder.layers[:LAYERS], positions=weights.decoder.positions)
    ids = writer().tokenizer.encode(text)[:n].reshape(-1, WINDOW)
    causal = ab.masking.causal(WINDOW)
    found = [
        ab.decoder(x, None, layers, causal, rotate=True) for x in weights.target_embedding[ids]
    ]
    return np.concatenate(found)


def _unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def grids(key: np.ndarray, draw: int) -> dict[str, list[Walk]]:
    """Return the settings of each method, as walks through those of one build or alike."""
    n, root = len(key), math.sqrt(len(key))
    row = np.arange(n, dtype=np.float32)[:, None]

    def ours(name, hash, settings, n_probes):
        return search_rivals.of_hash(
            key, hash, n_probes, name=name, settings=settings, scale=SCALE, value=row
        )

    def signs(K, L, name="SimHash"):
        hash = SimHash.init(draw, WIDTH, L, K).to(dtype="float32")
        return lambda T: ours(name, hash, f"tables {L}, projections {K}, probes {T}", T)

    def stable(K, L, T):
        def of(delta):
            made = plan(n, delta, 2 * math.sin(NEAR / 2), L, K, T)
            hash = made.hash(draw, WIDTH).to(dtype="float32")
            settings = f"tables {L}, projections {K}, width {made.width:.2f}, probes {T}"
            return ours("p-stable", hash, settings, T)

        return of

    def cells(C, L):
        fit = cache(lambda: LearnedCells.fit(draw, key, C, L))

        def of(T):
            one = ours("learned cells", fit(), f"tables {L}, cells {C}, probes {T}", T)
            fill = one.build
            one.build = lambda: (LearnedCells.fit(draw, key, C, L), fill())[1]  # timed with it
            return one

        return of

    counts = [2 ** round(math.log2(part * root)) for part in CELLS]
    lists = [2 ** round(math.log2(part * root)) for part in (0.25, *CELLS)]
    found: dict[str, list[Walk]] = {
        "SimHash": [(signs(*size), PROBES) for size in itertools.product(*SIGNS)],
        "p-stable": [(stable(*size), STABLE[-1]) for size in itertools.product(*STABLE[:-1])],
        "learned cells": [
            *((cells(C, 1), NPROBES[:12]) for C in counts),
            *((cells(C, 2), NPROBES[:12]) for C in counts[:2]),
        ],
        "faiss flat": [(lambda _: search_rivals.flat(key), (None,))],
        "faiss IVF": [(search_rivals.inverted(key, C), NPROBES) for C in lists],
        "faiss HNSW": [(search_rivals.graph(key, *size), REACHES) for size in GRAPHS],
        "faiss IVFPQ + exact": [
            (partial(codes, again), NPROBES)
            for codes in (
                search_rivals.quantised(key, 2 ** round(math.log2(part * root)), n_bytes)
                for part, n_bytes in itertools.product(*CODES[:2])
            )
            for again in CODES[2]
        ],
    }
    if n == SIZES[0]:
        found["SimHash, as planned"] = [(signs(*CHAPTER, "SimHash, as planned"), (1,))]
    return found


@contextmanager
def threads(n: int):
    """Let our loops, faiss and BLAS use n threads."""
    import faiss
    import threadpoolctl

    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(n)
    faiss.omp_set_num_threads(n)
    try:
        with threadpoolctl.threadpool_limits(n):
            yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def near_states(n: int, draw: int, *, quick: bool, log: Callable[[str], None]) -> list[dict]:
    """Return a row of each method, mode and number of threads."""
    data = states(n, draw, windows=QUICK_WINDOWS if quick else WINDOWS)
    grid, query = grids(data.key, draw), data.chosen_by[0]
    tried = {name: sum(len(settings) for _, settings in walks) for name, walks in grid.items()}
    rows = []

    def by_one_thread(asks):
        with threads(1):
            return quickly(asks)

    found = chosen(
        f"near_{n}_{draw}", grid, data.near(0), query, MODES,
        batch=BATCH, quick=quick, times_of=by_one_thread,
    )  # fmt: skip
    for mode, count in itertools.product(MODES, THREADS):
        rivals = found[mode]
        for one, _ in rivals.values():
            one.built()
        with threads(count):
            asks = {name: asking(one, data.test[0], mode) for name, (one, _) in rivals.items()}
            times = timed(asks, quick=quick, rounds=5)
        for name, (one, recall) in rivals.items():
            row = {"n": n, "draw": draw, "mode": mode, "threads": count}
            row |= about(one) | {"implementation": name, "tried": tried[name]} | times[name]
            row["speed"] = times["faiss flat"]["per_query"] / row["per_query"]
            row |= {"recall": one.recall(*data.near(1)), "recall_validation": recall}
            row |= {"has_near": float(data.is_near[1].mean()), "candidates": None}
            rows.append(row | one.facts(one.built(), data.test[0]))
            log(f"near states: n = {n}, {count} threads, {told(rows[-1])}")
    return rows


def lost(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return times of batches where far keys are not so far."""
    rows = []
    n, lists = (QUICK_LOST_N, (16,)) if quick else (LOST_N, LISTS)
    for ratio, draw in itertools.product(RATIOS[:2] if quick else RATIOS, DRAWS[: 2 - quick]):
        data = planted(n, 64 if quick else QUERIES, ratio=ratio, seed=draw)
        distance = math.sqrt(2 * search_planted.WIDTH) / ratio

        def planned(L, key=data.key, distance=distance, draw=draw):
            def of(delta):
                made = plan(len(key), delta, distance, L, None, sample=key[:64])
                return search_rivals.sketch(key, made, seed=draw)

            return of

        grid: dict[str, list[Walk]] = {
            SKETCH: [(planned(L), DELTAS) for L in TABLES],
            "faiss IVF": [(search_rivals.inverted(data.key, C), (*NPROBES[:-1], C)) for C in lists],
            "faiss flat": [(lambda _, key=data.key: search_rivals.flat(key), (None,))],
            SDPA: [(lambda _, key=data.key: next(search_rivals.exact(key)), (None,))],
        }
        known, file = data.chosen_by, f"lost_{ratio}_{draw}"
        rivals = chosen(file, grid, known, known[0], ("batch",), batch=64, quick=quick)["batch"]
        asks = {name: asking(one, data.test[0], "batch") for name, (one, _) in rivals.items()}
        times = timed(asks, quick=quick)
        for name, (one, recall) in rivals.items():
            row = {"ratio": ratio, "draw": draw, "n": n} | about(one) | times[name]
            row["tried"] = sum(len(settings) for _, settings in grid[name])
            row["speed"] = times[SDPA]["per_query"] / row["per_query"]
            rows.append(row | {"recall": one.recall(*data.test), "recall_validation": recall})
            log(f"lost: far/near {ratio}: {told(rows[-1])}")
    return rows


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables."""
    tables.add(methods=METHODS)
    given: dict[str, Any] = {"quick": quick, "log": tables.log}
    sizes, draws = (QUICK_SIZES, QUICK_DRAWS) if quick else (SIZES, DRAWS)
    steps = [
        Step({"n": n, "draw": draw}, n, partial(near_states, n, draw, **given))
        for n in sizes
        for draw in draws
    ]
    tables.measure("near_states", steps)
    tables.whole("lost", partial(lost, **given))
    tables.whole("hashes", partial(search_hashes.hashes, **given))
