"""The check of the cross-entropy: of logits, in nats, as a mean over the tokens that count."""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._calls import signature_of
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._optional import with_options
from attnbook.check._report import Report


def cross_entropy(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a cross-entropy of logits.

    Runs `f` on sizes that are all different primes and on as many tokens as there are words, on one
    token, on logits of ±1000, in float64 and float32, on batches; and with masks if it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(logits, targets)``, by position, on an array (n, V) and integers (n,) from 0
        to V - 1; and with a boolean `mask` (n,), **True = counts**, if it takes an argument of that
        name. It returns one number, the mean of -log softmax(logits)[target] over the tokens that
        count. It may be written for one sequence, without leading axes.
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
    >>> import numpy as np
    >>> from attnbook import check, log_softmax, softmax
    >>> def my_loss(logits, targets):
    ...     rows = log_softmax(softmax(logits))
    ...     return -np.take_along_axis(rows, targets[..., None], axis=-1).mean()
    >>> check.cross_entropy(my_loss).mistake
    'softmax twice'
    """
    return run(CROSS_ENTROPY, f, time_limit)


def _adapt(function: Callable) -> Callable:
    """Return `function` with its mask by that name, and plain numbers as arrays."""
    adapted = with_options(function, ("logits", "targets"), {"mask": (None, ())})

    def as_array(*given, **options):
        loss = adapted(*given, **options)
        return np.asarray(loss) if isinstance(loss, (float, np.generic)) else loss

    try:
        as_array.__signature__ = signature_of(adapted)  # type: ignore[attr-defined]
    except Exception:  # some functions do not tell
        return function
    return as_array


def _log_softmax(logits, axis=-1):
    shifted = logits - np.max(logits, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _picked(rows, targets):
    return np.take_along_axis(rows, targets[..., np.newaxis], axis=-1)[..., 0]


def _mean(losses, mask):
    counted = np.ones_like(losses) if mask is None else mask
    return np.sum(losses * counted) / np.sum(counted)  # np.mean would warn of no tokens


def _model(
    rows: Callable = _log_softmax, pick: Callable = _picked, reduce: Callable = _mean
) -> Callable:
    """Return the cross-entropy with one of its three steps replaced."""
    return lambda logits, targets, mask=None: np.asarray(reduce(-pick(rows(logits), targets), mask))


def _as_probabilities(rows: Callable) -> Callable:
    return lambda logits: np.log(rows(logits))


def _sum(losses, mask):
    return np.sum(losses if mask is None else losses * mask)


def _with_mask(function: Callable) -> Callable:
    return lambda losses, mask: np.mean(losses) if mask is None else function(losses, mask)


def _mean_of_means(losses, mask):
    """Take the mean of each sequence first."""
    ones = np.ones_like(losses) if mask is None else mask
    return np.mean(np.sum(losses * ones, axis=-1) / np.sum(ones, axis=-1))


def _all_pairs(rows, targets):
    return rows[..., targets]


def shift_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    moved = again(logits=case.arrays["logits"] + 1)
    if moved and not np.allclose(moved[0], values[0]):
        return "Adding 1 to every logit must change nothing; here it changes the loss."
    return None


_MISTAKES = (
    Mistake(
        "softmax twice",
        "You apply a softmax before a cross-entropy that expects logits, so the softmax is taken "
        "twice. The second one gets numbers between 0 and 1: the loss cannot fall near 0, and its "
        "gradients are small. Hand over the logits as they are.",
        (_model(lambda z: _log_softmax(r.softmax(z))),),
    ),
    Mistake(
        "logits taken for probabilities",
        "You take the logarithm of the logits themselves. They may be negative, and their "
        "logarithm is NaN. The softmax comes before the logarithm.",
        (_model(np.log), _model(lambda z: np.log(np.abs(z)))),
    ),
    Mistake(
        "no logarithm",
        "You return the mean probability of the targets, or its negative. The loss is the mean of "
        "−log p.",
        (
            _model(r.softmax),
            _model(lambda z: -r.softmax(z)),
            _model(lambda z: r.softmax(z) - 1),
        ),
    ),
    Mistake(
        "sum of exponentials forgotten",
        "Your loss is minus the logit of the target. It can fall without end: the logarithm of the "
        "sum of all exponentials, which the other words raise, is added.",
        (_model(lambda z: z),),
    ),
    Mistake(
        "sign",
        "Your loss has the wrong sign: it is the mean log-likelihood. A loss falls as the model "
        "gets better: −log p.",
        (_model(lambda z: -_log_softmax(z)),),
    ),
    Mistake(
        "softmax over the tokens",
        "Your softmax runs over the tokens, so the tokens compete with each other for a word. The "
        "words compete for a token: the last axis.",
        (_model(lambda z: _log_softmax(z, -2)), _model(lambda z: _log_softmax(z, 0))),
    ),
    Mistake(
        "one softmax for all",
        "All probabilities of all tokens together sum to one. Each token has a softmax of its own: "
        "name the axis and keep it.",
        (_model(lambda z: _log_softmax(z, None)),),
    ),
    Mistake(
        "base 2",
        "Your loss is in bits: the logarithm has base 2. It is in nats here, with the natural "
        "logarithm; a bit is ln 2 = 0.69 nats.",
        (
            _model(lambda z: _log_softmax(z) / math.log(2)),
            _model(lambda z: _log_softmax(z) / math.log(10)),
        ),
    ),
    Mistake(
        "every pair",
        "You take the column of every target in every row, n² numbers, and average them all. Row i "
        "belongs to target i alone: pick with [arange(n), targets], or with take_along_axis.",
        (_model(pick=_all_pairs),),
    ),
    Mistake(
        "targets ignored",
        "Your loss is that of the likeliest word of each token, whatever the target is.",
        (_model(pick=lambda rows, targets: np.max(rows, axis=-1)),),
    ),
    Mistake(
        "target of another token",
        "You compare the prediction of each token with the target of the one after it, or before "
        "it. Logits and targets are aligned already: row i belongs to target i.",
        (
            _model(pick=lambda rows, targets: _picked(rows[..., :-1, :], targets[..., 1:])),
            _model(pick=lambda rows, targets: _picked(rows[..., 1:, :], targets[..., :-1])),
            _model(pick=lambda rows, targets: _picked(rows, np.roll(targets, 1, axis=-1))),
            _model(pick=lambda rows, targets: _picked(rows, np.roll(targets, -1, axis=-1))),
        ),
    ),
    Mistake(
        "sum for mean",
        "You return the sum over the tokens. The mean does not depend on how many tokens there "
        "are, so one learning rate suits all lengths.",
        (_model(reduce=_sum),),
    ),
    Mistake(
        "mean over the vocabulary",
        "You divide by n·V, the number of all entries, as the mean of a one-hot matrix times "
        "log-probabilities does. One number counts for each token: divide by n.",
        (
            lambda logits, targets, mask=None: (
                _model(reduce=_sum)(logits, targets, mask) / logits.size
            ),
            lambda logits, targets, mask=None: _model()(logits, targets, mask) / logits.shape[-1],
        ),
    ),
    Mistake(
        "perplexity returned",
        "You return the perplexity, the exponential of the loss.",
        (lambda logits, targets, mask=None: np.exp(_model()(logits, targets, mask)),),
    ),
    Mistake(
        "not averaged",
        "You return a loss for each token. Training needs one number: their mean.",
        (_model(reduce=lambda losses, mask: losses if mask is None else losses * mask),),
    ),
    Mistake(
        "exp overflows",
        "exp of a logit of 1000 is infinite, and ∞/∞ is NaN. Subtract the largest logit of each "
        "row first, which changes nothing.",
        (
            _model(lambda z: np.log(r.without_maximum(z))),
            _model(lambda z: z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))),
        ),
    ),
    Mistake(
        "logarithm of 0",
        "You take the softmax first and then its logarithm. A probability below 1e-308 is rounded "
        "to 0, and log 0 is −∞. Compute the logarithm at once: z − max − log Σ exp(z − max).",
        (_model(_as_probabilities(r.softmax)),),
    ),
    Mistake(
        "logarithm kept from 0",
        "You add a small number to the probabilities, or cut them off at it, before the logarithm. "
        "Then no loss is above about 20 or 30, and a hopeless token has no gradient. Compute the "
        "logarithm at once: z − max − log Σ exp(z − max).",
        tuple(
            _model(lambda z, e=e, keep=keep: np.log(keep(r.softmax(z), e)))
            for e in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-16, 1e-20)
            for keep in (np.add, np.maximum, lambda p, e: np.clip(p, e, 1 - e))
        ),
    ),
    Mistake(
        "mask ignored",
        "The mask changes nothing: padding counts like any token. Its targets mean nothing, and "
        "the model learns to predict padding.",
        (lambda logits, targets, mask=None: _model()(logits, targets),),
    ),
    Mistake(
        "mask inverted",
        "You count the tokens that the mask hides. True means that the token counts.",
        (
            lambda logits, targets, mask=None: _model()(
                logits, targets, None if mask is None else ~mask
            ),
        ),
    ),
    Mistake(
        "mean over all tokens",
        "You zero the losses of padding, which is right, and divide by the number of all tokens, "
        "padding included: the more padding, the smaller the loss. Divide by the number of tokens "
        "that count, the sum of the mask.",
        (_model(reduce=_with_mask(lambda losses, mask: np.mean(losses * mask))),),
    ),
    Mistake(
        "sum under a mask",
        "With a mask you return the sum over the tokens that count. Divide by their number.",
        (_model(reduce=_with_mask(lambda losses, mask: np.sum(losses * mask))),),
    ),
    Mistake(
        "logits masked",
        "You multiply the logits by the mask, so padding counts as log V. The mask says which "
        "losses count: apply it after −log p.",
        (
            lambda logits, targets, mask=None: _model()(
                logits if mask is None else logits * mask[..., np.newaxis], targets
            ),
        ),
    ),
    Mistake(
        "mean of the means",
        "You average each sequence first and then the sequences, so a token of a short sequence "
        "counts more than one of a long sequence. Sum over all tokens that count, and divide once.",
        (_model(reduce=_mean_of_means),),
    ),
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
        Stage(
            (_case(5, 7, mask=_HALF), _case(3, 2, mask=[False, True, True])),
            option="mask",
        ),
        Stage((_case(2, 5, 7), _case(3, 3, 3)), beyond="a batch (leading axes)"),
        Stage(
            (_case(2, 3, 5, mask=_LENGTHS),),
            option="mask",
            may_raise="a mask for each sequence, (batch, n),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=_MISTAKES,
    properties=(shift_changes_nothing,),
    options=("mask",),
    remarked_options=("mask",),
    adapt=_adapt,
)
