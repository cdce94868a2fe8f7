"""The check of the chance that a p-stable hash puts two vectors into one interval, in steps."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnbook.arrays.array import library
from attnbook.arrays.move import move
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text
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


ROOT = math.sqrt(2 * math.pi)


def closed_form(s, t, c, r):
    term = s.front(s.factor, t, c, r) * s.bracket(np.exp(s.exponent(t, c, r)))
    return s.combine(1 - s.tails * s.phi(s.argument(t)), term)


def probability_from_steps(s, distance, width):
    """Return the probability by the steps `s`, each of t = r/c; they never see a distance of 0."""
    c = np.asarray(distance, dtype=float)
    apart, r = s.distance(np.where(c == 0, 1.0, c)), s.width(width)
    return np.where(c == 0, s.at_zero, s.finish(s.probability(s, s.ratio(apart, r), apart, r)))


def integral(s, t, end):
    """Return ∫ 2φ(z)(1 − z/t) dz from 0 to `end`."""
    end = np.asarray(end, dtype=float)
    return 2 * s.phi(end) - 1 - 2 / ROOT / t * (1 - np.exp(-(end**2) / 2))


def of_angle(angle, z, most):
    """Return 1 − (2/π)·`angle(z)`, of a z that is cut to 1, or NaN beyond it."""
    return np.asarray(1 - 2 / math.pi * angle(np.minimum(z, most)))


TEXT = Text(globals())


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
    steps=TEXT.steps,
    stages=(*_NUMBERS, *_as_far_as_taken(_ARRAYS, "arrays")),
    mistakes=TEXT.mistakes,
    properties=_PROPERTIES,
    adapt=_adapt,
)
_OF_ARRAYS = replace(
    COLLISION_PROBABILITY, stages=(*_ARRAYS, *_as_far_as_taken(_NUMBERS, "single numbers"))
)
