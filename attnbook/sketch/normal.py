r"""The far tail of the normal distribution, in logarithms, on any array library.

.. math:: \operatorname{erfc}(z) = t\, e^{-z^2 + P(t)}, \quad t = \frac{1}{1 + z/2}, \quad z \ge 0

P is a Chebyshev series in t. It is accurate to rounding in float64 however small erfc gets. The
form is that of Press et al., "Numerical Recipes", section 6.2, and the coefficients were computed
anew with mpmath.
"""

import math

from attnbook.arrays.array import Array, array_namespace

CHEBYSHEV = (
    *(-0.65132685989085472, 0.64196979235649026, 0.019476473204185836, -0.0095615147868086316),
    *(-9.4659534448203687e-4, 3.6683949785276145e-4, 4.2523324806907772e-5),
    *(-2.0278578112534243e-5, -1.6242900046470255e-6, 1.3036558355805232e-6),
    *(1.5626441722066143e-8, -8.5238095914926543e-8, 6.5290544390988515e-9),
    *(5.0593434955514689e-9, -9.9136415649303308e-10, -2.273651222931836e-10),
    *(9.6467911020155278e-11, 2.394038083039105e-12, -6.8860275264975437e-12),
    *(8.9448792730906303e-13, 3.1309213993430523e-13, -1.1270822361368182e-13),
    *(3.8109052552808967e-16, 7.1060976136002081e-15, -1.5230282014482185e-15),
)


def below(a: Array) -> tuple[Array, Array]:
    r"""Return log Φ(a) and φ(a)/Φ(a), which is -E[t | t < a] for a standard normal t.

    For a → -∞ they tend to -∞ and -a, for a → ∞ to 0 and 0.
    """
    xp = array_namespace(a)
    nothing = a == -xp.inf
    a = xp.clip(a, -1e9, 1e9)  # whose square overflows in no dtype
    z = xp.abs(a) / math.sqrt(2)
    t = 1 / (1 + z / 2)
    log_scaled = xp.log(t) + _series(t)  # log erfc(z) + z²
    left = a < 0
    log_tail = log_scaled - z * z - math.log(2)  # log Φ(-|a|)
    log_cdf = xp.where(left, log_tail, xp.log1p(-xp.exp(log_tail)))
    log_cdf = xp.where(nothing, xp.full_like(log_cdf, -xp.inf), log_cdf)
    log_ratio = 0.5 * math.log(2 / math.pi) - xp.where(left, log_scaled, z * z + math.log(2))
    return log_cdf, xp.exp(log_ratio - xp.where(left, xp.zeros_like(a), log_cdf))


def _series(t):
    """Return P(t) by Clenshaw's rule."""
    u = 2 * (2 * t - 1)
    one, two = t * 0, t * 0
    for c in CHEBYSHEV[:0:-1]:
        one, two = u * one - two + c, one
    return CHEBYSHEV[0] + u / 2 * one - two
