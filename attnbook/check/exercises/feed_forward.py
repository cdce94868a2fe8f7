"""The feed-forward network in steps: two matrices with their biases, and a ReLU between them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import of_arrays
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.layer_norm import tokens_are_alone


@documented
def feed_forward(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the feed-forward network of a layer, relu(x W_1 + b_1) W_2 + b_2.

    Runs `f` on a square, on different sizes, on one token, in float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W_1, b_1, W_2, b_2)``, by position, on (n, d_model), (d_model, d_ff),
        (d_ff,), (d_ff, d_model) and (d_model,), or as ``f(x, weights)`` with
        `attnbook.FeedForwardWeights` if it takes two arguments. It returns an array (n, d_model).
        It may be written only for one sequence, without leading axes, or only for batches.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_network(x, W_1, b_1, W_2, b_2):
    ...     return (x @ W_1 + b_1) @ W_2 + b_2
    >>> check.feed_forward(my_network).mistake
    'no activation'
    """
    return run(FEED_FORWARD, f, time_limit)


def relu(x):
    """Return max(0, x)."""
    return np.maximum(x, 0)


def sigmoid(h):
    """Return σ(h)."""
    return 0.5 * (1 + np.tanh(h / 2))


def silu(h):
    """Return h·σ(h)."""
    return h * sigmoid(h)


def same(x, *others):
    """Return `x`, whatever else is given."""
    return x


OTHER_ACTIVATIONS: tuple[Callable, ...] = (
    attnbook.gelu,
    attnbook.gelu_tanh,
    np.tanh,
    attnbook.softmax,
    lambda h: h * sigmoid(1.702 * h),
    lambda h: np.log(1 + np.exp(h)),
    lambda h: np.where(h > 0, h, np.exp(h) - 1),
    lambda h: relu(h) ** 2,
)
"""What somebody may take for the ReLU, and for silu."""


def feed(steps: Any, x, W_1, b_1, W_2, b_2):
    """Compute the feed-forward network from its steps."""
    W_1, W_2 = steps.feed_matrices(W_1, W_2)
    b_1, b_2 = steps.biases(b_1, b_2)
    hidden = steps.activate(steps.shift_hidden(steps.enter_feed(x) @ W_1, b_1))
    hidden = steps.shift_late(hidden, b_1)
    return steps.keep(steps.leave_feed(steps.shift_back(steps.back(hidden, W_2), b_2)), x)


TEXT = Text(globals())

FEED_MISTAKES = TEXT.mistakes


def _case(n: int, d_model: int, d_ff: int, *leading: int, dtype: str = "float64") -> Case:
    drawn = {
        "x": draw(30, *leading, n, d_model) * (1 if n > 1 else 8),  # a clipped ReLU must show
        "W_1": draw(31, d_model, d_ff),
        "b_1": draw(32, d_ff),
        "W_2": draw(33, d_ff, d_model),
        "b_2": draw(34, d_model),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


def network_check(name: str, kind: type, case: Callable, **fields: Any) -> Check:
    """Return the check of a network of x and of the arrays that a `kind` may hold."""
    parameters = tuple(case(1, 1, 1).arguments)
    return Check(
        name=name,
        parameters=parameters,
        results={"output": "(..., n, d_model)"},
        stages=(
            Stage((case(3, 3, 3), case(2, 5, 11), case(1, 7, 3))),
            Stage((case(2, 5, 11, dtype="float32"),)),
            Stage((case(2, 5, 11, 3), case(3, 3, 3, 3)), may_raise="a batch (leading axes)"),
        ),
        properties=(tokens_are_alone,),
        adapt=partial(of_arrays, kind=kind, count=len(parameters)),
        legible=True,
        **fields,
    )


FEED_FORWARD = network_check(
    "feed_forward",
    attnbook.FeedForwardWeights,
    _case,
    compute=feed,
    steps=TEXT.steps,
    mistakes=FEED_MISTAKES,
)
