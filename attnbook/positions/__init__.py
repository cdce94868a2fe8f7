r"""Positions: they tell attention, which has no sense of order, where each token stands.

Positions are either added to the tokens, as sines and cosines or as learned rows, or they act in
every self-attention, where queries and keys are rotated or a bias is added to the scores.
"""

from attnbook.positions.biases import Alibi, RelativeBias, alibi, relative_buckets
from attnbook.positions.rotation import Rotary, rotary, to_halves, to_interleaved
from attnbook.positions.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)
from attnbook.positions.tables import learned, sinusoidal

__all__ = [
    "Alibi",
    "DynamicScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "RelativeBias",
    "Rotary",
    "YarnScaling",
    "alibi",
    "learned",
    "relative_buckets",
    "rotary",
    "sinusoidal",
    "to_halves",
    "to_interleaved",
]
