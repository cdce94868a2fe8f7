"""The two layouts of rotary positions: a model in one becomes the same model in the other."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import array_namespace
from attnbook.arrays.weights import check_part
from attnbook.multi_head.heads import merge_heads_of, split_heads_of
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.positions.rotation import Rotary, to_halves, to_interleaved
from attnbook.transformers.self_attention import STATES
from attnbook.transformers.stack import DecoderWeights, EncoderWeights
from attnbook.transformers.weights import TransformerWeights


def rotary_layout(weights: Any, *, interleaved: bool) -> Any:
    """Return a model that computes the same function with its rotary pairs in the other layout.

    Parameters
    ----------
    weights : TransformerWeights, EncoderWeights or DecoderWeights
        They must have rotary positions.
    interleaved : bool
        True puts the features of a pair side by side, as in GPT-J and in the weights that Meta
        publishes for Llama; False puts them half a head apart, as in GPT-NeoX and in Hugging
        Face's Llama.

    Returns
    -------
    weights of the same class
        The columns of W_Q and W_K, their biases and their norms are reordered within each head, and
        `positions` records the new layout; of `LatentWeights`, the columns of W_UQ and W_KR that
        are rotated. Queries and keys have the same dot products as before, so every output is the
        same up to the order in which the products are summed. Weights that already have the layout
        are returned unchanged.

    Raises
    ------
    TypeError, ValueError
        If `weights` is of another class or has no rotary positions, or `interleaved` is not a bool.

    References
    ----------
    Hugging Face's script ``convert_llama_weights_to_hf.py`` does the same, with the same result.

    Examples
    --------
    >>> from attnbook import DecoderWeights
    >>> from attnbook.positions import Rotary
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 32, "cross": False}
    >>> weights = DecoderWeights.init(0, 2, **sizes, positions=Rotary(interleaved=True))
    >>> rotary_layout(weights, interleaved=False).positions.interleaved
    False
    """
    check_part("weights", weights, TransformerWeights, EncoderWeights, DecoderWeights)
    check_bool("interleaved", interleaved)
    if isinstance(weights, TransformerWeights):
        stacks = {"encoder": weights.encoder, "decoder": weights.decoder}
        plain = Rotary() if weights.positions == "rotary" else None
        made = {
            name: _stack(stack, stack.positions or plain, interleaved)
            for name, stack in stacks.items()
            if stack is not None
        }
        return replace(weights, **made)
    return _stack(weights, weights.positions, interleaved)


def _stack(weights: Any, positions: Any, interleaved: bool) -> Any:
    own = [getattr(layer, "rotary", None) or positions for layer in weights.layers]
    if not any(isinstance(one, Rotary) for one in (positions, *own)):
        got = type(positions).__name__ if positions else None
        raise ValueError(f"weights must have rotary positions, got {got}")
    changes = [isinstance(one, Rotary) and one.interleaved != interleaved for one in own]
    layers = tuple(
        _layer(layer, one, interleaved) if is_other else layer
        for layer, one, is_other in zip(weights.layers, own, changes, strict=True)
    )
    if isinstance(positions, Rotary) and positions.interleaved != interleaved:
        positions = replace(positions, interleaved=interleaved)
        return replace(weights, layers=layers, positions=positions)
    return replace(weights, layers=layers) if any(changes) else weights


def _layer(layer: Any, rotary: Rotary, interleaved: bool) -> Any:
    if type(layer.self_attention) in STATES:  # which has no positions
        return layer
    change = partial(to_interleaved if interleaved else to_halves, width=rotary.width)
    check_part("self_attention", layer.self_attention, *REORDERED)
    heads = REORDERED[type(layer.self_attention)](layer.self_attention, change)
    own: dict[str, Any] = {"self_attention": heads}
    if getattr(layer, "rotary", None) is not None:
        own["rotary"] = replace(rotary, interleaved=interleaved)
    return replace(layer, **own)


def reordered_heads_of(heads: MultiHeadWeights, change: Any) -> MultiHeadWeights:
    new: dict[str, Any] = {}
    for letter, n in (("Q", heads.n_heads), ("K", heads.n_kv_heads)):
        for name in (f"W_{letter}", f"b_{letter}"):
            x = getattr(heads, name)
            new[name] = None if x is None else change(x, n)
    for name in ("q_norm", "k_norm"):
        norm = getattr(heads, name)
        if norm is not None:
            parts = {part: change(x) for part, x in norm.arrays().items()}
            new[name] = replace(norm, **parts)
    return replace(heads, **new)


def reordered_latent_of(weights: LatentWeights, change: Any) -> LatentWeights:
    """Reorder the columns that make the rotated part of the queries, and the shared key."""
    xp, d = array_namespace(weights.W_UQ), weights.d_nope
    heads = split_heads_of(weights.W_UQ, weights.n_heads)  # (h, r_q, d_nope + d_rope)
    W_UQ = merge_heads_of(xp.concat([heads[..., :d], change(heads[..., d:])], axis=-1))
    return replace(weights, W_UQ=W_UQ, W_KR=change(weights.W_KR))


REORDERED: dict[type, Callable[[Any, Any], Any]] = {
    MultiHeadWeights: reordered_heads_of,
    LatentWeights: reordered_latent_of,
}
"""What reorders the features of each class of weights: ``REORDERED[type(weights)]``."""
