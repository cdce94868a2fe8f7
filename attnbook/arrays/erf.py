"""The error function, which the Array API lacks and each library has under another name."""

import math

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, dtype_name, library
from attnbook.arrays.move import move


def erf(x: Array) -> Array:
    """Return the error function of every number of `x`, a float array of any library."""
    if library(x) == "torch":
        return array_namespace(x).erf(x)
    if library(x) == "cupy":
        from cupyx.scipy.special import erf as cupy_erf

        return cupy_erf(x)
    flat = move(x, "numpy").reshape(-1).tolist()
    values = np.asarray([math.erf(number) for number in flat]).reshape(x.shape)
    device = array_api_compat.device(x)
    return move(values, library(x), device=device, dtype=dtype_name(x.dtype))
