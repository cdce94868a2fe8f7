"""Root-mean-square normalisation in steps: squares, their mean, the root with epsilon, the gain."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.standardization import (
    EPSILON,
    FLOORS,
    IN_EVERY_NORM,
    OTHER_EPSILONS,
    adapt_norm,
    epsilons,
    norm_stages,
    tokens_are_alone,
    widen,
)
from attnbook.check.steps import Case, Check, Values, draw, each

_PARAMETERS = ("x", "gain")


@documented
def rms_norm(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a root-mean-square normalisation with a gain.

    Runs `f` on several sizes, on tiny rows, on a row of zeros and on rows far from 0, in float64,
    float32 and float16, on batches, and with another epsilon if it takes one.

    Parameters
    ----------
    f : callable
        Called as ``f(x, gain)``, by position, on (n, d_model) and (d_model,), and with `epsilon` or
        `eps` if it takes an argument of that name; otherwise it must use 1e-5. A function of `x`
        alone is taken for one without gain. It returns an array of the shape of `x`. It may be
        written for one sequence, without leading axes.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_norm(x, gain):
    ...     return gain * x / ((x**2).sum(axis=-1, keepdims=True) + 1e-5) ** 0.5
    >>> check.rms_norm(my_norm).mistake
    'sum for the mean'
    """
    return run(RMS_NORM, f, time_limit)


_average = partial(np.mean, keepdims=True)


def _centred(x):
    return x - _average(x, axis=-1)


RMS_STEPS: dict[str, Any] = {
    "widen": widen,
    "enter_norm": lambda x, gain: x,
    "above": lambda x: x,  # what is divided
    "squares": np.square,
    "axis": -1,
    "mean": _average,
    "epsilon": lambda epsilon: epsilon,
    "size": lambda mean, epsilon: np.sqrt(mean + epsilon),
    "divide": np.divide,
    "scale": np.multiply,
}


def normalize(steps: Any, x, gain, epsilon=EPSILON):
    """Compute the normalisation from its steps."""
    x = steps.enter_norm(steps.widen(x), gain)
    mean = steps.mean(steps.squares(x), axis=steps.axis)
    size = steps.size(mean, steps.epsilon(epsilon))
    return steps.scale(steps.divide(steps.above(x), size), gain)


MISTAKES = mistakes(
    """
    over the sequence: You take the mean of the squares over the tokens. Reduce the last axis, the
        features of each token.
    over all axes: You take one mean for the whole array, so a token depends on all others. Each has
        its own: pass axis=−1 and keepdims=True.
    mean subtracted: You subtract the mean of a row first. That is layer normalisation without its
        bias, another layer. Here the row is divided and not moved.
    mean subtracted above: You divide x less its mean by the root mean square of x. The mean has no
        place here: divide x itself.
    variance for the mean of the squares: You divide by the standard deviation. Take the mean of x²,
        not that of (x − μ)².
    sum for the mean: You divide by the length of the row, √Σx², so its numbers shrink as it gets
        wider. Take the mean of the squares, not their sum.
    squares with n − 1: You divide the sum of the squares by d − 1. Their mean divides by d.
    square of the mean: You square the mean of a row, where the mean of the squares belongs: square
        first.
    mean of the absolute values: You divide by the mean of |x|. Take the root of the mean of x².
    largest number for the size: You divide by the largest |x| of a row, by its smallest or by its
        median. Take the root of the mean of x².
    normalised twice: You normalise twice: the rows that come out, times the gain, are normalised
        once more. Once is enough.
    root forgotten: You divide by the mean of the squares. Divide by its root.
    root multiplied: You multiply by √(mean of x²) where you should divide: large rows get larger.
    not divided: You multiply by the gain and never divide by the size of a row.
    no epsilon: You divide by the root of the mean alone. A row of zeros has size 0, and 0/0 is NaN;
        a tiny row is blown up. Add ε under the root.
    epsilon of another library [T5 and Llama 1 (1e-6)]: your ε is not the 1e-5 that is asked for
        here. Take it as an argument, `epsilon`: with trained weights it must be that of the
        training.
    epsilon of another size: Your ε is not 1e-5. Take it as an argument, `epsilon`, or use 1e-5.
    epsilon outside the root: You add ε to the root. It belongs under it: √(mean of x² + ε). Where
        the mean is of the size of ε the difference is large.
    epsilon as a floor: You cut the root or the mean off at ε. Add ε to the mean of the squares.
    gain forgotten: You never multiply by the gain.
    gain not multiplied: You add the gain, or divide by it. It multiplies.
    one added to the gain [Gemma]: you multiply by 1 + g, with a g that begins at 0. Here the gain
        itself multiplies.
    gain before: You multiply by the gain first and normalise afterwards. It comes after the
        division, so that each feature can have a size of its own.
    keepdims forgotten: The axis that you reduce is gone, so token i is divided by the size of token
        j. It runs only where the array is square. Pass keepdims=True.
    another root: You divide by another root or power of the mean of the squares than its square
        root, such as its fourth root or its square.
    size subtracted: You subtract √(mean of x² + ε) from the row. The row is divided by it.
    """
    + IN_EVERY_NORM,
    {
        "over the sequence": each("axis", -2, 0),
        "over all axes": each("axis", None, (-2, -1)),
        "mean subtracted": (
            {"above": _centred, "squares": lambda x: _centred(x) ** 2},
            {"enter_norm": lambda x, gain: _centred(x)},
        ),
        "mean subtracted above": each("above", _centred),
        "variance for the mean of the squares": each("squares", lambda x: _centred(x) ** 2),
        "sum for the mean": each("mean", partial(np.sum, keepdims=True)),
        "squares with n − 1": each(
            "mean",
            lambda x, axis: np.sum(x, axis=axis, keepdims=True) / max(x.shape[-1] - 1, 1),
        ),
        "square of the mean": {
            "squares": lambda x: x,
            "size": lambda mean, e: np.sqrt(mean**2 + e),
        },
        "mean of the absolute values": (
            {"squares": np.abs, "size": np.add},
            {"squares": np.abs},
        ),
        "largest number for the size": (
            {"squares": np.abs, "mean": partial(np.max, keepdims=True), "size": np.add},
            {"squares": np.abs, "mean": partial(np.max, keepdims=True), "size": lambda m, e: m},
            *each("mean", *(partial(f, keepdims=True) for f in (np.max, np.min, np.median))),
        ),
        "another root": each(
            "size", *(lambda m, e, p=p: (m + e) ** p for p in (0.25, 2, 1 / 3, 1.5))
        ),
        "size subtracted": each("divide", np.subtract),
        "normalised twice": each("enter_norm", attnbook.rms_norm),
        "root forgotten": each("size", np.add),
        "root multiplied": each("divide", np.multiply),
        "not divided": each("divide", lambda x, size: x),
        "no epsilon": each("epsilon", lambda e: 0.0),
        "epsilon of another library": epsilons(1e-6),
        "epsilon of another size": OTHER_EPSILONS
        + each("epsilon", lambda epsilon: 2.0**-23, lambda epsilon: 2.0**-52),
        "epsilon outside the root": tuple(
            {
                "size": lambda mean, epsilon: np.sqrt(mean) + epsilon,
                "epsilon": partial(np.multiply, factor),
            }
            for factor in (1.0, 0.1, 0.001)
        ),
        "epsilon as a floor": each("size", *FLOORS),
        "gain forgotten": each("scale", lambda y, gain: y),
        "gain not multiplied": each("scale", np.add, np.divide),
        "one added to the gain": each("scale", lambda y, gain: y * (1 + gain)),
        "gain before": {"enter_norm": np.multiply, "scale": lambda y, gain: y},
        "keepdims forgotten": each("mean", np.mean),
        "squares overflow in half precision": each("widen", lambda x: x),
        "axis 1 of a batch": each("axis", 1),
        "epsilon ignored": each("epsilon", lambda e: EPSILON),
    },
)


def rows_have_size_1(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the squares of every row have the mean 1 before the gain."""
    x = case.arrays["x"]
    if np.min(np.mean(x.astype(float) ** 2, axis=-1)) < 0.1:  # then epsilon shows
        return None
    means = np.mean((values[0] / case.arrays["gain"]) ** 2, axis=-1).flatten()
    worst = means[np.argmax(np.abs(means - 1))]
    if abs(worst - 1) < 1e-2:
        return None
    return f"Before the gain the squares of a row have the mean 1; in yours it is {worst:.4g}."


def _case(*shape: int, size: float = 1.0, dtype: str = "float64", **options: float) -> Case:
    x = (draw(24, *shape) + draw(25, *shape[:-1], 1)) * size
    arrays = {"x": x, "gain": 1 + draw(26, shape[-1]) / 3}
    return Case({name: a.astype(dtype) for name, a in arrays.items()}, options)


RMS_NORM = Check(
    name="rms_norm",
    parameters=_PARAMETERS,
    results={"output": "x.shape"},
    reference=attnbook.rms_norm,
    compute=normalize,
    steps=RMS_STEPS,
    stages=norm_stages(_case, np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 4.0]])),
    mistakes=MISTAKES,
    properties=(tokens_are_alone, rows_have_size_1),
    options=("epsilon",),
    adapt=partial(adapt_norm, parameters=_PARAMETERS),
    legible=True,
)
