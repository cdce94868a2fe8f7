"""Checks for your own code: which mistake it makes, in a sentence, or that it makes none.

Each check runs a function of yours against the reference of this book on awkward sizes (primes, one
token, one key, scores of 1000, batches, masks), in every array library that is present, and
compares wrong numbers with models of the classic mistakes. Nothing that your function does ends
the check: an error, an endless loop or a wrong type becomes part of the report.

Four look at a property instead, on any function, module or model: `no_future_leak`,
`padding_invariance`, `permutation_equivariance` and `heads_are_independent`. And
`robin_hood_table` runs a hash table beside a dict and shows a short run in which they differ.

A new check is two files in `exercises`: in ``NAME.txt`` the steps of the right computation and a
line for each way to get it wrong, with a sentence below; in ``NAME.py`` the function `NAME` and the
cases. What several checks share is in `shared`, and what runs them in `engine`.
"""

import importlib
from pathlib import Path
from typing import Any

from attnbook.check.engine.report import CheckFailed, Report

__all__ = [
    "CheckFailed",
    "Report",
    "accumulate_gradients",
    "adamw_step",
    "attention",
    "attention_vjp",
    "attention_weights",
    "beam_step",
    "cached_attention",
    "causal_mask",
    "clip_gradients",
    "collision_probability",
    "cross_entropy",
    "cross_entropy_vjp",
    "decoder_layer",
    "decoder_only_block",
    "embed",
    "embed_vjp",
    "encode_byte_pairs",
    "encoder_layer",
    "feed_forward",
    "gated_feed_forward",
    "greedy_decode",
    "grouped_attention",
    "heads_are_independent",
    "layer_norm",
    "learn_byte_pairs",
    "linear_vjp",
    "masked_attention",
    "merge_attention",
    "merge_pair",
    "min_p",
    "multi_head_attention",
    "no_future_leak",
    "padding_invariance",
    "permutation_equivariance",
    "positional_encoding",
    "probes",
    "repetition_penalty",
    "ring_attention",
    "rms_norm",
    "rms_norm_vjp",
    "robin_hood_table",
    "rotary",
    "simhash",
    "single_head",
    "sketch_attention",
    "softmax",
    "softmax_vjp",
    "speculative_rule",
    "split_heads",
    "stable_hash",
    "table_costs",
    "teacher_forcing",
    "tiled_attention",
    "top_p",
    "warmup_cosine",
    "zigzag_shards",
]


def __getattr__(name: str) -> Any:
    """Load a check when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_property = (Path(__file__).parent / "properties" / f"{name}.py").exists()
    folder = "properties" if is_property else "exercises"
    check = getattr(importlib.import_module(f"{__name__}.{folder}.{name}"), name)
    globals()[name] = check
    return check


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
