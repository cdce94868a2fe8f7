"""A million vectors: one near neighbour among many far ones, and how times grow with their number.

The tables `million`, the plans of one promise beside exact attention and faiss; and `growth`.
"""

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnbook import move
from benchmarks import harness, inputs, sketch_inputs, sketch_rows
from benchmarks.sketch_searchers import (
    BATCH,
    DELTA,
    DISTANCE,
    SCALE,
    SDPA,
    SKETCH,
    TABLES,
    Searcher,
    exact,
    faiss_indexes,
    sketches,
)

N, QUICK_N = 1_000_000, 20_000
PROJECTIONS = (1, 4, 8, 16)
QUICK_BATCH = 256
CHECKED = 64  # queries whose output is compared with float64
BUILDS, QUICK_BUILDS, ROUNDS = 3, 1, 3
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 4_000_000)
QUICK_SIZES = (2_000, 5_000, 20_000)
GROWTH_PROJECTIONS = (8, 16)
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # Student's t, 1 … 8 degrees

METHODS = {
    "million": (
        f"n standard normal keys of width {sketch_inputs.WIDTH}; each query lies at distance "
        f"{DISTANCE} from one of them and at about 11.3 from the rest; plans for δ = {DELTA} and "
        f"{TABLES} tables. Values are the keys and the scale is {SCALE}, so exact attention "
        "returns the neighbour. `recall`: share of the queries whose neighbour is in one of their "
        "buckets, or is what faiss returns, which finds one neighbour and no output; "
        "`recall_over_draws` is the mean over other draws of the tables, with its standard error. "
        "`candidates`: mean number of different keys scored for a query; `predicted` by the plan "
        "from 512 keys, the neighbour added. `build_seconds`: the whole of `update` on an empty "
        "sketch, or of train and add; `build_bytes`: how far the resident set rises in it; "
        "`held_bytes`: how far it falls when what was built is released, the keys only if they "
        "were copied; `index_bytes`: what the sketch says. `mode` single: one query a call, "
        "another one each time. `break_even`: queries in batches from which on building and "
        "asking takes less time than exact attention."
    ),
    "growth": (
        "Batches as in million, for each n. `fits`: least squares of log seconds on log n; "
        "`exponent` with the half-width of its 95 % interval (Student's t)."
    ),
}


def million(device: str, *, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each plan and peer, in batches and one query at a time."""
    n, batch = (QUICK_N, QUICK_BATCH) if quick else (N, BATCH)
    key, query, neighbour = sketch_inputs.planted(0, n, batch)
    one_head = sketch_inputs.Inputs(query[None], key[None], key[None])
    checked = min(CHECKED, batch)
    reference = sketch_inputs.exact(one_head, np.arange(checked), SCALE)[0]
    searchers = [*sketches(device, key, PROJECTIONS), *exact(device, key)]
    if device == "cpu":
        searchers += faiss_indexes(key, query, neighbour, quick=quick)
    ready, found = [], []
    for searcher in searchers:
        try:
            built, facts = prepare(searcher, device, query, neighbour, quick=quick)
        except Exception as error:  # not installed, or no memory
            found.append({**searcher.about, "n": n, "reason": harness.reason(error)})
            log(f"million: {found[-1]}")
            continue
        log(f"million: {named(searcher.about)}: {_seen(facts)}")
        ready.append((searcher, built, facts))
    for mode in ("batch", "single"):
        candidates = []
        for searcher, built, _ in ready:
            size = min(searcher.batch, batch) if mode == "batch" else 1
            run = _asking(searcher, built, query[: max(size, checked)], mode, size)
            compare = partial(_errors, reference) if searcher.has_output else lambda _: {}
            about = searcher.about | {"mode": mode, "queries": size}
            candidates.append(harness.Candidate(about, run, compare))
        rows = sketch_rows.rows(
            candidates,
            device,
            about={"n": n, "dtype": "float32"},
            baseline={"implementation": SDPA},
            quick=quick,
            rounds=None if quick else ROUNDS,
        )
        for row, (_, _, facts) in zip(rows, ready, strict=True):
            row |= facts
            log(f"million: n = {n}, {mode}: {named(row)} {_time(row)}")
        found += rows
    _break_even(found)
    return found


def prepare(
    searcher: Searcher, device: str, query: np.ndarray, neighbour: np.ndarray, *, quick: bool
) -> tuple[Any, dict[str, Any]]:
    """Return what `searcher` builds, with time and memory of that, candidates and recall."""
    if not searcher.shared:
        searcher.shared |= _build(searcher, device, quick=quick)
    built, facts = searcher.shared["built"], dict(searcher.shared["facts"])
    size = min(searcher.batch, len(query))
    facts |= searcher.look(built, query[: min(size, 1024)])
    if searcher.recall is not None:
        facts["recall"] = searcher.recall(built, query, neighbour)
    if searcher.other_recall is not None:
        facts |= searcher.other_recall(query, neighbour)
    return built, facts


def _build(searcher, device, *, quick):
    times = searcher.builds or (QUICK_BUILDS if quick else BUILDS)
    synchronize = harness.synchronizer(device)
    made: list[Any] = []
    seconds = []

    def build():
        made.append(searcher.build())

    rise = None
    if times > 1 or quick:  # the first build compiles, so it is not timed but measured
        rise = sketch_rows.resident_rise(build)
        held = sketch_rows.resident_fall(made.clear)
    for _ in range(times):
        made.clear()
        gc.collect()
        seconds.append(harness.seconds_of(build, synchronize))
    built = made.pop()
    if rise is None:
        held = None
    on_gpu = device != "cpu"  # whose memory the resident set does not show
    return {
        "built": built,
        "facts": {
            "build_seconds": harness.spread(seconds),
            "build_bytes": None if on_gpu else rise,
            "held_bytes": None if on_gpu else held,
        },
    }


def _asking(searcher, built, query, mode, size):
    """Return the function to time."""
    library = searcher.about["library"]
    device = built.device if library == "torch" else None
    placed = move(query, "numpy" if library == "faiss" else library, device=device)
    if mode == "batch":
        return partial(searcher.ask, built, placed[:size])
    # another query each call, or its keys would wait in the cache
    each = itertools.cycle([placed[i : i + 1] for i in range(len(query))])
    return lambda: searcher.ask(built, next(each))


def _errors(reference, output):
    n = min(len(reference), output.shape[0])
    return inputs.errors(output[:n], reference[:n])


def _break_even(rows):
    batched = [row for row in rows if row.get("mode") == "batch" and row["per_query"]]
    for row in batched:
        for other in batched:
            if row["implementation"] == SKETCH and other["implementation"] == SDPA:
                gain = other["per_query"] - row["per_query"]
                build = row["build_seconds"]["median"]
                row["break_even"] = math.ceil(build / gain) if gain > 0 else None


# Growth


def growth(device: str, *, quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Return a row for each n and plan, and how time grows with n."""
    rows: list[dict[str, Any]] = []
    for n in QUICK_SIZES if quick else SIZES:
        key, query, neighbour = sketch_inputs.planted(n, n, QUICK_BATCH if quick else BATCH)
        searchers = [*sketches(device, key, GROWTH_PROJECTIONS)]
        searchers += [one for one in exact(device, key) if one.about["implementation"] == SDPA]
        candidates, known = [], []
        for searcher in searchers:
            built, facts = prepare(searcher, device, query, neighbour, quick=quick)
            size = min(searcher.batch, len(query)) if searcher.recall else QUICK_BATCH
            run = _asking(searcher, built, query[:size], "batch", size)
            about = searcher.about | {"mode": "batch", "queries": size}
            candidates.append(harness.Candidate(about, run, lambda _: {}))
            known.append(facts)
        found = sketch_rows.rows(
            candidates,
            device,
            about={"n": n, "dtype": "float32"},
            baseline={"implementation": SDPA},
            quick=quick,
            rounds=None if quick else ROUNDS,
        )
        for row, facts in zip(found, known, strict=True):
            row |= facts
            log(f"growth: n = {n}: {named(row)}: {_seen(row)}; {_time(row)}")
        rows += found
    fits = []
    for name, K in [(SKETCH, K) for K in GROWTH_PROJECTIONS] + [(SDPA, None)]:
        own = [r for r in rows if r["implementation"] == name and r.get("K") == K and r["seconds"]]
        for what in ("query", "build") if name == SKETCH else ("query",):
            times = [r["per_query"] if what == "query" else _build_time(r) for r in own]
            if len(own) > 2:
                about = {"of": what, "implementation": name, "K": K}
                fits.append(about | fit([row["n"] for row in own], times))
                log(f"growth: {fits[-1]}")
    return {"rows": rows, "fits": fits}


def fit(sizes: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Return the exponent of growth with n, and the half-width of its 95 % interval."""
    x, y = np.log(sizes) - np.mean(np.log(sizes)), np.log(times) - np.mean(np.log(times))
    exponent = (x * y).sum() / (x * x).sum()
    free = len(x) - 2
    error = np.sqrt(((y - exponent * x) ** 2).sum() / free / (x * x).sum())
    return {"exponent": float(exponent), "half_width": float(T_975[free - 1] * error)}


# Lines of the log


def named(about: dict[str, Any]) -> str:
    """Return what tells a row from the others."""
    names = ("implementation", "impl", "library", "K", "nprobe")
    return " ".join(
        f"{name} {about[name]}" if name in ("K", "nprobe") else str(about[name])
        for name in names
        if about.get(name) is not None
    )


def _build_time(row):
    return row["build_seconds"]["median"]


def _seen(row):
    names = ("recall", "candidates", "predicted", "held_bytes", "build_bytes", "index_bytes")
    seen = [f"{name} {row[name]:.4g}" for name in names if row.get(name) is not None]
    return ", ".join([f"built in {_build_time(row):.3g} s", *seen])


def _time(row):
    if row["per_query"] is None:
        return f"did not run: {row.get('reason')}"
    ratio = "" if not row["ratio"] else f", {1 / row['ratio']:.3g} × SDPA's speed"
    error = "" if row["relative"] is None else f", error {row['relative']:.3g}"
    return f"{row['per_query'] * 1e6:.4g} µs a query{ratio}{error}"
