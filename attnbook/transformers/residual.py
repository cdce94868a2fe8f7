r"""The residual connection: what a sublayer makes of its input is added to it.

.. math:: \text{pre-norm: } x + f(\operatorname{norm}(x)), \qquad
          \text{post-norm: } \operatorname{norm}(x + f(x))
"""

from attnbook.transformers.normalization import NORMALIZED

ORDERS = ("pre", "post")


def residual(x, sublayer, norm, order, drop):
    """Add to `x` what `sublayer` makes of it; also return what else it returned."""
    y, other = sublayer(NORMALIZED[type(norm)](x, norm) if order == "pre" else x)
    x = x + (y if drop is None else drop(y))
    return (x if order == "pre" else NORMALIZED[type(norm)](x, norm)), other
