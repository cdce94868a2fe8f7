"""An index of signatures in any array library, by sorted buckets and binary search.

Each table has one sorted part and a small one, of the rows that came since. When the small part has
grown to a quarter of the other, all rows are sorted together.
"""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_same_home
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.hashing.buckets import Buckets, buckets_of
from attnbook.sketch.index import MERGED_FROM, SignatureIndex, check_tables


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
    The first look-up after rows were added sorts those that are not in the sorted part, or all of
    them once they are a quarter of it: O(L log n) a row on average. A removal passes over all rows
    for O(L n), and sorts none. A look-up costs O(L log n). `BucketIndex` has the same methods for
    NumPy arrays, and adds few rows for less.

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
        # of places in `_rows`: first those of the sorted part, then those that came since
        self._tables: list[Buckets] = []  # empty until they are sorted
        self._newest: list[Buckets] = []

    @property
    def n(self) -> int:
        """Number of rows, without the removed ones."""
        return 0 if self._rows is None else self._rows.shape[0]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        numbers = self.n * (self.n_tables + 1)
        for table in self._tables + self._newest:
            numbers += sum(x.shape[0] for x in (table.signatures, table.starts, table.order))
        return 8 * numbers

    def live(self) -> Annotated[Array, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64."""
        return self._held(self._rows)

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order."""
        return self._held(self._signatures)

    def merge(self) -> None:
        """Sort all rows into one part now."""
        if self._n_sorted < self.n:
            self._tables, self._newest = self._sorted(0), []

    @property
    def _n_sorted(self):
        """Number of rows in the sorted part."""
        return self._tables[0].order.shape[0] if self._tables else 0

    def _sorted(self, start):
        """Return the buckets of the places from `start` on, a table each."""
        tables = [buckets_of(self._signatures[start:, t]) for t in range(self.n_tables)]
        return [replace(table, order=table.order + start) for table in tables]

    def _sort_what_is_new(self):
        """Make the newest rows part of the tables."""
        n_new = self.n - self._n_sorted
        if n_new > max(MERGED_FROM, self._n_sorted // 4) or not self._tables:
            self.merge()
        elif n_new and not self._newest:
            self._newest = self._sorted(self._n_sorted)

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
        self._rows, self._n_rows, self._newest = all_rows, stop, []
        return rows

    def _are_live(self, numbers):
        if self._rows is None:
            return np.zeros(len(numbers), dtype=bool)
        return move(is_in(placed(numbers, self._rows), self._rows), "numpy")

    def _remove(self, numbers):
        xp = array_namespace(self._rows)
        stays = ~is_in(self._rows, placed(np.sort(numbers), self._rows))
        self._tables = [_without(table, stays) for table in self._tables]
        self._newest = [_without(table, stays) for table in self._newest]
        kept = _places_of(stays)
        self._signatures = xp.take(self._signatures, kept, axis=0)
        self._rows = xp.take(self._rows, kept)

    def counts_of(self, columns):
        return sum(counts for _, counts, _ in self._places(columns))

    def rows_of(self, columns):
        found = self._places(columns)
        xp, counts = array_namespace(columns), sum(counts for _, counts, _ in found)
        c = int(xp.max(counts)) if counts.shape[0] else 0
        step = xp.arange(c, dtype=xp.int64, device=columns.device)
        rows = xp.zeros((*counts.shape, c), dtype=xp.int64, device=columns.device)
        before = xp.zeros_like(counts)  # rows of the bucket in an earlier part
        for starts, counts_here, tables in found if c else ():
            end = before + counts_here
            here = (step >= column(before)) & (step < column(end))
            places = xp.where(here, column(starts - before) + step, xp.zeros_like(rows))
            taken = []
            for i, t in self._asked(columns):
                sorted_to = xp.take(tables[t].order, xp.reshape(places[:, i, :], (-1,)))
                taken.append(xp.reshape(xp.take(self._rows, sorted_to), (-1, c)))
            rows, before = xp.where(here, xp.stack(taken, axis=1), rows), end
        return rows, step < column(counts)

    def _places(self, columns):
        """Return start and number of the rows of each bucket that is asked for, by parts."""
        xp = array_namespace(columns)
        if self.n == 0:
            nothing = xp.zeros_like(columns)
            return [(nothing, nothing, [])]
        self._sort_what_is_new()
        parts = []
        for tables in (self._tables, self._newest):
            if not tables or not tables[0].order.shape[0]:
                continue  # all of its rows were removed
            found = [tables[t].places_of(columns[:, i]) for i, t in self._asked(columns)]
            starts, counts = (xp.stack(x, axis=1) for x in zip(*found, strict=True))
            parts.append((starts, counts, tables))
        return parts

    def _asked(self, columns):
        """Return every column with its table."""
        n_probes = columns.shape[1] // self.n_tables
        return [(i, i // n_probes) for i in range(columns.shape[1])]


def column(x: Array) -> Array:
    """Return `x` with one more axis at the end."""
    return array_namespace(x).expand_dims(x, axis=-1)


def _places_of(stays):
    """Return where a boolean array (n,) is True, without an array of unknown length."""
    xp = array_namespace(stays)
    sums = xp.cumulative_sum(xp.astype(stays, xp.int64))
    n = int(sums[-1]) if sums.shape[0] else 0
    wanted = xp.arange(1, n + 1, dtype=xp.int64, device=stays.device)
    return xp.astype(xp.searchsorted(sums, wanted), xp.int64, copy=False)


def _without(table, stays):
    """Return the buckets of the places that stay, by their new numbers; some may be empty."""
    xp, n = array_namespace(stays), table.order.shape[0]
    if n == 0:
        return table
    zero = xp.zeros_like(table.order[:1])
    before = xp.cumulative_sum(xp.astype(stays, xp.int64)) - 1  # the new number of a place
    here = xp.take(stays, table.order)
    order = xp.take(before, xp.take(table.order, _places_of(here)))
    ends = xp.concat([zero, xp.cumulative_sum(xp.astype(here, xp.int64))])
    return Buckets(table.signatures, xp.take(ends, table.starts), order)


def is_in(x: Array, ascending: Array) -> Array:
    """Return which entries of `x`, of any shape, are among the ascending numbers."""
    xp, n = array_namespace(x), ascending.shape[0]
    if n == 0:
        return xp.zeros_like(x, dtype=xp.bool)
    flat = xp.reshape(x, (-1,))
    place = xp.searchsorted(ascending, flat)
    place = xp.where(place < n, place, n - 1)
    return xp.reshape(xp.take(ascending, place) == flat, x.shape)
