"""The error function, which the Array API lacks and each library has under another name."""

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
    numbers = np.asarray(move(x, "numpy"), dtype=np.float64)
    values = np.empty(numbers.size)
    for start in range(0, numbers.size, BLOCK):
        values[start : start + BLOCK] = _erf_of(numbers.reshape(-1)[start : start + BLOCK])
    device = array_api_compat.device(x)
    return move(values.reshape(x.shape), library(x), device=device, dtype=dtype_name(x.dtype))


BLOCK = 8192
"""So many numbers at a time stay in the cache."""


def _erf_of(x: np.ndarray) -> np.ndarray:
    """Return the error function of float64 numbers (n,), to the last bit or the one before it.

    The four ranges and their rational functions are those of ``s_erf.c`` in fdlibm, "Copyright (C)
    1993 by Sun Microsystems, Inc. All rights reserved. Developed at SunPro, a Sun Microsystems,
    Inc. business. Permission to use, copy, modify, and distribute this software is freely granted,
    provided that this notice is preserved."
    """
    size = np.abs(x)
    y = np.where(np.isnan(x), x, 1.0)  # beyond 6 it is 1, rounded
    near, middle = size < 0.84375, (size >= 0.84375) & (size < 1.25)
    far, farther = (size >= 1.25) & (size < 1 / 0.35), (size >= 1 / 0.35) & (size < 6)
    t = size[near]
    y[near] = t + t * _ratio(t * t, NEAR)
    y[middle] = 8.45062911510467529297e-01 + _ratio(size[middle] - 1, MIDDLE)
    for where, coefficients in ((far, FAR), (farther, FARTHER)):
        t = size[where]
        y[where] = 1 - np.exp(-t * t - 0.5625 + _ratio(1 / (t * t), coefficients)) / t
    return np.copysign(y, x)


def _ratio(t, coefficients):
    """Return one polynomial over the other, whose first coefficient is 1; the lowest is first."""
    above, below = coefficients
    return _polynomial(t, above) / _polynomial(t, (1.0, *below))


def _polynomial(t, coefficients):
    total = np.full_like(t, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * t + coefficient
    return total


NEAR = (
    (
        *(1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02),
        *(-5.77027029648944159157e-03, -2.37630166566501626084e-05),
    ),
    (
        *(3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03),
        *(1.32494738004321644526e-04, -3.96022827877536812320e-06),
    ),
)
MIDDLE = (
    (
        *(-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01),
        *(3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02),
        -2.16637559486879084300e-03,
    ),
    (
        *(1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02),
        *(1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
    ),
)
FAR = (
    (
        *(-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01),
        *(-6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02),
        *(-8.12874355063065934246e01, -9.81432934416914548592e00),
    ),
    (
        *(1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02),
        *(6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02),
        *(6.57024977031928170135e00, -6.04244152148580987438e-02),
    ),
)
FARTHER = (
    (
        *(-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01),
        *(-1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03),
        -4.83519191608651397019e02,
    ),
    (
        *(3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03),
        *(3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02),
        -2.24409524465858183362e01,
    ),
)
