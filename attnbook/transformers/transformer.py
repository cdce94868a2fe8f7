"""The transformer: from token ids of a source and a target to logits of each next token.

`transformers.encoder` and `transformers.decoder` hold the stacks, `transformers.weights` the
arrays; this file joins them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from attnbook.arrays.arguments import check_bool, check_float, check_floats, check_ids
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes
from attnbook.arrays.attention_arguments import is_rule
from attnbook.arrays.lengths import placed
from attnbook.arrays.weights import check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.masking.documents import Documents, counts_from_the_first
from attnbook.masking.ranges import FirstKeys
from attnbook.multi_head.attention import KeysAndValues
from attnbook.multi_head.masks import array_for_heads, check_head_mask
from attnbook.positions.tables import sinusoidal_of
from attnbook.transformers.decoder import decoder_of, memory_keys_and_values
from attnbook.transformers.dropout import check_drop
from attnbook.transformers.embed import embed_of
from attnbook.transformers.encoder import encoder_of
from attnbook.transformers.self_attention import Drop, options_of
from attnbook.transformers.weights import TransformerWeights

# The mathematics, of checked arrays.


def encode(
    source: Array | None,
    weights: TransformerWeights,
    mask: Mask | None = None,
    *,
    drop: Drop | None = None,
    impl: Impl = REFERENCE,
) -> Array | None:
    """Return what the encoder makes of the source, or None where there is no encoder."""
    if weights.encoder is None:
        return None
    x = placed_tokens(source, weights.embedding("source"), weights.source_positions, weights)
    x = x if drop is None else drop(x)
    rotate = weights.positions == "rotary"
    options = options_of(weights.encoder, x, rotate=rotate, mask=mask, drop=drop, impl=impl)
    return encoder_of(x, weights.encoder, options)


def decode(
    target: Array,
    memory: Sequence[KeysAndValues | None],
    weights: TransformerWeights,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    *,
    past: Any = None,
    start: int = 0,
    last: bool = False,
    is_causal: bool = False,
    documents: Documents | None = None,
    drop: Drop | None = None,
    impl: Impl = REFERENCE,
) -> Array:
    """Return the logits of `target`, or of its `last` token alone.

    `memory` are its keys and values. The first token stands at `start`, after what the cache `past`
    holds; `impl` and `is_causal` say how it attends. `documents` share the target, whose mask must
    hide other documents.
    """
    table = weights.target_embedding
    x = placed_tokens(target, table, weights.target_positions, weights, start, documents)
    x = x if drop is None else drop(x)
    options = options_of(
        *(weights.decoder, x),
        rotate=weights.positions == "rotary",
        start=start,
        mask=mask,
        memory_mask=memory_mask,
        is_causal=is_causal,
        drop=drop,
        impl=impl,
    )
    x = decoder_of(x, memory, weights.decoder, options, past)
    return logits_of(x[..., -1:, :] if last else x, weights)


def placed_tokens(
    tokens: Any,
    table: Array | None,
    positions: Any,
    weights: TransformerWeights,
    start: int = 0,
    documents: Documents | None = None,
) -> Array:
    """Return the embedding of the tokens with their positions added.

    Positions begin anew with each of the `documents`, and otherwise at `start`.
    """
    if table is None:
        return tokens
    x = embed_of(tokens, table, weights.scale_embeddings)
    n, d_model = x.shape[-2:]
    if weights.positions not in ("learned", "sinusoidal", "interleaved"):
        return x
    if documents is not None:
        start, n = 0, documents.longest
    if weights.positions == "learned":
        rows = positions[start : start + n, :]
    else:
        rows = sinusoidal_of(n, d_model, start, weights.positions == "interleaved", x)
    if documents is None:
        return x + rows
    xp, places = array_namespace(x), documents.positions
    flat = xp.take(rows, placed(places.reshape(-1), x), axis=0)
    return x + xp.reshape(flat, (*places.shape, d_model))


def joined(mask: Any, documents: Documents | None) -> Any:
    """Return a mask, a rule or None that also hides other documents."""
    if mask is None or documents is None:
        return mask if documents is None else documents
    if is_rule(mask):
        return documents.each(mask) if counts_from_the_first(mask) else mask & documents
    n = documents.ids.shape[-1]
    return mask & array_for_heads(documents, n, n, mask)


def logits_of(x: Array, weights: TransformerWeights) -> Array:
    xp = array_namespace(x)
    if weights.output is not None:
        x = xp.matmul(x, weights.output)
    elif weights.target_embedding is not None:
        x = xp.matmul(x, xp.matrix_transpose(weights.target_embedding))
    x = x if weights.b_out is None else x + weights.b_out
    cap = weights.logit_cap
    return x if cap is None else cap * xp.tanh(x / cap)


# The functions, which check what they are given.


def transformer(
    source: Annotated[Array, "..."] | None,
    target: Annotated[Array, "..."],
    weights: TransformerWeights,
    *,
    source_mask: Mask | None = None,
    target_mask: Mask | None = None,
    memory_mask: Mask | None = None,
    is_causal: bool = True,
    documents: Documents | None = None,
    drop: Callable[[Array], Array] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n_t V_t"]:
    r"""Return the logits of the next token at every position of the target.

    .. math:: X_{\text{mem}} = \operatorname{Encoder}(\sqrt{d}\,E_s[\text{source}] + PE), \qquad
              \text{logits} =
              \operatorname{Decoder}(\sqrt{d}\,E_t[\text{target}] + PE,\; X_{\text{mem}})\,
              W_{\text{out}} + b_{\text{out}}

    Parameters
    ----------
    source : integer array, shape (..., n_s), or None
        Token ids; None for a decoder-only model.
    target : integer array, shape (..., n_t)
        Token ids so far, beginning with a start token; row i of the result predicts token i + 1.
        If `weights` has no embeddings, source and target are features (..., n, d_model).
    weights : TransformerWeights
    source_mask : boolean array that broadcasts to (..., h, n_s, n_s), or a `masking.Rule`, optional
        **True = may attend.** (batch, 1, 1, n_s) hides padding.
    target_mask : boolean array that broadcasts to (..., h, n_t, n_t), or a `masking.Rule`, optional
        Applied in addition to the causal mask.
    memory_mask : boolean array that broadcasts to (..., h, n_t, n_s), or a `masking.Rule`, optional
        Which source tokens the target may attend to. By default it is `source_mask` if that mask
        has one row for all queries, so that padding stays hidden. A `source_mask` with n_s rows
        applies only to the encoder, even if its rows are equal, so pass a `memory_mask`, too.
    is_causal : bool
        Whether to hide later target tokens. If they are not hidden, the model sees the answer
        during training (claim 15).
    documents : masking.Documents, optional
        The documents that share each row of the target of a decoder-only model (packed sequences):
        a token attends only to its own document, and positions begin anew with each document. So
        does a rule in `target_mask`, unless it has numbers for each sequence or token.
    drop : callable, optional
        As in `encoder_layer`; also applied to both embeddings.
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n_t, V_t), or (..., n_t, d_model) without embeddings and output
        Logits; `softmax` turns them into probabilities. ``impl=kernels.Recorder()`` keeps all
        attention weights: first those of the encoder, then, for each decoder layer, those over the
        target and those over the source.

    Raises
    ------
    TypeError
        If ids are not integers, a mask is not boolean, libraries differ, `is_causal` is not a
        bool, or `drop` is not callable.
    ValueError
        If an id is not in the vocabulary, a sequence is longer than the table of learned positions,
        shapes do not match, devices differ, or there is a `source` but no encoder or the reverse.
        Also if there are `documents` and an encoder, or the documents do not match the target.

    Notes
    -----
    Rotations and biases of scores depend only on distances, which are the same in a packed row, so
    with `documents` only positions that are added to the tokens begin anew. A model whose rotary
    frequencies depend on the length of the text reads the length of the row.
    A sequence may be empty. If no token of the source is visible, the target attends only to
    itself.
    Cost: that of the layers, plus O(n_t d_model V_t) for the logits.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need"; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> transformer(np.array([[3, 1, 4]]), np.array([[0, 5]]), weights).shape
    (1, 2, 11)
    """
    check_impl(impl)
    given = (source, target, weights, source_mask, target_mask)
    memory_mask = _check(*given, memory_mask, is_causal, drop, documents)
    memory = encode(source, weights, source_mask, drop=drop, impl=impl)
    heads = memory_keys_and_values(memory, weights.decoder.layers)
    options: Any = {"is_causal": is_causal, "documents": documents, "drop": drop, "impl": impl}
    return decode(target, heads, weights, joined(target_mask, documents), memory_mask, **options)


def _check(
    source: Any,
    target: Array,
    weights: Any,
    source_mask: Mask | None,
    target_mask: Mask | None,
    memory_mask: Mask | None,
    is_causal: bool,
    drop: Any,
    documents: Any,
) -> Mask | None:
    """Return the mask of the memory, which may be that of the source, or raise."""
    check_part("weights", weights, TransformerWeights)
    check_bool("is_causal", is_causal)
    check_drop(drop)
    known = weights.target_embedding, weights.target_positions
    queries = check_tokens("target", target, weights, *known, documents=documents)
    keys: Any = check_source(source, weights, source_mask, memory_mask)
    if keys and broadcast_shapes(queries[:-1], keys[:-1]) is None:
        raise ValueError(
            f"source must have leading axes that broadcast with {queries[:-1]}, "
            f"got shape {tuple(source.shape)}"
        )
    if source_mask is not None:
        attentions = [layer.self_attention for layer in weights.encoder.layers]
        check_head_mask("source_mask", source_mask, "source", source, keys, keys, attentions)
        memory_mask = mask_for_memory(source_mask) if memory_mask is None else memory_mask
    if documents is not None and weights.encoder is not None:
        raise ValueError("documents must be None where there is an encoder")
    layers = weights.decoder.layers
    if memory_mask is not None:
        cross = [layer.cross_attention for layer in layers]
        check_head_mask("memory_mask", memory_mask, "target", target, queries, keys, cross)
    if target_mask is not None:
        own = [layer.self_attention for layer in layers]
        check_head_mask("target_mask", target_mask, "target", target, queries, queries, own)
    return memory_mask


def mask_for_memory(source_mask: Any) -> Any:
    """Return `source_mask` if it is the same for all queries, so that it fits other queries too."""
    if is_rule(source_mask):
        return source_mask if isinstance(source_mask, FirstKeys) else None
    same = source_mask is not None and (source_mask.ndim < 2 or source_mask.shape[-2] == 1)
    return source_mask if same else None


def check_tokens(
    name: str,
    tokens: Array,
    weights: TransformerWeights,
    table: Array | None,
    positions: Array | None,
    table_name: str | None = None,
    documents: Any = None,
) -> tuple[int, ...]:
    """Return the shape (..., n) of token ids, or of features, that fit the weights, or raise."""
    if table is None:
        shape = _check_features(name, tokens, weights)
    else:
        check_ids(name, tokens, table.shape[0], table_name or f"{name}_embedding", table)
        shape = tuple(tokens.shape)
    if documents is not None:
        _check_documents(documents, name, shape, None if table is None else positions)
        return shape
    if table is not None and positions is not None and tokens.shape[-1] > positions.shape[0]:
        raise ValueError(
            f"{name} must have at most {positions.shape[0]} tokens, as many as learned positions, "
            f"got {tokens.shape[-1]}"
        )
    return shape


def _check_documents(
    documents: Any, name: str, shape: tuple[int, ...], positions: Array | None
) -> None:
    """Raise unless there is a document for each token, none in two pieces or too long."""
    if not isinstance(documents, Documents):
        raise TypeError(f"documents must be masking.Documents, got {type(documents).__name__}")
    ids = documents.ids
    if ids.shape[-1] != shape[-1] or broadcast_shapes(shape, ids.shape) != shape:
        raise ValueError(f"documents must match {name} of shape {shape}, got {ids.shape}")
    if not documents.is_whole:
        raise ValueError("documents must each be in one piece, because their positions count on")
    if positions is not None and documents.longest > positions.shape[0]:
        raise ValueError(
            f"documents must have at most {positions.shape[0]} tokens, as many as learned "
            f"positions, got {documents.longest}"
        )


def _check_features(name: str, x: Array, weights: TransformerWeights) -> tuple[int, ...]:
    check_float(name, x)
    if (like := weights.any_array()) is not None:
        check_floats(**{name: x, "weights": like})
    d_model = weights.d_model
    if x.ndim < 2 or x.shape[-1] != (d_model or x.shape[-1]):
        raise ValueError(
            f"{name} must have shape (..., n, {d_model or 'd_model'}), got {tuple(x.shape)}"
        )
    return tuple(x.shape[:-1])


def check_source(
    source: Array | None,
    weights: TransformerWeights,
    source_mask: Mask | None,
    memory_mask: Mask | None,
) -> tuple[int, ...] | None:
    """Return the shape (..., n_s) of the source, or None where there is no encoder, or raise."""
    if weights.encoder is not None:
        if source is None:
            raise ValueError("source must be an array for the encoder, got None")
        known = weights.embedding("source"), weights.source_positions
        return check_tokens("source", source, weights, *known)
    given = {"source": source, "source_mask": source_mask, "memory_mask": memory_mask}
    for name, x in given.items():
        if x is not None:
            raise ValueError(f"{name} must be None, since the weights have no encoder")
    return None
