"""The gradients of a root-mean-square normalisation in steps: of the row, and of the gain."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import with_options
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.layer_norm import EPSILON

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


def mean(a, axis=-1):
    return np.mean(a, axis=axis, keepdims=True)


def norm_gradients(s: Any, x, gain, grad_output, epsilon=EPSILON):
    """Return the gradients of x and the gain from their steps."""
    g, size = s.incoming(grad_output), s.size(x, s.epsilon(epsilon))
    y = s.normal(x, size)
    h = s.scale(g, gain)
    grad_x = s.divide(s.subtract(h, s.along(y, x) * s.share(h, y)), size)
    return s.results((grad_x, s.collect(s.of_gain(g, y, x, gain))))


TEXT = Text(globals())


def nothing_along_the_row(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether grad_x is at a right angle to x, where epsilon does not show."""
    x, grad = case.arrays["x"], values[0]
    if np.min(mean(x.astype(float) ** 2)) < 0.1 or grad.shape != x.shape:
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
    steps=TEXT.steps,
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
    mistakes=TEXT.mistakes,
    properties=(nothing_along_the_row,),
    options=("epsilon",),
    adapt=_adapt,
    legible=True,
)
