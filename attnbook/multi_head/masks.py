"""Masks and biases of many heads: which axis is the batch's, which the heads', do they fit."""

from collections.abc import Sequence
from typing import Any

from attnbook.arrays.array import Array, broadcast_shapes
from attnbook.arrays.attention_arguments import (
    check_bias,
    check_boolean,
    check_mask,
    is_rule,
    visible,
)
from attnbook.arrays.intervals import Intervals


def check_head_mask(
    name: str,
    mask: Any,
    like_name: str,
    like: Any,
    queries: Any,
    keys: Any,
    attentions: Sequence[Any],
) -> None:
    """Raise unless `mask` fits the scores in every attention, and lives where `like` does.

    `queries` and `keys` are the shapes (..., n) of the tokens.
    """
    if mask is None:
        return
    if is_rule(mask):
        _check_rule(name, mask, queries, keys)
        return
    check_boolean(mask, name)
    for shape in _scores_shapes(queries, keys, attentions):
        _check_axes(name, mask, shape)
        check_mask(mask, like, shape, name, like_name)


def check_head_bias(
    name: str,
    bias: Array | None,
    like_name: str,
    like: Any,
    queries: Any,
    keys: Any,
    attentions: Sequence[Any],
) -> None:
    """Raise unless `bias` fits the scores in every attention, and is of the dtype of `like`."""
    if bias is None:
        return
    for shape in _scores_shapes(queries, keys, attentions):
        check_bias(bias, like, None, name, like_name)
        _check_axes(name, bias, shape)
        check_bias(bias, like, shape, name, like_name)


def _check_rule(name: str, rule: Any, queries: tuple[int, ...], keys: tuple[int, ...]) -> None:
    """Raise unless a rule knows these tokens, and its leading axes are those of the sequences."""
    leading = broadcast_shapes(tuple(queries[:-1]), tuple(keys[:-1])) or ()
    if broadcast_shapes(leading, rule.leading) != leading:
        raise ValueError(
            f"{name} must be a rule whose leading axes broadcast to those of the sequences "
            f"{leading}, got {rule.leading}"
        )
    rule.intervals(queries[-1], keys[-1])


def visible_to_heads(mask: Any, n_q: int, n_k: int, is_causal: bool) -> tuple[Any, bool]:
    """Return a mask and `is_causal`, with intervals (..., 1, n_q, n_k) in the place of a rule."""
    mask, is_causal = visible(mask, n_q, n_k, is_causal)
    if isinstance(mask, Intervals) and mask.ndim > 2:
        mask = mask.made("heads", lambda mask=mask: mask.with_axes(1))
    return mask, is_causal


def array_for_heads(mask: Any, n_q: int, n_k: int, like: Array) -> Any:
    """Return the mask (..., 1, n_q, n_k) that a rule stands for; arrays and None stay."""
    if not is_rule(mask):
        return mask
    made = mask.dense(n_q, n_k, like=like)
    return made if made.ndim < 3 else made[..., None, :, :]


def _scores_shapes(
    queries: tuple[int, ...], keys: tuple[int, ...], attentions: Sequence[Any]
) -> list[tuple[int, ...]]:
    leading = broadcast_shapes(tuple(queries[:-1]), tuple(keys[:-1])) or ()
    heads = sorted({attention.n_heads for attention in attentions})
    return [(*leading, n_heads, queries[-1], keys[-1]) for n_heads in heads]


def _check_axes(name: str, mask: Array, shape: tuple[int, ...]) -> None:
    """Raise if `mask` looks made for a batch and lacks the axes of length 1 that say so."""
    *leading, n_heads, n_q, n_k = shape
    got, batch = tuple(mask.shape), leading[-1] if leading else None
    if got == (batch, n_k) and batch not in (1, n_q):
        raise ValueError(
            f"{name} must broadcast to (..., h, n_q, n_k) = {shape}, got {got}; "
            f"one row of keys per sequence is {name}[:, None, None]"
        )
    if mask.ndim < 3 or got[-3] == 1:
        return
    fits_sequences = mask.ndim == 3 and got[0] == batch
    if got[-3] != n_heads:
        hint = f"; one mask per sequence is {name}[:, None]" if fits_sequences else ""
        entries = "1 entry" if n_heads == 1 else f"1 or {n_heads} entries"
        raise ValueError(
            f"{name} must have {entries} on the axis of the heads, the third from the right, "
            f"got shape {got}{hint}"
        )
    if fits_sequences:
        raise ValueError(
            f"{name} must say what its first axis is, because there are {n_heads} heads and "
            f"{n_heads} sequences: {name}[None] has one mask per head, {name}[:, None] one per "
            f"sequence; got shape {got}"
        )
