"""What the data sets ask of the sequences of ids that they are given."""

from typing import Any

import numpy as np

from attnbook.arrays.lengths import lengths_of


def ids_of(name: str, x: Any, ndim: int | None = 1) -> np.ndarray:
    """Return `x` as an int64 NumPy array of ids of at least 0 with `ndim` axes, or raise."""
    array = lengths_of(name, x)  # ids and lengths alike are ints of at least 0
    if ndim is not None and array.ndim != ndim:
        axes = "1 axis" if ndim == 1 else f"{ndim} axes"
        raise ValueError(f"{name} must have {axes}, got shape {array.shape}")
    return array
