"""The check of the chance that a p-stable hash puts two vectors into one interval."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnbook.arrays.arguments import library
from attnbook.arrays.move import move
from attnbook.check._calls import signature_of
from attnbook.check._collision_mistakes import DISTANCE_0, MISTAKES
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Stage, Values
from attnbook.check._report import Report
from attnbook.hashing.stable_hash import StableHash


def collision_probability(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the collision probability of the p-stable hash ⌊(a · x + b)/r⌋ at a distance c.

    That is P(c) = 1 − 2Φ(−r/c) − 2c/(√(2π) r) · (1 − exp(−r²/(2c²))) with the distribution
    function Φ of the normal distribution, and P(0) = 1 (Datar et al. 2004). Runs `f` on distances
    below and above the width, on widths other than 1, on distance 0, on single numbers and on
    arrays, in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(distance, width)``, by position. `width` is a float above 0, `distance` a
        float of at least 0 or an array of them. It returns a number, or an array of the shape of
        `distance`. It may be written for single numbers alone or for arrays alone: then it may
        raise on the other, and a remark says so. A closed form and an accurate integral are both
        right.
    time_limit : float
        Seconds for all calls together; twice as long if it takes arrays alone.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

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


def _reference(distance, width):
    return np.asarray(StableHash.collision_probability(distance, float(width)))


def _adapt(function: Callable) -> Callable:
    """Return `function` with arrays without axes as plain numbers, in and out."""

    def adapted(distance, width):
        found = function(distance if distance.ndim else float(distance), width)
        plain = isinstance(found, (int, float, np.generic)) and not isinstance(found, bool)
        return move(np.asarray(float(found)), library(distance)) if plain else found

    try:
        adapted.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    except Exception:  # some functions do not tell
        return function
    return adapted


def digits_are_enough(case: Case, values: Values, again: Callable) -> str | None:
    expected = _reference(**case.arguments)
    if values[0].shape != expected.shape or not np.allclose(values[0], expected, rtol=0, atol=0.02):
        return None
    return (
        "They are nearly right: is this an estimate from random vectors, or an integral on too "
        "coarse a grid? Five digits are asked for; the closed form has all."
    )


def lies_between_0_and_1(case: Case, values: Values, again: Callable) -> str | None:
    if np.all((values[0] >= -1e-6) & (values[0] <= 1 + 1e-6)):
        return None
    return "A probability lies between 0 and 1; here one does not."


def falls_with_the_distance(case: Case, values: Values, again: Callable) -> str | None:
    farther = again(distance=2 * case.arrays["distance"])
    if farther and np.any(farther[0] > values[0] + 1e-6):
        return "At twice the distance the probability must not be larger; here it is."
    return None


def only_the_ratio_counts(case: Case, values: Values, again: Callable) -> str | None:
    scaled = again(
        distance=2 * case.arrays["distance"], width=np.float64(2 * case.arguments["width"])
    )
    if scaled and not np.allclose(scaled[0], values[0]):
        return "Doubling distance and width together must change nothing; here it does."
    return None


def _case(distance: list | float, width: float, dtype: str = "float64") -> Case:
    about = "" if isinstance(distance, list) else f" (distance {distance})"
    return Case({"distance": np.array(distance, dtype=dtype), "width": width}, about=about)


_ROW = [0.75, 0.1, 1.3, 5.0, 2.0, 0.5, 23.0]

_NUMBERS = (
    Stage(
        tuple(
            _case(c, r)
            for c, r in ((0.5, 2.0), (0.75, 0.5), (1.7, 3.0), (2.5, 1.7), (9.0, 1.5), (0.3, 7.0))
        )
    ),
    Stage((_case(0.0, 0.5), _case(0.0, 2.0)), errors={ZeroDivisionError: DISTANCE_0[0]}),
)
_ARRAYS = (
    Stage((_case(_ROW, 1.5), _case([[0.2, 3.0], [1.0, 0.7], [5.0, 0.5]], 0.7))),
    Stage((_case([0.5, 0.0, 3.0], 2.0), _case([[0.0], [1.5]], 0.5))),
    Stage((_case(_ROW, 1.5, "float32"), _case([0.0, 1.0, 2.5], 2.5, "float32"))),
)


def _as_far_as_taken(stages: tuple[Stage, ...], what: str) -> tuple[Stage, ...]:
    first, *others = stages
    return (
        replace(first, may_raise=what),
        *(replace(stage, within=what) for stage in others),
    )


COLLISION_PROBABILITY = Check(
    name="collision_probability",
    parameters=("distance", "width"),
    results={"probability": "distance.shape"},
    reference=_reference,
    stages=(*_NUMBERS, *_as_far_as_taken(_ARRAYS, "arrays")),
    mistakes=MISTAKES,
    properties=(
        digits_are_enough,
        lies_between_0_and_1,
        falls_with_the_distance,
        only_the_ratio_counts,
    ),
    options=(),
    remarked_options=(),
    adapt=_adapt,
)
_OF_ARRAYS = replace(
    COLLISION_PROBABILITY, stages=(*_ARRAYS, *_as_far_as_taken(_NUMBERS, "single numbers"))
)
