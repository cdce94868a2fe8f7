"""Several texts in each row of a batch, instead of one text and padding."""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.data.batch import Batch, rows_of
from attnbook.data.ids import check_id
from attnbook.data.vocabulary import Vocabulary


class PackedBatches:
    """The batch of every step of a training run, with several texts packed into each row.

    Each text is one document of a row, and a model that gets `Batch.documents` treats it as if the
    text were alone. The texts are packed once, by best-fit decreasing: the longest text comes
    first, and each goes into the fullest row that has room for it. No text is cut unless it is
    longer than a row. The alternative, which concatenates all texts and splits them into rows,
    leaves no padding at all, but a text that is cut continues without its beginning.

    Parameters
    ----------
    targets : sequence of sequences of ints
        The texts. Each must leave something to predict.
    batch_size : int
        The number of rows in a batch, from 1 to the number of rows. If it does not divide that
        number, the sizes of the batches differ by at most one row.
    length : int
        The number of tokens that the model reads in a row, at least 1. A row holds length + 1
        tokens, as in `windows`.
    seed : int
        The seed of the order of the rows, which is another one in each epoch.
    start, stop : int or None
        The ids before and after each text, as in `Batches`.
    pad : int
        The id that fills the rows.

    Raises
    ------
    TypeError, ValueError
        If ids or numbers are not ints in their ranges, or there is no text, or one is too short.

    Notes
    -----
    A text of more than length + 1 tokens is cut into pieces. Two pieces share one token, the last
    of the first and the first of the second, so each token but the first is a label exactly once.
    Cost: O(N log N) comparisons for N texts, once.

    References
    ----------
    Krell et al. (2021), "Efficient sequence packing without cross-contamination"; Ding et al.
    (2024), "Fewer truncations improve language modeling"; chapter `masking`.

    Examples
    --------
    >>> texts = [[3, 4, 5, 6], [7, 8], [3, 5, 7]]
    >>> batches = PackedBatches(texts, batch_size=1, length=5, start=None, stop=None)
    >>> batch = batches(0)
    >>> len(batches), batch.target.shape
    (2, (1, 6))
    >>> sorted(batches(i).target.tolist() for i in range(2))
    [[[3, 4, 5, 6, 7, 8]], [[3, 5, 7, 0, 0, 0]]]
    """

    def __init__(
        self,
        targets: Sequence[Any] | np.ndarray,
        batch_size: int,
        length: int,
        seed: int = 0,
        *,
        start: int | None = Vocabulary.start,
        stop: int | None = Vocabulary.stop,
        pad: int = Vocabulary.pad,
    ):
        self.batch_size = check_int("batch_size", batch_size, 1)
        self.length = check_int("length", length, 1)
        self.seed, self.pad = check_int("seed", seed, at_most=2**128 - 1), check_id("pad", pad)
        marks = [[] if m is None else [check_id(name, m)] for name, m in _named(start, stop)]
        texts = [np.concatenate([marks[0], row, marks[1]]) for row in rows_of("targets", targets)]
        if not texts:
            raise ValueError("targets must hold at least 1 sequence, got none")
        for i, text in enumerate(texts):
            if len(text) < 2:
                least = 2 - sum(map(len, marks))
                raise ValueError(
                    f"targets must hold at least {least} ids each, so that there is one to "
                    f"predict, got {len(text) - sum(map(len, marks))} in targets[{i}]"
                )
        pieces = [piece for text in texts for piece in _cut(text, self.length)]
        rows = best_fit([len(piece) for piece in pieces], self.length + 1)
        if self.batch_size > len(rows):
            raise ValueError(
                f"batch_size must be at most the rows, {len(rows)}, got {self.batch_size}"
            )
        self._fill(pieces, rows)
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0))  # of the epoch that was asked last

    def _fill(self, pieces: list[np.ndarray], rows: list[list[int]]) -> None:
        shape = (len(rows), self.length + 1)
        self._target = np.full(shape, self.pad, dtype=np.int64)
        self._documents = np.zeros(shape, dtype=np.int64)
        self._lengths = np.zeros(len(rows), dtype=np.int64)
        for r, row in enumerate(rows):
            n = 0
            for number, i in enumerate(row):
                end = n + len(pieces[i])
                self._target[r, n:end], self._documents[r, n:end] = pieces[i], number
                n = end
            self._documents[r, n:], self._lengths[r] = len(row), n

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self._target) // self.batch_size)

    @property
    def padding(self) -> float:
        """The share of the tokens that are padding."""
        return 1 - float(self._lengths.sum()) / self._target.size

    def __call__(self, step: int) -> Batch:
        """Return the batch of `step`; steps are counted from 0 through all epochs."""
        epoch, i = divmod(check_id("step", step), len(self))
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._order = epoch, rng.permutation(len(self._target))
        n = len(self._target)
        mine = self._order[1][i * n // len(self) : (i + 1) * n // len(self)]
        parts = (self._target[mine], None, self._lengths[mine], self._documents[mine])
        return Batch(None, *parts)


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return rows of texts, by their numbers: each text in the fullest row that it fits.

    The longest come first, and of equal ones the earlier; no length may exceed the room.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # what is free in each row, and its number, sorted
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect.bisect_left(free, (lengths[i], 0))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        bisect.insort(free, (left - lengths[i], row))
    return rows


def _cut(text: np.ndarray, length: int) -> list[np.ndarray]:
    """Return pieces of at most length + 1 tokens, each begun by the last token of the former."""
    return [text[i : i + length + 1] for i in range(0, len(text) - 1, length)]


def _named(start: int | None, stop: int | None) -> tuple[tuple[str, int | None], ...]:
    return ("start", start), ("stop", stop)
