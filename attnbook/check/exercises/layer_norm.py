"""Layer normalisation in steps: mean, variance, the root with epsilon, gain and bias."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import binds, signature_of, with_options
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text

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
        If it takes only `x`, it is checked without gain and bias. It returns an array of the shape
        of `x`. It may be written for one sequence, without leading axes.

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


OTHER_EPSILONS = (
    *(1e-6, 1e-8, 1e-12, 1e-3, 1e-4, 1e-7, 1e-9, 1e-10, 1e-2, 0.1, 1.0),
    *(1e-13, 1e-15, 1e-16),
)


def normalize(steps: Any, x, gain, bias, epsilon=EPSILON):
    """Compute layer normalisation from its steps."""
    x = steps.enter_norm(steps.widen(x), gain, bias)
    mean_axis, variance_axis = steps.axes
    mean = steps.mean(x, mean_axis)
    variance = steps.variance(x, mean, variance_axis)
    deviation = steps.deviation(variance, steps.epsilon(epsilon))
    return steps.affine(steps.standardise(steps.centre(x, mean), mean, deviation), gain, bias)


TEXT = Text(globals())

NORM_MISTAKES = TEXT.mistakes


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
    steps=TEXT.steps,
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
