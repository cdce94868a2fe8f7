"""A right call of every public function: the ground of the tests of shapes and of odd arguments."""

import numpy as np

import attnbook
from attnbook import (
    data,
    decoding,
    linear_attention,
    masking,
    models,
    positions,
    sketch,
    sparse_attention,
    training,
)


def public_calls():
    """Return for each name a function and the arguments of a call that is right."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=size) for size in ((3, 5), (7, 5), (7, 2)))
    x, mask = rng.normal(size=(2, 3, 4)), np.ones((3, 7), bool)
    options = {"mask": mask, "scale": 0.5, "is_causal": False}
    rotary = rng.normal(size=(3, 4))
    ids, lengths = np.array([[1, 2, 0], [2, 1, 1]]), [2, 3]
    single = attnbook.SingleHeadWeights.init(0, 5, d_k=3, d_v=2)
    many = attnbook.MultiHeadWeights.init(0, 4, 2)
    latent = attnbook.LatentWeights.init(0, 4, 2, rank=3, q_rank=5)
    experts = {"n_experts": 5, "top_k": 2}
    mixture = attnbook.MixtureWeights.init(0, 4, 3, **experts, shared=2, bias=True)
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 3}
    encoder = attnbook.EncoderWeights.init(0, 2, **sizes)
    decoder = attnbook.DecoderWeights.init(0, 2, **sizes)
    model = attnbook.TransformerWeights.init(0, 5, **sizes, n_layers=1)
    language = attnbook.TransformerWeights.init(0, 5, **sizes, n_layers=1, n_encoder_layers=0)
    block = attnbook.TransformerBlockWeights.init(0, 4, 4, 2, 4)
    tables = [rng.normal(size=(n, 4)) for n in (5, 3, 2)]
    bert = models.BertWeights(*tables, attnbook.LayerNormWeights.init(4), encoder)
    tokens = {"query": q, "key": q, "value": v[:3], "log_decay": -np.ones(3)}
    key, value = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    hash_ = sketch.SimHash.init(0, 4, n_tables=2, n_projections=3)
    everything = {
        attnbook.softmax: {"x": q, "axis": -1},
        attnbook.log_softmax: {"x": q, "axis": -1},
        attnbook.attention_weights: {"query": q, "key": k, **options},
        attnbook.attention: {"query": q, "key": k, "value": v, **options, "impl": "naive"},
        attnbook.attention_vjp: {
            **{"query": q, "key": k, "value": v, "grad_output": np.ones((3, 2))},
            **options,
        },
        attnbook.single_head_attention: {"query": q, "key": k, "value": k, "weights": single},
        attnbook.split_heads: {"x": x, "n_heads": 2},
        attnbook.merge_heads: {"x": np.ones((2, 3, 4))},
        attnbook.multi_head_attention: {
            **{"query": x, "key": x, "value": x, "weights": many, "mask": np.eye(3, dtype=bool)},
            **{"is_causal": True, "impl": "naive"},
        },
        attnbook.latent_attention: {
            **{"x": x, "weights": latent, "mask": np.eye(3, dtype=bool), "is_causal": True},
            **{"rotary": positions.Rotary(interleaved=True), "form": "absorbed", "impl": "naive"},
        },
        attnbook.layer_norm: {"x": x, "gain": np.ones(4), "bias": np.ones(4), "epsilon": 1e-5},
        attnbook.rms_norm: {"x": x, "gain": np.ones(4), "epsilon": 1e-5},
        attnbook.feed_forward: {"x": x, "weights": encoder.layers[0].feed_forward},
        attnbook.mixture_of_experts: {"x": x, "weights": mixture},
        attnbook.route: {"x": x, "weights": mixture.router},
        attnbook.load_balancing_loss: {"x": x, "weights": mixture.router},
        attnbook.expert_load: {"experts": ids, "n_experts": 3},
        attnbook.dropout: {"x": x, "rate": 0.5, "rng": 0},
        attnbook.embed: {"ids": ids, "table": np.ones((5, 4)), "scale": True},
        attnbook.encoder_layer: {"x": x, "weights": encoder.layers[0], "rotate": False},
        attnbook.encoder: {"x": x, "weights": encoder, "rotate": True},
        attnbook.decoder_layer: {"x": x, "memory": x, "weights": decoder.layers[0]},
        attnbook.decoder: {"x": x, "memory": x, "weights": decoder, "rotate": False},
        attnbook.transformer: {"source": ids, "target": ids, "weights": model, "is_causal": True},
        attnbook.rotary_layout: {
            "weights": attnbook.EncoderWeights.init(0, 1, **sizes, positions=positions.Rotary()),
            "interleaved": True,
        },
        attnbook.transformer_block: {"x": x, "weights": block},
        attnbook.cross_entropy: {
            "logits": np.ones((2, 3, 5)),
            "targets": ids,
            "label_smoothing": 0.1,
        },
        training.gradients: {
            **{"weights": language, "inputs": ids, "targets": ids, "mask": ids > 0},
            **{"label_smoothing": 0.1, "target_mask": np.eye(3, dtype=bool), "is_causal": True},
        },
        training.clip_gradients: {"gradients": many, "longest": 0.5},
        training.AdamW: {
            **{"weights": many, "betas": (0.9, 0.99), "epsilon": 1e-8, "weight_decay": 0.1},
        },
        training.AdamW(many).step: {"weights": many, "gradients": many, "lr": 0.1},
        training.SGD: {"weight_decay": 0.1},
        training.SGD().step: {"weights": many, "gradients": many, "lr": 0.1},
        attnbook.move: {"x": x, "library_name": "torch", "dtype": "float32"},
        attnbook.SingleHeadWeights.init: {"rng": 0, "d_query": 5, "d_k": 3, "d_v": 2, "d_out": 4},
        attnbook.MultiHeadWeights.init: {"rng": 0, "d_model": 4, "n_heads": 2, "bias": True},
        attnbook.FeedForwardWeights.init: {"rng": 0, "d_model": 4, "d_ff": 3, "activation": "gelu"},
        attnbook.GatedFeedForwardWeights.init: {
            **{"rng": 0, "d_model": 4, "d_ff": 3},
            **{"activation": "gelu", "bias": True},
        },
        attnbook.LatentWeights.init: {
            **{"rng": 0, "d_model": 4, "n_heads": 2, "rank": 3, "q_rank": 5},
            **{"d_nope": 2, "d_rope": 2, "d_v": 3},
        },
        attnbook.RouterWeights.init: {"rng": 0, "d_model": 4, **experts},
        attnbook.MixtureWeights.init: {
            **{"rng": 0, "d_model": 4, "d_ff": 3, **experts, "shared": 2},
            **{"activation": "clamped_swiglu", "bias": True},
        },
        attnbook.EncoderLayerWeights.init: {"rng": 0, **sizes, "norm": "pre"},
        attnbook.DecoderLayerWeights.init: {"rng": 0, **sizes, "cross": True},
        attnbook.EncoderWeights.init: {"rng": 0, "n_layers": 2, **sizes, "final_norm": True},
        attnbook.TransformerWeights.init: {
            **{"rng": 0, "target_vocabulary": 5, **sizes, "n_layers": 1, "tied": True},
            **{"positions": "learned", "n_positions": 9, "bias": False, "scale_embeddings": True},
        },
        many.with_arrays: {"arrays": many.arrays()},
        many.to: {"library": "torch", "dtype": "float32"},
        masking.causal: {"n_q": 3, "n_k": 5, "like": q},
        masking.sliding_window: {"n_q": 3, "n_k": 5, "left": 1, "right": 1},
        masking.prefix: {"n_q": 3, "n_k": 5, "length": 2},
        masking.strided: {"n_q": 3, "n_k": 5, "stride": 2},
        masking.block_diagonal: {"lengths": lengths, "key_lengths": lengths},
        masking.padding: {"lengths": lengths, "n": 5},
        masking.from_valid_lengths: {"valid_lens": lengths, "n_k": 5},
        masking.to_additive: {"mask": mask, "dtype": "float32"},
        masking.from_additive: {"mask": np.zeros((3, 7))},
        masking.to_mha: {"mask": mask, "scores_shape": (2, 2, 3, 7)},
        masking.to_sdpa: {"mask": mask},
        positions.sinusoidal: {"n": 3, "d_model": 4, "start": 1, "interleaved": True},
        positions.rotary: {"x": rotary, "start": 2, "interleaved": False, "base": 100.0},
        positions.to_interleaved: {"x": rotary, "n_heads": 2, "width": 2},
        positions.to_halves: {"x": rotary, "n_heads": 2, "width": 2},
        positions.alibi: {"n_heads": 2, "n_q": 3, "n_k": 5, "like": q},
        positions.relative_buckets: {
            **{"n_q": 3, "n_k": 5, "n_buckets": 8},
            **{"bidirectional": False, "max_distance": 16},
        },
        positions.learned: {"table": np.ones((9, 4)), "n": 3, "start": 1},
        positions.LinearScaling: {"factor": 4.0},
        positions.DynamicScaling: {"factor": 4.0, "n_positions": 64},
        positions.Llama3Scaling: {"factor": 4.0, "low": 1.0, "high": 4.0, "n_positions": 64},
        positions.YarnScaling: {
            **{"factor": 4.0, "n_positions": 64, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"attention_factor": 1.2, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": False},
        },
        positions.LongRopeScaling: {
            **{"short": (1.0, 2.0), "long": (1.0, 8.0), "n_positions": 64},
            **{"factor": 4.0, "attention_factor": 1.2},
        },
        positions.Rotary: {
            **{"base": 500.0, "interleaved": True, "width": 4},
            "scaling": positions.LinearScaling(4.0),
        },
        decoding.quantize: {"x": x, "bits": 4, "axis": -1, "group": 2},
        decoding.dequantize: {"q": decoding.quantize(x, 4)},
        decoding.QuantizedCache: {"bits": 4, "block": 3},
        decoding.HybridCache: {
            **{"sinks": 2, "window": 5, "n_tables": 8, "n_projections": 3, "seed": 0},
            **{"impl": "reference"},
        },
        decoding.WindowCache: {"weights": language},
        decoding.PagedCache: {"size": 4, "max_pages": 7},
        decoding.paged_attention: {
            **{"query": rng.normal(size=(2, 6, 1, 5)), "key_pages": rng.normal(size=(4, 3, 7, 5))},
            **{"value_pages": rng.normal(size=(4, 3, 7, 2)), "scale": 0.5, "impl": "reference"},
            **{"block_table": np.array([[3, 1], [3, -1]]), "lengths": np.array([11, 5])},
        },
        decoding.greedy_decode: {
            **{"weights": model, "source": ids, "prompt": 1, "max_length": 2, "stop": 3},
            **{"pad": 0, "cache": True},
        },
        decoding.beam_search: {
            **{"weights": model, "source": ids, "prompt": 1, "max_length": 2, "stop": 3},
            **{"n_beams": 2, "length_penalty": 0.6},
        },
        models.from_transformers: {
            "state_dict": {
                **{"wte.weight": np.ones((5, 4)), "wpe.weight": np.ones((7, 4))},
                **{"ln_f.weight": np.ones(4), "ln_f.bias": np.ones(4)},
            },
            "config": {
                **{"model_type": "gpt2", "vocab_size": 5, "n_positions": 7, "n_embd": 4},
                **{"n_head": 2, "n_layer": 0},
            },
        },
        models.mean_vectors: {"x": x, "lengths": [3, 1]},
        models.bert: {
            **{"ids": ids, "weights": bert, "mask": np.eye(3, dtype=bool)},
            **{"token_types": ids % 2, "impl": "naive"},
        },
        data.pad: {"sequences": [[1, 2], [3]], "pad": 0},
        decoding.sample: {
            **{"weights": model, "source": ids, "prompt": 1, "max_length": 2, "rng": 0},
            **{"temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1},
            **{"repetition_penalty": 1.2, "processors": [decoding.temperature(0.5)]},
        },
        decoding.constrain: {
            **{"automaton": decoding.Automaton.of_strings(["ab", "b"])},
            **{"tokens": ["", "a", "b"], "stop": 0},
        },
        decoding.Automaton: {"transitions": [{"a": 1}, {"b": 0}], "accepting": [0]},
        decoding.Automaton.of_strings: {"strings": ["ab", "b"]},
        decoding.Automaton.of_pattern: {"pattern": "a+|b"},
        decoding.temperature: {"temperature": 0.5},
        decoding.top_k: {"k": 3},
        decoding.top_p: {"p": 0.5},
        decoding.min_p: {"p": 0.5},
        decoding.repetition_penalty: {"penalty": 1.5},
        decoding.speculative_sample: {
            **{"weights": model, "draft": model, "source": ids, "prompt": 1, "max_length": 3},
            **{"rng": 0, "lookahead": 2, "temperature": 0.5},
        },
        data.markov: {"rng": 0, "n_symbols": 3, "order": 1, "concentration": 1.0},
        data.reversal: {"rng": 0, "n_pairs": 3, "length": (3, 5), "n_symbols": 4},
        data.dates: {"rng": 0, "n_train": 3, "n_test": 2, "languages": ("de", "fr")},
        data.windows: {"ids": np.arange(9), "length": 3, "stride": 2},
        data.Vocabulary.of: {"texts": ["a", "b"]},
        data.BytePairs: {"merges": [(97, 98), (256, 99)], "specials": ["<stop>"]},
        data.BytePairs.learn: {"texts": ["ab ab"], "size": 270, "specials": ["<stop>"]},
        data.HubTokenizer.from_byte_pairs: {"pairs": data.BytePairs([(97, 98)])},
        data.WordPieces: {"tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]},
        data.PackedBatches: {
            **{"targets": [[3, 4, 5], [6, 7]], "batch_size": 1, "length": 8, "seed": 0},
            **{"start": 1, "stop": 2, "pad": 0},
        },
        data.Batches: {
            **{"sources": [[1, 2], [3]], "targets": [[1], [3]], "batch_size": 1, "seed": 0},
            **{"start": 4, "stop": 2, "pad": 0, "pool": 2},
        },
        linear_attention.decayed_attention: {**tokens, "impl": "chunkwise"},
        linear_attention.decayed_attention_vjp: {**tokens, "grad_output": np.ones((3, 2))},
        linear_attention.delta_rule: {**tokens, "beta": np.ones(3)},
        linear_attention.delta_rule_vjp: {
            **{**tokens, "beta": np.ones(3), "grad_output": np.ones((3, 2))},
        },
        linear_attention.kernel_attention: {"query": q, "key": q, "value": v[:3]},
        linear_attention.elu_plus_one: {"x": q},
        linear_attention.short_convolution: {"x": q, "filters": np.ones((2, 5))},
        linear_attention.linear_attention_layer: {
            **{"x": x, "weights": linear_attention.LinearAttentionWeights.init(0, 4, 2)},
            "impl": "reference",
        },
        linear_attention.mamba2_layer: {
            **{"x": x, "weights": linear_attention.Mamba2Weights.init(0, 4, 2, 3)},
            "impl": "chunkwise",
        },
        sparse_attention.indexer_scores: {
            **{"query": np.ones((2, 3, 5)), "key": k, "weight": np.ones((2, 3))},
        },
        sparse_attention.indexer_loss: {
            **{"scores": np.ones((3, 7)), "weights": np.full((3, 7), 1 / 7), "mask": mask},
        },
        sparse_attention.top_keys: {
            **{"scores": np.ones((3, 7)), "k": 2, "mask": mask, "is_causal": True},
        },
        sparse_attention.selected_attention: {
            **{"query": q, "key": k, "value": v, "selected": np.array([[0, 2]] * 3)},
            **{"scale": 0.5},
        },
        sparse_attention.pool_blocks: {"x": k, "block": 2, "pooling": np.array([0.25, 0.75])},
        sparse_attention.block_sparse_attention: {
            **{"query": np.ones((2, 3, 5)), "key": k, "value": v, "gates": np.ones((2, 3, 3))},
            **{"block": 2, "n_selected": 1, "window": 3, "scale": 0.5},
        },
        sketch.plan: {
            **{"n": 100, "delta": 0.1, "d_avg": 0.5, "n_tables": 2},
            **{"n_projections": 1, "max_bytes": 1e6},
        },
        sketch.StableHash.init: {"rng": 0, "d": 4, "width": 1.0, "n_tables": 2},
        sketch.BucketIndex: {"n_tables": 2, "seed": 0},
        sketch.lift_keys: {"key": key, "longest": 9.0},
        sketch.sort_buckets: {"signatures": np.array([3, 1, 3])},
        sketch.uniform_tail: {
            **{"scores": np.ones((3, 5)), "value": np.ones((5, 2)), "n_keys": 9, "delta": 0.1},
        },
        sketch.LearnedCells.fit: {"rng": 0, "key": key, "n_cells": 2, "n_tables": 2, "n_steps": 3},
        sketch.SimHash.init: {"rng": 0, "d": 4, "n_tables": 2, "n_projections": 3},
        sketch.SketchAttention: {
            **{"hash": hash_, "estimator": "union", "seed": 0, "impl": "reference"},
        },
        sketch.sketch_attention: {
            "query": np.ones((2, 4)),
            "key": key,
            "value": value,
            "hash": hash_,
        },
        sketch.RobinHoodTable: {"n_slots": 8, "load_factor": 0.5, "seed": 0},
    }
    calls = {f.__qualname__: (f, given) for f, given in everything.items()}
    return calls
