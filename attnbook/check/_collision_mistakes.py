"""Wrong chances that a p-stable hash puts two vectors into one interval."""

import math
from collections.abc import Callable

import numpy as np

from attnbook.arrays.erf import erf
from attnbook.check._model import Mistake


def _phi(t):
    return (1 + erf(t / math.sqrt(2))) / 2


def _density(t):
    return np.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def _within(t):
    return 1 - 2 * _phi(-t)


def _bracket(t):
    return 1 - np.exp(-t * t / 2)


def _front(t):
    return 2 / (math.sqrt(2 * math.pi) * t)


def _model(
    within: Callable = _within, front: Callable = _front, bracket: Callable = _bracket
) -> Callable:
    """Return P with a part of it replaced; each part is a function of t = r/c."""
    return _of_ratio(lambda t: within(t) - front(t) * bracket(t))


def _of_ratio(p: Callable) -> Callable:
    """Return the function of c and r that is 1 at c = 0, and elsewhere `p` of t = r/c."""

    def model(distance, width):
        c = np.asarray(distance, dtype=float)
        return np.where(c == 0, 1.0, p(width / np.where(c == 0, 1.0, c)))

    return model


_right = _model()
_p = _right  # of distance and width


def _at_zero(value: float) -> Callable:
    return lambda distance, width: np.where(distance == 0, value, _p(distance, width))


def _of_angles(angle: Callable) -> tuple[Callable, ...]:
    """Return 1 − (2/π)·`angle(z)` for z as it is, NaN beyond 1, and for z cut to 1."""

    def model(z):
        return lambda distance, width: np.asarray(
            1 - 2 / math.pi * angle(z(np.asarray(distance, dtype=float), width))
        )

    return tuple(
        model(lambda c, r, z=z, cut=cut: cut(z(c, r)))
        for z in (lambda c, r: c / r, lambda c, r: c / (2 * r), lambda c, r: c / 2)
        for cut in (lambda z: z, lambda z: np.minimum(z, 1.0))
    )


def _cauchy(t):
    return 2 * np.arctan(t) / math.pi - np.log1p(t * t) / (math.pi * t)


DISTANCE_0 = (
    "distance 0",
    "At distance 0 your function divides by 0, or returns something else than 1. A vector always "
    "meets its equal: return 1 there. In an array, make the distance safe before you divide, as "
    "where(c == 0, 1, c) does, and choose afterwards.",
)

MISTAKES = (
    Mistake(
        "arccos",
        "You use 1 − (2/π)·arccos(c/r). It is 0 at distance 0, so equal vectors never meet, and it "
        "grows with the distance. It is no probability of this hash at all: that one is 1 − "
        "2Φ(−r/c) − 2c/(√(2π) r)·(1 − exp(−r²/(2c²))).",
        _of_angles(np.arccos),
    ),
    Mistake(
        "SimHash's probability",
        "You use an arcsine, or the angle. 1 − (2/π)·arcsin(c/2) belongs to sign-SimHash and unit "
        "vectors, which know no width. Here two projections, a distance of c·|N(0, 1)| apart, must "
        "fall into one interval of length r.",
        _of_angles(np.arcsin),
    ),
    Mistake(
        "c and r exchanged",
        "You exchange distance and width: the argument of Φ is −r/c, and the exponent −r²/(2c²). "
        "Yours is 0 at distance 0 and grows with the distance.",
        (
            lambda distance, width: _p(width, np.where(distance == 0, np.nan, distance)),
            lambda distance, width: np.where(
                distance == 0, 1.0, _p(width, np.where(distance == 0, 1.0, distance))
            ),
        ),
    ),
    Mistake(
        "one tail",
        "You subtract Φ(−r/c) once. A projection can differ by more than r to either side: there "
        "are two tails, 2Φ(−r/c).",
        (_model(within=lambda t: 1 - _phi(-t)),),
    ),
    Mistake(
        "sign inside Φ",
        "You use Φ(r/c), which is above 1/2, so your numbers are negative. The tails are Φ(−r/c).",
        (_model(within=lambda t: 1 - 2 * _phi(t)),),
    ),
    Mistake(
        "erf for Φ",
        "Your Φ is not the distribution function of the normal distribution: Φ(z) = (1 + "
        "erf(z/√2))/2. Look for the √2, the 1 and the half.",
        tuple(
            _model(within=lambda t, phi=phi: 1 - 2 * phi(-t))
            for phi in (
                lambda z: (1 + erf(z)) / 2,
                erf,
                lambda z: erf(z / math.sqrt(2)),
                lambda z: 1 + erf(z / math.sqrt(2)),
                lambda z: erf(z / math.sqrt(2)) / 2,
                lambda z: (1 + erf(z / 2)) / 2,
            )
        ),
    ),
    Mistake(
        "density for Φ",
        "You use the density of the normal distribution for Φ. Φ is its integral, the chance to be "
        "below.",
        (_model(within=lambda t: 1 - 2 * _density(t)),),
    ),
    Mistake(
        "exponent without the 2",
        "Your exponential is exp(−r²/c²). The exponent of a normal density has a 2 below: "
        "exp(−r²/(2c²)). Mind that −r**2 / 2 * c**2 multiplies by c².",
        (
            _model(bracket=lambda t: 1 - np.exp(-t * t)),
            lambda distance, width: np.where(
                distance == 0,
                1.0,
                _within(_ratio(distance, width))
                - _front(_ratio(distance, width)) * (1 - np.exp(-(width**2) / 2 * distance**2)),
            ),
        ),
    ),
    Mistake(
        "exponent without the square",
        "Your exponential is exp(−r/(2c)), or exp(−r/c). The ratio is squared: exp(−r²/(2c²)).",
        (
            _model(bracket=lambda t: 1 - np.exp(-t / 2)),
            _model(bracket=lambda t: 1 - np.exp(-t)),
        ),
    ),
    Mistake(
        "sign of the exponent",
        "Your exponential grows: the sign in exp(−r²/(2c²)) is missing. In Python -x**2 is −(x²), "
        "and (-x)**2 is x².",
        (_model(bracket=lambda t: 1 - np.exp(t * t / 2)),),
    ),
    Mistake(
        "no 1 − exp",
        "You multiply by exp(−r²/(2c²)), or by nothing. The factor is 1 − exp(−r²/(2c²)).",
        (
            _model(bracket=lambda t: np.exp(-t * t / 2)),
            _model(bracket=lambda t: 1.0),
        ),
    ),
    Mistake(
        "second term added",
        "You add the last term. It is subtracted: it is the chance that the offset b puts an end "
        "of an interval between the two.",
        (_model(within=lambda t: _within(t) + 2 * _front(t) * _bracket(t)),),
    ),
    Mistake(
        "second term forgotten",
        "You return 1 − 2Φ(−r/c), the chance that the projections are less than r apart. They may "
        "still lie on two sides of an end of an interval: the last term is missing.",
        (_model(front=lambda t: 0.0),),
    ),
    Mistake(
        "root of 2π",
        "The factor of your last term is not 2c/(√(2π) r). The root is over 2π as a whole, and it "
        "stands below, as r does: in Python a / b * c multiplies by c.",
        tuple(
            _model(front=lambda t, factor=factor: factor / t)
            for factor in (
                2 / (2 * math.pi),
                2 / (math.sqrt(2) * math.pi),
                2 / math.sqrt(math.pi),
                1 / math.sqrt(math.pi),
                2 / math.pi,
                2 * math.sqrt(2 * math.pi),
                2 / math.sqrt(2) * math.pi,
            )
        ),
    ),
    Mistake(
        "last term without its 2",
        "The factor of your last term is half of what it should be: 2c/(√(2π) r).",
        (_model(front=lambda t: _front(t) / 2), _model(front=lambda t: _front(t) * 2)),
    ),
    Mistake(
        "last term upside down",
        "The factor of your last term has r/c where it should have c/r.",
        (_model(front=lambda t: _front(1 / t)),),
    ),
    Mistake(
        "normal for its absolute value",
        "Your numbers are half of what they should be: at distance 0 they go to 1/2. The integral "
        "takes the density of |a · (x − y)|, which is twice that of a · (x − y) on one side.",
        (lambda distance, width: _p(distance, width) / 2, _of_ratio(lambda t: _right(1.0, t) / 2)),
    ),
    Mistake(
        "Cauchy",
        "This is the probability for directions from the Cauchy distribution, which is 1-stable "
        "and belongs to the distance Σ|xᵢ − yᵢ|. Normal directions belong to the Euclidean one.",
        (_of_ratio(_cauchy),),
    ),
    Mistake(
        "no random direction",
        "You return 1 − c/r, as if the projections were c apart. Their distance is c·|N(0, 1)|: "
        "often less, and now and then much more.",
        (
            _of_ratio(lambda t: 1 - 1 / t),
            _of_ratio(lambda t: np.maximum(1 - 1 / t, 0)),
        ),
    ),
    Mistake(
        "mean of the distance",
        "You put the mean distance of the projections, √(2/π) c, into 1 − z/r. That is a tangent "
        "of P: it is right for small c alone. 1 − z/r is cut off at 0 first, and then averaged.",
        (
            _of_ratio(lambda t: 1 - math.sqrt(2 / math.pi) / t),
            _of_ratio(lambda t: np.maximum(1 - math.sqrt(2 / math.pi) / t, 0)),
        ),
    ),
    Mistake(
        "Gaussian kernel",
        "You return exp(−c²/(2r²)), or exp(−c²/r²). That is a kernel of the distance, and has its "
        "shape, but it is not this probability.",
        (_of_ratio(lambda t: np.exp(-0.5 / t**2)), _of_ratio(lambda t: np.exp(-1 / t**2))),
    ),
    Mistake(
        "product for the ratio",
        "You use r·c where r/c belongs: your numbers grow with the distance, or change with its "
        "unit.",
        (
            lambda distance, width: np.where(
                distance == 0, 1.0, _p(1 / np.where(distance == 0, 1.0, distance), width)
            ),
        ),
    ),
    Mistake(
        "several projections",
        "You return P², for two projections a table, or 1 − (1 − P)², for two tables. This is the "
        "chance for one projection.",
        (
            lambda distance, width: _p(distance, width) ** 2,
            lambda distance, width: 1 - (1 - _p(distance, width)) ** 2,
        ),
    ),
    Mistake(
        "distance squared",
        "You use c² for c, or √c. `distance` is the Euclidean distance itself.",
        (
            lambda distance, width: _p(distance**2, width),
            lambda distance, width: _p(np.sqrt(distance), width),
        ),
    ),
    Mistake(
        "not colliding",
        "Your numbers are 1 − P: the chance to fall into two intervals.",
        (lambda distance, width: 1 - _p(distance, width),),
    ),
    Mistake(
        "width ignored",
        "Your numbers do not depend on the width, as if it were 1. It is measured in the unit of "
        "the distance: only r/c counts.",
        (lambda distance, width: _p(distance, 1.0),),
    ),
    Mistake(*DISTANCE_0, tuple(map(_at_zero, (math.nan, 0.0, 0.5, math.inf, -math.inf)))),
)


def _ratio(distance, width):
    return width / np.where(distance == 0, 1.0, distance)
