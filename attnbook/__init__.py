"""Attention from a dot product upwards: the package that the book builds, chapter by chapter."""

from attnbook import masking, positions
from attnbook.arrays.move import move
from attnbook.kernels.backends import Backend, backends, devices
from attnbook.kernels.running_softmax import RunningSoftmax
from attnbook.multi_head.attention import (
    multi_head_attention,
)
from attnbook.multi_head.heads import merge_heads, split_heads
from attnbook.multi_head.latent import latent_attention
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.normalization.layer_norm import LayerNormWeights, layer_norm
from attnbook.normalization.rms_norm import RMSNormWeights, rms_norm
from attnbook.single_head.attention import attention, attention_vjp, attention_weights
from attnbook.single_head.head import (
    SingleHeadWeights,
    single_head_attention,
)
from attnbook.single_head.softmax import log_softmax, softmax
from attnbook.training.loss import cross_entropy
from attnbook.transformers.activations import gelu, gelu_tanh, relu, silu
from attnbook.transformers.block import (
    TransformerBlockWeights,
    transformer_block,
)
from attnbook.transformers.decoder import (
    decoder,
    decoder_layer,
)
from attnbook.transformers.dropout import dropout
from attnbook.transformers.embed import embed
from attnbook.transformers.encoder import (
    encoder,
    encoder_layer,
)
from attnbook.transformers.feed_forward import (
    FeedForwardWeights,
    GatedFeedForwardWeights,
    feed_forward,
)
from attnbook.transformers.layer import DecoderLayerWeights, EncoderLayerWeights
from attnbook.transformers.mixture import MixtureWeights, mixture_of_experts
from attnbook.transformers.rotary_layout import rotary_layout
from attnbook.transformers.router import (
    RouterWeights,
    expert_load,
    load_balancing_loss,
    route,
)
from attnbook.transformers.stack import DecoderWeights, EncoderWeights
from attnbook.transformers.transformer import transformer
from attnbook.transformers.weights import TransformerWeights

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "DecoderLayerWeights",
    "DecoderWeights",
    "EncoderLayerWeights",
    "EncoderWeights",
    "FeedForwardWeights",
    "GatedFeedForwardWeights",
    "LatentWeights",
    "LayerNormWeights",
    "MixtureWeights",
    "MultiHeadWeights",
    "RMSNormWeights",
    "RouterWeights",
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
    "devices",
    "dropout",
    "embed",
    "encoder",
    "encoder_layer",
    "expert_load",
    "feed_forward",
    "gelu",
    "gelu_tanh",
    "latent_attention",
    "layer_norm",
    "load_balancing_loss",
    "log_softmax",
    "masking",
    "merge_heads",
    "mixture_of_experts",
    "move",
    "multi_head_attention",
    "positions",
    "relu",
    "rms_norm",
    "rotary_layout",
    "route",
    "silu",
    "single_head_attention",
    "softmax",
    "split_heads",
    "transformer",
    "transformer_block",
]
