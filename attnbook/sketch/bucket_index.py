"""An index of signatures that grows: Robin Hood maps over sorted buckets, and a side table.

Sorted rows are the fastest to build and to read, and cannot grow. So new rows go to a small side
table, which has for each signature a chain of its rows; when that has grown to a quarter of the
sorted part, both are sorted together. All sorts of a growing index together cost about five times
the last one, since 1 + 1/1.25 + 1/1.25² + … = 5.
"""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import Array, check_array, check_choice, check_int, library
from attnbook.arrays.projections import generator
from attnbook.sketch.bucket_tables import LOAD_FACTOR, build_tables, entries
from attnbook.sketch._flat import LOW, Flat, functions
from attnbook.hashing._slots import displacement_limit, draw_mixer, free_slots, slots_for
from attnbook.hashing.buckets import check_signatures, sort_buckets
from attnbook.hashing.robin_hood import IMPLEMENTATIONS
from attnbook.sketch.sorted_index import (
    SortedIndex,
    absent,
    check_max_bucket,
    check_table,
    row_numbers,
)

__all__ = ["BucketIndex", "SortedIndex"]

MOST_ROWS = 2**31 - 1
"""Rows are int32, and a map packs start and number of a bucket into one int64."""

MERGED_FROM = 1024  # rows in the side table, or removed ones, below which nothing is merged


class BucketIndex:
    """Find the rows that share a signature with a query, in each of several tables; NumPy arrays.

    Rows are numbered as they are added, from 0 on, and keep their number when others go. Every
    table has its rows sorted by signature and a Robin Hood map from a signature to its run of rows.

    Parameters
    ----------
    n_tables : int
        At least 1.
    impl : str
        ``"reference"`` or ``"numba"``; both find the same.
    seed : int or numpy Generator
        Of the maps' hash function, which all tables share.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.
    ImportError
        If Numba is asked for and not installed.

    Notes
    -----
    ``add`` costs O(L log n) a row on average, ``remove`` O(1), and a look-up O(L) and what it
    finds. A removed row is skipped until a quarter is removed, and then dropped. A query that meets
    a bucket of a million equal vectors reads them all, unless ``max_bucket`` says otherwise.

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

    def __init__(self, n_tables: int, *, impl: str = "reference", seed: Any = 0):
        self.n_tables = check_int("n_tables", n_tables, at_least=1)
        check_choice("impl", impl, IMPLEMENTATIONS)
        self.impl = impl
        self._functions = functions(impl)
        self._random = generator(seed, "seed")
        nothing = np.zeros((0, self.n_tables), dtype=np.int64)
        mixer = draw_mixer(self._random)
        self._flat = self._sorted(nothing, nothing[:, 0], mixer, np.zeros(0, dtype=bool), 0)

    @property
    def n(self) -> int:
        """Number of rows, without the removed ones."""
        flat = self._flat
        return flat.order.shape[1] + flat.n_side - flat.n_dead

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(x.nbytes for x in self._flat if isinstance(x, np.ndarray))

    def live(self) -> Annotated[Array, "n"]:
        """Return the numbers of all rows that are not removed, ascending, int64."""
        return np.flatnonzero(self._flat.alive[: self._flat.n_rows])

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order; read from the tables."""
        return np.ascontiguousarray(self._stored()[0])

    def add(self, signatures: Annotated[Array, "m n_tables"]) -> Annotated[Array, "m"]:
        """Add rows; return their numbers, int64.

        Raises TypeError or ValueError if `signatures` is not an int64 array of that shape, or if
        there would be 2³¹ rows; the index is then as it was.
        """
        signatures, flat = self._checked(signatures), self._flat
        m = len(signatures)
        n_rows = flat.n_rows + m
        check_rows(n_rows)
        rows = np.arange(flat.n_rows, n_rows)
        if m == 0:
            return rows
        alive = with_room(flat.alive, flat.n_rows, n_rows)
        if flat.n_side + m > max(MERGED_FROM, flat.order.shape[1] // 4):
            everything, all_rows = signatures, rows
            if flat.n_rows:
                everything, all_rows = self._stored(more=m)
                everything[-m:] = signatures
                all_rows = np.concatenate([all_rows, rows])
            self._flat = self._sorted(everything, all_rows, flat.mixer, alive, n_rows)
        else:
            self._chain(signatures, flat._replace(alive=alive, n_rows=n_rows))
        return rows

    def remove(self, rows: Annotated[Array, "m"]) -> None:
        """Take rows away.

        Raises TypeError if `rows` is not an array or a list of integers, and ValueError if one of
        them is not there or is named twice; the index is then as it was.
        """
        flat, rows = self._flat, row_numbers(rows)
        known = rows < flat.n_rows
        known[known] = flat.alive[rows[known]]
        first = np.zeros(len(rows), dtype=bool)
        first[np.unique(rows, return_index=True)[1]] = True
        if not np.all(known & first):
            raise absent(rows[np.argmin(known & first)])
        flat.alive[rows] = False
        self._flat = flat._replace(n_dead=flat.n_dead + len(rows))
        if self._flat.n_dead > max(MERGED_FROM, (flat.order.shape[1] + flat.n_side) // 4):
            self.merge()

    def merge(self) -> None:
        """Sort the side table into the others, and drop removed rows; look-ups stay the same."""
        flat = self._flat
        if flat.n_side or flat.n_dead:
            signatures, rows = self._stored()
            self._flat = self._sorted(signatures, rows, flat.mixer, flat.alive, flat.n_rows)

    def counts(
        self, signatures: Annotated[Array, "n_q n_tables"], max_bucket: int | None = None
    ) -> Annotated[Array, "n_q n_tables"]:
        """Return how many rows `lookup` finds for each query in each table, int64."""
        signatures = self._checked(signatures)
        most = check_max_bucket(max_bucket) or MOST_ROWS
        signatures = _plain(signatures)
        counts = np.zeros(signatures.shape, dtype=np.int64)
        self._functions.count_buckets(self._flat, signatures, most, counts)
        return counts

    def lookup(
        self, signatures: Annotated[Array, "n_q n_tables"], max_bucket: int | None = None
    ) -> tuple[Annotated[Array, "n_q n_tables c"], Annotated[Array, "n_q n_tables c"]]:
        """Return the rows of each query's buckets; the arrays are as of `SortedIndex.lookup`.

        Parameters
        ----------
        signatures : int64 array, shape (n_q, n_tables)
        max_bucket : int, optional
            At most so many rows of a bucket, the lowest ones.

        Returns
        -------
        rows : int64 array, shape (n_q, n_tables, c)
        found : boolean array, shape (n_q, n_tables, c)

        Raises
        ------
        TypeError, ValueError
            As `add`; or if `max_bucket` is not an int of at least 1.
        """
        signatures = self._checked(signatures)
        counts, signatures = self.counts(signatures, max_bucket), _plain(signatures)
        c = int(np.max(counts, initial=0))
        rows = np.zeros((*signatures.shape, c), dtype=np.int64)
        self._functions.read_buckets(self._flat, signatures, counts, rows)
        return rows, np.arange(c) < counts[..., np.newaxis]

    def bucket_sizes(self, t: int) -> Annotated[Array, "m"]:
        """Return the number of rows of every bucket of table `t`, in the order of signatures.

        Raises TypeError or ValueError if there is no such table.
        """
        t = check_table(t, self.n_tables)
        return np.diff(sort_buckets(self._stored()[0][:, t]).starts)

    def flat(self) -> dict[str, Any]:
        """Return all arrays by name, as they are used: valid until the next change, read-only."""
        return self._flat._asdict()

    def _checked(self, signatures):
        check_numpy("signatures", signatures)
        check_signatures("signatures", signatures, self.n_tables)
        return signatures

    def _stored(self, more=0):
        """Return the signatures (n, L) of all live rows, with room for `more`, and the rows.

        In memory each table's signatures are side by side, as the builds read them.
        """
        flat = self._flat
        rows, n_dead = self.live(), flat.n_dead
        place = np.cumsum(flat.alive[: flat.n_rows]) - 1 if len(rows) < flat.n_rows else None
        signatures = np.empty((self.n_tables, len(rows) + more), dtype=np.int64)
        for t in range(self.n_tables):
            keys, runs = entries(flat.slots[flat.slot_starts[t] : flat.slot_starts[t + 1]])
            by_start = np.argsort(runs, kind="stable")  # the start is the upper half
            keys, order = np.repeat(keys[by_start], runs[by_start] & LOW), flat.order[t]
            if n_dead:
                live = flat.alive[order]
                keys, order = keys[live], order[live]
            signatures[t, order if place is None else place[order]] = keys
        side = flat.alive[flat.side_first : flat.side_first + flat.n_side]
        start = len(rows) - np.count_nonzero(side)
        signatures[:, start : len(rows)] = flat.side_signatures[: len(side)][side].T
        return signatures.T, rows

    def _chain(self, signatures, flat):
        """Put new rows into the side table; `flat` counts them already."""
        first, n_side = flat.n_side, flat.n_side + len(signatures)
        if n_side > len(flat.side_signatures):
            stored = flat.side_signatures[:first]
            side = _side(self.n_tables, max(64, 2 * n_side))
            flat = flat._replace(side_slots=side[0], side_next=side[1], side_signatures=side[2])
            flat.side_signatures[:first] = stored
            first = 0
        flat.side_signatures[flat.n_side : n_side] = signatures
        farthest = self._functions.chain(flat, first, n_side)
        self._flat = flat._replace(n_side=n_side)
        if farthest > displacement_limit(flat.side_slots.shape[1], LOAD_FACTOR):
            self.merge()

    def _sorted(self, signatures, rows, mixer, alive, n_rows):
        """Return all rows in sorted tables, and an empty side table."""
        build = _builder(self.impl)
        order, slots, slot_starts, farthest = build(signatures, mixer)
        if farthest > displacement_limit(len(slots), LOAD_FACTOR):  # they were chosen to crowd
            mixer = draw_mixer(self._random)
            order, slots, slot_starts, _ = build(signatures, mixer)
        if len(rows) and rows[-1] != len(rows) - 1:  # some were removed
            order = rows.astype(np.int32)[order]
        side_slots, side_next, side_signatures = _side(self.n_tables, 0)
        side = (side_slots, side_next, side_signatures, n_rows, 0)
        return Flat(slots, slot_starts, order, mixer, *side, alive, 0, n_rows)


def check_rows(n: int) -> None:
    """Raise ValueError if `n` rows are more than int32 can number."""
    if n > MOST_ROWS:
        raise ValueError(f"signatures must make at most 2**31 - 1 rows in all, got {n}")


def check_numpy(name: str, x: Array) -> None:
    """Raise TypeError unless `x` is a NumPy array."""
    check_array(name, x)
    if library(x) != "numpy":
        raise TypeError(f"{name} must be a NumPy array, got an array of {library(x)}")


def _plain(x):
    """Return `x` contiguous and writable: Numba compiles anew for other arrays."""
    x = np.ascontiguousarray(x)
    return x if x.flags.writeable else x.copy()


def _side(n_tables, room):
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


def _builder(impl):
    if impl == "numba":
        from attnbook.sketch import _numba_build

        return _numba_build.build_tables
    return build_tables
