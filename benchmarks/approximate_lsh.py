"""Attention within chunks of sorted buckets: Reformer, and SMYRF where queries are not keys.

Kitaev et al. (2020), "Reformer: the efficient transformer"; Daras et al. (2020), "SMYRF: efficient
attention using asymmetric clustering". A key that a query meets in several rounds is counted once:
its score loses log N, as in equation (A.7) of the first.
"""

import math

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_loops
from attnbook.kernels import packed
from benchmarks.approximate_clusters import merged


def prepare(key, value, *, chunk, n_rounds, is_causal, asymmetric=False, seed=0):
    """Keep keys and values: queries and keys are hashed together."""
    return key, value, chunk, n_rounds, is_causal, asymmetric, seed


def attend(query, state) -> np.ndarray:
    """Return attention of (h, n, d) queries to the keys in their chunks of every round.

    Chunk i of the sorted queries meets chunks i and i - 1 of the sorted keys; with `asymmetric`,
    as in SMYRF, chunk i alone. Keys are hashed without their mean.
    """
    key, value, chunk, n_rounds, is_causal, asymmetric, seed = state
    (h, n, d), rng = query.shape, np.random.default_rng(seed)
    if n % chunk:
        raise ValueError(f"chunk must divide n = {n}, got {chunk}")
    blocks, scale = n // chunk, 1 / math.sqrt(d)
    centred = key - key.mean(axis=1, keepdims=True)
    if asymmetric:
        query_side, key_side = _on_a_sphere(query, centred)
    orders, places = [], []  # per round: sorted rows, and the chunk of each row
    for _ in range(n_rounds):
        if asymmetric:
            direction = rng.standard_normal((d + 2,)).astype(np.float32)
            sides = (query_side @ direction, key_side @ direction)
        else:
            # two chunks hold a bucket on average
            directions = rng.standard_normal((d, max(1, blocks // 4))).astype(np.float32)
            sides = tuple(_bucket(x @ directions) for x in (query, centred))
        order = [np.argsort(x, axis=-1, kind="stable") for x in sides]
        place = [np.empty((h, n), np.int32) for _ in order]
        for o, p in zip(order, place, strict=True):
            np.put_along_axis(p, o, np.arange(n, dtype=np.int32)[None] // chunk, axis=-1)
        orders.append(order)
        places.append(place)
    q_places, k_places = (np.stack([p[i] for p in places], axis=1) for i in (0, 1))
    back = 0 if asymmetric or blocks == 1 else 1
    found = []
    for q_order, k_order in orders:
        q = _rows(query, q_order).reshape(h, blocks, chunk, d)
        k, v = (_with_former(_rows(x, k_order), chunk, back) for x in (key, value))
        bias = np.empty((h, blocks, chunk, chunk * (1 + back)), np.float32)
        arrays = (q_order, k_order, q_places, k_places, chunk, back, is_causal, bias)
        in_parts(
            lambda first, last, _, a=arrays: count_rounds(*a, first, last),
            h * blocks,
            n_threads_for(bias.size),
        )
        out, log_total = packed.forward(q, k, v, None, bias, scale, False)
        back_to = np.argsort(q_order, axis=-1)
        found.append(
            (
                _rows(out.reshape(h, n, -1), back_to),
                np.take_along_axis(log_total.reshape(h, n), back_to, axis=-1),
            )
        )
    return merged(found)[0]


@compile_loops
def count_rounds(q_order, k_order, q_places, k_places, chunk, back, is_causal, bias, first, last):
    """Write -log of the number of rounds in which each pair meets; -inf where it may not."""
    blocks, rounds = bias.shape[1], q_places.shape[1]
    logs = np.zeros(rounds + 1, np.float32)
    for r in range(1, rounds + 1):
        logs[r] = -math.log(r)
    met, columns = np.empty(bias.shape[3], np.int32), np.empty(bias.shape[3], np.int64)
    there = np.empty((rounds, bias.shape[3]), np.int32)
    for task in range(first, last):
        head, block = task // blocks, task % blocks
        for j in range(bias.shape[3]):
            place = (block - back) * chunk + j
            columns[j] = k_order[head, place] if place >= 0 else -1
            for r in range(rounds):
                there[r, j] = k_places[head, r, columns[j]] if place >= 0 else np.int32(-9)
        for i in range(chunk):
            row = q_order[head, block * chunk + i]
            for j in range(met.size):
                met[j] = 0
            for r in range(rounds):
                here = q_places[head, r, row]
                for j in range(met.size):
                    behind = here - there[r, j]
                    met[j] += (behind >= 0) & (behind <= back)
            for j in range(met.size):
                hidden = columns[j] < 0 or (is_causal and columns[j] > row)
                bias[head, block, i, j] = -np.inf if hidden else logs[met[j]]


def _bucket(x):
    """Return the number of the nearest of the directions and their opposites."""
    far = np.abs(x)
    best = far.argmax(axis=-1)
    sign = np.take_along_axis(x, best[..., None], axis=-1)[..., 0] < 0
    return best + sign * x.shape[-1]


def _on_a_sphere(query, key):
    """Return queries and keys with two features more, so that their distance tells q·k."""
    lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key)]
    most = [x.max(axis=-2, keepdims=True) for x in lengths]
    rest = [
        np.sqrt(np.maximum(sum(m * m for m in most) - x * x, 0)).astype(np.float32) for x in lengths
    ]
    none = np.zeros_like(rest[0])
    return (
        np.concatenate([query, none, rest[0]], axis=-1),
        np.concatenate([key, rest[1], none], axis=-1),
    )


def _rows(x, order):
    return np.take_along_axis(x, order[..., None], axis=-2)


def _with_former(x, chunk, back):
    """Return chunks, each after the one before it; the first after itself, which is hidden."""
    x = x.reshape(x.shape[0], -1, chunk, x.shape[-1])
    if not back:
        return x
    return np.concatenate([np.concatenate([x[:, :1], x[:, :-1]], axis=1), x], axis=2)
