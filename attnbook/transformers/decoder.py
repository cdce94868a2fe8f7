"""The decoder: self-attention, attention to what the encoder made, and feed-forward."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import Array, broadcast_shapes, check_floats
from attnbook.arrays.projections import generator
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, check_impl
from attnbook.multi_head.heads import attend, keys_and_values
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.transformers.feed_forward import FeedForwardWeights, feed_forward_of
from attnbook.transformers.layer_norm import LayerNormWeights, _norm
from attnbook.transformers.layers import (
    Stack,
    check_layer,
    check_layer_mask,
    check_stack,
    check_stack_inputs,
    keep,
    residual,
    turn_by,
)


@dataclass(frozen=True, eq=False)
class DecoderLayerWeights(Weights):
    """The weights of one decoder layer, and where it normalises.

    Attributes
    ----------
    self_attention : MultiHeadWeights
        From d_model to d_model.
    cross_attention : MultiHeadWeights, optional
        Queries and output of width d_model; keys and values as wide as the memory. Without it the
        layer attends to its own tokens alone, as in a language model.
    feed_forward : FeedForwardWeights
        From d_model to d_model.
    self_attention_norm, cross_attention_norm, feed_forward_norm : LayerNormWeights
        The second stands where there is a cross-attention.
    norm : str
        ``"pre"``: x + f(LN(x)), or ``"post"``: LN(x + f(x)).

    Raises
    ------
    TypeError, ValueError
        As in `EncoderLayerWeights`; ValueError for a cross-attention without its normalisation,
        or the reverse.

    Examples
    --------
    >>> weights = DecoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32)
    >>> len(weights.arrays())
    26
    """

    self_attention: MultiHeadWeights
    cross_attention: MultiHeadWeights | None
    feed_forward: FeedForwardWeights
    self_attention_norm: LayerNormWeights
    cross_attention_norm: LayerNormWeights | None
    feed_forward_norm: LayerNormWeights
    norm: str = "pre"

    def __post_init__(self):
        check_layer(self)
        if (self.cross_attention is None) != (self.cross_attention_norm is None):
            raise ValueError(
                "cross_attention and cross_attention_norm must both be there or both be None"
            )
        cross = self.cross_attention
        if cross is not None and cross.W_K.shape[0] != cross.W_V.shape[0]:
            raise ValueError(
                f"cross_attention must have W_K and W_V of as many rows as the memory is wide, "
                f"got {cross.W_K.shape[0]} and {cross.W_V.shape[0]}"
            )

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        cross: bool = True,
        norm: str = "pre",
        activation: str = "relu",
        bias: bool = True,
        n_kv_heads: int | None = None,
    ) -> "DecoderLayerWeights":
        """Draw Xavier-uniform matrices with NumPy; gains are 1, biases 0.

        Parameters are those of `EncoderLayerWeights.init`; without `cross` there is no
        cross-attention.
        """
        rng = generator(rng)
        attentions = [
            MultiHeadWeights.init(rng, d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias)
            for _ in range(1 + cross)
        ]
        norms = [LayerNormWeights.init(d_model, bias=bias) for _ in range(3)]
        return cls(
            attentions[0],
            attentions[1] if cross else None,
            FeedForwardWeights.init(rng, d_model, d_ff, activation=activation, bias=bias),
            norms[0],
            norms[1] if cross else None,
            norms[2],
            norm,
        )


@dataclass(frozen=True, eq=False)
class DecoderWeights(Stack):
    """The weights of a stack of decoder layers, and of a normalisation after the last.

    Attributes
    ----------
    layers : tuple of DecoderLayerWeights
        May be empty; either all have a cross-attention or none.
    final_norm : LayerNormWeights, optional
        Pre-norm layers need it: nothing else normalises their sum.

    Examples
    --------
    >>> weights = DecoderWeights.init(0, 6, d_model=8, n_heads=2, d_ff=32, cross=False)
    >>> len(weights.layers)
    6
    """

    _layer = DecoderLayerWeights

    layers: tuple[DecoderLayerWeights, ...]
    final_norm: LayerNormWeights | None = None

    def __post_init__(self):
        check_stack(self, DecoderLayerWeights)
        widths = dict.fromkeys(_width_of_memory(layer) for layer in self.layers)  # in order
        if len(widths) > 1:
            raise ValueError(
                "layers must all attend to a memory of one width, or none to any, "
                f"got {' and '.join(str(width) for width in widths)}"
            )


def decoder_layer(
    x: Annotated[Array, "... n_t d_model"],
    memory: Annotated[Array, "... n_s d_memory"] | None,
    weights: DecoderLayerWeights,
    mask: Annotated[Array, "..."] | None = None,
    memory_mask: Annotated[Array, "..."] | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    impl: str = REFERENCE,
    return_weights: bool = False,
) -> Any:
    r"""Let the target tokens attend to each other, then to the memory, then feed forward.

    .. math:: y = x + \operatorname{MultiHead}(x', x', x'), \qquad
              z = y + \operatorname{MultiHead}(y', M, M), \qquad
              z + \operatorname{FF}(z'),

    where a dash is a layer normalisation of its own (pre-norm); in post-norm each sum is
    normalised instead.

    Parameters
    ----------
    x : array, shape (..., n_t, d_model)
        The target tokens so far.
    memory : array M, shape (..., n_s, d_memory)
        What the encoder made of the source: the same in every layer, and not normalised again.
        None where the layer has no cross-attention.
    weights : DecoderLayerWeights
    mask : boolean array that broadcasts to (..., h, n_t, n_t), optional
        **True = may attend.** Nothing is masked by itself: pass ``masking.causal(n_t)`` to hide
        the future.
    memory_mask : boolean array that broadcasts to (..., h, n_t, n_s), optional
        Which source tokens may be attended to; (batch, 1, 1, n_s) hides padding.
    drop, rotate
        As in `encoder_layer`. Only self-attention rotates: source and target count their
        positions apart.
    impl : str
        Who attends, as in `attention`.
    return_weights : bool
        Also return the weights of both attentions, which the reference alone keeps.

    Returns
    -------
    array, shape (..., n_t, d_model)
        And with `return_weights` a triple of it, the weights over the target (..., h, n_t, n_t),
        and those over the source (..., h, n_t, n_s) or None.

    Raises
    ------
    TypeError, ValueError
        As in `encoder_layer`; ValueError for a memory without a cross-attention, or the reverse.

    Notes
    -----
    Cost: as an encoder layer's, and O(n_t n_s d_model) for the source.

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
    check_part("weights", weights, DecoderLayerWeights)
    check_impl(impl, return_weights)
    check_decoder_inputs(x, memory, weights, mask, memory_mask, rotate)
    heads = memory_keys_and_values(memory, (weights,))[0]
    output, (shares, cross) = decoder_layer_of(
        *(x, heads, weights, mask, memory_mask, drop or keep, turn_by(rotate), None, impl, False)
    )
    return (output, shares, cross) if return_weights else output


def decoder(
    x: Annotated[Array, "... n_t d_model"],
    memory: Annotated[Array, "... n_s d_memory"] | None,
    weights: DecoderWeights,
    mask: Annotated[Array, "..."] | None = None,
    memory_mask: Annotated[Array, "..."] | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    impl: str = REFERENCE,
    return_weights: bool = False,
) -> Any:
    """Apply every layer in turn, then the final normalisation if there is one.

    Parameters
    ----------
    x : array, shape (..., n_t, d_model)
    memory : array, shape (..., n_s, d_memory), or None
    weights : DecoderWeights
    mask, memory_mask, drop, rotate, impl, return_weights
        As in `decoder_layer`; the masks hold in every layer.

    Returns
    -------
    array, shape (..., n_t, d_model)
        And with `return_weights` a triple of it and two tuples, one entry a layer: the weights
        over the target (..., h, n_t, n_t), and those over the source (..., h, n_t, n_s) or None.

    Raises
    ------
    TypeError, ValueError
        As in `decoder_layer`.

    Notes
    -----
    Cost: that of each layer, and O(n_t d_model) for the final normalisation.

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
    check_part("weights", weights, DecoderWeights)
    check_impl(impl, return_weights)
    check_decoder_inputs(x, memory, weights, mask, memory_mask, rotate)
    heads = memory_keys_and_values(memory, weights.layers)
    output, (shares, cross) = decoder_of(
        x, heads, weights, mask, memory_mask, drop or keep, turn_by(rotate), None, impl
    )
    return (output, shares, cross) if return_weights else output


def check_decoder_inputs(x, memory, weights, mask, memory_mask, rotate):
    """Raise unless target tokens, memory and masks fit a layer or a stack."""
    check_stack_inputs(x, weights, mask, rotate)
    layers = getattr(weights, "layers", (weights,))
    if not layers:
        return
    width = _width_of_memory(layers[0])
    if width is None or memory is None:
        if width is not None:
            raise ValueError("memory must be an array for the cross-attention, got None")
        for name, given in (("memory", memory), ("memory_mask", memory_mask)):
            if given is not None:
                raise ValueError(f"{name} must be None, since no layer has a cross-attention")
        return
    check_floats(x=x, memory=memory)
    if memory.ndim < 2 or memory.shape[-1] != width:
        raise ValueError(
            f"memory must have shape (..., n_s, {width}) to match the weights, "
            f"got {tuple(memory.shape)}"
        )
    if broadcast_shapes(tuple(x.shape[:-2]), tuple(memory.shape[:-2])) is None:
        raise ValueError(
            f"memory must have leading axes that broadcast with {tuple(x.shape[:-2])}, "
            f"got shape {tuple(memory.shape)}"
        )
    cross = [layer.cross_attention for layer in layers]
    check_layer_mask("memory_mask", memory_mask, "x", x, x.shape[:-1], memory.shape[:-1], cross)


def _width_of_memory(layer):
    return None if layer.cross_attention is None else layer.cross_attention.W_K.shape[0]


# The mathematics. These may rely on checked arrays.


def memory_keys_and_values(memory, layers):
    """Return keys and values of the memory for each layer: computed once, whatever is decoded."""
    if memory is None:
        return (None,) * len(layers)
    return tuple(keys_and_values(memory, memory, layer.cross_attention) for layer in layers)


def decoder_of(
    x, memory, weights, mask, memory_mask, drop, turn, past, impl=REFERENCE, is_causal=False
):
    others = []
    for i, (layer, heads) in enumerate(zip(weights.layers, memory, strict=True)):
        keep = None if past is None else functools.partial(past.append, i)
        x, other = decoder_layer_of(
            x, heads, layer, mask, memory_mask, drop, turn, keep, impl, is_causal
        )
        others.append(other)
    if weights.final_norm is not None:
        x = _norm(x, weights.final_norm)
    return x, tuple(zip(*others, strict=True)) if others else ((), ())


def decoder_layer_of(x, memory, weights, mask, memory_mask, drop, turn, keep, impl, is_causal):
    """`keep` takes the keys and values of `x`, and returns those of all tokens so far."""

    def attend_to_target(y):
        heads = keys_and_values(y, y, weights.self_attention, turn)
        heads = heads if keep is None else keep(*heads)
        return attend(y, heads, weights.self_attention, mask, turn, impl, is_causal)

    def attend_to_memory(y):
        return attend(y, memory, weights.cross_attention, memory_mask, impl=impl)

    def feed_forward(y):
        return feed_forward_of(y, weights.feed_forward, drop), None

    order, cross = weights.norm, None
    x, shares = residual(x, attend_to_target, weights.self_attention_norm, order, drop)
    if memory is not None:
        x, cross = residual(x, attend_to_memory, weights.cross_attention_norm, order, drop)
    x, _ = residual(x, feed_forward, weights.feed_forward_norm, order, drop)
    return x, (shares, cross)
