"""Linear attention: a state of fixed size in place of a cache that grows.

`decayed_attention` adds each value to the state and lets the state fade; `delta_rule` overwrites
what the state holds for a key. Both read a sequence token by token, or in chunks by products of
matrices. `kernel_attention` replaces the softmax by a product of features. `linear_attention_layer`
and `mamba2_layer` are whole layers around such a state.
"""

from attnbook.linear_attention.convolution import short_convolution
from attnbook.linear_attention.decayed import decayed_attention, decayed_attention_vjp
from attnbook.linear_attention.delta import delta_rule, delta_rule_vjp
from attnbook.linear_attention.gates import LayerState
from attnbook.linear_attention.kernel_trick import elu_plus_one, kernel_attention
from attnbook.linear_attention.layers import LinearAttentionWeights, linear_attention_layer
from attnbook.linear_attention.mamba import Mamba2Weights, mamba2_layer

__all__ = [
    "LayerState",
    "LinearAttentionWeights",
    "Mamba2Weights",
    "decayed_attention",
    "decayed_attention_vjp",
    "delta_rule",
    "delta_rule_vjp",
    "elu_plus_one",
    "kernel_attention",
    "linear_attention_layer",
    "mamba2_layer",
    "short_convolution",
]
