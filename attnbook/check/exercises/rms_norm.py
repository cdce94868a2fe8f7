"""Root-mean-square normalisation in steps: squares, their mean, the root with epsilon, the gain."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.layer_norm import (
    EPSILON,
    adapt_norm,
    norm_stages,
    tokens_are_alone,
)

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
        `eps` if it takes an argument of that name; otherwise it must use 1e-5. If it takes only
        `x`, it is checked without a gain. It returns an array of the shape of `x`. It may be
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


def centred(x):
    return x - np.mean(x, axis=-1, keepdims=True)


def normalize(steps: Any, x, gain, epsilon=EPSILON):
    """Compute the normalisation from its steps."""
    x = steps.enter_norm(steps.widen(x), gain)
    mean = steps.mean(steps.squares(x), axis=steps.axis)
    size = steps.size(mean, steps.epsilon(epsilon))
    return steps.scale(steps.divide(steps.above(x), size), gain)


TEXT = Text(globals())


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
    steps=TEXT.steps,
    stages=norm_stages(_case, np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 4.0]])),
    mistakes=TEXT.mistakes,
    properties=(tokens_are_alone, rows_have_size_1),
    options=("epsilon",),
    adapt=partial(adapt_norm, parameters=_PARAMETERS),
    legible=True,
)
