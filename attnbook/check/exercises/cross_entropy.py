"""The check of the cross-entropy: of logits, in nats, as a mean over the tokens that count."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as, with_options
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text


@documented
def cross_entropy(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a cross-entropy of logits.

    Runs `f` on several sizes, on one token, on logits of ±1000, in float64 and float32, on batches;
    and with masks if it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, targets)``, by position, on an array (n, V) and integers (n,) from 0
        to V - 1, and with a boolean `mask` (n,), **True = counts**, if it takes an argument of that
        name. It returns one number, the mean of -log softmax(logits)[target] over the tokens that
        count. It may be written for one sequence, without leading axes.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check, log_softmax, softmax
    >>> def my_loss(logits, targets):
    ...     rows = log_softmax(softmax(logits))
    ...     return -np.take_along_axis(rows, targets[..., None], axis=-1).mean()
    >>> check.cross_entropy(my_loss).mistake
    'softmax twice'
    """
    return run(CROSS_ENTROPY, f, time_limit)


def total(x, axis):
    return np.sum(x, axis, keepdims=True)


def softmax(z, axis, largest=None):
    """Return probabilities that are rounded to 0 where they are tiny."""
    weights = np.exp(z - (np.max(z, axis, keepdims=True) if largest is None else largest))
    return weights / total(weights, axis)


def mean(losses, counted):
    return np.sum(losses * counted) / np.sum(counted)  # np.mean would warn of no tokens


def picked(rows, targets):
    return np.take_along_axis(rows, targets[..., np.newaxis], axis=-1)[..., 0]


def mean_of_the_others(rows, targets):
    return (np.sum(rows, axis=-1) - picked(rows, targets)) / (rows.shape[-1] - 1)


def with_the_others(rows, targets):
    """Return log p of the target and log(1 − p) of all other words together."""
    others = np.log1p(-np.exp(rows))
    return picked(rows, targets) + np.sum(others, axis=-1) - picked(others, targets)


EPSILONS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-16, 1e-20, 1e-30, 1e-300)
FLOORS = (np.add, np.maximum, lambda p, e: np.clip(p, e, 1 - e))
"""What keeps probabilities above such a number."""


def loss_from_steps(steps: Any, logits, targets, mask=None):
    z, axis = steps.prepare(logits, mask), steps.axis
    log_total = steps.log_total(z, steps.largest(z, axis), axis)
    rows = steps.rows(z, log_total, axis)
    losses = steps.negate(steps.pick(rows, steps.choose(targets, logits.shape[-1])))
    loss = steps.reduce(losses, steps.count(mask, losses))
    return np.asarray(steps.finish(loss, logits))


def shifted(targets, n_known, by, edge):
    """Return the targets moved by one place, with `edge` in the gap, or what fell off."""
    moved = np.roll(targets, by, axis=-1)
    if edge is not None:
        moved[..., (by - 1) // 2] = edge
    return moved


TEXT = Text(globals())


def _adapt(function: Callable) -> Callable:
    """Return `function` with its mask by that name, and plain numbers as arrays."""
    adapted = with_options(function, ("logits", "targets"), {"mask": (None, ())})

    def as_array(*given, **options):
        loss = adapted(*given, **options)
        return np.asarray(loss) if isinstance(loss, (float, np.generic)) else loss

    return signed_as(adapted, as_array)


shift_changes_nothing = moved(
    lambda arguments: {"logits": arguments["logits"] + 1},
    np.allclose,
    "Adding 1 to every logit must change nothing; yours changes the loss.",
)


def _case(*shape: int, dtype: str = "float64", mask: list | None = None) -> Case:
    *leading, n, n_known = shape
    targets = (np.arange(math.prod(shape[:-1])) * 2 + 1).reshape(*leading, n) % n_known
    logits = 2 * draw(25, *shape)
    options = {} if mask is None else {"mask": np.array(mask)}
    return Case({"logits": logits.astype(dtype), "targets": targets}, options)


def _large(*rows: list[float]) -> Case:
    logits = np.array(rows)
    return Case({"logits": logits, "targets": np.arange(len(rows)) % logits.shape[1]})


_HALF = [True, False, True, True, False]
_LENGTHS = [[True, True, True], [True, False, False]]

CROSS_ENTROPY = Check(
    name="cross_entropy",
    parameters=("logits", "targets"),
    results={"loss": "()"},
    reference=attnbook.cross_entropy,
    compute=loss_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        Stage((_case(3, 3), _case(5, 7), _case(7, 2), _case(1, 5))),
        Stage((_case(5, 7, dtype="float32"),)),
        Stage(
            (_large([1000.0, 0.0, 1.0], [3.0, 1000.0, 999.0]),),
            errors={OverflowError: "exp overflows"},
        ),
        Stage(
            (_large([0.0, 0.0, 1000.0], [1000.0, -1000.0, 0.0]),),
            errors={OverflowError: "exp overflows", ValueError: "logarithm of 0"},
        ),
        Stage((_large([1000.0, 999.0, 1001.0], [-999.0, -1001.0, -1000.0]),)),
        Stage((_case(5, 7, mask=_HALF), _case(3, 2, mask=[False, True, True])), option="mask"),
        Stage((_case(2, 5, 7), _case(3, 3, 3)), may_raise="a batch (leading axes)"),
        Stage(
            (_case(2, 3, 5, mask=_LENGTHS),),
            option="mask",
            may_raise="a mask for each sequence, (batch, n),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=TEXT.mistakes,
    properties=(shift_changes_nothing,),
    options=("mask",),
    remarked_options=("mask",),
    adapt=_adapt,
    legible=True,
)
