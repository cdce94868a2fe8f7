"""Self-attention by a sketch: time and error beside its peers, and from which n on it pays."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, move
from attnbook.sketch import SimHash, sketch_attention
from benchmarks import harness, inputs, sketch_inputs, sketch_peers, sketch_rows
from benchmarks.sketch_estimators import moments_alone
from benchmarks.sketch_inputs import WIDTH, Inputs
from benchmarks.sketch_searchers import EXACT, SDPA, SKETCH, array_library, implementation

HEADS = 8
SIZE, QUICK_SIZE = 16_384, 256
LONG, QUICK_LONG = 131_072, 768  # of one head
LONG_QUERIES = 8_192  # that exact attention answers there
CHECKED = 256  # queries of a head that are compared with float64
KINDS = ("random", "peaked", "clustered")
MORE_KINDS = ("clustered, own shapes", "heavy-tailed")  # exact attention answers fewer queries
QUICK_KINDS = ("random", "clustered")
FEWER = 4_096
ROUNDS = 3
CROSSING = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
QUICK_CROSSING = (64, 128)
CROSSING_HEADS = 4
NUMPY_UP_TO = 4_096  # its scores of all heads stand in memory at once
BASELINE = {"implementation": SDPA}
ONE_FOR_ALL, FOR_SUCH_KEYS = "one for all", "for such keys"

TABLES: dict[str, dict[str, Any]] = {  # of SketchAttention
    ONE_FOR_ALL: {"n_tables": 16, "n_projections": 14, "tail": "moments", "n_cells": 1},
    "heavy-tailed": {"n_tables": 1, "n_projections": 14, "n_heavy": SIZE // 100},
}

METHODS = {
    "rows": (
        f"Self-attention of {HEADS} heads of width {WIDTH} over n keys drawn as `inputs` says, "
        "one head for the longest; what a sketch or a peer builds is part of its time. Errors are "
        f"those of {CHECKED} queries of each head. `queries` of all heads: exact attention over "
        "the longest answers some of them, and times are compared per query. `setting`: one for "
        "all inputs, or one for keys of this kind; `set_to` is what it says."
    ),
    "crossover": (
        f"As rows, {CROSSING_HEADS} heads, one setting. `faster_from`: the n from which on the "
        "sketch takes less time than exact attention, between two sizes on a straight line in "
        "logarithms; null if it never does."
    ),
}


def sketch(given: Inputs, setting: dict[str, Any], impl: str) -> Any:
    """Return self-attention of each head by tables that are built for it."""
    options = dict(setting)
    shape = options.pop("n_tables"), options.pop("n_projections")
    hash = SimHash.init(0, given.key.shape[-1], *shape).to(dtype="float32")
    if impl == "cupy":
        hash = hash.to("cupy")
    return sketch_attention(*given, hash=hash, impl=impl, **options)


# Time and error


def self_attention(device: str, *, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each kind of input and each way to attend."""
    rows = []
    n, kinds = (QUICK_SIZE, QUICK_KINDS) if quick else (SIZE, KINDS)
    sizes = [(n, HEADS, kind, n) for kind in kinds]
    sizes += [(n, HEADS, kind, min(n, FEWER)) for kind in (() if quick else MORE_KINDS)]
    n = QUICK_LONG if quick else LONG
    sizes += [(n, 1, kind, min(n, LONG_QUERIES)) for kind in kinds]
    for n, heads, kind, some in sizes:
        given = sketch_inputs.draw(kind, n, heads, seed=n)
        found = _compared(device, given, kind, some, quick=quick)
        for row in found:
            log(f"self-attention, n = {n}: {kind}: {_named(row)}")
        rows += found
    return rows


def _compared(device, given, kind, some, *, quick, peers=True):
    """Return the rows of one input; exact attention answers `some` queries of each head."""
    heads, n = given.key.shape[:2]
    checked = np.arange(0, n, -(-n // CHECKED))
    expected = sketch_inputs.exact(given, checked)
    candidates = []
    for about, run, answered in [
        *_ours(device, given, kind),
        *_exact(device, given, some),
        *(_peers(device, given) if peers else ()),
    ]:
        rows = checked[checked < answered]
        compare = partial(_errors, expected=expected[:, : len(rows)], rows=rows.tolist())
        about["queries"] = heads * answered
        candidates.append(harness.Candidate(about, run, compare))
    about = {"keys": kind, "n": n, "heads": heads, "dtype": "float32"}
    rounds = None if quick else ROUNDS
    return sketch_rows.rows(
        candidates, device, about=about, baseline=BASELINE, quick=quick, rounds=rounds
    )


Way = tuple[dict[str, Any], Callable[[], Any], int]  # fields, function, queries of a head


def _ours(device, given, kind) -> Iterator[Way]:
    """Yield the tables, which any query may ask."""
    impl, library, n = implementation(device), array_library(device), given.key.shape[1]
    about = {"implementation": SKETCH, "impl": impl, "library": library}
    name = FOR_SUCH_KEYS if kind in TABLES else ONE_FOR_ALL
    setting = TABLES.get(kind, TABLES[ONE_FOR_ALL])
    run = partial(sketch, _moved(given, library), setting, impl)
    yield about | {"setting": name, "set_to": setting}, run, n


def _exact(device, given, asked) -> Iterator[Way]:
    libraries = inputs.libraries(device)
    n = given.key.shape[1]
    if n <= NUMPY_UP_TO and "numpy" in libraries:
        yield {"implementation": EXACT, "library": "numpy"}, partial(attention, *given), n
    if "torch" in libraries:
        placed = _moved(given, "torch", device)
        part = placed._replace(query=placed.query[:, :asked])
        yield {"implementation": SDPA, "library": "torch"}, partial(_sdpa, part), asked


def _peers(device, given) -> Iterator[Way]:
    libraries = inputs.libraries(device)
    n = given.key.shape[1]
    if "numpy" in libraries:
        about = {"implementation": "moments alone", "library": "numpy", "n_cells": 1}
        yield about, partial(moments_alone, given), n
    if "torch" not in libraries:
        return
    placed = _moved(given, "torch", device)
    block, chunk = (math.gcd(n, size) for size in (256, 64))
    made: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "HyperAttention": (sketch_peers.hyper_attention, {"block": block, "n_samples": 256}),
        "LSH attention": (sketch_peers.reformer_attention, {"chunk": chunk, "n_rounds": 4}),
        "FAVOR+": (sketch_peers.random_features, {"n_features": 1024}),
    }
    for name, (function, options) in made.items():
        about = {"implementation": name, "library": "torch", "set_to": options}
        yield about, partial(function, *placed, **options), n


def _sdpa(given):
    import torch

    # with a batch axis: without one the slow form is chosen
    query, key, value = (x[None] for x in given)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)[0]


def _errors(output, *, expected, rows):
    return inputs.errors(output[:, rows], expected)


def _moved(given, library, device=None):
    # only PyTorch takes a device by name
    return Inputs(*(move(x, library, device=device) for x in given))


# Where it pays


def crossover(device: str, *, quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Return time and error of sketch and exact attention by n, and where the sketch is faster."""
    rows, points = [], []
    for kind in QUICK_KINDS if quick else KINDS:
        own = []
        for n in QUICK_CROSSING if quick else CROSSING:
            given = sketch_inputs.draw(kind, n, CROSSING_HEADS, seed=n)
            some = min(n, LONG_QUERIES)
            own += _compared(device, given, kind, some, quick=quick, peers=False)
        for setting in dict.fromkeys(row["setting"] for row in own if "setting" in row):
            ours = [row for row in own if row.get("setting") == setting]
            for name, library in ((SDPA, "torch"), (EXACT, "numpy")):
                theirs = [
                    row for row in own if (row["implementation"], row["library"]) == (name, library)
                ]
                if not theirs:
                    continue
                point = {"keys": kind, "setting": setting, "against": name, "library": library}
                points.append(point | faster_from(ours, theirs))
                log(f"crossover: {points[-1]}")
        rows += own
    return {"rows": rows, "points": points}


def faster_from(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the n from which on `ours` takes less time, and its error at the next size."""
    exact = {row["n"]: row["per_query"] for row in theirs}
    pairs = [
        (row["n"], math.log(row["per_query"] / exact[row["n"]]), row["relative"])
        for row in ours
        if row["per_query"] and exact.get(row["n"])
    ]
    found: dict[str, Any] = {"faster_from": None, "relative": None, "measured_up_to": None}
    if not pairs:
        return found
    found["measured_up_to"] = pairs[-1][0]
    last = len(pairs)
    while last > 0 and pairs[last - 1][1] < 0:
        last -= 1
    if last == len(pairs):
        return found
    n, behind, found["relative"] = pairs[last]
    if last == 0:
        return found | {"faster_from": n, "from_the_first": True}
    before, ahead, _ = pairs[last - 1]
    share = ahead / (ahead - behind)
    found["faster_from"] = math.exp((1 - share) * math.log(before) + share * math.log(n))
    return found


def _named(row):
    names = ("implementation", "setting", "library")
    about = ", ".join(str(row[name]) for name in names if row.get(name) is not None)
    if row["per_query"] is None:
        return f"{about} did not run: {row.get('reason')}"
    ratio = "" if not row["ratio"] else f", {1 / row['ratio']:.3g} × SDPA's speed"
    return f"{about} {row['seconds']['median']:.4g} s{ratio}, error {row['relative']:.3g}"
