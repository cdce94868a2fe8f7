"""The base of all hashes of vectors, and of those whose codes come from random projections."""

import abc
from typing import Annotated, Any, ClassVar

import numpy as np

from attnbook.arrays.arguments import (
    check_float,
    check_floats,
    check_int,
    check_same_home,
    generator,
)
from attnbook.arrays.array import Array, accumulation_dtype, array_namespace, broadcast_shapes
from attnbook.arrays.lengths import placed
from attnbook.arrays.weights import ArrayTree


class VectorHash(ArrayTree, abc.ABC):
    """Base of the hashes of vectors: L tables of κ codes."""

    multipliers: ClassVar[Any]  # κ numbers, int64, which join the codes of a table

    @abc.abstractmethod
    def codes(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables n_projections"]:
        """Return the κ codes of each table."""

    def signatures(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables"]:
        r"""Return the κ codes of a table as one int64, :math:`\sum_j w_j \operatorname{code}_j`.

        The w_j are the `multipliers`. `x` is an array (..., d) of the library and device of the
        hash; half precision is computed in float32. Raises TypeError if it is not an array of
        floats of that library, and ValueError if it has another width or device, holds NaN or
        infinity, or lies so far out that a code does not fit an int64.
        """
        codes = self.codes(x)
        return joined(codes, self._multipliers_like(codes))[..., 0]

    @abc.abstractmethod
    def probes(
        self, x: Annotated[Array, "... d"], n_probes: int
    ) -> Annotated[Array, "... n_tables n_probes"]:
        """Return the signatures of the buckets to look into, the query's own first."""

    def _multipliers_like(self, x):
        """Return the multipliers in the library and on the device of `x`."""
        return placed(self.multipliers, x)


class RandomProjections(VectorHash):
    """Base of hashes whose codes each come from one projection a·x."""

    directions: Annotated[Array, "n_tables n_projections d"]

    @property
    def n_tables(self) -> int:
        """L."""
        return int(self.directions.shape[0])

    @property
    def n_projections(self) -> int:
        """κ."""
        return int(self.directions.shape[1])

    @property
    def d(self) -> int:
        """Width of the vectors."""
        return int(self.directions.shape[2])


def joined(codes: Array, multipliers: Array) -> Array:
    """Return the codes (..., κ) of each table as one number (..., 1)."""
    xp = array_namespace(codes)
    # int64 wraps: modulo 2**64
    return xp.sum(codes * multipliers, axis=-1, keepdims=True, dtype=xp.int64)


def draw_directions(
    rng: Any, d: int, n_tables: int, n_projections: int
) -> tuple[np.ndarray, np.random.Generator]:
    """Return standard normal directions and the Generator that they come from, or raise."""
    rng = generator(rng)
    shape = {"n_tables": n_tables, "n_projections": n_projections, "d": d}
    for name, size in shape.items():
        check_int(name, size, at_least=1)
    return rng.standard_normal(tuple(shape.values())), rng


def check_directions(directions: Array) -> None:
    """Raise unless `directions` is a float array (n_tables, n_projections, d), none of them 0."""
    check_float("directions", directions)
    if directions.ndim != 3 or 0 in directions.shape:
        raise ValueError(
            "directions must have shape (n_tables, n_projections, d) with each at least 1, "
            f"got {tuple(directions.shape)}"
        )


def projected(x: Array, directions: Array) -> Array:
    """Return a·x for every point and direction: (..., d) to (..., n_tables, n_projections).

    Half precision is computed in float32. Raises TypeError for another library or no floats,
    ValueError for another device or width, and where a projection is not finite.
    """
    x, directions = widened("x", x, directions)
    xp = array_namespace(x)
    bad = ValueError("x must be finite and have finite projections, got NaN or infinity")
    if not bool(xp.all(xp.isfinite(x))):
        raise bad
    n_tables, n_projections, d = directions.shape
    flat = xp.reshape(directions, (n_tables * n_projections, d))
    along = xp.matmul(xp.reshape(x, (-1, d)), xp.matrix_transpose(flat))
    if not bool(xp.all(xp.isfinite(along))):
        raise bad
    return xp.reshape(along, (*x.shape[:-1], n_tables, n_projections))


def pair(query: Array, key: Array, directions: Array, d: int | None = None) -> tuple[Array, Array]:
    """Return queries and keys in the dtype to compute in, or raise as `projected`."""
    check_floats(query=query, key=key)
    q, k = widened("query", query, directions, d)[0], widened("key", key, directions, d)[0]
    for name, x in (("query", q), ("key", k)):
        xp = array_namespace(x)
        if not bool(xp.all(xp.isfinite(x))):
            raise ValueError(f"{name} must be finite, got NaN or infinity")
    if broadcast_shapes(tuple(q.shape), tuple(k.shape)) is None:
        raise ValueError(
            f"key must have leading axes that broadcast with those of query, {tuple(q.shape)}, "
            f"got {tuple(k.shape)}"
        )
    return q, k


def widened(name: str, x: Array, directions: Array, d: int | None = None) -> tuple[Array, Array]:
    """Return `x` and what it is projected on in the dtype to compute in, or raise.

    d is the width of the vectors, by default that of `directions`.
    """
    check_float(name, x)
    check_same_home("directions", directions, name, x)
    d = directions.shape[-1] if d is None else d
    if x.ndim == 0 or x.shape[-1] != d:
        raise ValueError(
            f"{name} must have shape (..., {d}) to match the directions, got {tuple(x.shape)}"
        )
    xp = array_namespace(x)
    wide = accumulation_dtype(xp, x.dtype)
    return xp.astype(x, wide, copy=False), xp.astype(directions, wide, copy=False)


def root(x: Array) -> Array:
    """Return the square root, 0 of what is not above 0, where its derivative is 0 and not NaN."""
    xp = array_namespace(x)
    some = x > 0
    roots = xp.sqrt(xp.where(some, x, xp.ones_like(x)))
    return xp.where(some, roots, xp.zeros_like(roots))


def unit(x: Array) -> Array:
    """Return vectors at length 1, zeros as they are; no square overflows or vanishes."""
    xp = array_namespace(x)
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    zero = largest == 0
    scaled = x / xp.where(zero, xp.ones_like(largest), largest)
    lengths = root(xp.sum(scaled * scaled, axis=-1, keepdims=True))
    return scaled / xp.where(zero, xp.ones_like(lengths), lengths)


def angle_of(x: Array, y: Array) -> Array:
    """Return the angle between vectors: of one of zeros to any other π/2, to its like 0."""
    xp = array_namespace(x)
    x, y = unit(x), unit(y)
    apart, together = (root(xp.sum(z * z, axis=-1)) for z in (x - y, x + y))
    return 2 * xp.atan2(apart, together)  # acos would lose half of the digits near 0
