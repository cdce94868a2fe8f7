"""Answers on hashes and how often they collide, right and wrong, by the name of the mistake."""

import math

import numpy as np
from attention_answers import unit

from attnbook.hashing import SimHash, StableHash


def parted(tables):
    """Return the answers with one mistake and those with two, whose names have a semicolon."""
    return (
        {
            name: {wrong: f for wrong, f in table.items() if ("; " in wrong) is several}
            for name, table in tables.items()
        }
        for several in (False, True)
    )


# SimHash.


def signs(place=lambda j, k: 1 << j):
    """Return the reader who goes through vectors and directions in loops."""

    def answer(x, directions):
        signatures = np.zeros(len(x), dtype=np.int64)
        for i, row in enumerate(x):
            for j, direction in enumerate(directions):
                signatures[i] += (float(row @ direction) >= 0) * place(j, len(directions))
        return signatures

    return answer


def packed(bits):
    """Shift and add, from the highest bit down."""
    signature = 0 * bits[:, 0]
    for j in reversed(range(bits.shape[1])):
        signature = 2 * signature + bits[:, j]
    return signature


def right_simhash(x, directions):
    return packed((x @ directions.T >= 0) * 1)


def torch_simhash(x, directions):
    import torch

    bits = torch.nn.functional.linear(x, directions) >= 0
    return (bits.long() << torch.arange(len(directions))).sum(-1)


RIGHT_SIMHASH = (
    signs(),
    lambda x, a: (x @ a.T >= 0).astype(np.int64) @ (1 << np.arange(len(a))),
    lambda x, a: np.bitwise_or.reduce(
        (~(np.einsum("nd,kd->nk", x, a) < 0)).astype(np.int64) << np.arange(len(a)), axis=1
    ),
)

SIMHASH = {
    "bits reversed": lambda x, a: np.array(
        [int("".join("01"[int(p >= 0)] for p in row), 2) for row in x @ a.T]
    ),
    "vector of zeros": lambda x, a: right_simhash(unit(x), a),
    "packed into bytes": lambda x, a: np.array(
        [
            int.from_bytes(row.tobytes(), "big")
            for row in np.packbits(x @ a.T >= 0, axis=1, bitorder="little")
        ]
    ),
    "mean for a threshold": lambda x, a: packed((x @ a.T >= np.median(x @ a.T)) * 1),
    "packed in floats": lambda x, a: (
        (x @ a.T >= 0).astype("float32") @ (2 ** np.arange(len(a))).astype("float32")
    ).astype(int),
    "bits reversed; exclusive or for the power": signs(place=lambda j, k: 2 ^ (k - 1 - j)),
    "largest projection": lambda x, a: np.argmax(abs(x @ a.T), axis=-1),
    "too few bits": lambda x, a: right_simhash(x, a) % 2**31,
    "bits reversed; strict sign": lambda x, a: packed((x @ a.T > 0)[:, ::-1]),
    "bits reversed; signs for bits": lambda x, a: packed(np.sign(x @ a.T).astype(int)[:, ::-1]),
}


# The p-stable hash.


def codes(cut=np.floor, inside=lambda p, b, r: (p + b) / r, along=lambda x, a: x @ a.T):
    return lambda x, a, b, r: cut(inside(along(x, a), b, r)).astype(np.int64)


right_codes = codes()


def codes_in_loops(x, directions, offsets, width):
    out = np.empty((len(x), len(directions)), dtype=np.int64)
    for i in range(len(x)):
        for j in range(len(directions)):
            out[i, j] = math.floor((float(x[i] @ directions[j]) + float(offsets[j])) / width)
    return out


def torch_codes(x, directions, offsets, width):
    import torch

    return torch.floor(torch.nn.functional.linear(x, directions, offsets) / width).long()


RIGHT_CODES = (
    codes_in_loops,
    lambda x, a, b, r: ((x @ a.T + b[None, :]) // r).astype(np.int64),
    lambda x, a, b, r: np.floor(np.divide(np.einsum("nd,kd->nk", x, a) + b, r)).astype("int64"),
)


STABLE_HASH = {
    "truncated": lambda x, a, b, r: np.array(
        [[int((p + c) / r) for p, c in zip(row, b, strict=True)] for row in x @ a.T]
    ),
    "rest of the division": lambda x, a, b, r: np.floor((x @ a.T + b) % r).astype(int),
    "distances for projections": codes(
        along=lambda x, a: np.linalg.norm(x[:, None] - a[None], axis=-1)
    ),
    "projections in another order": lambda *given: np.sort(right_codes(*given), axis=1),
    "truncated; offset outside the division": codes(np.trunc, lambda p, b, r: p / r + b),
    "vectors normalised": lambda x, a, b, r: right_codes(unit(x), a, b, r),
    "transposed": lambda x, a, b, r: np.floor((a @ x.T + b[:, None]) / r).astype(int),
    "int32": lambda *given: right_codes(*given).astype(np.int32),
    "offset forgotten; width forgotten": lambda x, a, b, r: np.floor(x @ a.T).astype(int),
    "truncated; offset forgotten": lambda x, a, b, r: (x @ a.T / r).astype(int),
    "rounded; offset subtracted": codes(np.rint, lambda p, b, r: (p - b) / r),
    "rounded up; width multiplied": codes(np.ceil, lambda p, b, r: (p + b) * r),
    "offset outside the division; transposed": lambda *given: (
        codes(inside=lambda p, b, r: p / r + b)(*given).T
    ),
}


# The collision probability.


def phi(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


ROOT = math.sqrt(2 * math.pi)


def datar(
    near=lambda c, r: 1 - 2 * phi(-r / c),
    front=lambda c, r: 2 * c / (ROOT * r),
    bracket=lambda c, r: 1 - math.exp(-r * r / (2 * c * c)),
):
    """Return the probability of single numbers."""
    return lambda c, r: 1.0 if c == 0 else near(c, r) - front(c, r) * bracket(c, r)


right_probability = datar()


def on_arrays(function):
    return np.vectorize(function, otypes=[float])


def probability_of_arrays(distance, width):
    """Write into an array, which takes arrays alone."""
    out = np.ones_like(distance)
    apart = distance > 0
    out[apart] = on_arrays(right_probability)(distance[apart], width)
    return out


def probability_by_integral(distance, width):
    """Integrate 2φ(z)(1 − cz/r) from 0 to r/c by Gauss-Legendre in many pieces."""
    if distance == 0:
        return 1
    nodes, weights = np.polynomial.legendre.leggauss(40)
    end = min(width / distance, 40)
    pieces = np.linspace(0, end, 41)
    z = (pieces[:-1, None] + pieces[1:, None] + nodes * (end / 40)) / 2
    f = 2 * np.exp(-z * z / 2) / ROOT * (1 - distance * z / width)
    return float(np.sum(f * weights) * end / 80)


def integral_to(end, distance, width):
    z = (np.arange(1000) + 0.5) * end / 1000
    density = 2 * np.exp(-z * z / 2) / ROOT
    return float(np.sum(density * (1 - distance * z / width)) * end / 1000)


def torch_probability(distance, width):
    import torch

    t = width / torch.where(distance == 0, width, distance)
    loss = math.sqrt(2 / math.pi) / t * -torch.expm1(-t * t / 2)
    return torch.where(distance == 0, 1.0, torch.erf(t / math.sqrt(2)) - loss)


COLLISION_PROBABILITY = {
    "arccos": lambda c, r: 1 - 2 / math.pi * math.acos(min(c / r, 1)),
    "SimHash's probability": lambda c, r: 1 - np.arccos(1 - c * c / 2) / math.pi,
    "integral to another end": lambda c, r: integral_to(r, c, r) if c else 1,
    "Cauchy": lambda c, r: (
        2 * math.atan(r / c) / math.pi - math.log(1 + (r / c) ** 2) / (math.pi * r / c)
    ),
    "several projections": lambda c, r: 1 - (1 - right_probability(c, r)) ** 2,
    "distance 0": lambda c, r: probability_of_arrays(c, r) * c / c,
    "one tail; exponent without the 2": datar(
        near=lambda c, r: 1 - phi(-r / c), bracket=lambda c, r: 1 - math.exp(-((r / c) ** 2))
    ),
    "erf for Φ; last term upside down": datar(
        near=lambda c, r: math.erf(r / c), front=lambda c, r: 2 * r / (ROOT * c)
    ),
}


ALL = {
    "simhash": SIMHASH,
    "stable_hash": STABLE_HASH,
    "collision_probability": COLLISION_PROBABILITY,
}
WRONG, DOUBLES = parted(ALL)
RIGHT = {
    "simhash": (
        lambda x, directions: SimHash(directions[None]).signatures(x)[:, 0],
        right_simhash,
        *RIGHT_SIMHASH,
    ),
    "stable_hash": (
        lambda x, a, b, width: StableHash(a[None], b[None], width).codes(x)[:, 0],
        right_codes,
        *RIGHT_CODES,
    ),
    "collision_probability": (
        StableHash.collision_probability,
        on_arrays(right_probability),
        right_probability,
        probability_by_integral,
        probability_of_arrays,
    ),
}
ONLY_TORCH = {
    "simhash": torch_simhash,
    "stable_hash": torch_codes,
    "collision_probability": torch_probability,
}
