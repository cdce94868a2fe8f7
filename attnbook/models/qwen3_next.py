"""Qwen3-Next: three layers with the gated delta rule, and the fourth with gated attention."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbook.linear_attention.layers import LinearAttentionWeights
from attnbook.models import llama_names as names
from attnbook.models.architecture import Architecture, Config
from attnbook.models.llama_family import head_width, llama_like
from attnbook.models.mixtures import EXPERTS, in_dense_layers, in_layers, mixture
from attnbook.models.rotations import rotation_of
from attnbook.transformers.feed_forward import GatedFeedForwardWeights
from attnbook.transformers.mixture import MixtureWeights

LAYER_TYPES = ("linear_attention", "full_attention")
"""What an entry of ``layer_types`` can be."""

ATTENTION = "decoder.layers.*.self_attention."

GATED = {
    ATTENTION + "W_Q": "layers.*.self_attn.q_proj.weight[0/d_k+d_k per h].T",
    ATTENTION + "W_gate": "layers.*.self_attn.q_proj.weight[1/d_k+d_k per h].T",
}
"""The queries of each head lie before its gate."""

SHARED = {
    "decoder.layers.*.feed_forward.shared.W_gate": "layers.*.mlp.shared_expert.gate_proj.weight.T",
    "decoder.layers.*.feed_forward.shared.W_1": "layers.*.mlp.shared_expert.up_proj.weight.T",
    "decoder.layers.*.feed_forward.shared.W_2": "layers.*.mlp.shared_expert.down_proj.weight.T",
    "decoder.layers.*.feed_forward.shared_gate": "layers.*.mlp.shared_expert_gate.weight.T",
}
"""The expert that every token uses, and its gate."""

STATES = {
    **{
        f"{ATTENTION}{name}": (
            f"layers.*.linear_attn.in_proj_qkvz.weight[{i}/d_k+d_k+gd_v+gd_v per h_k].T"
        )
        for i, name in enumerate(("W_Q", "W_K", "W_V", "W_gate"))
    },
    ATTENTION + "W_beta": "layers.*.linear_attn.in_proj_ba.weight[0/g+g per h_k].T",
    ATTENTION + "W_decay": "layers.*.linear_attn.in_proj_ba.weight[1/g+g per h_k].T",
    ATTENTION + "W_O": "layers.*.linear_attn.out_proj.weight.T",
    ATTENTION + "A_log": "layers.*.linear_attn.A_log",
    ATTENTION + "dt_bias": "layers.*.linear_attn.dt_bias",
    ATTENTION + "filters": "layers.*.linear_attn.conv1d.weight[:, 0].T",
    ATTENTION + "norm_gain": "layers.*.linear_attn.norm.weight",
}
"""A layer with a state: each head of keys lies before the values and gates that share it."""


def qwen3_next(config: Config) -> Architecture:
    """Return the architecture of Qwen3-Next, with experts in some layers, all or none."""
    config = config.over(
        **{"head_dim": 256, "num_key_value_heads": 2, "partial_rotary_factor": 0.25},
        **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
        **{"linear_num_key_heads": 16, "linear_num_value_heads": 32},
        **{"decoder_sparse_step": 1, "num_experts": 512, "mlp_only_layers": []},
        **{"num_experts_per_tok": 10, "moe_intermediate_size": 512},
        shared_expert_intermediate_size=512,
    )
    config.only(attention_bias=False, hidden_act="silu")
    n = config.size("num_hidden_layers", at_least=0)
    step, dense = config.size("decoder_sparse_step"), config.listed("mlp_only_layers", default=[])
    there = config.size("num_experts", at_least=0) > 0
    sparse = [i for i in range(n) if there and i not in dense and (i + 1) % step == 0]
    period = config.size("full_attention_interval", 4)
    default = [LAYER_TYPES[(i + 1) % period == 0] for i in range(n)]
    types = config.choices("layer_types", LAYER_TYPES, n, default)
    d_k, d_v = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    h_k, h = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    if h % h_k:
        raise ValueError(
            f"config['linear_num_key_heads'] must divide linear_num_value_heads = {h}, got {h_k}"
        )
    width = config.size("linear_conv_kernel_dim")
    sizes = {
        **{"d_k": d_k, "d_v": d_v, "h_k": h_k, "h": h, "g": h // h_k, "gd_v": h // h_k * d_v},
        **{"hkd_k": h_k * d_k, "hd_v": h * d_v, "width": width},
        "channels": 2 * h_k * d_k + h * d_v,
    }
    heads = {"n_heads": h, "n_key_heads": h_k}
    experts: dict[str, Any] = {}
    if sparse:
        d_ff = config.size("moe_intermediate_size")
        shared = config.size("shared_expert_intermediate_size")
        experts = mixture(
            *(config.size("num_experts"), config),
            sizes={
                **in_dense_layers("d_ff", config.size("intermediate_size"), sparse, n),
                **{f"decoder.layers.{i}.feed_forward.shared.d_ff": shared for i in sparse},
                "one": 1,
            },
            d_ff=d_ff,
            normalized=config.flag("norm_topk_prob", True),
        )
    states = [f"decoder.layers.{i}.self_attention." for i in range(n) if types[i] == LAYER_TYPES[0]]
    return llama_like(
        config,
        in_layers(rows_of(types), EXPERTS | SHARED, sparse, n),
        positions=rotation_of(config.over(rope_theta=10000.0), partial=head_width(config)),
        sizes={
            "d_k": head_width(config),
            **{path + letters: size for path in states for letters, size in sizes.items()},
            **experts.pop("sizes", {}),
        },
        plain={
            **{path + name: number for path in states for name, number in heads.items()},
            **experts.pop("plain", {}),
        },
        kinds=(GatedFeedForwardWeights, MixtureWeights, LinearAttentionWeights),
        terms={"gain": 1.0},
        harmless=(r"mtp\..*",),
    )


def rows_of(types: Sequence[str]) -> dict[str, str]:
    """Return the rows of all layers, each with those of its type."""
    whole: Mapping[str, str] = names.NAMES | names.HEAD_NORMS | GATED
    made = {ours: row for ours, row in whole.items() if ".self_attention." not in ours}
    full = {ours: row for ours, row in whole.items() if ".self_attention." in ours}
    for i, kind in enumerate(types):
        own = STATES if kind == LAYER_TYPES[0] else full
        made |= {ours.replace("*", f"{i}"): row.replace("*", f"{i}") for ours, row in own.items()}
    return made
