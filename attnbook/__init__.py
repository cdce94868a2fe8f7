"""Attention from a dot product upwards: the package that the book builds, chapter by chapter."""

from attnbook.attention import attention, attention_vjp, attention_weights
from attnbook.backends import Backend, backends, move
from attnbook.single_head import SingleHeadWeights, single_head_attention
from attnbook.softmax import RunningSoftmax, log_softmax, softmax

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "RunningSoftmax",
    "SingleHeadWeights",
    "attention",
    "attention_vjp",
    "attention_weights",
    "backends",
    "log_softmax",
    "move",
    "single_head_attention",
    "softmax",
]
