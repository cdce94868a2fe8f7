"""The decoder: self-attention, attention to what the encoder made, and feed-forward."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, Mask, broadcast_shapes
from attnbook.arrays.projections import check_width
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.multi_head.attention import KeysAndValues, attend, keys_and_values
from attnbook.multi_head.masks import check_head_mask
from attnbook.normalization.normalization import NORMALIZED
from attnbook.transformers.layer import DecoderLayerWeights
from attnbook.transformers.networks import NETWORKS
from attnbook.transformers.residual import residual
from attnbook.transformers.self_attention import (
    SELF_ATTENTIONS,
    Keep,
    LayerOptions,
    options_of,
)
from attnbook.transformers.stack import DecoderWeights, check_stream

# The mathematics, of checked arrays.


def memory_keys_and_values(
    memory: Array | None, layers: Sequence[DecoderLayerWeights]
) -> tuple[KeysAndValues | None, ...]:
    """Return keys and values of the memory for each layer: computed once, whatever is decoded."""
    if memory is None:
        return (None,) * len(layers)
    heads = []
    for layer in layers:
        assert layer.cross_attention is not None  # as has been checked
        heads.append(keys_and_values(memory, memory, layer.cross_attention))
    return tuple(heads)


def decoder_of(
    x: Array,
    memory: Sequence[KeysAndValues | None],
    weights: DecoderWeights,
    options: LayerOptions,
    past: Any = None,
) -> Array:
    """Return the output; `memory` are its keys and values for each layer.

    `past` is a cache, to which the keys and values of `x` are appended, and which says who attends.
    """
    for i, (layer, heads) in enumerate(zip(weights.layers, memory, strict=True)):
        keep = None if past is None else Keep(past, i)
        x = decoder_layer_of(x, heads, layer, options, keep)
    norm = weights.final_norm
    return x if norm is None else NORMALIZED[type(norm)](x, norm)


def decoder_layer_of(
    x: Array,
    memory: KeysAndValues | None,
    weights: DecoderLayerWeights,
    options: LayerOptions,
    keep: Keep | None = None,
) -> Array:
    """Return the output; `memory` are its keys and values, and `keep` is the cache of the layer."""
    norm, drop = weights.norm, options.drop
    options = options if weights.rotary is None else options.with_rotary(weights.rotary)
    own, cross, network = weights.self_attention, weights.cross_attention, weights.feed_forward
    cross_norm: Any = weights.cross_attention_norm  # it is there if `cross` is
    attend_to_target = partial(SELF_ATTENTIONS[type(own)], weights=own, options=options, keep=keep)
    own_norms = (weights.self_attention_norm, norm, drop, weights.self_attention_post_norm)
    x = residual(x, attend_to_target, *own_norms)
    if memory is not None and cross is not None:
        attend_to_memory = partial(
            attend, heads=memory, weights=cross, mask=options.memory_mask, impl=options.impl
        )
        x = residual(x, attend_to_memory, cross_norm, norm, drop)
    feed = partial(NETWORKS[type(network)], weights=network, drop=drop)
    return residual(x, feed, weights.feed_forward_norm, norm, drop, weights.feed_forward_post_norm)


# The functions, which check what they are given.


def decoder_layer(
    x: Annotated[Array, "... n_t d_model"],
    memory: Annotated[Array, "... n_s d_memory"] | None,
    weights: DecoderLayerWeights,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    bias: Annotated[Array, "..."] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n_t d_model"]:
    r"""Let the target tokens attend to each other and then to the memory; then feed forward.

    .. math:: y = x + \operatorname{MultiHead}(x', x', x'), \qquad
              z = y + \operatorname{MultiHead}(y', X_{\text{mem}}, X_{\text{mem}}), \qquad
              z + \operatorname{FF}(z'),

    where each prime is a layer normalisation of its own (pre-norm); in post-norm, each sum is
    normalised instead.

    Parameters
    ----------
    x : array, shape (..., n_t, d_model)
        The target tokens so far.
    memory : array X_mem, shape (..., n_s, d_memory)
        The output of the encoder for the source. It is the same in every layer, and it is not
        normalised again. None if the layer has no cross-attention.
    weights : DecoderLayerWeights
    mask : boolean array that broadcasts to (..., h, n_t, n_t), or a `masking.Rule`, optional
        **True = may attend.** The layer masks nothing on its own, so pass ``masking.causal(n_t)``
        to hide the future.
    memory_mask : boolean array that broadcasts to (..., h, n_t, n_s), or a `masking.Rule`, optional
        Which source tokens the target may attend to; (batch, 1, 1, n_s) hides padding.
    drop, rotate, bias
        As in `encoder_layer`. Only self-attention rotates, and the bias, (..., h, n_t, n_t), is
        added only to its scores, because the positions of source and target are unrelated.
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n_t, d_model)
        ``impl=kernels.Recorder()`` keeps the attention weights of both, first those over the
        target.

    Raises
    ------
    TypeError, ValueError
        As in `encoder_layer`; ValueError if there is a memory but no cross-attention, or the
        reverse.

    Notes
    -----
    Cost: that of an encoder layer, plus O(n_t n_s d_model) for the source.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import masking
    >>> weights = DecoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32)
    >>> decoder_layer(np.eye(5, 8), np.eye(7, 8), weights, masking.causal(5)).shape
    (5, 8)
    """
    check_impl(impl)
    _check(x, memory, weights, DecoderLayerWeights, mask, memory_mask, rotate, drop, bias)
    options = options_of(
        *(weights, x),
        rotate=rotate,
        bias=bias,
        mask=mask,
        memory_mask=memory_mask,
        drop=drop,
        impl=impl,
    )
    (heads,) = memory_keys_and_values(memory, (weights,))
    return decoder_layer_of(x, heads, weights, options)


def decoder(
    x: Annotated[Array, "... n_t d_model"],
    memory: Annotated[Array, "... n_s d_memory"] | None,
    weights: DecoderWeights,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    bias: Annotated[Array, "..."] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n_t d_model"]:
    """Apply every layer in turn, then the final normalisation if there is one.

    Parameters
    ----------
    x : array, shape (..., n_t, d_model)
    memory : array, shape (..., n_s, d_memory), or None
    weights : DecoderWeights
    mask, memory_mask, drop, rotate, bias, impl
        As in `decoder_layer`; masks and bias apply to every layer. If `weights` has positions of
        its own, `rotate` must be False, and their bias is added to the one that you pass.

    Returns
    -------
    array, shape (..., n_t, d_model)
        ``impl=kernels.Recorder()`` keeps the weights of both attentions in every layer.

    Raises
    ------
    TypeError, ValueError
        As in `decoder_layer`.

    Notes
    -----
    Cost: that of all layers, plus O(n_t d_model) for the final normalisation.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = DecoderWeights.init(0, 3, d_model=8, n_heads=2, d_ff=32)
    >>> decoder(np.eye(5, 8), np.eye(7, 8), weights).shape
    (5, 8)
    """
    check_impl(impl)
    _check(x, memory, weights, DecoderWeights, mask, memory_mask, rotate, drop, bias)
    options = options_of(
        *(weights, x),
        rotate=rotate,
        bias=bias,
        mask=mask,
        memory_mask=memory_mask,
        drop=drop,
        impl=impl,
    )
    return decoder_of(x, memory_keys_and_values(memory, weights.layers), weights, options)


def _check(
    x: Array,
    memory: Array | None,
    weights: Any,
    kind: type,
    mask: Mask | None,
    memory_mask: Mask | None,
    rotate: bool,
    drop: Any,
    bias: Array | None,
) -> None:
    check_stream(x, weights, kind, mask, rotate, drop, bias)
    if not weights.layers:
        return
    width = weights.layers[0].d_memory
    if width is None or memory is None:
        if width is not None:
            raise ValueError("memory must be an array for the cross-attention, got None")
        for name, given in (("memory", memory), ("memory_mask", memory_mask)):
            if given is not None:
                raise ValueError(f"{name} must be None, since no layer has a cross-attention")
        return
    check_floats(x=x, memory=memory)
    check_width("memory", memory, width, "n_s")
    if broadcast_shapes(tuple(x.shape[:-2]), tuple(memory.shape[:-2])) is None:
        raise ValueError(
            f"memory must have leading axes that broadcast with {tuple(x.shape[:-2])}, "
            f"got shape {tuple(memory.shape)}"
        )
    cross = [layer.cross_attention for layer in weights.layers]
    check_head_mask("memory_mask", memory_mask, "x", x, x.shape[:-1], memory.shape[:-1], cross)
