"""What the data sets ask of the sequences of ids that they are given."""

from typing import Any

import numpy as np


def ids_of(name: str, x: Any, ndim: int | None = 1) -> np.ndarray:
    """Return `x` as an int64 NumPy array of ids of at least 0 with `ndim` axes, or raise."""
    try:
        array = np.asarray(x)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} must be ints in rows of one length, got others") from error
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be ints, got {array.dtype}")
    if ndim is not None and array.ndim != ndim:
        axes = "1 axis" if ndim == 1 else f"{ndim} axes"
        raise ValueError(f"{name} must have {axes}, got shape {array.shape}")
    if (least := array.min(initial=0)) < 0:
        raise ValueError(f"{name} must be at least 0, got {least}")
    return array.astype(np.int64, copy=False)
