"""Attention from a dot product upwards: the package that the book builds, chapter by chapter."""

from attnbook import masking
from attnbook.attention import attention, attention_vjp, attention_weights
from attnbook.backends import Backend, backends, move
from attnbook.multi_head import merge_heads, multi_head_attention, split_heads
from attnbook.multi_head_weights import MultiHeadWeights
from attnbook.single_head import SingleHeadWeights, single_head_attention
from attnbook.softmax import RunningSoftmax, log_softmax, softmax

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "MultiHeadWeights",
    "RunningSoftmax",
    "SingleHeadWeights",
    "attention",
    "attention_vjp",
    "attention_weights",
    "backends",
    "log_softmax",
    "masking",
    "merge_heads",
    "move",
    "multi_head_attention",
    "single_head_attention",
    "softmax",
    "split_heads",
]
