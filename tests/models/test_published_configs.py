"""Files config.json as they were published, some of them years ago, with the sizes of small models.

They describe the rotation in older ways, and they hold entries that no class of `transformers` has.
"""

import pytest
from tiny_models import OWN, SIZES, SPECIAL, decoder

from attnbook.models import from_transformers

YARN = {"type": "yarn", "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}

PUBLISHED = {
    "Mistral": {
        **{"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768},
        **{"rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096},
        **{"torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True},
    },
    "Mixtral": {
        **{"rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None},
        **{"router_aux_loss_coef": 0.02, "output_router_logits": False, "head_dim": None},
        "hidden_size": 24,
    },
    "Qwen2": {
        **{"max_window_layers": 1, "sliding_window": 131072, "use_sliding_window": False},
        **{"rope_theta": 1000000.0, "use_mrope": False, "tie_word_embeddings": True},
    },
    "Qwen3": {
        **{"max_window_layers": 2, "sliding_window": None, "use_sliding_window": False},
        **{"rope_theta": 1000000, "rope_scaling": None, "attention_bias": False},
    },
    "Qwen3Moe": {
        **{"decoder_sparse_step": 1, "max_window_layers": 48, "mlp_only_layers": []},
        **{"norm_topk_prob": True, "rope_scaling": None, "rope_theta": 1000000.0},
        **{"sliding_window": None, "use_sliding_window": False},
    },
    "Phi3": {
        **{"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8},
        **{"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        **{"rope_theta": 10000.0, "partial_rotary_factor": 0.75, "sliding_window": 262144},
        "rope_scaling": {
            **{"type": "longrope", "long_factor": [1, 1.25, 62.3], "short_factor": [1.0, 1.05, 2]},
        },
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    },
    "Gemma2": {
        **{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        **{"cache_implementation": "hybrid", "rope_theta": 10000.0, "sliding_window": 4096},
    },
    "Gemma3": {
        **{"attn_logit_softcapping": None, "final_logit_softcapping": None},
        **{"rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window_pattern": 2},
        **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 512},
        "cache_implementation": "hybrid",
    },
    "GptOss": {
        **{"experts_per_token": 4, "initial_context_length": 4096, "swiglu_limit": 7.0},
        "rope_theta": 150000,
        "rope_scaling": {
            **{"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0},
            **{"original_max_position_embeddings": 4096, "truncate": False},
        },
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "DeepseekV2": {
        **{"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True},
        **{"n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax"},
        **{"q_lora_rank": None, "rope_theta": 10000, "max_position_embeddings": 163840},
        "rope_scaling": YARN | {"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "DeepseekV3": {
        **{"aux_loss_alpha": 0.001, "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True},
        **{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "num_nextn_predict_layers": 1},
        **{"rope_theta": 10000, "max_position_embeddings": 163840},
        "rope_scaling": YARN | {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_config_is_read_as_theirs_reads_it(kind):
    model = decoder(kind, **PUBLISHED[kind])
    entries = {**SPECIAL, **SIZES, **OWN.get(kind, {}), **PUBLISHED[kind]}
    state = model.state_dict()
    got = from_transformers(state, entries | {"model_type": model.config.model_type})
    assert repr(got) == repr(from_transformers(state, model.config))


def test_layers_that_predict_further_are_left_out():
    model = decoder("DeepseekV3")
    state = model.state_dict()
    further = {f"model.layers.3.{name}": state["lm_head.weight"] for name in ("a", "enorm.weight")}
    got = from_transformers(state | further, model.config)
    assert got.arrays().keys() == from_transformers(state, model.config).arrays().keys()
