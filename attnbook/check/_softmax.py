"""The check of a softmax: its cases, its known mistakes, its properties."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw

_LARGE = np.array([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -999.0], [0.0, 1.0, 2.0]])
_SPREAD = np.array([[1000.0, 0.0, -1000.0], [-1000.0, 0.0, 1000.0]])
"""Rows in which the first number, the mean and the smallest lie far below the largest."""


def _cases(*shapes: tuple[int, ...], dtype: str = "float64", **options: int) -> tuple[Case, ...]:
    return tuple(Case({"x": draw(1, *shape).astype(dtype)}, options) for shape in shapes)


def rows_sum_to_one(case: Case, values: Values, again: Callable) -> str | None:
    totals = np.sum(values[0], axis=case.options.get("axis", -1)).flatten()
    worst = totals[np.argmax(np.abs(totals - 1))]
    return None if np.isclose(worst, 1) else f"Weights must sum to 1; here a sum is {worst:.4g}."


def weights_are_positive(case: Case, values: Values, again: Callable) -> str | None:
    lowest = np.min(values[0])
    return f"No weight is below 0; here one is {lowest:.4g}." if lowest < 0 else None


def shift_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    moved = again(x=case.arrays["x"] + 1)
    if moved and not np.allclose(moved[0], values[0]):
        return "Adding 1 to every score must change nothing; here it changes the weights."
    return None


NO_MAXIMUM = (
    "no maximum",
    "exp overflows: exp(1000) is infinite, and ∞/∞ is NaN. Far below zero every exponential "
    "is 0, and 0/0 is NaN too. Subtract the largest score of each row before exp; this changes no "
    "weight, because the common factor cancels.",
)
GLOBAL_MAXIMUM = (
    "maximum of the whole array",
    "You subtract one maximum, that of the whole array. A row that lies far below it underflows to "
    "zeros, and 0/0 is NaN. Each row needs a maximum of its own.",
)
OTHER_SHIFT = (
    "not the maximum",
    "You subtract a number of each row before exp, but not its largest. Scores far above that "
    "number overflow all the same, and ∞/∞ is NaN. Only the maximum leaves no exponent above 0.",
)
SPREAD_ERRORS: dict[type[BaseException], str] = {OverflowError: OTHER_SHIFT[0]}
LARGE_ERRORS: dict[type[BaseException], str] = {
    OverflowError: NO_MAXIMUM[0],
    ZeroDivisionError: GLOBAL_MAXIMUM[0],
}
"""What math.exp and a division of Python floats raise where arrays give NaN."""

_MISTAKES = (
    Mistake(
        "wrong axis",
        "Your columns sum to one, not your rows: the sum runs over axis 0. The scores that compete "
        "with each other lie along the last axis, so maximum and sum belong to axis −1.",
        (lambda x, axis=-1: r.softmax(x, 0),),
    ),
    Mistake(
        "one sum for all",
        "All entries together sum to one: you divide by the sum of the whole array. Each row is a "
        "choice of its own and needs its own sum: name the axis, and keep it for the division.",
        (r.over_all,),
    ),
    Mistake(
        "not normalised",
        "You return the exponentials themselves. They are positive, but they do not sum to one "
        "until each row is divided by its sum.",
        (r.only_exp, r.only_shifted_exp),
    ),
    Mistake(
        "length instead of sum",
        "You divide by the length of the row, √Σx². Then the squares sum to one, not the weights. "
        "Divide by the plain sum.",
        (r.by_length, r.by_length_of_scores),
    ),
    Mistake(
        "no exponential",
        "You divide the scores by their sum without taking exp first. Scores may be negative and "
        "their sum may be zero; exp makes each one positive before the division.",
        (r.only_sum,),
    ),
    Mistake(
        "squares or absolute values",
        "You make the scores positive by squaring them or by dropping their sign. Then −3 counts "
        "as much as 3. exp keeps the order: a larger score always gets a larger weight.",
        (r.of_squares, r.of_absolutes),
    ),
    Mistake(
        "logarithm returned",
        "You return the logarithm of the softmax: your numbers are negative, and their "
        "exponentials sum to one. That is the right quantity for a loss, but not for weights.",
        (r.logarithm,),
    ),
    Mistake(
        "base 2",
        "You use powers of 2 where powers of e are asked for. The weights sum to one but are too "
        "flat, as at a temperature of 1/ln 2.",
        (r.base_two,),
    ),
    Mistake(
        "sign of the scores",
        "You take exp of minus the scores, so the smallest score wins. Look at the sign in front "
        "of x, and at the order in which x and its maximum are subtracted.",
        (r.of_negative,),
    ),
    Mistake(
        "softmax twice",
        "You apply the softmax to weights that are already softmaxed. They lie between 0 and 1, so "
        "the second pass makes them nearly equal. Apply it once.",
        (r.twice,),
    ),
    Mistake(
        "hard maximum",
        "All weight goes to the largest score, and the others get zero. This is argmax; softmax is "
        "its smooth form and gives every score a share, so that gradients can flow.",
        (r.hard,),
    ),
    Mistake(
        "sigmoid",
        "You apply the sigmoid to each score on its own, so the scores do not compete and a row "
        "does not sum to one. Divide by the sum over the row, not by 1 + exp(−x).",
        (r.sigmoid,),
    ),
    Mistake(
        "keepdims forgotten",
        "The axis that you reduce is gone, so row i is combined with the maximum or the sum of row "
        "j. It runs only where the array is square, or has one row. Pass keepdims=True.",
        (
            r.sum_without_keepdims,
            r.maximum_without_keepdims,
            r.both_without_keepdims,
            r.exp_sum_without_keepdims,
        ),
    ),
    Mistake(*NO_MAXIMUM, (r.without_maximum,)),
    Mistake(*GLOBAL_MAXIMUM, (r.with_global_maximum,)),
    Mistake(*OTHER_SHIFT, r.OTHER_SHIFTS),
    Mistake(
        "axis 1 of a batch",
        "For a matrix axis 1 is the last axis, for a batch it is not: there your weights sum to "
        "one over the wrong axis. Write −1, which is the last axis of any array.",
        (lambda x, axis=-1: r.softmax(x, 1),),
    ),
    Mistake(
        "axis ignored",
        "Your function takes `axis` but always works on the last one. Pass it on to the maximum "
        "and to the sum.",
        (lambda x, axis=-1: r.softmax(x),),
    ),
)

SOFTMAX = Check(
    name="softmax",
    parameters=("x",),
    results={"weights": "x.shape"},
    reference=attnbook.softmax,
    stages=(
        Stage(_cases((3, 3), (2, 5), (5, 3), (1, 3), (2, 1))),
        Stage(_cases((3, 3), (2, 5), dtype="float32")),
        Stage((Case({"x": _LARGE}), Case({"x": _LARGE.astype(np.float32)})), errors=LARGE_ERRORS),
        Stage((Case({"x": _SPREAD}),), errors=SPREAD_ERRORS),
        Stage(_cases((7,), (1,)), beyond="a single row (one axis)"),
        Stage(_cases((2, 3, 5), (3, 3, 3)), beyond="a batch (leading axes)"),
        Stage(_cases((3, 5), axis=0) + _cases((3, 5), (3, 3), axis=1), option="axis"),
        Stage(
            _cases((2, 3, 5), axis=1) + _cases((2, 3, 5), axis=-3),
            option="axis",
            beyond="a batch (leading axes) with another axis",
        ),
    ),
    mistakes=_MISTAKES,
    properties=(rows_sum_to_one, weights_are_positive, shift_changes_nothing),
    options=("axis",),
    remarked_options=("axis",),
)
