"""Answers to the exercises on many machines, right and wrong, as readers write them."""

import math

import numpy as np

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
    "neighbouring runs": paired(lambda r, p: (2 * r, 2 * r + 1)[::-1]),
    "striped": lambda n, p: [list(range(r, n, p)) for r in range(p)],
    "same direction": paired(lambda r, p: (r, p + r)),
    "early run alone": paired(lambda r, p: (r,)),
    "late run first": paired(lambda r, p: (2 * p - 1 - r, r)),
    "late run reversed": lambda n, p: [
        runs_of(n, p)[r] + runs_of(n, p)[2 * p - 1 - r][::-1] for r in range(p)
    ],
    "one too far": paired(lambda r, p: (r, -r)),
    "ranks reversed": lambda n, p: paired(lambda r, p: (r, 2 * p - 1 - r))(n, p)[::-1],
}


def part(q, k, v, scale=True):
    s = q @ k.T / (math.sqrt(q.shape[-1]) if scale else 1)
    m = s.max(axis=-1, keepdims=True)
    w = np.exp(s - m)
    return m, w.sum(-1, keepdims=True), w @ v


def merge(a, b, rescaled=True):
    m = np.maximum(a[0], b[0])
    f, g = (np.exp(x[0] - m) if rescaled else 1 for x in (a, b))
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


def divided(ring, by=lambda z, p: z):
    return lambda *given: np.stack([u / by(z, len(given[0])) for _, z, u in ring(*given)])


def mean_of_outputs(query, key, value):
    p = len(query)
    parts = [[part(q, k, v) for k, v in zip(key, value, strict=True)] for q in query]
    return np.stack([sum(u / z for _, z, u in of_rank) / p for of_rank in parts])


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
    "own keys left out": divided(travelling(lambda p: max(1, p - 1), first=1)),
    "overwritten on the way": divided(overwritten),
    "not home": lambda *given: np.roll(divided(travelling())(*given), 1, axis=0),
    "values stay": divided(travelling(values_travel=False)),
    "not rescaled": divided(travelling(rescaled=False)),
    "mean of the outputs": mean_of_outputs,
    "not divided": divided(travelling(), lambda z, p: 1),
    "divided by the number of processes": divided(travelling(), lambda z, p: z * p),
    "no scale": divided(travelling(scale=False)),
}
WRONG = {"zigzag_shards": ZIGZAG_WRONG, "ring_attention": RING_WRONG}


def whole(query, key, value):
    key, value = (x.reshape(-1, x.shape[-1]) for x in (key, value))
    return [ab.attention(q, key, value) for q in query]


RIGHT = {
    "zigzag_shards": [
        paired(lambda r, p: (r, -1 - r)),
        lambda n, p: shard_sequence(np.arange(n), p, axis=0),
        lambda n, p: np.stack(shard_sequence(np.arange(n), p, axis=0)),
    ],
    "ring_attention": [divided(travelling()), whole, lambda *given: tuple(whole(*given))],
}
