"""An index of signatures in any array library: sorted buckets and binary search."""

import dataclasses
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import Array, array_namespace, check_int, check_same_home
from attnbook.arrays.lengths import lengths_of, placed
from attnbook.hashing.buckets import Buckets, check_signatures, sort_buckets


class SortedIndex:
    """Find the rows that share a signature with a query, in each of several tables.

    Rows are numbered as they are added, from 0 on, and keep their number when others go. All
    arrays are of the library and on the device of the first signatures that are added.

    Parameters
    ----------
    n_tables : int
        At least 1.

    Raises
    ------
    TypeError, ValueError
        If it is not such an int.

    Notes
    -----
    The first look-up after a change sorts every table, O(L n log n); a look-up costs O(L log n).
    `BucketIndex` has the same methods for NumPy arrays and takes few rows at a time for less.

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
        self.n_tables = check_int("n_tables", n_tables, at_least=1)
        self._signatures: Any = None  # (n, n_tables)
        self._rows: Any = None  # (n,), ascending
        self._n_rows = 0  # ever added
        self._tables: list[Buckets] = []  # empty until they are sorted

    @property
    def n(self) -> int:
        """Number of rows, without the removed ones."""
        return 0 if self._rows is None else self._rows.shape[0]

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [] if self._rows is None else [self._signatures, self._rows]
        for table in self._tables:
            arrays += [table.signatures, table.starts, table.order]
        return 8 * sum(x.shape[0] * (x.shape[1] if x.ndim > 1 else 1) for x in arrays)

    def live(self) -> Annotated[Array, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64.

        Raises ValueError if nothing was ever added.
        """
        self._check_not_new()
        return self._rows + 0  # a copy

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order.

        Raises ValueError if nothing was ever added.
        """
        self._check_not_new()
        return self._signatures + 0  # a copy

    def add(self, signatures: Annotated[Array, "m n_tables"]) -> Annotated[Array, "m"]:
        """Add rows; return their numbers, int64.

        Raises TypeError or ValueError if `signatures` is not an int64 array of that shape, or lives
        elsewhere than those before; the index is then as it was.
        """
        self._check(signatures)
        xp, m = array_namespace(signatures), signatures.shape[0]
        start, stop = self._n_rows, self._n_rows + m
        rows = xp.arange(start, stop, dtype=xp.int64, device=signatures.device)
        before = self._rows is not None
        all_rows = xp.concat([self._rows, rows]) if before else rows
        everything = [self._signatures, signatures] if before else [signatures]
        self._signatures = xp.concat(everything)  # a copy, which nobody else can change
        self._rows, self._n_rows, self._tables = all_rows, stop, []
        return rows

    def remove(self, rows: Annotated[Array, "m"]) -> None:
        """Take rows away.

        Raises TypeError if `rows` is not an array or a list of integers, and ValueError if one of
        them is not there or is named twice; the index is then as it was.
        """
        numbers = row_numbers(rows)
        if len(numbers) == 0:
            return
        if self._rows is None:
            raise absent(numbers[0])
        rows = placed(numbers, self._rows)
        xp, n = array_namespace(rows), self.n
        removed = xp.sort(rows)
        gone = _is_in(self._rows, removed)
        here = _is_in(removed, self._rows)
        again = xp.concat([xp.zeros_like(here[:1]), removed[1:] == removed[:-1]])
        wrong = xp.astype(~here | again, xp.int64)
        if bool(xp.any(wrong != 0)):
            raise absent(removed[int(xp.argmax(wrong))])
        # sorted to the front, since the standard knows no other way to leave entries out
        kept = xp.argsort(xp.astype(gone, xp.int64), stable=True)[: n - removed.shape[0]]
        self._signatures = xp.take(self._signatures, kept, axis=0)
        self._rows, self._tables = xp.take(self._rows, kept), []

    def merge(self) -> None:
        """Sort the tables now, not at the next look-up."""
        if not self._tables and self._rows is not None:
            tables = [sort_buckets(self._signatures[:, t]) for t in range(self.n_tables)]
            xp = array_namespace(self._rows)
            self._tables = [
                dataclasses.replace(table, order=xp.take(self._rows, table.order))
                for table in tables
            ]

    def counts(
        self, signatures: Annotated[Array, "n_q n_tables"], max_bucket: int | None = None
    ) -> Annotated[Array, "n_q n_tables"]:
        """Return how many rows `lookup` finds for each query in each table, int64."""
        return self._places(signatures, max_bucket)[1]

    def lookup(
        self, signatures: Annotated[Array, "n_q n_tables"], max_bucket: int | None = None
    ) -> tuple[Annotated[Array, "n_q n_tables c"], Annotated[Array, "n_q n_tables c"]]:
        """Return the rows of each query's buckets.

        Parameters
        ----------
        signatures : int64 array, shape (n_q, n_tables)
        max_bucket : int, optional
            At most so many rows of a bucket, the lowest ones.

        Returns
        -------
        rows : int64 array, shape (n_q, n_tables, c)
            Ascending in each bucket; c is the largest number found, and 0 stands where there is
            none.
        found : boolean array, shape (n_q, n_tables, c)
            False where `rows` is padding.

        Raises
        ------
        TypeError, ValueError
            As `add`; or if `max_bucket` is not an int of at least 1.
        """
        starts, counts = self._places(signatures, max_bucket)
        xp = array_namespace(signatures)
        c = int(xp.max(counts)) if counts.shape[0] else 0
        columns = xp.arange(c, dtype=xp.int64, device=signatures.device)
        found = columns < xp.expand_dims(counts, axis=-1)
        if c == 0:
            return xp.zeros_like(found, dtype=xp.int64), found
        places = xp.expand_dims(starts, axis=-1) + columns
        places = xp.where(found, places, xp.zeros_like(places))
        rows = []
        for t, table in enumerate(self._tables):
            flat = xp.take(table.order, xp.reshape(places[:, t, :], (-1,)))
            rows.append(xp.reshape(flat, (-1, c)))
        rows = xp.stack(rows, axis=1)
        return xp.where(found, rows, xp.zeros_like(rows)), found

    def bucket_sizes(self, t: int) -> Annotated[Array, "m"]:
        """Return the number of rows of every bucket of table `t`, in the order of signatures.

        Raises TypeError or ValueError if there is no such table, or nothing was ever added.
        """
        t = check_table(t, self.n_tables)
        self._check_not_new()
        self.merge()
        return self._tables[t].starts[1:] - self._tables[t].starts[:-1]

    def _check_not_new(self):
        if self._rows is None:
            raise ValueError("the index must have had rows, got one that is new")

    def _check(self, signatures):
        check_signatures("signatures", signatures, self.n_tables)
        if self._rows is not None:
            check_same_home("signatures", signatures, "the index", self._rows)

    def _places(self, signatures, max_bucket):
        """Return start and number of the rows of each query's bucket, (n_q, n_tables) each."""
        self._check(signatures)
        most = check_max_bucket(max_bucket)
        self.merge()
        xp = array_namespace(signatures)
        if not self._tables:
            return xp.zeros_like(signatures), xp.zeros_like(signatures)
        found = [table.find(signatures[:, t]) for t, table in enumerate(self._tables)]
        starts = xp.stack([start for start, _ in found], axis=1)
        counts = xp.stack([count for _, count in found], axis=1)
        return starts, counts if most is None else xp.where(counts < most, counts, most)


def row_numbers(rows: Any) -> np.ndarray:
    """Return `rows`, integers of any library or in a list, as int64 in NumPy, or raise."""
    numbers = lengths_of("rows", rows)
    if numbers.ndim != 1:
        raise ValueError(f"rows must have shape (m,), got {numbers.shape}")
    return numbers


def absent(row: Array) -> ValueError:
    """Return the error for a row that cannot be removed."""
    return ValueError(f"rows must be in the index, each named once, got {int(row)}")


def check_max_bucket(max_bucket: int | None) -> int | None:
    """Return `max_bucket` as an int of at least 1 or None, or raise."""
    return None if max_bucket is None else check_int("max_bucket", max_bucket, at_least=1)


def check_table(t: int, n_tables: int) -> int:
    """Return `t` as the number of a table, or raise."""
    t = check_int("t", t)
    if t >= n_tables:
        raise ValueError(f"t must be below the number of tables, {n_tables}, got {t}")
    return t


def _is_in(x, ascending):
    """Return which entries of `x` are among `ascending`."""
    xp, n = array_namespace(x), ascending.shape[0]
    if n == 0:
        return xp.zeros_like(x, dtype=xp.bool)
    place = xp.searchsorted(ascending, x)
    return xp.take(ascending, xp.where(place < n, place, n - 1)) == x
