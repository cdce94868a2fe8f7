"""Attention from a dot product upwards: the package that the book builds, chapter by chapter."""

from attnbook import masking, positions
from attnbook.attention import attention, attention_vjp, attention_weights
from attnbook.backends import Backend, backends, move
from attnbook.cross_entropy import cross_entropy
from attnbook.decoder import DecoderLayerWeights, DecoderWeights, decoder, decoder_layer
from attnbook.dropout import dropout
from attnbook.embed import embed
from attnbook.encoder import EncoderLayerWeights, EncoderWeights, encoder, encoder_layer
from attnbook.feed_forward import FeedForwardWeights, feed_forward, gelu, relu
from attnbook.layer_norm import LayerNormWeights, layer_norm
from attnbook.multi_head import merge_heads, multi_head_attention, split_heads
from attnbook.multi_head_weights import MultiHeadWeights
from attnbook.single_head import SingleHeadWeights, single_head_attention
from attnbook.softmax import RunningSoftmax, log_softmax, softmax
from attnbook.transformer import transformer
from attnbook.transformer_block import TransformerBlockWeights, transformer_block
from attnbook.transformer_weights import TransformerWeights

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "DecoderLayerWeights",
    "DecoderWeights",
    "EncoderLayerWeights",
    "EncoderWeights",
    "FeedForwardWeights",
    "LayerNormWeights",
    "MultiHeadWeights",
    "RunningSoftmax",
    "SingleHeadWeights",
    "TransformerBlockWeights",
    "TransformerWeights",
    "attention",
    "attention_vjp",
    "attention_weights",
    "backends",
    "cross_entropy",
    "decoder",
    "decoder_layer",
    "dropout",
    "embed",
    "encoder",
    "encoder_layer",
    "feed_forward",
    "gelu",
    "layer_norm",
    "log_softmax",
    "masking",
    "merge_heads",
    "move",
    "multi_head_attention",
    "positions",
    "relu",
    "single_head_attention",
    "softmax",
    "split_heads",
    "transformer",
    "transformer_block",
]
