"""The index on a GPU: rows sorted by signature, and Robin Hood maps, in CuPy arrays."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import generator
from attnbook.arrays.array import Array
from attnbook.compilers.cuda import import_cupy
from attnbook.hashing.robin_hood import displacement_limit, draw_mixer, slots_for
from attnbook.sketch.bucket_tables import LOAD_FACTOR
from attnbook.sketch.cuda_hash import check_cupy, launch_for_each
from attnbook.sketch.index import MOST_ROWS, SignatureIndex, check_rows, check_tables


class CudaIndex(SignatureIndex):
    """`BucketIndex` on a GPU, with the same methods, for CuPy arrays.

    A build sorts each table by signature and fills its map. There is no side table: what was added
    or removed is put in place by the next build, before the next look-up. A query asks for one
    bucket in each table (`one_probe`).

    Parameters and errors are those of `BucketIndex`, and ImportError without CuPy. The index lives
    on the GPU that is current when it is made. A row takes 8 L bytes for its signatures, 4 L for
    the order, 32 L for the maps if no two rows share a bucket, and about 40 L more during a build.
    """

    one_probe = True

    def __init__(self, n_tables: int, *, seed: Any = 0):
        self.n_tables = check_tables(n_tables)
        self._random = generator(seed)
        self._cupy = cupy = import_cupy()
        self.mixer = cupy.asarray(draw_mixer(self._random))
        self.stored = cupy.empty((0, self.n_tables), dtype=np.int64)  # signatures of all rows, ever
        self._alive = cupy.empty(0, dtype=np.bool_)
        self.n = 0
        """Number of rows, without the removed ones."""
        self._stale = True
        self._build()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.stored, self._alive, self.order, self.slots, self.slot_starts, self.mixer)
        return sum(int(x.nbytes) for x in arrays)

    def live(self) -> Annotated[Array, "n"]:
        """Return the rows that were not removed, ascending, int64."""
        return self._cupy.flatnonzero(self._alive)

    def signatures(self) -> Annotated[Array, "n n_tables"]:
        """Return the signatures of the rows of `live`, in their order."""
        return self.stored[self.live()]

    def merge(self) -> None:
        """Build the tables anew if rows were added or removed since the last build."""
        if self._stale:
            self._build()

    def _check(self, signatures):
        check_cupy("signatures", signatures, self._cupy, ("n", self.n_tables), ("int64",))

    def _add(self, signatures):
        cupy = self._cupy
        first, m = self.stored.shape[0], signatures.shape[0]
        check_rows(first + m)
        self.stored = cupy.ascontiguousarray(cupy.concatenate((self.stored, signatures)))
        self._alive = cupy.concatenate((self._alive, cupy.ones(m, dtype=np.bool_)))
        self.n += m
        self._stale = self._stale or m > 0
        return cupy.arange(first, first + m, dtype=np.int64)

    def _are_live(self, numbers):
        known = numbers < self.stored.shape[0]
        known[known] = self._alive[self._cupy.asarray(numbers[known])].tolist()
        return known

    def _remove(self, numbers):
        self._alive[self._cupy.asarray(numbers)] = False
        self.n -= len(numbers)
        self._stale = True

    def _counts(self, signatures, most):
        return self._find(signatures, most)[1]

    def _lookup(self, signatures, most):
        cupy = self._cupy
        starts, counts = self._find(signatures, most)
        c = int(cupy.max(counts)) if counts.shape[0] else 0
        step = cupy.arange(c, dtype=np.int64)
        found = step < counts[:, :, None]
        if c == 0:
            return cupy.zeros(found.shape, dtype=np.int64), found
        table = cupy.arange(self.n_tables, dtype=np.int64)[:, None]
        place = cupy.where(found, table * self.n + starts[:, :, None] + step, 0)
        return cupy.where(found, self.order.ravel()[place].astype(np.int64), 0), found

    def _bucket_sizes(self, t):
        self.merge()
        slots = self.slots[int(self.slot_starts[t]) : int(self.slot_starts[t + 1])]
        runs = self._cupy.sort(slots[slots[:, 2] >= 0][:, 1])  # the start is the upper half
        return runs & MOST_ROWS

    def _find(self, signatures, most):
        """Return start and number of the rows of each query's bucket, (n_q, n_tables) each."""
        cupy, n_q = self._cupy, signatures.shape[0]
        self.merge()
        starts, counts = (cupy.empty((n_q, self.n_tables), dtype=np.int64) for _ in range(2))
        launch_for_each(
            cupy,
            "find_buckets",
            n_q * self.n_tables,
            (
                *(cupy.ascontiguousarray(signatures), np.int64(n_q), np.int32(self.n_tables)),
                *(self.slots, self.slot_starts, self.mixer, starts, counts),
            ),
        )
        return starts, cupy.minimum(counts, most)

    def _build(self):
        """Sort the rows of every table by signature, and map each signature to its run of rows."""
        cupy = self._cupy
        if self.n:
            buckets = self._sort()
        else:
            nothing = cupy.empty(0, dtype=np.int64)
            self.order = cupy.empty((self.n_tables, 0), dtype=np.int32)
            buckets = [(nothing, nothing, nothing)] * self.n_tables
        if not self._fill(buckets, careful=True):
            self.mixer = cupy.asarray(draw_mixer(self._random))  # they were chosen to crowd: once
            self._fill(buckets, careful=False)
        self._stale = False

    def _sort(self):
        """Set `order`; return signature, start and length of the buckets of every table."""
        cupy, n_tables, n = self._cupy, self.n_tables, self.n
        live = self.live() if n < self.stored.shape[0] else None
        signatures = self.stored if live is None else self.stored[live]
        by_table = signatures.T.copy()  # (L, n)
        self.order = cupy.empty((n_tables, n), dtype=np.int32)
        for t in range(n_tables):
            place = cupy.argsort(by_table[t])  # stable: a radix sort
            by_table[t] = by_table[t][place]
            self.order[t] = place if live is None else live[place]
        new = cupy.ones((n_tables, n), dtype=np.bool_)
        new[:, 1:] = by_table[:, 1:] != by_table[:, :-1]
        n_buckets = cupy.count_nonzero(new, axis=1).tolist()  # waits for the GPU
        starts = cupy.flatnonzero(new)  # of every bucket, counted through all tables
        end = cupy.full(1, n_tables * n, dtype=starts.dtype)
        counts = cupy.concatenate((starts[1:], end)) - starts
        keys, starts = by_table.ravel()[starts], starts % n
        ends = np.cumsum(n_buckets).tolist()
        parts = [slice(end - m, end) for m, end in zip(n_buckets, ends, strict=True)]
        return [(keys[part], starts[part], counts[part]) for part in parts]

    def _fill(self, buckets, careful):
        """Make the maps; return whether no entry is farther from home than random keys ever are."""
        cupy = self._cupy
        sizes = [slots_for(keys.shape[0], LOAD_FACTOR) for keys, _, _ in buckets]
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.slot_starts = cupy.asarray(starts)
        self.slots = cupy.empty((int(starts[-1]), 3), dtype=np.int64)
        crowded = cupy.zeros(1, dtype=np.int32)
        for t, (keys, *runs) in enumerate(buckets):
            n, n_slots = np.int64(keys.shape[0]), np.int64(sizes[t])
            limit = np.int64(displacement_limit(sizes[t], LOAD_FACTOR) if careful else n_slots)
            slots = self.slots[int(starts[t]) : int(starts[t + 1])]
            homes = cupy.empty(int(n), dtype=np.int64)
            owner = cupy.full(sizes[t], -1, dtype=np.int32)
            launch_for_each(cupy, "home_slots", int(n), (keys, n, self.mixer, n_slots, homes))
            claim = (homes, n, n_slots, limit, crowded, owner)
            launch_for_each(cupy, "claim_slots", int(n), claim)
            fill = (owner, homes, keys, *runs, n_slots, slots)
            launch_for_each(cupy, "fill_slots", sizes[t], fill)
        return not (careful and int(crowded[0]))
