"""What the sketch's benchmark feeds in: a planted neighbour, and keys on which sketches differ."""

import math
from typing import NamedTuple

import numpy as np

WIDTH = 64
GROUP = 8  # planted keys of a query of peaked attention
CLUSTERS = 128
COSINES = {"peaked": 0.95, "peaked, farther": 0.9}  # between a query and its planted keys
KINDS = {
    "random": "Queries and keys are standard normal: scores of variance 1, no key stands out.",
    "peaked": (
        f"As random, but each query has {GROUP} planted keys at cosine {COSINES['peaked']}, and is "
        "so long that they hold about half of the softmax."
    ),
    "peaked, farther": f"The same at cosine {COSINES['peaked, farther']}.",
    "clustered": (
        f"Keys in {CLUSTERS} clusters of sizes rank^-0.7, of one covariance far from isotropic "
        "(standard deviations of the axes 1 : 10); queries are drawn like keys."
    ),
    "clustered, own shapes": (
        "As clustered, but each cluster has axes, a size (up to a factor 3) and a map from key to "
        "value of its own."
    ),
    "heavy-tailed": "Keys of random direction and lognormal length (σ = 0.8, median 6).",
    "heavy-tailed, Pareto": "The same, with Pareto lengths of exponent 1.5, at least 8.",
}
VALUES = {
    "following": "v = m + k A + 0.3 noise, with A orthogonal and m one vector for all.",
    "bent": "v = m + tanh(k A) + 0.3 noise: not linear in the key.",
    "without a common part": "v = k A + 0.3 noise.",
    "independent": "v standard normal, whatever the key is.",
}


class Inputs(NamedTuple):
    """Queries, keys and values, float32, each (h, n, 64)."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def planted(seed: int, n: int, n_queries: int, distance: float = 0.5) -> tuple[np.ndarray, ...]:
    """Return n standard normal keys, queries at `distance` from one key each, and its row.

    All other keys are about sqrt(2 · 64) = 11.3 away.
    """
    rng = np.random.default_rng(seed)
    key = rng.standard_normal((n, WIDTH), dtype=np.float32)
    row = rng.integers(n, size=n_queries)
    away = rng.standard_normal((n_queries, WIDTH), dtype=np.float32)
    away *= distance / np.linalg.norm(away, axis=1, keepdims=True)
    return key, key[row] + away, row


def draw(kind: str, n: int, heads: int, *, seed: int = 0, values: str = "following") -> Inputs:
    """Return inputs of one of `KINDS`, with one of `VALUES`."""
    rng = np.random.default_rng(seed)
    made = [_head(kind, values, n, rng) for _ in range(heads)]
    return Inputs(*(np.stack(x).astype(np.float32) for x in zip(*made, strict=True)))


def _head(kind, values, n, rng):
    d, label = WIDTH, None
    normal = rng.standard_normal
    q, k = normal((n, d)), normal((n, d))
    if kind in COSINES:
        cosine = COSINES[kind]
        centre = normal((-(-n // GROUP), d))
        near, apart = math.sqrt(cosine), math.sqrt(1 - cosine)
        k = near * centre[rng.permutation(n) // GROUP] + apart * k
        q = near * centre[rng.permutation(n) // GROUP] + apart * q
        q *= _gain(n, cosine)
    elif kind.startswith("clustered"):
        own_shapes = kind != "clustered"
        share = np.arange(1, CLUSTERS + 1) ** -0.7
        centre = math.sqrt(0.75) * normal((CLUSTERS, d))
        spread = np.geomspace(1, 0.1, d)
        spread *= math.sqrt(0.25 / np.mean(spread**2))
        axes = np.linalg.qr(normal((CLUSTERS if own_shapes else 1, d, d)))[0] * spread
        if own_shapes:
            axes *= np.exp(rng.uniform(-0.55, 0.55, CLUSTERS))[:, None, None]
        label, asked = rng.choice(CLUSTERS, (2, n), p=share / share.sum())
        k = centre[label] + _by_label(k, axes, label)
        q = centre[asked] + _by_label(q, axes, asked)
    elif kind.startswith("heavy-tailed"):
        pareto = kind != "heavy-tailed"
        length = 8 * (1 + rng.pareto(1.5, n)) if pareto else 6 * rng.lognormal(0, 0.8, n)
        k *= (length / np.linalg.norm(k, axis=1))[:, None]
    elif kind != "random":
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if values == "independent":
        return q, k, normal((n, d))
    if values not in VALUES:
        raise ValueError(f"values must be one of {', '.join(VALUES)}, got {values!r}")
    A, mean = np.linalg.qr(normal((d, d)))[0], 0.44 * normal(d)
    if values == "without a common part":
        mean *= 0
    follows = k @ A
    if kind == "clustered, own shapes":
        maps = 0.5 * normal((CLUSTERS, d, d)) / math.sqrt(d)
        follows += _by_label(k - centre[label], maps.mT, label)
    elif kind.startswith("heavy-tailed"):  # values stay of one size
        follows *= (8 / length)[:, None]
    if values == "bent":
        follows = np.tanh(follows)
    return q, k, mean + follows + 0.3 * normal((n, d))


def _gain(n, cosine):
    """Return the length of peaked queries, in which the planted keys weigh as much as the rest.

    g · cosine · √d + log(group) = log n + g² / 2, for mean scores.
    """
    a = cosine * math.sqrt(WIDTH)
    return a - math.sqrt(a * a - 2 * math.log(max(n, GROUP) / GROUP))


def _by_label(x, maps, label):
    """Return maps[label] applied to the rows of x, a label at a time."""
    if len(maps) == 1:
        return x @ maps[0].T
    out = np.empty_like(x)
    order = np.argsort(label, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):
        out[rows] = x[rows] @ maps[label[rows[0]]].T
    return out


def exact(inputs: Inputs, rows: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Return float64 attention of the queries in `rows`, (h, len(rows), d_v), a few at a time."""
    query, key, value = inputs
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out = np.empty((len(key), len(rows), value.shape[-1]))
    for h in range(len(key)):
        k, v = key[h].astype(np.float64), value[h].astype(np.float64)
        step = max(1, 2**25 // len(k))  # 256 MiB of scores
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            scores = (scale * query[h, chunk].astype(np.float64)) @ k.T
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[h, start : start + step] = scores @ v / scores.sum(axis=1, keepdims=True)
    return out
