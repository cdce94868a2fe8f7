"""Microseconds of one step of decoding over a long cache: exact, a window, and `HybridCache`.

Table `speed`. Keys and values are those of a layer of the long writer over windows of the plays,
one window after the other: of the test plays, and above 19 windows of the validation plays before
them. The last tokens of the last window are decoded.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.decoding import HybridCache, KVCache
from attnbook.hashing.numba_signatures import signatures
from attnbook.kernels import attention
from attnbook.sketch import SimHash
from benchmarks import harness, real_keys
from benchmarks.tables import Tables

DEVICES = ("cpu",)
MODEL, N, LAYER, M = "long_writer", 4096, 3, 64
WINDOWS, QUICK_WINDOWS = (1, 4, 16, 32), (2,)
OF_TEST = 19  # windows of the test plays
SETTINGS = ((64, 10), (256, 12))
DRAWS = 3
SINKS, WINDOW, NEIGHBOURS = 4, 50, 64
SOME = 4  # what is read is counted for every fourth token
PACE = harness.Pace(9, 0.004)
METHODS = {
    "speed": (
        "A step writes the key and value of a token into the cache and attends with its queries, "
        "float32, one thread; the hashing of the queries and of the key that leaves the window is "
        "part of it. `heads`: query heads, 1 of the layer, or all 6 over their 2 key heads. The "
        "64 decoded tokens come in turn; between the rounds they are cut off again. `micro`: "
        "microseconds, the median of rounds; `speed`: how many times as fast as the fastest exact "
        "one of that length. `error`: norm of the difference of the outputs of 64 tokens from "
        "those of float64, divided by the norm of these; `keys`: share of the keys whose scores "
        "are made; `entries`: entries of buckets that are counted, as a share of the keys; "
        "`products`: products of the hash for a query, divided by the numbers of all keys and "
        "values. They are means over the query heads and over 3 draws of the directions, and what "
        "is read is counted for every fourth token. `build`: seconds to put the prompt into the "
        "tables. `bytes`: of keys, values and tables, with the free room. faiss finds the 64 keys "
        "of largest product for a query of one head and computes no output; its share of those "
        "that exact search finds is `recall`."
    )
}


class Steps:
    """Decodes token after token of a window with a cache, from its prompt on."""

    def __init__(self, cache: KVCache, attend: Callable[..., Any], heads: real_keys.Heads):
        self.cache, self.attend, self.heads, self.done = cache, attend, heads, 0
        self.first = heads.key.shape[1] - M
        cache.append(0, heads.key[:, : self.first], heads.value[:, : self.first])

    def reset(self) -> None:
        """Cut off what was decoded."""
        self.cache.truncate(self.first)
        self.done = 0

    def __call__(self) -> Any:
        """Decode one token, (heads, 1, d_v)."""
        query, key, value = self.heads
        i = self.first + self.done % M
        self.done += 1
        held = self.cache.append(0, key[:, i : i + 1], value[:, i : i + 1])
        return self.attend(query[:, i - self.first : i - self.first + 1], *held)

    def all(self) -> np.ndarray:
        """Decode all tokens, (heads, M, d_v)."""
        self.reset()
        return np.concatenate([np.asarray(self()) for _ in range(M)], axis=1)


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure each length; nothing here runs on another device."""
    tables.add(methods=METHODS)
    sizes = QUICK_WINDOWS if quick else WINDOWS
    name, n = ("writer", 256) if quick else (MODEL, N)
    texts = [("validation", i) for i in range(max(sizes) - OF_TEST)]
    texts += [("test", i) for i in range(min(max(sizes), OF_TEST))]
    layers = []
    for part, i in texts:
        query, key, value = real_keys.layers(n, part=part, name=name, i=i)[LAYER]
        layers.append(real_keys.Heads(query[:, -M:], key, value))
        real_keys.layers.cache_clear()
        harness.log(f"  keys of window {i} of {part}")
    tables.whole(
        "speed",
        lambda: [row for size in sizes for h in (1, 6) for row in rows(layers[-size:], h)],
    )


def rows(layers: list[real_keys.Heads], h: int) -> list[dict[str, Any]]:
    """Return a row for each implementation, for `h` query heads over the keys of some windows."""
    g = 1 if h == 1 else len(layers[0].key)
    key, value = (np.concatenate([x[i][:g] for x in layers], axis=1) for i in (1, 2))
    heads = real_keys.Heads(layers[-1].query[:h], key, value)
    exact, n, d = in_float64(heads), key.shape[1], key.shape[2]
    runs: dict[str, Any] = {}
    for name, attend in (("in_place", kernel), ("packed", kernel), ("PyTorch", in_torch)):
        runs[name] = Steps(KVCache(), functools.partial(attend, name), heads)
    about: dict[str, Any] = {name: {"error": off(x.all(), exact)} for name, x in runs.items()}
    for tables, bits in ((0, 1), *SETTINGS):
        name = f"{tables} tables of {bits} bits" if tables else "sinks and window"
        found = []
        for seed in range(DRAWS if tables else 1):
            if seed == 0:  # compiled by a few steps
                hybrid(heads, tables, bits, seed, first=n - 3 * M).all()
            start = time.perf_counter()
            run = hybrid(heads, tables, bits, seed)
            built = time.perf_counter() - start
            runs.setdefault(name, run)
            read = share(heads, tables, bits, seed)
            found.append({"error": off(run.all(), exact), **read, "build": built})
        about[name] = {x: float(np.mean([one[x] for one in found])) for x in found[0]}
        about[name] |= {"bytes": run.cache.nbytes, "products": tables * bits * d / (2 * n * d)}
    if h == 1:
        for name, index in indices(key[0, : n - M]).items():
            runs[name] = Search(index, heads.query[0])
            about[name] = {"recall": runs[name].recall(key[0, : n - M])}

    def reset():
        for run in runs.values():
            run.reset()

    timed = harness.interleave(runs, pace=PACE, between=reset)
    micro = {name: 1e6 * float(np.median(samples)) for name, (_, samples) in timed.items()}
    fastest = min(micro[name] for name in ("in_place", "packed", "PyTorch"))
    result = []
    for name in runs:
        row = {"heads": h, "n": n, "implementation": name, "micro": micro[name]}
        result.append(row | {"speed": fastest / micro[name]} | about[name])
        harness.log(f"  {result[-1]}")
    return result


# Who attends


def kernel(name: str, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return exact outputs; the queries of a key head are rows, since none is hidden from any."""
    rows = query.reshape(len(key), -1, query.shape[-1])
    found = attention(name, rows, key, value, None, None, key.shape[-1] ** -0.5, False)
    return found.reshape(len(query), 1, -1)


def in_torch(name: str, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Any:
    """Return what PyTorch's `scaled_dot_product_attention` makes of them, as `kernel` does."""
    import torch

    rows = query.reshape(1, len(key), -1, query.shape[-1])
    asked, k, v = (torch.from_numpy(x) for x in (rows, key[None], value[None]))
    found = torch.nn.functional.scaled_dot_product_attention(asked, k, v)
    return found.reshape(len(query), 1, -1)


def hybrid(heads: real_keys.Heads, tables: int, bits: int, seed: int, first: int = 0) -> Steps:
    """Return the steps with a `HybridCache` of the keys from `first` on."""
    cache = HybridCache(SINKS, WINDOW, n_tables=tables, n_projections=bits, seed=seed, impl="numba")
    some = real_keys.Heads(heads.query, heads.key[:, first:], heads.value[:, first:])
    scale = heads.query.shape[-1] ** -0.5
    return Steps(cache, lambda query, *new: cache.attend(0, query, scale=scale), some)


class Search:
    """Asks an index of faiss for the keys of largest product."""

    def __init__(self, index: Any, query: np.ndarray):
        self.index, self.query, self.done = index, np.ascontiguousarray(query), 0

    def reset(self) -> None:
        """Nothing has changed."""

    def __call__(self) -> Any:
        """Answer one query."""
        self.done += 1
        i = self.done % M
        return self.index.search(self.query[i : i + 1], NEIGHBOURS)

    def recall(self, key: np.ndarray) -> float:
        """Return the share of the keys of largest product that are found."""
        best = np.argsort(-(self.query @ key.T), axis=1)[:, :NEIGHBOURS]
        found = self.index.search(self.query, NEIGHBOURS)[1]
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(best, found, strict=True)]))


def indices(key: np.ndarray) -> dict[str, Any]:
    """Return indices of faiss that hold the keys."""
    import faiss

    key, (n, d), inner = np.ascontiguousarray(key), key.shape, faiss.METRIC_INNER_PRODUCT
    inverted = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, max(n // 64, 1), inner)
    inverted.train(key)
    inverted.nprobe = 8
    graph = faiss.IndexHNSWFlat(d, 16, inner)
    graph.hnsw.efSearch = 128
    found = {"faiss IVF, nprobe 8": inverted, "faiss HNSW, efSearch 128": graph}
    for index in found.values():
        index.add(key)
    faiss.omp_set_num_threads(1)
    return found


# What is right, and what is read


def in_float64(heads: real_keys.Heads) -> np.ndarray:
    """Return the outputs of the last tokens, (heads, M, d_v)."""
    query, key, value = (x.astype(np.float64) for x in heads)
    n, each = key.shape[1], len(query) // len(key)
    hidden = np.arange(n) > np.arange(n - M, n)[:, None]
    found = []
    for h, q in enumerate(query):
        scores = np.where(hidden, -np.inf, q @ key[h // each].T / q.shape[1] ** 0.5)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        found.append(weights @ value[h // each] / weights.sum(axis=1, keepdims=True))
    return np.stack(found)


def off(outputs: np.ndarray, exact: np.ndarray) -> float:
    """Return the relative error, the mean over heads."""
    norms = [np.linalg.norm(x, axis=(1, 2)) for x in (outputs - exact, exact)]
    return float(np.mean(norms[0] / norms[1]))


def share(heads: real_keys.Heads, tables: int, bits: int, seed: int) -> dict[str, float]:
    """Return the shares of keys that are scored, and of entries counted, for some tokens."""
    query, key, _ = heads.query[:, ::SOME], *heads[1:]
    n, each = key.shape[1], len(query) // len(key)
    place, last = np.arange(n), np.arange(n - M, n, SOME)[:, None]
    old = (place >= SINKS) & (place <= last - WINDOW)
    seen = int((last + 1).sum()) * len(query)
    scored, entries = seen - int(old.sum()) * len(query), 0
    if tables:
        hash = SimHash.init(seed, key.shape[2], tables, bits).to(dtype="float32")
        for g, keys in enumerate(key):
            own = signatures(hash, keys - keys[: n - M].mean(axis=0)).T.astype(np.uint16)
            for q in query[each * g : each * (g + 1)]:
                met = np.zeros(old.shape, np.uint16)
                for code, codes in zip(signatures(hash, q).T.astype(np.uint16), own, strict=True):
                    met += code[:, None] == codes
                scored, entries = scored + (old & (met >= 2)).sum(), entries + met[old].sum()
    return {"keys": float(scored / seen), "entries": float(entries / seen)}
