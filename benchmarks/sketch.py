"""The sketch: a million vectors, self-attention, estimators and hash tables beside their peers.

Tables: `rows`, self-attention of long sequences beside exact attention, HyperAttention, LSH
attention and random features. `million`, a near neighbour among a million far ones, beside exact
attention and faiss. `growth` of its times with n. `far_near`, where hashing does not pay.
`estimators` at one budget. `crossover`, from which n on a sketch is faster than exact attention.
`robin_hood`, its tables by load. On CUDA: `rows`, `million` and `crossover`.
"""

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import (
    sketch_estimators,
    sketch_far_near,
    sketch_inputs,
    sketch_rows,
    sketch_search,
    sketch_self_attention,
    sketch_tables,
)
from benchmarks.tables import Tables

METHODS = (
    sketch_rows.METHODS
    | sketch_self_attention.METHODS
    | sketch_search.METHODS
    | sketch_far_near.METHODS
    | sketch_estimators.METHODS
    | sketch_tables.METHODS
)
TOLERANCE = {"float32": 2.0}  # peers err by more than an answer of zeros, by 1, on long keys


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables for `device` ("cpu" or "cuda")."""
    given: dict[str, Any] = {"quick": quick, "log": tables.log}
    parts: dict[str, Callable[[], Any]] = {
        "rows": partial(sketch_self_attention.self_attention, device, **given),
        "crossover": partial(sketch_self_attention.crossover, device, **given),
        "million": partial(sketch_search.million, device, **given),
    }
    if device == "cpu":
        parts |= {
            "growth": partial(sketch_search.growth, device, **given),
            "far_near": partial(sketch_far_near.far_near, **given),
            "estimators": partial(sketch_estimators.estimators, **given),
            "robin_hood": partial(sketch_tables.robin_hood, **given),
        }
    settings = {"before": sketch_rows.settings()}  # loads all libraries
    tables.add(
        methods=METHODS,
        inputs={"keys": sketch_inputs.KINDS, "values": sketch_inputs.VALUES},
        baseline=sketch_self_attention.BASELINE,
        tolerance=TOLERANCE,
        settings=settings,
    )
    try:
        for name, table in parts.items():
            gc.collect()
            gc.freeze()  # collections between measurements need not look at what is loaded
            tables.whole(name, table)
    finally:
        gc.unfreeze()
    settings["after"] = sketch_rows.settings()


if __name__ == "__main__":
    from benchmarks.__main__ import main

    raise SystemExit(main(["sketch", *sys.argv[1:]]))
