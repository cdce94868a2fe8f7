"""Rows of the sketch's benchmark: few long rounds, and memory as the system sees it."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbook.arrays.threads import n_threads_for
from benchmarks import harness

ROUNDS, QUICK_ROUNDS = 5, 2
SLICE_SECONDS, QUICK_SLICE_SECONDS = 0.2, 0.005
LONG = 0.5  # seconds of a call that needs no untimed call before it
MEASURED = (*harness.MEASURED, "per_query")

METHODS = harness.METHODS | {
    "seconds": (
        "Wall-clock seconds of one call. All candidates of a table's part run in one process, in "
        "rounds; each round runs each of them once, in random order: one untimed call, left out "
        f"where a call takes over {LONG} s, then `calls` timed together and divided by `calls`. "
        "The statistics are over rounds. `rounds` is in each row."
    ),
    "per_query": "The median of `seconds`, divided by the number of queries of the call.",
    "ratio": (
        "Median over rounds of the candidate's seconds per query divided by those of the baseline "
        "in the same round; above 1 is slower than the baseline."
    ),
    "extra_bytes": (
        "How far the resident set of the process rises above its size before the call (Linux: "
        "VmHWM after a reset), the result not counted, allocators of all libraries included. On "
        "CUDA, and elsewhere than on Linux: as the other records do."
    ),
}


def rows(
    candidates: Sequence[harness.Candidate],
    device: str,
    *,
    about: Mapping[str, Any],
    baseline: Mapping[str, Any],
    quick: bool,
    rounds: int | None = None,
) -> list[dict[str, Any]]:
    """Measure `candidates` beside one another and return a row for each, in their order.

    As `harness.rows`, for calls that last seconds. A candidate's `about` names its library, and
    may name `queries`, how many a call answers.
    """
    pace = harness.Pace(
        rounds or (QUICK_ROUNDS if quick else ROUNDS),
        QUICK_SLICE_SECONDS if quick else SLICE_SECONDS,
        LONG,
    )
    made = harness.rows(
        candidates,
        device,
        about={**about, "per_query": None},
        baseline=baseline,
        quick=quick,
        pace=pace,
        memory=extra_bytes,
    )
    for row in made:
        if row["seconds"]:
            row["rounds"] = pace.rounds
            row["per_query"] = row["seconds"]["median"] / (row.get("queries") or 1)
    return made


# Memory


def extra_bytes(function: Callable[[], Any], library: str, device: str) -> int | None:
    """Return the peak bytes of one call beyond its result, or None where nothing tells."""
    if device == "cuda" and library in {"torch", "cupy"}:
        return harness.extra_bytes(function, library, device)
    rise = resident_rise(function)
    if rise is None:
        return harness.extra_bytes(function, library, device) if library == "numpy" else None
    return rise


def resident_rise(function: Callable[[], Any]) -> int | None:
    """Return how far the resident set rises during a call, less the result; None if not Linux."""
    if not _reset_peak():
        return None
    before = _status("VmRSS")
    result = function()
    peak = _status("VmHWM")
    return max(0, peak - before - getattr(result, "nbytes", 0))


def resident_fall(release: Callable[[], Any]) -> int | None:
    """Return how far the resident set falls when something is released; None if not Linux."""
    gc.collect()
    if not _reset_peak():
        return None
    before = _status("VmRSS")
    release()
    gc.collect()  # what refers to itself
    _reset_peak()
    return max(0, before - _status("VmRSS"))


def _reset_peak() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free inside the allocator would hide a rise
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


# Record


def settings() -> dict[str, Any]:
    """Return versions and thread counts of what the provenance does not know."""
    found: dict[str, Any] = {
        "faiss-cpu": None,
        # not numba.get_num_threads(), which starts a pool and sets PyTorch's number with it
        "threads": {"attnbook": n_threads_for(2**30)},
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }
    with contextlib.suppress(ImportError):
        import torch

        found["threads"]["torch"] = torch.get_num_threads()
    with contextlib.suppress(ImportError):
        import faiss

        found["faiss-cpu"] = faiss.__version__
        found["threads"]["faiss"] = faiss.omp_get_max_threads()
    with contextlib.suppress(ImportError):
        import threadpoolctl

        found["pools"] = [
            {"library": pool["prefix"], "file": Path(pool["filepath"]).name}
            | {"threads": pool["num_threads"]}
            for pool in threadpoolctl.threadpool_info()
        ]
    return found
