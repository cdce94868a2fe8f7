"""Every way to attend that `benchmarks.approximate` compares, with its source and its settings."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnbook.kernels import packed
from attnbook.sketch import SimHash, SketchAttention, sketch_attention
from benchmarks import (
    approximate_cells,
    approximate_clusters,
    approximate_features,
    approximate_hyper,
    approximate_lsh,
    approximate_sampling,
    approximate_window,
)

SDPA, PACKED = "SDPA", "packed"
EXACT = (SDPA, PACKED)
SEEDS = 3  # draws of what is random, on test data


class Method(NamedTuple):
    """A way to attend in two steps: what is known of the keys, then the answer to queries."""

    name: str
    source: str
    does: str
    simplified: str
    prepare: Callable[..., Any]
    attend: Callable[[np.ndarray, Any], np.ndarray]
    settings: tuple[dict[str, Any], ...]  # that are tried where it is causal
    is_random: bool = False
    builds: bool = True  # whether `prepare` does work that more queries may share

    def run(self, query, key, value, setting, is_causal, seed=0):
        """Return the output of (h, n, d) arrays."""
        return self.attend(
            query, self.prepare(key, value, **setting, is_causal=is_causal, seed=seed)
        )


def _grid(**choices: Any) -> tuple[dict[str, Any], ...]:
    """Return a setting for each combination of values."""
    rows = itertools.product(*(x if isinstance(x, tuple) else (x,) for x in choices.values()))
    return tuple(dict(zip(choices, row, strict=True)) for row in rows)


# Exact


def _keep(key, value, *, is_causal, seed=0):
    del seed
    return key, value, is_causal


def _packed(query, state):
    key, value, is_causal = state
    return packed.attention(
        query, key, value, None, None, 1 / math.sqrt(query.shape[-1]), is_causal
    )


def _sdpa(query, state):
    import torch

    key, value, is_causal = state
    # with a batch axis: without one the slow form is chosen
    tensors = (torch.from_numpy(np.ascontiguousarray(x))[None] for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*tensors, is_causal=is_causal)[0].numpy()


# The sketch of this package


def _prepare_tables(key, value, *, n_tables, n_bits, is_causal, seed=0, window=0, **options):
    hash = SimHash.init(seed, key.shape[-1], n_tables, n_bits).to(dtype="float32")
    options |= {"impl": "numba", "seed": seed}
    key = key - key.mean(axis=1, keepdims=True)  # which changes no weight
    if is_causal:  # one call: which keys are behind a query differs
        return hash, options | {"window": window, "is_causal": True}, key, value
    heads = []
    for k, v in zip(key, value, strict=True):
        heads.append(SketchAttention(hash, **options))
        heads[-1].update(k, v)
        heads[-1].merge()
    return heads


def _ask_tables(query, state):
    if isinstance(state, list):
        return np.stack([head.attention_output(q) for q, head in zip(query, state, strict=True)])
    hash, options, key, value = state
    return sketch_attention(query, key, value, hash=hash, **options)


_TABLES = {
    "prepare": _prepare_tables,
    "attend": _ask_tables,
    "source": "chapter sketch",
    "is_random": True,
}


_WINDOWS = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
_CHUNKS = {"chunk": (64, 128, 256, 512), "n_rounds": (1, 2, 4, 8, 16)}


METHODS = (
    Method(
        SDPA,
        "PyTorch",
        "Exact attention, the library's function.",
        "none",
        _keep,
        _sdpa,
        ({},),
        builds=False,
    ),
    Method(
        PACKED,
        "chapter fast_attention",
        "Exact attention, the fastest of this package.",
        "none",
        _keep,
        _packed,
        ({},),
        builds=False,
    ),
    Method(
        "window",
        "Beltagy et al. 2020",
        "The nearest keys alone.",
        "A query sees up to half a window more: runs of queries share their keys.",
        approximate_window.prepare,
        approximate_window.attend,
        _grid(window=_WINDOWS, n_sinks=0),
        builds=False,
    ),
    Method(
        "window + sinks",
        "Xiao et al. 2024 (StreamingLLM)",
        "The last keys and the first four.",
        "As window. Positions stay those of the text: the model's own, not those in the window.",
        approximate_window.prepare,
        approximate_window.attend,
        _grid(window=_WINDOWS, n_sinks=4),
        builds=False,
    ),
    Method(
        "Reformer",
        "Kitaev et al. 2020",
        "Chunks of sorted buckets, each with the one before; a key found in several rounds counts "
        "once.",
        "Queries are hashed apart from keys, since these models do not share them, as the paper's "
        "do; keys are centred by their mean over the text for the hash; all keys of the two chunks "
        "count, of whichever bucket; a token attends to itself as to others.",
        approximate_lsh.prepare,
        approximate_lsh.attend,
        _grid(**_CHUNKS),
        is_random=True,
        builds=False,
    ),
    Method(
        "SMYRF",
        "Daras et al. 2020",
        "As Reformer, for models that do not share: queries and keys on one sphere, sorted along a "
        "random direction, balanced clusters.",
        "One direction for each round; keys are centred by their mean over the text for the hash.",
        approximate_lsh.prepare,
        approximate_lsh.attend,
        _grid(**_CHUNKS, asymmetric=True),
        is_random=True,
        builds=False,
    ),
    Method(
        "HyperAttention",
        "Han et al. 2024",
        "Blocks of keys sorted by their hash, and a uniform sample of the rest; causal attention "
        "by halves.",
        "One sample for all queries of a level; no heavy keys are looked for beyond the blocks; "
        "keys are centred by their mean for the hash.",
        approximate_hyper.prepare,
        approximate_hyper.attend,
        _grid(block=(128, 256, 512, 1024), n_samples=(128, 256, 512, 1024, 2048)),
        is_random=True,
        builds=False,
    ),
    Method(
        "FAVOR+",
        "Choromanski et al. 2021",
        "Positive orthogonal random features.",
        "The model was not trained with them; features are not drawn anew.",
        approximate_features.prepare,
        approximate_features.attend,
        _grid(n_features=(64, 128, 256, 512, 1024, 2048), hyperbolic=(False, True)),
        is_random=True,
    ),
    Method(
        "MagicPIG",
        "Chen et al. 2025",
        "Keys that meet the query in two tables or more, weighed by one over the chance of it; the "
        "last 64 and first 4 keys always, where attention is causal.",
        "All heads and queries, prefill too, where the paper decodes and keeps two layers exact; "
        "keys are centred by their mean over the text.",
        approximate_sampling.prepare,
        approximate_sampling.attend,
        _grid(n_bits=(7, 8, 9, 10, 11), n_tables=(24, 48, 96, 144), window=64, n_sinks=4),
        is_random=True,
    ),
    Method(
        "clusters",
        "Roy et al. 2021 (Routing Transformer), inverted files",
        "k-means of the keys; a query attends within the clusters of largest centroid score.",
        "Clusters are found anew for the keys, not trained; of unequal size; where attention is "
        "causal they are made with the future, which is only hidden.",
        approximate_clusters.prepare,
        approximate_clusters.attend,
        _grid(n_clusters=(64, 128, 256, 512), n_probes=(2, 4, 8, 16, 32)),
    ),
    Method(
        "tables",
        does="SketchAttention: the keys of all tables' buckets, each once; where attention is "
        "causal, a window of at least 256 keys.",
        simplified="As in MagicPIG, keys are centred by their mean over the text.",
        settings=_grid(n_tables=(8, 32, 75), n_bits=(8, 10, 11, 12), window=256),
        **_TABLES,
    ),
    Method(
        "cells",
        "after Greengard and Rokhlin 1987 (fast multipole), Vyas et al. 2020 (clustered attention)",
        "Cells of some 16 keys. A cell that hardly matters to 32 neighbouring queries counts by "
        "its moments, the others key by key; where attention is causal, cells are of finished "
        "blocks, and the block of the query is exact.",
        "none",
        approximate_cells.prepare,
        approximate_cells.attend,
        tuple(
            {"block": block, "n_cells": 32, "threshold": t}
            for block, thresholds in (
                (256, (0.015, 0.006, 0.003)),
                (512, (0.08, 0.03, 0.015, 0.006)),
                (1024, (1.0, 0.3, 0.08, 0.03, 0.015, 0.006)),
                (2048, (0.08, 0.03, 0.015, 0.006)),
            )
            for t in thresholds
        ),
    ),
)
BY_NAME = {method.name: method for method in METHODS}
