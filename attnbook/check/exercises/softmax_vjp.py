"""The gradient of a softmax in steps: what one weight gains, the others of its row lose."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def softmax_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradient of a softmax over the last axis, from its weights.

    Runs `f` on several sizes, on one row, on weights that are 0, in float64 and float32, and on
    batches.

    Parameters
    ----------
    f : callable
        Called as ``f(weights, grad_output)``, by position, on two arrays (n, n_k): the rows of a
        softmax, and ∂L/∂weights. It returns ∂L/∂scores, of the same shape. It may be written for
        one matrix, without leading axes.

    Examples
    --------
    >>> from attnbook import check
    >>> check.softmax_vjp(lambda weights, G: weights * (1 - weights) * G).mistake
    'diagonal of the Jacobian'
    """
    return run(SOFTMAX_VJP, f, time_limit)


def softmax_gradient(s: Any, weights, grad_output):
    """Return the gradient of the scores from its steps."""
    a, g = s.weights(weights), s.incoming(grad_output)
    return s.leave(s.jacobian(a, g, s.mean(a, g)))


TEXT = Text(globals())


def rows_cancel(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every row of the gradient sums to 0."""
    if np.allclose(np.sum(values[0], axis=-1), 0, atol=1e-6):
        return None
    return (
        "Adding one number to a row of scores changes no weight, so every row of the gradient must "
        "sum to zero; here one does not."
    )


def _case(*shape: int, dtype: str = "float64", hidden: bool = False) -> Case:
    scores = draw(44, *shape)
    if hidden:
        m, n = shape[-2:]
        scores = np.where(np.tri(m, n, n - m) > 0, scores, -np.inf)
    arrays: dict[str, Any] = {"weights": attnbook.softmax(scores), "grad_output": draw(45, *shape)}
    return Case({name: x.astype(dtype) for name, x in arrays.items()})


SOFTMAX_VJP = Check(
    name="softmax_vjp",
    parameters=("weights", "grad_output"),
    results={"grad_scores": "weights.shape"},
    compute=softmax_gradient,
    steps=TEXT.steps,
    stages=(
        Stage((_case(3, 3), _case(2, 5), _case(5, 2), _case(1, 7), _case(3, 5, hidden=True))),
        Stage((_case(3, 5, dtype="float32"),)),
        Stage((_case(2, 3, 5), _case(3, 3, 3)), may_raise="a batch (leading axes)"),
    ),
    mistakes=TEXT.mistakes,
    properties=(rows_cancel,),
)
