"""HyperAttention: blocks of keys sorted by their hash, and a uniform sample of the rest.

Han et al. (2024), "HyperAttention: long-context attention in near-linear time". Causal attention is
cut in halves, as there: the second half of the queries sees all of the first half of the keys.
Keys are hashed without their mean.
"""

import math

import numpy as np

from attnbook.kernels import packed
from benchmarks.approximate_clusters import merged


def prepare(key, value, *, block, n_samples, is_causal, n_projections=7, least=2048, seed=0):
    """Keep keys and values: queries and keys are sorted together."""
    return key, value, block, n_samples, n_projections, least, is_causal, seed


def attend(query, state) -> np.ndarray:
    """Return attention of (h, n, d) queries."""
    key, value, block, n_samples, n_projections, least, is_causal, seed = state
    options = {"block": block, "n_samples": n_samples, "n_projections": n_projections}
    options |= {"rng": np.random.default_rng(seed), "least": max(least, block)}
    way = _causal if is_causal else _every
    return way(query, key, value, **options)[0]


def _causal(query, key, value, *, least, **options):
    n = query.shape[1]
    if n <= least:
        out, log_total = packed.forward(query, key, value, None, None, _scale(query), True)
        return out, log_total[..., 0]
    half = n // 2
    first, second = (
        _causal(query[:, s], key[:, s], value[:, s], least=least, **options)
        for s in (slice(0, half), slice(half, n))
    )
    across = _every(query[:, half:], key[:, :half], value[:, :half], least=least, **options)
    second = merged([second, across])
    return tuple(np.concatenate([a, b], axis=1) for a, b in zip(first, second, strict=True))


def _every(query, key, value, *, block, n_samples, n_projections, rng, least):
    """Return attention without a mask, and log totals; as many queries as keys, or one more."""
    h, n, d = key.shape
    del least
    block = min(block, n)
    if n % block or query.shape[1] != n:
        raise ValueError(f"block must divide n = {n}, and n_q be n, got {block}")
    directions = rng.standard_normal((d, n_projections)).astype(np.float32)
    q_order, k_order = (
        np.argsort(_gray_rank(x @ directions >= 0), axis=-1, kind="stable")
        for x in (query, key - key.mean(axis=1, keepdims=True))
    )
    blocks = n // block
    q = _rows(query, q_order).reshape(h, blocks, block, d)
    k, v = (_rows(x, k_order) for x in (key, value))
    of_blocks = [x.reshape(h, blocks, block, -1) for x in (k, v)]
    scale = _scale(query)
    near = packed.forward(q, *of_blocks, None, None, scale, False)
    parts = [(near[0], near[1][..., 0])]
    n_samples = min(n_samples, n)
    if n_samples and blocks > 1:
        rows = rng.integers(n, size=n_samples)  # places in the order of the keys
        inside = rows // block == np.arange(blocks)[:, None]  # counted in the block already
        bias = np.where(inside, -np.inf, math.log(n / n_samples)).astype(np.float32)[:, None]
        some = [x[:, None, rows] for x in (k, v)]
        far = packed.forward(q, *some, None, bias, scale, False)
        parts.append((far[0], far[1][..., 0]))
    out, log_total = merged(parts)
    back = np.argsort(q_order, axis=-1)
    return (
        _rows(out.reshape(h, n, -1), back),
        np.take_along_axis(log_total.reshape(h, n), back, axis=-1),
    )


def _gray_rank(bits):
    """Return the place of each code in the Gray order, in which neighbours differ in one bit."""
    place = bits @ (1 << np.arange(bits.shape[-1]))
    shift = 1
    while shift < bits.shape[-1]:
        place ^= place >> shift
        shift *= 2
    return place


def _scale(query):
    return 1 / math.sqrt(query.shape[-1])


def _rows(x, order):
    return np.take_along_axis(x, order[..., None], axis=-2)
