r"""The encoder: layers of self-attention and feed-forward, each added to what it was given.

.. math:: \text{pre-norm: } x + f(\operatorname{LN}(x)), \qquad
          \text{post-norm: } \operatorname{LN}(x + f(x))
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from attnbook.arrays.array import Array, Mask
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.normalization.normalization import NORMALIZED
from attnbook.transformers.layer import EncoderLayerWeights
from attnbook.transformers.networks import NETWORKS
from attnbook.transformers.residual import residual
from attnbook.transformers.self_attention import (
    SELF_ATTENTIONS,
    LayerOptions,
    options_of,
)
from attnbook.transformers.stack import EncoderWeights, check_stream

# The mathematics, of checked arrays.


def encoder_layer_of(x: Array, weights: EncoderLayerWeights, options: LayerOptions) -> Array:
    norm, drop = weights.norm, options.drop
    own, network = weights.self_attention, weights.feed_forward
    attend = partial(SELF_ATTENTIONS[type(own)], weights=own, options=options)
    x = residual(x, attend, weights.self_attention_norm, norm, drop)
    feed = partial(NETWORKS[type(network)], weights=network, drop=drop)
    return residual(x, feed, weights.feed_forward_norm, norm, drop)


def encoder_of(x: Array, weights: EncoderWeights, options: LayerOptions) -> Array:
    for layer in weights.layers:
        x = encoder_layer_of(x, layer, options)
    norm = weights.final_norm
    return x if norm is None else NORMALIZED[type(norm)](x, norm)


# The functions, which check what they are given.


def encoder_layer(
    x: Annotated[Array, "... n d_model"],
    weights: EncoderLayerWeights,
    mask: Mask | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    bias: Annotated[Array, "..."] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n d_model"]:
    r"""Let the tokens attend to each other, then pass each through the feed-forward network.

    .. math:: y = x + \operatorname{MultiHead}(\operatorname{LN}_1(x)), \qquad
              z = y + \operatorname{FF}(\operatorname{LN}_2(y)) \qquad \text{(pre-norm)}

    .. math:: y = \operatorname{LN}_1(x + \operatorname{MultiHead}(x)), \qquad
              z = \operatorname{LN}_2(y + \operatorname{FF}(y)) \qquad \text{(post-norm)}

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : EncoderLayerWeights
        They determine which of the two orders it is.
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        **True = may attend**, as in `multi_head_attention`.
    drop : callable, optional
        Applied to the output of both sublayers before it is added, and to the hidden units of the
        feed-forward network; for example ``functools.partial(dropout, rate=0.1, rng=rng)``.
    rotate : bool
        Whether to rotate queries and keys by their positions, as `positions.rotary` does.
    bias : array that broadcasts to (..., h, n, n), optional
        Finite numbers that are added to the scaled scores, as in `multi_head_attention`.
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n, d_model)
        ``impl=kernels.Recorder()`` keeps the attention weights of every head.

    Raises
    ------
    TypeError, ValueError
        As in `multi_head_attention`; TypeError if `rotate` is not a bool or `drop` is not
        callable; ValueError if `rotate` is True and the width of a head is odd, or if the residual
        sum overflows in float16, because the next normalisation would turn it into NaN.

    Notes
    -----
    A fully masked token gets b_O, or 0, from its attention, and the residual connection keeps it.
    Cost: O(n d_model (d_model + d_ff) + n² d_model) time, O(h n² + n d_ff) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; Xiong et al. (2020), "On
    layer normalization in the transformer architecture"; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = EncoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32, norm="post")
    >>> encoder_layer(np.eye(5, 8), weights).shape
    (5, 8)
    """
    check_impl(impl)
    check_stream(x, weights, EncoderLayerWeights, mask, rotate, drop, bias)
    options = options_of(weights, x, rotate=rotate, bias=bias, mask=mask, drop=drop, impl=impl)
    return encoder_layer_of(x, weights, options)


def encoder(
    x: Annotated[Array, "... n d_model"],
    weights: EncoderWeights,
    mask: Mask | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    bias: Annotated[Array, "..."] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n d_model"]:
    """Apply every layer in turn, then the final normalisation if there is one.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : EncoderWeights
    mask, drop, rotate, bias, impl
        As in `encoder_layer`; mask and bias apply to every layer. If `weights` has positions of its
        own, `rotate` must be False, and their bias is added to the one that you pass.

    Returns
    -------
    array, shape (..., n, d_model)
        ``impl=kernels.Recorder()`` keeps the attention weights of every layer.

    Raises
    ------
    TypeError, ValueError
        As in `encoder_layer`.

    Notes
    -----
    Cost: that of all layers, plus O(n d_model) for the final normalisation.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = EncoderWeights.init(0, 3, d_model=8, n_heads=2, d_ff=32)
    >>> encoder(np.eye(5, 8), weights).shape
    (5, 8)
    """
    check_impl(impl)
    check_stream(x, weights, EncoderWeights, mask, rotate, drop, bias)
    options = options_of(weights, x, rotate=rotate, bias=bias, mask=mask, drop=drop, impl=impl)
    return encoder_of(x, weights, options)
