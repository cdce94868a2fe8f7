"""Small models of `transformers` with random numbers in every weight: the judges of ours."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from attnbook.models import from_transformers

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
theirs = pytest.importorskip("transformers", reason="transformers is not installed")

SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
V, SEQUENCE = 29, 7


def shaken(model: Any, spread: float, seed: int) -> Any:
    """Return the model in float64 with random numbers in every weight, drawn by NumPy.

    With a larger `spread` of the matrices the tokens that it writes differ more.
    """
    rng = np.random.default_rng(seed)
    middle = 0.0 if model.config.model_type.startswith("gemma") else 1.0  # of gains
    with torch.no_grad():
        for name, x in model.named_parameters():
            numbers = rng.standard_normal(tuple(x.shape))
            if x.ndim > 1:
                numbers *= (spread if "layer" in name else 1.0) / np.sqrt(x.shape[-1])
            else:
                numbers = numbers / 4 + (name.endswith("weight") and middle)
            x.copy_(torch.tensor(numbers))
        for name, x in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                x.copy_(torch.tensor(rng.standard_normal(tuple(x.shape)) / 4))
    return model.double().eval()


def gpt2(spread: float = 1.0, seed: int = 0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "n_positions": 13, "n_embd": 14, "n_head": 2, "n_inner": 19}
    config = theirs.GPT2Config(**SPECIAL, **{**sizes, "n_layer": 3, **options})
    return shaken(theirs.GPT2LMHeadModel(config), spread, seed)


def decoder(kind: str, spread: float = 1.0, seed: int = 0, **options: Any) -> Any:
    """Return a relative of Llama; `kind` begins the names of its classes."""
    config = getattr(theirs, f"{CONFIGS.get(kind, kind)}Config")
    config = config(**SPECIAL, **{**SIZES, **OWN.get(kind, {}), **options})
    config._attn_implementation = "eager"  # which knows soft-capping and sinks
    config._experts_implementation = "eager"  # which knows float64
    return shaken(getattr(theirs, f"{kind}ForCausalLM")(config), spread, seed)


SIZES = {
    **{"vocab_size": V, "hidden_size": 18, "intermediate_size": 23, "num_hidden_layers": 3},
    **{"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10},
}

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 7}
GEMMA = {"sliding_window": 3, "query_pre_attn_scalar": 7, "hidden_activation": "gelu"}
# theirs wants even widths of what it takes for complex numbers, and of what it splits it from
LATENT = {
    **{"num_key_value_heads": 6, "kv_lora_rank": 12, "q_lora_rank": 11, "qk_nope_head_dim": 6},
    **{"qk_rope_head_dim": 4, "v_head_dim": 3, "first_k_dense_replace": 1, "head_dim": 4},
    **{"n_routed_experts": 6, "n_shared_experts": 2, **EXPERTS},
}

OWN = {
    "Qwen2": {"hidden_size": 24, "head_dim": 4},
    "Phi3": {"hidden_size": 24, "head_dim": 4},
    "Mistral": {"sliding_window": 3},
    "Gemma2": GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "Gemma3": GEMMA | {"sliding_window_pattern": 2},
    "Mixtral": {"num_local_experts": 5},
    "Qwen3Moe": EXPERTS | {"num_experts": 5, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "GptOss": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 3},
    "Qwen3Next": {
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 5},
        **{"linear_value_head_dim": 7, "num_hidden_layers": 4, "head_dim": 16, **EXPERTS},
        **{"num_experts": 5, "shared_expert_intermediate_size": 9, "mlp_only_layers": [1]},
    },
    "DeepseekV2": LATENT,
    "DeepseekV3": LATENT | {"n_group": 3, "topk_group": 2},
}
"""What the kinds have beside, or in the place of, `SIZES`."""

CONFIGS = {"Gemma3": "Gemma3Text"}
"""Kinds whose config has another name."""

llama = partial(decoder, "Llama")


def bert(spread: float = 1.0, seed: int = 0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "hidden_size": 14, "intermediate_size": 19, "num_hidden_layers": 3}
    more = {"num_attention_heads": 2, "max_position_embeddings": 13, "type_vocab_size": 3}
    config = theirs.BertConfig(**{**sizes, **more, **options})
    return shaken(theirs.BertModel(config), spread, seed)


def t5(spread: float = 1.0, seed: int = 0, untied: bool = False, **options: Any) -> Any:
    sizes = {"vocab_size": V, "d_model": 14, "d_kv": 5, "d_ff": 19, "num_heads": 3}
    layers = {"num_layers": 2, "num_decoder_layers": 3, "decoder_start_token_id": 0}
    buckets = {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 5}
    config = theirs.T5Config(**{**sizes, **layers, **buckets, **options})
    model = theirs.T5ForConditionalGeneration(config)
    if untied:
        model.lm_head.weight = torch.nn.Parameter(torch.ones(V, config.d_model))
    return shaken(model, spread, seed)


def tokens(seed: int = 0, n: int = SEQUENCE, batch: int = 3) -> np.ndarray:
    """Return ids (batch, n) without the special ones."""
    return np.random.default_rng(seed).integers(3, V, (batch, n))


KEEP = np.arange(SEQUENCE) < np.array([[7], [5], [2]])
"""Which tokens of each sequence are real."""


def written(make: Any, ids: np.ndarray, n: int, **given: Any) -> tuple[Any, np.ndarray]:
    """Return the first model of `make` that writes different tokens, and what it writes."""
    for seed in range(20):
        model = make(spread=2.0, seed=seed)
        made = model.generate(torch.tensor(ids), max_new_tokens=n, do_sample=False, **given)
        made = made[:, 1 if model.config.is_encoder_decoder else ids.shape[1] :].numpy()
        if len(np.unique(made)) > 4:
            return model, made
    raise AssertionError("each of these models repeats itself")


def bound_of(name: str, dtype: str) -> float:
    """Return how far ours may be from theirs: Llama and T5 themselves normalise in float32."""
    if name.startswith("qwen3-next") and dtype == "float32":
        return 5e-5  # small vectors get length 1, and what is rounded of them grows
    return 1e-12 if dtype == "float64" and name.startswith(("gpt2", "bert")) else 1e-5


def numbers(x: Any) -> np.ndarray:
    return np.asarray(x.detach().double())


def weights_of(model: Any) -> Any:
    """Return the weights as NumPy arrays in float64."""
    state = {name: numbers(x) for name, x in model.state_dict().items()}
    return from_transformers(state, model.config)


def cut_after(weights: Any, n: int) -> Any:
    """Return a decoder whose first logits are the features after `n` of its layers."""
    norm = weights.decoder.final_norm if n == len(weights.decoder.layers) else None
    decoder = replace(weights.decoder, layers=weights.decoder.layers[:n], final_norm=norm)
    return replace(weights, decoder=decoder, output=np.eye(weights.d_model, V), logit_cap=None)


def assert_same(got: np.ndarray, exact: Any, bound: float) -> None:
    """Assert that the first numbers of ours are theirs."""
    np.testing.assert_allclose(got[..., : exact.shape[-1]], numbers(exact), rtol=0, atol=bound)
