"""The engines of `SketchAttention`, one for each `impl`. An engine indexes, hashes and scores.

All have the same methods. Kernels and their libraries are imported when an engine is made.
"""

import abc
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from attnbook.arrays.array import Array, array_namespace
from attnbook.hashing.cross_polytope import CrossPolytopeHash
from attnbook.hashing.learned_cells import LearnedCells
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.index import SignatureIndex
from attnbook.sketch.reference_query import NearKeys, near_in_blocks
from attnbook.sketch.sorted_index import SortedIndex
from attnbook.sketch.state import SketchState
from attnbook.sketch.visible_keys import Visible


class Reference:
    """Plain functions on arrays of any library."""

    library: str | None = None  # the one that arrays must belong to; None for any
    compiled = False  # whether it hashes by compiled code, which refuses NaN and infinity

    def __init__(self, hash: Any, n_probes: int = 1):
        self.hash, self.n_probes = hash, n_probes

    def new_index(self, seed: int) -> SignatureIndex:
        """Return an empty index."""
        return SortedIndex(self.hash.n_tables)

    def signatures(self, x: Array, of_queries: bool) -> Array:
        """Return the signatures of keys (n, L), or of queries (n, L) or (n, L, n_probes)."""
        if of_queries and self.n_probes > 1:
            return self.hash.probes(x, self.n_probes)
        if of_queries and hasattr(self.hash, "query_signatures"):
            return self.hash.query_signatures(x)
        return self.hash.signatures(x)

    def retrieval_probability(self, query: Array, key: Array) -> Array:
        """Return the probability that each key is found by its query in at least one table."""
        return self.hash.retrieval_probability(query, key)

    def output(self, state: SketchState, query: Array) -> Any:
        """Return the output of unchecked queries from one compiled call, or None without one."""
        return None

    def all_finite(self, x: Array) -> bool:
        """Return whether no number of `x` is NaN or infinite."""
        xp = array_namespace(x)
        return bool(xp.all(xp.isfinite(x)))

    def near(
        self, state: SketchState, query: Array, visible: Visible, weigh: bool
    ) -> Iterable[tuple[slice, NearKeys]]:
        """Yield slices of checked queries (n_q, d) with what the tables give for each."""
        return near_in_blocks(state, query, visible, weigh)


class Kernel(Reference, abc.ABC):
    """An engine whose kernel never pads candidates, so that all queries are answered at once.

    The plain functions do what is not compiled: hashes that are not in `hashes`, probabilities of
    hashes other than `SimHash` and `StableHash`, and dtypes that are not in `dtypes`.
    """

    hashes: tuple[type, ...] = (SimHash, StableHash)

    dtypes: tuple[Any, ...] | None = None  # all
    array: type  # of the library

    def __init__(self, hash: Any, n_probes: int):
        super().__init__(hash, n_probes)
        self.compiled = isinstance(hash, self.hashes)
        self.knows_chances = isinstance(hash, (SimHash, StableHash))

    def signatures(self, x: Array, of_queries: bool) -> Array:
        if not self.compiled:
            return super().signatures(x, of_queries)
        try:
            return self.hashed(x, of_queries)
        except ValueError:
            if self.all_finite(x):
                raise
            name = "query" if of_queries else "key"
            raise ValueError(f"{name} must be finite, got NaN or infinity") from None

    @abc.abstractmethod
    def hashed(self, x: Array, of_queries: bool) -> Array:
        """Return the signatures by compiled code, which refuses NaN and infinity."""

    def output(self, state: SketchState, query: Array) -> Any:
        """Return the output where one compiled call gives it and checks the queries, else None."""
        key = state.key.held
        by_chance = state.settings.estimator == "importance"
        if (
            type(query) is self.array
            and query.ndim == 2
            and query.dtype == key.dtype
            and query.shape[1] == key.shape[1]
            and self.compiled
            and (self.knows_chances or not by_chance)
            and self.knows(key)
        ):
            return self.prepared(state).output(query)
        return None

    def prepared(self, state: SketchState) -> Any:
        """Return what answers queries in one compiled call.

        It is the same object as long as the keys are the same.
        """
        settings, key, tables = state.settings, state.key.held, state.tables().tables  # type: ignore[attr-defined]
        # an update changes one of them; a removal may change what the tables hold in place
        kept = state.prepared
        if kept is None or kept[0] is not tables or kept[1] is not key:
            made = self.prepare(
                key,
                state.value.held,
                tables,
                None if kept is None else kept[2],
                scale=settings.scale_of(key),
                estimator=settings.estimator,
            )
            state.prepared = kept = tables, key, made
        return kept[2]

    @abc.abstractmethod
    def prepare(self, key: Array, value: Array, tables: Any, before: Any, **options: Any) -> Any:
        """Return what answers queries in one compiled call; `before` is what did so last."""

    def near(
        self, state: SketchState, query: Array, visible: Visible, weigh: bool
    ) -> Iterable[tuple[slice, NearKeys]]:
        """Return all queries with what `near` returns, without rows and weights."""
        weigh = weigh or state.settings.estimator == "importance"
        needs = weigh and state.settings.knows_chances
        if (needs and not self.knows_chances) or not self.knows(state.key.array()):
            return super().near(state, query, visible, weigh)
        signatures = None
        if not self.compiled:
            signatures = state.tables().columns(self.signatures(query, of_queries=True))
        found = self.prepared(state).ask(query, signatures, before=visible.before, weigh=weigh)
        if found is None:
            self.signatures(query, of_queries=True)  # raises and says why
        return [(slice(0, query.shape[0]), found)]

    def knows(self, x: Array) -> bool:
        """Return whether the kernel takes the dtype of `x`."""
        return self.dtypes is None or x.dtype in self.dtypes


class Numba(Kernel):
    """Compiled loops on NumPy arrays."""

    library = "numpy"
    hashes = (SimHash, StableHash, CrossPolytopeHash, LearnedCells)
    dtypes = (np.float32, np.float64)
    array = np.ndarray

    def __init__(self, hash: Any, n_probes: int):
        from attnbook.hashing import numba_signatures
        from attnbook.sketch import numba_query

        super().__init__(hash, n_probes)
        if self.compiled and n_probes > 1:
            hash.probes(np.zeros((1, hash.d)), n_probes)  # raises where there are fewer buckets
        self.hashing, self._prepared = numba_signatures, numba_query.Prepared
        self._chances = numba_query.RetrievalTable.of(hash) if self.knows_chances else None

    def new_index(self, seed: int) -> SignatureIndex:
        return BucketIndex(self.hash.n_tables, seed=seed)

    def hashed(self, x: Array, of_queries: bool) -> Array:
        if not (self.knows(x) or x.dtype == np.float16):  # another byte order
            return Reference.signatures(self, x, of_queries)
        if of_queries and self.n_probes > 1:
            return self.hashing.probes(self.hash, np.asarray(x), self.n_probes)
        return self.hashing.signatures(self.hash, np.asarray(x))

    def prepare(self, key: Any, value: Any, tables: Any, before: Any, **options: Any) -> Any:
        hash = self.hash if self.compiled else None
        options |= {"chances": self._chances, "n_probes": self.n_probes, "before": before}
        return self._prepared(hash, key, value, tables, **options)

    def all_finite(self, x: Array) -> bool:
        if not self.knows(x):
            return super().all_finite(x)
        return self.hashing.all_finite(np.asarray(x))


class Cupy(Kernel):
    """CUDA kernels on CuPy arrays. A query looks into one bucket of each table: n_probes is 1."""

    library = "cupy"

    def __init__(self, hash: Any, n_probes: int):
        from attnbook.sketch import cuda_query
        from attnbook.sketch.cuda_hash import CudaHash, import_cupy
        from attnbook.sketch.cuda_index import CudaIndex

        super().__init__(hash, n_probes)
        self.array, self._prepared = import_cupy().ndarray, cuda_query.Prepared
        self._hash_for, self._index = CudaHash, CudaIndex
        self._hashes: dict[str, Any] = {}  # on the GPU, by the dtype of the vectors

    def new_index(self, seed: int) -> SignatureIndex:
        return self._index(self.hash.n_tables, seed=seed)

    def hashed(self, x: Array, of_queries: bool) -> Array:
        return self._hash_of(x).signatures(x)

    def retrieval_probability(self, query: Array, key: Array) -> Array:
        return self._plain.retrieval_probability(query, key)

    @functools.cached_property
    def _plain(self) -> Any:
        """The hash for plain functions. One that the kernels know may come from any library."""
        return self.hash.to("cupy") if self.compiled else self.hash

    def prepare(self, key: Array, value: Array, tables: Any, before: Any, **options: Any) -> Any:
        hash = self._hash_of(key) if self.compiled else None
        return self._prepared(hash, key, value, tables, **options)

    def _hash_of(self, x: Array) -> Any:
        """Return the hash on the GPU, for the dtype of `x`."""
        dtype = str(x.dtype)
        if dtype not in self._hashes:
            self._hashes[dtype] = self._hash_for(self.hash, dtype)
        return self._hashes[dtype]


ENGINES: dict[str, type[Reference]] = {"reference": Reference, "numba": Numba, "cupy": Cupy}
"""Every engine by the name of its `impl`."""
