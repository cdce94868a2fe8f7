"""Checks for your own code: they name its mistake in a sentence, or confirm that it has none.

Each check compares a function of yours with the reference of this book on awkward inputs (prime
sizes, one token, one key, scores of 1000, batches, masks), in every installed array library. If the
numbers are wrong, the check compares them with models of the classic mistakes. Whatever your
function does, the check continues: an error, an endless loop or a wrong type becomes part of the
report.

Four checks test a property instead, of any function, module or model: `no_future_leak`,
`padding_invariance`, `permutation_equivariance` and `heads_are_independent`. Moreover,
`robin_hood_table` compares a hash table with a dict and shows a short run in which they differ.

A new check consists of two files in `exercises`. ``NAME.txt`` has the steps of the right
computation, and a line for each way to get it wrong, with a sentence below. ``NAME.py`` has the
function `NAME` and the cases. `shared` holds what several checks use, and `engine` runs them.
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
    "chunkwise_attention",
    "clip_gradients",
    "collision_probability",
    "cross_entropy",
    "cross_entropy_vjp",
    "decoder_layer",
    "decoder_only_block",
    "delta_step",
    "embed",
    "embed_vjp",
    "encode_byte_pairs",
    "encoder_layer",
    "feed_forward",
    "gated_feed_forward",
    "greedy_decode",
    "grouped_attention",
    "heads_are_independent",
    "latent_attention",
    "layer_norm",
    "learn_byte_pairs",
    "linear_attention",
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
    "quantize_rows",
    "repetition_penalty",
    "ring_attention",
    "rms_norm",
    "rms_norm_vjp",
    "robin_hood_table",
    "rotary",
    "simhash",
    "single_head",
    "sink_softmax",
    "sketch_attention",
    "softmax",
    "softmax_vjp",
    "speculative_rule",
    "split_heads",
    "stable_hash",
    "table_costs",
    "teacher_forcing",
    "tiled_attention",
    "top_k_router",
    "top_p",
    "warmup_cosine",
    "yarn_frequencies",
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
