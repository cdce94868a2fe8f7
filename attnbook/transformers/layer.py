"""The weights of a layer: which parts it has, and how wide each is towards the tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from attnbook.arrays.arguments import check_bool, check_choice, generator
from attnbook.arrays.weights import Weights
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.normalization.normalization import NormWeights, first_norm
from attnbook.positions.rotation import Rotary
from attnbook.transformers.feed_forward import FeedForwardWeights, GatedFeedForwardWeights
from attnbook.transformers.networks import NetworkWeights
from attnbook.transformers.residual import ORDERS
from attnbook.transformers.self_attention import SelfAttentionWeights, StateWeights


class Layer(Weights):
    """Base of the weights of a layer: parts that read the tokens and add to them.

    The fields of a layer say what its parts are. The widths that a part has towards the tokens,
    those in its `token_widths`, are all d_model, but for what `of_memory` names.
    """

    of_memory: ClassVar[tuple[str, ...]] = ()
    positions: ClassVar[None] = None  # a layer alone has none of its own, as a stack may

    self_attention: SelfAttentionWeights | StateWeights
    norm: str

    @property
    def d_model(self) -> int:
        """Width of the tokens."""
        return self.self_attention.d_query

    @property
    def layers(self) -> tuple[Self, ...]:
        """The layer alone, as a stack of one."""
        return (self,)

    def check_layer(self) -> None:
        """Raise unless the parts are of one home and fit each other's widths."""
        self.check_fields()
        check_choice("norm", self.norm, ORDERS)
        d_model = self.d_model
        for name, axis, shape in misfits(self, d_model, self.of_memory):
            if axis == 0 and len(shape) == 2:
                raise ValueError(f"{name} must have {d_model} rows, got shape {shape}")
            where = "its last axis" if axis == len(shape) - 1 else f"axis {axis}"
            raise ValueError(
                f"{name} must have length {d_model} on {where}, the width of the tokens "
                f"that it is added to, got shape {shape}"
            )
        for name in ("self_attention", "cross_attention"):
            part = getattr(self, name, None)
            if part is not None and part.d_out != d_model:
                raise ValueError(
                    f"{name} must have heads that join to width {d_model}, or a W_O, "
                    f"got {part.d_out}"
                )

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: str = "pre",
        activation: str = "relu",
        bias: bool = True,
        n_kv_heads: int | None = None,
        normalization: str = "layer",
        gated: bool = False,
    ) -> Self:
        """Draw Xavier-uniform matrices with NumPy; gains are 1, biases 0.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            Where the numbers come from; an int is a seed.
        d_model, n_heads, d_ff : int
            Width of the tokens, number of heads, width of the hidden layer.
        norm, activation : str
        bias : bool
            Without it no matrix and no normalisation has one.
        n_kv_heads : int, optional
            As in `MultiHeadWeights`.
        normalization : str
            ``"layer"`` or ``"rms"``.
        gated : bool
            Draw a gated feed-forward network.

        Raises
        ------
        TypeError, ValueError
            If a number is not an int of at least 1, d_model is not divisible by n_heads, a name
            is unknown, or `bias` is not a bool.
        """
        rng = generator(rng)
        sizes = (d_model, n_heads, d_ff)
        return cls._made(rng, sizes, norm, activation, bias, n_kv_heads, normalization, gated)

    @classmethod
    def _made(
        cls,
        rng: "np.random.Generator",
        sizes: tuple[int, int, int],
        norm: str,
        activation: str,
        bias: bool,
        n_kv_heads: int | None,
        normalization: str,
        gated: bool,
        without: tuple[str, ...] = (),
    ) -> Self:
        """Return a layer of parts that are drawn in the order of the fields."""
        d_model, n_heads, d_ff = sizes
        network = GatedFeedForwardWeights if check_bool("gated", gated) else FeedForwardWeights
        made: dict[str, Any] = dict.fromkeys((*without, *cls.undrawn))
        for name, kinds in cls.part_kinds.items():
            if name in without or name in cls.undrawn:
                continue
            if MultiHeadWeights in kinds:
                made[name] = MultiHeadWeights.init(
                    rng, d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias
                )
            elif network in kinds:
                made[name] = network.init(rng, d_model, d_ff, activation=activation, bias=bias)
            else:
                made[name] = first_norm(normalization, d_model, bias=bias)
        return cls(**made, norm=norm)  # type: ignore[call-arg]  # a dataclass of these


@dataclass(frozen=True, eq=False)
class EncoderLayerWeights(Layer):
    """The weights of one encoder layer, and where it normalises.

    Attributes
    ----------
    self_attention : MultiHeadWeights or LatentWeights
        From d_model to d_model.
    feed_forward : FeedForwardWeights, GatedFeedForwardWeights or MixtureWeights
        From d_model to d_model.
    self_attention_norm, feed_forward_norm : LayerNormWeights or RMSNormWeights
    norm : str
        ``"pre"``: x + f(norm(x)), or ``"post"``: norm(x + f(x)).

    Raises
    ------
    TypeError, ValueError
        If a part does not have the right class or width, the arrays are not of one library, device
        and dtype, or `norm` is unknown.

    Examples
    --------
    >>> weights = EncoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32)
    >>> len(weights.arrays()), weights.norm
    (16, 'pre')
    """

    self_attention: SelfAttentionWeights
    feed_forward: NetworkWeights
    self_attention_norm: NormWeights
    feed_forward_norm: NormWeights
    norm: str = "pre"

    def __post_init__(self) -> None:
        self.check_layer()


@dataclass(frozen=True, eq=False)
class DecoderLayerWeights(Layer):
    """The weights of one decoder layer, and where it normalises.

    Attributes
    ----------
    self_attention : MultiHeadWeights, LatentWeights, LinearAttentionWeights or Mamba2Weights
        From d_model to d_model. The last two keep a state and are causal whatever the mask.
    cross_attention : MultiHeadWeights, optional
        Its queries and its output have width d_model, its keys and values the width of the memory.
        Without it, the layer attends only to its own tokens, as in a language model.
    feed_forward : FeedForwardWeights, GatedFeedForwardWeights or MixtureWeights
        From d_model to d_model.
    self_attention_norm, feed_forward_norm : LayerNormWeights or RMSNormWeights
    cross_attention_norm : LayerNormWeights or RMSNormWeights, optional
        Required if there is a cross-attention.
    norm : str
        ``"pre"``: x + f(norm(x)), or ``"post"``: norm(x + f(x)).
    rotary : Rotary, optional
        The positions of this self-attention, in place of those of the stack: for example, local
        layers may have another base than global ones.
    self_attention_post_norm, feed_forward_post_norm : LayerNormWeights or RMSNormWeights, optional
        Normalise the output of the sublayer before it is added: x + norm₂(f(norm(x))).

    Raises
    ------
    TypeError, ValueError
        As in `EncoderLayerWeights`; ValueError if there is a cross-attention without its
        normalisation, or the reverse.

    Examples
    --------
    >>> weights = DecoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32)
    >>> len(weights.arrays())
    26
    """

    of_memory = ("cross_attention.d_key", "cross_attention.d_value")
    undrawn = ("rotary", "self_attention_post_norm", "feed_forward_post_norm")

    self_attention: SelfAttentionWeights | StateWeights
    cross_attention: MultiHeadWeights | None
    feed_forward: NetworkWeights
    self_attention_norm: NormWeights
    cross_attention_norm: NormWeights | None
    feed_forward_norm: NormWeights
    norm: str = "pre"
    rotary: Rotary | None = field(default=None, kw_only=True)
    self_attention_post_norm: NormWeights | None = field(default=None, kw_only=True)
    feed_forward_post_norm: NormWeights | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.check_layer()
        if self.rotary is not None:
            self.rotary.check_heads(self.self_attention.n_heads, self.self_attention.d_k)
        cross = self.cross_attention
        if (cross is None) != (self.cross_attention_norm is None):
            raise ValueError(
                "cross_attention and cross_attention_norm must both be there or both be None"
            )
        if cross is not None and cross.window is not None:
            raise ValueError(
                f"cross_attention must have no window, since the positions of source and target "
                f"are unrelated, got {cross.window}"
            )
        if cross is not None and cross.W_K.shape[0] != cross.W_V.shape[0]:
            raise ValueError(
                f"cross_attention must have W_K and W_V of as many rows as the memory is wide, "
                f"got {cross.W_K.shape[0]} and {cross.W_V.shape[0]}"
            )

    @property
    def d_memory(self) -> int | None:
        """Width of the memory; None without a cross-attention."""
        return None if self.cross_attention is None else self.cross_attention.W_K.shape[0]

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
        normalization: str = "layer",
        gated: bool = False,
    ) -> Self:
        """Draw Xavier-uniform matrices with NumPy; gains are 1, and biases are 0.

        The parameters are those of `EncoderLayerWeights.init`. If `cross` is False, there is no
        cross-attention.
        """
        rng = generator(rng)
        without = () if check_bool("cross", cross) else ("cross_attention", "cross_attention_norm")
        sizes, options = (d_model, n_heads, d_ff), (normalization, gated)
        return cls._made(rng, sizes, norm, activation, bias, n_kv_heads, *options, without)


def misfits(
    weights: Weights, width: int, others: tuple[str, ...] = ()
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield name, axis and shape of each array of `weights` without the width of the tokens.

    `others` names what may have another width, such as ``cross_attention.d_key``.
    """
    parts = {"": weights} | {f"{field}.": getattr(weights, field) for field in weights.part_kinds}
    for prefix, part in parts.items():
        for name, letters in () if part is None else part.axis_letters.items():
            x = getattr(part, name)
            for axis, letter in () if x is None else enumerate(letters):
                towards_tokens = letter in part.token_widths and prefix + letter not in others
                if towards_tokens and x.shape[axis] != width:
                    yield prefix + name, axis, tuple(x.shape)
