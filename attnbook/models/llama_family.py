"""Llama and its relatives: what their configs say. The names of their arrays are in `llama_names`.

One function, `llama_like`, puts all of them together. The functions of the single models say what
each of them has, and raise where a config asks for what this package lacks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attnbook.models import llama_names as names
from attnbook.models.architecture import Architecture, Config, sizes_of
from attnbook.models.rotations import rotation_of
from attnbook.normalization.rms_norm import RMSNormWeights
from attnbook.transformers.feed_forward import GatedFeedForwardWeights
from attnbook.transformers.weights import TransformerWeights

LAYER_TYPES = ("full_attention", "sliding_attention")
"""What an entry of ``layer_types`` can be."""


def llama_like(
    config: Config,
    rows: Mapping[str, str],
    *,
    windows: Sequence[int | None] = (),
    activation: str = "hidden_act",
    plain: Mapping[str, Any] | None = None,
    **more: Any,
) -> Architecture:
    """Return the architecture of a relative of Llama.

    `rows` are the names of its arrays, `windows` how many tokens each of its layers sees, and
    `activation` is the entry that names the activation. `plain` and `more` are fields of the
    architecture that others lack.
    """
    d_model, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    n_kv_heads = config.size("num_key_value_heads", n_heads)
    d_k = config.size("head_dim", d_model // n_heads)
    tied = config.flag("tie_word_embeddings", False)
    ends = {} if tied else {"output": "lm_head.weight.T"}
    layers = (f"decoder.layers.{i}.self_attention.window" for i in range(len(windows)))
    return Architecture(
        TransformerWeights,
        names={**rows, **ends},
        sizes={
            **sizes_of(d_model, config.size("intermediate_size"), n_heads, n_kv_heads, d_k),
            **{"d_k": d_k, "h": n_heads, "V_t": config.size("vocab_size")},
        },
        plain={
            **{"n_heads": n_heads, "n_kv_heads": n_kv_heads},
            "activation": config.activation(activation, "silu"),
            "epsilon": config.number("rms_norm_eps", 1e-6),
            **{"norm": "pre", "positions": "rotary", "scale_embeddings": False},
            "decoder.positions": rotation_of(config),
            **dict(zip(layers, windows, strict=True)),
            **(plain or {}),
        },
        layers={"decoder.layers": config.size("num_hidden_layers", at_least=0)},
        kinds=(RMSNormWeights, GatedFeedForwardWeights),
        prefix="model.",
        same={"lm_head.weight": "embed_tokens.weight"} if tied else {},
        harmless=names.HARMLESS,
        **more,
    )


def llama(config: Config) -> Architecture:
    """Llama 1 to 3."""
    config.only(sliding_window=None)
    attention, feed_forward = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    return llama_like(
        config,
        names.NAMES
        | (names.ATTENTION_BIASES if attention else {})
        | (names.FEED_FORWARD_BIASES if feed_forward else {}),
    )


def qwen2(config: Config) -> Architecture:
    """Qwen2 and 2.5."""
    biases = dict(list(names.ATTENTION_BIASES.items())[:3])
    return llama_like(config, names.NAMES | biases, windows=upper_windows(config))


def phi3(config: Config) -> Architecture:
    """Phi-3, 3.5 and 4-mini."""
    config = config.over(rms_norm_eps=1e-5)
    return llama_like(config, names.NAMES | names.FUSED, windows=same_windows(config))


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


def mixed_windows(
    config: Config, window: int | None, sliding: Sequence[bool]
) -> list[int | None]:
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
