"""The feed-forward network in steps: two matrices with their biases, and a ReLU between them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import of_arrays
from attnbook.check.standardization import tokens_are_alone
from attnbook.check.steps import Case, Check, Stage, draw, each


@documented
def feed_forward(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the feed-forward network of a layer, relu(x W_1 + b_1) W_2 + b_2.

    Runs `f` on a square, on different sizes, on one token, in float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W_1, b_1, W_2, b_2)``, by position, on (n, d_model), (d_model, d_ff),
        (d_ff,), (d_ff, d_model) and (d_model,), or as ``f(x, weights)`` with
        `attnbook.FeedForwardWeights` if it takes that many. It returns an array (n, d_model). It
        may be written for one sequence, without leading axes, or for batches alone.

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


FEED_STEPS: dict[str, Callable] = {
    "enter_feed": same,
    "feed_matrices": lambda W_1, W_2: (W_1, W_2),
    "biases": lambda b_1, b_2: (b_1, b_2),
    "shift_hidden": np.add,
    "activate": relu,
    "shift_late": lambda hidden, b_1: hidden,
    "back": np.matmul,
    "shift_back": np.add,
    "leave_feed": same,
    "keep": same,
}


def feed(steps: Any, x, W_1, b_1, W_2, b_2):
    """Compute the feed-forward network from its steps."""
    W_1, W_2 = steps.feed_matrices(W_1, W_2)
    b_1, b_2 = steps.biases(b_1, b_2)
    hidden = steps.activate(steps.shift_hidden(steps.enter_feed(x) @ W_1, b_1))
    hidden = steps.shift_late(hidden, b_1)
    return steps.keep(steps.leave_feed(steps.shift_back(steps.back(hidden, W_2), b_2)), x)


FEED_MISTAKES = mistakes(
    """
    no activation: There is no ReLU between your matrices. Then the two of them are one matrix, W_1
        W_2, however wide the hidden layer is.
    activation after the second matrix: Your ReLU stands after the second matrix: what is added to
        the residual could never be negative. It stands between the two.
    activation twice: Your ReLU stands after both matrices. It stands between the two alone, since
        what is added to the residual must be able to be negative.
    activation before the first matrix: Your ReLU is applied to x itself, not between the two
        matrices.
    another activation: Between your matrices stands another function: GELU, tanh, a sigmoid, a
        softmax, or a ReLU that begins or ends elsewhere. It is max(0, h) here.
    sign of the activation: You keep negative numbers, or drop the sign. The ReLU is max(0, h).
    comparison for the activation: You pass on where h > 0, as 0 and 1, and lose how large it is: h
        · (h > 0), or max(0, h).
    leaky activation: You shrink negative numbers where the ReLU removes them: max(0, h).
    maximum over an axis: You take the largest number along an axis, as np.max(h, 0) does: its
        second argument is an axis. The ReLU compares each number with 0: np.maximum(h, 0).
    both biases forgotten: You add neither b_1 nor b_2.
    b_1 forgotten: You never add b_1. It moves the point where each hidden unit begins to work.
    b_2 forgotten: You never add b_2.
    b_1 after the activation: You add b_1 after the ReLU. It belongs inside, x W_1 + b_1.
    bias subtracted: You subtract a bias. Both are added.
    bias multiplied: You multiply by a bias. Both are added.
    residual inside: You add x to the result. The residual connection belongs to the layer, which
        adds it once more.
    normalised inside: You normalise x or the result. The layer does that, around this network.
    first matrix used twice: Your second matrix is W_1 transposed. It is W_2, of its own.
    matrices transposed: You multiply by the transposed matrices. It runs only where they are
        square. The rows of W_1 belong to the features of x: x @ W_1.
    matrices exchanged: Your first matrix is W_2 and your second is W_1, or the transposed of them.
        W_1 comes first: (d_model, d_ff), then W_2: (d_ff, d_model).
    hidden layer returned: You return the hidden layer, (n, d_ff). W_2 brings it back to d_model.
    number multiplied: You multiply or divide by a number that is not in the formula, before the
        first matrix or between the two: by √d_model, by √d_ff, or as a dropout does.
    """,
    {
        "no activation": each("activate", same),
        "activation after the second matrix": (
            {"activate": same, "leave_feed": relu},
            {"activate": same, "back": lambda h, W_2: relu(h @ W_2)},
        ),
        "activation twice": each("leave_feed", relu),
        "activation before the first matrix": (
            {"enter_feed": relu, "activate": same},
            {"enter_feed": relu},
        ),
        "another activation": each(
            "activate",
            *(*OTHER_ACTIVATIONS, silu, sigmoid, np.square, lambda h: np.clip(h, 0, 6)),
            *(np.exp, np.sin, lambda h: np.clip(h, 0, 1), lambda h: np.clip(h, -1, 1), np.sign),
            *(lambda h: np.maximum(h, 1), lambda h: np.where(h > 1, h, 0), lambda h: relu(h - 1)),
            lambda h: h + relu(h),
        ),
        "number multiplied": (
            *each("activate", *(lambda h, by=by: by * relu(h) for by in (0.5, 0.8, 0.9, 2.0))),
            *each(
                "activate",
                lambda h: relu(h) / np.sqrt(h.shape[-1]),
                lambda h: relu(h) / h.shape[-1],
            ),
            *each(
                "enter_feed",
                lambda x: x / np.sqrt(x.shape[-1]),
                lambda x: x * np.sqrt(x.shape[-1]),
            ),
        ),
        "sign of the activation": each(
            "activate", lambda h: np.minimum(h, 0), lambda h: relu(-h), np.abs
        ),
        "comparison for the activation": each("activate", lambda h: (h > 0).astype(h.dtype)),
        "leaky activation": each(
            "activate",
            *(
                lambda h, slope=slope: np.where(h > 0, h, slope * h)
                for slope in (0.01, 0.1, 0.2, 0.3, 0.05, 0.25, 0.5)
            ),
        ),
        "maximum over an axis": each(
            "activate",
            lambda h: np.max(h, axis=0),
            lambda h: np.max(h, axis=-1, keepdims=True) + 0 * h,
            lambda h: np.maximum(np.max(h), 0) + 0 * h,
        ),
        "both biases forgotten": each("biases", lambda b_1, b_2: (0, 0)),
        "b_1 forgotten": each("biases", lambda b_1, b_2: (0, b_2)),
        "b_2 forgotten": each("biases", lambda b_1, b_2: (b_1, 0)),
        "b_1 after the activation": {
            "shift_hidden": lambda h, b_1: h,
            "shift_late": np.add,
        },
        "bias subtracted": each(
            "biases",
            lambda b_1, b_2: (-b_1, -b_2),
            lambda b_1, b_2: (-b_1, b_2),
            lambda b_1, b_2: (b_1, -b_2),
        ),
        "bias multiplied": ({"shift_hidden": np.multiply}, {"shift_back": np.multiply}),
        "residual inside": each("keep", np.add),
        "normalised inside": (
            *each(
                "keep", lambda y, x: attnbook.layer_norm(y), lambda y, x: attnbook.layer_norm(x + y)
            ),
            *each("enter_feed", attnbook.layer_norm, attnbook.rms_norm),
        ),
        "first matrix used twice": each(
            "feed_matrices", lambda W_1, W_2: (W_1, W_1.T), lambda W_1, W_2: (W_1, W_1)
        ),
        "matrices transposed": each(
            "feed_matrices",
            lambda W_1, W_2: (W_1.T, W_2.T),
            lambda W_1, W_2: (W_1.T, W_2),
            lambda W_1, W_2: (W_1, W_2.T),
        ),
        "matrices exchanged": each(
            "feed_matrices", lambda W_1, W_2: (W_2, W_1), lambda W_1, W_2: (W_2.T, W_1.T)
        ),
        "hidden layer returned": (
            {"back": same, "shift_back": same},
            {"activate": same, "back": same, "shift_back": same},
        ),
    },
)


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
    steps=FEED_STEPS,
    mistakes=FEED_MISTAKES,
)
