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
    "same direction": paired(lambda r, p: (r, p + r)),
    "neighbouring runs": paired(lambda r, p: (r, r + 1)),
    "counted from the middle": paired(lambda r, p: (r, p - 1 - r)),
    "counted from the middle 2": lambda n, p: [
        np.arange(n).reshape(p, -1)[[r, p - 1 - r]].ravel() for r in range(p)
    ],
    "contiguous 2": lambda n, p: [
        run[:: -1 if r % 2 else 1] for r, run in enumerate(np.arange(n).reshape(p, -1))
    ],
    "early run alone": paired(lambda r, p: (r,)),
    "early run alone 2": paired(lambda r, p: (r, r)),
    "late run first": paired(lambda r, p: (2 * p - 1 - r, r)),
    "late run reversed": lambda n, p: [
        runs_of(n, p)[r] + runs_of(n, p)[2 * p - 1 - r][::-1] for r in range(p)
    ],
    "late run reversed 2": lambda n, p: [
        (runs_of(n, p)[r] + runs_of(n, p)[-1 - r])[::-1] for r in range(p)
    ],
    "runs of single tokens 2": lambda n, p: [
        [*range(r, n, 2 * p), *range(2 * p - 1 - r, n, 2 * p)] for r in range(p)
    ],
    "one too far": paired(lambda r, p: (r, -r)),
    "last run for all": paired(lambda r, p: (r, -1)),
    "runs of single tokens": lambda n, p: [
        sorted([*range(r, n, 2 * p), *range(2 * p - 1 - r, n, 2 * p)]) for r in range(p)
    ],
    "runs interleaved": lambda n, p: [
        [i for pair in zip(runs_of(n, p)[r], runs_of(n, p)[-1 - r], strict=True) for i in pair]
        for r in range(p)
    ],
    "run numbers": lambda n, p: [[r, 2 * p - 1 - r] for r in range(p)],
    "places from 1": lambda n, p: [
        [i + 1 for i in runs_of(n, p)[r] + runs_of(n, p)[-1 - r]] for r in range(p)
    ],
    "one too far 2": lambda n, p: [
        runs_of(n, p)[r] + (runs_of(n, p)[2 * p - r] if r else []) for r in range(p)
    ],
    "ranks reversed": lambda n, p: paired(lambda r, p: (r, 2 * p - 1 - r))(n, p)[::-1],
}


def part(q, k, v, scale=True):
    s = q @ k.T / (math.sqrt(q.shape[-1]) if scale else 1)
    m = s.max(axis=-1, keepdims=True)
    w = np.exp(s - m)
    return m, w.sum(-1, keepdims=True), w @ v


def merge(a, b, rescaled=True, factor=lambda own, m: np.exp(own - m), largest=np.maximum):
    m = largest(a[0], b[0])
    f, g = (factor(x[0], m) if rescaled else 1 for x in (a, b))
    return m, f * a[1] + g * b[1], f * a[2] + g * b[2]


def travelling(steps=lambda p: p, *, first=0, values_travel=True, scale=True, rescaled=True):
    """Return a ring in which the shards are passed on in lists."""

    def ring(query, key, value):
        p = len(query)
        held = [(key[(r - first) % p], value[(r - first) % p]) for r in range(p)]
        states = [None] * p
        for _ in range(steps(p)):
            for r in range(p):
                k, v = held[r]
                new = part(query[r], k, v if values_travel else value[r], scale)
                states[r] = new if states[r] is None else merge(states[r], new, rescaled)
            held = [held[r - 1] for r in range(p)]
        return states

    return ring


def merged_by(join, steps=lambda p: p):
    """Return a ring whose shards come from the other neighbour; `join` takes each new part in."""

    def ring(query, key, value):
        p = len(query)
        places = [[(r + i) % p for i in range(steps(p))] for r in range(p)]
        return [
            functools.reduce(join, [part(q, key[s], value[s]) for s in found])
            for q, found in zip(query, places, strict=True)
        ]

    return ring


def divided(ring, by=lambda z, p: z):
    return lambda *given: np.stack([u / by(z, len(given[0])) for _, z, u in ring(*given)])


def sum_of_outputs(query, key, value):
    parts = [[part(q, k, v) for k, v in zip(key, value, strict=True)] for q in query]
    return np.stack([sum(u / z for _, z, u in of_rank) for of_rank in parts])


def running(total, weighted, step=-1):
    """Return a ring that rescales what it has, in part, where a larger score comes."""

    def ring(query, key, value):
        outputs = []
        for r, q in enumerate(query):
            m, z, u = part(q, key[r], value[r])
            for i in range(1, len(query)):
                there = (r + step * i) % len(query)
                m_2, z_2, u_2 = part(q, key[there], value[there])
                top = np.maximum(m, m_2)
                z = z * (np.exp(m - top) if total else 1) + np.exp(m_2 - top) * z_2
                u = u * (np.exp(m - top) if weighted else 1) + np.exp(m_2 - top) * u_2
                m = top
            outputs.append(u / z)
        return np.stack(outputs)

    return ring


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
    "own keys alone": lambda q, k, v: ab.attention(q, k, v),
    "one step too few": divided(travelling(lambda p: max(1, p - 1))),
    "one step too many": divided(travelling(lambda p: p + 1)),
    "two steps": divided(travelling(lambda p: min(p, 2))),
    "own keys left out": divided(travelling(lambda p: max(1, p - 1), first=1)),
    "overwritten on the way": divided(overwritten),
    "not home": lambda *given: np.roll(divided(travelling())(*given), 1, axis=0),
    "values stay": divided(travelling(values_travel=False)),
    "not rescaled": divided(travelling(rescaled=False)),
    "not rescaled 2": running(total=False, weighted=False),
    "old total not rescaled": running(total=False, weighted=True),
    "old sums not rescaled": running(total=True, weighted=False),
    "sum of the outputs": sum_of_outputs,
    "mean of the outputs": lambda q, k, v: sum_of_outputs(q, k, v) / len(q),
    "not divided": divided(travelling(), lambda z, p: 1),
    "divided by the number of processes": divided(travelling(), lambda z, p: z * p),
    "no scale": divided(travelling(scale=False)),
    "scale by √d_v": lambda q, k, v: np.stack(
        [ab.attention(r, *map(np.concatenate, (k, v)), scale=v.shape[-1] ** -0.5) for r in q]
    ),
    "last keys alone": divided(merged_by(lambda before, new: new)),
    "one step too few 2": divided(merged_by(merge, lambda p: max(1, p - 1))),
    "old total not rescaled 2": running(total=False, weighted=True, step=1),
    "values stay 2": lambda q, k, v: divided(travelling())(q, k, np.roll(v, 1, axis=0)),
    "not home 2": lambda *given: divided(travelling())(*given)[::-1],
    "total not rescaled": divided(
        merged_by(lambda a, b: (merge(a, b)[0], a[1] + b[1], merge(a, b)[2]))
    ),
    "one part rescaled": divided(
        merged_by(lambda a, b: merge(a, b, factor=lambda x, m: 1 if x is b[0] else np.exp(x - m)))
    ),
    "base 2": divided(merged_by(lambda a, b: merge(a, b, factor=lambda x, m: 2 ** (x - m)))),
    "factors exchanged": divided(
        merged_by(lambda a, b: (merge(a, b)[0], *merge((b[0], *a[1:]), (a[0], *b[1:]))[1:]))
    ),
    "sign of the exponent": divided(
        merged_by(lambda a, b: merge(a, b, factor=lambda x, m: np.exp(m - x)))
    ),
    "minimum": divided(merged_by(lambda a, b: merge(a, b, largest=np.minimum))),
    "divided already": divided(
        merged_by(lambda a, b: (*merge(a, b)[:2], merge(a, b)[2] / merge(a, b)[1]))
    ),
    "outputs weighed by their maxima": weighed_by_maxima,
    "mean of the outputs 2": lambda *given: np.stack(
        [
            u / z
            for _, z, u in merged_by(
                lambda a, b: (a[0], 1 + 0 * a[1], (a[2] / a[1] + b[2] / b[1]) / 2)
            )(*given)
        ]
    ),
    "not divided 2": divided(travelling(), lambda z, p: p),
    "scale by a length": lambda q, k, v: np.stack(
        [ab.attention(r, *map(np.concatenate, (k, v)), scale=k.shape[1] ** -0.5) for r in q]
    ),
    "query and key swapped": lambda q, k, v: divided(travelling())(k, q, v),
    "key used as value": lambda q, k, v: divided(travelling())(q, k, k),
    "causal 2": lambda q, k, v: np.stack(
        [ab.attention(q[r], *(np.concatenate(x[: r + 1]) for x in (k, v))) for r in range(len(q))]
    ),
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
        divided(travelling()),
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
