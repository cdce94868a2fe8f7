"""The softmax in steps, the ways to get each wrong, and the check of a reader's own."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each


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


def maximum(x, axis):
    """Return the maximum, or 0 where every score is −∞."""
    highest = np.max(x, axis=axis, keepdims=True)
    return np.where(highest == -np.inf, 0, highest)


def guarded(powers, total):
    return powers / np.where(total == 0, 1, total)


SOFTMAX_STEPS: dict[str, Callable] = {
    "axis": lambda x, axis: axis,
    "exponents": lambda x, axis: x,
    "shift": maximum,
    "power": np.exp,
    "total": lambda powers, axis: np.sum(powers, axis=axis, keepdims=True),
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


def plain_softmax(x, axis=-1):
    """Return the softmax that makes NaN of a row of −∞."""
    return normalized(np.exp(x - np.max(x, axis=axis, keepdims=True)), axis)


def unguarded(powers, total):
    return powers / total


def undivided(powers, total):
    return powers


def plain_maximum(x, axis):
    return np.max(x, axis=axis, keepdims=True)


def no_shift(x, axis):
    return 0


def as_they_are(x):
    return x


def _of_length(powers, axis):
    return np.sqrt(np.sum(powers**2, axis=axis, keepdims=True))


def _total_along(axis):
    return lambda powers, given: np.sum(powers, axis=axis, keepdims=True)


def _maximum_along(axis):
    return lambda x, given: maximum(x, axis)


def _finish(function: Callable) -> dict[str, Callable]:
    """Return the way that makes something else of the scores."""
    return {"finish": lambda weights, x, axis: function(x, axis)}


def _hard(x, axis):
    return np.where(x == np.max(x, axis=axis, keepdims=True), 1.0, 0.0)


_BARE: Way = {"power": as_they_are, "shift": no_shift}
_NO_KEEPDIMS: Way = {"total": lambda powers, axis: np.sum(powers, axis=axis)}
_NO_KEEPDIMS_OF_MAXIMUM: Way = {"shift": lambda x, axis: np.max(x, axis=axis)}
_OVER_ALL: Way = {"total": lambda powers, axis: np.sum(powers)}

VARIANTS = ({"divide": unguarded},)
"""Not wrong as long as no sum is 0."""

_WRONG_AXIS = mistakes(
    """
    wrong axis: Your columns sum to one, not your rows: the sum runs over axis 0. The scores that
        compete with each other lie along the last axis, so maximum and sum belong to axis −1.
    """,
    {
        "wrong axis": (
            {"axis": lambda x, axis: 0},
            {"axis": lambda x, axis: -2},
            {"total": _total_along(0)},
        )
    },
)
NORMALIZATION_MISTAKES = mistakes(
    """
    one sum for all: All entries together sum to one: you divide by the sum of the whole array. Each
        row is a choice of its own and needs its own sum: name the axis, and keep it for the
        division.
    sum carried on: You never set the sum back to 0, so each row is divided by the sum of all rows
        up to it. Begin each row with a sum of its own.
    mean instead of sum: You divide by the mean of the exponentials, so a row sums to its length,
        not to one. Divide by their sum.
    not normalised: You return the exponentials themselves. They are positive, but they do not sum
        to one until each row is divided by its sum.
    length instead of sum: You divide by the length of the row, √Σx². Then the squares sum to one,
        not the weights. Divide by the plain sum.
    no exponential: You divide the scores by their sum without taking exp first. Scores may be
        negative and their sum may be zero; exp makes each one positive before the division.
    squares or absolute values: You make the scores positive by squaring them or by dropping their
        sign. Then −3 counts as much as 3. exp keeps the order: a larger score always gets a larger
        weight.
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
    one added to the sum: You add 1 to the sum of the exponentials, so a row sums to less than one.
        The sum of the shifted exponentials is never 0: it needs no addition.
    keepdims forgotten: The axis that you reduce is gone, so row i is combined with the maximum or
        the sum of row j. It runs only where the array is square, or has one row. Pass
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
        above that number overflow all the same, and ∞/∞ is NaN. Only the maximum leaves no exponent
        above 0.
    """,
    {
        "one sum for all": ({**_OVER_ALL, "shift": no_shift}, _OVER_ALL),
        "sum carried on": (
            {"total": lambda powers, axis: np.cumsum(np.sum(powers, -1, keepdims=True), axis=-2)},
        ),
        "mean instead of sum": (
            {"total": lambda powers, axis: np.mean(powers, axis=axis, keepdims=True)},
        ),
        "not normalised": ({"divide": undivided, "shift": no_shift}, {"divide": undivided}),
        "length instead of sum": ({"total": _of_length}, {**_BARE, "total": _of_length}),
        "no exponential": (
            _BARE,
            {**_BARE, "total": lambda powers, axis: np.sum(np.abs(powers), axis, keepdims=True)},
            {"power": as_they_are},
            {"power": as_they_are, "shift": lambda x, axis: np.min(x, axis=axis, keepdims=True)},
        ),
        "squares or absolute values": (
            {"power": np.square, "shift": no_shift},
            {"power": np.abs, "shift": no_shift},
            {"exponents": lambda x, axis: np.abs(x)},
        ),
        "negative scores dropped": ({"power": lambda x: np.maximum(x, 0), "shift": no_shift},),
        "divided before the exponential": (
            {
                "exponents": lambda x, axis: normalized(x, axis),
                "divide": undivided,
                "shift": no_shift,
            },
            {"exponents": lambda x, axis: normalized(x, axis)},
        ),
        "logarithm returned": ({"finish": lambda weights, x, axis: np.log(weights)},),
        "log-sum-exp returned": (
            {"finish": lambda weights, x, axis: np.log(np.sum(np.exp(x), axis, keepdims=True))},
        ),
        "base 2": each("power", np.exp2, lambda x: 10.0**x),
        "sign of the scores": ({"exponents": lambda x, axis: -x}, {"power": lambda x: np.exp(-x)}),
        "one minus the weights": ({"finish": lambda weights, x, axis: 1 - weights},),
        "softmax twice": ({"finish": lambda weights, x, axis: plain_softmax(weights, axis)},),
        "hard maximum": (_finish(_hard),),
        "sigmoid": (_finish(lambda x, axis: 1 / (1 + np.exp(-x))),),
        "one added to the sum": (
            {"divide": lambda powers, total: powers / (1 + total)},
            {"divide": lambda powers, total: powers / (1 + total), "shift": no_shift},
        ),
        "keepdims forgotten": (
            _NO_KEEPDIMS,
            _NO_KEEPDIMS_OF_MAXIMUM,
            {**_NO_KEEPDIMS, **_NO_KEEPDIMS_OF_MAXIMUM},
            {**_NO_KEEPDIMS, "shift": no_shift},
        ),
        "no maximum": ({"shift": no_shift},),
        "maximum of the whole array": ({"shift": lambda x, axis: np.max(x)},),
        "maximum over the wrong axis": each("shift", _maximum_along(-2), _maximum_along(0)),
        "not the maximum": each(
            "shift",
            lambda x, axis: np.min(x, axis=axis, keepdims=True),
            lambda x, axis: np.mean(x, axis=axis, keepdims=True),
            lambda x, axis: np.median(x, axis=axis, keepdims=True),
            lambda x, axis: np.take(x, [0], axis=axis),
            lambda x, axis: np.take(x, [-1], axis=axis),
            lambda x, axis: np.max(np.abs(x), axis=axis, keepdims=True),
        ),
    },
)
"""Mistakes of any softmax, that of a reader's own or that inside of an attention."""

_OF_OWN_AXIS = mistakes(
    """
    axis 1 of a batch: For a matrix axis 1 is the last axis, for a batch it is not: there your
        weights sum to one over the wrong axis. Write −1, which is the last axis of any array.
    axis ignored: Your function takes `axis` but always works on the last one. Pass it on to the
        maximum and to the sum.
    """,
    {
        "axis 1 of a batch": ({"axis": lambda x, axis: 1}, {"total": _total_along(1)}),
        "axis ignored": (
            {"axis": lambda x, axis: -1},
            {"total": _total_along(-1)},
            {"shift": _maximum_along(-1)},
        ),
    },
)

LARGE_ERRORS: dict[type[BaseException], str] = {
    OverflowError: "no maximum",
    ZeroDivisionError: "maximum of the whole array",
}
SPREAD_ERRORS: dict[type[BaseException], str] = {OverflowError: "not the maximum"}
"""What math.exp and a division of Python floats raise where arrays give NaN."""


# Properties.


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
    mistakes=(*_WRONG_AXIS, *NORMALIZATION_MISTAKES, *_OF_OWN_AXIS),
    properties=(rows_sum_to_one, weights_are_positive, shift_changes_nothing),
    options=("axis",),
    remarked_options=("axis",),
    legible=True,
)
