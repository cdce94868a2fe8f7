"""Search: one near key among a million, by the sketch and by its rivals, each at its best setting.

Tables: `million`, single queries and batches at recall 0.99, and `tuning`, the settings tried on
validation queries. `growth` with n. `probes`, how many tables several buckets in each save.
`real_keys` of trained models. `robin_hood`, its tables by load.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnbook.hashing import LiftedHash, Plan, SimHash, plan
from benchmarks import (
    harness,
    search_cuda,
    search_growth,
    search_hashes,
    search_maps,
    search_planted,
    search_rivals,
)
from benchmarks.search_hashes import MOST_CANDIDATES
from benchmarks.search_planted import DISTANCE, NPROBES, about, asking, planted, timed, told
from benchmarks.search_rivals import BATCH, RECALL, SDPA, SKETCH
from benchmarks.tables import Tables

DELTAS = (0.01, 0.007)
LISTS, QUICK_LISTS = (1024, 2048, 4096, 8192), (16,)
GRAPHS, QUICK_GRAPHS = ((16, 40), (32, 200)), ((16, 40),)  # links a key, effort of the build
REACHES = (64, 128, 256, 512, 1024, 2048, 4096)

METHODS = harness.METHODS | search_maps.METHODS
METHODS |= {
    "seconds": (
        "Wall-clock seconds of one call. All rivals of a table's part run in one process, in "
        "rounds; each round runs each of them once, in random order: one untimed call, then "
        "several timed together. The statistics are over rounds."
    ),
    "per_query": "The median of `seconds`, divided by the number of queries of the call.",
    "speed": "Times as fast as batched exact attention by PyTorch; above 1 is faster.",
    "million": (
        f"Standard normal keys of width {search_planted.WIDTH}; each query lies at distance "
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
        "mode; timed in three rounds before the others, or in an earlier run that kept its choice."
    ),
    "growth": "As million, for each n; `fits`: least squares of log seconds on log n, 95 %.",
    "probes": (
        f"For each number of probes the least tables with a plan for recall {RECALL} that meets "
        f"at most {MOST_CANDIDATES:.0f} keys a query."
    ),
    "real_keys": (
        "The key with the largest inner product, for queries of the same head; half of the queries "
        "validate. Ours: SimHash of lifted vectors. The fastest setting tried with recall ≥ 0.9 "
        "on validation queries, or that of the largest recall. `speed`: against faiss's exact "
        "search."
    ),
}


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
    data = planted(search_planted.QUICK_N if quick else search_planted.N, 64 if quick else BATCH)
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
        rounds=7,
    )

    base = next(
        times[i]["per_query"]
        for i, (mode, rival, _) in enumerate(chosen)
        if (mode, rival.implementation) == ("batch", SDPA)
    )
    for i, (mode, rival, recall) in enumerate(chosen):
        row = about(rival) | {"mode": mode, "n": len(data.key), **times[i]}
        row["speed"] = base / row["per_query"]
        row["recall"] = rival.recall(query[:256], neighbour[:256])
        if rival.implementation.startswith(SKETCH):
            row["recall"] = rival.recall(query, neighbour)
        row |= {"recall_validation": recall, "candidates": None, "index_bytes": None}
        row |= rival.facts(rival.built(), query)
        gain, build = base - row["per_query"], row["build_seconds"]["median"]
        row["break_even"] = math.ceil(build / gain) if gain > 0 else None
        rows.append(row)
        log(f"million: {told(row)}")
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
        times = timed(asks, quick=quick, rounds=3)
        for g, group in enumerate(groups):
            enough = [i for i, (_, recall) in enumerate(group) if recall >= RECALL]
            enough = enough or [max(range(len(group)), key=[r for _, r in group].__getitem__)]
            taken = [times[g, i]["per_query"] if (g, i) in times else 0.0 for i in enough]
            fastest = enough[int(np.argmin(taken))]
            for i, (rival, recall) in enumerate(group):
                named = {"implementation": rival.implementation, "settings": rival.settings}
                named |= {"mode": mode, "recall_validation": recall, "chosen": i == fastest}
                time = times.get((g, i), {"per_query": None})
                tuning.append(named | time | {"group": g, "place": i})
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
        [
            (search_rivals.graph(key, *size), REACHES)
            for size in (QUICK_GRAPHS if quick else GRAPHS)
        ],
        [(partial(search_rivals.codes, key), (64,) if quick else (256, 512))],
        [(partial(search_rivals.quantised(key, lists[-1], 16), 16), NPROBES)],
    ]
    for maker in makers:
        groups.append(search_rivals.tuned(maker, *fewer))
        for rival, recall in groups[-1]:
            log(f"tuned: {rival.implementation}, {rival.settings}: {recall:.4f}")
    return groups


# Real keys


REAL_LAYERS, REAL_N = (0, 2), 16_384
SIM_SIZES = ((8, 8), (8, 16), (8, 32), (12, 32), (12, 64))  # κ and L


def real_keys(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return who finds the key of the largest inner product, on heads of the writer."""
    from benchmarks import real_keys as models

    rows = []
    n = 256 if quick else REAL_N
    for layer in REAL_LAYERS[:1] if quick else REAL_LAYERS:
        heads = models.layers(n)[layer]
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
            row = {"keys": f"writer layer {layer}", "n": n} | about(one) | times[g, i]
            row["speed"] = times[0, 0]["per_query"] / row["per_query"]
            row |= {"recall": one.recall(*test), "candidates": None}
            rows.append(row | one.facts(one.built(), test[0]))
            log(f"real keys: {row['keys']}: {told(rows[-1])}")
    return rows


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables; `million` makes `tuning` too. On a GPU there is `million` alone."""
    given: dict[str, Any] = {"quick": quick, "log": tables.log}
    tables.add(methods=METHODS)
    if device == "cuda":
        tables.measure("million", partial(search_cuda.million, **given))
        return

    def chosen_and_timed():
        made = million(**given)
        tables.add(tuning=made["tuning"])
        return made["million"]

    parts: dict[str, Callable[[], Any]] = {
        "million": chosen_and_timed,
        "growth": partial(search_growth.growth, **given),
        "probes": partial(search_hashes.probes, **given),
        "real_keys": partial(real_keys, **given),
        "robin_hood": partial(search_maps.robin_hood, **given),
    }
    for name, part in parts.items():
        tables.whole(name, part)
