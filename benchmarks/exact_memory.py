"""What memory costs: a first touch against a second one, and arrays of all scores against tiles.

`pages`: an array is written that the process has just asked for, or the same one again. `memory`:
attention of 8 heads that asks for new arrays at each call, that keeps them, or that needs none,
beside PyTorch's function, which needs none. A narrow head has little to multiply for each score, so
there the bytes of the scores bound the time.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, kernels
from attnbook.kernels.in_place import exponentials
from benchmarks import exact_peers, harness, inputs

SIZES, QUICK_SIZES = (2**22, 2**24, 2**26, 2**28), (2**16,)  # bytes
N, QUICK_N = 4096, 64
WIDTHS, HEADS = (16, 64), 8
WHOLE = {"naive": 10, "in_place": 8}
"""Rungs with all scores at once, and how often their lines read or write an array of them."""
PACE, QUICK_PACE = harness.Pace(7, 0.05, 0.25, 3), harness.Pace(2, 0.005)

METHODS = {
    "system_seconds": "Of one call: seconds of all cores in the operating system; user_seconds "
    "those outside it (getrusage).",
    "faults": "Page faults of one call that the disk had no part in. A page may be a huge one.",
    "arrays": "Whether arrays of all scores are new at each call, kept from the one before, or "
    "whether there are none.",
    "traffic": "Bytes of the scores that the lines of the function read and write, counted.",
}


def pages(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each size of an array that is written, new and again."""
    rows = []
    for size in QUICK_SIZES if quick else SIZES:
        held = np.ones(size // 4, np.float32)
        runs = {"new": partial(_write_new, size // 4), "again": partial(held.fill, 2)}
        given = [
            ({"array": name, "bytes": size, "written_bytes": size}, runs[name]) for name in runs
        ]
        rows += _rows(given, quick, log)
    return rows


def memory(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each way to compute attention of heads of each width."""
    n, rows = QUICK_N if quick else N, []
    for width in WIDTHS:
        given = inputs.draw(width, (HEADS, n, width))
        about = {"n": n, "width": width, "heads": HEADS, "dtype": "float32"}
        rows += _rows([(about | who, run) for who, run in _ways(**given)], quick, log)
    return rows


def _ways(query: Any, key: Any, value: Any) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    given = query, key, value
    scores = query.nbytes // query.shape[-1] * key.shape[-2]  # bytes of all scores
    kept = np.ones((2, *query.shape[:-1], key.shape[-2]), np.float32)
    for name, passes in WHOLE.items():
        about = {"implementation": name, "traffic": passes * scores}
        yield about | {"arrays": "new"}, partial(attention, *given, impl=name)
        function = naive if name == "naive" else in_place
        yield about | {"arrays": "kept"}, partial(function, *given, kept)
    for kernel in kernels.LADDER:
        if kernel.device == "cuda" or kernel.name in WHOLE:
            continue
        about = {"implementation": kernel.name, "traffic": 0, "arrays": "none"}
        run = partial(attention, *given, impl=kernel.name)
        try:
            run()
        except ImportError:  # what it needs is not installed
            continue
        yield about, run
    if "torch" in inputs.libraries("cpu"):
        import torch

        tensors = (torch.as_tensor(x)[None] for x in given)  # a batch, else it is not its fast one
        about = {"implementation": exact_peers.SDPA, "traffic": 0, "arrays": "none"}
        yield about, partial(torch.nn.functional.scaled_dot_product_attention, *tensors)


def naive(query: Any, key: Any, value: Any, kept: Any) -> Any:
    """Return attention by the steps of rung *naive*, in two arrays that are there."""
    scores, weights = kept
    scale = np.float32(1 / math.sqrt(query.shape[-1]))
    np.matmul(query * scale, np.swapaxes(key, -1, -2), out=scores)
    np.subtract(scores, scores.max(axis=-1, keepdims=True), out=weights)
    np.exp(weights, out=scores)
    np.divide(scores, scores.sum(axis=-1, keepdims=True), out=weights)
    return weights @ value


def in_place(query: Any, key: Any, value: Any, kept: Any) -> Any:
    """Return attention by the steps of rung *in place*, in an array that is there."""
    scale = np.float32(1 / math.sqrt(query.shape[-1]))
    np.matmul(query * scale, np.swapaxes(key, -1, -2), out=kept[0])
    total = exponentials(kept[0])[1]
    return kept[0] @ value / total


def _write_new(n: int) -> None:
    np.empty(n, np.float32).fill(2)


def _rows(given: Any, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each pair of fields and call, measured in turn."""
    pace = QUICK_PACE if quick else PACE
    runs = {i: run for i, (_, run) in enumerate(given)}
    for run in runs.values():  # whose first call may compile
        run()
    once = {i: harness.seconds_of(run) for i, run in runs.items()}
    timed = harness.interleave(runs, pace=pace, once=once)
    rows = []
    for i, (about, run) in enumerate(given):
        calls, samples = timed[i]
        rows.append(about | {"calls": calls, "seconds": harness.spread(samples)} | _usage(run))
        log(f"{about}: {1e3 * rows[-1]['seconds']['median']:.3g} ms")
    return rows


def _usage(run: Callable[[], Any]) -> dict[str, Any]:
    """Return what the operating system counts during one call; nothing where it does not count."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    before = resource.getrusage(resource.RUSAGE_SELF)
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_seconds": after.ru_utime - before.ru_utime,
        "system_seconds": after.ru_stime - before.ru_stime,
        "faults": after.ru_minflt - before.ru_minflt,
    }
