"""Answers that readers might hand in to the checks of hashes and of attention over buckets.

A wrong answer stands under the name of the mistake that its check must find, or of two.
"""

import heapq
import math

import numpy as np
import pytest

import attnbook as ab
from attnbook.arrays.array import array_namespace
from attnbook.hashing import SimHash, StableHash

# SimHash.


def signs(test=lambda p: p >= 0, place=lambda j, k: 1 << j):
    """Return the reader who goes through vectors and directions in loops."""

    def answer(x, directions):
        signatures = np.zeros(len(x), dtype=np.int64)
        for i, row in enumerate(x):
            for j, direction in enumerate(directions):
                signatures[i] += int(test(float(row @ direction))) * place(j, len(directions))
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


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


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
    at_zero=1.0,
):
    """Return the probability of single numbers."""
    return lambda c, r: at_zero if c == 0 else near(c, r) - front(c, r) * bracket(c, r)


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


# Attention over buckets.


def right_weights(scores, mask):
    hidden = np.where(mask, scores, -np.inf)
    best = np.where(mask.any(1, keepdims=True), hidden.max(1, keepdims=True), 0)
    powers = np.exp(hidden - best)
    total = powers.sum(1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def sketch(
    join=lambda meets: meets.any(-1),
    meets=lambda of_queries, of_keys: of_queries[:, None] == of_keys[None],
    factor=lambda query, value: query.shape[1] ** -0.5,
    weigh=None,
    empty=None,
    values=lambda query, key, value: value,
):
    """Return the reader who makes a mask of what meets; `weigh(scores, mask)` gives the weights."""

    def answer(query, key, value, of_queries, of_keys):
        mask = join(meets(of_queries, of_keys))
        scores = query @ key.T * factor(query, value)
        found = (weigh or right_weights)(scores, mask)
        if empty is not None:
            found = np.where(mask.any(1, keepdims=True), found, empty(scores))
        return found @ values(query, key, value)

    return answer


right_sketch = sketch()


def by_dicts(query, key, value, query_signatures, key_signatures):
    """Build a dict of buckets for each table, as a sketch does."""
    tables = []
    for t in range(key_signatures.shape[1]):
        buckets = {}
        for j, signature in enumerate(key_signatures[:, t].tolist()):
            buckets.setdefault(signature, []).append(j)
        tables.append(buckets)
    out = np.zeros((len(query), value.shape[1]), dtype=value.dtype)
    for i, signatures in enumerate(query_signatures.tolist()):
        rows = set().union(*(table.get(s, ()) for table, s in zip(tables, signatures, strict=True)))
        if rows:
            rows = sorted(rows)
            scores = key[rows] @ query[i] / np.sqrt(query.shape[1])
            weights = np.exp(scores - scores.max())
            out[i] = weights @ value[rows] / weights.sum()
    return out


def torch_sketch(query, key, value, query_signatures, key_signatures):
    import torch

    mask = (query_signatures.unsqueeze(1) == key_signatures.unsqueeze(0)).any(-1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=mask[None]
    )[0]
    return torch.where(mask.any(-1, keepdim=True), out, torch.zeros_like(out))


def per_table(join, one=right_sketch):
    """Return what `join` makes of the outputs of the tables and of whether they found something."""

    def answer(query, key, value, of_queries, of_keys):
        pairs = [(of_queries[:, [t]], of_keys[:, [t]]) for t in range(of_keys.shape[1])]
        found = [(q == k.T).any(1, keepdims=True) for q, k in pairs]
        return join([one(query, key, value, *pair) for pair in pairs], np.array(found))

    return answer


def counted(query, key, value, of_queries, of_keys):
    """Put a key into the list once for each table that finds it."""
    rows = []
    for q, signatures in zip(query, of_queries, strict=True):
        found = [j for t, s in enumerate(signatures) for j in np.flatnonzero(of_keys[:, t] == s)]
        powers = np.exp(key[found] @ q / len(q) ** 0.5)
        rows.append(powers @ value[found] / powers.sum() if found else 0 * value[0])
    return np.array(rows)


def late(scores, mask):
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1.0, total)


def one_key_a_bucket(meets):
    """Let the last key that comes to a bucket stay there alone."""
    later = np.cumsum(meets[:, ::-1], axis=1)[:, ::-1]
    return (meets & (later == 1)).any(-1)


def no_rows(query, key, value, of_queries, of_keys):
    out = right_sketch(query, key, value, of_queries, of_keys)
    return out[(of_queries[:, None] == of_keys[None]).any((1, 2))]


SKETCH_ATTENTION = {
    "duplicates kept": counted,
    "one key a bucket": sketch(one_key_a_bucket),
    "signatures in fewer bits": sketch(meets=lambda q, k: q[:, None] % 64 == k % 64),
    "mean over the tables": per_table(
        lambda outputs, found: sum(outputs) / np.maximum(found.sum(0), 1)
    ),
    "one table alone": per_table(
        lambda outs, found: np.take_along_axis(np.array(outs), found.argmax(0)[None], 0)[0]
    ),
    "empty rows left out": no_rows,
    "maximum over all keys": sketch(weigh=late),
    "every table; no scale": sketch(lambda meets: meets.all(-1), factor=lambda query, value: 1.0),
    "one table alone; scale by d_k": sketch(
        lambda meets: meets[..., 0], factor=lambda query, value: 1 / query.shape[1]
    ),
    "sum over the tables; no scale": per_table(
        lambda outputs, found: sum(outputs), sketch(factor=lambda query, value: 1.0)
    ),
    "candidates inverted; key used as value": sketch(
        lambda meets: ~meets.any(-1), values=lambda query, key, value: key
    ),
}


# Multi-probe.


def probes_by(price=lambda p: p**2, own_too=True, flip=lambda s, j: s ^ (1 << j)):
    """Return the reader who merges bit by bit, and keeps the cheapest, in any library."""

    def answer(x, directions, n_probes):
        xp = array_namespace(x)
        along = x @ directions.T
        signatures = right_simhash(x, directions)[:, None]
        cost = xp.zeros(signatures.shape, dtype=along.dtype)
        for j in range(directions.shape[0]):
            cost = xp.concat([cost, cost + price(along[:, j : j + 1])], axis=1)
            signatures = xp.concat([signatures, flip(signatures, j)], axis=1)
            kept = xp.argsort(cost, axis=1, stable=True)[:, : n_probes + 1 - own_too]
            cost, signatures = (xp.take_along_axis(a, kept, axis=1) for a in (cost, signatures))
        return signatures[:, 1 - own_too :]

    return answer


def probes_by_heap(x, directions, n_probes):
    """Shift and expand (Lv et al. 2007)."""
    rows = []
    for along, own in zip(x @ directions.T, right_simhash(x, directions), strict=True):
        order = np.argsort(np.abs(along))
        price = along[order] ** 2
        row, heap = [own], [(price[0], [0])]
        while len(row) < n_probes:
            cost, members = heapq.heappop(heap)
            row.append(own ^ np.bitwise_or.reduce(1 << order[members]))
            last = members[-1]
            if last + 1 < len(price):
                heapq.heappush(
                    heap, (cost - price[last] + price[last + 1], [*members[:-1], last + 1])
                )
                heapq.heappush(heap, (cost + price[last + 1], [*members, last + 1]))
        rows.append(row)
    return np.array(rows)


def flipped_by(flips):
    """Return the reader who flips ``flips(planes)``, of the planes in the order of distance."""

    def answer(x, directions, n_probes):
        own = right_simhash(x, directions)[:, None]
        planes = np.argsort(np.abs(x @ directions.T), axis=-1)
        return np.concatenate([own, own ^ flips(planes)], axis=1)[:, :n_probes]

    return answer


def probes_in_all(total):
    """Return the reader who goes through all sets of planes; ``total(along, sets)`` orders them."""

    def answer(x, directions, n_probes):
        k, numbers = len(directions), np.arange(1 << len(directions))
        sets = numbers[:, None] >> np.arange(k) & 1
        order = np.argsort(total(x @ directions.T, sets), axis=1, kind="stable")
        return (right_simhash(x, directions)[:, None] ^ numbers[order])[:, :n_probes]

    return answer


PROBES = {
    "one after the other": flipped_by(lambda p: np.bitwise_xor.accumulate(1 << p, axis=1)),
    "own bucket twice": lambda x, a, n: np.concatenate(
        [right_simhash(x, a)[:, None], probes_by()(x, a, n)], axis=1
    )[:, :n],
    "sum before the square": probes_in_all(lambda p, sets: (p @ sets.T) ** 2),
    "nearest plane decides": probes_in_all(lambda p, sets: (p[:, None] ** 4 * sets).sum(-1)),
    "rank for the plane": flipped_by(lambda p: 1 << np.argsort(p, axis=1)),
    "bits reversed": lambda x, a, n: (
        right_simhash(x, a)[:, None]
        ^ probes_by()(x, a[::-1], n)
        ^ right_simhash(x, a[::-1])[:, None]
    ),
}


# A planner.


def weighed(
    tables=np.ceil,
    power=lambda p, k: np.mean(p**k),
    each_table=True,
    d_counts=True,
    has=lambda p, k: p**k,
    hashes=lambda d, k, count: d * k * count,
    add=lambda hashing, found, read: hashing + found + read,
    looks=lambda count, k: count,
    first=1,
):
    """Return the reader who goes through the numbers of projections in a loop."""

    def answer(n, d, p_near, p_other, delta, costs):
        counts, total = np.zeros(32), np.zeros(32)
        product, look_up, candidate = costs
        for i, k in enumerate(range(first, first + 32)):
            count = tables(math.log(delta) / np.log(1 - has(p_near, k)))
            hashing = product * hashes(d if d_counts else 1, k, count)
            read = candidate * n * power(p_other, k) * (count if each_table else 1)
            counts[i], total[i] = count, add(hashing, look_up * looks(count, k), read)
        return counts, total

    return answer


TABLE_COSTS = {
    "promise for all keys": lambda n, d, near, other, delta, costs: weighed()(
        n, d, near, other, delta / n, costs
    ),
    "n and d exchanged": lambda n, d, *more: weighed()(d, n, *more),
    "not rounded": lambda *given: (weighed()(*given)[0], weighed(lambda x: x)(*given)[1]),
    "keys hashed too": lambda n, *more: weighed(hashes=lambda d, k, count: n * d * k * count)(
        n, *more
    ),
    "not their total": weighed(add=max),
    "mean before the power": weighed(power=lambda p, k: np.mean(p) ** k),
}


def costs_in_any_library(n, d, p_near, p_other, delta, costs):
    xp = array_namespace(p_other)
    k = xp.arange(1, 33, dtype=xp.float64)
    tables = xp.ceil(math.log(delta) / xp.log1p(-(p_near**k)))
    met = n * tables * xp.mean(p_other[:, None] ** k, axis=0)
    return tables, costs[0] * d * k * tables + costs[1] * tables + costs[2] * met


def costs_of_torch(*given):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    counts, total = weighed()(*given)
    return torch.tensor(counts).long(), torch.tensor(total)


RIGHT_TABLE_COSTS = (
    costs_in_any_library,
    weighed(),
    weighed(math.ceil, lambda p, k: sum(x**k for x in p) / len(p)),
    lambda *given: tuple(
        list(map(int if i == 0 else float, x)) for i, x in enumerate(weighed()(*given))
    ),
    costs_of_torch,
)

ALL = {
    "simhash": SIMHASH,
    "stable_hash": STABLE_HASH,
    "collision_probability": COLLISION_PROBABILITY,
    "sketch_attention": SKETCH_ATTENTION,
    "probes": PROBES,
    "table_costs": TABLE_COSTS,
}
WRONG, DOUBLES = (
    {
        name: {wrong: f for wrong, f in table.items() if ("; " in wrong) is several}
        for name, table in ALL.items()
    }
    for several in (False, True)
)
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
    "sketch_attention": (
        lambda q, k, v, s, t: ab.attention(q, k, v, (s[:, None] == t[None]).any(-1)),
        right_sketch,
        by_dicts,
        sketch(
            weigh=lambda scores, mask: (
                ab.softmax(np.where(mask, scores, -1e300)) * mask.any(-1, keepdims=True)
            )
        ),
    ),
    "probes": (probes_by(), probes_by_heap),
    "table_costs": RIGHT_TABLE_COSTS,
}
ONLY_TORCH = {
    "simhash": torch_simhash,
    "stable_hash": torch_codes,
    "collision_probability": torch_probability,
    "sketch_attention": torch_sketch,
}
