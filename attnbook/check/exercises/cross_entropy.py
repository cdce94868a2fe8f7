"""The check of the cross-entropy: of logits, in nats, as a mean over the tokens that count."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as, with_options
from attnbook.check.engine.steps import Case, Check, Stage, Way, draw, each
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
        to V - 1; and with a boolean `mask` (n,), **True = counts**, if it takes an argument of that
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


_total = partial(np.sum, keepdims=True)
_largest = partial(np.max, keepdims=True)


def _log_total(z, largest, axis):
    return largest + np.log(_total(np.exp(z - largest), axis))


def _picked(rows, targets):
    return np.take_along_axis(rows, targets[..., np.newaxis], axis=-1)[..., 0]


def _sum(losses, counted):
    return np.sum(losses * counted)


def _mean(losses, counted):
    return _sum(losses, counted) / np.sum(counted)  # np.mean would warn of no tokens


def loss_from_steps(steps: Any, logits, targets, mask=None):
    z, axis = steps.prepare(logits, mask), steps.axis
    log_total = steps.log_total(z, steps.largest(z, axis), axis)
    rows = steps.rows(z, log_total, axis)
    losses = steps.negate(steps.pick(rows, steps.choose(targets, logits.shape[-1])))
    loss = steps.reduce(losses, steps.count(mask, losses))
    return np.asarray(steps.finish(loss, logits))


def _probabilities(z, log_total, axis):
    return np.exp(z - log_total)


def _off(p, targets):
    """Return how far each probability is from the one-hot target."""
    return p - np.eye(p.shape[-1])[targets]


def _by_softmax(z, axis, largest=_largest):
    """Return probabilities that are rounded to 0 where they are tiny."""
    weights = np.exp(z - largest(z, axis))
    return weights / _total(weights, axis)


def _with_the_others(rows, targets):
    """Return log p of the target and log(1 − p) of all other words together."""
    others = np.log1p(-np.exp(rows))
    return _picked(rows, targets) + np.sum(others, axis=-1) - _picked(others, targets)


def _log_of(function: Callable) -> Callable:
    """Return the step `rows` that is the logarithm of a function of the logits."""
    return lambda z, log_total, axis: np.log(function(z, axis))


def _kept_from_0(function: Callable, sizes: tuple[float, ...]) -> tuple[Way, ...]:
    """Return the logarithms of a function of the logits that is kept above each of the sizes."""
    return each(
        "rows",
        *(
            _log_of(lambda z, axis, e=e, keep=keep: keep(function(z, axis), e))
            for e in sizes
            for keep in (np.add, np.maximum, lambda p, e: np.clip(p, e, 1 - e))
        ),
    )


def _reduced(masked: Callable) -> Callable:
    """Return the mean where every token counts, else `masked(losses, counted)`."""
    return lambda losses, counted: (masked if counted.dtype == bool else _mean)(losses, counted)


def _shifted(targets, n_known, by, edge):
    """Return the targets moved by one place, with `edge` in the gap, or what fell off."""
    moved = np.roll(targets, by, axis=-1)
    if edge is not None:
        moved[..., (by - 1) // 2] = edge
    return moved


def _mean_of_means(losses, counted):
    return np.mean(np.sum(losses * counted, axis=-1) / np.sum(counted, axis=-1))


TEXT = Text(globals())

LOSS_MISTAKES = TEXT.mistakes


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
    # no tokens give 0, or NaN
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
    mistakes=LOSS_MISTAKES,
    properties=(shift_changes_nothing,),
    options=("mask",),
    remarked_options=("mask",),
    adapt=_adapt,
    legible=True,
)
