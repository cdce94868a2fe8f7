r"""BERT: an encoder over the sum of three embeddings, which is normalised.

.. math:: X = \operatorname{LN}(E_{t_i} + P_i + S_{s_i}), \qquad H = \operatorname{Encoder}(X)
"""

from dataclasses import dataclass
from typing import Annotated

from attnbook.arrays.arguments import check_ids
from attnbook.arrays.array import Array, Mask
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.multi_head.masks import check_head_mask
from attnbook.normalization.layer_norm import LayerNormWeights, layer_norm_of
from attnbook.transformers.embed import embed_of
from attnbook.transformers.encoder import encoder_of
from attnbook.transformers.self_attention import options_of
from attnbook.transformers.stack import EncoderWeights

# The mathematics, of checked arrays.


def bert_of(ids, weights, mask, token_types, impl=REFERENCE):
    x = embed_of(ids, weights.token_embedding, scale=False)
    x = x + weights.position_embedding[: ids.shape[-1], :]
    if token_types is None:
        x = x + weights.token_type_embedding[0, :]
    else:
        x = x + embed_of(token_types, weights.token_type_embedding, scale=False)
    x = layer_norm_of(x, weights.embedding_norm)  # (..., n, d_model)
    return encoder_of(x, weights.encoder, options_of(weights.encoder, x, mask=mask, impl=impl))


# The weights, and the functions, which check what they are given.


@dataclass(frozen=True, eq=False)
class BertWeights(Weights):
    r"""The weights of a BERT encoder: three tables, a normalisation, and the layers.

    Attributes
    ----------
    token_embedding : array, shape (V, d_model)
        One row per token.
    position_embedding : array, shape (N, d_model)
        One row per position; no sequence may be longer than N.
    token_type_embedding : array, shape (n_types, d_model)
        One row per segment of the input; for example, one for each of two sentences.
    embedding_norm : LayerNormWeights
        Applied to the sum of the three embeddings.
    encoder : EncoderWeights
        BERT's own layers are post-norm with gelu.

    Raises
    ------
    TypeError, ValueError
        If a part does not have the right class, library, device, dtype or width, or a table has no
        row.
    """

    token_embedding: Annotated[Array, "V d_model"]
    position_embedding: Annotated[Array, "N d_model"]
    token_type_embedding: Annotated[Array, "n_types d_model"]
    embedding_norm: LayerNormWeights
    encoder: EncoderWeights

    def __post_init__(self):
        self.check_fields()
        tables = {name: getattr(self, name) for name in self.axis_letters}
        for name, x in tables.items():
            if x.shape[0] == 0:
                raise ValueError(f"{name} must have at least 1 row, got shape {tuple(x.shape)}")
        widths = {name: x.shape[1] for name, x in tables.items()}
        norm = self.embedding_norm.arrays()
        widths |= {f"embedding_norm.{name}": x.shape[0] for name, x in norm.items()}
        if self.encoder.d_model is not None:
            widths["encoder"] = self.encoder.d_model
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise ValueError(f"all parts must have one width d_model, got {listed}")


def bert(
    ids: Annotated[Array, "... n"],
    weights: BertWeights,
    mask: Mask | None = None,
    *,
    token_types: Annotated[Array, "... n"] | None = None,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n d_model"]:
    r"""Return a vector for every token, in the context of all tokens: BERT's last hidden state.

    .. math:: X_i = \operatorname{LN}(E_{t_i} + P_i + S_{s_i}), \qquad H = \operatorname{Encoder}(X)

    Parameters
    ----------
    ids : integer array t, shape (..., n)
        Token ids from 0 to V - 1.
    weights : BertWeights
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        **True = may attend.** ``masking.padding`` of lengths (batch, 1), which has the shape
        (batch, 1, 1, n), hides the padding, and so does the mask of `WordPieces.encode_batch`.
    token_types : integer array s, shape (..., n), optional
        The segment to which each token belongs; 0 by default.
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n, d_model)
        Has the dtype of the weights. The rows of padding tokens have no meaning.
        ``impl=kernels.Recorder()`` keeps the attention weights of every layer.

    Raises
    ------
    TypeError, ValueError
        As in `encoder`; also if ids are not integers or not known, if there are more tokens than
        positions, or if `token_types` does not have the shape of `ids`.

    Notes
    -----
    To get the output after k layers, pass weights that have only the first k layers.
    Cost: that of `encoder`.

    References
    ----------
    Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language
    understanding".

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import EncoderWeights, LayerNormWeights
    >>> layers = EncoderWeights.init(0, 2, d_model=8, n_heads=2, d_ff=32, norm="post")
    >>> tables = np.eye(11, 8), np.eye(5, 8), np.eye(2, 8)
    >>> weights = BertWeights(*tables, LayerNormWeights.init(8), layers)
    >>> bert(np.array([[3, 1, 4]]), weights).shape
    (1, 3, 8)
    """
    check_impl(impl)
    _check(ids, weights, mask, token_types)
    return bert_of(ids, weights, mask, token_types, impl)


def _check(ids, weights, mask, token_types):
    check_part("weights", weights, BertWeights)
    table = weights.token_embedding
    check_ids("ids", ids, table.shape[0], "token_embedding", table)
    longest = weights.position_embedding.shape[0]
    if ids.shape[-1] > longest:
        raise ValueError(
            f"ids must have at most {longest} tokens, as many as positions, got {ids.shape[-1]}"
        )
    if token_types is not None:
        types = weights.token_type_embedding
        check_ids("token_types", token_types, types.shape[0], "token_type_embedding", types)
        if tuple(token_types.shape) != tuple(ids.shape):
            raise ValueError(
                f"token_types must have the shape of ids, {tuple(ids.shape)}, "
                f"got {tuple(token_types.shape)}"
            )
    attentions = [layer.self_attention for layer in weights.encoder.layers]
    shape = tuple(ids.shape)
    check_head_mask("mask", mask, "ids", ids, shape, shape, attentions)
