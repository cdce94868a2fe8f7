"""The softmax in steps, the ways to get each wrong, and the check of a reader's own."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import (
    Case,
    Check,
    Stage,
    Values,
    draw,
    sized,
    told_apart,
)
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text


@documented
def softmax(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a softmax along the last axis.

    Runs `f` on matrices (square, wide, tall, one row, one column), on scores of ±1000, in float64
    and float32, on a single row and on batches, and along other axes if it takes `axis`.

    Parameters
    ----------
    f : callable
        Called as ``f(x)``, and as ``f(x, axis=…)`` if it takes an argument named `axis`. It returns
        weights of the shape of `x`. It may be written only for matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_softmax(x):
    ...     return np.exp(x) / np.sum(np.exp(x), axis=-1, keepdims=True)
    >>> check.softmax(my_softmax).mistake
    'no maximum'
    """
    return run(SOFTMAX, f, time_limit)


# The steps. A row of −∞ alone becomes zeros.


def along(reduce: Callable, axis: int | None = None, keepdims: bool = True) -> Callable:
    """Return the step that reduces along this axis, or along that which is asked for."""
    return lambda x, given: reduce(x, axis=given if axis is None else axis, keepdims=keepdims)


plain_maximum = along(np.max)


def maximum(x, axis):
    """Return the maximum, or 0 where every score is −∞."""
    highest = plain_maximum(x, axis)
    return np.where(highest == -np.inf, 0, highest)


def or_one(total):
    return np.where(total == 0, 1, total)


def softmax_from_steps(s, x, axis=-1):
    """Return the softmax by the steps `s`."""
    axis = s.axis(x, axis)
    x = s.exponents(x, axis)
    powers = s.power(x - s.shift(x, axis))
    return s.finish(s.divide(powers, s.total(powers, axis)), x, axis)


# Wrong steps.


def normalized(x, axis=-1):
    return x / np.sum(x, axis=axis, keepdims=True)


def shifted(x, axis):
    return np.exp(x - plain_maximum(x, axis))


def normal(x, axis):
    """Return the softmax."""
    return normalized(shifted(x, axis), axis)


def length(x, axis, keepdims):
    return np.sqrt(np.sum(x**2, axis=axis, keepdims=keepdims))


BOUNDS = (20, 30, 50, 80, 88, 100, 500, 700, 709)
"""What exp may be kept below, to keep it from overflowing."""


def sum_without(powers, place, axis):
    return np.sum(np.delete(powers, place, axis), axis, keepdims=True)


TEXT = Text(globals())

NORMALIZATION_MISTAKES = TEXT["normalization mistakes"]
"""Mistakes of any softmax; those of the axis are a matter of a reader's own."""

LARGE_ERRORS: dict[type[BaseException], str] = {
    OverflowError: "no maximum",
    ZeroDivisionError: "maximum of the whole array",
}
SPREAD_ERRORS: dict[type[BaseException], str] = {OverflowError: "not the maximum"}
"""What math.exp and a division of Python floats raise where arrays give NaN."""


def rows_sum_to_one(case: Case, values: Values, again: Callable) -> str | None:
    totals = np.sum(values[0], axis=case.options.get("axis", -1)).flatten()
    worst = totals[np.argmax(np.abs(totals - 1))]
    shown, _ = told_apart(worst, 1)
    return None if np.isclose(worst, 1) else f"Weights must sum to 1; here a sum is {shown}."


def weights_are_positive(case: Case, values: Values, again: Callable) -> str | None:
    lowest = np.min(values[0])
    return f"No weight is below 0; here one is {lowest:.4g}." if lowest < 0 else None


shift_changes_nothing = moved(
    lambda arguments: {"x": arguments["x"] + 1},
    np.allclose,
    "Adding 1 to every score must change nothing; here it changes the weights.",
)


_LARGE = np.array([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -999.0], [0.0, 1.0, 2.0]])
_SPREAD = np.array([[1000.0, 0.0, -1000.0], [-1000.0, 0.0, 1000.0]])
"""Rows in which the first number, the mean and the smallest lie far below the largest."""


def _cases(*shapes: tuple[int, ...], dtype: str = "float64", **options: int) -> tuple[Case, ...]:
    return tuple(Case({"x": draw(1, *shape).astype(dtype)}, options) for shape in shapes)


SOFTMAX = Check(
    name="softmax",
    parameters=("x",),
    results={"weights": "x.shape"},
    reference=attnbook.softmax,
    compute=softmax_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        Stage(_cases(*sized((3, 3), (2, 5), (5, 3), (1, 3), (2, 1)))),
        Stage(_cases((3, 3), (2, 5), dtype="float32")),
        Stage((Case({"x": _LARGE}), Case({"x": _LARGE.astype(np.float32)})), errors=LARGE_ERRORS),
        Stage((Case({"x": _SPREAD}),), errors=SPREAD_ERRORS),
        Stage(_cases((7,), (1,)), beyond="a single row (one axis)"),
        Stage(_cases((2, 3, 5), (3, 3, 3)), may_raise="a batch (leading axes)"),
        Stage(_cases((3, 5), axis=0) + _cases((3, 5), (3, 3), axis=1), option="axis"),
        Stage(
            _cases((2, 3, 5), axis=1) + _cases((2, 3, 5), axis=-3),
            option="axis",
            may_raise="a batch (leading axes) with another axis",
        ),
    ),
    mistakes=NORMALIZATION_MISTAKES + TEXT["of a softmax alone"],
    properties=(rows_sum_to_one, weights_are_positive, shift_changes_nothing),
    options=("axis",),
    remarked_options=("axis",),
    legible=True,
)
