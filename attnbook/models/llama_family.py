"""Llama and its relatives: what their configs say. The names of their arrays are in `llama_names`.

One function, `llama_like`, puts all of them together. The functions of the single models say what
each of them has, and raise where a config asks for what this package lacks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbook.models import llama_names as names
from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.models.rotations import rotation, rotation_of
from attnbook.normalization.rms_norm import RMSNormWeights
from attnbook.positions import Rotary
from attnbook.transformers.feed_forward import GatedFeedForwardWeights
from attnbook.transformers.weights import TransformerWeights

LAYER_TYPES = ("full_attention", "sliding_attention")
"""What an entry of ``layer_types`` can be."""


def llama_like(
    config: Config,
    rows: Mapping[str, str],
    *,
    windows: Sequence[int | None] = (),
    positions: Rotary | None = None,
    activation: str = "hidden_act",
    sizes: Mapping[str, int] | None = None,
    plain: Mapping[str, Any] | None = None,
    kinds: tuple[type, ...] = (GatedFeedForwardWeights,),
    harmless: tuple[str, ...] = (),
    **more: Any,
) -> Architecture:
    """Return the architecture of a relative of Llama.

    `rows` are the names of its arrays, `windows` how many tokens each of its layers sees,
    `positions` its rotation, if it is not the one that `rotation_of` returns, and `activation` the
    entry that names the activation. All others are fields of the architecture.
    """
    config = config.over(rope_theta=10000.0)
    d_model, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    n_kv_heads, d_k = config.size("num_key_value_heads", n_heads), head_width(config)
    norms = ("q_norm", "k_norm")
    tied = config.flag("tie_word_embeddings", False)
    windowed = (f"decoder.layers.{i}.self_attention.window" for i in range(len(windows)))
    return Architecture(
        TransformerWeights,
        names={**rows, **({} if tied else {"output": "lm_head.weight.T"})},
        sizes={
            **sizes_of(d_model, config.size("intermediate_size"), n_heads, n_kv_heads, d_k),
            **{f"decoder.layers.*.self_attention.{norm}.d_model": d_k for norm in norms},
            **{"h": n_heads, "V_t": config.size("vocab_size")},
            **(sizes or {}),
        },
        plain={
            **{"n_heads": n_heads, "n_kv_heads": n_kv_heads},
            "activation": config.activation(activation, "silu"),
            "epsilon": config.number("rms_norm_eps", 1e-6),
            **{"norm": "pre", "positions": "rotary", "scale_embeddings": False},
            "decoder.positions": rotation_of(config) if positions is None else positions,
            **dict(zip(windowed, windows, strict=True)),
            **(plain or {}),
        },
        layers={"decoder.layers": config.size("num_hidden_layers", at_least=0)},
        kinds=(RMSNormWeights, *kinds),
        prefix="model.",
        same={"lm_head.weight": "embed_tokens.weight"} if tied else {},
        harmless=(*names.HARMLESS, *harmless),
        **more,
    )


def head_width(config: Config) -> int:
    """Return d_k, by default d_model / h."""
    d_model, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    return config.size("head_dim", d_model // n_heads)


def attention_biases(config: Config) -> dict[str, str]:
    return names.ATTENTION_BIASES if config.flag("attention_bias", False) else {}


def llama(config: Config) -> Architecture:
    """Return the architecture of Llama 1 to 3."""
    config.only(sliding_window=None)
    biases = names.FEED_FORWARD_BIASES if config.flag("mlp_bias", False) else {}
    return llama_like(config, names.NAMES | attention_biases(config) | biases)


def mistral(config: Config) -> Architecture:
    """Return the architecture of Mistral: in all layers, a token sees only a window."""
    config = config.over(num_key_value_heads=8, sliding_window=4096)
    return llama_like(config, names.NAMES, windows=same_windows(config))


def qwen2(config: Config) -> Architecture:
    """Return the architecture of Qwen2 and 2.5, whose queries, keys and values have biases."""
    config = config.over(num_key_value_heads=32, sliding_window=4096)
    biases = {ours: row for ours, row in names.ATTENTION_BIASES.items() if "b_O" not in ours}
    return llama_like(config, names.NAMES | biases, windows=upper_windows(config))


def qwen3(config: Config) -> Architecture:
    """Return the architecture of Qwen3, which normalises queries and keys."""
    config = config.over(head_dim=128, num_key_value_heads=32, sliding_window=4096)
    rows = names.NAMES | names.HEAD_NORMS | attention_biases(config)
    return llama_like(config, rows, windows=upper_windows(config))


def phi3(config: Config) -> Architecture:
    """Return the architecture of Phi-3, 3.5 and 4-mini: fused matrices, partial rotation."""
    config = config.over(
        **{"rms_norm_eps": 1e-5, "rope_theta": 10000.0},
        **{"max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    )
    return llama_like(
        config,
        names.NAMES | names.FUSED,
        windows=same_windows(config),
        positions=rotation_of(config, partial=head_width(config)),
    )


def gemma2(config: Config) -> Architecture:
    """Return the architecture of Gemma 2: two norms a sublayer, soft-capping, local layers."""
    config = config.over(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    n = config.size("num_hidden_layers", at_least=0)
    return _gemma(
        config,
        names.NAMES,
        sliding=[i % 2 == 0 for i in range(n)],
        plain={"cap": config.number_or_none("attn_logit_softcapping")},
    )


def gemma3(config: Config) -> Architecture:
    """Return the architecture of Gemma 3 for text: normalised heads, a local rotation."""
    config.only(attn_logit_softcapping=None)  # which transformers reads, but does not use
    config = config.over(rope_theta=1e6, rope_local_base_freq=1e4)
    period = config.size("sliding_window_pattern", 6)
    n = config.size("num_hidden_layers", at_least=0)
    both, older = config.part("rope_parameters"), config.part("rope_scaling")
    both.only(rope_type=None, type=None)
    wide, local = both.part("full_attention"), both.part("sliding_attention")
    wide = older.over(**wide.entries) if older.entries else wide
    local = local.over(rope_theta=config.number("rope_local_base_freq"))
    return _gemma(
        config,
        names.NAMES | names.HEAD_NORMS,
        sliding=[(i + 1) % period > 0 for i in range(n)],
        positions=rotation(config, wide),
        local=rotation(config, local),
    )


def _gemma(config, rows, *, sliding, local=None, plain=None, **options):
    """Return what Gemma 2 and 3 have in common; layers with a window rotate as `local` says."""
    config = config.over(
        **{"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
        **{"query_pre_attn_scalar": 256, "tie_word_embeddings": True},
        hidden_activation="gelu_pytorch_tanh",
    )
    config.only(use_bidirectional_attention=False)
    windows = mixed_windows(config, config.size_or_none("sliding_window"), sliding)
    rotaries = {
        f"decoder.layers.{i}.rotary": local
        for i, window in enumerate(windows)
        if window is not None and local is not None
    }
    return llama_like(
        config,
        rows | names.POST_NORMS | attention_biases(config),
        windows=windows,
        activation="hidden_activation",
        plain={
            "scale": config.number("query_pre_attn_scalar") ** -0.5,
            "logit_cap": config.number_or_none("final_logit_softcapping"),
            **{"scale_embeddings": True, **rotaries, **(plain or {})},
        },
        terms={"gain": 1.0},
        **options,
    )


def same_windows(config: Config) -> list[int | None]:
    """Return the window of each layer where all have the same or none."""
    config.only(layer_types=None)
    n = config.size("num_hidden_layers", at_least=0)
    return [config.size_or_none("sliding_window")] * n


def upper_windows(config: Config) -> list[int | None]:
    """Return the windows of Qwen: with ``use_sliding_window``, upper layers have one."""
    used, n = config.flag("use_sliding_window", False), config.size("num_hidden_layers", at_least=0)
    window = config.size_or_none("sliding_window") if used else None
    first = config.size("max_window_layers", 28, at_least=0) if used else n
    return mixed_windows(config, window, [window is not None and i >= first for i in range(n)])


def mixed_windows(config: Config, window: int | None, sliding: Sequence[bool]) -> list[int | None]:
    """Return the window of each layer, where ``layer_types`` say which layers have `window`.

    Without them, `sliding` says so.
    """
    default = [LAYER_TYPES[i] for i in sliding]
    types = config.choices("layer_types", LAYER_TYPES, len(default), default)
    if window is None and LAYER_TYPES[1] in types:
        raise ValueError(
            f"{config.label} must have a sliding window for the layers of type {LAYER_TYPES[1]!r}, "
            f"got none"
        )
    return [window if kind == LAYER_TYPES[1] else None for kind in types]
