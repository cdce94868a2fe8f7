"""Forwards through a whole decoder, backwards in reverse order: the gradient of every weight."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool
from attnbook.arrays.array import (
    Array,
    Mask,
    accumulation_dtype,
    array_namespace,
    dtype_name,
    sum_to_shape,
)
from attnbook.arrays.attention_arguments import and_causal
from attnbook.arrays.lengths import placed
from attnbook.arrays.weights import check_part
from attnbook.masking.documents import Documents
from attnbook.multi_head.masks import array_for_heads, check_head_mask
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.normalization.normalization import NORMALIZED
from attnbook.positions.biases import RelativeBias
from attnbook.positions.piece import AttentionPositions
from attnbook.positions.rotation import Rotary
from attnbook.training.backpropagation.block import decoder_layer_with_vjp
from attnbook.training.backpropagation.linear import embed_vjp, linear_vjp, summed_by_id
from attnbook.training.backpropagation.loss import cross_entropy_vjp
from attnbook.training.backpropagation.normalization import NORMALIZATION_VJPS
from attnbook.training.loss import checked_targets, cross_entropy_of
from attnbook.transformers.feed_forward import FeedForwardWeights, GatedFeedForwardWeights
from attnbook.transformers.transformer import check_tokens, joined, logits_of, placed_tokens
from attnbook.transformers.weights import TransformerWeights

NETWORK_KINDS = (FeedForwardWeights, GatedFeedForwardWeights)


def transformer_with_vjp(
    inputs: Annotated[Array, "..."],
    weights: TransformerWeights,
    mask: Mask | None = None,
    documents: Documents | None = None,
) -> tuple[Annotated[Array, "... n V"], Callable[[Array], TransformerWeights]]:
    """Return the logits of a decoder-only model, and a vjp that pulls back to its weights.

    Parameters
    ----------
    inputs : integer array, shape (..., n), or features (..., n, d_model) without an embedding
    weights : TransformerWeights
        They must have no encoder.
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        **True = may attend**; `masking.causal` makes a causal one.
    documents : Documents, optional
        Where positions begin anew, as in `transformer`; the mask must hide other documents.

    Returns
    -------
    logits : array, shape (..., n, V)
    vjp : callable
        ``vjp(grad_logits)`` returns the gradients, which are `TransformerWeights`, too.

    Examples
    --------
    >>> import numpy as np
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 32, "n_layers": 2, "n_encoder_layers": 0}
    >>> weights = TransformerWeights.init(0, 5, **sizes)
    >>> logits, vjp = transformer_with_vjp(np.array([3, 1, 4]), weights)
    >>> vjp(logits).target_embedding.shape
    (5, 8)
    """
    decoder, table = weights.decoder, weights.target_embedding
    positions: Any = decoder.positions
    if positions is None:
        positions = Rotary() if weights.positions == "rotary" else AttentionPositions()
    x = placed_tokens(inputs, table, weights.target_positions, weights, documents=documents)
    n, bias, vjps = x.shape[-2], None, []
    if decoder.layers:
        bias = positions.bias(decoder.layers[0].self_attention.n_heads, n, n, x)
    for layer in decoder.layers:
        x, vjp_of_layer = decoder_layer_with_vjp(x, layer, mask, bias, positions)
        vjps.append(vjp_of_layer)
    norm, last = decoder.final_norm, x
    x = x if norm is None else NORMALIZED[type(norm)](x, norm)

    logits = logits_of(x, weights)

    def vjp(grad_logits):
        if weights.logit_cap is not None:
            bounded = logits / weights.logit_cap
            grad_logits = grad_logits * (1 - bounded * bounded)
        grad_x, grads = _logits_vjp(x, weights, grad_logits)
        grad_norm = None
        if norm is not None:
            grad_x, grad_norm = NORMALIZATION_VJPS[type(norm)](last, norm, grad_x)
        layers: list[Any] = []
        biases: list[Any] = []
        for vjp_of_layer in reversed(vjps):
            grad_x, grad_layer, grad_bias = vjp_of_layer(grad_x)
            layers.insert(0, grad_layer)
            biases.append(grad_bias)
        grads["decoder"] = replace(
            decoder,
            layers=tuple(layers),
            final_norm=grad_norm,
            positions=_positions_vjp(decoder.positions, n, biases),
        )
        if weights.target_positions is not None:
            grads["target_positions"] = _table_vjp(weights.target_positions, grad_x, documents)
        if table is not None:
            read = embed_vjp(inputs, table, grad_x, scale=weights.scale_embeddings)
            tied = grads.get("target_embedding")
            grads["target_embedding"] = read if tied is None else read + tied
        return replace(weights, **grads)

    return logits, vjp


def _logits_vjp(x, weights, grad_logits):
    """Return the gradient of the last features, and those of what makes logits of them."""
    xp, table = array_namespace(x), weights.target_embedding
    if weights.output is None and table is None:
        return grad_logits, {}
    matrix = xp.matrix_transpose(table) if weights.output is None else weights.output
    grad_x, grad_matrix, b_out = linear_vjp(x, matrix, weights.b_out, grad_logits)
    if weights.output is not None:
        return grad_x, {"output": grad_matrix, "b_out": b_out}
    return grad_x, {"target_embedding": xp.matrix_transpose(grad_matrix), "b_out": b_out}


def _positions_vjp(positions, n, grads):
    """Return the gradient of what added a bias to the scores of each layer, that had `grads`."""
    if not isinstance(positions, RelativeBias):
        return positions  # nothing is learned
    xp = array_namespace(positions.table)
    n_buckets, n_heads = positions.table.shape
    if not grads:
        return replace(positions, table=xp.zeros_like(positions.table))
    total = xp.reshape(sum(grads[1:], start=grads[0]), (n_heads, n * n))
    rows = xp.matrix_transpose(total)  # (n·n, h)
    return replace(positions, table=summed_by_id(positions.buckets(n, n), rows, n_buckets))


def _table_vjp(table, grad_x, documents):
    """Return the gradient of learned positions, of which the first n were added, or others."""
    xp, n = array_namespace(table), grad_x.shape[-2]
    if documents is not None:
        shape = tuple(grad_x.shape[:-1])
        places = placed(np.broadcast_to(documents.positions, shape).reshape(-1), table)
        rows = xp.reshape(grad_x, (-1, grad_x.shape[-1]))
        return summed_by_id(places, rows, table.shape[0])
    read = sum_to_shape(grad_x, tuple(grad_x.shape[-2:]))
    return xp.concat([read, xp.zeros_like(table[n:, :])], axis=0)


def gradients(
    weights: TransformerWeights,
    inputs: Annotated[Array, "..."],
    targets: Annotated[Array, "... n"],
    *,
    mask: Annotated[Array, "... n"] | None = None,
    label_smoothing: float = 0.0,
    target_mask: Mask | None = None,
    is_causal: bool = True,
    documents: Documents | None = None,
) -> tuple[Annotated[Array, ""], TransformerWeights]:
    r"""Return the loss of a decoder-only model, and its gradient with respect to every weight.

    .. math:: \mathcal L = \operatorname{cross\_entropy}\bigl(
              \operatorname{transformer}_W(\text{inputs}),\, \text{targets}\bigr),
              \qquad g = \frac{\partial\mathcal L}{\partial W}

    This is backpropagation by hand: the forward pass keeps the inputs of every function, and the
    backward pass calls the vjps of `attnbook.training.backpropagation` in reverse order.

    Parameters
    ----------
    weights : TransformerWeights
        They must have no encoder and be float32 or float64.
    inputs : integer array, shape (..., n)
        Token ids or, if `weights` has no embedding, features (..., n, d_model).
    targets : integer array, shape (..., n)
        The token that follows each input. Where `mask` is False, it may be any number.
    mask : boolean array, shape (..., n), optional
        **True = counts.** Padding must be False. The loss is the mean over the tokens that count.
    label_smoothing : float
        As in `cross_entropy`.
    target_mask, is_causal, documents
        Which tokens may attend to which, as in `transformer`. Padding at the end needs no
        `target_mask` because no token that counts can see it.

    Returns
    -------
    loss : array, shape ()
    gradients : TransformerWeights
        The gradient with respect to each array, in the field of that array, so
        ``gradients.arrays()`` has the names and shapes of ``weights.arrays()``.

    Raises
    ------
    TypeError
        If `weights` is not a `TransformerWeights` or is in half precision, a layer has another
        attention than `MultiHeadWeights` or a mixture of experts, ids are not integers, a mask is
        not boolean, or libraries differ.
    ValueError
        If `weights` has an encoder, an id is not in the vocabulary, shapes do not match, or
        `label_smoothing` is not from 0 to 1.

    Notes
    -----
    Use it with libraries that have no autograd (NumPy, CuPy); the result equals that of PyTorch's
    autograd up to rounding. There is no dropout. If no token counts, loss and gradients are 0.
    Cost: about three times that of `transformer`, because each product of the forward pass needs
    two in the backward pass. Memory holds all intermediate results, O(n d_model + h n²) per layer.

    References
    ----------
    Rumelhart, Hinton and Williams (1986), "Learning representations by back-propagating errors";
    chapter `backpropagation`.

    Examples
    --------
    >>> import numpy as np
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 32, "n_layers": 2, "n_encoder_layers": 0}
    >>> weights = TransformerWeights.init(0, 5, **sizes)
    >>> loss, grads = gradients(weights, np.array([3, 1, 4]), np.array([1, 4, 2]))
    >>> grads.decoder.layers[0].feed_forward.W_1.shape
    (8, 32)
    """
    attend = _checked_mask(weights, inputs, target_mask, is_causal, documents)
    logits, vjp = transformer_with_vjp(inputs, weights, attend, documents)
    targets = checked_targets(logits, targets, mask, label_smoothing)
    loss = cross_entropy_of(logits, targets, mask, label_smoothing)
    return loss, vjp(cross_entropy_vjp(logits, targets, mask, label_smoothing=label_smoothing))


def _checked_mask(weights, inputs, target_mask, is_causal, documents):
    """Return the mask of every attention, or raise."""
    check_part("weights", weights, TransformerWeights)
    check_bool("is_causal", is_causal)
    if weights.encoder is not None:
        raise ValueError(
            "weights must be those of a decoder alone, got an encoder too; "
            "attnbook.training.train takes both and uses PyTorch's autograd"
        )
    for i, layer in enumerate(weights.decoder.layers):
        for name, known in (("self_attention", MultiHeadWeights), ("feed_forward", NETWORK_KINDS)):
            part = getattr(layer, name)
            if not isinstance(part, known):
                raise TypeError(
                    f"layers[{i}].{name} must be of a class with a backward pass by hand, got "
                    f"{type(part).__name__}; attnbook.training.train uses PyTorch's autograd"
                )
    like: Any = weights.any_array()
    if like is not None and accumulation_dtype(array_namespace(like), like.dtype) != like.dtype:
        raise TypeError(
            f"weights must be float32 or float64 to be trained, got {dtype_name(like.dtype)}"
        )
    tables = weights.target_embedding, weights.target_positions
    tokens = check_tokens("inputs", inputs, weights, *tables, "target_embedding", documents)
    attentions = [layer.self_attention for layer in weights.decoder.layers]
    check_head_mask("target_mask", target_mask, "inputs", inputs, tokens, tokens, attentions)
    positions = inputs[..., None] if weights.target_embedding is not None else inputs
    n = positions.shape[-2]
    target_mask = array_for_heads(joined(target_mask, documents), n, n, positions)
    return and_causal(target_mask, positions, positions) if is_causal else target_mask
