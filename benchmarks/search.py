"""Search: one near key among a million, by the sketch and by its rivals, each at its best setting.

Tables: `million`, single queries and batches at recall 0.99, and `tuning`, the settings tried on
validation queries. `growth` with n. `far_near` and `lost`, where hashing does not pay. `probes`,
how many tables several buckets in each save. `hashes` of angles. `real_keys` of trained models.
`robin_hood`, its tables by load.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbook.hashing import CrossPolytopeHash, LiftedHash, Plan, SimHash, plan
from benchmarks import harness, search_far_near, search_maps, search_rivals, sketch_inputs
from benchmarks.search_rivals import BATCH, EXACT_BATCH, RECALL, SDPA, SKETCH, Rival
from benchmarks.tables import Tables

DEVICES = ("cpu",)
N, QUICK_N = 1_000_000, 2_000
DISTANCE, DELTAS = 0.5, (0.01, 0.007)
LISTS, QUICK_LISTS = (1024, 2048, 4096), (16,)
NPROBES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
REACHES = (64, 256, 1024, 4096)
SINGLES = 256  # different queries that are asked one at a time
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 4_000_000)
QUICK_SIZES = (500, 1_000, 2_000)
RATIOS = (1.5, 2.0, 3.0, 4.0, 8.0, 22.6)
LOST_N, QUICK_LOST_N = 100_000, 1_000
MOST_CANDIDATES = 10.0
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # Student's t, 1 … 8 degrees

METHODS = harness.METHODS | search_maps.METHODS | search_far_near.METHODS
METHODS |= {
    "seconds": (
        "Wall-clock seconds of one call. All rivals of a table's part run in one process, in "
        "rounds; each round runs each of them once, in random order: one untimed call, then "
        "several timed together. The statistics are over rounds."
    ),
    "per_query": "The median of `seconds`, divided by the number of queries of the call.",
    "speed": "Times as fast as batched exact attention by PyTorch; above 1 is faster.",
    "million": (
        f"Standard normal keys of width {sketch_inputs.WIDTH}; each query lies at distance "
        f"{DISTANCE} from one of them and at about 11.3 from the rest. Values are the keys and the "
        "scale is 1, so exact attention returns the neighbour. Settings are chosen on 4,096 "
        f"validation queries: the fastest with recall ≥ {RECALL}; `recall` is that of test "
        "queries, 4,096 of ours and 256 of the others. `mode` single: one query a call, another "
        "one each time. `break_even`: queries "
        "from which building and asking takes less time than batched exact attention. "
        + search_rivals.SIMPLIFIED
    ),
    "tuning": (
        "The settings that reach the recall, on validation queries, and which is `chosen` for its "
        "mode; timed in a run before, on a machine that did other things too."
    ),
    "growth": "As million, for each n; `fits`: least squares of log seconds on log n, 95 %.",
    "lost": (
        "Keys are normal; two of them are `ratio` times as far apart as a query and its neighbour. "
        f"Each rival at the fastest setting with recall ≥ {RECALL} on validation queries."
    ),
    "probes": (
        f"For each number of probes the least tables with a plan for recall {RECALL} that meets "
        f"at most {MOST_CANDIDATES:.0f} keys a query."
    ),
    "hashes": (
        "Unit vectors of width 64, a neighbour at 0.5 rad. For each hash and κ the tables that "
        "the collision probability asks for, for recall 0.99."
    ),
    "real_keys": (
        "The key with the largest inner product, for queries of the same head; half of the queries "
        "validate. Ours: SimHash of lifted vectors. The fastest setting tried with recall ≥ 0.9 "
        "on validation queries, or that of the largest recall. `speed`: against faiss's exact "
        "search."
    ),
}


class Planted(NamedTuple):
    """Keys, and queries whose neighbour is known: to choose settings by, and to test."""

    key: np.ndarray
    chosen_by: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def planted(n: int, batch: int, *, ratio: float | None = None, seed: int = 0) -> Planted:
    """Return normal keys; with `ratio`, of that mean distance in units of the neighbour's."""
    distance = DISTANCE
    if ratio is not None:
        distance = math.sqrt(2 * sketch_inputs.WIDTH) / ratio
    key, query, row = sketch_inputs.planted(seed, n, 2 * batch, distance)
    return Planted(key, (query[:batch], row[:batch]), (query[batch:], row[batch:]))


def timed(
    asks: Mapping[Any, tuple[Callable[[], Any], int]], *, quick: bool, rounds: int = 3
) -> dict[Any, dict[str, Any]]:
    """Return `seconds` and `per_query` of calls that answer some queries each, side by side."""
    pace = harness.Pace(2 if quick else rounds, 0.005 if quick else 0.1, 0.3, 2, 0.02, 20.0)
    once = {name: harness.seconds_of(run) for name, (run, _) in asks.items()}
    found = harness.interleave({n: run for n, (run, _) in asks.items()}, pace=pace, once=once)
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
    built = rival.built()
    if mode == "batch":
        size = min(rival.batch, len(query))
        return partial(rival.ask, built, query[:size]), size
    each = [query[i : i + 1] for i in range(min(SINGLES, len(query)))]
    if rival.batch <= EXACT_BATCH:
        each = each[:4]  # they take milliseconds

    def run():
        for one in each:
            rival.ask(built, one)

    return run, len(each)


def best_plans(key: np.ndarray, *, quick: bool) -> list[Plan]:
    """Return the planner's choices: with one bucket a table, and with several."""
    found = []
    for delta in DELTAS:
        for tables, probes in ((None, 1), (3, 2)):
            K = None if probes == 1 else 16
            made = plan(len(key), delta, DISTANCE, tables, K, probes, sample=key[:64])
            found.append(made)
    return found[:1] if quick else found


# A million


def million(*, quick: bool, log: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """Return rows of each rival at its best setting, and all settings that were tried."""
    data = planted(QUICK_N if quick else N, 64 if quick else BATCH)
    groups = _tried(data, quick=quick, log=log)
    path = search_rivals.FOLDER / "chosen.json"
    if quick or not path.exists():
        tuning = _choose(data, groups, quick=quick)
        if not quick:  # the choice needs no quiet machine, the times below do
            path.write_text(json.dumps(tuning, indent=1))
    else:
        tuning = json.loads(path.read_text())
    chosen = [(row["mode"], *groups[row["group"]][row["place"]]) for row in tuning if row["chosen"]]
    rows = []
    query, neighbour = data.test
    times = timed(
        {i: asking(rival, query, mode) for i, (mode, rival, _) in enumerate(chosen)},
        quick=quick,
        rounds=2,
    )

    base = next(
        times[i]["per_query"]
        for i, (mode, rival, _) in enumerate(chosen)
        if (mode, rival.implementation) == ("batch", SDPA)
    )
    for i, (mode, rival, recall) in enumerate(chosen):
        row = _about(rival) | {"mode": mode, "n": len(data.key), **times[i]}
        row["speed"] = base / row["per_query"]
        row["recall"] = rival.recall(query[:256], neighbour[:256])
        if rival.implementation.startswith(SKETCH):
            row["recall"] = rival.recall(query, neighbour)
        row |= {"recall_validation": recall, "candidates": None, "index_bytes": None}
        row |= rival.facts(rival.built(), query)
        gain, build = base - row["per_query"], row["build_seconds"]["median"]
        row["break_even"] = math.ceil(build / gain) if gain > 0 else None
        rows.append(row)
        log(f"million: {_told(row)}")
    return {"million": rows, "tuning": tuning}


def _choose(data, groups, *, quick):
    """Return a row for each setting and mode, and which is chosen: the fastest that is enough."""
    tuning = []
    for mode in ("single", "batch"):
        asks = {
            (g, i): asking(rival, data.chosen_by[0], mode)
            for g, group in enumerate(groups)
            for i, (rival, _) in enumerate(group)
            if len(group) > 1
        }
        times = timed(asks, quick=quick, rounds=2)
        for g, group in enumerate(groups):
            enough = [i for i, (_, recall) in enumerate(group) if recall >= RECALL]
            enough = enough or [max(range(len(group)), key=[r for _, r in group].__getitem__)]
            taken = [times[g, i]["per_query"] if (g, i) in times else 0.0 for i in enough]
            fastest = enough[int(np.argmin(taken))]
            for i, (rival, recall) in enumerate(group):
                about = {"implementation": rival.implementation, "settings": rival.settings}
                about |= {"mode": mode, "recall_validation": recall, "chosen": i == fastest}
                time = times.get((g, i), {"per_query": None})
                tuning.append(about | time | {"group": g, "place": i})
    return tuning


def _tried(data, *, quick, log):
    """Return for each implementation the settings to choose from, with their recalls."""
    key, given = data.key, data.chosen_by
    fewer = (given[0][:1024], given[1][:1024])
    ours = [search_rivals.sketch(key, made) for made in best_plans(key, quick=quick)]
    groups = [[(one, one.recall(*given)) for one in ours]]
    for one, recall in groups[0]:
        log(f"tuned: {one.implementation}, {one.settings}: {recall:.4f}")
    for K in (1, 4, 8, 16):
        made = plan(len(key), 0.01, DISTANCE, 5, K)
        one = search_rivals.sketch(key, made, name=f"{SKETCH}, five tables")
        one.batch = 32 if K == 1 else BATCH
        groups.append([(one, one.recall(*given))])
    groups += [[(one, 1.0)] for one in search_rivals.exact(key)]
    groups.append([(search_rivals.flat(key), 1.0)])
    lists = QUICK_LISTS if quick else LISTS
    makers: list[list[tuple[Any, Sequence[int]]]] = [
        [(search_rivals.inverted(key, n_lists), NPROBES) for n_lists in lists],
        [(search_rivals.graph(key, *size), REACHES) for size in ((16, 40),)],
        [(partial(search_rivals.codes, key), (64,) if quick else (256, 512))],
        [(search_rivals.quantised(key, lists[-1], 16, 16), NPROBES)],
    ]
    for maker in makers:
        groups.append(search_rivals.tuned(maker, *fewer))
        for rival, recall in groups[-1]:
            log(f"tuned: {rival.implementation}, {rival.settings}: {recall:.4f}")
    return groups


def _about(rival):
    return {
        "implementation": rival.implementation,
        "settings": rival.settings,
        "build_seconds": search_rivals.build_seconds(rival),
    }


# Growth


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
                one for one, _ in search_rivals.tuned([(maker, NPROBES)], *_few(data.chosen_by))
            ]
        rivals[0].built()
        rivals[0].ask(rivals[0].built(), data.test[0][:64])  # compiles
        times = timed(
            {i: asking(one, data.test[0], "batch") for i, one in enumerate(rivals)},
            quick=quick,
            rounds=2,
        )
        for i, one in enumerate(rivals):
            row = _about(one) | {"n": n, "mode": "batch", **times[i]}
            row["speed"] = times[1]["per_query"] / row["per_query"]
            row["recall"] = one.recall(*_few(data.test))
            row |= {"candidates": None, "index_bytes": None}
            rows.append(row | one.facts(one.built(), data.test[0]))
            log(f"growth: n = {n}: {_told(rows[-1])}")
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


def _few(pair):
    return pair[0][:512], pair[1][:512]


def fit(sizes: Sequence[float], times: Sequence[float]) -> dict[str, float]:
    """Return the exponent of growth with n, and the half-width of its 95 % interval."""
    x, y = np.log(sizes) - np.mean(np.log(sizes)), np.log(times) - np.mean(np.log(times))
    exponent = (x * y).sum() / (x * x).sum()
    free = len(x) - 2
    error = np.sqrt(((y - exponent * x) ** 2).sum() / free / (x * x).sum())
    return {"exponent": float(exponent), "half_width": float(T_975[free - 1] * error)}


# Where hashing loses


def lost(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return times of batches where far keys are not so far."""
    rows = []
    n, lists = (QUICK_LOST_N, 16) if quick else (LOST_N, 512)
    for ratio in RATIOS[:2] if quick else RATIOS:
        data = planted(n, 64 if quick else SLOW_QUERIES, ratio=ratio)
        distance = math.sqrt(2 * sketch_inputs.WIDTH) / ratio
        made = plan(n, 0.01, distance, None, None, sample=data.key[:64])
        ours = search_rivals.sketch(data.key, made)
        maker = (search_rivals.inverted(data.key, lists), (*NPROBES[:-1], lists))
        ivf, _ = search_rivals.tuned([maker], *_few(data.chosen_by))[0]
        rivals = [ours, ivf, search_rivals.flat(data.key), next(search_rivals.exact(data.key))]
        for one in rivals:
            one.batch = 64
        times = timed(
            {i: asking(one, data.test[0], "batch") for i, one in enumerate(rivals)},
            quick=quick,
            rounds=2,
        )
        for i, one in enumerate(rivals):
            row = {"ratio": ratio, "n": n} | _about(one) | times[i]
            row["speed"] = times[3]["per_query"] / row["per_query"]
            row["recall"] = one.recall(*_few(data.test))
            rows.append(row)
            log(f"lost: far/near {ratio}: {_told(row)}")
    return rows


SLOW_QUERIES = 512


# Several buckets a table


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


# Angles


ANGLE = 0.5


def hashes(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return how many keys are left to score by each hash of angles, at one recall."""
    n, batch, d = (QUICK_N, 64, 64) if quick else (LOST_N, 1024, 64)
    rng = np.random.default_rng(1)
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
            hash = kind.init(0, d, n_tables, K).to(dtype="float32")
            one = search_rivals.of_hash(key, hash, settings=f"tables {n_tables}, κ {K}")
            one.kept["times"] = 1
            times = timed({0: asking(one, query, "batch")}, quick=quick)[0]
            about = {"hash": kind.__name__, "n_tables": n_tables, "n_projections": K, "n": n}
            rows.append(about | times | {"recall": one.recall(query, row)})
            rows[-1] |= one.facts(one.built(), query)
            log(f"hashes: {rows[-1]}")
    return rows


# Real keys


HEADS: tuple[tuple[str, int], ...] = (("writer", 0), ("writer", 2))
REAL_N = {"writer": 16_384, "encoder": 100_000}
SIM_SIZES = ((8, 8), (8, 16), (8, 32), (12, 32), (12, 64))  # κ and L


def real_keys(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return who finds the key of the largest inner product, on heads of trained models."""
    from benchmarks import real_keys as models

    rows = []
    for name, layer in HEADS[:1] if quick else HEADS:
        n = 256 if quick else REAL_N[name]
        heads = models.play(layer, n) if name == "writer" else models.encoder_tokens(layer, n)
        key, every = np.ascontiguousarray(heads.key[0]), heads.query[0]
        drawn = np.random.default_rng(0).permutation(n)[: 64 if quick else 1024]
        query = np.ascontiguousarray(every[drawn])
        best = np.concatenate([(part @ key.T).argmax(1) for part in np.split(query, 8)])
        half = len(query) // 2
        validation, test = (query[:half], best[:half]), (query[half:], best[half:])
        lifted = search_rivals.flat(key, inner=True)
        groups = [[(lifted, 1.0)]]
        longest = float(np.linalg.norm(key, axis=1).max())
        ours = []
        for K, L in SIM_SIZES[:1] if quick else SIM_SIZES:
            hash = SimHash.init(0, key.shape[1] + 1, L, K).to(dtype="float32")
            for T in (1, 8):
                one = search_rivals.of_hash(
                    key,
                    LiftedHash(hash, longest),
                    T,
                    settings=f"SimHash, lifted, tables {L}, κ {K}, probes {T}",
                    scale=1 / math.sqrt(key.shape[1]),
                )
                one.kept["times"] = 1
                ours.append((one, one.recall(*validation)))
        groups.append(ours)
        lists = 2 ** round(math.log2(4 * math.sqrt(n)))
        makers = [
            [(search_rivals.inverted(key, lists, inner=True), NPROBES[: lists.bit_length() + 6])],
            [(search_rivals.graph(key, 32, 80, inner=True), REACHES)],
        ]
        groups += [search_rivals.tuned(maker, *validation, least=0.9) for maker in makers]
        asks = {
            (g, i): asking(one, validation[0], "batch")
            for g, group in enumerate(groups)
            for i, (one, _) in enumerate(group)
        }
        times = timed(asks, quick=quick, rounds=2)
        for g, group in enumerate(groups):
            enough = [i for i in range(len(group)) if group[i][1] >= 0.9]
            enough = enough or [max(range(len(group)), key=lambda i: group[i][1])]
            i = min(enough, key=lambda i: times[g, i]["per_query"])
            one = group[i][0]
            row = {"keys": f"{name} layer {layer}", "n": n} | _about(one) | times[g, i]
            row["speed"] = times[0, 0]["per_query"] / row["per_query"]
            row |= {"recall": one.recall(*test), "candidates": None}
            rows.append(row | one.facts(one.built(), test[0]))
            log(f"real keys: {row['keys']}: {_told(rows[-1])}")
    return rows


def _told(row):
    candidates = f", {row['candidates']:.4g} candidates" if row.get("candidates") else ""
    return (
        f"{row['implementation']} ({row['settings']}), {row.get('mode', 'batch')}: "
        f"{row['per_query'] * 1e6:.4g} µs a query, {row['speed']:.3g} × as fast, "
        f"recall {row['recall']:.4f}{candidates}, built in {row['build_seconds']['median']:.3g} s"
    )


def measure(device: str, *, quick: bool, tables: Tables, only: Sequence[str] | None = None) -> None:
    """Measure the tables named in `only`, or all; `million` makes `tuning` too."""
    given: dict[str, Any] = {"quick": quick, "log": tables.log}
    parts: dict[str, Callable[[], Any]] = {
        "million": partial(million, **given),
        "growth": partial(growth, **given),
        "far_near": partial(search_far_near.far_near, **given),
        "lost": partial(lost, **given),
        "probes": partial(probes, **given),
        "hashes": partial(hashes, **given),
        "real_keys": partial(real_keys, **given),
        "robin_hood": partial(search_maps.robin_hood, **given),
    }
    tables.add(methods=METHODS)
    for name in only or parts:
        made = tables.whole(name, parts[name])
        if name == "million":
            tables.add(**made)


if __name__ == "__main__":
    from benchmarks.__main__ import main

    raise SystemExit(main(["search", *sys.argv[1:]]))
