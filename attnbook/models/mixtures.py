"""Relatives of Llama with a mixture of experts: Mixtral, Qwen3-MoE and gpt-oss."""

from collections.abc import Iterable, Mapping
from typing import Any

from attnbook.models import llama_names as names
from attnbook.models.architecture import Architecture, Config
from attnbook.models.llama_family import (
    attention_biases,
    llama_like,
    mixed_windows,
    same_windows,
)
from attnbook.models.rotations import rotation_of
from attnbook.transformers.feed_forward import GatedFeedForwardWeights
from attnbook.transformers.mixture import MixtureWeights

EXPERTS = {
    "decoder.layers.*.feed_forward.router.W": "layers.*.mlp.gate.weight.T",
    "decoder.layers.*.feed_forward.W_gate": (
        "layers.*.mlp.experts.gate_up_proj[0/d_ff+d_ff].T"
        " | layers.*.mlp.experts.#.gate_proj.weight.T"
    ),
    "decoder.layers.*.feed_forward.W_1": (
        "layers.*.mlp.experts.gate_up_proj[1/d_ff+d_ff].T | layers.*.mlp.experts.#.up_proj.weight.T"
    ),
    "decoder.layers.*.feed_forward.W_2": (
        "layers.*.mlp.experts.down_proj.T | layers.*.mlp.experts.#.down_proj.weight.T"
    ),
}
"""Names here: there, in a model of `transformers`, and in the files of published models, where each
expert has tensors of its own."""

MIXTRAL = {
    "decoder.layers.*.feed_forward.router.W": "layers.*.block_sparse_moe.gate.weight.T",
    "decoder.layers.*.feed_forward.W_gate": "layers.*.block_sparse_moe.experts.#.w1.weight.T",
    "decoder.layers.*.feed_forward.W_1": "layers.*.block_sparse_moe.experts.#.w3.weight.T",
    "decoder.layers.*.feed_forward.W_2": "layers.*.block_sparse_moe.experts.#.w2.weight.T",
}
"""The published files of Mixtral call them so."""

GPT_OSS = {
    "decoder.layers.*.feed_forward.router.W": "layers.*.mlp.router.weight.T",
    "decoder.layers.*.feed_forward.router.bias": "layers.*.mlp.router.bias",
    "decoder.layers.*.feed_forward.W_gate": ("layers.*.mlp.experts.gate_up_proj[0/1+1 per d_ff]"),
    "decoder.layers.*.feed_forward.W_1": "layers.*.mlp.experts.gate_up_proj[1/1+1 per d_ff]",
    "decoder.layers.*.feed_forward.W_2": "layers.*.mlp.experts.down_proj",
    "decoder.layers.*.feed_forward.b_gate": (
        "layers.*.mlp.experts.gate_up_proj_bias[0/1+1 per d_ff]"
    ),
    "decoder.layers.*.feed_forward.b_1": ("layers.*.mlp.experts.gate_up_proj_bias[1/1+1 per d_ff]"),
    "decoder.layers.*.feed_forward.b_2": "layers.*.mlp.experts.down_proj_bias",
}
"""Its matrices lie as (in, out), and the columns of W_gate and W_1 alternate."""

ROUTER = "decoder.layers.*.feed_forward.router."


def mixtral(config: Config) -> Architecture:
    """Return the architecture of Mixtral: Mistral with experts."""
    config = config.over(
        **{"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
        **{"rms_norm_eps": 1e-5, "rope_theta": 1e6},
    )
    rows = {ours: f"{row} | {MIXTRAL[ours]}" for ours, row in EXPERTS.items()}
    return llama_like(
        config,
        without_feed_forward(names.NAMES) | rows,
        windows=same_windows(config),
        **mixture(config.size("num_local_experts"), config),
    )


def qwen3_moe(config: Config) -> Architecture:
    """Return the architecture of Qwen3-MoE: Qwen3 with experts in some layers or all."""
    config = config.over(
        **{"num_key_value_heads": 4, "sliding_window": 4096, "num_experts_per_tok": 8},
        **{"moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []},
    )
    used, n = config.flag("use_sliding_window", False), config.size("num_hidden_layers", at_least=0)
    step, dense = config.size("decoder_sparse_step"), config.listed("mlp_only_layers", default=[])
    sparse = [i for i in range(n) if i not in dense and (i + 1) % step == 0]
    same = config.known("num_local_experts")  # another name of it
    n_experts = config.size("num_experts", 128 if same is None else same)
    return llama_like(
        config,
        in_layers(names.NAMES, EXPERTS, sparse, n) | names.HEAD_NORMS | attention_biases(config),
        windows=same_windows(config) if used else (),
        **mixture(
            *(n_experts, config),
            sizes=in_dense_layers("d_ff", config.size("intermediate_size"), sparse, n),
            d_ff=config.size("moe_intermediate_size"),
            normalized=config.flag("norm_topk_prob", False),
        ),
    )


def gpt_oss(config: Config) -> Architecture:
    """Return the architecture of gpt-oss: learned sinks, local layers and experts."""
    config = config.over(
        **{"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "rms_norm_eps": 1e-5},
        **{"num_local_experts": 128, "num_experts_per_tok": 4, "rope_theta": 150000.0},
        attention_bias=True,
    )
    config.only(hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0)
    yarn = {
        **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0},
        **{"truncate": False, "original_max_position_embeddings": 4096},
    }
    window = config.size_or_none("sliding_window")
    n = config.size("num_hidden_layers", at_least=0)
    rows = without_feed_forward(names.NAMES) | names.SINKS | attention_biases(config)
    return llama_like(
        config,
        rows | GPT_OSS,
        windows=mixed_windows(config, window, [i % 2 == 0 for i in range(n)]),
        positions=rotation_of(config, default=yarn),
        **mixture(
            *(config.size("num_local_experts"), config), plain={"activation": "clamped_swiglu"}
        ),
    )


def mixture(
    n_experts: int,
    config: Config,
    *,
    sizes: Mapping[str, int] | None = None,
    d_ff: int | None = None,
    normalized: bool = True,
    plain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what `llama_like` must know about the experts, whose hidden width is `d_ff`."""
    width = {} if d_ff is None else {"d_ff": d_ff}
    return {
        "sizes": {"E": n_experts, **width, **(sizes or {})},
        "plain": {
            ROUTER + "top_k": config.size("num_experts_per_tok"),
            ROUTER + "normalized": normalized,
            **(plain or {}),
        },
        "kinds": (GatedFeedForwardWeights, MixtureWeights),
    }


def without_feed_forward(rows: Mapping[str, str]) -> dict[str, str]:
    """Return the rows but for those of the feed-forward networks."""
    return {ours: row for ours, row in rows.items() if ".feed_forward." not in ours}


def in_layers(
    rows: Mapping[str, str], experts: Mapping[str, str], sparse: Iterable[int], n: int
) -> dict[str, str]:
    """Return the rows of n layers, where those of the numbers `sparse` have the rows of experts."""
    networks = {ours: row for ours, row in rows.items() if ".feed_forward." in ours}
    made = without_feed_forward(rows)
    for i in range(n):
        own = experts if i in sparse else networks
        made |= {ours.replace("*", f"{i}"): row.replace("*", f"{i}") for ours, row in own.items()}
    return made


def in_dense_layers(letter: str, size: int, sparse: Iterable[int], n: int) -> dict[str, int]:
    """Return the sizes of an axis of the feed-forward networks of all layers but `sparse`."""
    return {f"decoder.layers.{i}.feed_forward.{letter}": size for i in range(n) if i not in sparse}
