r"""The angle of every position i and feature pair l.

.. math:: i\,\omega_l, \qquad \omega_l = \text{base}^{-2l/d}
"""

import math
from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace


def frequencies(d: int, base: float = 10000.0) -> np.ndarray:
    """Return ω_l, shape (d/2,)."""
    return base ** (-np.arange(0, d, 2, dtype=np.float64) / d)


def pair_of_turns(frequencies: np.ndarray, turns: float, n: int) -> float:
    """Return the index l of the pair that makes `turns` full rotations within n positions.

    The frequencies are geometric and start with 1, so l = ln(n / (2π turns)) / ln(ω_0 / ω_1) is a
    real number.
    """
    if len(frequencies) == 1:
        return 0.0  # ω_0 = 1 says nothing about the base
    return math.log(n / (2 * math.pi * turns)) / -math.log(frequencies[1])


def cosines_and_sines(start: int, n: int, frequencies: np.ndarray) -> np.ndarray:
    """Return the cosine and the sine of i·ω_l, shape (2, n, d/2).

    In float64, since float32 has no digits left for a late position.
    """
    angles = np.arange(start, start + n, dtype=np.float64)[:, np.newaxis] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)])


def placed(table: np.ndarray, like: Array) -> Any:
    """Return `table` with the library, device and dtype of `like`."""
    device = array_api_compat.device(like)
    return array_namespace(like).asarray(table, dtype=like.dtype, device=device)
