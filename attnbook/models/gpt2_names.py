"""GPT-2: a decoder alone, pre-norm, with learned positions and one embedding for both ends."""

from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.transformers.weights import TransformerWeights

NAMES = {
    "target_embedding": "wte.weight",
    "target_positions": "wpe.weight",
    "decoder.layers.*.self_attention_norm.gain": "h.*.ln_1.weight",
    "decoder.layers.*.self_attention_norm.bias": "h.*.ln_1.bias",
    "decoder.layers.*.self_attention.W_Q": "h.*.attn.c_attn.weight[0/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.W_K": "h.*.attn.c_attn.weight[1/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.W_V": "h.*.attn.c_attn.weight[2/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.W_O": "h.*.attn.c_proj.weight",
    "decoder.layers.*.self_attention.b_Q": "h.*.attn.c_attn.bias[0/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.b_K": "h.*.attn.c_attn.bias[1/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.b_V": "h.*.attn.c_attn.bias[2/hd_k+hkvd_k+hkvd_v]",
    "decoder.layers.*.self_attention.b_O": "h.*.attn.c_proj.bias",
    "decoder.layers.*.feed_forward_norm.gain": "h.*.ln_2.weight",
    "decoder.layers.*.feed_forward_norm.bias": "h.*.ln_2.bias",
    "decoder.layers.*.feed_forward.W_1": "h.*.mlp.c_fc.weight",
    "decoder.layers.*.feed_forward.b_1": "h.*.mlp.c_fc.bias",
    "decoder.layers.*.feed_forward.W_2": "h.*.mlp.c_proj.weight",
    "decoder.layers.*.feed_forward.b_2": "h.*.mlp.c_proj.bias",
    "decoder.final_norm.gain": "ln_f.weight",
    "decoder.final_norm.bias": "ln_f.bias",
}
"""Names here: there. Its matrices lie as (in, out), as here, those of queries, keys and values in
one; only an output of its own lies as (out, in)."""

HARMLESS = (r"h\.\d+\.attn\.(bias|masked_bias)",)
"""The causal mask, which older files hold."""


def gpt2(config: Config) -> Architecture:
    """Return the architecture, or raise where `config` asks for what this package lacks."""
    config.only(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    d_model, n_heads = config.size("n_embd"), config.size("n_head")
    tied = config.flag("tie_word_embeddings", True)
    return Architecture(
        TransformerWeights,
        names=NAMES if tied else {**NAMES, "output": "lm_head.weight.T"},
        sizes={
            **sizes_of(d_model, config.size("n_inner", 4 * d_model), n_heads),
            **{"V_t": config.size("vocab_size"), "N_t": config.size("n_positions", 1024)},
        },
        plain={
            "n_heads": n_heads,
            "activation": config.activation("activation_function", "gelu_new"),
            "epsilon": config.number("layer_norm_epsilon", 1e-5),
            **{"norm": "pre", "positions": "learned", "scale_embeddings": False},
        },
        layers={"decoder.layers": config.size("n_layer", at_least=0)},
        prefix="transformer.",
        same={"lm_head.weight": "wte.weight"} if tied else {},
        harmless=HARMLESS,
    )
