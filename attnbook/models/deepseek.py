"""DeepSeek-V2 and V3: latent attention, and a mixture of experts in all layers but the first."""

from collections.abc import Mapping
from typing import Any

from attnbook.models import llama_names as names
from attnbook.models.architecture import Architecture, Config
from attnbook.models.llama_family import llama_like
from attnbook.models.mixtures import EXPERTS, ROUTER, in_dense_layers, in_layers, mixture
from attnbook.models.rotations import rotation_of
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.positions import YarnScaling

LATENT = {
    "decoder.layers.*.self_attention.W_DKV": (
        "layers.*.self_attn.kv_a_proj_with_mqa.weight[0/r+d_rope].T"
    ),
    "decoder.layers.*.self_attention.W_KR": (
        "layers.*.self_attn.kv_a_proj_with_mqa.weight[1/r+d_rope].T"
    ),
    "decoder.layers.*.self_attention.kv_norm.gain": "layers.*.self_attn.kv_a_layernorm.weight",
    "decoder.layers.*.self_attention.W_UK": (
        "layers.*.self_attn.kv_b_proj.weight[0/d_nope+d_v per h].T"
    ),
    "decoder.layers.*.self_attention.W_UV": (
        "layers.*.self_attn.kv_b_proj.weight[1/d_nope+d_v per h].T"
    ),
    "decoder.layers.*.self_attention.W_O": "layers.*.self_attn.o_proj.weight.T",
}
"""Names here: there. Down to the latent and the key that carries the position, which lie in one
matrix; then up to the keys and values of each head, which alternate."""

QUERIES = {
    "decoder.layers.*.self_attention.W_DQ": "layers.*.self_attn.q_a_proj.weight.T",
    "decoder.layers.*.self_attention.q_norm.gain": "layers.*.self_attn.q_a_layernorm.weight",
    "decoder.layers.*.self_attention.W_UQ": "layers.*.self_attn.q_b_proj.weight.T",
}
"""With ``q_lora_rank``."""

PLAIN_QUERIES = {"decoder.layers.*.self_attention.W_UQ": "layers.*.self_attn.q_proj.weight.T"}
"""Without it, as in DeepSeek-V2-Lite."""

SHARED = {
    f"decoder.layers.*.feed_forward.shared.{ours}": f"layers.*.mlp.shared_experts.{row}.weight.T"
    for ours, row in (("W_gate", "gate_proj"), ("W_1", "up_proj"), ("W_2", "down_proj"))
}
"""The expert that every token uses."""

CORRECTION = {ROUTER + "correction": "layers.*.mlp.gate.e_score_correction_bias"}
"""V3 balances its experts by it."""


def deepseek_v2(config: Config) -> Architecture:
    """Return the architecture of DeepSeek-V2, V2-Lite and V2.5."""
    config = config.over(n_shared_experts=2, n_routed_experts=64, moe_intermediate_size=1407)
    config.only(norm_topk_prob=False, scoring_func="softmax", mlp_bias=False)
    method = config.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    grouped = method == "group_limited_greedy"
    groups = {"n_group": "n_groups", "topk_group": "top_groups"} if grouped else {}
    router = {ROUTER + ours: config.size(there) for there, ours in groups.items()}
    return _deepseek(
        *(config, EXPERTS | SHARED, True),
        first=config.size("first_k_dense_replace", 0, at_least=0),
        scaling=config.number("routed_scaling_factor", 1.0),
        normalized=False,
        router=router,
    )


def deepseek_v3(config: Config) -> Architecture:
    """Return the architecture of DeepSeek-V3 and R1, without the layers that predict further."""
    config = config.over(
        **{"n_shared_experts": 1, "n_routed_experts": 256, "moe_intermediate_size": 2048},
        **{"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "num_key_value_heads": 128},
    )
    config.only(scoring_func="sigmoid", topk_method="noaux_tc")
    n = config.size("num_hidden_layers", at_least=0)
    further = config.size("num_nextn_predict_layers", 1, at_least=0)
    return _deepseek(
        *(config, EXPERTS | SHARED | CORRECTION, config.flag("rope_interleave", True)),
        first=config.size("first_k_dense_replace", 3, at_least=0),
        scaling=config.number("routed_scaling_factor", 2.5),
        normalized=config.flag("norm_topk_prob", True),
        harmless=tuple(rf"layers\.{n + i}\..*" for i in range(further)),
        router={
            **{ROUTER + "score": "sigmoid", ROUTER + "best_per_group": 2},
            ROUTER + "n_groups": config.size("n_group"),
            ROUTER + "top_groups": config.size("topk_group"),
        },
    )


def _deepseek(
    config: Config,
    experts: dict[str, str],
    interleaved: bool,
    *,
    first: int,
    scaling: float,
    normalized: bool,
    router: Mapping[str, Any],
    harmless: tuple[str, ...] = (),
) -> Architecture:
    """Return what both have in common; the layers before `first` have no experts."""
    config = config.over(
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "rope_theta": 10000.0},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    )
    h, n = config.size("num_attention_heads"), config.size("num_hidden_layers", at_least=0)
    config.only(attention_bias=False, num_key_value_heads=h, moe_layer_freq=1)
    d_nope, d_rope = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    r, d_v = config.size("kv_lora_rank"), config.size("v_head_dim")
    r_q, d_expert = config.size_or_none("q_lora_rank"), config.size("moe_intermediate_size")
    positions = rotation_of(config, interleaved=interleaved)
    scale = (d_nope + d_rope) ** -0.5
    if isinstance(positions.scaling, YarnScaling):
        scale *= positions.scaling.score_factor
    sparse = range(min(first, n), n)
    part = "decoder.layers.*.self_attention."
    sizes = {
        **{"h": h, "d_nope": d_nope, "d_rope": d_rope, "d_v": d_v, "r": r},
        **{"hd_nope": h * d_nope, "hd_q": h * (d_nope + d_rope), "hd_v": h * d_v},
        **({} if r_q is None else {part + "q_norm.d_model": r_q}),
        **{"r_q": config.size("hidden_size") if r_q is None else r_q},
        **{part + "kv_norm.d_model": r},
        "decoder.layers.*.feed_forward.shared.d_ff": d_expert * config.size("n_shared_experts"),
        **in_dense_layers("d_ff", config.size("intermediate_size"), sparse, n),
    }
    options = mixture(
        *(config.size("n_routed_experts"), config),
        sizes=sizes,
        d_ff=d_expert,
        normalized=normalized,
        plain={
            **{ROUTER + "scaling": scaling, **router, "scale": scale},
            **{part + "q_norm.epsilon": 1e-6, part + "kv_norm.epsilon": 1e-6},
        },
    )
    rows = {ours: row for ours, row in names.NAMES.items() if ".self_attention." not in ours}
    queries = PLAIN_QUERIES if r_q is None else QUERIES
    return llama_like(
        config,
        in_layers(rows, experts, sparse, n) | LATENT | queries,
        positions=positions,
        harmless=harmless,
        **{**options, "kinds": (*options["kinds"], LatentWeights)},
    )
