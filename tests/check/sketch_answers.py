"""Answers on attention over buckets, and on what its tables cost, right and wrong."""

import heapq
import math

import numpy as np
import pytest
from attention_answers import hidden, safe_softmax
from hash_answers import parted, right_simhash

import attnbook as ab
from attnbook.arrays.array import array_namespace

# Attention over buckets.


def sketch(
    join=lambda meets: meets.any(-1),
    meets=lambda of_queries, of_keys: of_queries[:, None] == of_keys[None],
    factor=lambda query, value: query.shape[1] ** -0.5,
    weigh=lambda scores, mask: safe_softmax(hidden(scores, mask)),
    values=lambda query, key, value: value,
):
    """Return the reader who makes a mask of what meets; `weigh(scores, mask)` gives the weights."""

    def answer(query, key, value, of_queries, of_keys):
        mask = join(meets(of_queries, of_keys))
        scores = query @ key.T * factor(query, value)
        return weigh(scores, mask) @ values(query, key, value)

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


def right_probes(x, directions, n_probes):
    """Merge bit by bit, and keep the cheapest, in any library."""
    xp = array_namespace(x)
    along = x @ directions.T
    signatures = right_simhash(x, directions)[:, None]
    cost = xp.zeros(signatures.shape, dtype=along.dtype)
    for j in range(directions.shape[0]):
        cost = xp.concat([cost, cost + along[:, j : j + 1] ** 2], axis=1)
        signatures = xp.concat([signatures, signatures ^ (1 << j)], axis=1)
        kept = xp.argsort(cost, axis=1, stable=True)[:, :n_probes]
        cost, signatures = (xp.take_along_axis(a, kept, axis=1) for a in (cost, signatures))
    return signatures


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
        [right_simhash(x, a)[:, None], right_probes(x, a, n)], axis=1
    )[:, :n],
    "sum before the square": probes_in_all(lambda p, sets: (p @ sets.T) ** 2),
    "nearest plane decides": probes_in_all(lambda p, sets: (p[:, None] ** 4 * sets).sum(-1)),
    "rank for the plane": flipped_by(lambda p: 1 << np.argsort(p, axis=1)),
    "bits reversed": lambda x, a, n: (
        right_simhash(x, a)[:, None]
        ^ right_probes(x, a[::-1], n)
        ^ right_simhash(x, a[::-1])[:, None]
    ),
}


# A planner.


def weighed(
    tables=np.ceil,
    power=lambda p, k: np.mean(p**k),
    hashes=lambda d, k, count: d * k * count,
    add=lambda hashing, found, read: hashing + found + read,
):
    """Return the reader who goes through the numbers of projections in a loop."""

    def answer(n, d, p_near, p_other, delta, costs):
        counts, total = np.zeros(32), np.zeros(32)
        product, look_up, candidate = costs
        for i in range(32):
            count = tables(math.log(delta) / np.log(1 - p_near ** (i + 1)))
            read = candidate * n * power(p_other, i + 1) * count
            hashing = product * hashes(d, i + 1, count)
            counts[i], total[i] = count, add(hashing, look_up * count, read)
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
    "sketch_attention": SKETCH_ATTENTION,
    "probes": PROBES,
    "table_costs": TABLE_COSTS,
}
WRONG, DOUBLES = parted(ALL)
RIGHT = {
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
    "probes": (right_probes, probes_by_heap),
    "table_costs": RIGHT_TABLE_COSTS,
}
ONLY_TORCH = {
    "sketch_attention": torch_sketch,
}
