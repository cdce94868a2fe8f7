"""What each `impl` of `SketchAttention` brings: its index, its hashing and its look at the tables.

One small class each, with the same methods. Kernels and their libraries load when they are made.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnbook.arrays.arguments import Array, array_namespace
from attnbook.sketch.answers import Near, Visible, blocks, near
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.hashing.simhash import SimHash
from attnbook.sketch.sorted_index import SortedIndex
from attnbook.hashing.stable_hash import StableHash


class Reference:
    """Plain functions on arrays of any library."""

    library: str | None = None  # that arrays must belong to
    hash_refuses = False  # whether its hashing refuses NaN and infinity by itself

    def __init__(self, hash: Any):
        self.hash = hash

    def new_index(self, seed: int) -> Any:
        """Return an empty index."""
        return SortedIndex(self.hash.n_tables)

    def signatures(self, x: Array, of_queries: bool) -> Array:
        """Return the signatures of keys, or of queries where the hash treats them apart."""
        if of_queries and hasattr(self.hash, "query_signatures"):
            return self.hash.query_signatures(x)
        return self.hash.signatures(x)

    def all_finite(self, x: Array) -> bool:
        """Return whether no number of `x` is NaN or infinite."""
        xp = array_namespace(x)
        return bool(xp.all(xp.isfinite(x)))

    def blocks(self, sketch: Any, signatures: Array) -> Iterable[slice]:
        """Return runs of queries to be answered together."""
        return blocks(sketch, signatures)

    def near(
        self,
        sketch: Any,
        query: Array,
        signatures: Array,
        visible: Visible,
        above: Any,
        *,
        weigh: bool,
    ) -> Near:
        """Return what the tables give for queries (n_q, d), of scores larger than `above`."""
        return near(sketch, query, signatures, visible, above, weigh=weigh)


class Kernel(Reference):
    """What the two below share: candidates are never padded, so all queries go at once.

    What is not compiled takes the plain functions: the chances of other hashes than the two of
    this package, which the estimator "importance" needs, and dtypes that are not in `dtypes`.
    """

    dtypes: tuple[Any, ...] | None = None  # all
    _compiled = False

    def _is_plain(self, sketch):
        return (_weighs(sketch) and not self._compiled) or not self._has(sketch._key.array())

    def _has(self, x):
        return self.dtypes is None or x.dtype in self.dtypes

    def blocks(self, sketch: Any, signatures: Array) -> Iterable[slice]:
        """Return one run of all queries."""
        if self._is_plain(sketch):
            return super().blocks(sketch, signatures)
        return [slice(0, signatures.shape[0])]


class Numba(Kernel):
    """Compiled loops on NumPy arrays."""

    library = "numpy"
    dtypes = (np.float32, np.float64)

    def __init__(self, hash: Any):
        from attnbook.hashing import _numba_hash
        from attnbook.sketch import _numba_query

        super().__init__(hash)
        self._hashing, self._query = _numba_hash, _numba_query
        self._compiled = self.hash_refuses = isinstance(hash, (SimHash, StableHash))
        self._table = _numba_query.RetrievalTable.of(hash) if self._compiled else None

    def new_index(self, seed: int) -> Any:
        """Return an empty index."""
        return BucketIndex(self.hash.n_tables, impl="numba", seed=seed)

    def signatures(self, x: Array, of_queries: bool) -> Array:
        """Return the signatures of keys or queries."""
        if not self._compiled:
            return super().signatures(x, of_queries)
        try:
            if not (self._has(x) or x.dtype == np.float16):  # another byte order
                return super().signatures(x, of_queries)
            return self._hashing.signatures(self.hash, x)
        except ValueError:
            if self.all_finite(x):
                raise
            name = "query" if of_queries else "key"
            raise ValueError(f"{name} must be finite, got NaN or infinity") from None

    def all_finite(self, x: Array) -> bool:
        """Return whether no number of `x` is NaN or infinite."""
        if not self._has(x):
            return super().all_finite(x)
        return self._hashing.all_finite(x)

    def near(
        self,
        sketch: Any,
        query: Array,
        signatures: Array,
        visible: Visible,
        above: Any,
        *,
        weigh: bool,
    ) -> Near:
        """Return what `near` returns, but rows and weights."""
        if self._is_plain(sketch):
            return super().near(sketch, query, signatures, visible, above, weigh=weigh)
        found = self._query.answer(
            query,
            sketch._key.array(),
            sketch._value.array(),
            signatures,
            sketch._index.flat(),
            probability=self._table if weigh or _weighs(sketch) else None,
            **_options(sketch, query, visible, above),
        )
        return Near(**found._asdict())


class Cupy(Kernel):
    """CUDA kernels on CuPy arrays."""

    library = "cupy"

    def __init__(self, hash: Any):
        from attnbook.sketch import cuda_hash as _cuda
        from attnbook.sketch import cuda_index as _cuda_index
        from attnbook.sketch import cuda_query as _cuda_query

        super().__init__(hash)
        self._cuda, self._index, self._query = _cuda, _cuda_index, _cuda_query
        _cuda.import_cupy()
        self._compiled = isinstance(hash, (SimHash, StableHash))
        self._hashes: dict[str, Any] = {}  # on the GPU, by the dtype of the vectors

    def new_index(self, seed: int) -> Any:
        """Return an empty index."""
        return self._index.CudaIndex(self.hash.n_tables, seed=seed)

    def signatures(self, x: Array, of_queries: bool) -> Array:
        """Return the signatures of keys or queries."""
        if self._compiled:
            return self._on_gpu(x).signatures(x)
        return super().signatures(x, of_queries)

    def near(
        self,
        sketch: Any,
        query: Array,
        signatures: Array,
        visible: Visible,
        above: Any,
        *,
        weigh: bool,
    ) -> Near:
        """Return what `near` returns, but rows and weights."""
        known = self._compiled
        if self._is_plain(sketch):
            return super().near(sketch, query, signatures, visible, above, weigh=weigh)
        found = self._query.answer(
            query,
            sketch._key.array(),
            sketch._value.array(),
            signatures,
            sketch._index,
            probability=self._on_gpu(query) if known and (weigh or _weighs(sketch)) else None,
            **_options(sketch, query, visible, above),
        )
        return Near(**found._asdict())

    def _on_gpu(self, x):
        dtype = str(x.dtype)
        if dtype not in self._hashes:
            self._hashes[dtype] = self._cuda.CudaHash(self.hash, dtype)
        return self._hashes[dtype]


def _weighs(sketch):
    return sketch.estimator == "importance"


def _options(sketch, query, visible, above):
    return {
        "scale": sketch.scale_of(query),
        "estimator": sketch.estimator,
        "max_bucket": sketch.max_bucket,
        "before": visible.before,
        "above": above,
        "allowed": sketch._far.allowed(sketch) if sketch.n_heavy else None,
    }


IMPLS = {"reference": Reference, "numba": Numba, "cupy": Cupy}
"""Every way to run, by its name."""
