"""Queries on a GPU: one kernel hashes, looks up and attends."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array
from attnbook.compilers.cuda import NULL, HostFlag, import_cupy, name_of
from attnbook.sketch.cuda_hash import TYPES, CudaHash, launch, wide_dtype
from attnbook.sketch.cuda_index import CudaTables
from attnbook.sketch.index import check_max_bucket
from attnbook.sketch.near_keys import NearKeys

ESTIMATORS = ("union", "duplicates", "importance")
"""The estimators that the kernel knows, in the order of its enum."""

WARP = 32

WARPS = ((256, 16), (2048, 4), (2**63, 1))
"""Up to how many queries how many warps work on each. Many queries fill the GPU by themselves."""

MOST_SHARED = 48 * 1024 // 8
"""How many numbers of 8 bytes fit into the shared memory that every GPU gives a block."""


def shared_numbers(n_tables: int, d: int, d_v: int, n_warps: int) -> int:
    """Return how many numbers of 8 bytes a block of the kernel keeps in shared memory."""
    return 5 * n_tables + d + (2 * WARP + d_v + 7) * n_warps


class Prepared:
    """A hash, keys, values and tables in the form that one launch takes.

    The kernel hashes the queries itself. Keys and values have one float dtype, which is that of the
    queries to come, and the rows of the index. Arguments are not checked.
    """

    def __init__(
        self,
        hash: CudaHash,
        key: Annotated[Array, "n d"],
        value: Annotated[Array, "n d_v"],
        tables: CudaTables,
        *,
        scale: float,
        estimator: str = "union",
        max_bucket: int | None = None,
    ):
        self._cupy, self._hash = import_cupy(), hash
        self._held = tuple(_pointer(self._cupy, x) for x in (key, value))
        self._options = (tables, scale, estimator, max_bucket)
        self.dtype, self.d, self.d_v = key.dtype, key.shape[1], value.shape[1]
        self._by_chance = hash if estimator == "importance" else None

    def ask(self, query: Annotated[Array, "n_q d"]) -> Annotated[Array, "n_q d_v"] | None:
        """Return the output of `answer`, after one launch and one wait for the GPU.

        It is None if one of the queries has no signature because it holds NaN or infinity.
        """
        output = self._cupy.empty((query.shape[0], self.d_v), dtype=self.dtype)
        bad = HostFlag(self._cupy)
        self.launch(query, output, bad)
        return None if bad.is_set() else output

    def launch(self, query: Array, output: Array, bad: HostFlag) -> None:
        """Write the outputs without waiting; those of queries without signature are NaN."""
        _attend(
            self._cupy,
            (query, *self._held),
            *self._options,
            hash=self._hash,
            probability=self._by_chance,
            out=(bad.pointer, output, *[NULL] * 5),
        )


def answer(
    query: Annotated[Array, "n_q d"],
    key: Annotated[Array, "n_rows d"],
    value: Annotated[Array, "n_rows d_v"],
    signatures: Annotated[Array, "n_q n_tables"],
    tables: CudaTables,
    *,
    scale: float,
    estimator: str = "union",
    probability: CudaHash | None = None,
    max_bucket: int | None = None,
    before: Annotated[Array, "n_q"] | None = None,
    above: Annotated[Array, "n_q"] | None = None,
    allowed: Annotated[Array, "n_rows"] | None = None,
) -> NearKeys:
    """Attend to what the buckets hold, as `near_keys.near` does, in one launch.

    Parameters are those of `numba_query.answer`, in CuPy arrays of one float dtype, except

    signatures : int64 array, shape (n_q, n_tables)
        One bucket in each table for each query.
    probability : CudaHash, optional
        It knows the chance P that a key is found. A P below 1e-30 counts as 1e-30.

    Arguments are not checked. Raises ValueError if the vectors are too wide for the kernel.
    """
    cupy, n_q = import_cupy(), query.shape[0]
    wide = wide_dtype("query", name_of(query.dtype))
    output = cupy.empty((n_q, value.shape[1]), dtype=query.dtype)
    mass, largest, expected = (cupy.empty(n_q, dtype=wide) for _ in range(3))
    best, count = (cupy.empty(n_q, dtype=np.int64) for _ in range(2))
    _attend(
        *(cupy, (query, key, value), tables, scale, estimator, max_bucket),
        signatures=signatures,
        probability=probability,
        limits=(before, above, allowed),
        out=(NULL, output, mass, largest, expected, best, count),
    )
    return NearKeys(mass, output, count, best, largest, None if probability is None else expected)


def _attend(
    cupy, vectors, tables, scale, estimator, max_bucket, *, out,
    signatures=None, hash=None, probability=None, limits=(None, None, None),
):  # fmt: skip
    """Launch the kernel. Either `signatures` are given or a `hash` that makes them."""
    query, _, value = vectors
    (n_q, d), d_v, n_tables = query.shape, value.shape[1], tables.stored.shape[1]
    n_warps, numbers = _block(n_tables, d, d_v, n_q)
    most = check_max_bucket(max_bucket)
    chance = 0 if probability is None else 1 if probability.is_of_angles else 2
    of_hash: tuple = (NULL, NULL, NULL, np.float64(1), np.int32(0))
    if (known := hash or probability) is not None:
        of_hash = (known.directions, known.offsets, known.multipliers)
        of_hash = (*of_hash, np.float64(known.width), np.int32(known.n_projections))
    if n_q == 0:
        return
    args = (
        *(_pointer(cupy, x) for x in vectors),
        *(np.int32(d), np.int32(d_v), np.float64(scale), _pointer(cupy, signatures), *of_hash),
        *(tables.stored, *tables.arguments, np.int32(n_tables), np.int64(most)),
        *(_pointer(cupy, x) for x in limits),
        *(np.int32(ESTIMATORS.index(estimator)), np.int32(chance), *out),
    )
    name = f"attend<{TYPES[name_of(query.dtype)]}>"
    launch(cupy, name, n_q, WARP * n_warps, args, 8 * numbers)


def _pointer(cupy: Any, x: Any) -> Any:
    if x is None:
        return NULL
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


def _block(n_tables, d, d_v, n_q):
    """Return how many warps a query gets, and how many numbers they share."""
    n_warps = next(warps for most, warps in WARPS if n_q <= most)
    while True:
        numbers = shared_numbers(n_tables, d, d_v, n_warps)
        if numbers <= MOST_SHARED:
            return n_warps, numbers
        if n_warps == 1:
            raise ValueError(
                f"query and value must be narrow enough for {MOST_SHARED} numbers of shared "
                f"memory, got widths {d} and {d_v}, which take {numbers}"
            )
        n_warps //= 2
