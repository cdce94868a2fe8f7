"""What the sentence encoder made of a few lines, recorded: to be read without the model."""

import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.data.records import packed
from attnbook.single_head.head import SingleHeadWeights


@dataclass(frozen=True, eq=False)
class RecordedSentences:
    """Lines of the plays as vectors, and the attention of the encoder in three sentences.

    Attributes
    ----------
    lines, speakers, plays : tuples of str
        Well-known lines, who says each of them, and in which play.
    vectors : array, shape (n, 384)
        The vector of each line, of unit length.
    queries : tuple of str
        Plain sentences with which to search the lines.
    query_vectors : array, shape (m, 384)
    tokens : tuple of tuples of str
        The tokens of three sentences, from ``[CLS]`` to ``[SEP]``.
    attention : tuple of arrays, shapes (6, 12, n, n)
        For each sentence, the attention weights of every layer and head.
    x : array, shape (n, 385)
        The input of the layer of `head` for the first sentence; its last feature is 1.
    head : SingleHeadWeights
        One head that looks for the same word elsewhere in the sentence. The last row of each
        matrix is its bias, because the last feature of `x` is 1.
    head_place : tuple of int
        The layer of this head and its number there; ``attention[0][head_place]`` are its weights.
    """

    lines: tuple[str, ...]
    speakers: tuple[str, ...]
    plays: tuple[str, ...]
    vectors: Annotated[np.ndarray, "n 384"]
    queries: tuple[str, ...]
    query_vectors: Annotated[np.ndarray, "m 384"]
    tokens: tuple[tuple[str, ...], ...]
    attention: tuple[np.ndarray, ...]
    x: Annotated[np.ndarray, "n 385"]
    head: SingleHeadWeights
    head_place: tuple[int, int]


def recorded_sentences() -> RecordedSentences:
    """Return what the sentence encoder computed for a few hundred lines, from a stored file.

    `sentence_encoder` is the model itself, whose weights must be downloaded first. The numbers here
    are results of the model, so that you can search the lines and look at its heads without a
    network.

    Returns
    -------
    RecordedSentences
        New NumPy arrays on each call, in float32. They were stored in half precision, so each
        number has about three correct digits.

    Notes
    -----
    Licence: Apache-2.0, see `attnbook/models/LICENSE-sentence-encoder`; the lines are in the public
    domain. ``tools/record_sentences.py`` made the file with all-MiniLM-L6-v2.
    Cost: reading a file of 0.4 MB once.

    Examples
    --------
    The line nearest to the second query:

    >>> recorded = recorded_sentences()
    >>> recorded.queries[1]
    'I cannot sleep because I feel guilty.'
    >>> recorded.lines[int(np.argmax(recorded.vectors @ recorded.query_vectors[1]))]
    "Macbeth does murder sleep', the innocent sleep,"
    """
    with packed("attnbook.models", "recorded_sentences.npz") as file:
        texts = json.loads(str(file["texts"]))
        arrays = {key: file[key].astype(np.float32) for key in file.files if key != "texts"}
    return RecordedSentences(
        **{key: tuple(texts[key]) for key in ("lines", "speakers", "plays", "queries")},
        vectors=arrays["vectors"],
        query_vectors=arrays["query_vectors"],
        tokens=tuple(tuple(tokens) for tokens in texts["tokens"]),
        attention=tuple(arrays[f"attention_{i}"] for i in range(len(texts["tokens"]))),
        x=arrays["x"],
        head=SingleHeadWeights(*(arrays[f"W_{letter}"] for letter in "QKV")),
        head_place=tuple(texts["head"]),
    )
