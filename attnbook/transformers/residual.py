r"""The residual connection: what a sublayer makes of its input is added to it.

.. math:: \text{pre-norm: } x + f(\operatorname{LN}(x)), \qquad
          \text{post-norm: } \operatorname{LN}(x + f(x))
"""

from attnbook.transformers.layer_norm import layer_norm_of

ORDERS = ("pre", "post")


def residual(x, sublayer, norm, order, drop):
    """Add to `x` what `sublayer` makes of it; also return what else it returned."""
    scale = (norm.gain, norm.bias, norm.epsilon)
    y, other = sublayer(layer_norm_of(x, *scale) if order == "pre" else x)
    x = x + (y if drop is None else drop(y))
    return (x if order == "pre" else layer_norm_of(x, *scale)), other
