"""The softmax in steps, the ways to get each wrong, and the check of a reader's own."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each, sized, told_apart


@documented
def softmax(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a softmax along the last axis.

    Runs `f` on matrices (square, wide, tall, one row, one column), on scores of ±1000, in float64
    and float32, on a single row and on batches, and along other axes if it takes `axis`.

    Parameters
    ----------
    f : callable
        Called as ``f(x)``, and as ``f(x, axis=…)`` if it takes an argument named `axis`. It returns
        weights of the shape of `x`. It may be written for matrices only.

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


def guarded(powers, total):
    return powers / np.where(total == 0, 1, total)


SOFTMAX_STEPS: dict[str, Callable] = {
    "axis": lambda x, axis: axis,
    "exponents": lambda x, axis: x,
    "shift": maximum,
    "power": np.exp,
    "total": along(np.sum),
    "divide": guarded,
    "finish": lambda weights, x, axis: weights,
}


def softmax_from_steps(s, x, axis=-1):
    """Return the softmax by the steps `s`."""
    axis = s.axis(x, axis)
    x = s.exponents(x, axis)
    powers = s.power(x - s.shift(x, axis))
    return s.finish(s.divide(powers, s.total(powers, axis)), x, axis)


# Wrong steps.


def normalized(x, axis=-1):
    return x / np.sum(x, axis=axis, keepdims=True)


def unguarded(powers, total):
    return powers / total


def _shifted(x, axis):
    return np.exp(x - plain_maximum(x, axis))


def normal(x, axis):
    """Return the softmax."""
    return normalized(_shifted(x, axis), axis)


def _length(x, axis, keepdims):
    return np.sqrt(np.sum(x**2, axis=axis, keepdims=keepdims))


_NO_SHIFT: Way = {"shift": lambda x, axis: 0}
_NO_KEEPDIMS: Way = {"total": along(np.sum, keepdims=False)}
_NO_KEEPDIMS_OF_MAXIMUM: Way = {"shift": along(np.max, keepdims=False)}

_EXP_ALONE: Way = {**_NO_SHIFT, "divide": lambda powers, total: powers}
_BOUNDS = (20, 30, 50, 80, 88, 100, 500, 700, 709)
"""What exp may be kept below, to keep it from overflowing."""


def _of_finite(change: Callable, *numbers: float) -> Callable:
    """Return the step that changes all scores but those that are hidden by −∞."""
    return lambda x, axis: np.where(x == -np.inf, x, change(x, *numbers))


def _sum_without(powers, place, axis):
    return np.sum(np.delete(powers, place, axis), axis, keepdims=True)


_OVER_THE_SUM = (
    lambda x, axis: x / np.sum(np.exp(x), axis, keepdims=True),
    lambda x, axis: x / np.sum(_shifted(x, axis), axis, keepdims=True),
    lambda x, axis: (x - plain_maximum(x, axis)) / np.sum(_shifted(x, axis), axis, keepdims=True),
)
"""Scores, or shifted ones, divided by the sum of their exponentials."""

VARIANTS = ({"divide": unguarded}, _NO_SHIFT)
"""Not wrong as long as no sum is 0, and as no score is large."""

NORMALIZATION_MISTAKES = mistakes(
    """
    wrong axis: Your columns sum to one, not your rows: the sum runs over axis 0. The scores that
        compete with each other lie along the last axis, so maximum and sum belong to axis −1.
    one sum for all: All entries together sum to one: you divide by the sum of the whole array. Each
        row is a choice of its own and needs its own sum: name the axis, and keep it.
    sum carried on: You never set the sum back to 0, so each row is divided by the sum of all rows
        up to it. Begin each row with a sum of its own.
    mean instead of sum: You divide by the mean of the exponentials, so a row sums to its length.
        Divide by their sum.
    not normalised: You return the exponentials themselves, at most divided by the largest one. They
        are positive, but they do not sum to one until each row is divided by its sum.
    length instead of sum: You divide by the length of the row, √Σx². Then the squares sum to one,
        not the weights. Divide by the plain sum.
    no exponential: You divide the scores by their sum without taking exp first. Scores may be
        negative and their sum may be zero; exp makes each one positive before the division.
    squares or absolute values: You make the scores positive by squaring them or by dropping their
        sign. Then −3 counts as much as 3. exp keeps the order: a larger score gets a larger weight.
    negative scores dropped: You replace negative scores by 0 and divide by what is left. exp makes
        every score positive and keeps the order.
    divided before the exponential: You divide the scores by their sum and take exp then. The
        weights come out positive and do not sum to one: take exp first, and divide last.
    logarithm returned: You return the logarithm of the softmax: your numbers are negative, and
        their exponentials sum to one. That is the right quantity for a loss, but not for weights.
    log-sum-exp returned: You return the logarithm of the sum of exponentials, one number a row. It
        is what is subtracted from the scores to give the logarithms of the weights.
    base 2: You use powers of 2 where powers of e are asked for. The weights sum to one but are too
        flat, as at a temperature of 1/ln 2.
    base 10: You use powers of 10 where powers of e are asked for. The weights sum to one but are
        too sharp, as at a temperature of 1/ln 10.
    sign of the scores: You take exp of minus the scores, so the smallest score wins. Look at the
        sign in front of x, and at the order in which x and its maximum are subtracted.
    one minus the weights: You return 1 − the softmax: the largest score gets the smallest weight,
        and a row sums to its length less one.
    softmax twice: You apply the softmax to weights that are already softmaxed. They lie between 0
        and 1, so the second pass makes them nearly equal. Apply it once.
    hard maximum: All weight goes to the largest score, and the others get zero. This is argmax;
        softmax is its smooth form and gives every score a share, so that gradients can flow.
    sigmoid: You apply the sigmoid to each score on its own, so the scores do not compete and a row
        does not sum to one. Divide by the sum over the row, not by 1 + exp(−x).
    one added to the sum: You add 1, or a smaller number, to the sum of the exponentials, so a row
        sums to less than one. The sum of the shifted exponentials is never 0: it needs no addition.
    keepdims forgotten: The axis that you reduce is gone, so row i is combined with the maximum or
        the sum of row j. It runs only on a square, one row or one column. Pass
        keepdims=True.
    no maximum: exp overflows: exp(1000) is infinite, and ∞/∞ is NaN. Far below zero every
        exponential is 0, and 0/0 is NaN too. Subtract the largest score of each row before exp;
        this changes no weight, because the common factor cancels.
    maximum of the whole array: You subtract one maximum, that of the whole array. A row that lies
        far below it underflows to zeros, and 0/0 is NaN. Each row needs a maximum of its own.
    maximum over the wrong axis: You subtract the maximum of each column. Rows compete, so a row
        that lies far below its columns' maxima underflows to zeros, or keeps scores that overflow.
        The maximum belongs to the axis of the sum.
    not the maximum: You subtract a number of each row before exp, but not its largest. Scores far
        above that number overflow, and ∞/∞ is NaN. Only the maximum leaves no exponent above 0.
    axis 1 of a batch: For a matrix axis 1 is the last axis, for a batch it is not: there your
        weights sum to one over the wrong axis. Write −1, which is the last axis of any array.
    axis ignored: Your function takes `axis` and works on the last one. Pass it to maximum and sum.
    divided by another number: You divide the exponentials by the smallest of them, by their product
        or by how many they are. Divide by their sum.
    scores returned: You return the scores less their maximum. exp makes positive numbers of them,
        and each row is divided by its sum then.
    temperature: Your scores are multiplied or divided by a number, such as 2 or 10, before exp is
        taken of them. That is a temperature, which nobody asked for here.
    scores clipped: You cut the scores off at a number, or squeeze them with tanh, before exp. Two
        scores beyond it then get the same weight. The maximum is subtracted, so that exp does not
        overflow, and nothing need be cut off.
    scores normalised: You divide the scores by their own size before exp, with or without their
        mean subtracted. How far the scores lie apart must count: it says how sure the choice is.
    one left out of the sum: The first or the last exponential is missing in the sum by which you
        divide: a loop or a slice leaves it out, so a row sums to more than one.
    """,
    {
        "wrong axis": (
            *each("axis", lambda x, axis: 0, lambda x, axis: -2),
            {"total": along(np.sum, 0)},
        ),
        "one sum for all": {"total": lambda powers, axis: np.sum(powers)},
        "sum carried on": {
            "total": lambda powers, axis: np.cumsum(np.sum(powers, -1, keepdims=True), axis=-2)
        },
        "mean instead of sum": {"total": along(np.mean)},
        "not normalised": {"divide": lambda powers, total: powers},
        "scores returned": {"power": lambda x: x, "divide": lambda powers, total: powers},
        "length instead of sum": (
            {"total": along(_length)},
            {"power": lambda x: x, "total": along(_length)},
        ),
        "no exponential": (
            {"power": lambda x: x},
            {"power": lambda x: x, "total": lambda x, axis: np.sum(np.abs(x), axis, keepdims=True)},
            {"power": lambda x: x, "shift": along(np.min)},
        ),
        "squares or absolute values": (
            *each("power", np.square, np.abs),
            *each("exponents", lambda x, axis: np.abs(x), lambda x, axis: np.square(x)),
        ),
        "negative scores dropped": {**_NO_SHIFT, "power": lambda x: np.maximum(x, 0)},
        "divided before the exponential": (
            {"exponents": normalized, "divide": lambda powers, total: powers},
            {"exponents": normalized},
            *({**_EXP_ALONE, "exponents": exponents} for exponents in _OVER_THE_SUM),
        ),
        "logarithm returned": {"finish": lambda weights, x, axis: np.log(weights)},
        "log-sum-exp returned": {
            "finish": lambda weights, x, axis: np.log(np.sum(np.exp(x), axis, keepdims=True))
        },
        "base 2": {"power": np.exp2},
        "base 10": {"power": lambda x: 10.0**x},
        "sign of the scores": ({"exponents": lambda x, axis: -x}, {"power": lambda x: np.exp(-x)}),
        "one minus the weights": {"finish": lambda weights, x, axis: 1 - weights},
        "softmax twice": {"finish": lambda weights, x, axis: normal(weights, axis)},
        "hard maximum": each(
            "finish",
            lambda weights, x, axis: np.where(x == plain_maximum(x, axis), 1.0, 0.0),
            lambda weights, x, axis: np.where(x == maximum(x, axis), 1.0, 0.0),
        ),
        "sigmoid": {"finish": lambda weights, x, axis: 1 / (1 + np.exp(-x))},
        "one added to the sum": each(
            "divide",
            *(lambda powers, total, e=e: powers / (e + total) for e in (1, 0.1, 1e-2, 1e-3, 1e-4)),
        ),
        "keepdims forgotten": (
            _NO_KEEPDIMS,
            _NO_KEEPDIMS_OF_MAXIMUM,
            {**_NO_KEEPDIMS, **_NO_KEEPDIMS_OF_MAXIMUM},
        ),
        "no maximum": _NO_SHIFT,
        "maximum of the whole array": {"shift": lambda x, axis: np.max(x)},
        "maximum over the wrong axis": each("shift", along(np.max, -2), along(np.max, 0)),
        "not the maximum": each(
            "shift",
            along(np.min),
            along(np.mean),
            along(np.median),
            lambda x, axis: np.take(x, [0], axis=axis),
            lambda x, axis: np.take(x, [-1], axis=axis),
            lambda x, axis: plain_maximum(np.abs(x), axis),
        ),
        "axis 1 of a batch": ({"axis": lambda x, axis: 1}, {"total": along(np.sum, 1)}),
        "axis ignored": (
            {"axis": lambda x, axis: -1},
            {"total": along(np.sum, -1)},
            {"shift": along(np.max, -1)},
        ),
        "temperature": each(
            "exponents",
            *(lambda x, axis, by=by: by * x for by in (2, 0.5, 10, 0.1, 3, 1 / 3, 4, 0.25, 100)),
        ),
        "scores clipped": each(
            "exponents",
            *(_of_finite(np.clip, -at, at) for at in (1, 2, 3, 5, 10, *_BOUNDS)),
            *(lambda x, axis, at=at: np.minimum(x, at) for at in (0, 1, 10, *_BOUNDS)),
            _of_finite(np.maximum, 0),
            _of_finite(np.tanh),
        ),
        "scores normalised": each(
            "exponents",
            lambda x, axis: (x - np.mean(x, axis, keepdims=True)) / np.std(x, axis, keepdims=True),
            lambda x, axis: x / np.std(x, axis, keepdims=True),
            lambda x, axis: x / _length(x, axis, True),
            lambda x, axis: x / np.max(x, axis, keepdims=True),
            lambda x, axis: x / np.max(x),
        ),
        "divided by another number": (
            *each("total", along(np.min), along(np.prod), lambda powers, axis: powers.shape[axis]),
            {"exponents": lambda x, axis: x - np.sum(x, axis, keepdims=True), **_EXP_ALONE},
        ),
        "one left out of the sum": tuple(
            {"total": lambda powers, axis, i=i: _sum_without(powers, i, axis), "divide": divide}
            for i in (-1, 0)
            for divide in (guarded, unguarded)
        ),
    },
)
"""Mistakes of any softmax; those of the axis are a matter of a reader's own."""

_OF_A_SOFTMAX_ALONE = mistakes(
    """
    maximum in one place: You subtract the maximum in the numerator or in the sum alone. The factor
        cancels only if both have it.
    divided by a root: You divide the scores by their number or its root. Attention scales its
        scores, by the root of d_k; the softmax does not.
    """,
    {
        "maximum in one place": each(
            "compute",
            lambda x, axis=-1: np.exp(x) / np.sum(_shifted(x, axis), axis, keepdims=True),
            lambda x, axis=-1: _shifted(x, axis) / np.sum(np.exp(x), axis, keepdims=True),
        ),
        "divided by a root": each(
            "exponents",
            lambda x, axis: x / np.sqrt(x.shape[axis]),
            lambda x, axis: x / x.shape[axis],
        ),
    },
)

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
    steps=SOFTMAX_STEPS,
    variants=VARIANTS,
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
    mistakes=NORMALIZATION_MISTAKES + _OF_A_SOFTMAX_ALONE,
    properties=(rows_sum_to_one, weights_are_positive, shift_changes_nothing),
    options=("axis",),
    remarked_options=("axis",),
    legible=True,
)
