"""Inputs like an example: floats (batch, n, ...) or integer tokens (batch, n)."""

from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_array
from attnbook.arrays.array import dtype_name
from attnbook.arrays.move import move


class Examples:
    """Random inputs of the shape and kind of an example, always with an axis for the batch.

    A batch of one sequence becomes one of `min_batch`, so that sequences can be told apart; an
    example without that axis stays one sequence.
    """

    def __init__(self, example: Any, min_batch: int = 2, max_batch: int = 4):
        check_array("example", example)
        xp = array_api_compat.array_namespace(example)
        self.floats = xp.isdtype(example.dtype, "real floating")
        if not self.floats and not xp.isdtype(example.dtype, "integral"):
            raise TypeError(
                "example must hold real floating-point numbers or integer tokens, "
                f"got {dtype_name(example.dtype)}"
            )
        x = np.array(move(example, "numpy"))
        axes = "(batch, n, ...) or (n, d)" if self.floats else "(batch, n) or (n,)"
        self.batched = x.ndim > (2 if self.floats else 1)
        x = x if self.batched else x[np.newaxis]
        if x.ndim < (3 if self.floats else 2) or x.shape[1] < 2 or x.size == 0:
            raise ValueError(
                f"example must have shape {axes} with n of at least 2, got {tuple(example.shape)}"
            )
        if self.floats:
            if not np.isfinite(x).all():
                raise ValueError("example must be finite, got NaN or infinity")
            with np.errstate(all="ignore"):  # an infinite spread is bounded below
                self.spread = float(np.std(x.astype(float))) or 1.0
        else:
            self.low, self.high = int(x.min()), int(x.max())
            if self.low == self.high:
                raise ValueError(
                    f"example must hold at least two different tokens, got {self.low} alone"
                )
        # what half precision squares without overflow bounds the inputs
        self.largest = 200.0 if dtype_name(example.dtype) == "float16" else 1e8
        if self.batched:
            missing = max(0, min_batch - len(x))
            x = np.concatenate([x[:max_batch], self.other(np.repeat(x[:1], missing, 0), 1)])
        self.example = x
        self.batch, self.n = x.shape[:2]

    def base(self, seed: int, scale: float = 1.0) -> np.ndarray:
        """Return the example itself for seed 0, else others, `scale` times as large."""
        return self.other(self.example, 2 * seed, scale) if seed else self.example.copy()

    def other(self, x: np.ndarray, seed: int, scale: float = 1.0) -> np.ndarray:
        """Return random numbers, or tokens each of which is another than in `x`."""
        rng = np.random.default_rng([seed, *x.shape])
        if self.floats:
            drawn = rng.normal(size=x.shape) * self.spread * scale
            return np.clip(drawn, -self.largest, self.largest).astype(x.dtype)
        span = self.high - self.low + 1
        step = rng.integers(1, span, size=x.shape)
        return ((x.astype(np.int64) - self.low + step) % span + self.low).astype(x.dtype)
