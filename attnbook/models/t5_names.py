"""T5 1.0 and 1.1: encoder and decoder, pre-norm by RMSNorm, relative positions, scores unscaled."""

from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.normalization.rms_norm import RMSNormWeights
from attnbook.positions.biases import RelativeBias
from attnbook.transformers.feed_forward import FeedForwardWeights, GatedFeedForwardWeights
from attnbook.transformers.weights import TransformerWeights

NAMES = {
    "target_embedding": "shared.weight",
    "encoder.positions.table": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    ),
    "encoder.layers.*.self_attention_norm.gain": "encoder.block.*.layer.0.layer_norm.weight",
    "encoder.layers.*.self_attention.W_Q": "encoder.block.*.layer.0.SelfAttention.q.weight.T",
    "encoder.layers.*.self_attention.W_K": "encoder.block.*.layer.0.SelfAttention.k.weight.T",
    "encoder.layers.*.self_attention.W_V": "encoder.block.*.layer.0.SelfAttention.v.weight.T",
    "encoder.layers.*.self_attention.W_O": "encoder.block.*.layer.0.SelfAttention.o.weight.T",
    "encoder.layers.*.feed_forward_norm.gain": "encoder.block.*.layer.1.layer_norm.weight",
    "encoder.layers.*.feed_forward.W_2": "encoder.block.*.layer.1.DenseReluDense.wo.weight.T",
    "encoder.final_norm.gain": "encoder.final_layer_norm.weight",
    "decoder.positions.table": (
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    ),
    "decoder.layers.*.self_attention_norm.gain": "decoder.block.*.layer.0.layer_norm.weight",
    "decoder.layers.*.self_attention.W_Q": "decoder.block.*.layer.0.SelfAttention.q.weight.T",
    "decoder.layers.*.self_attention.W_K": "decoder.block.*.layer.0.SelfAttention.k.weight.T",
    "decoder.layers.*.self_attention.W_V": "decoder.block.*.layer.0.SelfAttention.v.weight.T",
    "decoder.layers.*.self_attention.W_O": "decoder.block.*.layer.0.SelfAttention.o.weight.T",
    "decoder.layers.*.cross_attention_norm.gain": "decoder.block.*.layer.1.layer_norm.weight",
    "decoder.layers.*.cross_attention.W_Q": "decoder.block.*.layer.1.EncDecAttention.q.weight.T",
    "decoder.layers.*.cross_attention.W_K": "decoder.block.*.layer.1.EncDecAttention.k.weight.T",
    "decoder.layers.*.cross_attention.W_V": "decoder.block.*.layer.1.EncDecAttention.v.weight.T",
    "decoder.layers.*.cross_attention.W_O": "decoder.block.*.layer.1.EncDecAttention.o.weight.T",
    "decoder.layers.*.feed_forward_norm.gain": "decoder.block.*.layer.2.layer_norm.weight",
    "decoder.layers.*.feed_forward.W_2": "decoder.block.*.layer.2.DenseReluDense.wo.weight.T",
    "decoder.final_norm.gain": "decoder.final_layer_norm.weight",
}
"""Names here: there. All matrices lie as (out, in); the embedding has a row a token and the table
of relative positions a row a bucket, as here. The first layer's table holds for all layers."""

PLAIN = {
    "encoder.layers.*.feed_forward.W_1": "encoder.block.*.layer.1.DenseReluDense.wi.weight.T",
    "decoder.layers.*.feed_forward.W_1": "decoder.block.*.layer.2.DenseReluDense.wi.weight.T",
}
"""Version 1.0: one matrix, then relu."""

GATED = {
    "encoder.layers.*.feed_forward.W_gate": "encoder.block.*.layer.1.DenseReluDense.wi_0.weight.T",
    "encoder.layers.*.feed_forward.W_1": "encoder.block.*.layer.1.DenseReluDense.wi_1.weight.T",
    "decoder.layers.*.feed_forward.W_gate": "decoder.block.*.layer.2.DenseReluDense.wi_0.weight.T",
    "decoder.layers.*.feed_forward.W_1": "decoder.block.*.layer.2.DenseReluDense.wi_1.weight.T",
}
"""Version 1.1: a gate, opened by gelu."""

PROJECTIONS = {
    "gated-gelu": "gelu_tanh",
    "gated-relu": "relu",
    "gated-silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""What ``feed_forward_proj`` can be: the activation here."""

HARMLESS = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
"""A table of the first files that nothing reads."""


def t5(config: Config) -> Architecture:
    """Return the architecture, or raise where `config` asks for what this package lacks."""
    d_model, n_heads = config.size("d_model"), config.size("num_heads")
    sizes = sizes_of(d_model, config.size("d_ff"), n_heads, d_k=config.size("d_kv"))
    projection = config.choice("feed_forward_proj", PROJECTIONS, "relu")
    gated = projection.startswith("gated-")
    feed_forward = GatedFeedForwardWeights if gated else FeedForwardWeights
    names = {**NAMES, **(GATED if gated else PLAIN)}
    tied = config.flag("tie_word_embeddings", True)
    scaled = config.flag("scale_decoder_outputs", tied)  # newer files say so by this name
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if scaled:  # the features, by 1/√d_model, before they meet the embedding
        names["output"] = "shared.weight.T"
        copies.append("lm_head.weight")
    else:
        names["output"] = "lm_head.weight.T"
    n_layers = config.size("num_layers")
    return Architecture(
        TransformerWeights,
        names=names,
        sizes={
            **{**sizes, "V_t": config.size("vocab_size"), "h": n_heads},
            "n_buckets": config.size("relative_attention_num_buckets", 32),
        },
        plain={
            **{"n_heads": n_heads, "scale": 1.0, "activation": PROJECTIONS[projection]},
            "epsilon": config.number("layer_norm_epsilon", 1e-6),
            **{"norm": "pre", "positions": "none", "scale_embeddings": False},
            **{"encoder.positions.bidirectional": True, "decoder.positions.bidirectional": False},
            "max_distance": config.size("relative_attention_max_distance", 128),
        },
        layers={
            "encoder.layers": n_layers,
            "decoder.layers": config.size("num_decoder_layers", n_layers),
        },
        kinds=(RMSNormWeights, RelativeBias, feed_forward),
        factors={"output": d_model**-0.5} if scaled else {},
        optional=("output",) if tied and not scaled else (),
        same=dict.fromkeys(copies, "shared.weight"),
        harmless=HARMLESS,
    )
