"""Microseconds of one query over a cache: exact kernels, faiss and the sketch, one head each.

Table `speed`. Keys and values are those of a head of the long writer over windows of the test
plays, one window after the other; the queries are those of the last window.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.kernels import attention
from attnbook.sketch import SimHash, SketchAttention
from benchmarks import harness, real_keys
from benchmarks.tables import Tables

DEVICES = ("cpu",)
MODEL, N, LAYER = "long_writer", 4096, 3
WINDOWS, QUICK_WINDOWS = (1, 10), (1,)
PACE = harness.Pace(7, 0.02)
METHODS = {
    "speed": (
        "One query of one head a call, another query each time, float32, one thread. `micro`: "
        "microseconds, the median of rounds; `speed`: how many times as fast as the fastest exact "
        "kernel of that length. `error`: of the outputs of 64 queries. faiss finds the 64 keys of "
        "largest product and computes no output; its share of those that exact search finds is "
        "`recall`."
    )
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure each length; nothing here runs on another device."""
    tables.add(methods=METHODS)
    sizes = QUICK_WINDOWS if quick else WINDOWS
    name, n = ("writer", 256) if quick else (MODEL, N)
    parts = [real_keys.layers(n, part="test", name=name, i=i)[LAYER] for i in range(max(sizes))]
    tables.whole("speed", lambda: [row for size in sizes for row in rows(parts[-size:])])


def rows(parts: list[real_keys.Heads]) -> list[dict[str, Any]]:
    """Return a row for each implementation, over the keys of some windows."""
    import faiss

    faiss.omp_set_num_threads(1)
    key, value = (np.concatenate([x[i][0] for x in parts]) for i in (1, 2))
    asking, n = parts[-1].query[0, -64:], len(key)
    scores = asking @ key.T
    best = np.argsort(-scores, axis=1)[:, :64]
    weights = np.exp((scores - scores.max(axis=1, keepdims=True)) / np.sqrt(key.shape[1]))
    exact = weights @ value / weights.sum(axis=1, keepdims=True)
    runs: dict[str, Callable[[np.ndarray], Any]] = {}
    for kernel in ("in_place", "packed"):
        runs[kernel] = lambda q, kernel=kernel: attention(
            kernel, q, key, value, None, None, key.shape[1] ** -0.5, False
        )
    for tables, bits in ((64, 12), (64, 14)):
        hash = SimHash.init(0, key.shape[1], tables, bits).to(dtype="float32")
        sketch = SketchAttention(hash, estimator="importance", impl="numba")
        sketch.update(key - key.mean(axis=0), value)
        runs[f"sketch, {tables} tables of {bits} bits"] = sketch.attention_output
    lists = max(n // 64, 1)
    inner = faiss.METRIC_INNER_PRODUCT
    flat = faiss.IndexFlatIP(key.shape[1])
    inverted = faiss.IndexIVFFlat(flat, key.shape[1], lists, inner)
    inverted.train(key)
    inverted.nprobe = 8
    graph = faiss.IndexHNSWFlat(key.shape[1], 16, inner)
    graph.hnsw.efSearch = 128
    found = {"faiss IVF, nprobe 8": inverted, "faiss HNSW, efSearch 128": graph}
    for name, index in found.items():
        index.add(key)
        runs[name] = lambda q, index=index: index.search(q, 64)[1]
    each = {name: itertools.cycle([asking[i : i + 1] for i in range(64)]) for name in runs}
    calls = {name: (lambda name=name: runs[name](next(each[name]))) for name in runs}
    timed = harness.interleave(calls, pace=PACE)
    micro = {name: 1e6 * float(np.median(samples)) for name, (_, samples) in timed.items()}
    fastest = min(micro["in_place"], micro["packed"])
    result = []
    for name, run in runs.items():
        answers = run(asking)
        row = {"implementation": name, "n": n, "micro": micro[name], "error": None, "recall": None}
        if name in found:
            hits = [len(set(a) & set(b)) / 64 for a, b in zip(answers, best, strict=True)]
            row["recall"] = float(np.mean(hits))
        else:
            row["error"] = float(np.linalg.norm(answers - exact) / np.linalg.norm(exact))
        result.append(row | {"speed": fastest / micro[name]})
        harness.log(f"  {result[-1]}")
    return result
