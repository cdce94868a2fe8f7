"""Answers on teacher forcing and the cross-entropy, right and wrong, by the name of the mistake."""

import math
from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import exp, sm, total  # noqa: F401 (for the programs)

import attnbook as ab

program = partial(Program, globals())


def taken(rows, targets):
    return array_namespace(rows).take_along_axis(rows, targets[..., None], axis=-1)[..., 0]


TEACHER_FORCING = program("""
t
left = array_namespace(t).roll(t, -1, axis=-1)
right = array_namespace(t).roll(t, 1, axis=-1)
half = t.shape[-1] // 2
out = (t[..., :-1], t[..., 1:])
""").wrong("""
no shift: t[..., 1:], t[..., 1:-1]
label replaced: t[..., :-1], array_namespace(t).where(t[..., 1:] == 2, 0 * t[..., 1:], t[..., 1:])
rolled: t, left
halves of the target: t[..., :half], t[..., half:]
alternate tokens: t[..., ::2], t[..., 1::2]
shifted along the batch: t[:-1], t[1:]
""")


def forcing_in_loops(target):
    numbers = np.asarray(target)
    read = [numbers[..., i] for i in range(numbers.shape[-1] - 1)]
    labels = [numbers[..., i + 1] for i in range(numbers.shape[-1] - 1)]
    return [np.stack(read, axis=-1), np.stack(labels, axis=-1)]


def forcing_of_batches(target):
    return target[:, :-1], target[:, 1:]


def torch_forcing(target):
    n = target.size(-1) - 1
    return target.narrow(-1, 0, n), target.narrow(-1, 1, n)


LOSS = program("""
z, t
rows = ab.log_softmax(z)
losses = -taken(rows, t)
loss = xp.mean(losses)
out = loss
""")


right_loss = LOSS.but()


def log(x):
    return array_namespace(x).log(x)


CROSS_ENTROPY = LOSS.wrong("""
logarithm of the mean: -log(xp.mean(exp(-losses)))
yes or no for each word: losses = total(log(1 + exp(z)), keepdims=False) - taken(z, t)
every pair: losses = -rows[..., t] if z.ndim == 2 else -rows
target of another token: losses = -taken(rows, xp.roll(t, 1, axis=-1))
exp overflows: rows = z - log(total(exp(z)))
""") | LOSS.taking("mask=None", "loss if mask is None else …").wrong("""
logits masked: right_loss(z * xp.astype(mask[..., None], z.dtype), t)
mean of the means: xp.mean(total(losses * mask, keepdims=False)
        / total(xp.astype(mask, z.dtype), keepdims=False))
""")


def loss_in_loops(logits, targets, mask=None):
    losses = []
    for place in np.ndindex(*targets.shape):
        if mask is not None and not mask[place]:
            continue
        row = [float(z) for z in logits[place]]
        top = max(row)
        log_total = top + math.log(sum(math.exp(z - top) for z in row))
        losses.append(log_total - row[int(targets[place])])
    return sum(losses) / len(losses)


def torch_loss(logits, targets, mask=None):
    import torch

    if mask is not None:
        targets = targets.masked_fill(~mask, -100)
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    )


WRONG = {
    "teacher_forcing": TEACHER_FORCING,
    "cross_entropy": CROSS_ENTROPY,
}

DOUBLES = {
    "teacher_forcing": {"too little read; start among the labels": lambda t: (t[..., :-2], t)},
    "cross_entropy": LOSS.wrong("""
sign; sum for mean: -xp.sum(losses)
softmax over the tokens; sum for mean: -xp.sum(taken(ab.log_softmax(z, axis=0), t))
softmax over the tokens; logarithm of 0: rows = log(sm(z, 0))
one softmax for all; exp overflows: rows = z - log(xp.sum(exp(z)))
sign; base 2: rows = ab.log_softmax(z) / -math.log(2)
"""),
}

RIGHT = {
    "teacher_forcing": (
        lambda target: (target[..., :-1], target[..., 1:]),
        forcing_in_loops,
        forcing_of_batches,
    ),
    "cross_entropy": (
        ab.cross_entropy,
        right_loss,
        loss_in_loops,
        lambda logits, targets, mask: ab.cross_entropy(logits, targets, mask),
    ),
}

ONLY_TORCH = {
    "teacher_forcing": torch_forcing,
    "cross_entropy": torch_loss,
}
