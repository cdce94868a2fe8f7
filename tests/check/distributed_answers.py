"""Answers to the exercises on many machines, right and wrong, as readers write them."""

import functools
import math

import numpy as np
import pytest

import attnbook as ab
from attnbook.distributed import shard_sequence


def runs_of(n, p):
    return [list(range(i * n // (2 * p), (i + 1) * n // (2 * p))) for i in range(2 * p)]


def paired(choose):
    """Return shards of which `choose` says the two runs of process r."""
    return lambda n, p: [
        [place for i in choose(r, p) for place in runs_of(n, p)[i]] for r in range(p)
    ]


ZIGZAG_WRONG = {
    "contiguous": lambda n, p: np.split(np.arange(n), p),
    "striped": lambda n, p: [list(range(r, n, p)) for r in range(p)],
    "counted from the middle": lambda n, p: [
        np.arange(n).reshape(p, -1)[[r, p - 1 - r]].ravel() for r in range(p)
    ],
    "late run reversed": lambda n, p: [
        (runs_of(n, p)[r] + runs_of(n, p)[-1 - r])[::-1] for r in range(p)
    ],
    "runs interleaved": lambda n, p: [
        [i for pair in zip(runs_of(n, p)[r], runs_of(n, p)[-1 - r], strict=True) for i in pair]
        for r in range(p)
    ],
    "one too far": lambda n, p: [
        runs_of(n, p)[r] + (runs_of(n, p)[2 * p - r] if r else []) for r in range(p)
    ],
}


def part(q, k, v):
    s = q @ k.T / math.sqrt(q.shape[-1])
    m = s.max(axis=-1, keepdims=True)
    w = np.exp(s - m)
    return m, w.sum(-1, keepdims=True), w @ v


def merge(a, b, factor=lambda own, m: np.exp(own - m)):
    m = np.maximum(a[0], b[0])
    f, g = (factor(x[0], m) for x in (a, b))
    return m, f * a[1] + g * b[1], f * a[2] + g * b[2]


def travelling(query, key, value):
    """Pass the shards on in lists."""
    held = list(zip(key, value, strict=True))
    states = [None] * len(query)
    for _ in query:
        for r, q in enumerate(query):
            new = part(q, *held[r])
            states[r] = new if states[r] is None else merge(states[r], new)
        held = [held[r - 1] for r in range(len(query))]
    return states


def merged_by(join):
    """Return a ring whose shards come from the other neighbour; `join` takes each new part in."""

    def ring(query, key, value):
        p = len(query)
        return [
            functools.reduce(
                join, [part(q, key[(r + i) % p], value[(r + i) % p]) for i in range(p)]
            )
            for r, q in enumerate(query)
        ]

    return ring


def divided(ring):
    return lambda *given: np.stack([u / z for _, z, u in ring(*given)])


def sum_of_outputs(query, key, value):
    parts = [[part(q, k, v) for k, v in zip(key, value, strict=True)] for q in query]
    return np.stack([sum(u / z for _, z, u in of_rank) for of_rank in parts])


def not_rescaled(query, key, value):
    outputs = []
    for r, q in enumerate(query):
        m, z, u = part(q, key[r], value[r])
        for i in range(1, len(query)):
            m_2, z_2, u_2 = part(q, key[r - i], value[r - i])
            m = np.maximum(m, m_2)
            z, u = z + np.exp(m_2 - m) * z_2, u + np.exp(m_2 - m) * u_2
        outputs.append(u / z)
    return np.stack(outputs)


def weighed_by_maxima(query, key, value):
    outputs = []
    for q in query:
        parts = [part(q, k, v) for k, v in zip(key, value, strict=True)]
        weights = [np.exp(m - np.max([top for top, *_ in parts], axis=0)) for m, *_ in parts]
        outputs.append(
            sum(w * u / z for w, (_, z, u) in zip(weights, parts, strict=True)) / sum(weights)
        )
    return np.stack(outputs)


def overwritten(query, key, value):
    """Return what a list gives that is written into while it moves."""
    held = list(zip(key, value, strict=True))
    states = [part(q, *pair) for q, pair in zip(query, held, strict=True)]
    for _ in range(len(query) - 1):
        for r in range(len(query)):
            held[r] = held[r - 1]
        states = [merge(s, part(q, *x)) for s, q, x in zip(states, query, held, strict=True)]
    return states


RING_WRONG = {
    "overwritten on the way": divided(overwritten),
    "not rescaled": not_rescaled,
    "mean of the outputs": lambda q, k, v: sum_of_outputs(q, k, v) / len(q),
    "not home": lambda *given: divided(travelling)(*given)[::-1],
    "one part rescaled": divided(
        merged_by(lambda a, b: merge(a, b, factor=lambda x, m: 1 if x is b[0] else np.exp(x - m)))
    ),
    "outputs weighed by their maxima": weighed_by_maxima,
    "causal": lambda q, k, v: ab.attention(
        *(x.reshape(-1, x.shape[-1]) for x in (q, k, v)), is_causal=True
    ).reshape(*q.shape[:2], -1),
}
WRONG = {"zigzag_shards": ZIGZAG_WRONG, "ring_attention": RING_WRONG}


def torch_shards(n, p):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.stack(shard_sequence(torch.arange(n), p, axis=0))


def whole(query, key, value):
    key, value = (x.reshape(-1, x.shape[-1]) for x in (key, value))
    return [ab.attention(q, key, value) for q in query]


RIGHT = {
    "zigzag_shards": [
        paired(lambda r, p: (r, -1 - r)),
        lambda n, p: shard_sequence(np.arange(n), p, axis=0),
        lambda n, p: np.stack(shard_sequence(np.arange(n), p, axis=0)),
        lambda n, p: np.stack(shard_sequence(np.arange(n), p, axis=0)).astype(np.int32),
        lambda n, p: torch_shards(n, p),
    ],
    "ring_attention": [
        divided(travelling),
        divided(merged_by(merge)),
        whole,
        lambda *given: tuple(whole(*given)),
    ],
}
DOUBLES = {
    "zigzag_shards": {
        "neighbouring runs; late run first": paired(lambda r, p: (2 * r + 1, 2 * r)),
    }
}
