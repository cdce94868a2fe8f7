"""Queries on a GPU: one kernel hashes, looks up and attends."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array
from attnbook.compilers.cuda import NULL, import_cupy, name_of
from attnbook.sketch.cuda_hash import TYPES, CudaHash, launch, wide_dtype
from attnbook.sketch.cuda_index import CudaIndex
from attnbook.sketch.index import check_max_bucket
from attnbook.sketch.near_keys import NearKeys

ESTIMATORS = ("union", "duplicates", "importance")
"""The estimators that the kernel knows, in the order of its enum."""

WARP = 32

WARPS = ((256, 16), (2048, 4), (2**63, 1))
"""Up to how many queries how many warps work on each. Many queries fill the GPU by themselves."""

MOST_SHARED = 48 * 1024 // 8
"""How many numbers of 8 bytes fit into the shared memory that every GPU gives a block."""


def shared_numbers(n_tables: int, n_codes: int, d: int, d_v: int, n_warps: int) -> int:
    """Return how many numbers of 8 bytes a block of the kernel keeps in shared memory."""
    return 5 * n_tables + n_codes + d + (2 * WARP + d_v + 7) * n_warps


def answer(
    query: Annotated[Array, "n_q d"],
    key: Annotated[Array, "n_rows d"],
    value: Annotated[Array, "n_rows d_v"],
    signatures: Annotated[Array, "n_q n_tables"] | CudaHash,
    index: CudaIndex,
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

    signatures : int64 array, shape (n_q, n_tables), or a CudaHash
        One bucket in each table for each query. With a hash the kernel computes the signatures
        itself, which saves a launch or two for few queries. A query that has none, since it holds
        NaN, then gets NaN.
    probability : CudaHash, optional
        It knows the chance P that a key is found. A P below 1e-30 counts as 1e-30.

    Arguments are not checked. Raises ValueError if the vectors are too wide for the kernel.
    """
    cupy, (n_q, d), d_v = import_cupy(), query.shape, value.shape[1]
    wide = wide_dtype("query", name_of(query.dtype))
    hash, n_codes = probability, 0
    if isinstance(signatures, CudaHash):
        hash, n_codes = signatures, signatures.n_tables * signatures.n_projections
    n_warps, numbers = _block(index.n_tables, n_codes, d, d_v, n_q)
    most = check_max_bucket(max_bucket)
    index.merge()
    chance = 0 if probability is None else 1 if probability.is_of_angles else 2
    mass, largest, expected = (cupy.empty(n_q, dtype=wide) for _ in range(3))
    best, count = (cupy.empty(n_q, dtype=np.int64) for _ in range(2))
    output = cupy.empty((n_q, d_v), dtype=query.dtype)
    of_hash: tuple = (NULL, NULL, NULL, np.float64(1), np.int32(0))
    if hash is not None:
        of_hash = (hash.directions, hash.offsets, hash.multipliers)
        of_hash = (*of_hash, np.float64(hash.width), np.int32(hash.n_projections))
    if n_q:
        args = (
            *(_pointer(cupy, x) for x in (query, key, value)),
            *(np.int32(d), np.int32(d_v), np.float64(scale)),
            *(NULL if n_codes else _pointer(cupy, signatures), *of_hash),
            *(index.stored, index.slots, index.slot_starts, index.mixer, index.order),
            *(np.int64(index.n), np.int32(index.n_tables), np.int64(most)),
            *(_pointer(cupy, x) for x in (before, above, allowed)),
            *(np.int32(ESTIMATORS.index(estimator)), np.int32(chance)),
            *(output, mass, largest, expected, best, count),
        )
        name = f"attend<{TYPES[name_of(query.dtype)]}>"
        launch(cupy, name, n_q, WARP * n_warps, args, 8 * numbers)
    return NearKeys(mass, output, count, best, largest, expected if chance else None)


def _pointer(cupy: Any, x: Any) -> Any:
    if x is None:
        return NULL
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


def _block(n_tables, n_codes, d, d_v, n_q):
    """Return how many warps a query gets, and how many numbers they share."""
    n_warps = next(warps for most, warps in WARPS if n_q <= most)
    while True:
        numbers = shared_numbers(n_tables, n_codes, d, d_v, n_warps)
        if numbers <= MOST_SHARED:
            return n_warps, numbers
        if n_warps == 1:
            raise ValueError(
                f"query and value must be narrow enough for {MOST_SHARED} numbers of shared "
                f"memory, got widths {d} and {d_v}, which take {numbers}"
            )
        n_warps //= 2
