"""The check of the chance that a p-stable hash puts two vectors into one interval, in steps."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.arrays.array import library
from attnbook.arrays.erf import erf
from attnbook.arrays.move import move
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.signatures import signed_as
from attnbook.check.steps import WHOLE, Case, Check, Stage, Values, Way, each
from attnbook.sketch import StableHash


@documented
def collision_probability(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the collision probability of the p-stable hash ⌊(a · x + ξ)/r⌋ at a distance D.

    That is p(D) = 1 − 2Φ(−r/D) − 2D/(√(2π) r) · (1 − exp(−r²/(2D²))) with the distribution
    function Φ of the normal distribution, and p(0) = 1 (Datar et al. 2004). Runs `f` on distances
    below and above the width, on widths other than 1, on distance 0, on single numbers and on
    arrays, in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(distance, width)``, by position. `width` is a float above 0, `distance` a
        float of at least 0 or an array of them. It returns a number, or an array of the shape of
        `distance`. It may be written for single numbers alone or for arrays alone: then it may
        raise on the other, a remark says so, and the limit of time counts for each of the two. A
        closed form and an accurate integral are both right.

    Examples
    --------
    >>> import math
    >>> from attnbook import check
    >>> def my_probability(distance, width):
    ...     return 1 - 2 / math.pi * math.acos(min(distance / width, 1))
    >>> check.collision_probability(my_probability).mistake
    'arccos'
    """
    report = run(COLLISION_PROBABILITY, f, time_limit)
    if report.mistake != "raises":
        return report
    of_arrays = run(_OF_ARRAYS, f, time_limit)
    if of_arrays.mistake != "raises":
        return of_arrays
    # both raise: say where it got further, by stages of as many cases as the first
    first, other = (len(check.stages[0].cases) for check in (COLLISION_PROBABILITY, _OF_ARRAYS))
    return of_arrays if of_arrays.cases * first > report.cases * other else report


_ROOT = math.sqrt(2 * math.pi)


def _closed_form(s, t, c, r):
    term = s.front(s.factor, t, c, r) * s.bracket(np.exp(s.exponent(t, c, r)))
    return s.combine(1 - s.tails * s.phi(s.argument(t)), term)


STEPS: dict[str, Any] = {
    "distance": lambda c: c,
    "width": lambda r: r,
    "ratio": lambda c, r: r / c,
    "probability": _closed_form,
    "phi": lambda z: (1 + erf(z / math.sqrt(2))) / 2,
    "argument": lambda t: -t,
    "tails": 2.0,
    "exponent": lambda t, c, r: -t * t / 2,
    "bracket": lambda power: 1 - power,
    "factor": 2 / _ROOT,
    "front": lambda factor, t, c, r: factor / t,
    "combine": lambda near, term: near - term,
    "finish": lambda p: p,
    "at_zero": 1.0,
}


def probability_from_steps(s, distance, width):
    """Return the probability by the steps `s`, each of t = r/c; they never see a distance of 0."""
    c = np.asarray(distance, dtype=float)
    apart, r = s.distance(np.where(c == 0, 1.0, c)), s.width(width)
    return np.where(c == 0, s.at_zero, s.finish(s.probability(s, s.ratio(apart, r), apart, r)))


def _integral(s, t, end):
    """Return ∫ 2φ(z)(1 − z/t) dz from 0 to `end`."""
    end = np.asarray(end, dtype=float)
    return 2 * s.phi(end) - 1 - 2 / _ROOT / t * (1 - np.exp(-(end**2) / 2))


def _of_t(*functions: Callable) -> tuple[Way, ...]:
    """Return ways that have another formula altogether, of t = r/c."""
    return each("probability", *(lambda s, t, c, r, f=f: f(t) for f in functions))


def _of_angles(angle: Callable) -> tuple[Way, ...]:
    """Return 1 − (2/π)·`angle(z)` for z as it is, NaN beyond 1, and for z cut to 1."""
    return each(
        WHOLE,
        *(
            lambda c, r, z=z, most=most: np.asarray(
                1 - 2 / math.pi * angle(np.minimum(z(np.asarray(c), r), most))
            )
            for z in (lambda c, r: c / r, lambda c, r: c / (2 * r), lambda c, r: c / 2)
            for most in (1.0, np.inf)
        ),
    )


_MEAN = math.sqrt(2 / math.pi)

_MISTAKES = mistakes(
    """
    arccos: You use 1 − (2/π)·arccos(D/r). It is 0 at distance 0, so equal vectors never meet, and
        it grows with the distance. It is no probability of this hash at all: that one is 1 −
        2Φ(−r/D) − 2D/(√(2π) r)·(1 − exp(−r²/(2D²))).
    SimHash's probability: You use an arcsine, or the angle. 1 − (2/π)·arcsin(D/2) belongs to
        sign-SimHash and unit vectors, which know no width. Here two projections, a distance of
        D·|N(0, 1)| apart, must fall into one interval of length r.
    D and r exchanged: You exchange distance and width, in one place or in all: the argument of Φ is
        −r/D, and the exponent −r²/(2D²).
    one tail: You subtract Φ(−r/D) once. A projection can differ by more than r to either side:
        there are two tails, 2Φ(−r/D).
    tails of the other side: You count the tails with a wrong factor: they are 2Φ(−r/D), two of
        them, and are subtracted from 1.
    sign inside Φ: You use Φ(r/D), which is above 1/2, so your numbers are negative. The tails are
        Φ(−r/D).
    erf for Φ: Your Φ is not the distribution function of the normal distribution: Φ(z) = (1 +
        erf(z/√2))/2. Look for the √2, the 1 and the half.
    density for Φ: You use the density of the normal distribution for Φ. Φ is its integral, the
        chance to be below.
    exponent without the 2: Your exponential is exp(−r²/D²). The exponent of a normal density has a
        2 below: exp(−r²/(2D²)). Mind that −r**2 / 2 * D**2 multiplies by D².
    exponent without the square: Your exponential is exp(−r/(2D)), or exp(−r/D). The ratio is
        squared: exp(−r²/(2D²)).
    sign of the exponent: Your exponential grows: the sign in exp(−r²/(2D²)) is missing. In Python
        -x**2 is −(x²), and (-x)**2 is x².
    no 1 − exp: You multiply by exp(−r²/(2D²)), by 1 + exp(−r²/(2D²)), or by nothing. The factor is
        1 − exp(−r²/(2D²)).
    second term added: You add the last term. It is subtracted: it is the chance that the offset ξ
        puts an end of an interval between the two.
    second term forgotten: You return 1 − 2Φ(−r/D), the chance that the projections are less than r
        apart. They may still lie on two sides of an end of an interval: the last term is missing.
    root of 2π: The factor of your last term is not 2D/(√(2π) r). The root is over 2π as a whole,
        and it stands below, as r does: in Python a / b * c multiplies by c.
    last term without its 2: The factor of your last term is half or twice what it should be:
        2D/(√(2π) r).
    last term upside down: The factor of your last term has r/D where it should have D/r.
    normal for its absolute value: Your numbers are half of what they should be: at distance 0 they
        go to 1/2. The integral takes the density of |a · (x − y)|, which is twice that of a · (x −
        y) on one side.
    Cauchy: This is the probability for directions from the Cauchy distribution, which is 1-stable
        and belongs to the distance Σ|xᵢ − yᵢ|. Normal directions belong to the Euclidean one.
    no random direction: You return 1 − D/r, as if the projections were D apart. Their distance is
        D·|N(0, 1)|: often less, and now and then much more.
    mean of the distance: You put the mean distance of the projections, √(2/π) D, into 1 − z/r, or
        average 1 − z/r without cutting it off at 0. That is a tangent of p: it is right for small D
        alone.
    Gaussian kernel: You return exp(−D²/(2r²)), exp(−D²/r²) or exp(−D/r). That is a kernel of the
        distance, and has its shape, but it is not this probability.
    product for the ratio: You use r·D where r/D belongs: your numbers grow with the distance, or
        change with its unit.
    several projections: You return p², for two projections a table, or 1 − (1 − p)², for two
        tables. This is the chance for one projection.
    distance squared: You use D² for D, or √D. `distance` is the Euclidean distance itself.
    not colliding: Your numbers are 1 − p: the chance to fall into two intervals.
    width ignored: Your numbers do not depend on the width, as if it were 1. It is measured in the
        unit of the distance: only r/D counts.
    ratio squared: You put (r/D)² or √(r/D) where r/D belongs. Φ takes −r/D itself; the square
        stands in the exponent alone.
    distance 0: At distance 0 your function divides by 0, or returns something else than 1. A vector
        always meets its equal: return 1 there. In an array, make the distance safe before you
        divide, as where(D == 0, 1, D) does, and choose afterwards.
    argument of Φ: Φ takes −r/D. Yours takes its half, its double or its square.
    another exponent: A square or the factor 2 stands in the wrong place of your exponent. It is
        −r²/(2D²): both r and D are squared, and the 2 stands below.
    integral to another end: You integrate to 1 or to r, in a variable that ends at r/D: what it
        stands for is the distance of the projections, D z, and that ends at r.
    density without 1/D: Your numbers are D times as large as they should be. The density of D·|N(0,
        1)| at t is 2φ(t/D)/D.
    distance scaled: You take twice the distance, its half, or √2 times more or less of it. a · x −
        a · y is normal with standard deviation D, without another factor.
    """,
    {
        "arccos": _of_angles(np.arccos),
        "SimHash's probability": _of_angles(np.arcsin),
        "D and r exchanged": (
            {"ratio": lambda c, r: c / r},
            {"ratio": lambda c, r: c / r, "at_zero": math.nan},
            {"argument": lambda t: -1 / t},
            {"exponent": lambda t, c, r: -1 / (2 * t * t)},
        ),
        "argument of Φ": each(
            "argument", lambda t: -t / 2, lambda t: -2 * t, lambda t: -t * t, lambda t: -t * t / 2
        ),
        "one tail": {"tails": 1.0},
        "tails of the other side": each("tails", 0.5, -2.0),
        "sign inside Φ": {"argument": lambda t: t},
        "erf for Φ": each(
            "phi",
            erf,
            *(lambda z, k=k: (1 + erf(k * z)) / 2 for k in (1, 0.5, math.sqrt(2))),
            *(
                lambda z, a=a, b=b: a + b * erf(z / math.sqrt(2))
                for a, b in ((0, 1), (1, 1), (0, 0.5), (1, -1))
            ),
        ),
        "density for Φ": {"phi": lambda z: np.exp(-z * z / 2) / _ROOT},
        "exponent without the 2": each(
            "exponent", lambda t, c, r: -t * t, lambda t, c, r: -(r**2) / 2 * c**2
        ),
        "another exponent": each(
            "exponent",
            lambda t, c, r: -r * r / (2 * c),
            lambda t, c, r: -r / (2 * c * c),
            lambda t, c, r: -t * t / 4,
            lambda t, c, r: -2 * t * t,
        ),
        "exponent without the square": each("exponent", lambda t, c, r: -t / 2, lambda t, c, r: -t),
        "sign of the exponent": each(
            "exponent", lambda t, c, r: t * t / 2, lambda t, c, r: t * t, lambda t, c, r: t / 2
        ),
        "no 1 − exp": each(
            "bracket", lambda power: power, lambda power: 1 + power, lambda power: 1.0
        ),
        "second term added": {"combine": lambda near, term: near + term},
        "second term forgotten": {"combine": lambda near, term: near},
        "root of 2π": (
            *each(
                "front",
                lambda factor, t, c, r: factor * c * r,
                lambda factor, t, c, r: factor * c,
                lambda factor, t, c, r: factor / r,
                lambda factor, t, c, r: factor / t**2,
                lambda factor, t, c, r: factor * np.sqrt(r) / t,
                lambda factor, t, c, r: 1.0,
            ),
            *each("factor", 2.0, math.sqrt(2)),
            *each("factor", *(2 / x for x in (2 * math.pi, math.sqrt(2) * math.pi, math.pi))),
            *each("factor", *(x / math.sqrt(math.pi) for x in (1, 2))),
            *each("factor", 2 * _ROOT, math.sqrt(2) * math.pi),
        ),
        "last term without its 2": each("factor", 1 / _ROOT, 4 / _ROOT),
        "last term upside down": {"front": lambda factor, t, c, r: factor * t},
        "normal for its absolute value": tuple(
            {"finish": lambda p: p / 2, "at_zero": at_zero} for at_zero in (1.0, 0.5)
        ),
        "Cauchy": _of_t(lambda t: 2 * np.arctan(t) / math.pi - np.log1p(t * t) / (math.pi * t)),
        "no random direction": _of_t(lambda t: 1 - 1 / t, lambda t: np.maximum(1 - 1 / t, 0)),
        "mean of the distance": _of_t(
            lambda t: 1 - _MEAN / t, lambda t: np.maximum(1 - _MEAN / t, 0)
        ),
        "integral to another end": each(
            "probability",
            lambda s, t, c, r: _integral(s, t, 1.0),
            lambda s, t, c, r: _integral(s, t, r),
        ),
        "density without 1/D": each("probability", lambda s, t, c, r: c * _closed_form(s, t, c, r)),
        "Gaussian kernel": _of_t(
            lambda t: np.exp(-0.5 / t**2), lambda t: np.exp(-1 / t**2), lambda t: np.exp(-1 / t)
        ),
        "product for the ratio": {"ratio": lambda c, r: r * c},
        "several projections": each("finish", lambda p: p**2, lambda p: 1 - (1 - p) ** 2),
        "distance scaled": each(
            "distance", *(lambda c, k=k: k * c for k in (2, 0.5, math.sqrt(2), math.sqrt(0.5)))
        ),
        "distance squared": each("distance", np.square, np.sqrt),
        "not colliding": tuple(
            {"finish": lambda p: 1 - p, "at_zero": at_zero} for at_zero in (1.0, 0.0)
        ),
        "width ignored": {"width": lambda r: 1.0},
        "ratio squared": each("ratio", lambda c, r: (r / c) ** 2, lambda c, r: np.sqrt(r / c)),
        "distance 0": each("at_zero", math.nan, 0.0, 0.5, math.inf, -math.inf),
    },
)


def _reference(distance, width):
    return np.asarray(StableHash.collision_probability(distance, float(width)))


def _adapt(function: Callable) -> Callable:
    """Return `function` with arrays without axes as plain numbers, in and out."""

    def adapted(distance, width):
        found = function(distance if distance.ndim else float(distance), width)
        plain = isinstance(found, (int, float, np.generic)) and not isinstance(found, bool)
        return move(np.asarray(float(found)), library(distance)) if plain else found

    return signed_as(function, adapted)


def _digits_are_enough(case: Case, values: Values, again: Callable) -> str | None:
    expected = _reference(**case.arguments)
    if values[0].shape != expected.shape or not np.allclose(values[0], expected, rtol=0, atol=0.02):
        return None
    return (
        "They are nearly right: is this an estimate from random vectors, or an integral on too "
        "coarse a grid? Five digits are asked for; the closed form has all."
    )


def _lies_between_0_and_1(case: Case, values: Values, again: Callable) -> str | None:
    if np.all((values[0] >= -1e-6) & (values[0] <= 1 + 1e-6)):
        return None
    return "A probability lies between 0 and 1; here one does not."


_PROPERTIES = (
    _digits_are_enough,
    _lies_between_0_and_1,
    moved(
        lambda given: {"distance": 2 * given["distance"]},
        lambda near, far: far <= near + 1e-6,
        "At twice the distance the probability must not be larger; here it is larger.",
    ),
    moved(
        lambda given: {name: np.multiply(2, x) for name, x in given.items()},
        np.isclose,
        "Doubling distance and width together must change nothing; here the result changes.",
    ),
)


def _case(distance: list | float, width: float, dtype: str = "float64") -> Case:
    about = "" if isinstance(distance, list) else f" (distance {distance})"
    return Case({"distance": np.array(distance, dtype=dtype), "width": width}, about=about)


_ROW = [0.75, 0.1, 1.3, 5.0, 2.0, 0.5, 23.0]
_PAIRS = ((0.5, 2.0), (0.75, 0.5), (1.7, 3.0), (2.5, 1.7), (9.0, 1.5), (0.3, 7.0))

_NUMBERS = (
    Stage(tuple(_case(c, r) for c, r in _PAIRS)),
    Stage((_case(0.0, 0.5), _case(0.0, 2.0)), errors={ZeroDivisionError: "distance 0"}),
)
_ARRAYS = (
    Stage((_case(_ROW, 1.5), _case([[0.2, 3.0], [1.0, 0.7], [5.0, 0.5]], 0.7))),
    Stage((_case([0.5, 0.0, 3.0], 2.0), _case([[0.0], [1.5]], 0.5))),
    Stage((_case(_ROW, 1.5, "float32"), _case([0.0, 1.0, 2.5], 2.5, "float32"))),
)


def _as_far_as_taken(stages: tuple[Stage, ...], what: str) -> tuple[Stage, ...]:
    first, *others = stages
    return (replace(first, may_raise=what), *(replace(stage, within=what) for stage in others))


COLLISION_PROBABILITY = Check(
    name="collision_probability",
    parameters=("distance", "width"),
    results={"probability": "distance.shape"},
    reference=_reference,
    compute=probability_from_steps,
    steps=STEPS,
    stages=(*_NUMBERS, *_as_far_as_taken(_ARRAYS, "arrays")),
    mistakes=_MISTAKES,
    properties=_PROPERTIES,
    adapt=_adapt,
)
_OF_ARRAYS = replace(
    COLLISION_PROBABILITY, stages=(*_ARRAYS, *_as_far_as_taken(_NUMBERS, "single numbers"))
)
