"""The protocol of an index of signatures.

`SortedIndex` takes arrays of any library, `BucketIndex` takes NumPy arrays and grows cheaply, and
`CudaIndex` lives on a GPU.
"""

import abc
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import lengths_of
from attnbook.hashing.buckets import buckets_of, check_signatures

MOST_ROWS = 2**31 - 1
"""Rows are int32, and a map packs start and number of a bucket into one int64."""

MOST_TABLES = 2**16

MERGED_FROM = 1024
"""Fewer rows that came since the last sort, or fewer removed ones, are not merged."""


class SignatureIndex(abc.ABC):
    """The base of the indices, which find rows that share a signature with a query in some table.

    Rows are numbered from 0 on as they are added, and keep their number when others go.
    """

    n_tables: int
    one_probe = False  # whether a query may ask for one bucket of each table alone
    n: Any
    """Number of rows, without the removed ones."""
    memory_bytes: Any
    """Bytes of all arrays."""

    @abc.abstractmethod
    def live(self) -> Annotated[Array, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64."""

    @abc.abstractmethod
    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order."""

    @abc.abstractmethod
    def merge(self) -> None:
        """Sort what changed into the tables now. Look-ups stay the same."""

    def add(self, signatures: Annotated[Array, "m n_tables"]) -> Annotated[Array, "m"]:
        """Add rows, and return their numbers, int64.

        Raises TypeError or ValueError if `signatures` is not an int64 array of that shape, if it
        lives elsewhere than those before, or if there would be 2³¹ rows. The index is then as it
        was.
        """
        self._check(signatures)
        return self._add(signatures)

    def remove(self, rows: Annotated[Array, "m"], *, name: str = "rows") -> None:
        """Remove rows.

        Raises TypeError if `rows` is not an array or a list of integers, and ValueError if one of
        them is not there or is named twice. The index is then as it was. `name` is what the error
        calls them.
        """
        numbers = lengths_of(name, rows)
        if numbers.ndim != 1:
            raise ValueError(f"{name} must have shape (m,), got {numbers.shape}")
        good = np.zeros(len(numbers), dtype=bool)
        good[np.unique(numbers, return_index=True)[1]] = True
        good[good] = self._are_live(numbers[good])
        if not np.all(good):
            wrong = int(numbers[np.argmin(good)])
            raise ValueError(f"{name} must be in the index, each named once, got {wrong}")
        if len(numbers):
            self._remove(numbers)

    def counts(
        self, signatures: Annotated[Array, "n_q n_tables *"]
    ) -> Annotated[Array, "n_q n_buckets"]:
        """Return how many rows `lookup` finds for each query in each bucket, int64."""
        return self.counts_of(self.columns(signatures))

    def lookup(
        self, signatures: Annotated[Array, "n_q n_tables *"]
    ) -> tuple[Annotated[Array, "n_q n_buckets c"], Annotated[Array, "n_q n_buckets c"]]:
        """Return the rows of each query's buckets.

        Parameters
        ----------
        signatures : int64 array, shape (n_q, n_tables) or (n_q, n_tables, n_probes)
            The signatures of the queries, or the `probes` of a hash: several in each table. A
            `CudaIndex` takes one in each table alone.

        Returns
        -------
        rows : int64 array, shape (n_q, n_tables * n_probes, c)
            Ascending in each bucket, with the buckets of a table side by side. c is the largest
            number found, and 0 stands where there is no row.
        found : boolean array, shape (n_q, n_tables * n_probes, c)
            False where `rows` is padding.

        Raises
        ------
        TypeError, ValueError
            As `add`.
        """
        return self.rows_of(self.columns(signatures))

    def bucket_sizes(self, t: int) -> Annotated[Array, "m"]:
        """Return the number of rows of every bucket of table `t`, in the order of signatures.

        Raises TypeError or ValueError if there is no such table.
        """
        if check_int("t", t) >= self.n_tables:
            raise ValueError(f"t must be below the number of tables, {self.n_tables}, got {t}")
        return self._bucket_sizes(t)

    def columns(self, signatures: Array) -> Array:
        """Return the signatures of a look-up with a column for each bucket, or raise."""
        if getattr(signatures, "ndim", 0) != 3 or signatures.shape[2] == 0:
            self._check(signatures)
            return signatures
        self._check(signatures[:, :, 0])
        if self.one_probe and signatures.shape[2] > 1:
            raise ValueError(
                f"signatures must be of one bucket a table on a GPU, got {signatures.shape[2]}"
            )
        n_q, n_tables, n_probes = signatures.shape
        return array_namespace(signatures).reshape(signatures, (n_q, n_tables * n_probes))

    # What each kind implements, for arguments that were checked. A look-up takes `columns`

    def _check(self, signatures: Array) -> None:
        """Raise unless `signatures` fit the index."""
        check_signatures("signatures", signatures, self.n_tables)

    @abc.abstractmethod
    def _add(self, signatures: Array) -> Array: ...

    @abc.abstractmethod
    def _are_live(self, numbers: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _remove(self, numbers: np.ndarray) -> None: ...

    @abc.abstractmethod
    def counts_of(self, columns: Array) -> Array: ...

    @abc.abstractmethod
    def rows_of(self, columns: Array) -> tuple[Array, Array]: ...

    def _bucket_sizes(self, t: int) -> Array:
        starts = buckets_of(self.signatures()[:, t] + 0).starts
        return starts[1:] - starts[:-1]


def check_tables(n_tables: int) -> int:
    """Return `n_tables` as an int of at least 1, or raise."""
    return check_int("n_tables", n_tables, at_least=1, at_most=MOST_TABLES)


def check_rows(n: int) -> None:
    """Raise ValueError if `n` rows are more than int32 can number."""
    if n > MOST_ROWS:
        raise ValueError(f"signatures must make at most 2**31 - 1 rows in all, got {n}")
