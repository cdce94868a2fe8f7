"""Sketch attention on a GPU: hashes, index and query by the kernels of `sketch.cu`, with CuPy.

Nothing here runs unless it is asked for: CuPy is imported, and the kernels compiled, once a
process, by the first `CudaIndex` or `CudaHash`.
"""

import functools
from importlib import resources
from typing import Annotated, Any, NamedTuple

import numpy as np

from attnbook._arrays import Array, check_int, check_number, dtype_name
from attnbook.sketch.robin_hood import draw_mixer, slots_for
from attnbook.sketch.simhash import SimHash
from attnbook.sketch.stable_hash import StableHash

MOST_ROWS = 2**31 - 1
"""Rows are int32."""

COUNT_BITS = 31
"""A bucket in a map is (start << COUNT_BITS) | count."""

TYPES = {
    "float16": "float16, float",
    "bfloat16": "bfloat16, float",
    "float32": "float, float",
    "float64": "double, double",
}
"""For each dtype the type of the vectors and the type to compute in."""

NULL = np.uint64(0)
"""A pointer to nothing: CuPy would pass None as no argument at all."""

WARP = 32
WARPS = (8, 4, 2, 1)
MOST_SHARED = 48 * 1024 // 8
"""Numbers of 8 bytes in the shared memory that every GPU gives a block."""

MANY_QUERIES = 2048
"""From so many on, one warp a query fills the GPU."""


class Found(NamedTuple):
    """What a query of a `CudaIndex` returns; the three last in the dtype to compute in, or int64.

    A query without candidates has output 0, and −∞ as normaliser and largest score.
    """

    output: Annotated[Array, "n_q d_v"]
    log_normaliser: Annotated[Array, "n_q"]
    largest: Annotated[Array, "n_q"]
    candidates: Annotated[Array, "n_q"]


def import_cupy() -> Any:
    """Return the module cupy, or raise ImportError that says how to get it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "impl='cupy' needs CuPy: pip install 'attnbook[gpu-cuda13]' "
            "(or gpu-cuda12, as the driver asks)"
        ) from error
    return cupy


def source() -> str:
    """Return the text of `sketch.cu`."""
    return resources.files("attnbook.sketch").joinpath("sketch.cu").read_text("utf-8")


@functools.cache
def _module(cupy: Any) -> Any:
    expressions = [f"attend<{types}>" for types in TYPES.values()]
    expressions += [f"signatures_of<{acc}>" for acc in ("float", "double")]
    return cupy.RawModule(
        code=source(), options=("-std=c++17",), name_expressions=tuple(expressions)
    )


@functools.cache
def _kernel(cupy: Any, name: str) -> Any:
    return _module(cupy).get_function(name)  # CuPy loads it for each GPU


def _launch(cupy, name, n_blocks, n_threads, args, shared_bytes=0):
    _kernel(cupy, name)((n_blocks,), (n_threads,), args, shared_mem=shared_bytes)


def _launch_for_each(cupy, name, n, args):
    """Launch with a thread for each of `n` things; the kernels stride where there are more."""
    if n:
        _launch(cupy, name, min(-(-n // 256), 2**20), 256, args)


def shared_numbers(n_tables: int, n_codes: int, d: int, d_v: int, n_warps: int) -> int:
    """Return how many numbers of 8 bytes a block of `attend` keeps in shared memory."""
    return 4 * n_tables + (3 + 2 * WARP + d_v) * n_warps + d + n_codes


class CudaHash:
    """A `SimHash` or `StableHash` whose signatures the GPU computes in two launches.

    Parameters
    ----------
    hash : SimHash or StableHash
        In any library; its numbers are copied to the present GPU.
    dtype : str
        Of the vectors; half precision is computed in float32.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    TypeError, ValueError
        If `hash` is another one, or `dtype` unknown.
    """

    def __init__(self, hash: SimHash | StableHash, dtype: str = "float32"):
        if not isinstance(hash, (SimHash, StableHash)):
            raise TypeError(f"hash must be a SimHash or StableHash, got {type(hash).__name__}")
        self._cupy = import_cupy()
        self._wide = _wide_dtype(dtype)
        host = hash.to("numpy")
        self.n_tables, self.n_projections, self.d = host.directions.shape
        flat = np.reshape(host.directions, (-1, self.d)).astype(self._wide)
        self.directions = self._cupy.asarray(flat)
        if isinstance(host, StableHash):
            self.offsets = self._cupy.asarray(host.offsets.astype(self._wide))
            self.width, multipliers = host.width, host.multipliers
        else:
            self.offsets, self.width = NULL, 1.0
            multipliers = 1 << np.arange(self.n_projections, dtype=np.int64)
        self.multipliers = self._cupy.asarray(multipliers)

    def signatures(self, x: Annotated[Array, "n d"]) -> Annotated[Array, "n n_tables"]:
        """Return `hash.signatures(x)`: a matrix product, then one kernel.

        Raises TypeError or ValueError if `x` is no such CuPy array, holds NaN or infinity, or is
        so large that a code does not fit an int64.
        """
        cupy = self._cupy
        _check_vectors("x", x, cupy, ("n", self.d))
        if _wide_dtype(dtype_name(x.dtype)) != self._wide:
            raise TypeError(
                f"x must be computed in {self._wide}, as this hash is, got {dtype_name(x.dtype)}"
            )
        n = x.shape[0]
        along = cupy.matmul(x.astype(self._wide, copy=False), self.directions.T)
        signatures = cupy.empty((n, self.n_tables), dtype=np.int64)
        bad = cupy.zeros(1, dtype=np.int32)
        _launch_for_each(
            cupy,
            f"signatures_of<{_c_type(self._wide)}>",
            n * self.n_tables,
            (
                *(along, self.offsets, np.float64(self.width), self.multipliers),
                *(np.int64(n), np.int32(self.n_tables), np.int32(self.n_projections)),
                *(signatures, bad),
            ),
        )
        if int(bad[0]):  # the one wait for the GPU
            raise ValueError(
                "x must be finite and within 2**62 widths of 0 along every direction, "
                "got a point that is not"
            )
        return signatures


class CudaIndex:
    """`BucketIndex` on a GPU: Robin Hood maps over sorted rows, in CuPy arrays.

    A build sorts each table by signature and fills its map, in a few milliseconds for a million
    rows. So there is no side table: what was added or removed since the last build is put in
    place by the next one, before the next look-up.

    Parameters
    ----------
    n_tables : int
        L.
    seed : int or numpy Generator
        Of the maps' hash function, drawn as `BucketIndex` draws it.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    TypeError, ValueError
        If an argument of a method has another type, dtype or shape than it says.

    Notes
    -----
    Everything is on the GPU that was current when the index was made. Memory: 8 L bytes a row
    for the signatures, 4 L for the order, 32 L for the maps if every row has a bucket of its own.
    """

    def __init__(self, n_tables: int, *, seed: Any = 0):
        self._cupy = import_cupy()
        self.n_tables = check_int("n_tables", n_tables, at_least=1)
        self.mixer = self._cupy.asarray(draw_mixer(np.random.default_rng(seed)))
        self._signatures = self._cupy.empty((0, self.n_tables), dtype=np.int64)
        self._alive = self._cupy.empty(0, dtype=np.bool_)
        self.n = 0
        self._build()

    def add(self, signatures: Annotated[Array, "m n_tables"]) -> Annotated[Array, "m"]:
        """Add rows by their signatures; return their numbers, int64, which they keep for good."""
        cupy = self._cupy
        self._check_signatures(signatures)
        first, m = self._signatures.shape[0], signatures.shape[0]
        if first + m > MOST_ROWS:
            raise ValueError(f"signatures must make at most {MOST_ROWS} rows, got {first + m}")
        self._signatures = cupy.concatenate((self._signatures, signatures))
        self._alive = cupy.concatenate((self._alive, cupy.ones(m, dtype=np.bool_)))
        self.n += m
        self._stale = self._stale or m > 0
        return cupy.arange(first, first + m, dtype=np.int64)

    def remove(self, rows: Annotated[Array, "m"]) -> None:
        """Take rows out; ValueError if one is not there, or named twice."""
        cupy = self._cupy
        rows = cupy.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"rows must be integers (m,), got {rows.dtype} {rows.shape}")
        known = (rows >= 0) & (rows < self._signatures.shape[0])
        inside = cupy.where(known, rows, 0)
        if rows.shape[0] and (
            not bool(cupy.all(known))
            or not bool(cupy.all(self._alive[inside]))
            or cupy.unique(rows).shape[0] < rows.shape[0]
        ):
            raise ValueError("rows must be in the index, each named once")
        self._alive[inside] = False
        self.n -= rows.shape[0]
        self._stale = self._stale or rows.shape[0] > 0

    def merge(self) -> None:
        """Build anew if rows came or went since the last build."""
        if self._stale:
            self._build()

    def _build(self):
        """Sort the rows of every table by signature and map each signature to its range."""
        cupy, n_tables = self._cupy, self.n_tables
        live = cupy.flatnonzero(self._alive)
        n = self.n
        by_table = cupy.ascontiguousarray(self._signatures[live].T)  # (L, n)
        self.order = cupy.empty((n_tables, n), dtype=np.int32)
        for t in range(n_tables):
            place = cupy.argsort(by_table[t], kind="stable")  # a radix sort
            self.order[t] = live[place]
            by_table[t] = by_table[t][place]
        first = cupy.ones((n_tables, n), dtype=np.bool_)
        first[:, 1:] = by_table[:, 1:] != by_table[:, :-1]
        start = cupy.flatnonzero(first)  # of every bucket, counted through all tables
        keys = by_table.ravel()[start]
        ends = cupy.concatenate((start[1:], cupy.full(1, n_tables * n, dtype=start.dtype)))
        counts, start = ends - start, start - start // max(n, 1) * n
        n_buckets = cupy.count_nonzero(first, axis=1).tolist()
        n_slots = [slots_for(count) for count in n_buckets]
        slot_starts = np.concatenate(([0], np.cumsum(n_slots))).astype(np.int64)
        self.slot_starts = cupy.asarray(slot_starts)
        self.slots = cupy.empty((int(slot_starts[-1]), 3), dtype=np.int64)
        done = 0
        for t in range(n_tables):
            part = slice(done, done + n_buckets[t])
            done = part.stop
            slots = self.slots[slot_starts[t] : slot_starts[t + 1]]
            self._map(slots, keys[part], start[part], counts[part])
        self._stale = False

    def _map(self, slots, keys, starts, counts):
        """Fill the slots of one table."""
        cupy, n, n_slots = self._cupy, keys.shape[0], slots.shape[0]
        homes = cupy.empty(n, dtype=np.int64)
        owner = cupy.full(n_slots, -1, dtype=np.int32)
        sizes = (np.int64(n), np.int64(n_slots))
        _launch_for_each(cupy, "home_slots", n, (keys, sizes[0], self.mixer, sizes[1], homes))
        _launch_for_each(cupy, "claim_slots", n, (homes, *sizes, owner))
        arrays = (owner, homes, keys, starts, counts, sizes[1], slots)
        _launch_for_each(cupy, "fill_slots", n_slots, arrays)

    def lookup(
        self, signatures: Annotated[Array, "n_q n_tables"], max_bucket: int | None = None
    ) -> tuple[Annotated[Array, "n_q n_tables C"], Annotated[Array, "n_q n_tables C"]]:
        """Return the rows in the buckets, int64, and which of them are no padding.

        As `BucketIndex.lookup`: rows ascend in a bucket, `max_bucket` keeps the first ones.
        """
        cupy = self._cupy
        self._check_signatures(signatures)
        cap = _check_cap(max_bucket)
        self.merge()
        n_q = signatures.shape[0]
        starts = cupy.empty((n_q, self.n_tables), dtype=np.int64)
        counts = cupy.empty((n_q, self.n_tables), dtype=np.int64)
        _launch_for_each(
            cupy,
            "find_buckets",
            n_q * self.n_tables,
            (
                *(cupy.ascontiguousarray(signatures), np.int64(n_q), np.int32(self.n_tables)),
                *(self.slots, self.slot_starts, self.mixer, starts, counts),
            ),
        )
        counts = cupy.minimum(counts, cap)
        width = int(counts.max()) if n_q else 0
        if width == 0:
            nothing = cupy.zeros((n_q, self.n_tables, 0), dtype=np.int64)
            return nothing, nothing > 0
        step = cupy.arange(width, dtype=np.int64)
        found = step < counts[:, :, None]
        table = cupy.arange(self.n_tables, dtype=np.int64)[:, None]
        place = cupy.where(found, table * self.n + starts[:, :, None] + step, 0)
        return cupy.where(found, self.order.ravel()[place].astype(np.int64), 0), found

    def query(
        self,
        query: Annotated[Array, "n_q d"],
        key: Annotated[Array, "n_rows d"],
        value: Annotated[Array, "n_rows d_v"],
        signatures: Annotated[Array, "n_q n_tables"] | CudaHash,
        *,
        scale: float,
        max_bucket: int | None = None,
        row_limit: Annotated[Array, "n_q"] | None = None,
    ) -> Found:
        """Attend to the union of the buckets, in one launch.

        Parameters
        ----------
        query, key, value : CuPy arrays of one float dtype
            Row i of `key` and `value` belongs to row i of the index.
        signatures : int64 array, or a CudaHash
            Of the queries. With a hash the kernel computes them itself, which saves a launch or
            two for few queries; then a query that holds NaN or is too large for the hash gets NaN.
        scale : float
            Multiplies the scores.
        max_bucket : int, optional
            Take at most so many rows of a bucket, the first ones.
        row_limit : int64 array, shape (n_q,), optional
            Take only rows below it: the causal mask.
        """
        cupy = self._cupy
        _check_vectors("query", query, cupy, ("n_q", "d"))
        (n_q, d), n_rows = query.shape, self._signatures.shape[0]
        for name, x, shape in (("key", key, (n_rows, d)), ("value", value, (n_rows, "d_v"))):
            _check_vectors(name, x, cupy, shape)
            if x.dtype != query.dtype:
                raise TypeError(
                    f"{name} must have the dtype of query ({dtype_name(query.dtype)}), "
                    f"got {dtype_name(x.dtype)}"
                )
        dtype = dtype_name(query.dtype)
        wide, d_v = _wide_dtype(dtype), value.shape[1]
        scale, cap = check_number("scale", scale), _check_cap(max_bucket)
        hashing, n_codes = self._hashing(signatures, n_q, d, wide)
        if row_limit is not None:
            _check_ints("row_limit", row_limit, cupy, (n_q,))
            row_limit = cupy.ascontiguousarray(row_limit)
        n_warps, shared = _block(self.n_tables, n_codes, d, d_v, n_q)
        self.merge()
        found = Found(
            cupy.empty((n_q, d_v), dtype=query.dtype),
            cupy.empty(n_q, dtype=wide),
            cupy.empty(n_q, dtype=wide),
            cupy.empty(n_q, dtype=np.int64),
        )
        if n_q:
            args = (
                *map(cupy.ascontiguousarray, (query, key, value)),
                *(np.int32(d), np.int32(d_v), np.float64(scale), *hashing),
                *(self._signatures, self.slots, self.slot_starts, self.mixer, self.order),
                *(np.int64(self.n), np.int32(self.n_tables), np.int64(cap)),
                *(NULL if row_limit is None else row_limit, *found),
            )
            _launch(cupy, f"attend<{TYPES[dtype]}>", n_q, WARP * n_warps, args, 8 * shared)
        return found

    def _hashing(self, signatures, n_q, d, wide):
        """Return the arguments of `attend` from signatures to n_projections, and L·K or 0."""
        if not isinstance(signatures, CudaHash):
            self._check_signatures(signatures, n_q)
            given = self._cupy.ascontiguousarray(signatures)
            return (given, NULL, NULL, NULL, np.float64(1), np.int32(0)), 0
        hash = signatures
        if (hash.n_tables, hash.d, hash._wide) != (self.n_tables, d, wide):
            raise ValueError(
                f"signatures must be a hash of {self.n_tables} tables for width {d} in {wide}, "
                f"got {hash.n_tables} tables for width {hash.d} in {hash._wide}"
            )
        arrays = (NULL, hash.directions, hash.offsets, hash.multipliers)
        n_codes = hash.n_tables * hash.n_projections
        return (*arrays, np.float64(hash.width), np.int32(hash.n_projections)), n_codes

    def bucket_sizes(self, t: int) -> Annotated[Array, "n_buckets"]:
        """Return the number of rows in each bucket of table `t`, int64, in no special order."""
        t = check_int("t", t)
        if t >= self.n_tables:
            raise ValueError(f"t must be below {self.n_tables}, got {t}")
        self.merge()
        slots = self.slots[int(self.slot_starts[t]) : int(self.slot_starts[t + 1])]
        taken = slots[slots[:, 2] >= 0]
        return taken[:, 1] & ((1 << COUNT_BITS) - 1)

    @property
    def memory_bytes(self) -> int:
        """Bytes of everything that the index keeps on the GPU."""
        arrays = (self._signatures, self._alive, self.order, self.slots, self.slot_starts)
        return sum(x.nbytes for x in (*arrays, self.mixer))

    def _check_signatures(self, signatures, n="n"):
        _check_ints("signatures", signatures, self._cupy, (n, self.n_tables))


def _wide_dtype(dtype: str) -> str:
    if dtype not in TYPES:
        raise TypeError(f"dtype must be one of {', '.join(TYPES)}, got {dtype}")
    return "float64" if dtype == "float64" else "float32"


def _c_type(wide: str) -> str:
    return {"float32": "float", "float64": "double"}[wide]


def _block(n_tables, n_codes, d, d_v, n_q):
    """Return how many warps a query gets, and the numbers in their shared memory."""
    for n_warps in WARPS:
        numbers = shared_numbers(n_tables, n_codes, d, d_v, n_warps)
        if numbers <= MOST_SHARED and (n_warps == 1 or n_q < MANY_QUERIES):
            return n_warps, numbers
    raise ValueError(
        f"query and value must be narrow enough for {MOST_SHARED} numbers of shared memory, "
        f"got widths {d} and {d_v}, which take {numbers}"
    )


def _check_cap(max_bucket: int | None) -> int:
    return 2**62 if max_bucket is None else check_int("max_bucket", max_bucket, at_least=1)


def _check_shape(name, x, shape):
    fits = len(x.shape) == len(shape) and all(
        isinstance(wanted, str) or size == wanted
        for size, wanted in zip(x.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(x.shape)}")


def _check_vectors(name, x, cupy, shape):
    if not isinstance(x, cupy.ndarray):
        raise TypeError(f"{name} must be a CuPy array, got {type(x).__name__}")
    if dtype_name(x.dtype) not in TYPES:
        raise TypeError(f"{name} must have a real floating dtype, got {dtype_name(x.dtype)}")
    _check_shape(name, x, shape)


def _check_ints(name, x, cupy, shape):
    if not isinstance(x, cupy.ndarray):
        raise TypeError(f"{name} must be a CuPy array, got {type(x).__name__}")
    if x.dtype != np.int64:
        raise TypeError(f"{name} must have dtype int64, got {dtype_name(x.dtype)}")
    _check_shape(name, x, shape)
