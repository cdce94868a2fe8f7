"""Answers to the exercises on kernels, right and wrong: their loops over tiles, in NumPy."""

import math

import numpy as np

import attnbook as ab

T = 16


def kernel(bug="", *, skip=True, head=lambda h, heads, own: h // (heads // own), factor=None):
    """Return a kernel of tiles of T queries and T keys, with one line that may be broken."""

    def attend(query, key, value):
        output = np.zeros((len(query), query.shape[1], value.shape[-1]), query.dtype)
        for h in range(len(query)):
            own = head(h, len(query), len(key))
            output[h] = walk(query[h], key[own], value[own], bug, skip, factor)
        return output

    return attend


def walk(query, key, value, bug, skip, factor):
    n, d = query.shape
    half = query.dtype == np.float16
    wide = np.float32 if half else query.dtype
    kept = query.dtype if bug == "sums in half precision" else wide
    q, k, v = (x.astype(wide) for x in (query, key, value))
    scale = wide.type(factor(d) if factor else 1 / math.sqrt(d)) if not half else 1.0
    output = np.zeros((n, v.shape[-1]), wide)
    for top in range(0, n // T * T if bug == "last rows not computed" else n, T):
        i = np.arange(top, min(top + T, n))[:, np.newaxis]
        m, z, u = np.full(i.shape, -np.inf, wide), np.zeros(i.shape, kept), np.zeros((len(i), 1))
        for left in range(0, top + 1 if skip else n, T):
            j = np.arange(left, min(left + T, n))
            seen = j <= i + (bug == "diagonal one too far")
            if bug == "diagonal tile not masked" and left == top:
                seen = seen | True
            s = np.where(seen, q[i[:, 0]] @ k[j].T * scale, -np.inf).astype(wide)
            before, m = m, np.maximum(m, s.max(axis=1, keepdims=True))
            if bug == "maximum of the tile":
                m = s.max(axis=1, keepdims=True)
            p, fade = np.exp(s - m), np.exp(before - m)
            of_z = 1 if bug == "total not rescaled" else fade
            z = (of_z * z + p.sum(axis=1, keepdims=True)).astype(kept)
            u = (fade * u + p @ v[j]).astype(kept)
        output[i[:, 0]] = u / z
    return output.astype(query.dtype)


def at_once(weigh, sign=1):
    """Return causal attention that makes its weights of all scores at once."""

    def attend(query, key, value):
        own = [h * len(key) // len(query) for h in range(len(query))]
        scores = sign * query @ key[own].mT / query.shape[-1] ** 0.5
        scores = np.where(np.tri(query.shape[1]) == 1, scores, -np.inf)
        return (weigh(scores.astype(float)) @ value[own]).astype(query.dtype)

    return attend


def repeated(query, key, value):
    """Return the package's attention with the keys and values repeated."""
    group = len(query) // len(key)
    return ab.attention(query, *(np.repeat(x, group, axis=0) for x in (key, value)), is_causal=True)


def group_of(query, key):
    return len(query) // len(key)


def in_turn(h, heads, own):
    return h % own


BUGS = ("diagonal tile not masked", "last rows not computed", "sums in half precision")
WRONG = {
    "tiled_attention": {
        **{bug: kernel(bug) for bug in (*BUGS, "maximum of the tile")},
        "hidden tiles read": lambda q, k, v: ab.attention(q, k, v, is_causal=True),
        "softmax twice": at_once(lambda s: ab.softmax(ab.softmax(s))),
        "mask after the softmax": lambda q, k, v: np.tril(ab.attention_weights(q, k)) @ v,
    },
    "grouped_attention": {
        "heads in turn": lambda q, k, v: repeated(
            q, np.repeat(k, group_of(q, k), axis=0), np.tile(v, (group_of(q, k), 1, 1))
        ),
        "ends of the groups": kernel(head=lambda h, heads, own: min(h, own - 1)),
        "key heads averaged": lambda q, k, v: repeated(
            q, k.mean(axis=0, keepdims=True), v.mean(axis=0, keepdims=True)
        ),
        "one query for a group": lambda q, k, v: repeated(
            np.repeat(q[:: group_of(q, k)], group_of(q, k), axis=0), k, v
        ),
        "groups taken apart": lambda q, k, v: (
            repeated(q, k, v).reshape(len(k), -1, *q.shape[1:]).swapaxes(0, 1).reshape(q.shape)
        ),
        "total not rescaled": kernel("total not rescaled", skip=False),
    },
}
DOUBLES = {
    "tiled_attention": {
        "no scale; diagonal one too far": kernel("diagonal one too far", factor=lambda d: 1),
        "total not rescaled; scale by d_k": kernel("total not rescaled", factor=lambda d: 1 / d),
        "no scale; hidden tiles read": kernel(skip=False, factor=lambda d: 1),
        "sign of the scores; hidden tiles read": at_once(ab.softmax, sign=-1),
    },
    "grouped_attention": {
        "heads in turn; scale by d_k": kernel(head=in_turn, factor=lambda d: 1 / d)
    },
}


def by_rows(query, key, value):
    """Attend query by query, each to its own past, and to no more."""
    output = np.zeros_like(query)
    for h, i in np.ndindex(*query.shape[:2]):
        own, end = h * len(key) // len(query), i // T * T + T
        k, v = key[own, :end].astype(float), value[own, :end].astype(float)
        s = np.where(np.arange(len(k)) <= i, k @ query[h, i].astype(float) / 4, -np.inf)
        p = np.exp(s - s.max())
        with np.errstate(invalid="ignore"):
            output[h, i] = p @ v / p.sum()
    return output


RIGHT = {
    "tiled_attention": [kernel(), by_rows],
    "grouped_attention": [repeated, kernel(), kernel(skip=False), by_rows],
}
