"""The gradient of the cross-entropy in steps: probabilities, less the label, over the tokens."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


@documented
def cross_entropy_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradient of the mean cross-entropy with respect to the logits.

    Runs `f` on several sizes, on one token, on logits of ±1000, in float64 and float32, and on
    batches.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, targets)``, by position, on an array (n, V) and integers (n,) from 0
        to V - 1. It returns the gradient by the logits, (n, V), of the mean of
        -log softmax(logits)[target] over the n tokens. It may be written for one sequence, without
        leading axes.

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


def _softmax(z, axis=-1):
    powers = np.exp(z - np.max(z, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _overflowing(z):
    return np.exp(z) / np.sum(np.exp(z), axis=-1, keepdims=True)


def _one_hot(targets, z):
    return np.eye(z.shape[-1], dtype=z.dtype)[targets]


def _vjp(p, g):
    return p * (g - np.sum(p * g, axis=-1, keepdims=True))


def _losses(p, y):
    return -np.log(np.sum(p * y, axis=-1, keepdims=True))


STEPS: dict[str, Callable] = {
    "probabilities": _softmax,
    "numbers": lambda targets, z: targets,
    "label": _one_hot,
    "difference": lambda p, y, z: p - y,
    "tokens": lambda z: math.prod(z.shape[:-1]),
    "leave": lambda d, p, y: d,
}


def loss_gradient(s: Any, logits, targets):
    """Return the gradient of the logits from its steps."""
    p, y = s.probabilities(logits), s.label(s.numbers(targets, logits), logits)
    return s.leave(s.difference(p, y, logits) / s.tokens(logits), p, y)


MISTAKES = mistakes(
    """
    mean forgotten: You do not divide by the number of tokens. The loss is a mean over the tokens,
        so each has a share of 1/n in it.
    divided by all numbers: You divide by n · V, the number of logits. The loss is a mean over the n
        tokens.
    divided by the vocabulary: You divide by V. The loss is a mean over the n tokens.
    mean twice: You divide by the number of tokens twice.
    half divided: You divide the probabilities or the label by the number of tokens, not both. The
        whole difference is: mind the brackets.
    divided by another number: You divide by n − 1, n + 1 or √n. The loss is a mean over n tokens.
    multiplied by the number: You multiply by the number of tokens. Divide.
    every target in every row: You subtract 1 in the columns of all targets in every row. Row i has
        target i alone: g[np.arange(n), targets] -= 1.
    sigmoid for softmax: You take a sigmoid of each logit. The words compete: take the softmax.
    not normalised: You take the exponentials for probabilities. Divide them by their sum.
    label forgotten: You return the probabilities alone. At the label 1 is subtracted.
    label alone: Your gradient is 0 but at the label. The other logits have one as well: their
        probabilities.
    softmax forgotten: You subtract the label from the logits. Take their softmax first.
    logarithms for probabilities: You subtract the label from the log-probabilities. The gradient
        holds the probabilities themselves.
    softmax twice: You take the softmax of the softmax.
    softmax over the tokens: Your softmax runs over the tokens, or over everything. It runs over the
        vocabulary, the last axis.
    gradient by the probabilities: You return −y/p, the gradient by the probabilities. The softmax
        is still to be passed: that makes p − y.
    softmax passed twice: You send p − y through the Jacobian of the softmax once more. It has been
        passed already.
    gradient of the probability of the label: You return the gradient of p at the label, not of
        −log p.
    sign: You subtract p from y. It is p − y: the gradient points where the loss grows; the minus
        belongs to the step.
    gradient scaled: Your gradient is the right one times 2 or 1/2: that of another loss, as if
        (p − y)² stood there, or in bits.
    squared error: You return the gradient of (p − y)² through the softmax. The loss is −log p at
        the label.
    label one too small: You subtract 1 one column before the label. Ids count from 0.
    label one too large: You subtract 1 one column behind the label. Ids count from 0.
    label by position: You subtract 1 in column i of token i. It belongs in the column of its
        target.
    exp overflows: You do not subtract the largest logit before exp. At 1000 it overflows.
    divided by the length alone: For a batch you divide by the length of a sequence. The mean is
        over the tokens of all sequences.
    label added: You add 1 at the label. Subtract it: p − y.
    another number at the label: At the label you put another number than p − 1, such as −1, 0,
        1 − p or p − 2. The other logits have their probabilities.
    1 in every column: You subtract 1 from every probability, or every one from 1. It is subtracted
        at the label alone.
    loss for the gradient: You return the loss, or its parts. Its gradient by the logits is p − y.
    multiplied by the loss: You multiply the gradient of a token by its loss.
    multiplied by the probabilities: You multiply p − y by p, or by p(1 − p) as for a sigmoid. The
        softmax has been passed already.
    likeliest word for the label: You subtract 1 at the likeliest word. It belongs at the target.
    label of another token: You subtract 1 at the target of another token. Row i has target i.
    ids for the one-hot rows: You subtract the number of the target from every probability. Subtract
        1 in its column.
    likeliest word alone: You put 1 at the likeliest word in the place of the probabilities.
    softmax of the difference: You subtract the label from the logits, and take the softmax then.
        Take the softmax first.
    """,
    {
        "mean forgotten": each("tokens", lambda z: 1),
        "divided by all numbers": each("tokens", lambda z: z.size),
        "divided by the vocabulary": each("tokens", lambda z: z.shape[-1]),
        "mean twice": each("tokens", lambda z: math.prod(z.shape[:-1]) ** 2),
        "half divided": each(
            "difference",
            lambda p, y, z: p - y * math.prod(z.shape[:-1]),
            lambda p, y, z: p * math.prod(z.shape[:-1]) - y,
        ),
        "label added": each("difference", lambda p, y, z: p + y),
        "another number at the label": each(
            "difference",
            lambda p, y, z: p * (1 - y) - y,
            lambda p, y, z: p * (1 - y),
            lambda p, y, z: p * (1 - y) + (1 - p) * y,
            lambda p, y, z: p - 2 * y,
            lambda p, y, z: p * (1 - y) + y,
        ),
        "1 in every column": each("difference", lambda p, y, z: p - 1, lambda p, y, z: 1 - p),
        "loss for the gradient": each(
            "difference",
            lambda p, y, z: -np.log(p) * y,
            lambda p, y, z: np.log(p) * y,
            lambda p, y, z: -np.log(p),
            lambda p, y, z: _losses(p, y) + 0 * p,
            lambda p, y, z: np.sum(_losses(p, y)) + 0 * p,
        ),
        "multiplied by the loss": each("difference", lambda p, y, z: (p - y) * _losses(p, y)),
        "multiplied by the probabilities": each(
            "difference",
            lambda p, y, z: p * (p - y),
            lambda p, y, z: p * (1 - p) * (p - y),
            lambda p, y, z: p * (1 - p) - y,
        ),
        "likeliest word for the label": each("numbers", lambda t, z: np.argmax(z, axis=-1)),
        "label of another token": each(
            "numbers",
            lambda t, z: t[..., :1] + 0 * t,
            lambda t, z: t[..., ::-1],
            lambda t, z: np.roll(t, 1, axis=-1),
            lambda t, z: np.roll(t, -1, axis=-1),
        ),
        "ids for the one-hot rows": each("label", lambda t, z: t[..., np.newaxis] + 0 * z),
        "sigmoid for softmax": each("probabilities", lambda z: 1 / (1 + np.exp(-z))),
        "not normalised": each(
            "probabilities", np.exp, lambda z: np.exp(z - np.max(z, axis=-1, keepdims=True))
        ),
        "likeliest word alone": each(
            "probabilities", lambda z: (z == np.max(z, axis=-1, keepdims=True)) * 1.0
        ),
        "softmax of the difference": each("difference", lambda p, y, z: _softmax(z - y)),
        "divided by another number": each(
            "tokens",
            lambda z: max(math.prod(z.shape[:-1]) - 1, 1),
            lambda z: math.prod(z.shape[:-1]) + 1,
            lambda z: math.sqrt(math.prod(z.shape[:-1])),
        ),
        "multiplied by the number": each("tokens", lambda z: 1 / math.prod(z.shape[:-1])),
        "every target in every row": each(
            "difference", lambda p, y, z: p - np.max(y, axis=-2, keepdims=True)
        ),
        "label forgotten": each("difference", lambda p, y, z: p),
        "label alone": each(
            "difference", lambda p, y, z: (p - y) * y, lambda p, y, z: -y, lambda p, y, z: p * y
        ),
        "softmax forgotten": each("difference", lambda p, y, z: z - y),
        "logarithms for probabilities": each("difference", lambda p, y, z: np.log(p) - y),
        "softmax twice": each("probabilities", lambda z: _softmax(_softmax(z))),
        "softmax over the tokens": each(
            "probabilities", lambda z: _softmax(z, -2), lambda z: _softmax(z, None)
        ),
        "gradient by the probabilities": each("difference", lambda p, y, z: -y / p),
        "softmax passed twice": each("difference", lambda p, y, z: _vjp(p, p - y)),
        "gradient of the probability of the label": each(
            "difference", lambda p, y, z: _vjp(p, y), lambda p, y, z: -_vjp(p, y)
        ),
        "sign": each("difference", lambda p, y, z: y - p),
        "gradient scaled": each(
            "leave",
            lambda d, p, y: 2 * d,
            lambda d, p, y: d / 2,
            lambda d, p, y: d / math.log(2),
        ),
        "squared error": each("difference", lambda p, y, z: 2 * _vjp(p, p - y)),
        "label one too small": each("numbers", lambda t, z: t - 1),
        "label one too large": each(
            "numbers",
            lambda t, z: (t + 1) % z.shape[-1],
            lambda t, z: np.minimum(t + 1, z.shape[-1] - 1),
        ),
        "label by position": each(
            "numbers", lambda t, z: np.broadcast_to(np.arange(t.shape[-1]) % z.shape[-1], t.shape)
        ),
        "exp overflows": each("probabilities", _overflowing),
        "divided by the length alone": each("tokens", lambda z: z.shape[-2]),
    },
)


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
    steps=STEPS,
    stages=(
        Stage((_case(3, 3), _case(5, 7), _case(7, 2), _case(1, 5))),
        Stage((_case(5, 7, dtype="float32"),)),
        Stage((_LARGE,), errors={OverflowError: "exp overflows"}),
        Stage((_case(2, 5, 7), _case(3, 3, 3)), may_raise="a batch (leading axes)"),
    ),
    mistakes=MISTAKES,
    properties=(rows_cancel,),
    legible=True,
)
