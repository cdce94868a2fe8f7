"""The gradient of a softmax in steps: what one weight gains, the others of its row lose."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


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


def _weighted(a, g):
    return np.sum(a * g, axis=-1, keepdims=True)


STEPS: dict[str, Callable] = {
    "weights": lambda a: a,
    "incoming": lambda g: g,
    "mean": _weighted,  # of the gradient, in each row
    "jacobian": lambda a, g, mean: a * (g - mean),
    "leave": lambda d: d,
}


def softmax_gradient(s: Any, weights, grad_output):
    """Return the gradient of the scores from its steps."""
    a, g = s.weights(weights), s.incoming(grad_output)
    return s.leave(s.jacobian(a, g, s.mean(a, g)))


MISTAKES = mistakes(
    """
    second term forgotten: You return weights · grad_output alone. A larger score also takes weight
        from all others of its row: subtract the row sum of weights · grad_output first.
    diagonal of the Jacobian: You use a(1 − a), as for a sigmoid. A score changes every weight of
        its row, so the entries off the diagonal count.
    softmax skipped: You pass grad_output on, as if there were no softmax.
    weights forgotten in front: You subtract the weighted mean from grad_output and stop. Multiply
        the difference by the weights.
    second term not multiplied by the weights: You subtract the row sum from weights · grad_output.
        The row sum is multiplied by the weights too: weights · (grad_output − row sum).
    sum over the wrong axis: You sum over the rows, or over everything. Each row is a softmax of its
        own: sum over the last axis.
    keepdims forgotten: The axis that you sum over is gone, so row i is combined with the sum of row
        j. It runs only where the array is square. Pass keepdims=True.
    mean instead of sum: You take the mean of weights · grad_output. It is the sum: the weights in
        it sum to one already.
    sum without the weights: You sum or average grad_output without the weights. What is subtracted
        is its mean under the weights.
    weights squared in the sum: You multiply twice by the weights in the row sum. Once is right.
    sign: Your gradient has the wrong sign. The weighted mean is subtracted from grad_output.
    sign of the second term: You add the weighted mean, or the entries off the diagonal of the
        Jacobian. They are subtracted: what one weight gains, the others of its row lose.
    log-softmax for softmax: You return grad_output − weights · (row sum of grad_output), which is
        the gradient through a log-softmax.
    cross-entropy for softmax: You return weights − grad_output, which is p − y, the gradient of a
        softmax and a cross-entropy together. Here grad_output is any gradient of the weights.
    divided by the weights: You divide by the weights where you should multiply.
    weights taken for scores: You take the softmax of the weights again. They are its output
        already.
    grad_output ignored: Your gradient does not depend on grad_output as it should: you take it for
        ones.
    divided by the number of rows: You divide by the number of rows or of weights. grad_output holds
        such factors already.
    axis 1 of a batch: For a matrix axis 1 is the last axis, for a batch it is another one. Write
        −1.
    first term forgotten: You return the second term alone, weights · row sum, or the row sum by
        itself. It is subtracted from the first one, weights · grad_output.
    weights forgotten in the first term: You subtract weights · row sum from grad_output. The
        weights multiply both: weights · (grad_output − row sum).
    weights squared: You multiply a term by the weights twice, or leave out the diagonal of the
        Jacobian. The gradient is weights · (grad_output − row sum).
    weights and grad_output exchanged: You multiply by grad_output where the weights belong. The
        gradient is weights · (grad_output − row sum).
    1 for grad_output: You subtract the row sum from 1. It is subtracted from grad_output.
    1 − weights for the weights: You multiply by 1 − weights where the weights belong.
    terms multiplied: You multiply or divide by the row sum. It is subtracted.
    largest for the sum: You subtract the largest number of the row. Subtract the sum over the row
        of weights · grad_output.
    softmax of grad_output: You take a softmax of grad_output. It is a gradient, and is used as it
        is.
    """,
    {
        "first term forgotten": each(
            "jacobian",
            lambda a, g, mean: -a * mean,
            lambda a, g, mean: a * mean,
            lambda a, g, mean: -mean + 0 * a,
            lambda a, g, mean: mean + 0 * a,
        ),
        "weights forgotten in the first term": each("jacobian", lambda a, g, mean: g - a * mean),
        "weights squared": each(
            "jacobian",
            lambda a, g, mean: a * (g - a * mean),
            lambda a, g, mean: a * (a * g - mean),
            lambda a, g, mean: a * a * (g - mean),
        ),
        "weights and grad_output exchanged": each("jacobian", lambda a, g, mean: g * (a - mean)),
        "1 for grad_output": each(
            "jacobian",
            lambda a, g, mean: a * (1 - mean),
            lambda a, g, mean: g * (1 - mean),
            lambda a, g, mean: a * g * (1 - mean),
        ),
        "1 − weights for the weights": each(
            "jacobian", lambda a, g, mean: (1 - a) * (g - mean), lambda a, g, mean: (1 - a) * g
        )
        + each("mean", lambda a, g: _weighted(1 - a, g)),
        "terms multiplied": each(
            "jacobian", lambda a, g, mean: a * g * mean, lambda a, g, mean: a * g / mean
        ),
        "second term forgotten": each("jacobian", lambda a, g, mean: a * g),
        "diagonal of the Jacobian": each("jacobian", lambda a, g, mean: a * (1 - a) * g),
        "softmax skipped": each("jacobian", lambda a, g, mean: g),
        "weights forgotten in front": each("jacobian", lambda a, g, mean: g - mean),
        "second term not multiplied by the weights": each(
            "jacobian", lambda a, g, mean: a * g - mean
        ),
        "sum over the wrong axis": each(
            "mean",
            lambda a, g: np.sum(a * g, axis=-2, keepdims=True),
            lambda a, g: np.sum(a * g),
        ),
        "keepdims forgotten": each("mean", lambda a, g: np.sum(a * g, axis=-1)),
        "mean instead of sum": each("mean", lambda a, g: np.mean(a * g, axis=-1, keepdims=True)),
        "largest for the sum": each(
            "mean",
            lambda a, g: np.max(a * g, axis=-1, keepdims=True),
            lambda a, g: np.max(g, axis=-1, keepdims=True),
        ),
        "sum without the weights": each(
            "mean",
            lambda a, g: np.sum(g, axis=-1, keepdims=True),
            lambda a, g: np.mean(g, axis=-1, keepdims=True),
        ),
        "weights squared in the sum": each(
            "mean", lambda a, g: np.sum(a * a * g, axis=-1, keepdims=True)
        ),
        "sign": each("jacobian", lambda a, g, mean: a * (mean - g)),
        "sign of the second term": each(
            "jacobian",
            lambda a, g, mean: a * (g + mean),
            lambda a, g, mean: a * (1 - a) * g + a * (mean - a * g),
        ),
        "log-softmax for softmax": each(
            "jacobian", lambda a, g, mean: g - a * np.sum(g, axis=-1, keepdims=True)
        ),
        "cross-entropy for softmax": each(
            "jacobian", lambda a, g, mean: a - g, lambda a, g, mean: g - a
        ),
        "divided by the weights": each("jacobian", lambda a, g, mean: (g - mean) / a),
        "weights taken for scores": each("weights", attnbook.softmax),
        "softmax of grad_output": each("incoming", attnbook.softmax)
        + each("jacobian", lambda a, g, mean: attnbook.softmax(g)),
        "grad_output ignored": each("incoming", np.ones_like)
        + each("jacobian", lambda a, g, mean: a * (1 - a)),
        "divided by the number of rows": each(
            "leave", lambda d: d / d.shape[-2], lambda d: d / d.shape[-1], lambda d: d / d.size
        ),
        "axis 1 of a batch": each("mean", lambda a, g: np.sum(a * g, axis=1, keepdims=True)),
    },
)


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
    steps=STEPS,
    stages=(
        Stage((_case(3, 3), _case(2, 5), _case(5, 2), _case(1, 7), _case(3, 5, hidden=True))),
        Stage((_case(3, 5, dtype="float32"),)),
        Stage((_case(2, 3, 5), _case(3, 3, 3)), may_raise="a batch (leading axes)"),
    ),
    mistakes=MISTAKES,
    properties=(rows_cancel,),
)
