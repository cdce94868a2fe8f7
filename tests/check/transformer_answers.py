"""Answers that readers might hand in to the checks of the transformer, right and wrong.

A wrong answer stands under the name of the mistake that its check must find.
"""

import math
from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace, device
from attention_answers import exp, sm, total  # noqa: F401 (for the programs)

import attnbook as ab

program = partial(Program, globals())


def mean(x, axis=-1, keepdims=True):
    return array_namespace(x).mean(x, axis=axis, keepdims=keepdims)


def root(x):
    return array_namespace(x).sqrt(x)


def spread(x, axis=-1, keepdims=True):
    return mean((x - mean(x, axis)) ** 2, axis, keepdims)


NORM = program("""
x, g, b
c = x - mean(x)
d = x.shape[-1]
var = mean(c * c)
std = root(var + 1e-5)
out = c / std * g + b
""")


right_norm = NORM.but()


def normed(axis=-1, epsilon=1e-5):
    def answer(x, gain, bias):
        return (x - mean(x, axis)) / root(spread(x, axis) + epsilon) * gain + bias

    return answer


LAYER_NORM = NORM.wrong("""
over all axes: normed(axis=(-2, -1))(x, g, b)
variance as a difference: var = mean(x * x) - mean(x) ** 2
epsilon as a floor: std = clipped(root(var), 1e-5)
gain and bias before: right_norm(x * g, 1, b)
squares overflow in half precision: var = mean(xp.pow(c, xp.full_like(c, 2)))
axis 1 of a batch: c / std * g + b if x.ndim < 3 else normed(1)(x, g, b)
largest number for the mean: c = x - xp.max(x, axis=-1, keepdims=True); var = spread(x)
""") | NORM.taking("epsilon=1e-5").wrong("epsilon ignored: std = root(var + 1e-5)")


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
        "exponent halved": wrong(lambda p, i, d: p / 10000 ** (i / d)),
        "sine and cosine of different frequencies": _by_feature(inter, 1),
        "frequencies to the very end": wrong(lambda p, i, d: p / 10000 ** (i / max(d / 2 - 1, 1))),
        "logarithm of base 10": wrong(lambda p, i, d: p * math.exp(-2 * i / d * math.log10(10000))),
        "positions from 1": wrong(lambda p, i, d: right_angle(p + 1, i, d)),
        "exponent without brackets": wrong(lambda p, i, d: (p / 10000) ** (2 * i / d)),
        "axis too many": lambda n, d: right(n, d)[:, None, :],
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


def _by_rank(ids, E):
    order = {token: i for i, token in enumerate(sorted(set(ids.tolist())))}
    return E[[order[token] for token in ids.tolist()]] * E.shape[1] ** 0.5


def waves(n, d):
    return ab.positions.sinusoidal(n, d + d % 2)[:, :d]


def one_hot(ids, E):
    xp = array_namespace(E)
    words = xp.arange(E.shape[0], device=device(E))
    return xp.astype(ids[..., None] == words, E.dtype)


EMBED = program("""
ids, E
root = E.shape[1] ** 0.5
out = E[ids] * root
""").wrong("""
root of the length: E[ids] / math.sqrt(ids.shape[-1])
order lost: E[[*reversed(ids.tolist())]] * root
rows by rank: _by_rank(ids, E)
one-hot over the wrong axis: one_hot(ids, E).mT @ E * root
positions added: E[ids] * root + xp.asarray(waves(*E[ids].shape), dtype=E.dtype, device=device(E))
summed over the tokens: E[ids].sum(0) * root
""")


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


def clipped(p, e):
    xp = array_namespace(p)
    return xp.maximum(p, xp.full_like(p, e))


def relu(x):
    return array_namespace(x).maximum(x, array_namespace(x).zeros_like(x))


FEED = program("""
x, A, a, B, b
h = x @ A + a
f = relu(h)
out = f @ B + b
""")


FEED_FORWARD = FEED.wrong("""
activation twice: relu(f @ B + b)
another activation: f = sm(h)
maximum over an axis: f = xp.max(h, axis=0)
leaky activation: f = relu(h) - 0.01 * relu(-h)
normalised inside: h = ab.layer_norm(x) @ A + a
matrices transposed: relu(x @ A.T + a) @ B.T + b
""")


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


WRONG = {
    "layer_norm": LAYER_NORM,
    "positional_encoding": positions_wrong(False),
    "positional_encoding, interleaved": positions_wrong(True),
    "embed": EMBED,
    "feed_forward": FEED_FORWARD,
}

DOUBLES = {
    "layer_norm": NORM.wrong("""
epsilon of another library; bias forgotten: c / root(var + 1e-3) * g
over the sequence; gain forgotten: normed(axis=-2)(x, 1, b)
"""),
    "positional_encoding": {
        "sin and cos swapped; positions from 1": table(
            lambda p, i, d: right_angle(p + 1, i, d), np.cos, np.sin
        )
    },
    "embed": {
        "no √d_model; id one too small": lambda ids, E: E[ids - 1],
        "no √d_model; columns for rows": lambda ids, E: E[:, ids],
        "no √d_model; summed over the tokens": lambda ids, E: E[ids].mean(-2),
    },
    "feed_forward": FEED.wrong("""
another activation; b_2 forgotten: ab.gelu(h) @ B
no activation; residual inside: x + h @ B + b
another activation; b_1 after the activation: (xp.tanh(x @ A) + a) @ B + b
"""),
}

RIGHT = {
    "layer_norm": (
        ab.layer_norm,
        right_norm,
        loop_norm,
        norm_by_numpy,
        lambda x, gain, bias, epsilon: ab.layer_norm(x, gain, bias, epsilon=epsilon),
        lambda x, gain, bias, eps=1e-3: ab.layer_norm(x, gain, bias, epsilon=eps),
        lambda x: ab.layer_norm(x),
    ),
    "positional_encoding": (
        ab.positions.sinusoidal,
        table(right_angle),
        lambda n, d: np.hstack(
            [f(np.outer(range(n), 1e4 ** -np.arange(0, 1, 2 / d))) for f in (np.sin, np.cos)]
        ),
    ),
    "positional_encoding, interleaved": (
        lambda n, d_model: ab.positions.sinusoidal(n, d_model, interleaved=True),
        table(right_angle, interleaved=True),
        lambda n, d: np.sin(
            np.outer(np.arange(n), 1e4 ** (-2 * (np.arange(d) // 2) / d))
            + np.arange(d) % 2 * np.pi / 2
        ),
    ),
    "embed": (
        ab.embed,
        lambda ids, E: E[ids] * E.shape[-1] ** 0.5,
        embed_in_loops,
        embed_batches,
        lambda ids, E: one_hot(ids, E) @ E * E.shape[-1] ** 0.5,
    ),
    "feed_forward": (
        ab.feed_forward,
        FEED.but(),
        ff_in_loops,
        lambda x, weights: ab.feed_forward(x, weights),
        lambda x, A, a, B, b: np.einsum("...f,fd->...d", np.maximum(0, x @ A + a), B) + b,
    ),
}

ONLY_TORCH = {
    "layer_norm": torch_norm,
    "positional_encoding, interleaved": torch_positions,
    "embed": torch_embed,
    "feed_forward": torch_ff,
}
