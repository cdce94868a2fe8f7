"""Toy queries, keys and values on which ways to attend differ."""

import math

import numpy as np

WIDTH = 64
GROUP = 8  # planted keys of a query of peaked attention
COSINE = 0.95  # between such a query and its planted keys
CLUSTERS = 128
KINDS = {
    "random": "Queries and keys are standard normal: scores of variance 1, no key stands out.",
    "peaked": (
        f"As random, but each query has {GROUP} planted keys at cosine {COSINE}, and is so long "
        "that they hold about half of the softmax."
    ),
    "clustered": (
        f"Keys in {CLUSTERS} clusters of sizes rank^-0.7, of one covariance far from isotropic "
        "(standard deviations of the axes 1 : 10); queries are drawn like keys."
    ),
    "heavy-tailed": "Keys of random direction and lognormal length (σ = 0.8, median 6).",
}


def draw(kind: str, n: int, heads: int, *, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return query, key and value of one of `KINDS`, float32, each (heads, n, 64).

    Values are v = m + k A + 0.3 noise, with A orthogonal and m one vector for all.
    """
    rng = np.random.default_rng(seed)
    made = [_head(kind, n, rng) for _ in range(heads)]
    query, key, value = (np.stack(x).astype(np.float32) for x in zip(*made, strict=True))
    return query, key, value


def _head(kind, n, rng):
    d, normal = WIDTH, rng.standard_normal
    q, k = normal((n, d)), normal((n, d))
    value_size: float | np.ndarray = 1.0
    if kind == "peaked":
        centre = normal((-(-n // GROUP), d))
        near, apart = math.sqrt(COSINE), math.sqrt(1 - COSINE)
        k = near * centre[rng.permutation(n) // GROUP] + apart * k
        q = near * centre[rng.permutation(n) // GROUP] + apart * q
        q *= _gain(n)
    elif kind == "clustered":
        share = np.arange(1, CLUSTERS + 1) ** -0.7
        centre = math.sqrt(0.75) * normal((CLUSTERS, d))
        spread = np.geomspace(1, 0.1, d)
        spread *= math.sqrt(0.25 / np.mean(spread**2))
        axes = np.linalg.qr(normal((d, d)))[0] * spread
        label, asked = rng.choice(CLUSTERS, (2, n), p=share / share.sum())
        k, q = centre[label] + k @ axes.T, centre[asked] + q @ axes.T
    elif kind == "heavy-tailed":
        length = 6 * rng.lognormal(0, 0.8, n)
        k *= (length / np.linalg.norm(k, axis=1))[:, None]
        value_size = (8 / length)[:, None]  # values stay of one size
    elif kind != "random":
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    A, mean = np.linalg.qr(normal((d, d)))[0], 0.44 * normal(d)
    return q, k, mean + k @ A * value_size + 0.3 * normal((n, d))


def _gain(n):
    """Return the length of peaked queries, in which the planted keys weigh as much as the rest.

    g · cosine · √d + log(group) = log n + g² / 2, for mean scores.
    """
    a = COSINE * math.sqrt(WIDTH)
    return a - math.sqrt(a * a - 2 * math.log(max(n, GROUP) / GROUP))
