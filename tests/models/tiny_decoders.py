"""Small decoders of `transformers`, one for each way of theirs to compute."""

from functools import partial

import tiny_models
from tiny_models import decoder

THETA = {"rope_theta": 500.0, "rope_type": "default"}
SCALING = {
    **{"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0},
    "original_max_position_embeddings": 13,
}
LOCAL = ["sliding_attention"]
LINEAR = {"rope_type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MORE = {
    **{"beta_fast": 8.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False},
}
LONG = {
    **{"rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "rope_theta": 500.0},
    **{"long_factor": [1.5, 2.0, 4.0], "partial_rotary_factor": 0.75},
}
PHI3 = partial(
    *(decoder, "Phi3"),
    **{"hidden_size": 24, "num_attention_heads": 3, "head_dim": 8},
    **{"max_position_embeddings": 40, "rope_parameters": LONG},
)

DECODERS = {
    "gpt2": tiny_models.gpt2,
    "gpt2, exact gelu, another ε": partial(
        tiny_models.gpt2, activation_function="gelu", n_inner=None, layer_norm_epsilon=0.1
    ),
    "gpt2, output of its own": partial(tiny_models.gpt2, tie_word_embeddings=False),
    "llama 2": partial(tiny_models.llama, num_key_value_heads=6, head_dim=None, hidden_size=24),
    "llama 3": partial(tiny_models.llama, rope_parameters=THETA),
    "llama 3.1": partial(tiny_models.llama, rope_parameters=THETA | SCALING),
    "llama, linear": partial(tiny_models.llama, rope_parameters=THETA | LINEAR),
    "llama, dynamic": partial(
        tiny_models.llama, rope_parameters=THETA | DYNAMIC, max_position_embeddings=5
    ),
    "llama, yarn": partial(tiny_models.llama, rope_parameters=THETA | YARN),
    "llama, yarn as in DeepSeek": partial(tiny_models.llama, rope_parameters=THETA | YARN | MORE),
    "llama, tied, with biases": partial(
        tiny_models.llama, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama, another activation and ε": partial(
        tiny_models.llama, hidden_act="gelu", rms_norm_eps=0.1
    ),
    "qwen2": partial(decoder, "Qwen2"),
    "phi3": partial(decoder, "Phi3"),
    "phi3, long": partial(PHI3, original_max_position_embeddings=2),
    "phi3, short": partial(PHI3, original_max_position_embeddings=7),
    "mistral": partial(decoder, "Mistral"),
    "qwen2, windows": partial(
        *(decoder, "Qwen2"),
        **{"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "gemma2": partial(decoder, "Gemma2"),
    "gemma2, without caps": partial(
        *(decoder, "Gemma2"),
        **{"attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 2},
        **{"attention_bias": True, "tie_word_embeddings": False},
    ),
    "gemma3": partial(decoder, "Gemma3"),
    "gemma3, capped": partial(
        *(decoder, "Gemma3"),
        **{"final_logit_softcapping": 2.0, "layer_types": ["full_attention", *2 * LOCAL]},
        rope_parameters={"full_attention": THETA | LINEAR, "sliding_attention": THETA},
    ),
    "qwen3": partial(decoder, "Qwen3"),
    "qwen3 moe": partial(decoder, "Qwen3Moe"),
    "qwen3-next": partial(decoder, "Qwen3Next", spread=0.4),
    "qwen3-next, dense": partial(
        *(decoder, "Qwen3Next"),
        **{
            "spread": 0.4,
            "mlp_only_layers": [0, 1],
            "num_hidden_layers": 2,
            "norm_topk_prob": False,
        },
        layer_types=["full_attention", "linear_attention"],
    ),
    "gpt-oss": partial(decoder, "GptOss"),
    "gpt-oss, yarn": partial(
        decoder, "GptOss", rope_parameters=THETA | YARN | MORE, attention_bias=False
    ),
    "mixtral": partial(decoder, "Mixtral"),
    "deepseek 2": partial(decoder, "DeepseekV2"),
    "deepseek 2, groups": partial(
        *(decoder, "DeepseekV2"),
        **{"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
        **{"q_lora_rank": None, "routed_scaling_factor": 1.5, "first_k_dense_replace": 2},
    ),
    "deepseek 3": partial(decoder, "DeepseekV3"),
    "deepseek 3, yarn": partial(
        *(decoder, "DeepseekV3"),
        **{"rope_parameters": THETA | YARN | MORE, "rope_interleave": False},
        **{"norm_topk_prob": False, "tie_word_embeddings": True},
    ),
}
"""Decoders alone, one for each way of theirs to compute."""

WRITERS = (
    *("gpt2", "llama 3.1", "mistral", "mixtral", "qwen2, windows", "qwen3", "qwen3 moe"),
    "qwen3-next",
    *("gemma2", "gemma3, capped"),
    *("phi3, long", "phi3, short", "gpt-oss", "deepseek 2", "deepseek 3, yarn"),
)
"""Those that write, too: one of each architecture."""
