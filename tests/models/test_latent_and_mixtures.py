"""Latent attention and mixtures of experts against the modules of `transformers`."""

import numpy as np
import pytest
from tiny_models import theirs, torch

from attnbook import (
    GatedFeedForwardWeights,
    LatentWeights,
    MixtureWeights,
    RMSNormWeights,
    RouterWeights,
    latent_attention,
    load_balancing_loss,
    mixture_of_experts,
    route,
)
from attnbook.positions import Rotary

models = pytest.importorskip("transformers.models")

SIZES = {
    **{"hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 11},
    **{"kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 2},
    **{"moe_intermediate_size": 9, "n_shared_experts": 2, "num_experts_per_tok": 3},
    **{"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
    "attn_implementation": "eager",
}


def shaken(module, seed=0):
    """Return a module in evaluation mode with random numbers in all parameters and buffers."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for x in (*module.parameters(), *module.buffers()):
            x.copy_(torch.tensor(rng.standard_normal(tuple(x.shape)) / 2))
    return module.eval()


def tokens(n=13, d=18):
    return torch.tensor(np.random.default_rng(1).standard_normal((2, n, d)), dtype=torch.float32)


def agree(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < tolerance


def ours_of(attention, rank=8, h=3, d_nope=6, d_v=2):
    """Return the weights of an attention of DeepSeek, whose projections are stored in pairs."""
    keys_and_values = attention.kv_b_proj.weight.T.reshape(rank, h, d_nope + d_v)
    down = attention.kv_a_proj_with_mqa.weight.T
    queries: dict = {"W_UQ": attention.q_proj.weight.T} if attention.q_proj is not None else {}
    if attention.q_proj is None:
        norm = attention.q_a_layernorm
        queries = {
            **{"W_UQ": attention.q_b_proj.weight.T, "W_DQ": attention.q_a_proj.weight.T},
            "q_norm": RMSNormWeights(norm.weight, norm.variance_epsilon),
        }
    norm = attention.kv_a_layernorm
    return LatentWeights(
        **queries,
        W_DKV=down[:, :rank],
        W_KR=down[:, rank:],
        W_UK=keys_and_values[..., :d_nope].reshape(rank, -1),
        W_UV=keys_and_values[..., d_nope:].reshape(rank, -1),
        W_O=attention.o_proj.weight.T,
        kv_norm=RMSNormWeights(norm.weight, norm.variance_epsilon),
        n_heads=h,
    )


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("q_rank", [None, 7])
@pytest.mark.parametrize("interleave", [True, False])
@torch.no_grad()
def test_latent_attention_of_deepseek(version, q_rank, interleave):
    if version == "V2" and not interleave:
        pytest.skip("V2 has interleaved weights only")
    code = getattr(
        getattr(models, f"deepseek_{version.lower()}"), f"modeling_deepseek_{version.lower()}"
    )
    options = {"rope_interleave": interleave} if version == "V3" else {}
    config = getattr(theirs, f"Deepseek{version}Config")(**SIZES, q_lora_rank=q_rank, **options)
    attention = shaken(getattr(code, f"Deepseek{version}Attention")(config, 0))
    x = tokens()
    n = x.shape[1]
    angles = getattr(code, f"Deepseek{version}RotaryEmbedding")(config)(x, torch.arange(n)[None])
    hidden = torch.full((n, n), -torch.inf).triu(1)[None, None]
    expected = attention(x, position_embeddings=angles, attention_mask=hidden)[0]
    weights = ours_of(attention)
    for form in ("full", "absorbed"):
        rotary = Rotary(interleaved=interleave)
        agree(latent_attention(x, weights, is_causal=True, rotary=rotary, form=form), expected)


def experts_of(module, router, shared=None):
    """Return the weights of experts that are stored as (E, 2·d_ff, d_model), gate before up."""
    gate, up = module.gate_up_proj.chunk(2, dim=1)
    return MixtureWeights(router, gate.mT, up.mT, module.down_proj.mT, shared=shared)


def network_of(module):
    parts = (module.gate_proj, module.up_proj, module.down_proj)
    return GatedFeedForwardWeights(*(part.weight.T for part in parts))


@torch.no_grad()
def test_mixture_of_deepseek_v3():
    code = models.deepseek_v3.modeling_deepseek_v3
    module = shaken(code.DeepseekV3MoE(theirs.DeepseekV3Config(**SIZES)))
    router = RouterWeights(
        module.gate.weight.T,
        correction=module.gate.e_score_correction_bias,
        **{"top_k": 3, "score": "sigmoid", "scaling": 2.5},
        **{"n_groups": 4, "top_groups": 2, "best_per_group": 2},
    )
    weights = experts_of(module.experts, router, network_of(module.shared_experts))
    agree(mixture_of_experts(tokens(), weights), module(tokens()))


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
@torch.no_grad()
def test_mixture_of_deepseek_v2(method):
    code = models.deepseek_v2.modeling_deepseek_v2
    module = shaken(code.DeepseekV2Moe(theirs.DeepseekV2Config(**SIZES, topk_method=method)))
    groups = {} if method == "greedy" else {"n_groups": 4, "top_groups": 2}
    router = RouterWeights(module.gate.weight.T, top_k=3, normalized=False, scaling=2.5, **groups)
    weights = experts_of(module.experts, router, network_of(module.shared_experts))
    agree(mixture_of_experts(tokens(), weights), module(tokens()))


@torch.no_grad()
def test_mixture_of_mixtral_and_its_loss():
    code = models.mixtral.modeling_mixtral
    sizes = {"hidden_size": 18, "intermediate_size": 7, "num_local_experts": 5}
    module = shaken(code.MixtralSparseMoeBlock(theirs.MixtralConfig(**sizes)))
    router = RouterWeights(module.gate.weight.T, top_k=2)
    agree(mixture_of_experts(tokens(), experts_of(module.experts, router)), module(tokens()))
    logits = tokens().reshape(-1, 18) @ router.W
    expected = code.load_balancing_loss_func((logits,), 5, 2)
    agree(load_balancing_loss(tokens(), router), expected)


@pytest.mark.parametrize("normalized", [True, False])
@torch.no_grad()
def test_mixture_of_qwen3(normalized):
    code = models.qwen3_moe.modeling_qwen3_moe
    sizes = {"hidden_size": 18, "moe_intermediate_size": 7, "num_experts": 5}
    options = {"num_experts_per_tok": 3, "norm_topk_prob": normalized}
    config = theirs.Qwen3MoeConfig(**sizes, **options)
    module = shaken(code.Qwen3MoeSparseMoeBlock(config))
    router = RouterWeights(module.gate.weight.T, top_k=3, normalized=normalized)
    agree(mixture_of_experts(tokens(), experts_of(module.experts, router)), module(tokens()))


@torch.no_grad()
def test_mixture_of_gpt_oss():
    code = models.gpt_oss.modeling_gpt_oss
    sizes = {"hidden_size": 18, "intermediate_size": 7, "num_local_experts": 5}
    module = shaken(code.GptOssMLP(theirs.GptOssConfig(**sizes, num_experts_per_tok=3)))
    experts, router = module.experts, module.router
    both, biases = experts.gate_up_proj, experts.gate_up_proj_bias  # gate and up in turn
    weights = MixtureWeights(
        RouterWeights(router.weight.T, router.bias, top_k=3),
        *(both[..., ::2], both[..., 1::2], experts.down_proj),
        *(biases[..., ::2], biases[..., 1::2], experts.down_proj_bias),
        activation="clamped_swiglu",
    )
    x = 4 * tokens()  # so that some units reach the limits
    expected, their_shares = module(x)
    agree(mixture_of_experts(x, weights), expected)
    agree(route(x.reshape(-1, 18), weights.router)[1], their_shares)
