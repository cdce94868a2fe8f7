"""What the benchmarks feed in and compare with: libraries, dtypes, rounding and the reference."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from attnbook import move
from benchmarks import provenance

DTYPES = {
    "numpy": ("float64", "float32", "float16"),
    "torch": ("float64", "float32", "float16", "bfloat16"),
    "cupy": ("float64", "float32", "float16"),
}
TIMED_DTYPES = {"cpu": ("float32",), "cuda": ("float32", "float16", "bfloat16")}
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}


def libraries(device: str) -> list[str]:
    """Return the array libraries that can compute on `device` here."""
    if device == "cpu":
        return ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]
    present = {"torch": provenance.torch_sees_cuda(), "cupy": provenance.cupy_sees_cuda()}
    return [name for name, here in present.items() if here]


def draw(seed: int, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return query, key and value of `shape`, normal float32 numbers."""
    rng = np.random.default_rng(seed)
    names = ("query", "key", "value")
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in names}


def place(
    arrays: Mapping[str, np.ndarray], library: str, device: str, dtype: str
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


def everywhere(
    arrays: Mapping[str, np.ndarray], device: str, dtype: str
) -> Iterator[tuple[str, dict[str, np.ndarray], dict[str, Any]]]:
    """Yield each library that has `dtype` here, and what `place` returns for it.

    Rounding is the same in all of them.
    """
    for library in libraries(device):
        if dtype in DTYPES[library]:
            yield library, *place(arrays, library, device, dtype)


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


def parity(
    device: str,
    cases: Callable[[], Iterable[tuple[str, dict[str, np.ndarray], Any]]],
    outputs: Callable[..., Iterable[tuple[dict[str, Any], Any, np.ndarray]]],
) -> list[dict[str, Any]]:
    """Return a row for each library, dtype and case of a layer, and for each who computed it.

    `cases` gives names, arrays and weights; `outputs`, called with arrays, weights, library, device
    and dtype, gives who computed it, the output and the reference.
    """
    result = []
    for library in libraries(device):
        for dtype in DTYPES[library]:
            for case, arrays, weights in cases():
                for about, output, expected in outputs(arrays, weights, library, device, dtype):
                    found = errors(output, expected)
                    holds = found["relative"] <= TOLERANCE[dtype]  # False for NaN
                    result.append(about | {"case": case, "holds": holds} | found)
    return result


def place_weights(weights: Any, library: str, device: str, dtype: str) -> Any:
    """Return `weights`, which have a method `to`, in `library` on `device`, rounded to `dtype`."""
    target = device if library == "torch" else None
    return weights.to(library, device=target).to(dtype=dtype)
