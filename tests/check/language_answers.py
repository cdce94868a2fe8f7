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
mean subtracted: ab.layer_norm(x, g, xp.zeros_like(g))
largest number for the size: size = root(xp.max(square, axis=-1, keepdims=True) + 1e-5)
normalised twice: ab.rms_norm(ab.rms_norm(x, g), g)
epsilon as a floor: size = clipped(root(mean(square)), 1e-5)
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
activation before the first matrix: (ab.silu(x) @ G * (ab.silu(x) @ A)) @ B
another activation: gate = xp.astype(x @ G > 0, x.dtype)
branches multiplied too late: (gate @ B) * (up @ B)
branches multiplied as matrices: h = gate @ up.mT @ up
no gate: h = ab.relu(up)
normalised inside: GATE.but()(ab.rms_norm(x), G, A, B)
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

    def wrong(**options):
        return turned(interleaved=inter, **options)

    return {
        "halves" if inter else "interleaved": turned(interleaved=not inter),
        "changed number used again": wrong(
            row=lambda a, b, c, s: (a * c - b * s, (a * c - b * s) * s + b * c)
        ),
        "added, not rotated": lambda x: x + ab.positions.sinusoidal(*x.shape[-2:]),
        "put together in another order": wrong(back=not inter),
        "table of the other layout": lambda x: half_turned(x, inter, not inter),
        "frequencies to the very end": wrong(
            angle=lambda p, i, d: p / 10000 ** (i / max(d / 2 - 1, 1))
        ),
        "first features rotated": partly_turned(inter),
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
