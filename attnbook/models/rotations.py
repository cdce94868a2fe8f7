"""The rotation of queries and keys that a config.json describes."""

from collections.abc import Mapping
from typing import Any

from attnbook.models.architecture import Config
from attnbook.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
)

ROTATIONS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""What ``rope_type`` can be."""


def rotation_of(config: Config, default: Mapping[str, Any] | None = None, **options: Any) -> Rotary:
    """Return the rotation that newer files describe in one entry, and older ones in two.

    Without any of them, `default` describes it. `options` are those of `rotation`.
    """
    newer, older = config.part("rope_parameters", default), config.part("rope_scaling")
    rope = older if older.entries else newer  # as transformers, where a file has both
    rope.only(full_attention=None, sliding_attention=None)
    return rotation(config, rope, **options)


def rotation(
    config: Config, rope: Config, *, partial: int | None = None, interleaved: bool = False
) -> Rotary:
    """Return the rotation that the entries `rope` of a config describe.

    The config must have a ``rope_theta`` for a `rope` without one. `partial` is the width of the
    heads of a model that may rotate only a part of their features.
    """
    base = rope.number("rope_theta", config.number("rope_theta"))
    width = None
    if partial is None:
        config.only(partial_rotary_factor=1.0)
        rope.only(partial_rotary_factor=1.0)
    else:
        share = config.number("partial_rotary_factor", 1.0)
        width = int(partial * rope.number("partial_rotary_factor", share))
    return Rotary(base, interleaved, width, scaling=_scaling(config, rope))


def _scaling(config, rope):
    kind = rope.choice("rope_type", ROTATIONS, rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "dynamic":
        return DynamicScaling(rope.number("factor"), config.size("max_position_embeddings"))
    longest, name = config.known("max_position_embeddings"), "original_max_position_embeddings"
    home = rope if config.known(name) is None else config  # Phi-3 says it there
    if kind == "llama3":
        return Llama3Scaling(
            factor=rope.number("factor"),
            low=rope.number("low_freq_factor"),
            high=rope.number("high_freq_factor"),
            n_positions=home.size(name, longest),
        )
    n = home.size(name, longest)
    factor = rope.number("factor", None if longest is None else longest / n)
    attention_factor = rope.number_or_none("attention_factor")
    if kind == "yarn":
        return YarnScaling(
            *(factor, n, rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)),
            attention_factor=attention_factor,
            mscale=rope.number("mscale", 0.0),
            mscale_all_dim=rope.number("mscale_all_dim", 0.0),
            truncate=rope.flag("truncate", True),
        )
    short, long = (tuple(rope.listed(f"{x}_factor")) for x in ("short", "long"))
    return LongRopeScaling(short, long, n, factor, attention_factor)
