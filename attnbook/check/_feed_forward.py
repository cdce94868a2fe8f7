"""The check of the feed-forward network: two matrices, and a ReLU between them."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check._calls import binds, signature_of
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._report import Report

_PARAMETERS = ("x", "W_1", "b_1", "W_2", "b_2")


def feed_forward(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the feed-forward network of a layer, relu(x W_1 + b_1) W_2 + b_2.

    Runs `f` on a square, on sizes that are all different primes and on one token, in float64 and
    float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W_1, b_1, W_2, b_2)``, by position, on (n, d_model), (d_model, d_ff),
        (d_ff,), (d_ff, d_model) and (d_model,), or as ``f(x, weights)`` with
        `attnbook.FeedForwardWeights` if it takes that many. It returns an array (n, d_model). It
        may be written for one sequence, without leading axes, or for batches alone.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_network(x, W_1, b_1, W_2, b_2):
    ...     return (x @ W_1 + b_1) @ W_2 + b_2
    >>> check.feed_forward(my_network).mistake
    'no activation'
    """
    return run(FEED_FORWARD, f, time_limit)


def _adapt(function: Callable) -> Callable:
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return function
    if binds(signature, 2) and not binds(signature, 5):
        return lambda x, *arrays: function(x, attnbook.FeedForwardWeights(*arrays))
    return function


def _reference(x, W_1, b_1, W_2, b_2):
    return attnbook.feed_forward(x, attnbook.FeedForwardWeights(W_1, b_1, W_2, b_2))


def relu(x):
    return np.maximum(x, 0)


def through(activate: Callable) -> Callable:
    """Return the network with another function between its matrices."""
    return lambda x, W_1, b_1, W_2, b_2: activate(x @ W_1 + b_1) @ W_2 + b_2


def tokens_are_alone(case: Case, values: Values, again: Callable) -> str | None:
    x = case.arrays["x"].copy()
    x[..., -1, :] += 1
    moved = again(x=x)
    if moved and not np.allclose(moved[0][..., :-1, :], values[0][..., :-1, :]):
        return "Changing the last token must not change the others; here it does."
    return None


NO_ACTIVATION = (
    "no activation",
    "There is no ReLU between your matrices. Then the two of them are one matrix, W_1 W_2, however "
    "wide the hidden layer is.",
)

_MISTAKES = (
    Mistake(*NO_ACTIVATION, (through(lambda h: h),)),
    Mistake(
        "activation after the second matrix",
        "Your ReLU stands after the second matrix: what is added to the residual could never be "
        "negative. It stands between the two.",
        (
            lambda x, W_1, b_1, W_2, b_2: relu((x @ W_1 + b_1) @ W_2 + b_2),
            lambda x, W_1, b_1, W_2, b_2: relu((x @ W_1 + b_1) @ W_2) + b_2,
        ),
    ),
    Mistake(
        "activation twice",
        "Your ReLU stands after both matrices. The second one has none: its output is added to the "
        "residual and must be able to be negative.",
        (lambda x, W_1, b_1, W_2, b_2: relu(relu(x @ W_1 + b_1) @ W_2 + b_2),),
    ),
    Mistake(
        "activation before the first matrix",
        "Your ReLU is applied to x itself, which loses half of it. It stands between the two "
        "matrices.",
        (lambda x, W_1, b_1, W_2, b_2: (relu(x) @ W_1 + b_1) @ W_2 + b_2,),
    ),
    Mistake(
        "another activation",
        "Between your matrices stands another function: GELU, tanh, a sigmoid or a softmax. It is "
        "max(0, h) here.",
        (
            through(attnbook.gelu),
            through(np.tanh),
            through(lambda h: h / (1 + np.exp(-h))),
            through(lambda h: 1 / (1 + np.exp(-h))),
            through(lambda h: np.exp(h) / np.sum(np.exp(h), axis=-1, keepdims=True)),
            through(lambda h: h / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h**3)))),
        ),
    ),
    Mistake(
        "sign of the activation",
        "You keep the negative numbers and lose the positive ones, or drop the sign. The ReLU is "
        "max(0, h).",
        (
            through(lambda h: np.minimum(h, 0)),
            through(lambda h: relu(-h)),
            through(np.abs),
        ),
    ),
    Mistake(
        "comparison for the activation",
        "You pass on where h > 0, as 0 and 1, and lose how large it is: h · (h > 0), or max(0, h).",
        (through(lambda h: (h > 0).astype(h.dtype)),),
    ),
    Mistake(
        "leaky activation",
        "Negative numbers are shrunk, not removed: that is a leaky ReLU. Here it is max(0, h).",
        tuple(
            through(lambda h, slope=slope: np.where(h > 0, h, slope * h))
            for slope in (0.01, 0.1, 0.2)
        ),
    ),
    Mistake(
        "both biases forgotten",
        "You add neither b_1 nor b_2.",
        (lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1) @ W_2,),
    ),
    Mistake(
        "b_1 forgotten",
        "You never add b_1. It moves the point where each hidden unit begins to work.",
        (lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1) @ W_2 + b_2,),
    ),
    Mistake(
        "b_2 forgotten",
        "You never add b_2.",
        (lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 + b_1) @ W_2,),
    ),
    Mistake(
        "b_1 after the activation",
        "You add b_1 after the ReLU. It belongs inside, x W_1 + b_1.",
        (lambda x, W_1, b_1, W_2, b_2: (relu(x @ W_1) + b_1) @ W_2 + b_2,),
    ),
    Mistake(
        "bias subtracted",
        "You subtract a bias. Both are added.",
        (
            lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 - b_1) @ W_2 - b_2,
            lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 - b_1) @ W_2 + b_2,
            lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 + b_1) @ W_2 - b_2,
        ),
    ),
    Mistake(
        "residual inside",
        "You add x to the result. The residual connection belongs to the layer, which adds it once "
        "more.",
        (lambda x, W_1, b_1, W_2, b_2: x + _reference(x, W_1, b_1, W_2, b_2),),
    ),
    Mistake(
        "first matrix used twice",
        "Your second matrix is W_1 transposed. It has weights of its own, W_2.",
        (lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 + b_1) @ W_1.T + b_2,),
    ),
    Mistake(
        "matrices transposed",
        "You multiply by the transposed matrices. It runs only where they are square. The rows of "
        "W_1 belong to the features of x: x @ W_1.",
        (
            lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1.T + b_1) @ W_2.T + b_2,
            lambda x, W_1, b_1, W_2, b_2: relu(x @ W_2 + b_1) @ W_1 + b_2,
        ),
    ),
    Mistake(
        "hidden layer returned",
        "You return the hidden layer, (n, d_ff). The second matrix brings it back to d_model.",
        (lambda x, W_1, b_1, W_2, b_2: relu(x @ W_1 + b_1), lambda x, W_1, b_1, *_: x @ W_1 + b_1),
    ),
)


def _case(n: int, d_model: int, d_ff: int, *leading: int, dtype: str = "float64") -> Case:
    drawn = {
        "x": draw(30, *leading, n, d_model),
        "W_1": draw(31, d_model, d_ff),
        "b_1": draw(32, d_ff),
        "W_2": draw(33, d_ff, d_model),
        "b_2": draw(34, d_model),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


FEED_FORWARD = Check(
    name="feed_forward",
    parameters=_PARAMETERS,
    results={"output": "(..., n, d_model)"},
    reference=_reference,
    stages=(
        Stage((_case(3, 3, 3), _case(2, 5, 11), _case(1, 7, 3))),
        Stage((_case(2, 5, 11, dtype="float32"),)),
        Stage((_case(2, 5, 11, 3), _case(3, 3, 3, 3)), beyond="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(tokens_are_alone,),
    options=(),
    remarked_options=(),
    adapt=_adapt,
    sequences=("x",),
)
