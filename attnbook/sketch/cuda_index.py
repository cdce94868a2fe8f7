"""The index on a GPU: the rows of all tables in one sorted CuPy array, with a directory.

A signature is scrambled to 64 bits that look random and differ from table to table. One sort by
these bits puts the rows of every bucket side by side, whatever its table. The first bits name a
cell of one or two rows, and a directory says where each cell starts. `bucket_tables` describes the
same idea for the CPU.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from attnbook.arrays.arguments import generator
from attnbook.arrays.array import Array
from attnbook.compilers.cuda import NULL, import_cupy
from attnbook.sketch.cuda_hash import check_cupy, launch_for_each
from attnbook.sketch.index import MOST_ROWS, SignatureIndex, check_rows, check_tables


class CudaTables(NamedTuple):
    """The arrays of an index, as kernels take them; `index.cu` describes them."""

    stored: Any  # (n_rows, L) int64, the signatures of all rows, ever
    starts: Any  # (2**bits + 1,) int64, where each cell starts in `entries`
    entries: Any  # (n L, 2) uint64, scrambled signature, and table << 31 | row; ascending
    bits: int  # at least 1
    salt: int  # of the scrambling

    @property
    def arguments(self) -> tuple:
        """What makes `Tables` in a kernel."""
        return self.starts, self.entries, np.int32(self.bits), np.int64(self.salt)


class CudaIndex(SignatureIndex):
    """`BucketIndex` on a GPU, with the same methods, for CuPy arrays.

    A build takes two kernels and one sort, whatever the number of tables. There is no side table:
    what was added or removed is put in place by the next build, before the next look-up. A query
    asks for one bucket in each table (`one_probe`).

    Parameters and errors are those of `BucketIndex`, and ImportError without CuPy. The index lives
    on the GPU that is current when it is made. A row takes 8 L bytes for its signatures and 20 L to
    24 L for entries and directory, and a build about 40 L more. A look-up of a bucket reads a place
    of the directory and searches its cell by halving: O(1) for random signatures, and O(log n) for
    all rows in one cell, as chosen signatures or equal vectors may be.
    """

    one_probe = True

    def __init__(self, n_tables: int, *, seed: Any = 0):
        self.n_tables = check_tables(n_tables)
        self._salt = int(generator(seed).integers(2**63))
        self._cupy = cupy = import_cupy()
        self.stored = cupy.empty((0, self.n_tables), dtype=np.int64)  # signatures of all rows, ever
        self._alive = cupy.empty(0, dtype=np.bool_)
        self.n = 0
        """Number of rows, without the removed ones."""
        self._tables: CudaTables | None = None  # None if they must be built

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        starts, entries = self.tables[1:3]
        return sum(int(x.nbytes) for x in (self.stored, self._alive, starts, entries))

    @property
    def tables(self) -> CudaTables:
        """The tables of all rows; they are another object after every change of the rows."""
        if self._tables is None:
            self._tables = self._built()
        return self._tables

    def live(self) -> Annotated[Array, "n"]:
        return self._cupy.flatnonzero(self._alive)

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        return self.stored[self.live()]

    def merge(self) -> None:
        """Build the tables if rows were added or removed since the last build."""
        self._tables = self.tables

    def _check(self, signatures):
        check_cupy("signatures", signatures, self._cupy, ("n", self.n_tables), ("int64",))

    def _add(self, signatures):
        cupy = self._cupy
        first, m = self.stored.shape[0], signatures.shape[0]
        check_rows(first + m)
        self.stored = cupy.ascontiguousarray(cupy.concatenate((self.stored, signatures)))
        self._alive = cupy.concatenate((self._alive, cupy.ones(m, dtype=np.bool_)))
        self.n += m
        self._tables = None if m else self._tables
        return cupy.arange(first, first + m, dtype=np.int64)

    def _are_live(self, numbers):
        known = numbers < self.stored.shape[0]
        known[known] = self._alive[self._cupy.asarray(numbers[known])].tolist()
        return known

    def _remove(self, numbers):
        self._alive[self._cupy.asarray(numbers)] = False
        self.n -= len(numbers)
        self._tables = None

    def counts_of(self, columns):
        return self._find(columns)[1]

    def rows_of(self, columns):
        cupy = self._cupy
        starts, counts = self._find(columns)
        c = int(cupy.max(counts)) if counts.shape[0] else 0
        step = cupy.arange(c, dtype=np.int64)
        found = step < counts[:, :, None]
        if c == 0:
            return cupy.zeros(found.shape, dtype=np.int64), found
        place = cupy.where(found, starts[:, :, None] + step, 0)
        rows = (self.tables.entries[:, 1][place] & MOST_ROWS).astype(np.int64)
        return cupy.where(found, rows, 0), found

    def _bucket_sizes(self, t):
        if self.n == 0:
            return self._cupy.empty(0, dtype=np.int64)
        return self._cupy.unique(self.signatures()[:, t], return_counts=True)[1]

    def _find(self, columns):
        """Return start and number of the rows of each query's bucket, (n_q, n_tables) each."""
        cupy, n_q = self._cupy, columns.shape[0]
        starts, counts = (cupy.empty((n_q, self.n_tables), dtype=np.int64) for _ in range(2))
        asked = (cupy.ascontiguousarray(columns), np.int64(n_q), np.int32(self.n_tables))
        args = (*asked, *self.tables.arguments, starts, counts)
        launch_for_each(cupy, "find_buckets", n_q * self.n_tables, args)
        return starts, counts

    def _built(self):
        """Return the tables of the rows that are there."""
        cupy, n = self._cupy, np.int64(self.n)
        n_entries = self.n * self.n_tables
        bits = max(1, n_entries.bit_length() - 1)
        entries = cupy.empty((n_entries, 2), dtype=np.uint64)
        tables = CudaTables(
            self.stored, cupy.zeros(2**bits + 1, dtype=np.int64), entries, bits, self._salt
        )
        if n_entries:
            live = NULL if self.n == self.stored.shape[0] else self.live()
            scrambled = cupy.empty(n_entries, dtype=np.uint64)
            given = (self.stored, live, n, np.int32(self.n_tables), np.int64(self._salt))
            launch_for_each(cupy, "scramble", n_entries, (*given, scrambled))
            order = cupy.argsort(scrambled)  # stable, a radix sort: so rows ascend in a bucket
            ordered = (scrambled, order, live, n, np.int64(n_entries), np.int32(bits))
            launch_for_each(cupy, "fill_tables", n_entries, (*ordered, entries, tables.starts))
        return tables
