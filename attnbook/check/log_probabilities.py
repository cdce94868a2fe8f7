"""The cross-entropy in steps: log-probabilities, those of the targets, and their mean."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook.check.sentences import mistakes
from attnbook.check.steps import Way, each

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


LOSS_STEPS: dict[str, Any] = {
    "prepare": lambda logits, mask: logits,
    "axis": -1,
    "largest": _largest,
    "log_total": _log_total,
    "rows": lambda z, log_total, axis: z - log_total,
    "choose": lambda targets, n_known: targets,
    "pick": _picked,
    "negate": np.negative,
    "count": lambda mask, losses: np.ones_like(losses) if mask is None else mask,
    "reduce": _mean,
    "finish": lambda loss, logits: loss,
}


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


LOSS_MISTAKES = mistakes(
    """
    softmax twice: You apply a softmax before a cross-entropy that expects logits, so the softmax is
        taken twice: the loss cannot fall near 0, and its gradients are small. Hand over the logits
        as they are.
    logits taken for probabilities: You take the logarithm of the logits themselves. They may be
        negative, and their logarithm is NaN. The softmax comes before the logarithm.
    sigmoid for softmax: You take a sigmoid of each logit, so the probabilities of a token do not
        sum to one. The words compete: take the softmax.
    exponential forgotten: You divide logits by their sum. The softmax divides exponentials.
    no logarithm: You return the mean probability of the targets, or what it lacks of 1. The loss is
        that of −log p.
    squared error: You square the error of the probabilities. The loss is −log p.
    sum of exponentials forgotten: Your loss is minus the logit of the target, or its distance to
        the largest logit. The logarithm of the sum of all exponentials, which the other words
        raise, belongs in the place of that.
    logarithm of the sum forgotten: You subtract the sum of exponentials, not its logarithm.
    maximum not added back: You subtract the largest logit inside the exponential and not outside
        it. log Σ exp z = max + log Σ exp(z − max).
    mean of the exponentials: You take the mean of the exponentials, not their sum: log V is
        missing.
    sign: Your loss has the wrong sign: it is the mean log-likelihood. A loss falls as the model
        gets better: −log p.
    softmax over the tokens: Your softmax runs over the tokens, so the tokens compete with each
        other for a word. The words compete for a token: the last axis.
    one softmax for all: All probabilities of all tokens together sum to one. Each token has a
        softmax of its own: name the axis and keep it.
    base 2: Your loss is in bits. Take the natural logarithm: a bit is ln 2 = 0.69 nats.
    base 10: You take the logarithm of base 10. Take the natural one: your loss is 1/ln 10 = 0.43
        times as large as it should be.
    every pair: You take the column of every target in every row, n² numbers, and average them all.
        Row i belongs to target i alone: pick with [arange(n), targets], or with take_along_axis.
    targets ignored: Your loss is that of the likeliest word of each token, or of the first word,
        whatever the target is.
    share of the hits: You count how often the likeliest word is right. That has no gradient: take
        −log p.
    entropy of the prediction: You return the entropy −Σ p log p. Only the word of the target
        counts.
    labels smoothed: You smooth the labels: a part of the loss is that of all other words. The loss
        asked for is −log p of the target alone.
    target of another token: You compare the prediction of each token with the target of the one
        after it, or before it. Logits and targets are aligned already: row i belongs to target i.
    another word: You take the word before or after the target: ids count from 0.
    sum for mean: You return the sum over the tokens. The mean does not depend on how many there
        are.
    mean over the vocabulary: You divide by n·V, the number of all entries, as the mean of a one-hot
        matrix times log-probabilities does. One number counts for each token: divide by n.
    divided by another number: You divide by n − 1 or n + 1, not by the number that counts.
    median for the mean: You return the median, smallest, largest, first or last loss, or the root
        of the mean of their squares. It is their mean.
    one token left out: You leave out the first or the last token. All that count are averaged.
    loss scaled: You multiply the loss by a number, halve it, or divide it by log V. It is the mean
        of −log p itself.
    perplexity returned: You return the perplexity, the exponential of the loss.
    not averaged: You return a loss for each token. Training needs one number: their mean.
    exp overflows: exp of a logit of 1000 is infinite, and ∞/∞ is NaN. Subtract the largest logit of
        each row first, which changes nothing.
    logarithm of 0: You take the softmax first and then its logarithm. A probability below 1e-308 is
        rounded to 0, and log 0 is −∞. Compute the logarithm at once: z − max − log Σ exp(z − max).
    logarithm kept from 0: You add a small number to the probabilities, or cut them off at it,
        before the logarithm. Then no loss is above about 20 or 30, and a hopeless token has no
        gradient. Compute the logarithm at once: z − max − log Σ exp(z − max).
    largest logit of all rows: You subtract the largest logit of all tokens. In a row that lies far
        below it every exponential is rounded to 0. Subtract the largest of each row.
    mask ignored: The mask changes nothing: padding counts like any token. Its targets mean nothing,
        and the model learns to predict padding.
    mask inverted: You count the tokens that the mask hides. True means that the token counts.
    mean over all tokens: You zero the losses of padding, which is right, and divide by the number
        of all tokens, padding included. Divide by the number that count, the sum of the mask.
    sum under a mask: With a mask you return a sum. Divide it by the number that counts.
    padding not zeroed: You sum over padding too. Multiply the losses by the mask first.
    logits masked: You multiply the logits by the mask, so padding counts as log V. The mask says
        which losses count: apply it after −log p.
    mean of the means: You average each sequence first and then the sequences, so a token of a short
        sequence counts more than one of a long sequence. Sum over all tokens that count, and divide
        once.
    divided by the number of sequences: You divide by the number of sequences, not by that of all
        tokens that count.
    logarithm of the mean: You average or add the probabilities of the targets and take one
        logarithm. Take that of each token, and average the logarithms.
    1 − p: You take the logarithm of 1 − p, of all that the target is not. The loss is −log p.
    yes or no for each word: You add −log(1 − p) of all other words, as if each word were a question
        of its own. The softmax has them in it already: −log p of the target is enough.
    losses weighed: You multiply the loss of a token by its p or by a power of 1 − p. Every token
        that counts counts alike.
    target left out of the sum: Your sum of exponentials lacks that of the target. It runs over all
        words.
    sign of the logits: You take the softmax of the logits with a minus. The largest is the
        likeliest.
    all words counted: You average or add −log p of all words, whatever the target is. Only the word
        of the target counts.
    """,
    {
        "softmax twice": each("prepare", lambda z, mask: _by_softmax(z, -1)),
        "logits taken for probabilities": (
            *each("rows", _log_of(lambda z, a: z), _log_of(lambda z, a: np.abs(z))),
            *_kept_from_0(lambda z, a: z, (1e-8, 1e-9, 1e-10, 1e-12)),
        ),
        "sigmoid for softmax": each("rows", lambda z, total, a: -np.logaddexp(0, -z)),
        "exponential forgotten": each("rows", _log_of(lambda z, a: z / _total(z, a))),
        "no logarithm": (
            {"rows": _probabilities},
            {"rows": _probabilities, "negate": np.positive},
            {"rows": lambda *given: _probabilities(*given) - 1},
        ),
        "logarithm of the mean": each(
            "reduce",
            lambda x, n: -np.log(_mean(np.exp(-x), n)),
            lambda x, n: -np.log(_sum(np.exp(-x), n)),
        ),
        "1 − p": each("rows", lambda *given: np.log1p(-_probabilities(*given))),
        "yes or no for each word": (
            *(
                {"rows": lambda z, total, a: z, "pick": pick}
                for pick in (
                    lambda z, t: _picked(z, t) - np.sum(np.logaddexp(0, z), axis=-1),
                    lambda z, t: (
                        (_picked(z, t) - np.sum(np.logaddexp(0, z), axis=-1)) / z.shape[-1]
                    ),
                )
            ),
            *each("pick", _with_the_others, lambda r, t: _with_the_others(r, t) / r.shape[-1]),
        ),
        "losses weighed": each(
            "pick",
            *(
                lambda r, t, weight=weight: weight(np.exp(_picked(r, t))) * _picked(r, t)
                for weight in (lambda p: p, lambda p: 1 - p, lambda p: (1 - p) ** 2)
            ),
        ),
        "squared error": (
            {"rows": lambda *given: -((1 - _probabilities(*given)) ** 2)},
            {"rows": _probabilities, "pick": lambda p, t: -np.sum(_off(p, t) ** 2, axis=-1)},
            {"rows": _probabilities, "pick": lambda p, t: -np.mean(_off(p, t) ** 2, axis=-1)},
        ),
        "target left out of the sum": each(
            "pick", lambda r, t: _picked(r, t) - np.log1p(-np.exp(_picked(r, t)))
        ),
        "sign of the logits": each("prepare", lambda z, mask: -z),
        "sum of exponentials forgotten": each(
            "log_total", lambda z, largest, a: 0 * largest, lambda z, largest, a: largest
        ),
        "logarithm of the sum forgotten": each(
            "log_total",
            lambda z, largest, a: _total(np.exp(z), a),
            lambda z, largest, a: largest + _total(np.exp(z - largest), a),
        ),
        "maximum not added back": each(
            "log_total", lambda z, largest, a: np.log(_total(np.exp(z - largest), a))
        ),
        "mean of the exponentials": each(
            "log_total", lambda z, largest, a: _log_total(z, largest, a) - math.log(z.shape[-1])
        ),
        "sign": each("negate", np.positive),
        "softmax over the tokens": each("axis", -2, 0),
        "one softmax for all": each("axis", None),
        "base 2": {"finish": lambda loss, z: loss / np.log(2)},
        "base 10": {"finish": lambda loss, z: loss / np.log(10)},
        "every pair": each("pick", lambda r, t: r[..., t]),
        "targets ignored": each("pick", lambda r, t: np.max(r, axis=-1), lambda r, t: r[..., 0]),
        "share of the hits": (
            {"pick": lambda r, t: np.argmax(r, -1) == t, "negate": lambda hits: hits * 1.0},
            {"pick": lambda r, t: np.argmax(r, -1) != t, "negate": lambda hits: hits * 1.0},
        ),
        "entropy of the prediction": each(
            "pick",
            lambda r, t: np.sum(np.exp(r) * r, axis=-1),
        ),
        "all words counted": each(
            "pick", lambda r, t: np.sum(r, axis=-1), lambda r, t: np.mean(r, axis=-1)
        ),
        "labels smoothed": each(
            "pick",
            *(
                lambda r, t, e=e, over=over: (1 - e) * _picked(r, t) + e * over(r, _picked(r, t))
                for e in (0.1, 0.05, 0.2)
                for over in (
                    lambda r, own: np.mean(r, axis=-1),
                    lambda r, own: (np.sum(r, axis=-1) - own) / (r.shape[-1] - 1),
                )
            ),
        ),
        "target of another token": (
            *each(
                "pick",
                lambda r, t: _picked(r[..., :-1, :], t[..., 1:]),
                lambda r, t: _picked(r[..., 1:, :], t[..., :-1]),
            ),
            *each(
                "choose",
                *(partial(_shifted, by=by, edge=edge) for by in (1, -1) for edge in (None, 0, -1)),
                lambda t, n_known: t[..., ::-1],
                lambda t, n_known: np.broadcast_to(t[..., :1], t.shape),
            ),
        ),
        "another word": each(
            "choose",
            lambda t, n_known: t - 1,
            lambda t, n_known: (t + 1) % n_known,
            lambda t, n_known: np.minimum(t + 1, n_known - 1),
            lambda t, n_known: np.maximum(t - 1, 0),
        ),
        "sum for mean": each("reduce", _sum),
        "mean over the vocabulary": (
            {"finish": lambda loss, z: loss / z.shape[-1]},
            {"reduce": _sum, "finish": lambda loss, z: loss / z.size},
            {"reduce": _sum, "finish": lambda loss, z: loss / z.shape[-1]},
        ),
        "divided by another number": each(
            "reduce",
            lambda x, n: _sum(x, n) / (np.sum(n) - 1),
            lambda x, n: _sum(x, n) / (np.sum(n) + 1),
        ),
        "median for the mean": each(
            "reduce", lambda x, n: np.median(x), lambda x, n: np.max(x), lambda x, n: x[..., -1]
        )
        + each(
            "reduce",
            lambda x, n: np.min(x),
            lambda x, n: x[..., 0],
            lambda x, n: np.sqrt(np.mean(x * x)),
        ),
        "one token left out": each(
            "reduce",
            *(
                lambda x, n, part=part, count=count: (
                    _sum(x[..., part], n[..., part]) / max(np.sum(n) - count, 1)
                )
                for part in (slice(1, None), slice(-1))
                for count in (0, 1)
            ),
        ),
        "loss scaled": each(
            "finish", lambda loss, z: 2 * loss, lambda loss, z: loss / 2, lambda loss, z: 100 * loss
        )
        + each("finish", lambda loss, z: loss / np.log(z.shape[-1])),
        "perplexity returned": each("finish", lambda loss, z: np.exp(loss)),
        "not averaged": each("reduce", lambda x, n: x * n, lambda x, n: x),
        "exp overflows": (
            {"rows": _log_of(lambda z, a: _by_softmax(z, a, lambda z, a: 0))},
            {"largest": lambda z, a: 0 * _largest(z, a)},
        ),
        "logarithm of 0": each("rows", _log_of(_by_softmax)),
        "logarithm kept from 0": _kept_from_0(
            _by_softmax,
            (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-16, 1e-20, 1e-30, 1e-300),
        ),
        "largest logit of all rows": (
            {"largest": lambda z, a: np.max(z)},
            {"rows": _log_of(lambda z, a: _by_softmax(z, a, lambda z, a: np.max(z)))},
        ),
        "mask ignored": each("count", lambda mask, x: np.ones_like(x)),
        "mask inverted": each(
            "count", lambda mask, x: np.ones_like(x) if mask is None else np.logical_not(mask)
        ),
        "mean over all tokens": each("reduce", _reduced(lambda x, n: np.mean(x * n))),
        "sum under a mask": each("reduce", _reduced(_sum)),
        "padding not zeroed": each("reduce", _reduced(lambda x, n: np.sum(x) / np.sum(n))),
        "logits masked": (
            {
                "prepare": lambda z, mask: z if mask is None else z * mask[..., np.newaxis],
                "count": lambda mask, x: np.ones_like(x),
            },
        ),
        "mean of the means": each("reduce", _mean_of_means),
        "divided by the number of sequences": each(
            "reduce", lambda x, n: _mean(x, n) if x.ndim < 2 else _sum(x, n) / len(x)
        ),
    },
)
