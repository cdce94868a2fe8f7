"""Linear attention: a state of fixed size in place of a cache that grows.

`decayed_attention` adds each value to the state and lets the state fade; `delta_rule` overwrites
what the state holds for a key. Both read a sequence token by token, or in chunks by products of
matrices. `kernel_attention` replaces the softmax by a product of features.
"""

from attnbook.linear_attention.convolution import short_convolution
from attnbook.linear_attention.decayed import decayed_attention, decayed_attention_vjp
from attnbook.linear_attention.delta import delta_rule, delta_rule_vjp
from attnbook.linear_attention.kernel_trick import elu_plus_one, kernel_attention

__all__ = [
    "decayed_attention",
    "decayed_attention_vjp",
    "delta_rule",
    "delta_rule_vjp",
    "elu_plus_one",
    "kernel_attention",
    "short_convolution",
]
