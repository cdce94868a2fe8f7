r"""Latent attention: the keys and values of all heads are linear maps of one narrow latent.

.. math:: c = \operatorname{norm}(x W_{DKV}), \qquad k_i = [\,c\,W_{UK}^{(i)} \mid k_R\,], \qquad
          v_i = c\,W_{UV}^{(i)}, \qquad k_R = R\,x W_{KR}

The score of a query and a key of head i is

.. math:: q_i \cdot c\,W_{UK}^{(i)} + q_{R,i} \cdot k_R
          = q_i W_{UK}^{(i)\top} \cdot c + q_{R,i} \cdot k_R,

so the heads can attend to the latents themselves. Their keys are then [c | k_R], and their values
are c: multi-query attention with one KV head of width r + d_rope.
"""

import math
from typing import Annotated, Any

from attnbook import kernels
from attnbook.arrays.arguments import check_bool, check_choice, check_float, check_floats
from attnbook.arrays.array import Array, Mask, array_namespace
from attnbook.arrays.projections import check_width, project
from attnbook.arrays.weights import check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.multi_head.attention import Turn
from attnbook.multi_head.heads import merge_heads_of, repeat_heads, split_heads_of
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.multi_head.masks import check_head_bias, check_head_mask, visible_to_heads
from attnbook.normalization.rms_norm import rms_norm_of
from attnbook.positions.rotation import Rotary

FORMS = ("full", "absorbed")
"""The names that ``form=`` takes."""

Latents = tuple[Array, Array]
"""The rotated key (..., 1, n, d_rope) and the latent (..., 1, n, r) of every token."""

# The mathematics, of checked arrays.


def latents_of(x: Array, weights: LatentWeights, turn: Turn | None = None) -> Latents:
    """Return what a cache keeps of the tokens `x`; `turn` rotates to their positions."""
    c = project(x, weights.W_DKV)  # (..., n, r)
    c = c if weights.kv_norm is None else rms_norm_of(c, weights.kv_norm)
    k = project(x, weights.W_KR)[..., None, :, :]  # (..., 1, n, d_rope), of the one KV head
    return _turned(k, turn), c[..., None, :, :]


def attend_to_latents(
    x: Array,
    latents: Latents,
    weights: LatentWeights,
    mask: Mask | None,
    *,
    turn: Turn | None = None,
    bias: Array | None = None,
    impl: Impl = REFERENCE,
    is_causal: bool = False,
    form: str = "absorbed",
) -> Array:
    """Make the queries of `x`, attend with every head, join, and project back."""
    xp, h = array_namespace(x), weights.n_heads
    c = x if weights.W_DQ is None else project(x, weights.W_DQ)
    c = c if weights.q_norm is None else rms_norm_of(c, weights.q_norm)
    q = split_heads_of(project(c, weights.W_UQ), h)  # (..., h, n_q, d_nope + d_rope)
    scale = 1 / math.sqrt(q.shape[-1]) if weights.scale is None else weights.scale
    q_nope, q_rope = q[..., : weights.d_nope], _turned(q[..., weights.d_nope :], turn)
    if form == "full":
        k, v = _full(latents, weights)
    else:
        k_rope, v = latents
        down = xp.matrix_transpose(split_heads_of(weights.W_UK, h))  # (h, d_nope, r)
        q_nope = xp.matmul(q_nope, down)  # (..., h, n_q, r)
        k = xp.concat([v, k_rope], axis=-1)  # (..., 1, n_k, r + d_rope)
        if callable(impl):  # which gets as many key heads as query heads
            k, v = repeat_heads(k, v, h)
    q = xp.concat([q_nope, q_rope], axis=-1)
    seen: Any = mask
    if mask is not None:
        seen, is_causal = visible_to_heads(mask, q.shape[-2], k.shape[-2], is_causal)
    mixed = kernels.attention(impl, q, k, v, seen, bias, scale, is_causal)
    if form == "absorbed":
        up = split_heads_of(weights.W_UV, h)  # (h, r, d_v)
        mixed = xp.matmul(xp.astype(mixed, up.dtype, copy=False), up)
    joined = merge_heads_of(mixed)  # (..., n_q, h·d_v)
    if joined.dtype != x.dtype:  # under torch.autocast
        joined = xp.astype(joined, x.dtype)
    return project(joined, weights.W_O)


def _full(latents: Latents, weights: LatentWeights) -> tuple[Array, Array]:
    """Return keys (..., h, n_k, d_nope + d_rope) and values (..., h, n_k, d_v)."""
    k_rope, c = latents[0], latents[1][..., 0, :, :]
    xp, h = array_namespace(c), weights.n_heads
    k = split_heads_of(project(c, weights.W_UK), h)  # (..., h, n_k, d_nope)
    shared = xp.broadcast_to(k_rope, (*k.shape[:-1], k_rope.shape[-1]))
    return xp.concat([k, shared], axis=-1), split_heads_of(project(c, weights.W_UV), h)


def _turned(x: Array, turn: Turn | None) -> Array:
    return x if turn is None or x.shape[-1] == 0 else turn(x)


# The function, which checks what it is given.


def latent_attention(
    x: Annotated[Array, "... n d_model"],
    weights: LatentWeights,
    mask: Mask | None = None,
    *,
    rotary: Rotary | None = None,
    bias: Annotated[Array, "..."] | None = None,
    is_causal: bool = False,
    form: str = "full",
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n d_out"]:
    r"""Apply multi-head latent attention: self-attention by way of one latent per token.

    .. math:: \operatorname{head}_i = \operatorname{softmax}\Bigl(\beta\bigl(
        Q_i (C W_{UK}^{(i)})^\top + Q_{R,i} K_R^\top\bigr)\Bigr)\, C W_{UV}^{(i)}
        = \operatorname{softmax}\Bigl(\beta\bigl(
        (Q_i W_{UK}^{(i)\top}) C^\top + Q_{R,i} K_R^\top\bigr)\Bigr)\, C \; W_{UV}^{(i)},

    with latents C = norm(X W_DKV), rotated keys K_R of X W_KR, and queries [Q_i | Q_R,i] of head i.

    Parameters
    ----------
    x : array X, shape (..., n, d_model)
    weights : LatentWeights
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        **True = may attend.** Its axes are read as in `multi_head_attention`.
    rotary : positions.Rotary, optional
        How the last d_rope features of the queries and the shared key are rotated; the first token
        is at position 0. Without it, nothing is rotated. DeepSeek's models use
        ``Rotary(interleaved=True)``.
    bias : array that broadcasts to (..., h, n, n), optional
        Finite numbers that are added to the scaled scores, in the dtype of `x`.
    is_causal : bool
        Also hide every key that comes later than its query.
    form : str
        ``"full"`` computes keys and values of every head from the latents, as in training.
        ``"absorbed"`` multiplies W_UK into the queries and W_UV into the output, so that all heads
        attend to the latents as multi-query attention does. Decoding uses it. Both compute the same
        function.
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n, d_out)

    Raises
    ------
    TypeError, ValueError
        As in `multi_head_attention`; also if `form` is unknown, `rotary` is not a `Rotary`, or it
        does not fit the width d_rope.

    Notes
    -----
    The rotated key cannot come from the latent, because a rotation that depends on the position
    stands between W_UQ and W_UK and keeps them from being multiplied together. That is why it has
    a matrix of its own and is shared by all heads.
    A cache holds r + d_rope numbers per token and layer; keys and values of h heads would be
    h (d_nope + d_rope + d_v).
    Cost of the scores and the mixture, per pair of query and key: O(h (d_nope + d_rope + d_v)) in
    the full form and O(h (2 r + d_rope)) in the absorbed one. The full form also computes the keys
    and values, O(n r h (d_nope + d_v)), which the absorbed form does only for queries.

    References
    ----------
    DeepSeek-AI (2024), "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts
    language model", section 2.1; Shazeer (2019), "Fast Transformer decoding".

    Examples
    --------
    >>> import numpy as np
    >>> weights = LatentWeights.init(0, 16, 4, rank=6)
    >>> x = np.random.default_rng(0).normal(size=(5, 16))
    >>> full = latent_attention(x, weights, is_causal=True, rotary=Rotary(interleaved=True))
    >>> absorbed = latent_attention(
    ...     x, weights, is_causal=True, rotary=Rotary(interleaved=True), form="absorbed"
    ... )
    >>> bool(np.allclose(full, absorbed, atol=1e-12))
    True
    """
    check_impl(impl)
    check_part("weights", weights, LatentWeights)
    check_bool("is_causal", is_causal)
    check_choice("form", form, FORMS)
    check_float("x", x)
    check_floats(x=x, weights=weights.W_DKV)
    check_width("x", x, weights.d_query)
    if rotary is not None:
        check_part("rotary", rotary, Rotary)
        if weights.d_rope:
            rotary.check_heads(weights.n_heads, weights.d_rope)
    if mask is not None or bias is not None:
        scores: Any = ("x", x, x.shape[:-1], x.shape[:-1], [weights])
        check_head_mask("mask", mask, *scores)
        check_head_bias("bias", bias, *scores)
    turn = None if rotary is None else rotary.turn(0)
    options: Any = {"bias": bias, "impl": impl, "is_causal": is_causal, "form": form}
    latents = latents_of(x, weights, turn)
    return attend_to_latents(x, latents, weights, mask, turn=turn, **options)
