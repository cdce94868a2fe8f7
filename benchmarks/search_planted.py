"""A neighbour planted among normal keys, and how those who look for it are timed and told."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness, search_rivals
from benchmarks.search_rivals import EXACT_BATCH, FOLDER, RECALL, Rival

N, QUICK_N = 1_000_000, 2_000
WIDTH, DISTANCE = 64, 0.5
LOST_N, QUICK_LOST_N = 100_000, 1_000
NPROBES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
SINGLES = 256  # different queries that are asked one at a time


class Planted(NamedTuple):
    """Keys, and queries whose neighbour is known: to choose settings by, and to test."""

    key: np.ndarray
    chosen_by: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def planted(n: int, batch: int, *, ratio: float | None = None, seed: int = 0) -> Planted:
    """Return n standard normal keys, and queries at a distance of 0.5 from one of them each.

    All other keys are about sqrt(2 · 64) = 11.3 away; with `ratio`, that many times as far as the
    neighbour.
    """
    rng = np.random.default_rng(seed)
    key = rng.standard_normal((n, WIDTH), dtype=np.float32)
    row = rng.integers(n, size=2 * batch)
    away = rng.standard_normal((2 * batch, WIDTH), dtype=np.float32)
    distance = DISTANCE if ratio is None else math.sqrt(2 * WIDTH) / ratio
    query = key[row] + away * (distance / np.linalg.norm(away, axis=1, keepdims=True))
    return Planted(key, (query[:batch], row[:batch]), (query[batch:], row[batch:]))


def timed(
    asks: Mapping[Any, tuple[Callable[[], Any], int]],
    *,
    quick: bool,
    rounds: int = 3,
    device: str = "cpu",
) -> dict[Any, dict[str, Any]]:
    """Return `seconds` and `per_query` of calls that answer some queries each, side by side."""
    pace = harness.Pace(2 if quick else rounds, 0.005 if quick else 0.1, 0.3, 2, 0.02, 20.0)
    wait = harness.synchronizer(device)
    runs = {name: run for name, (run, _) in asks.items()}
    once = {name: harness.seconds_of(run, wait) for name, run in runs.items()}
    found = harness.interleave(runs, pace=pace, synchronize=wait, once=once)
    return {
        name: {
            "queries": asks[name][1],
            "seconds": harness.spread(samples),
            "per_query": float(np.median(samples)) / asks[name][1],
        }
        for name, (_, samples) in found.items()
    }


def asking(rival: Rival, query: np.ndarray, mode: str) -> tuple[Callable[[], Any], int]:
    """Return the call to time, and how many queries it answers."""
    built, query = rival.built(), rival.place(query)
    if mode == "batch":
        size = min(rival.batch, len(query))
        return partial(rival.ask, built, query[:size]), size
    each = [query[i : i + 1] for i in range(min(SINGLES, len(query)))]
    if rival.batch <= EXACT_BATCH:
        each = each[:4]  # they take milliseconds

    def run():
        for one in each:
            rival.ask(built, one)
            rival.synchronize()  # it waits for one answer before it asks again

    return run, len(each)


Walk = tuple[Callable[[Any], Rival], Sequence[Any]]  # a maker, and settings by growing recall


def quickly(asks: Mapping[Any, tuple[Callable[[], Any], int]]) -> dict[Any, dict[str, Any]]:
    """Return what `timed` does, in a few short rounds."""
    return timed(asks, quick=True)


def chosen(
    file: str,
    grid: Mapping[str, Sequence[Walk]],
    known: tuple[np.ndarray, np.ndarray],
    query: np.ndarray,
    modes: Sequence[str],
    *,
    batch: int,
    quick: bool,
    times_of: Callable[[Any], Any] = quickly,
) -> dict[str, dict[str, tuple[Rival, float]]]:
    """Return for each mode and method the fastest of its settings that is enough, and its recall.

    The recalls are those of the queries in `known`, the times those of `query`. Of each walk the
    first setting with recall ≥ 0.99 is timed; if no walk has one, that of the largest recall. The
    recalls, which need no quiet machine, are kept in a file.
    """
    path = FOLDER / f"{file}.json"
    kept = json.loads(path.read_text()) if path.exists() and not quick else {}
    found: dict[str, dict[str, tuple[Rival, float]]] = {mode: {} for mode in modes}
    for name, walks in grid.items():
        if name not in kept:
            kept[name] = []
            for w, (make, settings) in enumerate(walks):
                for i in range(len(settings)):
                    recall = make(settings[i]).recall(*known)
                    if recall >= RECALL:
                        break
                kept[name].append((w, i, recall))
            if not quick:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(kept))
        least = min(RECALL, max(recall for *_, recall in kept[name]))
        tried = [
            (walks[w][0](walks[w][1][i]), recall) for w, i, recall in kept[name] if recall >= least
        ]
        for one, _ in tried:
            one.batch = batch
        for mode in modes:
            best = 0
            if len(tried) > 1:
                times = times_of({j: asking(one, query, mode) for j, (one, _) in enumerate(tried)})
                best = min(times, key=lambda j: times[j]["per_query"])
            found[mode][name] = tried[best]
    return found


def about(rival):
    return {
        "implementation": rival.implementation,
        "settings": rival.settings,
        "build_seconds": search_rivals.build_seconds(rival),
    }


def few(pair):
    return pair[0][:512], pair[1][:512]


def told(row):
    candidates = f", {row['candidates']:.4g} candidates" if row.get("candidates") else ""
    return (
        f"{row['implementation']} ({row['settings']}), {row.get('mode', 'batch')}: "
        f"{row['per_query'] * 1e6:.4g} µs a query, {row['speed']:.3g} × as fast, "
        f"recall {row['recall']:.4f}{candidates}, built in {row['build_seconds']['median']:.3g} s"
    )
