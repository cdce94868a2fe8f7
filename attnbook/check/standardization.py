"""Layer normalisation in steps: mean, variance, the root with epsilon, gain and bias."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.signatures import binds, signature_of, with_options
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each

EPSILON = 1e-5
_PARAMETERS = ("x", "gain", "bias")


@documented
def layer_norm(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a layer normalisation with gain and bias.

    Runs `f` on several sizes, on rows of tiny variance, on constant rows and on rows far from 0, in
    float64, float32 and float16, on batches, and with another epsilon if it takes one.

    Parameters
    ----------
    f : callable
        Called as ``f(x, gain, bias)``, by position, on (n, d_model), (d_model,) and (d_model,), and
        with `epsilon` or `eps` if it takes an argument of that name; otherwise it must use 1e-5.
        A function of `x` alone is taken for one without gain and bias. It returns an array of the
        shape of `x`. It may be written for one sequence, without leading axes.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_norm(x, gain, bias):
    ...     deviation = x.std(axis=-1, keepdims=True)
    ...     return gain * (x - x.mean(axis=-1, keepdims=True)) / (deviation + 1e-5) + bias
    >>> check.layer_norm(my_norm).mistake
    'epsilon outside the root'
    """
    return run(LAYER_NORM, f, time_limit)


def adapt_norm(function: Callable, parameters: tuple[str, ...]) -> Callable:
    """Return `function` with epsilon under that name, and with gain and bias if it has none."""
    signature = signature_of(function)
    if signature is not None and binds(signature, 1) and not binds(signature, 2):
        return lambda x, gain, bias=0.0: function(x) * gain + bias
    return with_options(function, parameters, {"epsilon": (EPSILON, ("eps",))})


def widen(x):
    """Return half precision in single precision: its squares overflow."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def epsilons(*others: float) -> tuple[Way, ...]:
    """Return the ways that take one of these for epsilon."""
    return each("epsilon", *(lambda epsilon, other=other: other for other in others))


OTHER_EPSILONS = epsilons(
    *(1e-6, 1e-8, 1e-12, 1e-3, 1e-4, 1e-7, 1e-9, 1e-10, 1e-2, 0.1, 1.0, 1e-13, 1e-15, 1e-16)
)

FLOORS = (
    *(lambda v, e, k=k: np.maximum(np.sqrt(v), k * e) for k in (1, 10)),
    *(lambda v, e, k=k: np.sqrt(np.maximum(v, k * e)) for k in (1, 1e-4)),
)
"""Roots of a variance, or of a mean of squares, that epsilon cuts off."""

IN_EVERY_NORM = """
    squares overflow in half precision: Squares overflow in float16, so compute in float32.
    axis 1 of a batch: For a matrix axis 1 is the last axis, for a batch it is that of the tokens.
        Write −1, which is the last axis of any array.
    epsilon ignored: Your function takes `epsilon` but always uses 1e-5. Add the one that is given.
    """

_average = partial(np.mean, keepdims=True)
_total = partial(np.sum, keepdims=True)
_variance = partial(np.var, keepdims=True)


NORM_STEPS: dict[str, Any] = {
    "widen": widen,
    "enter_norm": lambda x, gain, bias: x,
    "axes": (-1, -1),  # of the mean and of the variance
    "mean": _average,
    "variance": lambda x, mean, axis: _variance(x, axis),
    "epsilon": lambda epsilon: epsilon,
    "deviation": lambda variance, epsilon: np.sqrt(variance + epsilon),
    "centre": np.subtract,
    "standardise": lambda centred, mean, deviation: centred / deviation,
    "affine": lambda x, gain, bias: gain * x + bias,
}


def normalize(steps: Any, x, gain, bias, epsilon=EPSILON):
    """Compute layer normalisation from its steps."""
    x = steps.enter_norm(steps.widen(x), gain, bias)
    mean_axis, variance_axis = steps.axes
    mean = steps.mean(x, mean_axis)
    variance = steps.variance(x, mean, variance_axis)
    deviation = steps.deviation(variance, steps.epsilon(epsilon))
    return steps.affine(steps.standardise(steps.centre(x, mean), mean, deviation), gain, bias)


# Variances in the place of the right one.


def _about_the_mean(x, mean, axis):
    return _average((x - mean) ** 2, axis)


def _unbiased(x, mean, axis):
    return _variance(x, axis, ddof=1)


def _about_zero(x, mean, axis):
    return _average(x * x, axis)


_LOST_AXIS = (
    lambda x, mean, axis: np.var(x, axis),
    lambda x, mean, axis: np.mean((x - mean) ** 2, axis),
)
_OUTSIDE = tuple(
    {
        "deviation": lambda variance, epsilon: np.sqrt(variance) + epsilon,
        "epsilon": partial(np.multiply, factor),
    }
    for factor in (1.0, 0.1, 0.001, 0.01, 10.0)
)
_INSIDE_AND_OUTSIDE = {"deviation": lambda variance, epsilon: np.sqrt(variance + epsilon) + epsilon}

NORM_MISTAKES = mistakes(
    """
    over the sequence: You take mean and variance over the tokens: every feature has mean 0 along
        the sequence. Reduce the last axis, the features of each token.
    over all axes: You take one mean and one variance for the whole array, so a token depends on all
        others. Each token has its own: pass axis=−1 and keepdims=True.
    variance with n − 1: You divide the sum of squares by d − 1. Layer normalisation divides by d.
        torch.std and torch.var use d − 1 unless they are told unbiased=False.
    epsilon of another library [BERT (1e-12), ViT (1e-6) and Keras (1e-3)]: your ε is not that of
        PyTorch, 1e-5, as it is here. Trained weights need that of the training, so take `epsilon`.
    epsilon of another size: Your ε is not 1e-5. Take it as an argument, `epsilon`, or use 1e-5.
    epsilon outside the root: You add ε to the standard deviation, outside the root. It belongs
        under the root and nowhere else, √(σ² + ε). Where the variance is of the size of ε the
        difference is large.
    variance with n − 1 and epsilon outside [the Annotated Transformer]: you divide by a standard
        deviation with d − 1 below its sum, as torch.std has, and add ε to it. Layer normalisation
        divides by √(σ² + ε), with d below the sum of σ².
    no epsilon: You divide by √σ² alone. A row of equal numbers has variance 0, and 0/0 is NaN; a
        row of nearly equal numbers is blown up. Add ε under the root: √(σ² + ε).
    epsilon as a floor: You cut the deviation or variance off at ε. Add ε to the variance.
    variance without the root: You divide by the variance σ² + ε. Divide by its root.
    root multiplied: You multiply by √(σ² + ε) where you should divide: large rows get larger.
    not normalised: You apply gain and bias to x as it is. First the mean of each row is subtracted,
        and the row divided by √(σ² + ε).
    normalised twice: You normalise twice: the rows that come out, with gain and bias, go through it
        once more. Once is enough.
    mean not subtracted: You divide each row and never subtract its mean from it. RMS normalisation
        does without the mean too; it is another layer. Here the mean of each token goes first.
    mean added: You add the mean of a row where you should subtract it.
    mean subtracted last: You divide before you subtract the mean: (x − μ)/√(σ² + ε).
    median for the mean: You take the median of a row. Layer normalisation takes its mean.
    sum for the mean: You take the sum of a row where its mean belongs: divide by d.
    variance about zero: Your variance is the mean of x². Take that of (x − μ)².
    variance as a difference: You take the mean of x² and subtract μ². Both are huge where a row is
        far from 0, and rounding loses their difference: in float32 it can be 0, or negative. Take
        the mean of (x − μ)².
    range for the deviation: You divide by the largest number minus the smallest, not by √(σ² + ε).
    mean absolute deviation: You divide by the mean of |x − μ|, not by the root of that of (x − μ)².
    only centred: You subtract the mean and never divide by the standard deviation.
    gain and bias forgotten: You return the normalised rows alone: multiply by the gain, add the
        bias.
    gain forgotten: You add the bias and never multiply by the gain.
    bias forgotten: You multiply by the gain and never add the bias.
    gain and bias swapped: You multiply by the bias and add the gain. The gain, which starts at 1,
        multiplies; the bias, which starts at 0, is added.
    gain or bias used twice: You use the gain, or the bias, in the place of the other too: g · x̂ +
        b.
    bias before the gain: You add the bias, or subtract it, before you multiply by the gain: g · x̂ +
        b.
    bias not added: You subtract the bias, multiply by it, or add it to the gain. It is added: g · x̂
        + b.
    gain not multiplied: You add the gain, divide by it, or use 1 + g or g². The gain itself
        multiplies: g · x̂ + b.
    gain and bias before: You apply gain or bias to x and normalise afterwards. They come after the
        division, so that they can give each feature a mean and a scale of its own.
    keepdims forgotten: The axis that you reduce is gone, so token i gets the mean or the variance
        of token j. It runs only where the array is square. Pass keepdims=True.
    epsilon subtracted: You subtract ε. It is added, so that nothing is divided by 0.
    another root of the variance: You divide by another power of σ² + ε, such as its square or its
        fourth root, or take the root of σ, which is a root already. Divide by √(σ² + ε).
    sign of the difference: Your normalised rows have the opposite sign, as if you took μ − x, or
        the sign of x − μ is dropped.
    largest number for the mean: You subtract the largest number of a row, its smallest or its
        first. Subtract its mean.
    """
    + IN_EVERY_NORM,
    {
        "over the sequence": each("axes", (-2, -2), (0, 0), (-2, -1), (-1, -2)),
        "over all axes": each("axes", (None, None), ((-1, -2), (-1, -2)), (None, -1), (-1, None)),
        "variance with n − 1": each("variance", _unbiased),
        "epsilon outside the root": (*_OUTSIDE, _INSIDE_AND_OUTSIDE),
        "variance with n − 1 and epsilon outside": tuple(
            {**way, "variance": _unbiased} for way in _OUTSIDE[:3]
        ),
        "no epsilon": (
            {"epsilon": lambda e: 0.0},
            {"epsilon": lambda e: 0.0, "standardise": lambda y, m, s: y / s + EPSILON},
        ),
        "epsilon of another library": epsilons(1e-12, 1e-6, 1e-3),
        "epsilon of another size": OTHER_EPSILONS,
        "epsilon subtracted": (
            {"epsilon": lambda e: -e},
            {"deviation": lambda variance, epsilon: np.sqrt(variance) - epsilon},
        ),
        "epsilon as a floor": each("deviation", *FLOORS),
        "another root of the variance": each(
            "deviation",
            *(lambda v, e, p=p: (v + e) ** p for p in (0.25, 2, 1 / 3, 1.5)),
            lambda v, e: np.sqrt(np.sqrt(v) + e),
            lambda v, e: np.sqrt(np.sqrt(v)) + e,
        ),
        "variance without the root": each("deviation", np.add),
        "not normalised": {"centre": lambda x, m: x, "standardise": lambda y, m, s: y},
        "normalised twice": each("enter_norm", lambda x, g, b: attnbook.layer_norm(x, g, b)),
        "root multiplied": each("standardise", lambda y, m, s: y * s),
        "mean not subtracted": (
            {"centre": lambda x, m: x, "variance": _about_zero},
            {"centre": lambda x, m: x},
        ),
        "sign of the difference": each("centre", lambda x, m: m - x, lambda x, m: np.abs(x - m)),
        "largest number for the mean": tuple(
            {"mean": number, **variance}
            for number in (
                partial(np.max, keepdims=True),
                partial(np.min, keepdims=True),
                lambda x, axis: np.take(x, [0], axis),
            )
            for variance in ({}, {"variance": _about_the_mean})
        ),
        "mean added": each("centre", np.add),
        "mean subtracted last": {
            "centre": lambda x, m: x,
            "standardise": lambda y, m, s: y / s - m,
        },
        "median for the mean": (
            {"mean": partial(np.median, keepdims=True)},
            {"mean": partial(np.median, keepdims=True), "variance": _about_the_mean},
        ),
        "sum for the mean": (
            {"variance": lambda x, m, a: _variance(x, a) * x.shape[-1]},
            {"variance": lambda x, m, a: _variance(x, a) * x.shape[-1] / x.shape[-2]},
            {"mean": _total},
            {"mean": _total, "variance": _about_the_mean},
        ),
        "variance about zero": each("variance", _about_zero),
        "variance as a difference": each("variance", lambda x, m, a: _average(x * x, a) - m * m),
        "range for the deviation": tuple(
            {
                "centre": centre,
                "variance": lambda x, m, a: np.ptp(x, a, keepdims=True),
                "deviation": np.add,
            }
            for centre in (lambda x, m: x - np.min(x, -1, keepdims=True), np.subtract)
        ),
        "mean absolute deviation": {
            "variance": lambda x, m, a: _average(np.abs(x - m), a),
            "deviation": np.add,
        },
        "only centred": each("standardise", lambda y, m, s: y),
        "gain and bias forgotten": each("affine", lambda x, g, b: x),
        "gain forgotten": each("affine", lambda x, g, b: x + b),
        "bias forgotten": each("affine", lambda x, g, b: g * x),
        "gain and bias swapped": each("affine", lambda x, g, b: b * x + g),
        "gain or bias used twice": each(
            "affine", lambda x, g, b: g * x + g, lambda x, g, b: b * x + b
        ),
        "bias before the gain": each(
            "affine", lambda x, g, b: g * (x + b), lambda x, g, b: g * (x - b)
        ),
        "bias not added": each(
            "affine",
            lambda x, g, b: g * x - b,
            lambda x, g, b: g * x * b,
            lambda x, g, b: x * (g + b),
        ),
        "gain not multiplied": each(
            "affine",
            lambda x, g, b: x / g + b,
            lambda x, g, b: x + g + b,
            lambda x, g, b: (1 + g) * x + b,
            lambda x, g, b: g * g * x + b,
        ),
        "gain and bias before": (
            {"enter_norm": lambda x, g, b: g * x + b, "affine": lambda x, g, b: x},
            {"enter_norm": lambda x, g, b: g * x, "affine": lambda x, g, b: x + b},
            {"enter_norm": lambda x, g, b: x + b, "affine": lambda x, g, b: g * x},
        ),
        "keepdims forgotten": (
            *each("variance", *_LOST_AXIS),
            *({"mean": np.mean, "variance": way} for way in (*_LOST_AXIS, _about_the_mean)),
            {"mean": np.mean},
        ),
        "squares overflow in half precision": each("widen", lambda x: x),
        "axis 1 of a batch": each("axes", (1, 1)),
        "epsilon ignored": each("epsilon", lambda e: EPSILON),
    },
)


def rows_are_standardised(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every row has mean 0 before gain and bias."""
    gain, bias = case.arrays["gain"], case.arrays["bias"]
    totals = np.sum((values[0] - bias) / gain, axis=-1)
    worst = totals.flatten()[np.argmax(np.abs(totals))]
    if abs(worst) < 1e-3:
        return None
    return f"Before gain and bias every row has mean 0; in yours a row sums to {worst:.4g}."


def _other_at_the_end(arguments):
    x = arguments["x"].copy()
    x[..., -1, :] += np.arange(1, 1 + x.shape[-1])
    return {"x": x}


def earlier_rows_stay(sentence: str) -> Callable[..., str | None]:
    """Return the property that the last token moves no row but its own."""
    return moved(
        _other_at_the_end,
        lambda y, other: np.allclose(other[..., :-1, :], y[..., :-1, :], atol=1e-4),
        sentence,
    )


tokens_are_alone = earlier_rows_stay(
    "Changing the last token must not change the others; yours changes them."
)


def norm_stages(case: Callable, constant: np.ndarray) -> tuple[Stage, ...]:
    """Return the stages of a norm: sizes, float32, batches, another epsilon, and float16.

    In the first, rows are tiny, and a row of `constant` has no size at all.
    """
    return (
        Stage(
            (
                *(case(*shape) for shape in ((3, 3), (2, 5), (5, 3), (1, 7))),
                *(case(2, 5, size=1e-3), case(3, 5, size=1e-2)),
                Case({**case(2, 3).arguments, "x": constant}),  # shown before one that is as small
                case(2, 3, size=5e-6),
            ),
            errors={ZeroDivisionError: "no epsilon"},
        ),
        Stage((case(3, 3, dtype="float32"), case(2, 5, dtype="float32"))),
        Stage((case(2, 3, 5), case(3, 3, 3)), may_raise="a batch (leading axes)"),
        Stage((case(3, 5, epsilon=0.5), case(2, 3, epsilon=2.0)), option="epsilon"),
        Stage((case(2, 5, size=500, dtype="float16"),), beyond="half precision (float16)"),
    )


def _case(*shape: int, size: float = 1.0, dtype: str = "float64", **options: float) -> Case:
    x = draw(20, *shape) * size + draw(21, *shape[:-1], 1)
    gain, bias = 1 + draw(22, shape[-1]) / 3, draw(23, shape[-1])
    arrays = {"x": x, "gain": gain, "bias": bias}
    return Case({name: a.astype(dtype) for name, a in arrays.items()}, options)


_STAGES = norm_stages(_case, np.array([[5.0, 5.0, 5.0], [1.0, 2.0, 4.0]]))
# every sum is exact in float32, and so are the squares but for what the deviations add
_FAR = np.array([[4096], [-8192], [6]], "f4") + np.array([0.5, -0.5, 0.25, -0.25], "f4")

LAYER_NORM = Check(
    name="layer_norm",
    parameters=_PARAMETERS,
    results={"output": "x.shape"},
    reference=attnbook.layer_norm,
    compute=normalize,
    steps=NORM_STEPS,
    stages=(
        *_STAGES[:2],
        Stage((Case({**_case(3, 4, dtype="float32").arguments, "x": _FAR}),)),
        *_STAGES[2:],
    ),
    mistakes=NORM_MISTAKES,
    properties=(tokens_are_alone, rows_are_standardised),
    options=("epsilon",),
    adapt=partial(adapt_norm, parameters=_PARAMETERS),
    legible=True,
)
