"""The gradient of the cross-entropy in steps: probabilities, less the label, over the tokens."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def cross_entropy_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradient of the mean cross-entropy with respect to the logits.

    Runs `f` on several sizes, on one token, on logits of ±1000, in float64 and float32, and on
    batches, which must be right, too.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, targets)``, by position, on an array (..., n, V) and integers
        (..., n) from 0 to V - 1. It returns the gradient, (..., n, V), with respect to the logits
        of the mean of -log softmax(logits)[target] over all tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check, softmax
    >>> def my_gradient(logits, targets):
    ...     return softmax(logits) - np.eye(logits.shape[-1])[targets]
    >>> check.cross_entropy_vjp(my_gradient).mistake
    'mean forgotten'
    """
    return run(CROSS_ENTROPY_VJP, f, time_limit)


def softmax(z, axis=-1):
    powers = np.exp(z - np.max(z, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def vjp(p, g):
    return p * (g - np.sum(p * g, axis=-1, keepdims=True))


def losses(p, y):
    return -np.log(np.sum(p * y, axis=-1, keepdims=True))


def marked(targets, z):
    y = np.zeros_like(z)
    y[np.arange(len(targets)), targets] = 1
    return y


def loss_gradient(s: Any, logits, targets):
    """Return the gradient of the logits from its steps."""
    p, y = s.probabilities(logits), s.label(s.numbers(targets, logits), logits)
    return s.leave(s.difference(p, y, logits) / s.tokens(logits), p, y)


TEXT = Text(globals())


def rows_cancel(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every row of the gradient sums to 0."""
    if np.allclose(np.sum(values[0], axis=-1), 0, atol=1e-6):
        return None
    return (
        "Adding one number to all logits of a token changes no loss, so every row of the gradient "
        "must sum to zero; here one does not."
    )


def _case(*shape: int, dtype: str = "float64") -> Case:
    targets = (np.arange(math.prod(shape[:-1])) * 2 + 1).reshape(shape[:-1]) % shape[-1]
    return Case({"logits": (2 * draw(46, *shape)).astype(dtype), "targets": targets})


_LARGE = Case(
    {
        "logits": np.array([[1000.0, 0.0, 1.0], [3.0, 1000.0, 999.0], [-1000.0, -999.0, 0.0]]),
        "targets": np.array([0, 2, 1]),
    }
)


CROSS_ENTROPY_VJP = Check(
    name="cross_entropy_vjp",
    parameters=("logits", "targets"),
    results={"grad_logits": "logits.shape"},
    compute=loss_gradient,
    steps=TEXT.steps,
    stages=(
        Stage((_case(3, 3), _case(5, 7), _case(7, 2), _case(1, 5))),
        Stage((_case(5, 7, dtype="float32"),)),
        Stage((_LARGE,), errors={OverflowError: "exp overflows"}),
        Stage((_case(2, 5, 7), _case(3, 3, 3))),
    ),
    mistakes=TEXT.mistakes,
    properties=(rows_cancel,),
    legible=True,
)
