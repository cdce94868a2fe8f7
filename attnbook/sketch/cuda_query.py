"""Queries on a GPU: one kernel hashes, looks up and attends."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array
from attnbook.compilers.cuda import NULL, HostFlag, import_cupy, name_of
from attnbook.sketch.cuda_hash import TYPES, CudaHash, launch
from attnbook.sketch.cuda_index import CudaTables
from attnbook.sketch.reference_query import NearKeys

ESTIMATORS = ("union", "duplicates", "importance")
"""The estimators that the kernel knows, in the order of its enum."""

IMPORTANCE = 2

WARP = 32

WARPS = ((256, 16), (2048, 4), (2**63, 1))
"""Up to how many queries how many warps work on each. Many queries fill the GPU by themselves."""

MOST_SHARED = 48 * 1024 // 8
"""How many numbers of 8 bytes fit into the shared memory that every GPU gives a block."""


def shared_numbers(n_tables: int, d: int, d_v: int, n_warps: int) -> int:
    """Return how many numbers of 8 bytes a block of the kernel keeps in shared memory."""
    return 4 * n_tables + d + (2 * WARP + d_v + 7) * n_warps


class Prepared:
    """A hash, keys, values and tables in the form that one launch takes.

    Keys and values have one float dtype, which is that of the queries to come, and the rows of the
    index. The hash is None if queries come with signatures. It gives the probability P that a key
    is found, and a P below 1e-30 counts as 1e-30. Arguments are not checked.
    """

    def __init__(
        self,
        hash: CudaHash | None,
        key: Annotated[Array, "n d"],
        value: Annotated[Array, "n d_v"],
        tables: CudaTables,
        *,
        scale: float,
        estimator: str = "union",
    ):
        self._cupy, self._hash, self._tables = import_cupy(), hash, tables
        self._held = tuple(_pointer(self._cupy, x) for x in (key, value))
        self._scale, self._estimator = np.float64(scale), ESTIMATORS.index(estimator)
        self._wide = "float64" if name_of(key.dtype) == "float64" else "float32"

    def ask(
        self,
        query: Annotated[Array, "n_q d"],
        signatures: Annotated[Array, "n_q n_tables"] | None = None,
        *,
        before: Annotated[Array, "n_q"] | None = None,
        weigh: bool = False,
    ) -> NearKeys | None:
        """Return what `numba_query.Prepared.ask` returns, after one launch.

        Without `signatures` the kernel hashes the queries, and the call waits to know whether all
        of them have one. Raises ValueError if the vectors are too wide for the kernel.
        """
        cupy, (n_q, d) = self._cupy, query.shape
        (key, value), tables = self._held, self._tables
        d_v, n_tables = value.shape[1], tables.stored.shape[1]
        n_warps, numbers = _block(n_tables, d, d_v, n_q)
        output = cupy.empty((n_q, d_v), dtype=query.dtype)
        mass, largest, expected = (cupy.empty(n_q, dtype=self._wide) for _ in range(3))
        best, count = (cupy.empty(n_q, dtype=np.int64) for _ in range(2))
        weigh = self._hash is not None and (weigh or self._estimator == IMPORTANCE)
        found = NearKeys(mass, output, count, best, largest, expected if weigh else None)
        if n_q == 0:
            return found
        bad = HostFlag(cupy) if signatures is None else None
        of_hash: tuple = (NULL, NULL, NULL, np.float64(1), np.int32(0))
        if (hash := self._hash) is not None:
            of_hash = (hash.directions, hash.offsets, hash.multipliers)
            of_hash = (*of_hash, np.float64(hash.width), np.int32(hash.n_projections))
        chance = 0 if hash is None or not weigh else 1 if hash.is_of_angles else 2
        args = (
            *(_pointer(cupy, query), key, value, np.int32(d), np.int32(d_v), self._scale),
            *(_pointer(cupy, signatures), *of_hash, tables.stored, *tables.arguments),
            *(np.int32(n_tables), _pointer(cupy, before)),
            *(np.int32(self._estimator), np.int32(chance), NULL if bad is None else bad.pointer),
            *(output, mass, largest, expected, best, count),
        )
        name = f"attend<{TYPES[name_of(query.dtype)]}>"
        launch(cupy, name, n_q, WARP * n_warps, args, 8 * numbers)
        return None if bad is not None and bad.is_set() else found

    def output(self, query: Annotated[Array, "n_q d"]) -> Annotated[Array, "n_q d_v"] | None:
        """Return only the output that `ask` has for queries without signatures."""
        found = self.ask(query)
        return None if found is None else found.output


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
