"""Answers that readers might hand in to the checks of the transformer, right and wrong.

A wrong answer stands under the name of the mistake that its check must find.
"""

import math

import numpy as np
from array_api_compat import array_namespace, device
from attention_answers import sm

import attnbook as ab


def mean(x, axis=-1, keepdims=True):
    return array_namespace(x).mean(x, axis=axis, keepdims=keepdims)


def root(x):
    return array_namespace(x).sqrt(x)


def spread(x, axis=-1, keepdims=True):
    return mean((x - mean(x, axis)) ** 2, axis, keepdims)


def taken(rows, targets):
    return array_namespace(rows).take_along_axis(rows, targets[..., None], axis=-1)[..., 0]


# Layer normalisation.


def normed(axis=-1, epsilon=1e-5):
    def answer(x, gain, bias):
        return (x - mean(x, axis)) / root(spread(x, axis) + epsilon) * gain + bias

    return answer


right_norm = normed()


def _unbiased(x, gain, bias):
    d = x.shape[-1]
    return (x - mean(x)) / root(spread(x) * d / (d - 1) + 1e-5) * gain + bias


def _std_of_torch(x, gain, bias):
    xp, d = array_namespace(x), x.shape[-1]
    std = root(xp.sum((x - mean(x)) ** 2, axis=-1, keepdims=True) / (d - 1))
    return gain * (x - mean(x)) / (std + 1e-5) + bias


def _squares_in_half(x, gain, bias):
    square = array_namespace(x).pow
    y = x - mean(x)
    squares = square(y, array_namespace(y).full_like(y, 2))
    return y / root(mean(squares) + 1e-5) * gain + bias


LAYER_NORM = {
    "over the sequence": normed(axis=-2),
    "over the sequence 2": normed(axis=0),
    "over all axes": normed(axis=None),
    "over all axes 2": normed(axis=(-2, -1)),
    "variance with n − 1": _unbiased,
    "variance with n − 1 and epsilon outside": _std_of_torch,
    "epsilon outside the root": lambda x, g, b: (x - mean(x)) / (root(spread(x)) + 1e-5) * g + b,
    "epsilon outside the root 2": lambda x, g, b: (x - mean(x)) / (root(spread(x)) + 1e-6) * g + b,
    "variance as a difference": lambda x, g, b: (
        (x - mean(x)) / root(mean(x * x) - mean(x) ** 2 + 1e-5) * g + b
    ),
    "epsilon as a floor": lambda x, g, b: (x - mean(x)) / root(clipped(spread(x), 1e-5)) * g + b,
    "mean subtracted last": lambda x, g, b: (x / root(spread(x) + 1e-5) - mean(x)) * g + b,
    "no epsilon": normed(epsilon=0),
    "epsilon of another size": normed(epsilon=1e-6),
    "epsilon of another size 2": normed(epsilon=1e-12),
    "epsilon of another size 3": normed(epsilon=1e-3),
    "variance without the root": lambda x, g, b: (x - mean(x)) / (spread(x) + 1e-5) * g + b,
    "root multiplied": lambda x, g, b: (x - mean(x)) * root(spread(x) + 1e-5) * g + b,
    "mean not subtracted": lambda x, g, b: x / root(mean(x * x) + 1e-5) * g + b,
    "mean not subtracted 2": lambda x, g, b: x / root(spread(x) + 1e-5) * g + b,
    "variance about zero": lambda x, g, b: (x - mean(x)) / root(mean(x**2) + 1e-5) * g + b,
    "only centred": lambda x, g, b: (x - mean(x)) * g + b,
    "gain and bias forgotten": lambda x, g, b: (x - mean(x)) / root(spread(x) + 1e-5),
    "gain forgotten": lambda x, g, b: right_norm(x, 1, b),
    "bias forgotten": lambda x, g, b: right_norm(x, g, 0),
    "gain and bias swapped": lambda x, g, b: right_norm(x, b, g),
    "bias before the gain": lambda x, g, b: (right_norm(x, 1, 0) + b) * g,
    "gain and bias before": lambda x, g, b: right_norm(x * g + b, 1, 0),
    "gain and bias before 2": lambda x, g, b: right_norm(x * g, 1, b),
    "keepdims forgotten": lambda x, g, b: (
        (x - mean(x, keepdims=False)) / root(spread(x, keepdims=False) + 1e-5) * g + b
    ),
    "keepdims forgotten 2": lambda x, g, b: (
        (x - mean(x)) / root(spread(x, keepdims=False) + 1e-5) * g + b
    ),
    "squares overflow in half precision": _squares_in_half,
    "axis 1 of a batch": lambda x, g, b: (
        ab.layer_norm(x, g, b) if x.ndim < 3 else normed(1)(x, g, b)
    ),
    "epsilon ignored": lambda x, g, b, epsilon=1e-5: ab.layer_norm(x, g, b),
}


def loop_norm(x, gain, bias, *, epsilon=1e-5):
    out = np.zeros(x.shape)
    for place in np.ndindex(*x.shape[:-1]):
        row = [float(number) for number in x[place]]
        mu = sum(row) / len(row)
        variance = sum((number - mu) ** 2 for number in row) / len(row)
        for j, number in enumerate(row):
            scaled = (number - mu) / math.sqrt(variance + epsilon)
            out[place][j] = scaled * float(gain[j]) + float(bias[j])
    return out


def norm_by_numpy(x, gain, bias, eps):
    wide = np.asarray(x, dtype=np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    return gain * centred / np.sqrt(wide.var(-1, keepdims=True) + eps) + bias


def torch_norm(x, gain, bias, eps=1e-5):
    import torch

    return torch.nn.functional.layer_norm(x, gain.shape, gain, bias, eps)


# Positions.


def table(angle, first=np.sin, second=np.cos, interleaved=False):
    def answer(n, d_model):
        angles = np.array(
            [[float(angle(p, i, d_model)) for i in range(d_model // 2)] for p in range(n)]
        )
        out = np.zeros((n, d_model))
        if interleaved:
            out[:, 0::2], out[:, 1::2] = first(angles), second(angles)
        else:
            out[:, : d_model // 2], out[:, d_model // 2 :] = first(angles), second(angles)
        return out

    return answer


def right_angle(p, i, d):
    return p / 10000 ** (2 * i / d)


def _by_feature(interleaved, factor):
    def answer(n, d_model):
        out = np.zeros((n, d_model))
        for p in range(n):
            for j in range(d_model):
                is_sine = j % 2 == 0 if interleaved else j < d_model // 2
                out[p, j] = (math.sin if is_sine else math.cos)(p / 10000 ** (factor * j / d_model))
        return out

    return answer


def positions_wrong(inter):
    """Return the wrong tables of one layout."""

    def wrong(angle, **options):
        return table(angle, interleaved=inter, **options)

    right = table(right_angle, interleaved=inter)
    return {
        "halves" if inter else "interleaved": table(right_angle, interleaved=not inter),
        "sin and cos swapped": wrong(right_angle, first=np.cos, second=np.sin),
        "sines alone": wrong(right_angle, second=np.sin),
        "cosines alone": wrong(right_angle, first=np.cos),
        "another base": wrong(lambda p, i, d: p / 1000 ** (2 * i / d)),
        "another base 2": wrong(lambda p, i, d: p / 100000 ** (2 * i / d)),
        "another base 3": wrong(lambda p, i, d: p / 10 ** (2 * i / d)),
        "another base 4": wrong(lambda p, i, d: p / 500000 ** (2 * i / d)),
        "another base 5": wrong(lambda p, i, d: p / 1e6 ** (2 * i / d)),
        "exponent halved": wrong(lambda p, i, d: p / 10000 ** (i / d)),
        "exponent doubled": wrong(lambda p, i, d: p / 10000 ** (2 * (2 * i) / d)),
        "sine and cosine of different frequencies": _by_feature(inter, 2),
        "sine and cosine of different frequencies 2": _by_feature(inter, 1),
        "frequencies to the very end": wrong(lambda p, i, d: p / 10000 ** (i / max(d / 2 - 1, 1))),
        "angle inverted": wrong(lambda p, i, d: p * 10000 ** (2 * i / d)),
        "product for a power": wrong(lambda p, i, d: np.float64(p) / (10000 * 2 * i / d)),
        "logarithm of base 10": wrong(lambda p, i, d: p * math.exp(-2 * i / d * math.log10(10000))),
        "one frequency for all": wrong(lambda p, i, d: p),
        "one frequency for all 2": wrong(lambda p, i, d: p / 10000),
        "positions from 1": wrong(lambda p, i, d: right_angle(p + 1, i, d)),
        "pairs from 1": wrong(lambda p, i, d: right_angle(p, i + 1, d)),
        "turns for radians": wrong(lambda p, i, d: 2 * math.pi * right_angle(p, i, d)),
        "degrees for radians": wrong(lambda p, i, d: math.radians(right_angle(p, i, d))),
        "transposed": lambda n, d: right(n, d).T,
        "axis too many": lambda n, d: right(n, d)[None],
        "axis too many 2": lambda n, d: right(n, d)[:, None, :],
    }


def torch_positions(n, d_model):
    """As in the tutorial of PyTorch."""
    import torch

    position = torch.arange(n).unsqueeze(1)
    frequencies = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    encoding = torch.zeros(n, d_model)
    encoding[:, 0::2] = torch.sin(position * frequencies)
    encoding[:, 1::2] = torch.cos(position * frequencies)
    return encoding


# Embedding.


def rows(ids, E):
    return E[ids]


def _by_rank(ids, E):
    order = {token: i for i, token in enumerate(sorted(set(ids.tolist())))}
    return E[[order[token] for token in ids.tolist()]] * E.shape[1] ** 0.5


def one_hot(ids, E):
    xp = array_namespace(E)
    words = xp.arange(E.shape[0], device=device(E))
    return xp.astype(ids[..., None] == words, E.dtype)


EMBED = {
    "no √d_model": rows,
    "divided by √d_model": lambda ids, E: E[ids] / E.shape[1] ** 0.5,
    "times d_model": lambda ids, E: E[ids] * E.shape[-1],
    "root of the vocabulary": lambda ids, E: E[ids] * math.sqrt(len(E)),
    "root of the vocabulary 2": lambda ids, E: E[ids] / math.sqrt(len(E)),
    "root of the length": lambda ids, E: E[ids] * math.sqrt(ids.shape[-1]),
    "id one too small": lambda ids, E: E[ids - 1] * E.shape[1] ** 0.5,
    "id one too large": lambda ids, E: E[(ids + 1) % len(E)] * E.shape[1] ** 0.5,
    "columns for rows": lambda ids, E: E.T[ids] * E.shape[1] ** 0.5,
    "root rounded": lambda ids, E: E[ids] * int(E.shape[1] ** 0.5),
    "order lost": lambda ids, E: E[[*reversed(ids.tolist())]] * E.shape[1] ** 0.5,
    "transposed": lambda ids, E: E[ids].mT * E.shape[1] ** 0.5,
    "rows by position": lambda ids, E: E[[i % len(E) for i in range(len(ids))]] * E.shape[1] ** 0.5,
    "rows by rank": _by_rank,
    "one-hot over the wrong axis": lambda ids, E: one_hot(ids, E).mT @ E * E.shape[1] ** 0.5,
    "summed over the tokens 2": lambda ids, E: E[ids].sum(0) * E.shape[1] ** 0.5,
    "summed over the tokens": lambda ids, E: E[ids].sum(-2) * E.shape[1] ** 0.5,
}


def embed_in_loops(ids, E):
    out = np.zeros((len(ids), E.shape[1]), dtype=np.asarray(E).dtype)
    for i in range(len(ids)):
        for j in range(E.shape[1]):
            out[i, j] = float(E[int(ids[i])][j]) * math.sqrt(E.shape[1])
    return out


def embed_batches(ids, E):
    batch, n = ids.shape
    return E[ids.reshape(batch * n)].reshape(batch, n, -1) * E.shape[1] ** 0.5


def torch_embed(ids, E):
    import torch

    return torch.nn.functional.embedding(ids, E) * math.sqrt(E.size(1))


# Teacher forcing.


def _roll(x, shift):
    return array_namespace(x).roll(x, shift, axis=-1)


TEACHER_FORCING = {
    "no shift": lambda t: (t, t),
    "no shift 2": lambda t: (t[..., :-1], t[..., :-1]),
    "no shift 3": lambda t: (t[..., 1:], t[..., 1:]),
    "no shift 4": lambda t: (t[..., 1:-1], t[..., 1:-1]),
    "shifted the wrong way": lambda t: (t[..., 1:], t[..., :-1]),
    "stop read by the decoder": lambda t: (t, t[..., 1:]),
    "start among the labels": lambda t: (t[..., :-1], t),
    "start not read": lambda t: (t[..., 1:-1], t[..., 1:]),
    "start not read 2": lambda t: (t[..., 1:-1], t[..., 2:]),
    "stop not predicted": lambda t: (t[..., :-1], t[..., 1:-1]),
    "stop not predicted 2": lambda t: (t[..., :-2], t[..., 1:-1]),
    "shifted by two": lambda t: (t[..., :-2], t[..., 2:]),
    "rolled": lambda t: (t, _roll(t, -1)),
    "rolled 2": lambda t: (_roll(t, 1), t),
    "rolled 3": lambda t: (_roll(t, 1)[..., :-1], t[..., :-1]),
    "halves of the target": lambda t: (t[..., : t.shape[-1] // 2], t[..., t.shape[-1] // 2 :]),
    "alternate tokens": lambda t: (t[..., ::2], t[..., 1::2]),
    "shifted along the batch": lambda t: (t[:-1], t[1:]),
}


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


# Cross-entropy.


def loss(rows=ab.log_softmax, pick=taken, reduce=lambda x: array_namespace(x).mean(x)):
    return lambda z, t: reduce(-pick(rows(z), t))


def masked_loss(reduce):
    def answer(z, t, mask=None):
        losses = -taken(ab.log_softmax(z), t)
        ones = array_namespace(z).ones_like(losses)
        return reduce(losses, ones if mask is None else array_namespace(z).astype(mask, z.dtype))

    return answer


def log(x):
    return array_namespace(x).log(x)


def exp(x):
    return array_namespace(x).exp(x)


def total(x, axis=-1, keepdims=True):
    return array_namespace(x).sum(x, axis=axis, keepdims=keepdims)


def all_sum(x):
    return array_namespace(x).sum(x)


def clipped(p, e):
    xp = array_namespace(p)
    return xp.maximum(p, xp.full_like(p, e))


CROSS_ENTROPY = {
    "softmax twice": loss(lambda z: ab.log_softmax(sm(z))),
    "logits taken for probabilities": loss(log),
    "no logarithm": loss(sm),
    "no logarithm 2": lambda z, t: array_namespace(z).mean(taken(sm(z), t)),
    "no logarithm 3": lambda z, t: array_namespace(z).mean(1 - taken(sm(z), t)),
    "sum of exponentials forgotten": loss(lambda z: z),
    "sign": loss(lambda z: -ab.log_softmax(z)),
    "softmax over the tokens": loss(lambda z: ab.log_softmax(z, axis=-2)),
    "softmax over the tokens 2": loss(lambda z: log(sm(z, 0))),
    "one softmax for all": loss(lambda z: z - log(all_sum(exp(z)))),
    "base 2": loss(lambda z: ab.log_softmax(z) / math.log(2)),
    "every pair": loss(pick=lambda rows, t: rows[..., t] if rows.ndim == 2 else rows),
    "targets ignored": loss(pick=lambda rows, t: array_namespace(rows).max(rows, axis=-1)),
    "target of another token": loss(pick=lambda rows, t: taken(rows[..., :-1, :], t[..., 1:])),
    "target of another token 2": loss(pick=lambda rows, t: taken(rows, _roll(t, 1))),
    "sum for mean": loss(reduce=all_sum),
    "mean over the vocabulary": lambda z, t: loss()(z, t) / z.shape[-1],
    "perplexity returned": lambda z, t: exp(loss()(z, t)),
    "not averaged": loss(reduce=lambda losses: losses),
    "exp overflows": loss(lambda z: log(exp(z) / total(exp(z)))),
    "exp overflows 2": loss(lambda z: z - log(total(exp(z)))),
    "logarithm of 0": loss(lambda z: log(sm(z))),
    "logarithm kept from 0": loss(lambda z: log(sm(z) + 1e-9)),
    "logarithm kept from 0 2": loss(lambda z: log(clipped(sm(z), 1e-12))),
    "mask ignored": lambda z, t, mask=None: loss()(z, t),
    "mask inverted": lambda z, t, mask=None: ab.cross_entropy(
        z, t, None if mask is None else ~mask
    ),
    "mean over all tokens": masked_loss(lambda x, mask: array_namespace(x).mean(x * mask)),
    "sum under a mask": lambda z, t, mask=None: (
        loss()(z, t) if mask is None else all_sum(-taken(ab.log_softmax(z), t) * mask)
    ),
    "logits masked": lambda z, t, mask=None: loss()(
        z if mask is None else z * array_namespace(z).astype(mask[..., None], z.dtype), t
    ),
    "mean of the means": masked_loss(
        lambda x, mask: array_namespace(x).mean(
            total(x * mask, keepdims=False) / total(mask, keepdims=False)
        )
    ),
}


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


# The feed-forward network.


def relu(x):
    return array_namespace(x).maximum(x, array_namespace(x).zeros_like(x))


def ff(phi):
    return lambda x, A, a, B, b: phi(x @ A + a) @ B + b


FEED_FORWARD = {
    "no activation": ff(lambda h: h),
    "activation after the second matrix": lambda x, A, a, B, b: relu((x @ A + a) @ B + b),
    "activation twice": lambda x, A, a, B, b: relu(relu(x @ A + a) @ B + b),
    "activation before the first matrix": lambda x, A, a, B, b: (relu(x) @ A + a) @ B + b,
    "another activation": ff(ab.gelu),
    "another activation 2": ff(lambda h: array_namespace(h).tanh(h)),
    "another activation 3": ff(sm),
    "sign of the activation": ff(lambda h: relu(-h)),
    "sign of the activation 2": ff(abs),
    "comparison for the activation": ff(lambda h: array_namespace(h).astype(h > 0, h.dtype)),
    "maximum over an axis": ff(lambda h: array_namespace(h).max(h, axis=0)),
    "leaky activation": ff(lambda h: relu(h) - 0.01 * relu(-h)),
    "both biases forgotten": lambda x, A, a, B, b: relu(x @ A) @ B,
    "b_1 forgotten": lambda x, A, a, B, b: relu(x @ A) @ B + b,
    "b_2 forgotten": lambda x, A, a, B, b: relu(x @ A + a) @ B,
    "b_1 after the activation": lambda x, A, a, B, b: (relu(x @ A) + a) @ B + b,
    "bias subtracted": lambda x, A, a, B, b: relu(x @ A - a) @ B - b,
    "residual inside": lambda x, A, a, B, b: x + ff(relu)(x, A, a, B, b),
    "first matrix used twice": lambda x, A, a, B, b: relu(x @ A + a) @ A.T + b,
    "matrices transposed": lambda x, A, a, B, b: relu(x @ A.T + a) @ B.T + b,
    "hidden layer returned": lambda x, A, a, B, b: relu(x @ A + a),
}


def ff_in_loops(x, W_1, b_1, W_2, b_2):
    out = np.zeros((len(x), len(b_2)))
    for t in range(len(x)):
        hidden = [
            max(
                0.0, sum(float(x[t][i]) * float(W_1[i][j]) for i in range(len(W_1))) + float(b_1[j])
            )
            for j in range(len(b_1))
        ]
        for c in range(len(b_2)):
            out[t, c] = sum(h * float(W_2[j][c]) for j, h in enumerate(hidden)) + float(b_2[c])
    return out


def torch_ff(x, W_1, b_1, W_2, b_2):
    import torch

    linear = torch.nn.functional.linear
    return linear(torch.relu(linear(x, W_1.T, b_1)), W_2.T, b_2)
