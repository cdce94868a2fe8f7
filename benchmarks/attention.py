"""Time, memory and error of `attnbook.attention` in every array library, beside PyTorch's SDPA.

Measures B = 1, h = 8, d = 64 and n from 64 to 4096, forward, without a mask. A second table holds
the error of each library and dtype on small inputs with masks, biases and uneven shapes.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention, move
from benchmarks import harness, provenance

HEADS, WIDTH = 8, 64
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
QUICK_SIZES = (64, 256, 1024)
ROUNDS, QUICK_ROUNDS = 15, 3
SLICE_SECONDS, QUICK_SLICE_SECONDS = 0.05, 0.005
TIMED_DTYPES = {"cpu": ("float32",), "cuda": ("float32", "float16", "bfloat16")}
DTYPES = {
    "numpy": ("float64", "float32", "float16"),
    "torch": ("float64", "float32", "float16", "bfloat16"),
    "cupy": ("float64", "float32", "float16"),
}
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
BASELINE = "scaled_dot_product_attention"


def measure(device: str, *, quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Return parity and timings on `device` ("cpu" or "cuda")."""
    sizes = QUICK_SIZES if quick else SIZES
    parity_rows = parity(device)
    for row in parity_rows:
        if not row["holds"]:
            log(f"parity fails: {row}")
    log(f"parity: {sum(row['holds'] for row in parity_rows)} of {len(parity_rows)} cases hold")
    rows = []
    for n in sizes:
        rows += timings(device, n, quick=quick, log=log)
    return {
        "quick": quick,
        "shape": {"batch": 1, "heads": HEADS, "width": WIDTH},
        "rounds": QUICK_ROUNDS if quick else ROUNDS,
        "baseline": BASELINE,
        "tolerance": TOLERANCE,
        "parity": parity_rows,
        "rows": rows,
    }


def libraries(device: str) -> list[str]:
    """Return the array libraries that can compute on `device` here."""
    if device == "cpu":
        return ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]
    present = {"torch": provenance.torch_sees_cuda(), "cupy": provenance.cupy_sees_cuda()}
    return [name for name, here in present.items() if here]


def reference(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Return attention in float64 in plain NumPy, written apart from the package."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    scores = np.matmul(q, np.swapaxes(k, -1, -2))
    scores /= np.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=-1e300)  # finite in a row of -inf alone
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    return np.matmul(weights, v)


def errors(output: Any, expected: np.ndarray) -> dict[str, float]:
    """Return how far `output` lies from `expected`; the names are explained in the record."""
    difference = move(output, "numpy", dtype="float64") - expected
    return {
        "max_abs": float(np.abs(difference).max()),
        "relative": float(np.linalg.norm(difference) / np.linalg.norm(expected)),
    }


def parity(device: str) -> list[dict[str, Any]]:
    """Return the error of each library and dtype on inputs that exercise every argument."""
    rng = np.random.default_rng(20)
    normal = rng.standard_normal
    causal = np.tri(13, 13, dtype=bool)
    some_empty = rng.random((11, 17)) < 0.5
    some_empty[3] = False
    plain = {"query": normal((2, 3, 11, 7)), "key": normal((2, 3, 17, 7))}
    plain["value"] = normal((2, 3, 17, 5))
    square = {name: normal((3, 13, 8)) for name in ("query", "key", "value")}
    grouped = {"query": normal((2, 3, 5, 7)), "key": normal((2, 1, 17, 7))}
    grouped["value"] = normal((2, 1, 17, 7))
    cases = {
        "rectangular": plain,
        "causal mask": square | {"mask": causal},
        "mask with an empty row": plain | {"mask": some_empty},
        "bias": plain | {"bias": normal((3, 11, 17))},
        "mask and bias": plain | {"mask": some_empty, "bias": normal((11, 17))},
        "grouped heads": grouped,
        "one query": plain | {"query": normal((2, 3, 1, 7))},
        "scores up to 1e4": plain | {"query": plain["query"] * 1e3},
    }
    rows = []
    for library in libraries(device):
        for dtype in DTYPES[library]:
            for case, arrays in cases.items():
                rounded, moved = _place(arrays, library, device, dtype)
                found = errors(attention(**moved), reference(**rounded))
                holds = found["relative"] <= TOLERANCE[dtype]  # False for NaN
                about = {"library": library, "dtype": dtype, "case": case, "holds": holds}
                rows.append(about | found)
    return rows


def _place(
    arrays: dict[str, np.ndarray], library: str, device: str, dtype: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return `arrays` rounded to `dtype`, as NumPy float64 and in `library` on `device`."""
    rounded, moved = {}, {}
    for name, x in arrays.items():
        kind = "bool" if x.dtype == bool else dtype
        # only PyTorch takes a device by name; CuPy has but one, NumPy has none
        target = device if library == "torch" else None
        if kind == "bfloat16":  # NumPy has none, so PyTorch rounds on its own device
            x = x.astype(np.float32)
        moved[name] = move(move(x, library, device=target), dtype=kind)
        rounded[name] = x if kind == "bool" else move(moved[name], "numpy", dtype="float64")
    return rounded, moved


def timings(
    device: str, n: int, *, quick: bool, log: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return one row for each implementation, library and dtype at sequence length `n`."""
    rng = np.random.default_rng(n)
    drawn = {
        name: rng.standard_normal((1, HEADS, n, WIDTH), dtype=np.float32)
        for name in ("query", "key", "value")
    }
    rows = []
    for dtype in TIMED_DTYPES[device]:
        candidates: dict[tuple[str, str], Callable[[], Any]] = {}
        for library in libraries(device):
            if dtype not in DTYPES[library]:
                continue
            rounded, moved = _place(drawn, library, device, dtype)
            candidates["attention", library] = partial(attention, **moved)
            if library == "torch":
                candidates[BASELINE, library] = partial(_sdpa, **moved)
        rows += _rows(device, dtype, n, candidates, _by_head(**rounded), quick)
        shown = [
            f"{row['implementation']} {row['library']} {row['seconds']['median'] * 1e3:.3g} ms"
            for row in rows
            if row["dtype"] == dtype
        ]
        log(f"n = {n}, {dtype}: " + ", ".join(shown))
    return rows


def _rows(device, dtype, n, candidates, expected, quick) -> list[dict[str, Any]]:
    found = {
        key: errors(run(), expected) | {"extra_bytes": harness.extra_bytes(run, key[1], device)}
        for key, run in candidates.items()
    }
    timed = harness.interleave(
        candidates,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        slice_seconds=QUICK_SLICE_SECONDS if quick else SLICE_SECONDS,
        synchronize=_synchronize(device),
        seed=n,
    )
    baseline = timed.get((BASELINE, "torch"))
    return [
        {
            "implementation": implementation,
            "library": library,
            "dtype": dtype,
            "n": n,
            "calls": calls,
            "seconds": harness.spread(samples),
            "ratio": None if baseline is None else harness.ratio(samples, baseline[1]),
            **found[implementation, library],
        }
        for (implementation, library), (calls, samples) in timed.items()
    ]


def _by_head(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    # one head at a time: the float64 scores of all heads at n = 4096 would take 1 GiB
    heads = [reference(query[:, h], key[:, h], value[:, h]) for h in range(query.shape[1])]
    return np.stack(heads, axis=1)


def _sdpa(query: Any, key: Any, value: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def _synchronize(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    waits: list[Callable[[], None]] = []
    if provenance.torch_sees_cuda():
        import torch

        waits.append(torch.cuda.synchronize)
    if provenance.cupy_sees_cuda():
        import cupy

        waits.append(cupy.cuda.runtime.deviceSynchronize)

    def synchronize() -> None:
        for wait in waits:
            wait()

    return synchronize
