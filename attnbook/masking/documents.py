"""Documents that share a row of tokens."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.lengths import ints_of, lengths_of
from attnbook.masking.rules import KEPT, At, Rule

RangesOf = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Documents(Rule):
    """Let each query see the keys of its own document, if several share a row of tokens.

    Parameters
    ----------
    ids : ints of shape (..., n)
        The document of each token; equal numbers are one document, wherever they stand. There may
        be fewer keys than n, but not more.

    Raises
    ------
    TypeError, ValueError
        If `ids` are not ints with at least one axis.

    Attributes
    ----------
    ids : int array of NumPy, shape (..., n)

    Notes
    -----
    A query needs as many ranges of keys as its document has pieces, one if documents are whole.
    Documents of many pieces therefore take more memory than a mask, and more time to prepare.

    Examples
    --------
    >>> from attnbook.masking import Causal
    >>> (Documents([7, 7, 2, 2]) & Causal()).dense(4).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 1, 1]])
    """

    def __init__(self, ids: Sequence[int] | Annotated[Array, "... n"]):
        self.ids = ints_of("ids", ids).copy()
        if self.ids.ndim == 0:
            raise ValueError(f"ids must have shape (..., n), got {self.ids.shape}")
        self.leading = self.ids.shape[:-1]

    @classmethod
    def of_lengths(cls, lengths: Sequence[int] | Annotated[Array, "documents"]) -> "Documents":
        """Return the rule for documents of these lengths, one after the other in a row.

        Raises
        ------
        TypeError, ValueError
            If `lengths` are not ints of at least 0 with one axis.

        Examples
        --------
        >>> Documents.of_lengths([1, 2]).ids
        array([0, 1, 1])
        """
        counts = lengths_of("lengths", lengths)
        if counts.ndim != 1:
            raise ValueError(f"lengths must have shape (documents,), got {counts.shape}")
        return cls(np.repeat(np.arange(len(counts)), counts.astype(np.intp)))

    def each(self, rule: Rule) -> Rule:
        """Return what `rule` shows inside each document, if it counts from the first token there.

        ``documents & FirstKeys(4)`` shows the first keys of the row to the first document alone,
        whereas ``documents.each(FirstKeys(4))`` shows each document its own.

        Raises
        ------
        TypeError, ValueError
            If `rule` is not a rule, or has numbers for each sequence or token, or if a document is
            not in one piece.

        Examples
        --------
        >>> from attnbook.masking import Causal, FirstKeys
        >>> Documents.of_lengths([1, 3]).each(FirstKeys(1) & Causal()).dense(4).astype(int)
        array([[1, 0, 0, 0],
               [0, 1, 0, 0],
               [0, 1, 0, 0],
               [0, 1, 0, 0]])
        """
        if not isinstance(rule, Rule):
            raise TypeError(f"rule must be a masking.Rule, got {type(rule).__name__}")
        if not counts_from_the_first(rule):
            raise ValueError(f"rule must have no numbers for each sequence or token, got {rule}")
        if not self.is_whole:
            raise ValueError("documents must each be in one piece, because the rule counts in them")
        return _Each(self, rule)

    @property
    def positions(self) -> Annotated[np.ndarray, "... n"]:
        """The position of each token in its document: 0, 1, 2, … from its first token on."""
        index = np.arange(self.ids.shape[-1])
        return index - np.maximum.accumulate(np.where(self._begins, index, 0), axis=-1)

    @property
    def longest(self) -> int:
        """The length of the longest document; of several pieces, the longest counts."""
        return int(self.positions.max(initial=-1)) + 1

    @property
    def is_whole(self) -> bool:
        """Whether each document is in one piece."""
        shape = (math.prod(self.leading), self.ids.shape[-1])
        rows = zip(self.ids.reshape(shape), self._begins.reshape(shape), strict=True)
        return all(len(np.unique(ids)) == np.count_nonzero(begins) for ids, begins in rows)

    @property
    def _begins(self) -> np.ndarray:
        """Where a token is the first of a piece of a document."""
        first = np.ones(self.ids.shape, bool)
        first[..., 1:] = self.ids[..., 1:] != self.ids[..., :-1]
        return first

    def allows(self, position: Any, key: Any, at: At) -> Any:
        inside = position >= 0  # a query may stand before all keys
        return (at(self.ids, position * inside) == at(self.ids, key)) & inside

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        return self._of_rows(n_q, n_k, _ranges_of_documents)

    def _of_rows(self, n_q: int, n_k: int, ranges_of: RangesOf) -> Intervals:
        """Return the intervals whose ranges in each row ``ranges_of(ids)`` returns, (n_k, m)."""
        self.check_keys(n_k)
        rows = self.ids[..., :n_k].reshape(math.prod(self.leading), n_k)
        of_row = [ranges_of(row) if n_k else (row[:, None], row[:, None]) for row in rows]
        m = max([starts.shape[-1] for starts, _ in of_row], default=1)
        ranges = np.full((2, len(rows), max(n_q, n_k), m), n_k, np.int64)
        before = max(n_q, n_k) - n_k  # queries that stand before all keys
        for i, both in enumerate(of_row):
            for of_all, own in zip(ranges[:, i, before:], both, strict=True):
                of_all[:, : own.shape[-1]] = own
        starts, stops = ranges[:, :, ranges.shape[2] - n_q :].reshape(2, *self.leading, n_q, m)
        return Intervals(starts, stops, n_k)

    def arrays(self) -> list[np.ndarray]:
        return [self.ids]

    def check_keys(self, n_k: int) -> None:
        """Raise ValueError if there are more keys than tokens with a document."""
        if n_k > self.ids.shape[-1]:
            raise ValueError(
                f"there must be at most as many keys as ids, {self.ids.shape[-1]}, got {n_k}"
            )

    def __repr__(self) -> str:
        return f"Documents({self.ids.tolist() if self.ids.size <= KEPT else self.ids.shape})"


def counts_from_the_first(rule: Rule) -> bool:
    """Say whether a rule is one for all sequences, so that it may count from any token on."""
    return all(x.ndim == 0 for x in rule.arrays())


class _Each(Rule):
    """A rule inside each document, which counts from the first token there."""

    def __init__(self, documents: Documents, rule: Rule):
        self.documents, self.rule, self.leading = documents, rule, documents.leading
        self.positions = documents.positions

    def allows(self, position: Any, key: Any, at: At) -> Any:
        own = at(self.positions, position * (position >= 0)), at(self.positions, key)
        return self.documents.allows(position, key, at) & self.rule.allows(*own, at)

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        return self.documents._of_rows(n_q, n_k, self._ranges_of)

    def _ranges_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        firsts, ends = _pieces(ids)
        own = [self.rule.intervals(n) for n in (ends - firsts).tolist()]
        starts, stops = np.full((2, len(ids), max(x.starts.shape[-1] for x in own)), len(ids))
        for first, end, x in zip(firsts, ends, own, strict=True):
            starts[first:end, : x.starts.shape[-1]] = x.starts + first
            stops[first:end, : x.starts.shape[-1]] = x.stops + first
        return starts, stops

    def arrays(self) -> list[np.ndarray]:
        return [*self.documents.arrays(), self.positions, *self.rule.arrays()]

    def check_keys(self, n_k: int) -> None:
        self.documents.check_keys(n_k)

    def __repr__(self) -> str:
        return f"{self.documents}.each({self.rule})"


def _pieces(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the pieces of documents begin and end, in a row of at least one token."""
    firsts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return firsts, np.append(firsts[1:], len(ids))


def _ranges_of_documents(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each token the ranges of keys of its document, two arrays (n, m)."""
    n, (firsts, ends) = len(ids), _pieces(ids)
    _, document = np.unique(ids[firsts], return_inverse=True)  # of each piece
    order = np.argsort(document, kind="stable")
    counts = np.bincount(document)
    place = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, stops = np.full((2, len(counts), counts.max()), n)
    starts[document[order], place], stops[document[order], place] = firsts[order], ends[order]
    of_token = np.repeat(document, ends - firsts)
    return starts[of_token], stops[of_token]
