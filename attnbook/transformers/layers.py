"""What the layers of encoder and decoder share: their checks, and the residual connection."""

from typing import Any, Self

import numpy as np

from attnbook.arrays.arguments import (
    broadcast_shapes,
    check_choice,
    check_float,
    check_floats,
    check_int,
    check_mask,
)
from attnbook.arrays.projections import generator
from attnbook.arrays.weights import Weights, check_part
from attnbook.multi_head.heads import check_head_mask
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.positions import rotary_of
from attnbook.transformers.feed_forward import FeedForwardWeights
from attnbook.transformers.layer_norm import LayerNormWeights, _norm

ORDERS = ("pre", "post")


class Stack(Weights):
    """What the stacks of an encoder and of a decoder share: layers, and a norm after the last."""

    _layer: Any  # the class of the layers
    layers: tuple[Any, ...]
    final_norm: LayerNormWeights | None

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
        **options: Any,
    ) -> Self:
        """Draw `n_layers` layers; `options` are those of the `init` of a layer.

        There is a final normalisation if `final_norm` says so; by default with pre-norm alone.
        """
        rng = generator(rng)
        layers = tuple(
            cls._layer.init(rng, d_model, n_heads, d_ff, norm=norm, **options)
            for _ in range(check_int("n_layers", n_layers))
        )
        wanted = norm == "pre" if final_norm is None else final_norm
        last = LayerNormWeights.init(d_model, bias=options.get("bias", True)) if wanted else None
        return cls(layers, last)  # type: ignore[call-arg]  # a dataclass of these two


def check_layer(weights):
    """Raise unless the parts of a layer are of one home and fit each other's widths."""
    norms = {name: x for name, x in vars(weights).items() if name.endswith("_norm")}
    attentions = {name: x for name, x in vars(weights).items() if name.endswith("_attention")}
    for name, part in norms.items():
        if part is not None or name != "cross_attention_norm":
            check_part(name, part, LayerNormWeights)
    for name, part in attentions.items():
        if part is not None or name != "cross_attention":
            check_part(name, part, MultiHeadWeights)
    check_part("feed_forward", weights.feed_forward, FeedForwardWeights)
    check_choice("norm", weights.norm, ORDERS)
    arrays = weights.arrays()
    check_floats(**arrays)
    d_model = width_of(weights)
    for name, x in arrays.items():
        last = name.split(".")[-1]
        from_memory = name in ("cross_attention.W_K", "cross_attention.W_V")
        if last in ("W_Q", "W_K", "W_V", "W_1") and not from_memory and x.shape[0] != d_model:
            raise ValueError(f"{name} must have {d_model} rows, got shape {tuple(x.shape)}")
        if last in ("W_O", "W_2", "gain", "bias") and x.shape[-1] != d_model:
            raise ValueError(
                f"{name} must have length {d_model} on its last axis, the width of the tokens "
                f"that it is added to, got shape {tuple(x.shape)}"
            )
    for name, part in attentions.items():
        if part is not None and part.W_O is None:
            joined = part.W_V.shape[1] // part.n_kv_heads * part.n_heads
            if joined != d_model:
                raise ValueError(
                    f"{name} must have heads that join to width {d_model}, or a W_O, got {joined}"
                )


def width_of(layer):
    """Return d_model of a layer."""
    return layer.self_attention.W_Q.shape[0]


def check_stack(weights, kind):
    """Raise unless the layers and the final normalisation are of one home and one width."""
    if not isinstance(weights.layers, tuple):
        raise TypeError(f"layers must be a tuple, got {type(weights.layers).__name__}")
    for i, layer in enumerate(weights.layers):
        check_part(f"layers[{i}]", layer, kind)
    if weights.final_norm is not None:
        check_part("final_norm", weights.final_norm, LayerNormWeights)
    arrays = weights.arrays()
    if arrays:
        check_floats(**arrays)
    widths = [x.shape[0] for x in _as_wide(weights)]
    if len(set(widths)) > 1:
        raise ValueError(f"layers and final_norm must have one width d_model, got {widths}")


def _as_wide(weights):
    """Return an array of d_model rows of each layer, and those of the final normalisation."""
    layers, final_norm = (
        getattr(weights, "layers", (weights,)),
        getattr(weights, "final_norm", None),
    )
    rows = [layer.self_attention.W_Q for layer in layers]
    return rows if final_norm is None else [*rows, *final_norm.arrays().values()]


def check_stack_inputs(x, weights, mask, rotate):
    """Raise unless tokens `x`, and the mask of their self-attention, fit a layer or a stack."""
    check_float("x", x)
    layers, rows = getattr(weights, "layers", (weights,)), _as_wide(weights)
    if rows:
        check_floats(x=x, weights=rows[0])
    widths = [like.shape[0] for like in rows]
    if x.ndim < 2 or any(x.shape[-1] != width for width in widths):
        wanted = widths[0] if widths else "d_model"
        raise ValueError(
            f"x must have shape (..., n, {wanted}) to match the weights, got {tuple(x.shape)}"
        )
    attentions = [layer.self_attention for layer in layers]
    for attention in attentions if rotate else ():
        if (d_k := attention.W_Q.shape[1] // attention.n_heads) % 2:
            raise ValueError(f"d_k must be even to rotate pairs of features, got {d_k}")
    check_layer_mask("mask", mask, "x", x, x.shape[:-1], x.shape[:-1], attentions)


def check_layer_mask(name, mask, like_name, like, queries, keys, attentions):
    """Raise unless `mask` fits the scores in every attention, and lives where `like` does.

    `queries` and `keys` are the shapes (..., n) of the tokens.
    """
    if mask is None:
        return
    leading = broadcast_shapes(tuple(queries[:-1]), tuple(keys[:-1])) or ()
    for n_heads in sorted({attention.n_heads for attention in attentions}):
        shape = (*leading, n_heads, queries[-1], keys[-1])
        check_head_mask(mask, shape, name)
        check_mask(mask, like, shape, name, like_name)


# The mathematics. These may rely on checked arrays.


def residual(x, sublayer, norm, order, drop):
    """Add to `x` what `sublayer` makes of it; also return what else it returned."""
    if order == "pre":
        output, other = sublayer(_norm(x, norm))
        return x + drop(output), other
    output, other = sublayer(x)
    return _norm(x + drop(output), norm), other


def keep(x):
    """Drop nothing."""
    return x


def turn_by(rotate, start=0):
    """Return the rotation of queries and keys whose first position is `start`, or None."""
    return (lambda x: rotary_of(x, start)) if rotate else None
