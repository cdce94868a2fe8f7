"""Time, memory and error of `attnbook.attention` in every array library, beside PyTorch's SDPA.

Measures B = 1, h = 8, d = 64 and n from 64 to 4096, forward, without a mask. A second table holds
the error of each library and dtype on small inputs with masks, biases and uneven shapes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import attention
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

HEADS, WIDTH = 8, 64
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
QUICK_SIZES = (64, 256, 1024)
BASELINE = "scaled_dot_product_attention"


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure parity and times on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "heads": HEADS, "width": WIDTH},
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    tables.parity(partial(parity, device))
    sizes = QUICK_SIZES if quick else SIZES
    found = steps(timings, device, sizes, inputs.TIMED_DTYPES[device], quick=quick)
    tables.measure("rows", found, "implementation", "library")


def parity(device: str) -> list[dict[str, Any]]:
    """Return the error of each library and dtype on inputs that exercise every argument."""
    return inputs.parity(device, _cases, _outputs)


def _cases() -> Iterator[tuple[str, dict[str, np.ndarray], None]]:
    rng = np.random.default_rng(20)
    normal = rng.standard_normal
    some_empty = rng.random((11, 17)) < 0.5
    some_empty[3] = False
    plain = {"query": normal((2, 3, 11, 7)), "key": normal((2, 3, 17, 7))}
    plain["value"] = normal((2, 3, 17, 5))
    square = {name: normal((3, 13, 8)) for name in ("query", "key", "value")}
    grouped = {"query": normal((2, 3, 5, 7)), "key": normal((2, 1, 17, 7))}
    grouped["value"] = normal((2, 1, 17, 7))
    yield "rectangular", plain, None
    yield "causal mask", square | {"mask": np.tri(13, 13, dtype=bool)}, None
    yield "mask with an empty row", plain | {"mask": some_empty}, None
    yield "bias", plain | {"bias": normal((3, 11, 17))}, None
    yield "mask and bias", plain | {"mask": some_empty, "bias": normal((11, 17))}, None
    yield "grouped heads", grouped, None
    yield "one query", plain | {"query": normal((2, 3, 1, 7))}, None
    yield "scores up to 1e4", plain | {"query": plain["query"] * 1e3}, None


def _outputs(arrays, weights, library, device, dtype):
    rounded, moved = inputs.place(arrays, library, device, dtype)
    about = {"library": library, "dtype": dtype}
    yield about, attention(**moved), inputs.reference(**rounded)


def timings(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation and library at sequence length `n`."""
    drawn = inputs.draw(n, (1, HEADS, n, WIDTH))
    candidates: list[harness.Candidate] = []
    for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
        if not candidates:
            compare = partial(inputs.errors, expected=_by_head(**rounded))
        functions: dict[str, Callable[..., Any]] = {"attention": attention}
        if library == "torch":
            from torch.nn.functional import scaled_dot_product_attention

            functions[BASELINE] = scaled_dot_product_attention
        candidates += [
            harness.Candidate(
                {"implementation": name, "library": library}, partial(function, **moved), compare
            )
            for name, function in functions.items()
        ]
    size = {"dtype": dtype, "n": n}
    baseline = {"implementation": BASELINE}
    return harness.rows(candidates, device, about=size, baseline=baseline, quick=quick)


def _by_head(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    # one head at a time: the float64 scores of all heads at n = 4096 would take 1 GiB
    heads = [inputs.reference(query[:, h], key[:, h], value[:, h]) for h in range(query.shape[1])]
    return np.stack(heads, axis=1)
