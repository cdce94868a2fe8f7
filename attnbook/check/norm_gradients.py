"""The gradients of a root-mean-square normalisation in steps: of the row, and of the gain."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.linear_gradients import both, rows
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import with_options
from attnbook.check.standardization import EPSILON, OTHER_EPSILONS
from attnbook.check.steps import Case, Check, Stage, Values, draw, each

_PARAMETERS = ("x", "gain", "grad_output")


@documented
def rms_norm_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of a root-mean-square normalisation with respect to x and the gain.

    Runs `f` on several sizes, on one token, on tiny rows, in float64 and float32, on batches, and
    with another epsilon if it takes one.

    Parameters
    ----------
    f : callable
        Called as ``f(x, gain, grad_output)``, by position, on (n, d), (d,) and (n, d), and with
        `epsilon` or `eps` if it takes an argument of that name; otherwise it must use 1e-5. It
        returns two arrays, (grad_x, grad_gain). It may be written for one sequence, without leading
        axes.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_vjp(x, gain, G):
    ...     size = ((x**2).mean(axis=-1, keepdims=True) + 1e-5) ** 0.5
    ...     return G * gain / size, (G * x / size).reshape(-1, x.shape[-1]).sum(axis=0)
    >>> check.rms_norm_vjp(my_vjp).mistake
    'size taken for a constant'
    """
    return run(RMS_NORM_VJP, f, time_limit)


def _adapt(function: Callable) -> Callable:
    return with_options(function, _PARAMETERS, {"epsilon": (EPSILON, ("eps",))})


def _mean(a, axis=-1):
    return np.mean(a, axis=axis, keepdims=True)


STEPS: dict[str, Callable] = {
    "incoming": lambda g: g,
    "epsilon": lambda epsilon: epsilon,
    "size": lambda x, epsilon: np.sqrt(_mean(x * x) + epsilon),
    "normal": lambda x, size: x / size,
    "scale": lambda g, gain: g * gain,  # the gradient of the normalised row
    "share": lambda h, y: _mean(h * y),
    "along": lambda y, x: y,  # the direction in which nothing is learned
    "subtract": np.subtract,
    "divide": np.divide,
    "of_gain": lambda g, y, x, gain: g * y,
    "collect": lambda a: np.sum(rows(a), axis=0),
    "results": lambda grads: grads,
}


def norm_gradients(s: Any, x, gain, grad_output, epsilon=EPSILON):
    """Return the gradients of x and the gain from their steps."""
    g, size = s.incoming(grad_output), s.size(x, s.epsilon(epsilon))
    y = s.normal(x, size)
    h = s.scale(g, gain)
    grad_x = s.divide(s.subtract(h, s.along(y, x) * s.share(h, y)), size)
    return s.results((grad_x, s.collect(s.of_gain(g, y, x, gain))))


MISTAKES = mistakes(
    """
    size taken for a constant: You divide by the size as if it did not depend on x. A larger x makes
        its row larger, and so all features smaller: subtract the part along the row.
    gain forgotten in grad_x: You do not multiply grad_output by the gain on the way to x.
    gain divided: You divide grad_output by the gain on the way to x. What was multiplied forward is
        multiplied backward.
    not divided by the size: Your grad_x is not divided by the size of the row. x was, so its
        gradient is.
    multiplied by the size: You multiply grad_x by the size of the row. x was divided by it, and so
        is its gradient.
    divided by the size twice: You divide grad_x by the square of the size.
    sum for the mean: In the second term you take the sum over the features. It is their mean.
    second term over the tokens: In the second term you average over the tokens, or over everything.
        Each row has a size of its own.
    sign of the second term: You add the second term. It is subtracted.
    second term with x: The second term holds x itself. It holds the normalised row, x/size.
    second term without the gain: In the second term you use grad_output without the gain.
    gain after the second term: You multiply by the gain at the end. It belongs to grad_output,
        before the second term is taken from it.
    layer norm for RMS norm: You also subtract the mean of the gradient. That belongs to layer
        normalisation, which subtracts the mean of x.
    root forgotten: Your size is the mean of the squares. It is the root of that.
    no epsilon: You use no ε in the size. The gradient must be that of the forward pass, with its ε.
    epsilon of another size: Your ε is not that of the forward pass, 1e-5.
    keepdims forgotten: The axis of the mean is gone, so token i is combined with a number of token
        j. It runs only where the array is square. Pass keepdims=True.
    grad_gain not summed: You return a grad_gain for each token. One gain served all: sum over the
        tokens.
    grad_gain averaged: You average grad_gain over the tokens. The gradients of one gain add up.
    grad_gain from x: In grad_gain you use x. The gain multiplies the normalised row, x/size.
    gain in grad_gain: You multiply grad_gain by the gain. The derivative of γ y by γ is y.
    grad_gain from grad_output alone: You sum grad_output over the tokens. That is the gradient of a
        bias; the gain multiplied the normalised row.
    gradients swapped: You return (grad_gain, grad_x). Return them in the order of the arguments.
    grad_output ignored: Your gradients are those of the sum of all outputs.
    grad_output passed on: You return grad_output as grad_x. It passes the gain and the division.
    all gradients negated: Both gradients have the wrong sign. The minus belongs to the step.
    batch not summed: For a batch you return a grad_gain for each sequence. They all used one gain:
        sum over every axis but the last.
    epsilon ignored: Your function takes `epsilon` but always uses 1e-5.
    second term alone: Your grad_x is the second term alone. It is subtracted from the first one.
    another second term: Your second term is not the normalised row times the mean of grad_output ·
        gain · normalised row: it holds another factor, or one too many or too few.
    gain twice: You multiply grad_x by the gain twice.
    grad_gain of one token: You return the grad_gain of the first or of the last token. Sum over
        all.
    grad_gain divided: You divide grad_gain by the size of the row or by the gain. The derivative of
        γ y by γ is y.
    sums multiplied: You sum over the tokens before you multiply, or leave grad_output out. Multiply
        each row by its grad_output, then sum.
    grad_gain summed over the features: You sum grad_gain over the features as well. Each has a gain
        of its own.
    """,
    {
        "size taken for a constant": each("subtract", lambda h, second: h),
        "gain forgotten in grad_x": each("scale", lambda g, gain: g),
        "gain divided": each("scale", np.divide),
        "not divided by the size": each("divide", lambda h, size: h),
        "multiplied by the size": each("divide", np.multiply),
        "divided by the size twice": each("divide", lambda h, size: h / size**2),
        "sum for the mean": each("share", lambda h, y: np.sum(h * y, axis=-1, keepdims=True)),
        "second term over the tokens": each(
            "share", lambda h, y: _mean(h * y, -2), lambda h, y: np.mean(h * y)
        ),
        "sign of the second term": each("subtract", np.add),
        "second term alone": each("subtract", lambda h, second: -second, lambda h, second: second),
        "another second term": (
            *each("share", lambda h, y: _mean(h), lambda h, y: h * _mean(h * y)),
            *each("along", lambda y, x: 1, lambda y, x: y * y, lambda y, x: 2 * y),
            *each("along", lambda y, x: y / 2),
            {"along": lambda y, x: 1, "share": lambda h, y: _mean(h)},
        ),
        "second term with x": each("along", lambda y, x: x),
        "second term without the gain": {
            "scale": lambda g, gain: (g, gain),
            "share": lambda h, y: _mean(h[0] * y),
            "subtract": lambda h, second: h[0] * h[1] - second,
        },
        "gain after the second term": {
            "scale": lambda g, gain: (g, gain),
            "share": lambda h, y: _mean(h[0] * y),
            "subtract": lambda h, second: h[1] * (h[0] - second),
        },
        "layer norm for RMS norm": each("subtract", lambda h, second: h - _mean(h) - second),
        "root forgotten": each("size", lambda x, epsilon: _mean(x * x) + epsilon),
        "epsilon of another size": OTHER_EPSILONS,
        "no epsilon": each("epsilon", lambda epsilon: 0.0),
        "keepdims forgotten": each("share", lambda h, y: np.mean(h * y, axis=-1))
        + each("size", lambda x, epsilon: np.sqrt(np.mean(x * x, axis=-1) + epsilon)),
        "grad_gain not summed": each("collect", lambda a: a),
        "grad_gain averaged": each("collect", lambda a: np.mean(rows(a), axis=0)),
        "grad_gain from x": each("of_gain", lambda g, y, x, gain: g * x),
        "gain in grad_gain": each("of_gain", lambda g, y, x, gain: g * y * gain),
        "grad_gain from grad_output alone": each("of_gain", lambda g, y, x, gain: g),
        "gradients swapped": each("results", lambda grads: grads[::-1]),
        "grad_output ignored": each("incoming", np.ones_like),
        "grad_output passed on": {
            "scale": lambda g, gain: (g, gain),
            "share": lambda h, y: 0.0,
            "subtract": lambda h, second: h[0],
            "divide": lambda h, size: h,
        },
        "gain twice": (
            *each("scale", lambda g, gain: g * gain * gain),
            {
                "scale": lambda g, gain: (g * gain, gain),
                "share": lambda h, y: _mean(h[0] * y),
                "subtract": lambda h, second: h[1] * (h[0] - second),
            },
        ),
        "grad_gain of one token": each("collect", lambda a: rows(a)[0], lambda a: rows(a)[-1]),
        "grad_gain divided": each(
            "of_gain",
            lambda g, y, x, gain: g * y / gain,
            lambda g, y, x, gain: g * y * y / x,
        ),
        "sums multiplied": (
            {
                "of_gain": lambda g, y, x, gain: (g, y),
                "collect": lambda a: rows(a[0]).sum(axis=0) * rows(a[1]).sum(axis=0),
            },
            *each("of_gain", lambda g, y, x, gain: y),
        ),
        "grad_gain summed over the features": each("collect", lambda a: np.sum(a) + 0 * rows(a)[0]),
        "all gradients negated": both(np.negative),
        "batch not summed": each("collect", lambda a: np.sum(a, axis=-2))
        + each("collect", lambda a: np.sum(a, axis=0)),
        "epsilon ignored": each("epsilon", lambda epsilon: EPSILON),
    },
)


def nothing_along_the_row(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether grad_x is at a right angle to x, where epsilon does not show."""
    x, grad = case.arrays["x"], values[0]
    if np.min(_mean(x.astype(float) ** 2)) < 0.1 or grad.shape != x.shape:
        return None
    if np.allclose(np.sum(x * grad, axis=-1), 0, atol=2e-3):
        return None
    return (
        "A longer row gives the same output, so each row of grad_x must be at a right angle to "
        "that of x; here one is not."
    )


def _case(*shape: int, size: float = 1.0, dtype: str = "float64", **options: float) -> Case:
    arrays = {
        "x": (draw(51, *shape) + draw(52, *shape[:-1], 1)) * size,
        "gain": 1 + draw(53, shape[-1]) / 3,
        "grad_output": draw(54, *shape),
    }
    return Case({name: a.astype(dtype) for name, a in arrays.items()}, options)


RMS_NORM_VJP = Check(
    name="rms_norm_vjp",
    parameters=_PARAMETERS,
    results={"grad_x": "x.shape", "grad_gain": "(d,)"},
    compute=norm_gradients,
    steps=STEPS,
    stages=(
        Stage(
            (
                *(_case(*shape) for shape in ((3, 3), (2, 5), (5, 3), (1, 7))),
                *(_case(2, 5, size=1e-3), _case(3, 5, size=1e-2)),
            )
        ),
        Stage((_case(3, 3, dtype="float32"), _case(2, 5, dtype="float32"))),
        Stage((_case(2, 3, 5), _case(3, 3, 3)), may_raise="a batch (leading axes)"),
        Stage((_case(3, 5, epsilon=0.5), _case(2, 3, epsilon=2.0)), option="epsilon"),
    ),
    mistakes=MISTAKES,
    properties=(nothing_along_the_row,),
    options=("epsilon",),
    adapt=_adapt,
    legible=True,
)
