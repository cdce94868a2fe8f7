"""Thin `torch.nn` modules: they hold parameters and call the functions."""

try:
    import torch as torch
except ImportError as error:
    raise ImportError("attnbook.nn needs PyTorch: pip install 'attnbook[torch]'") from error

from attnbook.nn.attention import Attention, MultiHeadAttention
from attnbook.nn.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    RMSNorm,
)
from attnbook.nn.positions import RelativeBias
from attnbook.nn.transformer import Decoder, Encoder, Transformer

__all__ = [
    "Attention",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "LayerNorm",
    "MultiHeadAttention",
    "RMSNorm",
    "RelativeBias",
    "Transformer",
]
