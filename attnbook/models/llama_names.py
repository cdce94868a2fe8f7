"""Llama and its relatives: the names of their arrays.

Each is a decoder alone, pre-norm by RMSNorm, with rotary positions, a gated feed-forward network
and grouped heads. `llama_family` reads their configs.
"""

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
"""With ``attention_bias``. Qwen2 has the first three."""

FEED_FORWARD_BIASES = {
    "decoder.layers.*.feed_forward.b_gate": "layers.*.mlp.gate_proj.bias",
    "decoder.layers.*.feed_forward.b_1": "layers.*.mlp.up_proj.bias",
    "decoder.layers.*.feed_forward.b_2": "layers.*.mlp.down_proj.bias",
}
"""With ``mlp_bias``."""

HEAD_NORMS = {
    "decoder.layers.*.self_attention.q_norm.gain": "layers.*.self_attn.q_norm.weight",
    "decoder.layers.*.self_attention.k_norm.gain": "layers.*.self_attn.k_norm.weight",
}
"""Qwen3 and Gemma 3: queries and keys of each head are normalised."""

FUSED = {
    "decoder.layers.*.self_attention.W_Q": (
        "layers.*.self_attn.qkv_proj.weight[0/hd_k+hkvd_k+hkvd_v].T"
    ),
    "decoder.layers.*.self_attention.W_K": (
        "layers.*.self_attn.qkv_proj.weight[1/hd_k+hkvd_k+hkvd_v].T"
    ),
    "decoder.layers.*.self_attention.W_V": (
        "layers.*.self_attn.qkv_proj.weight[2/hd_k+hkvd_k+hkvd_v].T"
    ),
    "decoder.layers.*.feed_forward.W_gate": "layers.*.mlp.gate_up_proj.weight[0/d_ff+d_ff].T",
    "decoder.layers.*.feed_forward.W_1": "layers.*.mlp.gate_up_proj.weight[1/d_ff+d_ff].T",
}
"""Phi-3: the matrices that read the same tokens lie in one."""

POST_NORMS = {
    "decoder.layers.*.self_attention_post_norm.gain": "layers.*.post_attention_layernorm.weight",
    "decoder.layers.*.feed_forward_norm.gain": "layers.*.pre_feedforward_layernorm.weight",
    "decoder.layers.*.feed_forward_post_norm.gain": "layers.*.post_feedforward_layernorm.weight",
}
"""Gemma 2 and 3: the output of each sublayer is normalised before it is added."""

SINKS = {"decoder.layers.*.self_attention.sinks": "layers.*.self_attn.sinks"}
"""gpt-oss: one more score in the softmax of each head."""

HARMLESS = (r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
"""The angles of the rotation, which config says too."""
