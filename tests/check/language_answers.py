"""Answers to the checks of what language models have today: RMSNorm, a gate, rotary positions.

A wrong answer stands under the name of the mistake that its check must find.
"""

import math
from functools import partial

import numpy as np
import pytest
import transformer_answers
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import sm, total  # noqa: F401 (for the programs)
from transformer_answers import clipped, mean, root  # noqa: F401

import attnbook as ab

program = partial(Program, globals())


# Root-mean-square normalisation.


RMS = program("""
x, g
square = x * x
size = root(mean(square) + 1e-5)
out = x / size * g
""")


def largest(x):
    xp = array_namespace(x)
    return xp.max(xp.abs(x), axis=-1, keepdims=True)


RMS_NORM = RMS.wrong("""
over the sequence: size = root(mean(square, -2) + 1e-5)
    size = root(mean(square, 0) + 1e-5)
over all axes: size = root(mean(square, None) + 1e-5)
mean subtracted: ab.layer_norm(x, g, xp.zeros_like(g))
mean subtracted above: (x - mean(x)) / size * g
variance for the mean of the squares: size = root(mean((x - mean(x)) ** 2) + 1e-5)
sum for the mean: size = root(total(square) + 1e-5)
squares with n − 1: size = root(total(square) / (x.shape[-1] - 1) + 1e-5)
square of the mean: size = root(mean(x) ** 2 + 1e-5)
mean of the absolute values: size = mean(xp.abs(x)) + 1e-5
largest number for the size: size = largest(x) + 1e-5
    size = root(xp.max(square, axis=-1, keepdims=True) + 1e-5)
another root: size = root(root(mean(square) + 1e-5))
size subtracted: (x - size) * g
normalised twice: ab.rms_norm(ab.rms_norm(x, g), g)
root forgotten: size = mean(square) + 1e-5
root multiplied: x * size * g
not divided: x * g
no epsilon: size = root(mean(square))
epsilon of another library: size = root(mean(square) + 1e-6)
epsilon of another size: size = root(mean(square) + 2.0**-23)
    size = root(mean(square) + 1e-4)
epsilon outside the root: size = root(mean(square)) + 1e-5
    size = root(mean(square)) + 1e-6
epsilon as a floor: size = root(clipped(mean(square), 1e-5))
    size = clipped(root(mean(square)), 1e-5)
gain forgotten: x / size
gain not multiplied: x / size + g
one added to the gain: x / size * (1 + g)
gain before: ab.rms_norm(x * g)
keepdims forgotten: size = root(mean(square, keepdims=False) + 1e-5)
squares overflow in half precision: size = root(mean(xp.pow(x, xp.full_like(x, 2))) + 1e-5)
axis 1 of a batch: out = x / size * g if x.ndim < 3 else x / root(mean(x * x, 1) + 1e-5) * g
""") | RMS.taking("epsilon=1e-5").wrong("epsilon ignored: size = root(mean(square) + 1e-5)")


def rms_in_loops(x, gain, epsilon=1e-5):
    out = np.zeros(x.shape)
    for place in np.ndindex(*x.shape[:-1]):
        row = [float(number) for number in x[place]]
        size = math.sqrt(sum(number * number for number in row) / len(row) + epsilon)
        out[place] = [number / size * float(g) for number, g in zip(row, gain, strict=True)]
    return out


def torch_rms(x, gain, eps=1e-5):
    return pytest.importorskip("torch").nn.functional.rms_norm(x, gain.shape, gain, eps)


# The gated feed-forward network.


GATE = program("""
x, G, A, B
gate = ab.silu(x @ G)
up = x @ A
h = gate * up
out = h @ B
""")


def sigmoid(h):
    xp = array_namespace(h)
    return 0.5 * (1 + xp.tanh(h / 2))


GATED_FEED_FORWARD = GATE.wrong("""
activation on the wrong branch: (x @ G * ab.silu(up)) @ B
activation on both branches: h = gate * ab.silu(up)
activation on the product: h = ab.silu(x @ G * up)
activation after the second matrix: ab.silu((x @ G * up) @ B)
activation before the first matrix: (ab.silu(x) @ G * (ab.silu(x) @ A)) @ B
no activation: gate = x @ G
sigmoid for the activation: gate = sigmoid(x @ G)
another activation: gate = ab.gelu(x @ G)
    gate = ab.relu(x @ G)
    gate = xp.tanh(x @ G)
    gate = xp.astype(x @ G > 0, x.dtype)
sign of the gate: gate = -ab.silu(x @ G)
branches added: h = gate + up
branches joined otherwise: h = gate - up
    h = (gate + up) / 2
branches multiplied too late: (gate @ B) * (up @ B)
branches multiplied as matrices: h = gate @ up.mT @ up
one added to the gate: h = (1 + gate) * up
gate forgotten: h = up
no gate: h = ab.silu(up)
    h = ab.relu(up)
branch without a gate forgotten: h = gate
gate matrix used twice: up = x @ G
first matrix used twice: gate = ab.silu(x @ A)
way back transposed: h @ A.mT
matrices transposed: (ab.silu(x @ G.mT) * (x @ A.mT)) @ B.mT
residual inside: x + h @ B
normalised inside: ab.rms_norm(h @ B)
    GATE.but()(ab.rms_norm(x), G, A, B)
hidden layer returned: h
""")


def gate_in_loops(x, G, A, B):
    out = np.zeros((*x.shape[:-1], B.shape[1]))
    for place in np.ndindex(*x.shape[:-1]):
        for j in range(G.shape[1]):
            g = sum(float(x[place][i]) * float(G[i, j]) for i in range(G.shape[0]))
            u = sum(float(x[place][i]) * float(A[i, j]) for i in range(A.shape[0]))
            out[place] += g / (1 + math.exp(-g)) * u * np.asarray(B[j], dtype=float)
    return out


def torch_gate(x, G, A, B):
    silu = pytest.importorskip("torch").nn.functional.silu
    return (silu(x @ G) * (x @ A)) @ B


# Rotary positions.


def turned(
    angle=transformer_answers.right_angle,
    row=lambda a, b, c, s: (a * c - b * s, a * s + b * c),
    interleaved=False,
    back=None,
):
    """Return a rotation, one pair of features at a time."""

    def answer(x):
        numbers = np.asarray(x, dtype=float)
        out = np.zeros(numbers.shape)
        *leading, n, d = numbers.shape
        for *place, p in np.ndindex(*leading, n):
            for i in range(d // 2):
                t = float(angle(p, i, d))
                j, k = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
                a, b = numbers[(*place, p, j)], numbers[(*place, p, k)]
                if back is not None:
                    j, k = (2 * i, 2 * i + 1) if back else (i, i + d // 2)
                new = row(a, b, math.cos(t), math.sin(t))
                out[(*place, p, j)], out[(*place, p, k)] = new
        return out

    return answer


def half_turned(x, interleaved, repeated):
    """Return x·cos + rotate_half(x)·sin, with a table that may be of the other layout."""
    n, d = x.shape[-2:]
    t = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    t = np.repeat(t, 2, axis=-1) if repeated else np.concatenate([t, t], axis=-1)
    x = np.asarray(x, dtype=float)
    if interleaved:
        other = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    else:
        other = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
    return x * np.cos(t) + other * np.sin(t)


def partly_turned(inter):
    """Return a rotation of the first half of the features, and of no others."""

    def answer(x):
        half = x.shape[-1] // 2 // 2 * 2
        x = np.asarray(x, dtype=float)
        return np.concatenate([turned(interleaved=inter)(x[..., :half]), x[..., half:]], axis=-1)

    return answer


def rotary_wrong(inter):
    """Return the wrong rotations of one layout."""

    def wrong(angle=transformer_answers.right_angle, row=None, **options):
        options |= {} if row is None else {"row": row}
        return turned(angle, interleaved=inter, **options)

    return {
        "halves" if inter else "interleaved": turned(interleaved=not inter),
        "rotated backwards": wrong(row=lambda a, b, c, s: (a * c + b * s, b * c - a * s)),
        "rotated backwards 2": wrong(lambda p, i, d: -p / 10000 ** (2 * i / d)),
        "sign in one row": wrong(row=lambda a, b, c, s: (a * c + b * s, a * s + b * c)),
        "sign in one row 2": wrong(row=lambda a, b, c, s: (a * c - b * s, a * s - b * c)),
        "sines and cosines exchanged": wrong(row=lambda a, b, s, c: (a * c - b * s, a * s + b * c)),
        "half of a pair kept": wrong(row=lambda a, b, c, s: (a * c - b * s, b)),
        "changed number used again": wrong(
            row=lambda a, b, c, s: (a * c - b * s, (a * c - b * s) * s + b * c)
        ),
        "cosines alone": wrong(row=lambda a, b, c, s: (a * c, b * c)),
        "added, not rotated": lambda x: x + ab.positions.sinusoidal(*x.shape[-2:]),
        "put together in another order": wrong(back=not inter),
        "table of the other layout": lambda x: half_turned(x, inter, not inter),
        "members of a pair exchanged": wrong(row=lambda a, b, c, s: (a * s + b * c, a * c - b * s)),
        "positions from 1": wrong(lambda p, i, d: (p + 1) / 10000 ** (2 * i / d)),
        "base of long contexts": wrong(lambda p, i, d: p / 500000 ** (2 * i / d)),
        "another base": wrong(lambda p, i, d: p / 1000 ** (2 * i / d)),
        "exponent halved": wrong(lambda p, i, d: p / 10000 ** (i / d)),
        "exponent doubled": wrong(lambda p, i, d: p / 10000 ** (4 * i / d)),
        "frequencies to the very end": wrong(lambda p, i, d: p / 10000 ** (i / max(d / 2 - 1, 1))),
        "angle inverted": wrong(lambda p, i, d: p * 10000 ** (2 * i / d)),
        "product for a power": wrong(lambda p, i, d: p * 10000 * 2 * i / d),
        "one frequency for all": wrong(lambda p, i, d: p),
        "frequencies in reverse": wrong(lambda p, i, d: p / 10000 ** (2 * (d // 2 - 1 - i) / d)),
        "pairs from 1": wrong(lambda p, i, d: p / 10000 ** (2 * (i + 1) / d)),
        "angles doubled": wrong(lambda p, i, d: 2 * p / 10000 ** (2 * i / d)),
        "turns for radians": wrong(lambda p, i, d: 2 * math.pi * p / 10000 ** (2 * i / d)),
        "angles halved": wrong(lambda p, i, d: p / 10000 ** (2 * i / d) / 2),
        "sines alone": wrong(row=lambda a, b, c, s: (-b * s, a * s)),
        "sines and cosines exchanged 2": wrong(
            row=lambda a, b, c, s: (a * c - b * s, a * c + b * s)
        ),
        "part of the features rotated": wrong(
            lambda p, i, d: p / 10000 ** (2 * i / d) * (i < d // 2 // 2)
        ),
        "first features rotated": partly_turned(inter),
        "exponent not divided by d": wrong(lambda p, i, d: p / 1e4**i),
        "pairs that share a frequency": wrong(lambda p, i, d: p / 10000 ** (2 * (i // 2) / d)),
        "exponent without brackets": wrong(lambda p, i, d: p / 10000.0 ** (2 * i) / d),
        "start ignored": lambda x, start=0: turned(interleaved=inter)(x),
    }


def rotary_in_torch(x, offset=0):
    """As Hugging Face writes it for Llama."""
    torch = pytest.importorskip("torch")
    n, d = x.shape[-2:]
    inverse = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.outer(torch.arange(offset, offset + n, dtype=torch.float64), inverse)
    table = torch.cat([angles, angles], dim=-1)
    a, b = x.chunk(2, dim=-1)
    y = x * table.cos() + torch.cat([-b, a], dim=-1) * table.sin()
    return y.to(x.dtype)


def complex_rotary(x, start=0):
    """As Meta writes it for Llama, with complex numbers."""
    x = np.asarray(x)
    n, d = x.shape[-2:]
    angles = np.outer(np.arange(start, start + n), 10000.0 ** (-np.arange(0, d, 2) / d))
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    y = pairs * np.exp(1j * angles)
    return np.stack([y.real, y.imag], axis=-1).reshape(x.shape).astype(x.dtype)


WRONG = {
    "rms_norm": RMS_NORM,
    "gated_feed_forward": GATED_FEED_FORWARD,
    "rotary": rotary_wrong(False),
    "rotary, interleaved": rotary_wrong(True),
}
DOUBLES = {
    "rms_norm": RMS.wrong("""
epsilon of another size; gain forgotten: x / root(mean(square) + 1e-2)
over the sequence; gain forgotten: x / root(mean(square, -2) + 1e-5)
"""),
    "gated_feed_forward": GATE.wrong("""
no activation; residual inside: x + (x @ G * up) @ B
another activation; branches added: (ab.gelu(x @ G) + up) @ B
activation on the wrong branch; sigmoid for the activation: (x @ G * sigmoid(up)) @ B
activation on the wrong branch; another activation: (x @ G * ab.relu(up)) @ B
"""),
    "rotary": {
        "rotated backwards; positions from 1": turned(lambda p, i, d: -(p + 1) / 1e4 ** (2 * i / d))
    },
}
RIGHT = {
    "rms_norm": (
        ab.rms_norm,
        RMS.but(),
        rms_in_loops,
        lambda x, gain, eps: ab.rms_norm(x, gain, epsilon=eps),
        lambda x: ab.rms_norm(x),
        lambda x, g: g * (x / (x**2).mean(-1, keepdims=True).__add__(1e-5) ** 0.5),
    ),
    "gated_feed_forward": (
        lambda x, weights: ab.feed_forward(x, weights),
        GATE.but(),
        gate_in_loops,
        lambda x, G, A, B: np.einsum("...f,fd->...d", ab.silu(x @ G) * (x @ A), B),
        lambda x, G, A, B: x @ G * sigmoid(x @ G) * (x @ A) @ B,
    ),
    "rotary": (
        ab.positions.rotary,
        turned(),
        lambda x: half_turned(x, False, False),
    ),
    "rotary, interleaved": (
        lambda x, start=0: ab.positions.rotary(x, start=start, interleaved=True),
        turned(interleaved=True),
        complex_rotary,
    ),
}
ONLY_TORCH = {
    "rms_norm": torch_rms,
    "gated_feed_forward": torch_gate,
    "rotary": rotary_in_torch,
}
