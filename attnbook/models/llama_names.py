"""Llama 2 and 3: a decoder alone, pre-norm by RMSNorm, rotary positions, SwiGLU, grouped heads."""

from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.normalization.rms_norm import RMSNormWeights
from attnbook.positions import Llama3Scaling, Rotary
from attnbook.transformers.feed_forward import GatedFeedForwardWeights
from attnbook.transformers.weights import TransformerWeights

NAMES = {
    "target_embedding": "embed_tokens.weight",
    "decoder.layers.*.self_attention_norm.gain": "layers.*.input_layernorm.weight",
    "decoder.layers.*.self_attention.W_Q": "layers.*.self_attn.q_proj.weight.T",
    "decoder.layers.*.self_attention.W_K": "layers.*.self_attn.k_proj.weight.T",
    "decoder.layers.*.self_attention.W_V": "layers.*.self_attn.v_proj.weight.T",
    "decoder.layers.*.self_attention.W_O": "layers.*.self_attn.o_proj.weight.T",
    "decoder.layers.*.feed_forward_norm.gain": "layers.*.post_attention_layernorm.weight",
    "decoder.layers.*.feed_forward.W_gate": "layers.*.mlp.gate_proj.weight.T",
    "decoder.layers.*.feed_forward.W_1": "layers.*.mlp.up_proj.weight.T",
    "decoder.layers.*.feed_forward.W_2": "layers.*.mlp.down_proj.weight.T",
    "decoder.final_norm.gain": "norm.weight",
}
"""Names here: there. All matrices lie as (out, in); the embedding has a row a token, as here. The
two features that a rotation turns stand half a head apart, as here by default."""

ATTENTION_BIASES = {
    "decoder.layers.*.self_attention.b_Q": "layers.*.self_attn.q_proj.bias",
    "decoder.layers.*.self_attention.b_K": "layers.*.self_attn.k_proj.bias",
    "decoder.layers.*.self_attention.b_V": "layers.*.self_attn.v_proj.bias",
    "decoder.layers.*.self_attention.b_O": "layers.*.self_attn.o_proj.bias",
}
"""With ``attention_bias``."""

FEED_FORWARD_BIASES = {
    "decoder.layers.*.feed_forward.b_gate": "layers.*.mlp.gate_proj.bias",
    "decoder.layers.*.feed_forward.b_1": "layers.*.mlp.up_proj.bias",
    "decoder.layers.*.feed_forward.b_2": "layers.*.mlp.down_proj.bias",
}
"""With ``mlp_bias``."""

HARMLESS = (r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
"""The angles of the rotation, which config says too."""

ROTATIONS = ("default", "llama3")
"""What ``rope_type`` can be."""


def llama(config: Config) -> Architecture:
    """Return the architecture, or raise where `config` asks for what this package lacks."""
    config.only(sliding_window=None)
    d_model, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    n_kv_heads = config.size("num_key_value_heads", n_heads)
    d_k = config.size("head_dim", d_model // n_heads)
    tied = config.flag("tie_word_embeddings", False)
    names = {
        **NAMES,
        **(ATTENTION_BIASES if config.flag("attention_bias", False) else {}),
        **(FEED_FORWARD_BIASES if config.flag("mlp_bias", False) else {}),
        **({} if tied else {"output": "lm_head.weight.T"}),
    }
    return Architecture(
        TransformerWeights,
        names=names,
        sizes={
            **sizes_of(d_model, config.size("intermediate_size"), n_heads, n_kv_heads, d_k),
            "V_t": config.size("vocab_size"),
        },
        plain={
            **{"n_heads": n_heads, "n_kv_heads": n_kv_heads},
            "activation": config.activation("hidden_act", "silu"),
            "epsilon": config.number("rms_norm_eps", 1e-6),
            **{"norm": "pre", "positions": "rotary", "scale_embeddings": False},
            "decoder.positions": _rotation(config),
        },
        layers={"decoder.layers": config.size("num_hidden_layers", at_least=0)},
        kinds=(RMSNormWeights, GatedFeedForwardWeights),
        prefix="model.",
        same={"lm_head.weight": "embed_tokens.weight"} if tied else {},
        harmless=HARMLESS,
    )


def _rotation(config):
    """Return the rotation that newer files describe in one entry, and older ones in two."""
    newer, older = config.part("rope_parameters"), config.part("rope_scaling")
    rope = older if older.entries else newer  # as transformers, where a file has both
    rope.only(partial_rotary_factor=1.0)
    base = newer.number("rope_theta", config.number("rope_theta", 10000.0))
    base = rope.number("rope_theta", base)
    if rope.choice("rope_type", ROTATIONS, rope.get("type", "default")) == "default":
        return Rotary(base=base)
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low=rope.number("low_freq_factor"),
        high=rope.number("high_freq_factor"),
        n_positions=rope.size("original_max_position_embeddings"),
    )
    return Rotary(base=base, scaling=scaling)
