"""An index of signatures in any array library, by sorted buckets and binary search."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_same_home
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.hashing.buckets import Buckets, buckets_of
from attnbook.sketch.index import SignatureIndex, check_tables


class SortedIndex(SignatureIndex):
    """Find the rows that share a signature with a query, in each of several tables.

    Rows are numbered from 0 on as they are added, and keep their number when others go. All arrays
    have the library and the device of the first signatures that are added.

    Parameters
    ----------
    n_tables : int
        At least 1.

    Raises
    ------
    TypeError, ValueError
        If it is not such an int, and in `live`, `signatures` and `bucket_sizes` if nothing was
        added.

    Notes
    -----
    The first look-up after a change sorts every table for O(L n log n). A look-up then costs
    O(L log n). `BucketIndex` has the same methods for NumPy arrays, and adds few rows for less.

    Examples
    --------
    >>> import numpy as np
    >>> index = SortedIndex(2)
    >>> index.add(np.array([[5, 8], [6, 8], [5, 9]]))
    array([0, 1, 2])
    >>> rows, found = index.lookup(np.array([[5, 8]]))
    >>> rows, bool(found.all())
    (array([[[0, 2],
            [0, 1]]]), True)
    """

    def __init__(self, n_tables: int):
        self.n_tables = check_tables(n_tables)
        self._signatures: Any = None  # (n, n_tables)
        self._rows: Any = None  # (n,), ascending
        self._n_rows = 0  # ever added
        self._tables: list[Buckets] = []  # of places in `_rows`; empty until they are sorted

    @property
    def n(self) -> int:
        """Number of rows, without the removed ones."""
        return 0 if self._rows is None else self._rows.shape[0]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        numbers = self.n * (self.n_tables + 1)
        for table in self._tables:
            numbers += sum(x.shape[0] for x in (table.signatures, table.starts, table.order))
        return 8 * numbers

    def live(self) -> Annotated[Array, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64."""
        return self._held(self._rows)

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order."""
        return self._held(self._signatures)

    def merge(self) -> None:
        """Sort the tables now, not at the next look-up."""
        if not self._tables and self._rows is not None:
            self._tables = [buckets_of(self._signatures[:, t]) for t in range(self.n_tables)]

    def _held(self, x):
        if x is None:
            raise ValueError("the index must have had rows, got one that is new")
        return x + 0  # a copy

    def _check(self, signatures):
        super()._check(signatures)
        if self._rows is not None:
            check_same_home("signatures", signatures, "the index", self._rows)

    def _add(self, signatures):
        xp = array_namespace(signatures)
        start, stop = self._n_rows, self._n_rows + signatures.shape[0]
        rows = xp.arange(start, stop, dtype=xp.int64, device=signatures.device)
        before = self._rows is not None
        all_rows = xp.concat([self._rows, rows]) if before else rows
        everything = [self._signatures, signatures] if before else [signatures]
        self._signatures = xp.concat(everything)  # a copy, which nobody else can change
        self._rows, self._n_rows, self._tables = all_rows, stop, []
        return rows

    def _are_live(self, numbers):
        if self._rows is None:
            return np.zeros(len(numbers), dtype=bool)
        return move(is_in(placed(numbers, self._rows), self._rows), "numpy")

    def _remove(self, numbers):
        xp = array_namespace(self._rows)
        gone = is_in(self._rows, placed(np.sort(numbers), self._rows))
        # what stays is sorted to the front, since the standard cannot leave entries out otherwise
        kept = xp.argsort(xp.astype(gone, xp.int64), stable=True)[: self.n - len(numbers)]
        self._signatures = xp.take(self._signatures, kept, axis=0)
        self._rows, self._tables = xp.take(self._rows, kept), []

    def counts_of(self, columns):
        return self._places(columns)[1]

    def rows_of(self, columns):
        starts, counts = self._places(columns)
        xp = array_namespace(columns)
        c = int(xp.max(counts)) if counts.shape[0] else 0
        step = xp.arange(c, dtype=xp.int64, device=columns.device)
        found = step < xp.expand_dims(counts, axis=-1)
        if c == 0:
            return xp.zeros_like(found, dtype=xp.int64), found
        places = xp.expand_dims(starts, axis=-1) + step
        places = xp.where(found, places, xp.zeros_like(places))
        rows = []
        for column, table in self._asked(columns):
            sorted_to = xp.take(table.order, xp.reshape(places[:, column, :], (-1,)))
            rows.append(xp.reshape(xp.take(self._rows, sorted_to), (-1, c)))
        rows = xp.stack(rows, axis=1)
        return xp.where(found, rows, xp.zeros_like(rows)), found

    def _places(self, columns):
        """Return start and number of the rows of each bucket that is asked for."""
        self.merge()
        xp = array_namespace(columns)
        if not self._tables:
            return xp.zeros_like(columns), xp.zeros_like(columns)
        found = [table.places_of(columns[:, c]) for c, table in self._asked(columns)]
        starts, counts = (xp.stack(x, axis=1) for x in zip(*found, strict=True))
        return starts, counts

    def _asked(self, columns):
        """Return every column with its table."""
        n_probes = columns.shape[1] // self.n_tables
        return [(c, self._tables[c // n_probes]) for c in range(columns.shape[1])]


def is_in(x: Array, ascending: Array) -> Array:
    """Return which entries of `x`, of any shape, are among the ascending numbers."""
    xp, n = array_namespace(x), ascending.shape[0]
    if n == 0:
        return xp.zeros_like(x, dtype=xp.bool)
    flat = xp.reshape(x, (-1,))
    place = xp.searchsorted(ascending, flat)
    place = xp.where(place < n, place, n - 1)
    return xp.reshape(xp.take(ascending, place) == flat, x.shape)
