"""The rotation of queries and keys that a config.json describes."""

from attnbook.models.architecture import Config
from attnbook.positions import Llama3Scaling, Rotary

ROTATIONS = ("default", "llama3")
"""What ``rope_type`` can be."""


def rotation_of(config: Config, *, base: float = 10000.0) -> Rotary:
    """Return the rotation that newer files describe in one entry, and older ones in two."""
    newer, older = config.part("rope_parameters"), config.part("rope_scaling")
    rope = older if older.entries else newer  # as transformers, where a file has both
    config.only(partial_rotary_factor=1.0)
    rope.only(partial_rotary_factor=1.0)
    base = newer.number("rope_theta", config.number("rope_theta", base))
    base = rope.number("rope_theta", base)
    if rope.choice("rope_type", ROTATIONS, rope.get("type", "default")) == "default":
        return Rotary(base=base)
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low=rope.number("low_freq_factor"),
        high=rope.number("high_freq_factor"),
        n_positions=rope.size("original_max_position_embeddings"),
    )
    return Rotary(base=base, scaling=scaling)
