"""The sketch: a million vectors, self-attention, estimators and hash tables beside their peers.

Tables: `rows`, self-attention of long sequences beside exact attention, HyperAttention, LSH
attention and random features. `million`, a near neighbour among a million far ones, beside exact
attention and faiss. `growth` of its times with n. `far_near`, where hashing does not pay.
`estimators` at one budget. `crossover`, from which n on a sketch is faster than exact attention.
`robin_hood`, its tables by load. On CUDA: `rows`, `million` and `crossover`.
"""

import sys
from collections.abc import Callable
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

TOLERANCE = {"float32": 1.0}  # an answer of zeros is as far off as that


def measure(device: str, *, quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Return all tables for `device` ("cpu" or "cuda")."""
    given: dict[str, Any] = {"quick": quick, "log": log}
    record: dict[str, Any] = {
        "quick": quick,
        "methods": sketch_rows.METHODS
        | sketch_search.METHODS
        | sketch_self_attention.METHODS
        | sketch_estimators.METHODS
        | sketch_far_near.METHODS
        | sketch_tables.METHODS,
        "inputs": {"keys": sketch_inputs.KINDS, "values": sketch_inputs.VALUES},
        "baseline": sketch_self_attention.BASELINE,
        "tolerance": TOLERANCE,
        "rows": sketch_self_attention.self_attention(device, **given),
        "crossover": sketch_self_attention.crossover(device, **given),
        "million": sketch_search.million(device, **given),
    }
    if device == "cpu":
        record["growth"] = sketch_search.growth(device, **given)
        record["far_near"] = sketch_far_near.far_near(**given)
        record["estimators"] = sketch_estimators.estimators(**given)
        record["robin_hood"] = sketch_tables.robin_hood(**given)
    # at the end, when all libraries are loaded
    record["settings"] = sketch_rows.settings()
    return record


if __name__ == "__main__":
    from benchmarks.__main__ import main

    raise SystemExit(main(["sketch", *sys.argv[1:]]))
