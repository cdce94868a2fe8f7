"""Sequences of several lengths side by side, in arrays and with masks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.data.ids import check_id, ids_of, iterator
from attnbook.data.vocabulary import Vocabulary
from attnbook.masking.documents import Documents
from attnbook.masking.masks import padding


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences in the rows of int64 arrays; the shorter ones are padded at the end.

    Attributes
    ----------
    source : int64 array, shape (b, n_source), or None
        What the encoder reads; None for a language model.
    target : int64 array, shape (b, n_target)
        What the decoder shall write, from the start token to the stop token.
    source_lengths : int64 array, shape (b,), or None
    target_lengths : int64 array, shape (b,)
        The number of tokens in each row that are not padding, including start and stop.
    target_documents : int64 array, shape (b, n_target), optional
        The document of each token, if several share a row, as in `PackedBatches`. A document is in
        one piece, and padding is one more document.

    Raises
    ------
    TypeError
        If an array does not hold ints.
    ValueError
        If an id or a length is negative, a length exceeds the width, or the numbers of rows differ.

    Examples
    --------
    >>> from attnbook.data import Batches
    >>> batch = Batches([[7, 8, 9], [7]], [[9, 8], [9]], batch_size=2, seed=1)(0)
    >>> batch.source
    array([[7, 0, 0],
           [7, 8, 9]])
    >>> batch.inputs
    array([[1, 9, 2],
           [1, 9, 8]])
    >>> batch.labels
    array([[9, 2, 0],
           [9, 8, 2]])
    >>> batch.label_mask
    array([[ True,  True, False],
           [ True,  True,  True]])
    """

    source: Annotated[np.ndarray, "b n_source"] | None
    target: Annotated[np.ndarray, "b n_target"]
    source_lengths: Annotated[np.ndarray, "b"] | None
    target_lengths: Annotated[np.ndarray, "b"]
    target_documents: Annotated[np.ndarray, "b n_target"] | None = None

    def __post_init__(self):
        self._check("target")  # whose rows the source is compared with
        if self.source is not None or self.source_lengths is not None:
            self._check("source")
        if self.target_documents is not None:
            numbers = ids_of("target_documents", self.target_documents, ndim=2)
            if numbers.shape != self.target.shape:
                raise ValueError(
                    f"target_documents must have the shape of target, {self.target.shape}, "
                    f"got {numbers.shape}"
                )
            object.__setattr__(self, "target_documents", numbers)

    def _check(self, name):
        ids = ids_of(name, getattr(self, name), ndim=2)
        lengths = ids_of(f"{name}_lengths", getattr(self, f"{name}_lengths"))
        b, n = len(self.target), ids.shape[1]
        if not len(ids) == len(lengths) == b:
            raise ValueError(
                f"{name} and {name}_lengths must have {b} rows as target has, "
                f"got {len(ids)} and {len(lengths)}"
            )
        if (most := lengths.max(initial=0)) > n:
            raise ValueError(f"{name}_lengths must be at most the width of {name}, {n}, got {most}")
        if name == "target" and lengths.size and lengths.min() == 0:
            raise ValueError("target_lengths must be at least 1, got 0")
        object.__setattr__(self, name, ids)
        object.__setattr__(self, f"{name}_lengths", lengths)

    def __len__(self) -> int:
        """Return the number b of sequences."""
        return len(self.target)

    @property
    def inputs(self) -> Annotated[np.ndarray, "b n"]:
        """What the decoder reads: the target without its last column, so n = n_target - 1.

        A shorter row still contains its stop token, but the label there is padding.
        """
        return self.target[:, :-1]

    @property
    def labels(self) -> Annotated[np.ndarray, "b n"]:
        """What the decoder shall predict: the target one token later, without its first column."""
        return self.target[:, 1:]

    @property
    def label_mask(self) -> Annotated[np.ndarray, "b n"]:
        """True where `labels` holds the next token of a text, False at its end and in padding."""
        counts = padding(self.target_lengths - 1, self.labels.shape[1])[:, 0]
        numbers = self.target_documents
        return counts if numbers is None else counts & (numbers[:, 1:] == numbers[:, :-1])

    @property
    def documents(self) -> Documents | None:
        """The rule that keeps the documents of `inputs` apart; None if each row is one text."""
        numbers = self.target_documents
        return None if numbers is None else Documents(numbers[:, :-1])

    @property
    def source_mask(self) -> Annotated[np.ndarray, "b 1 1 n_source"] | None:
        """True where `source` holds a token, with axes for heads and queries; None if no source."""
        if self.source is None or self.source_lengths is None:
            return None
        return padding(self.source_lengths, self.source.shape[1])[:, np.newaxis]

    def shard(self, rank: int, world: int) -> "Batch":
        """Return the rows of process `rank` among `world` processes: rank, rank + world, …

        The shards of all ranks cover the batch and share no row. Their numbers of rows differ by at
        most 1, and all shards are as wide as the batch. However, their numbers of *tokens* differ,
        so the mean over the batch is the sum of the shards' losses divided by the sum of their
        numbers of tokens. A batch with fewer than `world` rows raises a ValueError.
        """
        world, rank = check_int("world", world, 1), check_int("rank", rank)
        if rank >= world:
            raise ValueError(f"rank must be below world = {world}, got {rank}")
        if world > len(self):
            raise ValueError(
                f"world must be at most the rows of the batch, {len(self)}, got {world}"
            )
        mine = slice(rank, None, world)
        names = ("source", "target", "source_lengths", "target_lengths", "target_documents")
        parts = {name: x[mine] for name in names if (x := getattr(self, name)) is not None}
        return replace(self, **parts)


def pad(
    sequences: Sequence[Any], *, pad: int = Vocabulary.pad
) -> tuple[Annotated[np.ndarray, "b n"], Annotated[np.ndarray, "b"]]:
    """Return sequences of different lengths as one padded array, and their lengths.

    Parameters
    ----------
    sequences : sequence of sequences of ints
    pad : int
        The id with which the ends of the rows are padded.

    Returns
    -------
    pair of int64 arrays, shapes (b, n) and (b,)
        n is the greatest length. `attnbook.masking.padding` makes a mask from the lengths.

    Raises
    ------
    TypeError, ValueError
        If the ids are not ints of at least 0.

    Examples
    --------
    >>> pad([[5, 6, 7], [8]])
    (array([[5, 6, 7],
           [8, 0, 0]]), array([3, 1]))
    """
    return filled(rows_of("sequences", sequences), check_id("pad", pad))


def rows_of(name, sequences):
    """Return `sequences` as an int64 array of 2 axes or a list of arrays of 1, or raise."""
    if isinstance(sequences, np.ndarray) and sequences.dtype != object:
        return ids_of(name, sequences, ndim=2)
    rows = iterator(name, sequences, "sequences of ints")
    return [ids_of(f"{name}[{i}]", row) for i, row in enumerate(rows)]


def lengths_of(rows):
    """Return the number of ids in each row."""
    return np.array([len(row) for row in rows], dtype=np.int64)


def filled(rows, pad):
    """Return the rows in one array, and their lengths."""
    lengths = lengths_of(rows)
    array = np.full((len(rows), lengths.max(initial=0)), pad, dtype=np.int64)
    for place, row in zip(array, rows, strict=True):
        place[: len(row)] = row
    return array, lengths
