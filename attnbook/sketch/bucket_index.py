"""An index of signatures that grows: sorted buckets, and a side table of Robin Hood maps.

Sorted rows are the fastest to build and to read, but they cannot grow. So new rows go to a small
side table, which maps each signature to a chain of its rows. When it has grown to a quarter of the
sorted part, both are sorted together. All sorts of a growing index together cost about five times
the last one, since 1 + 1/1.25 + 1/1.25² + … = 5.
"""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_array, generator
from attnbook.arrays.array import Array, library
from attnbook.hashing.robin_hood import (
    displacement_limit,
    draw_mixer,
    free_slots,
    slots_for,
)
from attnbook.sketch.bucket_tables import (
    LOAD_FACTOR,
    BucketTables,
    bits_for,
    functions,
    scrambled,
    stored,
)
from attnbook.sketch.index import MERGED_FROM, SignatureIndex, check_rows, check_tables


class BucketIndex(SignatureIndex):
    """Find the rows of NumPy arrays that share a signature with a query, in each of several tables.

    Rows are numbered from 0 on as they are added, and keep their number when others go. Every table
    has its rows sorted by scrambled signature, a directory that says where its cells start, and a
    Robin Hood map for the rows that were added since it was sorted.

    Parameters
    ----------
    n_tables : int
        At least 1.
    seed : int or numpy Generator
        It fixes the hash functions, which all tables share.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.
    ImportError
        If Numba is not installed.

    Notes
    -----
    On average ``add`` costs O(L log n) per row and ``remove`` O(1). A look-up costs O(L) plus what
    it finds. Removed rows are skipped, and dropped when they are a quarter of all. A query that
    meets a bucket of a million equal vectors reads them all.

    Examples
    --------
    >>> import numpy as np
    >>> index = BucketIndex(2)
    >>> index.add(np.array([[5, 8], [6, 8], [5, 9]]))
    array([0, 1, 2])
    >>> index.remove(np.array([1]))
    >>> rows, found = index.lookup(np.array([[5, 8]]))
    >>> rows, found
    (array([[[0, 2],
            [0, 0]]]), array([[[ True,  True],
            [ True, False]]]))
    """

    def __init__(self, n_tables: int, *, seed: Any = 0):
        self.n_tables = check_tables(n_tables)
        self._functions = functions()
        from attnbook.sketch import numba_build

        self._build = numba_build.build_tables
        self._random = generator(seed, "seed")
        self._mixer = draw_mixer(self._random)
        self._salt = int(self._random.integers(-(2**63), 2**63))
        nothing = np.zeros((0, self.n_tables), dtype=np.int64)
        self.tables = self._sorted(nothing, nothing[:, 0], np.zeros(0, dtype=bool), 0)

    @property
    def n(self) -> int:
        """Number of rows, without the removed ones."""
        tables = self.tables
        return tables.entries.shape[1] + tables.n_side - tables.n_dead

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(x.nbytes for x in self.tables if isinstance(x, np.ndarray))

    def live(self) -> Annotated[np.ndarray, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64."""
        return np.flatnonzero(self.tables.alive[: self.tables.n_rows])

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order, from the tables."""
        return np.ascontiguousarray(self._stored()[0])

    def flat(self) -> dict[str, Any]:
        """Return all arrays by name. They are valid until the next change; do not write to them."""
        return self.tables._asdict()

    def merge(self) -> None:
        """Sort the side table into the others, and drop removed rows. Look-ups stay the same."""
        tables = self.tables
        if tables.n_side or tables.n_dead:
            signatures, rows = self._stored()
            self.tables = self._sorted(signatures, rows, tables.alive, tables.n_rows)

    def _check(self, signatures):
        check_array("signatures", signatures)
        if library(signatures) != "numpy":
            raise TypeError(
                f"signatures must be a NumPy array, got an array of {library(signatures)}"
            )
        super()._check(signatures)

    def _add(self, signatures):
        tables, m = self.tables, len(signatures)
        n_rows = tables.n_rows + m
        check_rows(n_rows)
        rows = np.arange(tables.n_rows, n_rows)
        if m == 0:
            return rows
        alive = with_room(tables.alive, tables.n_rows, n_rows)
        if tables.n_side + m > max(MERGED_FROM, tables.entries.shape[1] // 4):
            everything, all_rows = signatures, rows
            if tables.n_rows:
                everything, all_rows = self._stored(more=m)
                everything[-m:] = signatures
                all_rows = np.concatenate([all_rows, rows])
            self.tables = self._sorted(everything, all_rows, alive, n_rows)
        else:
            self._chain(signatures, tables._replace(alive=alive, n_rows=n_rows))
        return rows

    def _are_live(self, numbers):
        known = numbers < self.tables.n_rows
        known[known] = self.tables.alive[numbers[known]]
        return known

    def _remove(self, numbers):
        tables = self.tables
        tables.alive[numbers] = False
        self.tables = tables._replace(n_dead=tables.n_dead + len(numbers))
        if self.tables.n_dead > max(MERGED_FROM, (tables.entries.shape[1] + tables.n_side) // 4):
            self.merge()

    def counts_of(self, columns):
        return self._walked(columns, 0)[1]

    def rows_of(self, columns):
        c = int(np.max(self.counts_of(columns), initial=0))
        rows, counts = self._walked(columns, c)
        return rows, np.arange(c) < counts[..., np.newaxis]

    def _walked(self, columns, room):
        """Return up to `room` rows of each bucket, padded with 0, and how many there are."""
        # contiguous and writable: Numba compiles anew for other arrays
        columns = np.require(columns, requirements=["C", "W"])
        counts = np.zeros(columns.shape, dtype=np.int64)
        rows = np.zeros((*columns.shape, room), dtype=np.int64)
        hashed = scrambled(columns, self._salt)
        self._functions.walk_buckets(self.tables, columns, hashed, counts, rows)
        return rows, counts

    def _stored(self, more=0):
        """Return the signatures (n, L) of all live rows, with room for `more`, and the rows.

        In memory the signatures of a table lie side by side, since the builds read them so.
        """
        tables = self.tables
        rows, n_dead = self.live(), tables.n_dead
        place_of = np.cumsum(tables.alive[: tables.n_rows]) - 1  # of a row among the live ones
        signatures = np.empty((self.n_tables, len(rows) + more), dtype=np.int64)
        for t in range(self.n_tables):
            own, place = stored(tables, t)
            row = tables.rows[place] if len(tables.rows) else place
            if n_dead:
                live = tables.alive[row]
                own, row = own[live], row[live]
            signatures[t, place_of[row]] = own
        side = tables.alive[tables.side_first : tables.side_first + tables.n_side]
        start = len(rows) - np.count_nonzero(side)
        signatures[:, start : len(rows)] = tables.side_signatures[: len(side)][side].T
        return signatures.T, rows

    def _chain(self, signatures, tables):
        """Put new rows into the side table; `tables` counts them already."""
        first, n_side = tables.n_side, tables.n_side + len(signatures)
        if n_side > len(tables.side_signatures):
            stored = tables.side_signatures[:first]
            side = _side(self.n_tables, max(64, 2 * n_side))
            tables = tables._replace(side_slots=side[0], side_next=side[1], side_signatures=side[2])
            tables.side_signatures[:first] = stored
            first = 0
        tables.side_signatures[tables.n_side : n_side] = signatures
        farthest = self._functions.chain(tables, first, n_side)
        self.tables = tables._replace(n_side=n_side)
        if farthest > displacement_limit(tables.side_slots.shape[1], LOAD_FACTOR):
            self._mixer = draw_mixer(self._random)  # they were chosen to crowd
            self.merge()

    def _sorted(self, signatures, rows, alive, n_rows):
        """Return all rows in sorted tables, and an empty side table."""
        starts, entries = self._build(signatures, self._salt)
        plain = len(rows) == 0 or rows[-1] == len(rows) - 1  # none was removed
        numbers = np.zeros(0, np.int32) if plain else rows.astype(np.int32)
        side = (*_side(self.n_tables, 0), n_rows, 0)
        main = (starts, entries, numbers, bits_for(len(rows)), self._salt)
        return BucketTables(*main, self._mixer, *side, alive, 0, n_rows)


def _side(n_tables: int, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return slots, links and signatures of an empty side table for `room` rows."""
    slots = np.tile(free_slots(slots_for(room, LOAD_FACTOR)), (n_tables, 1, 1))
    links = np.full((n_tables, room), -1, dtype=np.int32)
    return slots, links, np.zeros((room, n_tables), dtype=np.int64)


def with_room(alive: np.ndarray, n: int, new: int) -> np.ndarray:
    """Return `alive` with rows n to `new` alive too; the same array if it has the room."""
    if n == 0:
        return np.ones(new, dtype=bool)
    if new > len(alive):
        longer = np.zeros(max(new, 2 * len(alive)), dtype=bool)
        longer[:n] = alive[:n]
        alive = longer
    alive[n:new] = True
    return alive
