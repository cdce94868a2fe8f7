"""Every way to attend that `benchmarks.approximate` compares, with its source and its settings."""

import math
from collections.abc import Callable, Mapping
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


class Method(NamedTuple):
    """A way to attend in two steps: what is known of the keys, then the answer to queries."""

    name: str
    source: str
    does: str
    simplified: str
    prepare: Callable[..., Any]
    attend: Callable[[np.ndarray, Any], np.ndarray]
    settings: Mapping[bool, tuple[dict[str, Any], ...]]  # that are tried, if it is causal or not
    is_random: bool = False
    builds: bool = True  # whether `prepare` does work that more queries may share

    def run(self, query, key, value, setting, is_causal, seed=0):
        """Return the output of (h, n, d) arrays."""
        return self.attend(
            query, self.prepare(key, value, **setting, is_causal=is_causal, seed=seed)
        )


def _grid(names: str, *values: tuple[Any, ...], **fixed: Any) -> tuple[dict[str, Any], ...]:
    """Return a setting for each row of values of the names."""
    return tuple(dict(zip(names.split(), row, strict=True)) | fixed for row in values)


def _both(*names_and_values: Any, **fixed: Any) -> dict[bool, tuple[dict[str, Any], ...]]:
    return dict.fromkeys((True, False), _grid(*names_and_values, **fixed))


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


def _tables(*shapes, **more):
    return {
        True: _grid("n_tables n_bits", *shapes, window=256, **more),
        False: _grid("n_tables n_bits", *shapes, **more),
    }


_WINDOWS = tuple((w,) for w in (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288))


METHODS = (
    Method(
        SDPA,
        "PyTorch",
        "Exact attention, the library's function.",
        "none",
        _keep,
        _sdpa,
        _both("", ()),
        builds=False,
    ),
    Method(
        PACKED,
        "chapter fast_attention",
        "Exact attention, the fastest of this package.",
        "none",
        _keep,
        _packed,
        _both("", ()),
        builds=False,
    ),
    Method(
        "window",
        "Beltagy et al. 2020",
        "The nearest keys alone.",
        "A query sees up to half a window more: runs of queries share their keys.",
        approximate_window.prepare,
        approximate_window.attend,
        _both("window", *_WINDOWS, n_sinks=0),
        builds=False,
    ),
    Method(
        "window + sinks",
        "Xiao et al. 2024 (StreamingLLM)",
        "The last keys and the first four.",
        "As window. Positions stay those of the text: the model's own, not those in the window.",
        approximate_window.prepare,
        approximate_window.attend,
        {True: _grid("window", *_WINDOWS, n_sinks=4)},
        builds=False,
    ),
    Method(
        "Reformer",
        "Kitaev et al. 2020",
        "Chunks of sorted buckets, each with the one before; a key found in several rounds counts "
        "once.",
        "Queries are hashed apart from keys, since these models do not share them, as the paper's "
        "do (shared where the keys are the queries); all keys of the two chunks count, of "
        "whichever bucket; a token attends to itself as to others.",
        approximate_lsh.prepare,
        approximate_lsh.attend,
        _both("chunk n_rounds", (64, 4), (256, 2), (256, 8)),
        is_random=True,
        builds=False,
    ),
    Method(
        "SMYRF",
        "Daras et al. 2020",
        "As Reformer, for models that do not share: queries and keys on one sphere, sorted along a "
        "random direction, balanced clusters.",
        "One direction a round.",
        approximate_lsh.prepare,
        approximate_lsh.attend,
        _both("chunk n_rounds", (512, 2), (512, 8), asymmetric=True),
        is_random=True,
        builds=False,
    ),
    Method(
        "HyperAttention",
        "Han et al. 2024",
        "Blocks of keys sorted by their hash, and a uniform sample of the rest; causal attention "
        "by halves.",
        "One sample for all queries of a level; no heavy keys are looked for beyond the blocks.",
        approximate_hyper.prepare,
        approximate_hyper.attend,
        _both("block n_samples", (256, 256), (1024, 256), (256, 2048), (1024, 2048)),
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
        _both(
            "n_features hyperbolic",
            (128, False),
            (512, False),
            (512, True),
            (2048, False),
            (2048, True),
        ),
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
        _both("n_bits n_tables", (9, 48), (9, 120), (7, 48), window=64, n_sinks=4),
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
        _both("n_clusters n_probes", (128, 2), (128, 8), (128, 32), (512, 16)),
    ),
    Method(
        "tables",
        does="SketchAttention: the keys of all tables' buckets, each once; where attention is "
        "causal, a window of at least 256 keys.",
        simplified="none",
        settings=_tables((8, 8), (32, 11), (75, 11)),
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
        {
            True: _grid(
                "block n_cells threshold",
                *((256, 32, t) for t in (0.015, 0.006, 0.003)),
                *((512, 32, t) for t in (0.08, 0.03, 0.015, 0.006)),
                *((1024, 32, t) for t in (1.0, 0.3, 0.08, 0.03, 0.015, 0.006)),
                *((2048, 32, t) for t in (0.08, 0.03, 0.015, 0.006)),
            ),
            False: _grid(
                "block n_cells threshold",
                *((2048, 512, t) for t in (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)),
            ),
        },
    ),
)
BY_NAME = {method.name: method for method in METHODS}
