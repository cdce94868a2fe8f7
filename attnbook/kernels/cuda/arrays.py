"""Arrays as the CUDA kernels read them: as they lie, with the place of every head.

No array is copied to be broadcast: `layout.cu` says how kernels find their way by steps.
"""

import math
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from attnbook.arrays.array import Array, broadcast_shapes
from attnbook.arrays.intervals import Intervals
from attnbook.compilers.cuda import NULL, name_of

TYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float"}
"""For each dtype its type in numbers.cu."""


@dataclass(frozen=True)
class Inputs:
    """Arguments of `attention` in the form that the kernels take."""

    leading: tuple[int, ...]  # axes before the last two, of the output
    n_q: int
    n_k: int
    d_k: int
    d_v: int
    type: str  # of the arrays in CUDA
    vectors: tuple[Any, Any, Any]  # query, key, value
    extra: tuple[Any, Any]  # mask and bias, NULL for None
    where: tuple[Any, Any]  # Layout and Start of every head, see layout.cu
    output: Any  # (*leading, n_q, d_v), not yet written

    @property
    def n_heads(self) -> int:
        """Return how many heads there are, along all leading axes."""
        return math.prod(self.leading)

    @classmethod
    def of(
        cls,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | Intervals | None,
        bias: Array | None,
    ) -> "Inputs":
        """Find out how the arrays lie, and make room for the output."""
        (n_q, d_k), (n_k, d_v) = query.shape[-2:], value.shape[-2:]
        leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value))) or ()
        vectors = tuple(map(_features_together, (query, key, value)))
        places = [_steps(x, (*leading, *x.shape[-2:])) for x in vectors]
        sequence = np.zeros(math.prod(leading), dtype=np.int64)
        if isinstance(mask, Intervals):
            sequence, mask = _sequences(mask, leading), None
        nowhere = ((0, 0), np.zeros(math.prod(leading), dtype=np.int64))
        places += [nowhere if y is None else _steps(y, (*leading, n_q, n_k)) for y in (mask, bias)]
        (q_row, _), (k_row, _), (v_row, _), of_mask, of_bias = (step for step, _ in places)
        steps = np.array([q_row, k_row, v_row, *of_mask, *of_bias], dtype=np.int64)
        starts = np.stack([*(start for _, start in places), sequence], axis=-1)  # (h, 6)
        # one copy to the GPU
        table = cupy.asarray(np.concatenate([steps, starts.ravel()]))
        return cls(
            *(leading, n_q, n_k, d_k, d_v, TYPES[name_of(query.dtype)], vectors),
            (NULL if mask is None else mask, NULL if bias is None else bias),
            (table[: len(steps)], table[len(steps) :]),
            cupy.empty((*leading, n_q, d_v), dtype=query.dtype),
        )


def _features_together(x: Any) -> Any:
    """Return `x`, copied only if the numbers of a row do not lie side by side."""
    return x if x.shape[-1] < 2 or x.strides[-1] == x.itemsize else cupy.ascontiguousarray(x)


def _steps(x: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], np.ndarray]:
    """Return the last two steps of `x` broadcast to `shape`, and where each head starts."""
    *outer, row, column = (n // x.itemsize for n in cupy.broadcast_to(x, shape).strides)
    start = np.zeros(1, dtype=np.int64)
    for n, step in zip(shape[:-2], outer, strict=True):
        start = np.add.outer(start, np.arange(n, dtype=np.int64) * step).ravel()
    return (row, column), start


def _sequences(seen: Intervals, leading: tuple[int, ...]) -> np.ndarray:
    """Return which of the sequences of ranges each head reads."""
    own = seen.shape[:-2]
    places = np.arange(math.prod(own), dtype=np.int64).reshape(own)
    return np.ascontiguousarray(np.broadcast_to(places, leading)).reshape(-1)


def ranges_of(seen: Intervals | None, queries: int) -> tuple[Any, ...]:
    """Return what `attend` takes of a rule: ranges by query and by tile of so many, and counts."""
    if seen is None:
        return (NULL, NULL, NULL, *[np.int32(0)] * 4)
    forms = (seen, seen.seen_by_any(queries), seen.seen_by_all(queries))
    device = cupy.cuda.Device().id
    arrays = seen.made(
        ("cupy", device, queries),
        lambda: [cupy.asarray(np.stack([x.starts, x.stops])) for x in forms],
    )
    counts = (math.prod(seen.shape[:-2]), *(x.starts.shape[-1] for x in forms))
    return (*arrays, *map(np.int32, counts))
