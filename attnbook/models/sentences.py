r"""Sentences as vectors: BERT, the mean over the tokens, unit length.

.. math:: z = \frac1n \sum_{i=1}^{n} H_i, \qquad v = z / \lVert z \rVert
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_int
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.lengths import first_keys, placed
from attnbook.arrays.move import numbers_of
from attnbook.arrays.weights import check_part
from attnbook.data.batch import pad
from attnbook.data.ids import texts_of
from attnbook.data.word_pieces import WordPieces
from attnbook.hashing.projections import unit
from attnbook.kernels import REFERENCE, Impl, Recorder, check_impl
from attnbook.models import store
from attnbook.models.bert_encoder import BertWeights, bert_of
from attnbook.models.hugging_face import from_transformers
from attnbook.models.safetensors_file import read_safetensors

NAME = "sentence-encoder"
LONGEST = 256  # tokens of a text, as its makers set it: it has learned no more
CONFIG = {
    **{"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512},
    **{"type_vocab_size": 2, "hidden_size": 384, "intermediate_size": 1536},
    **{"num_hidden_layers": 6, "num_attention_heads": 12},
}
"""What the ``config.json`` of the published model says of its shapes."""


# The mathematics, of checked arrays.


def mean_vectors_of(x, is_token):
    """Return the mean over the rows of `x` where `is_token`, (..., n), at unit length."""
    xp = array_namespace(x)
    y = to_accumulate(x)
    y = xp.where(is_token[..., None], y, xp.zeros_like(y))
    z = xp.sum(y, axis=-2)  # as long as the mean is once it has unit length
    return xp.astype(unit(z), x.dtype, copy=False)


# The functions, which check what they are given.


def mean_vectors(
    x: Annotated[Array, "... n d"], lengths: Annotated[Any, "..."] | None = None
) -> Annotated[Array, "... d"]:
    r"""Return the mean of the first rows of each sequence, scaled to unit length.

    .. math:: z = \frac1n \sum_{i=1}^{n} x_i, \qquad v = z / \lVert z \rVert

    Parameters
    ----------
    x : array, shape (..., n, d), real floating dtype
        The rows of each sequence, such as the output of `bert`.
    lengths : ints, shape (...), optional
        How many rows of each sequence are real, by default all. The others are not read.

    Returns
    -------
    array, shape (..., d)
        The vectors, in the dtype of `x`; half precision is summed in float32. The product of two
        such vectors is the cosine of the angle between them. A sequence without rows gives zeros.

    Raises
    ------
    TypeError, ValueError
        If `x` has the wrong type or shape, or a length is not an int from 0 to n.

    Notes
    -----
    Cost: O(n d).

    References
    ----------
    Reimers and Gurevych (2019), "Sentence-BERT: sentence embeddings using Siamese BERT-networks".

    Examples
    --------
    >>> import numpy as np
    >>> mean_vectors(np.array([[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]), 2)
    array([0.6, 0.8])
    """
    check_float("x", x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., n, d), got {tuple(x.shape)}")
    n, leading = x.shape[-2], tuple(x.shape[:-2])
    known = first_keys("lengths", n if lengths is None else lengths, n, None)[..., 0, :]
    if broadcast_shapes(known.shape[:-1], leading) != leading:
        raise ValueError(f"lengths must have shape {leading}, got {known.shape[:-1]}")
    return mean_vectors_of(x, placed(np.broadcast_to(known, x.shape[:-1]), x))


@dataclass(frozen=True, eq=False)
class SentenceEncoder:
    """A BERT with its tokenizer, which turns a text into one vector.

    If two texts have similar meanings, the angle between their vectors is small.

    Attributes
    ----------
    weights : BertWeights
        The weights, in any library. The vectors have their library, device and dtype.
    tokenizer : WordPieces
        The tokenizer that the weights were trained with.
    longest : int
        The maximum number of tokens, including ``[CLS]`` and ``[SEP]``. Longer texts are cut off.
    """

    weights: BertWeights
    tokenizer: WordPieces
    longest: int = LONGEST

    def __post_init__(self):
        check_part("weights", self.weights, BertWeights)
        check_part("tokenizer", self.tokenizer, WordPieces)
        places, rows = (
            x.shape[0] for x in (self.weights.position_embedding, self.weights.token_embedding)
        )
        check_int("longest", self.longest, 2, places)
        if len(self.tokenizer) != rows:
            raise ValueError(
                f"tokenizer must have as many tokens as the weights, {rows}, "
                f"got {len(self.tokenizer)}"
            )

    def to(
        self, library: str | None = None, *, device: Any = None, dtype: str | None = None
    ) -> "SentenceEncoder":
        """Return the same encoder in another library, on another device or in another dtype.

        The parameters are those of `attnbook.move`.
        """
        return replace(self, weights=self.weights.to(library, device=device, dtype=dtype))

    def tokens(self, text: str) -> list[str]:
        """Return the tokens that the model sees, from ``[CLS]`` to ``[SEP]``."""
        return [self.tokenizer.tokens[i] for i in self.tokenizer.encode(text, self.longest)]

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int = 32,
        *,
        impl: Impl = REFERENCE,
    ) -> Annotated[Array, "n d_model"]:
        """Return a vector of unit length for each text, in the order of `texts`.

        Texts of similar length are computed together, so that there is little padding.

        Parameters
        ----------
        texts : sequence of str
            The texts. An empty text has a vector, too, that of ``[CLS] [SEP]``.
        batch_size : int
            How many texts are computed at once, at least 1.
        impl : str or callable
            The implementation of attention, as in `attention`.

        Returns
        -------
        array, shape (n, d_model)
            The vectors. The product of rows i and j is the cosine of texts i and j.

        Raises
        ------
        TypeError, ValueError
            If `texts` are not strings, or `batch_size` is not an int of at least 1.

        Notes
        -----
        The vector of a text may differ in its last digits from batch to batch, because a library
        may add in a different order.
        """
        check_int("batch_size", batch_size, 1)
        check_impl(impl)
        table = self.weights.token_embedding
        xp = array_namespace(table)
        rows = [self.tokenizer.encode(x, self.longest) for x in texts_of("texts", texts)]
        if not rows:
            return table[:0, :]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        made = [
            self._vectors([rows[i] for i in order[first : first + batch_size]], impl)
            for first in range(0, len(order), batch_size)
        ]
        back = placed(np.argsort(np.array(order), kind="stable"), table)
        return xp.take(xp.concat(made, axis=0), back, axis=0)

    def attention(self, text: str) -> Annotated[np.ndarray, "layers h n n"]:
        """Return the attention weights of every layer and head, as a NumPy array.

        Row i of each matrix holds the weights of the query ``tokens(text)[i]``, which sum to 1.
        Raises a ValueError if the model has no layer.
        """
        if not self.weights.encoder.layers:
            raise ValueError("weights must have at least 1 layer to attend, got 0")
        ids = placed(self.tokenizer.encode(text, self.longest), self.weights.token_embedding)
        recorder = Recorder()
        bert_of(ids, self.weights, None, None, recorder)
        return np.stack([numbers_of("A", x) for x in recorder.weights])

    def _vectors(self, rows, impl):
        """Return the vectors of texts whose ids are given, padded to the longest."""
        ids, lengths = pad(rows, pad=self.tokenizer.pad)  # (batch, n)
        known = np.arange(ids.shape[1]) < lengths[:, None]
        table = self.weights.token_embedding
        is_token = placed(known, table)
        mask = None if known.all() else is_token[:, None, None, :]
        x = bert_of(placed(ids, table), self.weights, mask, None, impl)
        return mean_vectors_of(x, is_token)


def sentence_encoder() -> SentenceEncoder:
    """Return the published model all-MiniLM-L6-v2, which turns English sentences into vectors.

    It is a BERT with 6 layers, 12 heads of width 32, d_model = 384, d_ff = 1536 and 22.6 million
    parameters. It was distilled from a larger model and trained on 1.17 billion pairs of related
    sentences. The result is in NumPy and float32, and its method `to` moves it to another library.

    Returns
    -------
    SentenceEncoder
        An encoder whose ``encode(texts)`` returns vectors of length 1 and width 384.

    Raises
    ------
    FileNotFoundError
        If the weights are not on this machine. The message names the command that fetches them;
        nothing is fetched without it.
    ValueError
        If one of the files is damaged.

    Notes
    -----
    The weights have the licence Apache-2.0. The encoder knows only English, does not distinguish
    capital and small letters, and reads at most 256 tokens.
    Cost: 91 MB are read, and their SHA-256 is computed.

    References
    ----------
    Wang et al. (2020), "MiniLM: deep self-attention distillation for task-agnostic compression of
    pre-trained transformers"; Reimers and Gurevych (2019), "Sentence-BERT"; the model card,
    https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
    """
    files = store.files(NAME)
    weights = from_transformers(read_safetensors(files["model.safetensors"]), CONFIG)
    return SentenceEncoder(weights, WordPieces.read(files["vocab.txt"]))
