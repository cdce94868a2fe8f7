"""Self-attention inside a layer: where its tokens stand, who may see whom, and who attends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attnbook.arrays.array import Array, Mask
from attnbook.arrays.attention_arguments import is_rule
from attnbook.kernels import REFERENCE, Impl
from attnbook.linear_attention.gates import LayerState
from attnbook.linear_attention.layers import LinearAttentionWeights, linear_attention_of
from attnbook.linear_attention.mamba import Mamba2Weights, mamba2_of
from attnbook.multi_head.attention import Turn, attend, keys_and_values
from attnbook.multi_head.latent import attend_to_latents, latents_of
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.positions.rotation import Rotary, rotation

Drop = Callable[[Array], Array]
"""Dropout, or whatever else is done to the output of a sublayer before it is added."""


class Keep(NamedTuple):
    """The layer of a cache that takes keys and values of new tokens, and says who attends."""

    cache: Any
    layer: int


@dataclass(frozen=True)
class LayerOptions:
    """What every layer of one forward pass is told beside its weights and its tokens.

    Attributes
    ----------
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        Of self-attention. **True = may attend.**
    memory_mask : boolean array that broadcasts to (..., h, n_t, n_s), or a `masking.Rule`, optional
        Of cross-attention.
    turn : callable, optional
        It rotates queries and keys of self-attention to their positions.
    bias : array that broadcasts to (..., h, n, n), optional
        Added to the scores of self-attention.
    is_causal : bool
        Whether self-attention also hides the keys that come later than their query.
    drop : callable, optional
        Applied to what is added to the tokens, and to hidden units.
    impl : str or callable
        Who attends.
    start : int
        The position of the first token.
    turns : list of pairs
        The rotations of layers with a `Rotary` of their own, which `with_rotary` enters.
    """

    mask: Mask | None = None
    memory_mask: Mask | None = None
    turn: Turn | None = None
    bias: Array | None = None
    is_causal: bool = False
    drop: Drop | None = None
    impl: Impl = REFERENCE
    start: int = 0
    turns: list[tuple[Rotary, Turn]] = field(default_factory=list)

    def with_rotary(self, rotary: Rotary) -> "LayerOptions":
        """Return the options of a layer with positions of its own; equal layers share angles."""
        turn = None
        for known, its_turn in self.turns:
            turn = its_turn if known == rotary else turn
        if turn is None:
            turn = rotary.turn(self.start)
            self.turns.append((rotary, turn))
        given = (self.mask, self.memory_mask, turn, self.bias, self.is_causal, self.drop, self.impl)
        return LayerOptions(*given, self.start, self.turns)


def options_of(
    weights: Any,
    x: Array,
    *,
    rotate: bool = False,
    bias: Array | None = None,
    start: int = 0,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    is_causal: bool = False,
    drop: Drop | None = None,
    impl: Impl = REFERENCE,
) -> LayerOptions:
    """Return what a layer or a stack with these `weights` is told about the tokens `x`.

    Its positions, or with `rotate` a `rotation` in halves with base 10000, say how self-attention
    learns the places of the tokens, the first of which stands at `start`, after what a cache holds.
    """
    positions, turn = weights.positions, rotation(start) if rotate else None
    if positions is not None and (attentions := with_scores(weights.layers)):
        n, n_heads = x.shape[-2], attentions[0].n_heads
        own = positions.bias(n_heads, n, start + n, x)
        bias = own if bias is None else bias if own is None else own + bias
        turn = positions.turn(start)
    return LayerOptions(mask, memory_mask, turn, bias, is_causal, drop, impl, start)


def multi_head_self_attention_of(
    x: Array, weights: MultiHeadWeights, options: LayerOptions, keep: Keep | None = None
) -> Array:
    """Attend to `x` itself, and to the tokens before it that `keep` knows."""
    heads, impl = keys_and_values(x, x, weights, options.turn), options.impl
    if keep is not None:
        heads, impl = keep.cache.take_in(keep.layer, heads, impl, weights)
    return attend(
        *(x, heads, weights, options.mask),
        turn=options.turn,
        bias=options.bias,
        impl=impl,
        is_causal=options.is_causal,
    )


def state_self_attention_of(
    x: Array, weights: "StateWeights", options: LayerOptions, keep: Keep | None = None
) -> Array:
    """Read `x` into a state, after the tokens before it that `keep` knows.

    No token sees a later one, whatever the options say. A mask can hide tokens from all others;
    positions and their bias have nothing to act on.
    """
    past = None if keep is None else keep.cache.state(keep.layer)
    shown = None if options.mask is None else shown_tokens(options.mask)
    y, past = STATES[type(weights)](x, weights, past, shown=shown)
    if keep is not None:
        keep.cache.keep_state(keep.layer, past, x.shape[-2])
    return y


def shown_tokens(mask: Any) -> Array:
    """Return the mask (..., n) of the tokens that a mask of scores shows, or raise."""
    if is_rule(mask):
        raise ValueError(
            f"mask must be an array (..., 1, 1, n) where a layer keeps a state, got the rule {mask}"
        )
    shape = tuple(mask.shape)
    if len(shape) < 2 or shape[-2] != 1 or (len(shape) > 2 and shape[-3] != 1):
        raise ValueError(
            "mask must have one row for all queries and heads, (..., 1, 1, n), where a layer keeps "
            f"a state, which is causal without a mask, got shape {shape}"
        )
    return mask[..., 0, :] if len(shape) == 2 else mask[..., 0, 0, :]


StateWeights = LinearAttentionWeights | Mamba2Weights
"""The weights of a layer that keeps a state in place of keys and values; only a decoder has one."""

STATES: dict[type, Callable[..., tuple[Array, LayerState]]] = {
    LinearAttentionWeights: linear_attention_of,
    Mamba2Weights: mamba2_of,
}
"""The function of each of these classes: ``STATES[type(weights)](x, weights, past)``."""


def with_scores(layers: Sequence[Any]) -> list[Any]:
    """Return the self-attentions that have scores: masks and positions act on these alone."""
    attentions = [layer.self_attention for layer in layers]
    return [attention for attention in attentions if type(attention) not in STATES]


def latent_self_attention_of(
    x: Array, weights: LatentWeights, options: LayerOptions, keep: Keep | None = None
) -> Array:
    """Attend to `x` itself, and to the tokens before it of which `keep` has the latents."""
    latents, impl = latents_of(x, weights, options.turn), options.impl
    if keep is not None:
        impl = keep.cache.impl_for(keep.layer, impl)
        latents = keep.cache.append(keep.layer, *latents)
    return attend_to_latents(
        *(x, latents, weights, options.mask),
        turn=options.turn,
        bias=options.bias,
        impl=impl,
        is_causal=options.is_causal,
        form="full" if keep is None else "absorbed",
    )


SelfAttentionWeights = MultiHeadWeights | LatentWeights
"""The weights that the self-attention of a layer may have.

Each class has `n_heads` and `d_k`, which masks and positions must fit, and the widths `d_query` and
`d_out` of the tokens that it reads and of what it returns.
"""

SELF_ATTENTIONS: dict[type, Callable[..., Array]] = {
    MultiHeadWeights: multi_head_self_attention_of,
    **dict.fromkeys(STATES, state_self_attention_of),
    LatentWeights: latent_self_attention_of,
}
"""The function of each class of weights: ``SELF_ATTENTIONS[type(weights)](x, weights, options)``.

Each also takes `keep`, the layer of a cache, or None.
"""
