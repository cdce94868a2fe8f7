"""The weights of a stack: layers of one width, and a normalisation after the last."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from attnbook.arrays.arguments import check_bool, check_float, check_floats, check_int, generator
from attnbook.arrays.array import Array, Mask
from attnbook.arrays.projections import check_width
from attnbook.arrays.weights import Weights, check_part
from attnbook.multi_head.masks import check_head_bias, check_head_mask
from attnbook.normalization.normalization import NormWeights, first_norm
from attnbook.positions.biases import Alibi, RelativeBias
from attnbook.positions.piece import AttentionPositions
from attnbook.positions.rotation import Rotary
from attnbook.transformers.dropout import check_drop
from attnbook.transformers.layer import DecoderLayerWeights, EncoderLayerWeights
from attnbook.transformers.self_attention import with_scores


class Stack(Weights):
    """Base of the weights of an encoder and of a decoder: layers, and a norm after the last."""

    layers: tuple[Any, ...]
    final_norm: NormWeights | None
    positions: AttentionPositions | None

    @property
    def d_model(self) -> int | None:
        """Width of the tokens; None where nothing has a width."""
        widths = self._widths()
        return widths[0] if widths else None

    def _widths(self) -> list[int]:
        norm = () if self.final_norm is None else self.final_norm.arrays().values()
        return [layer.d_model for layer in self.layers] + [x.shape[0] for x in norm]

    def __post_init__(self) -> None:
        self.check_fields()
        widths = self._widths()
        if len(set(widths)) > 1:
            raise ValueError(f"layers and final_norm must have one width d_model, got {widths}")
        if (positions := self.positions) is not None:
            attentions = with_scores(self.layers)
            for heads in attentions:
                positions.check_heads(heads.n_heads, heads.d_k)
            numbers = sorted({heads.n_heads for heads in attentions})
            if len(numbers) > 1 and not isinstance(positions, Rotary):
                raise ValueError(f"layers must have one number of heads, got {numbers}")

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        n_layers: int,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: str = "pre",
        final_norm: bool | None = None,
        positions: AttentionPositions | None = None,
        **options: Any,
    ) -> Self:
        """Draw `n_layers` layers; `options` are those of the `init` of a layer.

        There is a final normalisation if `final_norm` says so; by default with pre-norm alone.
        `positions` are those of every self-attention.
        """
        rng = generator(rng)
        wanted = norm == "pre" if final_norm is None else check_bool("final_norm", final_norm)
        (kind,) = cls.part_kinds["layers"]
        layers = tuple(
            kind.init(rng, d_model, n_heads, d_ff, norm=norm, **options)
            for _ in range(check_int("n_layers", n_layers))
        )
        kind_of_norm = options.get("normalization", "layer")
        last = first_norm(kind_of_norm, d_model, bias=options.get("bias", True)) if wanted else None
        return cls(layers, last, positions)  # type: ignore[call-arg]  # a dataclass of these


@dataclass(frozen=True, eq=False)
class EncoderWeights(Stack):
    """The weights of a stack of encoder layers and of a normalisation after the last layer.

    Attributes
    ----------
    layers : tuple of EncoderLayerWeights
        May be empty.
    final_norm : LayerNormWeights or RMSNormWeights, optional
        Pre-norm layers need it because nothing else normalises their sum.
    positions : positions.Rotary, positions.RelativeBias or positions.Alibi, optional
        How every self-attention gets the positions of its tokens.

    Examples
    --------
    >>> EncoderWeights.init(0, 6, d_model=8, n_heads=2, d_ff=32).final_norm.gain.shape
    (8,)
    """

    layers: tuple[EncoderLayerWeights, ...]
    final_norm: NormWeights | None = None
    positions: Rotary | RelativeBias | Alibi | None = None


@dataclass(frozen=True, eq=False)
class DecoderWeights(Stack):
    """The weights of a stack of decoder layers and of a normalisation after the last layer.

    Attributes
    ----------
    layers : tuple of DecoderLayerWeights
        May be empty. Either all layers have a cross-attention, or none has one.
    final_norm : LayerNormWeights or RMSNormWeights, optional
        Pre-norm layers need it because nothing else normalises their sum.
    positions : positions.Rotary, positions.RelativeBias or positions.Alibi, optional
        How every self-attention gets the positions of its tokens.

    Examples
    --------
    >>> weights = DecoderWeights.init(0, 6, d_model=8, n_heads=2, d_ff=32, cross=False)
    >>> len(weights.layers)
    6
    """

    layers: tuple[DecoderLayerWeights, ...]
    final_norm: NormWeights | None = None
    positions: Rotary | RelativeBias | Alibi | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = dict.fromkeys(layer.d_memory for layer in self.layers)  # in order
        if len(widths) > 1:
            raise ValueError(
                "layers must all attend to a memory of one width, or none to any, "
                f"got {' and '.join(str(width) for width in widths)}"
            )
        has_own = any(layer.rotary is not None for layer in self.layers)
        if has_own and not isinstance(self.positions, Rotary | None):
            raise ValueError(
                f"positions must be Rotary or None, since layers have a rotary of their own, "
                f"got {type(self.positions).__name__}"
            )


def check_stream(
    x: Array,
    weights: Any,
    kind: type,
    mask: Mask | None,
    rotate: bool,
    drop: Any,
    bias: Array | None,
) -> None:
    """Raise unless tokens `x` and what is done to them fit a layer or a stack of this `kind`."""
    check_part("weights", weights, kind)
    check_bool("rotate", rotate)
    if rotate and weights.positions is not None:
        own = type(weights.positions).__name__
        raise ValueError(f"rotate must be False, since the weights have positions: {own}")
    check_drop(drop)
    check_float("x", x)
    if (like := weights.any_array()) is not None:
        check_floats(x=x, weights=like)
    check_width("x", x, weights.d_model)
    attentions = [layer.self_attention for layer in weights.layers]
    for attention in with_scores(weights.layers) if rotate else ():
        Rotary().check_heads(attention.n_heads, attention.d_k)
    tokens = x.shape[:-1]
    check_head_mask("mask", mask, "x", x, tokens, tokens, attentions)
    check_head_bias("bias", bias, "x", x, tokens, tokens, with_scores(weights.layers))
