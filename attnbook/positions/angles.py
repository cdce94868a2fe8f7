r"""The angle of every position i and feature pair l.

.. math:: i\,\omega_l, \qquad \omega_l = \text{base}^{-2l/d}
"""

from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace


def frequencies(d: int, base: float) -> np.ndarray:
    """Return ω_l, shape (d/2,)."""
    return base ** (-np.arange(0, d, 2, dtype=np.float64) / d)


def angles(start: int, n: int, frequencies: np.ndarray) -> np.ndarray:
    """Return i·ω_l in float64, shape (n, d/2): float32 has no digits left for a late position."""
    return np.arange(start, start + n, dtype=np.float64)[:, np.newaxis] * frequencies


def placed(table: np.ndarray, like: Array) -> Any:
    """Return `table` with the library, device and dtype of `like`."""
    device = array_api_compat.device(like)
    return array_namespace(like).asarray(table, dtype=like.dtype, device=device)
