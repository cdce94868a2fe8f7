"""Forwards through the residual connection and a block, and backwards in reverse order."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from attnbook.arrays.array import Array, Mask
from attnbook.normalization.normalization import NORMALIZED, NormWeights
from attnbook.positions.piece import AttentionPositions
from attnbook.training.backpropagation.attention import multi_head_with_vjp
from attnbook.training.backpropagation.feed_forward import feed_forward_with_vjp
from attnbook.training.backpropagation.normalization import NORMALIZATION_VJPS
from attnbook.transformers.layer import DecoderLayerWeights


def residual_with_vjp(
    x: Annotated[Array, "... n d_model"],
    sublayer: Callable[[Array], tuple[Array, Callable]],
    norm: NormWeights,
    order: str,
    before_sum: NormWeights | None = None,
) -> tuple[Annotated[Array, "... n d_model"], Callable[[Array], tuple[Any, ...]]]:
    """Return x + sublayer(norm(x)) or norm(x + sublayer(x)), and the vjp of the result.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    sublayer : callable
        ``sublayer(x)`` returns an output and its vjp.
    norm : LayerNormWeights or RMSNormWeights
    order : str
        ``"pre"`` or ``"post"``.
    before_sum : LayerNormWeights or RMSNormWeights, optional
        Normalises the output of the sublayer before it is added.

    Returns
    -------
    output : array, shape (..., n, d_model)
    vjp : callable
        ``vjp(grad_output)`` is (grad_x, grad_norm, …), where … is what the vjp of the sublayer
        returns after the gradient with respect to its input. With `before_sum`, its gradient comes
        last. A sum passes the same gradient to both of its terms.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import LayerNormWeights
    >>> def double(x):
    ...     return 2 * x, lambda grad_output: (2 * grad_output,)
    >>> _, vjp = residual_with_vjp(np.eye(2), double, LayerNormWeights(epsilon=1.0), "pre")
    >>> vjp(np.ones((2, 2)))[0]
    array([[1., 1.],
           [1., 1.]])
    """
    if before_sum is not None:
        sublayer = partial(_normalized_after, sublayer=sublayer, norm=before_sum)
    normalize, normalize_vjp = NORMALIZED[type(norm)], NORMALIZATION_VJPS[type(norm)]
    if order == "pre":
        y, sublayer_vjp = sublayer(normalize(x, norm))

        def vjp(grad_output):
            grad_y, *others = sublayer_vjp(grad_output)
            grad_x, grad_norm = normalize_vjp(x, norm, grad_y)
            return grad_output + grad_x, grad_norm, *others

        return x + y, vjp

    y, sublayer_vjp = sublayer(x)
    total = x + y

    def vjp_of_post(grad_output):
        grad_total, grad_norm = normalize_vjp(total, norm, grad_output)
        grad_x, *others = sublayer_vjp(grad_total)
        return grad_total + grad_x, grad_norm, *others

    return normalize(total, norm), vjp_of_post


def _normalized_after(x, sublayer, norm):
    """Return norm(sublayer(x)) and its vjp, whose last gradient is that of the norm."""
    y, sublayer_vjp = sublayer(x)

    def vjp(grad_output):
        grad_y, grad_norm = NORMALIZATION_VJPS[type(norm)](y, norm, grad_output)
        return *sublayer_vjp(grad_y), grad_norm

    return NORMALIZED[type(norm)](y, norm), vjp


def decoder_layer_with_vjp(
    x: Annotated[Array, "... n d_model"],
    weights: DecoderLayerWeights,
    mask: Mask | None = None,
    bias: Annotated[Array, "..."] | None = None,
    positions: AttentionPositions | None = None,
) -> tuple[Annotated[Array, "... n d_model"], Callable[[Array], tuple[Any, ...]]]:
    """Return the output of one decoder layer without cross-attention, and its vjp.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : DecoderLayerWeights
        They must have no cross-attention.
    mask, bias, positions
        As in `multi_head_with_vjp`.

    Returns
    -------
    output : array, shape (..., n, d_model)
    vjp : callable
        ``vjp(grad_output)`` is (grad_x, grad_weights, grad_bias).

    Examples
    --------
    >>> import numpy as np
    >>> weights = DecoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32, cross=False)
    >>> output, vjp = decoder_layer_with_vjp(np.eye(5, 8), weights)
    >>> vjp(output)[1].feed_forward.W_1.shape
    (8, 32)
    """
    own: Any = weights.self_attention  # of classes with a backward pass, as has been checked
    feed: Any = weights.feed_forward
    order = weights.norm
    positions = positions if weights.rotary is None else weights.rotary
    own_after, feed_after = weights.self_attention_post_norm, weights.feed_forward_post_norm
    attend = partial(multi_head_with_vjp, weights=own, mask=mask, bias=bias, positions=positions)
    x, attention_vjp = residual_with_vjp(x, attend, weights.self_attention_norm, order, own_after)
    feed_forward = partial(feed_forward_with_vjp, weights=feed)
    x, feed_forward_vjp = residual_with_vjp(
        x, feed_forward, weights.feed_forward_norm, order, feed_after
    )

    def vjp(grad_output):
        grad_x, grad_feed_norm, grad_feed, *feed_post = feed_forward_vjp(grad_output)
        grad_x, grad_own_norm, grad_own, grad_bias, *own_post = attention_vjp(grad_x)
        grads = {
            **{"self_attention": grad_own, "self_attention_norm": grad_own_norm},
            **{"feed_forward": grad_feed, "feed_forward_norm": grad_feed_norm},
            **dict(zip(["self_attention_post_norm"], own_post, strict=False)),
            **dict(zip(["feed_forward_post_norm"], feed_post, strict=False)),
        }
        return grad_x, replace(weights, **grads), grad_bias

    return x, vjp
