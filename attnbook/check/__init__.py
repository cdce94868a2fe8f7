"""Checks for your own code: which mistake it makes, in a sentence, or that it makes none.

Each check runs a function of yours against the reference of this book on awkward sizes (primes, one
token, one key, scores of 1000, batches, masks), in every array library that is present, and
compares wrong numbers with models of the classic mistakes. Nothing that your function does ends
the check: an error, an endless loop or a wrong type becomes part of the report.

Four look at a property instead, on any function, module or model: `no_future_leak`,
`padding_invariance`, `permutation_equivariance` and `heads_are_independent`. And
`robin_hood_table` runs a hash table beside a dict and shows a short run in which they differ.

A new check is one file here: its function, the steps of the right computation, the ways to get each
wrong with a sentence, and cases.
"""

from attnbook.check.acceptance import speculative_rule
from attnbook.check.beams import beam_step
from attnbook.check.cache_step import cached_attention
from attnbook.check.causal_tiles import tiled_attention
from attnbook.check.collisions import collision_probability
from attnbook.check.cutting import min_p, top_p
from attnbook.check.decoder_block import decoder_layer
from attnbook.check.decoder_only import decoder_only_block
from attnbook.check.embedding import embed
from attnbook.check.encoder_block import encoder_layer
from attnbook.check.future import no_future_leak
from attnbook.check.gate import gated_feed_forward
from attnbook.check.gradient_lengths import clip_gradients
from attnbook.check.gradient_sums import accumulate_gradients
from attnbook.check.gradients import attention_vjp
from attnbook.check.greedy import greedy_decode
from attnbook.check.hash_tables import robin_hood_table
from attnbook.check.head_blocks import heads_are_independent
from attnbook.check.hidden_layer import feed_forward
from attnbook.check.intervals import stable_hash
from attnbook.check.likelihood import cross_entropy
from attnbook.check.linear_gradients import linear_vjp
from attnbook.check.loss_gradients import cross_entropy_vjp
from attnbook.check.masked import masked_attention
from attnbook.check.masks import causal_mask
from attnbook.check.merging import merge_attention
from attnbook.check.multi_head import multi_head_attention
from attnbook.check.near_buckets import probes
from attnbook.check.norm_gradients import rms_norm_vjp
from attnbook.check.normalization import softmax
from attnbook.check.optimizer_steps import adamw_step
from attnbook.check.order import permutation_equivariance
from attnbook.check.outputs import attention
from attnbook.check.padding import padding_invariance
from attnbook.check.pair_encoding import encode_byte_pairs
from attnbook.check.pair_learning import learn_byte_pairs
from attnbook.check.pair_merging import merge_pair
from attnbook.check.penalty import repetition_penalty
from attnbook.check.planning import table_costs
from attnbook.check.projections import single_head
from attnbook.check.report import CheckFailed, Report
from attnbook.check.ring import ring_attention
from attnbook.check.root_mean_square import rms_norm
from attnbook.check.rotation import rotary
from attnbook.check.shared_keys import grouped_attention
from attnbook.check.shift import teacher_forcing
from attnbook.check.sign_bits import simhash
from attnbook.check.sinusoids import positional_encoding
from attnbook.check.sketching import sketch_attention
from attnbook.check.softmax_gradients import softmax_vjp
from attnbook.check.splitting import split_heads
from attnbook.check.standardization import layer_norm
from attnbook.check.table_gradients import embed_vjp
from attnbook.check.warm_ups import warmup_cosine
from attnbook.check.weights import attention_weights
from attnbook.check.zigzag import zigzag_shards

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
