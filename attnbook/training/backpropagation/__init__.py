"""Backpropagation by hand: the gradient of a whole decoder, in any array library.

There are two kinds of functions. ``NAME_vjp(inputs…, grad_output)`` takes the inputs of NAME and
the gradient of the loss with respect to its output, and returns the gradients with respect to its
inputs. ``NAME_with_vjp(inputs…)`` is composed of other functions: it returns the output and a
function ``vjp(grad_output)``, which applies their vjps in reverse order and uses what the forward
pass computed. The gradients with respect to weights are weights of the same class.

These functions do not check their arrays; `attnbook.training.gradients` does.
"""

from attnbook.training.backpropagation.activations import (
    gelu_tanh_vjp,
    gelu_vjp,
    relu_vjp,
    silu_vjp,
)
from attnbook.training.backpropagation.attention import (
    attention_with_vjp,
    multi_head_with_vjp,
    softmax_vjp,
)
from attnbook.training.backpropagation.block import decoder_layer_with_vjp, residual_with_vjp
from attnbook.training.backpropagation.feed_forward import feed_forward_with_vjp
from attnbook.training.backpropagation.linear import embed_vjp, linear_vjp
from attnbook.training.backpropagation.loss import cross_entropy_vjp
from attnbook.training.backpropagation.normalization import layer_norm_vjp, rms_norm_vjp
from attnbook.training.backpropagation.transformer import gradients, transformer_with_vjp

__all__ = [
    "attention_with_vjp",
    "cross_entropy_vjp",
    "decoder_layer_with_vjp",
    "embed_vjp",
    "feed_forward_with_vjp",
    "gelu_tanh_vjp",
    "gelu_vjp",
    "gradients",
    "layer_norm_vjp",
    "linear_vjp",
    "multi_head_with_vjp",
    "relu_vjp",
    "residual_with_vjp",
    "rms_norm_vjp",
    "silu_vjp",
    "softmax_vjp",
    "transformer_with_vjp",
]
