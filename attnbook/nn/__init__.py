"""Thin `torch.nn` modules: they hold parameters and call the functions."""

try:
    import torch as torch
except ImportError as error:
    raise ImportError("attnbook.nn needs PyTorch: pip install torch") from error

from attnbook.nn.attention import Attention, MultiHeadAttention
from attnbook.nn.feed_forward import FeedForward, GatedFeedForward
from attnbook.nn.latent import LatentAttention
from attnbook.nn.layers import DecoderLayer, EncoderLayer
from attnbook.nn.mixture import MixtureOfExperts, Router
from attnbook.nn.normalization import LayerNorm, RMSNorm
from attnbook.nn.positions import RelativeBias
from attnbook.nn.states import LinearAttention, Mamba2
from attnbook.nn.transformer import Decoder, Encoder, Transformer

__all__ = [
    "Attention",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GatedFeedForward",
    "LatentAttention",
    "LayerNorm",
    "LinearAttention",
    "Mamba2",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "RMSNorm",
    "RelativeBias",
    "Router",
    "Transformer",
]
