"""What a token costs the writers of `linear_writers` when they decode: seconds and bytes."""

import statistics
import time
from typing import Any

import numpy as np

from attnbook.decoding.incremental import IncrementalDecoder
from attnbook.decoding.kv_cache import KVCache
from attnbook.linear_attention import LayerState
from benchmarks.linear_models import ARCHITECTURES, kinds_of, weights_of

FULL: dict[str, Any] = {"lengths": (256, 1024, 4096, 16384, 65536), "rounds": 15, "calls": 8}
QUICK: dict[str, Any] = {"lengths": (16, 64), "rounds": 2, "calls": 1}

METHODS = {
    "decoding_rows": (
        "One token at a time in NumPy, float32, on one thread, after `n` tokens; weights are drawn "
        "and the cache holds random numbers, since time does not depend on them. `seconds` is the "
        "median over `rounds` of `calls` steps, in which all architectures take turns, divided by "
        "`calls`; `ratio` is the median over rounds of the seconds of softmax divided by these. "
        "`cache_bytes` is what the cache needs for n tokens, free space not counted."
    ),
}


def rows(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each length and architecture."""
    found = []
    options = plan["decoding"]
    for n in options["lengths"]:
        decoders = {name: filled(plan, name, n) for name in ARCHITECTURES}
        held = {name: n_bytes(decoder.cache) for name, decoder in decoders.items()}
        token, seconds = np.array([1]), dict[str, list[float]]()
        for decoder in decoders.values():
            decoder.step(token)  # the arrays of a full cache move once
        for _ in range(options["rounds"]):
            for name, decoder in decoders.items():
                begin = time.perf_counter()
                for _ in range(options["calls"]):
                    decoder.step(token)
                each = (time.perf_counter() - begin) / options["calls"]
                seconds.setdefault(name, []).append(each)
        for name, own in seconds.items():
            ratios = [a / b for a, b in zip(seconds["softmax"], own, strict=True)]
            found.append(
                {
                    **{"architecture": name, "n": n, "seconds": statistics.median(own)},
                    **{"ratio": statistics.median(ratios), "cache_bytes": held[name]},
                }
            )
    return found


def filled(plan: dict[str, Any], name: str, n: int) -> IncrementalDecoder:
    """Return a decoder whose cache holds `n` tokens of random numbers."""
    kinds = kinds_of(name, plan["n_layers"])
    weights = weights_of(kinds, 0, plan["vocabulary"], **plan["sizes"]).to(dtype="float32")
    decoder = IncrementalDecoder(weights, None, None, KVCache(), "reference")
    assert decoder.cache is not None
    rng = np.random.default_rng(0)
    for i, layer in enumerate(weights.decoder.layers):
        own = layer.self_attention
        if kinds[i] == "softmax":
            shape = (1, own.n_kv_heads, n, own.d_k)
            decoder.cache.append(i, *(rng.standard_normal(shape, np.float32) for _ in range(2)))
        else:
            width, channels = own.filters.shape
            shapes = ((1, own.n_heads, own.d_k, own.d_v), (1, width - 1, channels))
            state = LayerState(*(rng.standard_normal(shape, np.float32) for shape in shapes))
            decoder.cache.keep_state(i, state, n)
    decoder.n = n
    return decoder


def n_bytes(cache: Any) -> int:
    """Return how many bytes the tokens in a cache need."""
    total = 0
    for i in range(cache.n_layers):
        arrays = cache.state(i) or (cache.keys(i), cache.values(i))
        total += sum(x.nbytes for x in arrays)
    return total
