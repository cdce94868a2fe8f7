"""Rivals of exact attention over a long cache, each of them as a function from `Past` to `Read`."""

import math

import numpy as np

from attnbook import softmax
from attnbook.hashing.k_means import nearest
from attnbook.sketch import SimHash
from benchmarks.cache_past import Past, Read, best, near

# Those that do not look for anything


def exact(past: Past) -> Read:
    """Read all of it."""
    return Read(past.visible)


def recent(past: Past, *, sinks: int, window: int) -> Read:
    """Read the first and the last tokens."""
    return Read(near(past, sinks, window))


def best_keys(past: Past, *, keys: int) -> Read:
    """Read the keys of largest weight, which only one knows who has read all: an oracle."""
    return Read(best(past.scores, keys))


# Those that throw away


def snapkv(past: Past, *, window: int, keys: int, sinks: int, pool: int) -> Read:
    """Keep what the last 32 queries of the prompt looked at (Li et al. 2024)."""
    votes = past.prompt.votes
    padded = np.pad(votes, pool // 2, constant_values=-np.inf)
    votes = np.lib.stride_tricks.sliding_window_view(padded, pool).max(axis=-1)
    votes[:sinks] = -np.inf
    kept = np.zeros(past.n, bool)
    kept[: past.first] = best(votes[None], keys)[0]
    return Read(near(past, sinks, window) | (kept & past.visible))


def h2o(past: Past, *, window: int, keys: int, sinks: int) -> Read:
    """Keep the heavy hitters, those that received most so far (Zhang et al. 2023).

    A key that leaves the window competes with those kept; who loses is gone for good.
    """
    received = np.zeros(past.n)
    received[: past.first] = past.prompt.received
    scored = near(past, sinks, window)
    old = max(past.first - window, 0)
    heavy = np.zeros(past.n, bool)
    heavy[sinks:old] = best(received[None, sinks:old], keys)[0] if old > sinks else False
    for i in range(past.m):
        heavy[max(past.place[i] - window, 0)] |= past.place[i] - window >= max(old, sinks)
        if heavy.sum() > keys:
            held = np.flatnonzero(heavy)
            heavy[held[np.argmin(received[held])]] = False
        scored[i] |= heavy & past.visible[i]
        received += softmax(np.where(scored[i], past.scores[i], -np.inf)[None])[0]
    return Read(scored)


# Those that look for keys


def quest(past: Past, *, sinks: int, window: int, page: int, pages: int) -> Read:
    """Score the pages whose box of keys may hold the largest score (Tang et al. 2024).

    Of the two bounds of a feature the sign of the query says which one is multiplied.
    """
    n_pages = past.n // page
    boxes = past.key[: n_pages * page].reshape(n_pages, page, -1)
    low, high = boxes.min(axis=1), boxes.max(axis=1)
    q = past.query
    bound = np.maximum(q, 0) @ high.T + np.minimum(q, 0) @ low.T  # (m, n_pages)
    last = (np.arange(n_pages) + 1) * page - 1
    scored = near(past, sinks, window)
    in_view = last <= past.place[:, None]
    bound = np.where(in_view, bound, -np.inf)
    chosen = best(bound, pages)
    scored[:, : n_pages * page] |= np.repeat(chosen, page, axis=1)
    scored |= np.arange(past.n) >= (past.place[:, None] + 1) // page * page  # the open page
    return Read(scored & past.visible, past.key.shape[1] * in_view.sum(axis=1))


def graph(past: Past, *, sinks: int, window: int, links: int, keys: int, effort: int) -> Read:
    """Search a graph of keys by inner product (as RetrievalAttention, Liu et al. 2024)."""
    import faiss

    d, index = past.key.shape[1], past.prompt.graph(links)
    index.hnsw.efSearch = effort
    scored, visited = near(past, sinks, window), np.zeros(past.m)
    for i in range(past.m):
        index.add(past.key[past.place[i]][None])
        faiss.cvar.hnsw_stats.reset()
        _, rows = index.search(past.query[i : i + 1], keys)
        visited[i] = faiss.cvar.hnsw_stats.ndis
        scored[i, rows[0][rows[0] >= 0]] = True
    extra = np.maximum(visited - keys, 0) * d  # of those without their values
    return Read(scored, extra)


def inverted_file(past: Past, *, sinks: int, window: int, lists: int, probes: int) -> Read:
    """Score all keys of the cells whose centres point most along the query (IVF)."""
    _, scored = cells_of(past, lists, probes)
    return Read(scored | near(past, sinks, window), lists * past.key.shape[1])


def magicpig(past: Past, *, sinks: int, window: int, tables: int, bits: int) -> Read:
    """Sample by hashes, and divide by the chance to be sampled (Chen et al. 2024).

    A key counts that shares the bucket of the query in two tables or more. Keys are centred.
    """
    return hashed(past, sinks, window, tables, bits, least=2, weigh=True)


def hashed(past, sinks, window, tables, bits, least, weigh) -> Read:
    """Score the keys that meet the query in `least` tables, and `weigh` them by their chance.

    Beside the keys count the products of the hash, and the entries of the buckets; if weighed, the
    product with the mean key, which tells the angle to a centred key from the score.
    """
    d, key = past.key.shape[1], past.key - past.prompt.middle

    def hash_and_angles():
        hash = SimHash.init(past.seed, d, tables, bits)
        return meetings(hash, past.query, key), agreement(past.query, key)

    met, agree = past.newest((past.seed, tables, bits), hash_and_angles)
    some = near(past, sinks, window)
    numbers = met.sum(axis=1, where=past.visible & ~some) + tables + tables * bits * d
    found = (met >= least) & past.visible & ~some
    if not weigh:
        return Read(some | found, numbers)
    bias = np.zeros(past.visible.shape)
    bias[found] = -np.log(chances(agree[found], tables, bits, least))
    return Read(some | found, numbers + d, bias)


def meetings(hash: SimHash, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return in how many tables each query meets each key, (m, n)."""
    short = np.int16 if hash.n_projections < 16 else np.int64  # compared faster
    own, stored = (hash.signatures(x).astype(short).T for x in (query, key))
    met = np.zeros((len(query), len(key)), np.uint16)
    for one, keys in zip(own, np.ascontiguousarray(stored), strict=True):
        met += one[:, None] == keys
    return met


def agreement(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the chance that one bit of SimHash agrees, (m, n)."""
    lengths = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)
    return 1 - np.arccos(np.clip(query @ key.T / np.maximum(lengths, 1e-30), -1, 1)) / np.pi


def chances(agree: np.ndarray, n_tables: int, bits: int, least: int) -> np.ndarray:
    """Return the chance to meet in at least so many of the tables."""
    once = agree**bits
    fewer = sum(
        math.comb(n_tables, t) * once**t * (1 - once) ** (n_tables - t) for t in range(least)
    )
    return np.maximum(1 - fewer, 1e-12)


def cells_of(past: Past, lists: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell of each key, by centres of the prompt, and the keys of the best cells."""
    middles = past.prompt.centres(lists, past.seed)
    cell = nearest(past.key, middles)
    chosen = best(past.query @ middles.T, probes)
    return cell, chosen[:, cell] & past.visible
