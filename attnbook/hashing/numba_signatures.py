"""Signatures of many vectors in one pass, with Numba: product, floor, sign or nearest, and join.

The reference writes a number for each vector and direction, 320 MB for a million vectors and 80
directions, and reads it again. Here the products of 16 vectors stay in the cache until they are
joined.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays.array import accumulation_dtype
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_inner, compile_loops, read_only
from attnbook.compilers.register_tiles import Tile, multiply, prefetch
from attnbook.hashing.cross_polytope import CrossPolytopeHash
from attnbook.hashing.learned_cells import LearnedCells
from attnbook.hashing.numba_corners import corner_rows
from attnbook.hashing.numba_probes import probe_cells, probe_intervals
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import FARTHEST, StableHash

LANES = 16  # rows and directions of a tile: its sums take 16 of the 32 registers of AVX-512
TILE, ROW = Tile(LANES, LANES, 1), Tile(LANES, 1, 1)
FEW = 4  # rows that are multiplied one by one: a tile takes as long as about so many

WORTH = 2**9
"""Vectors that are worth a thread."""

HASHES = (SimHash, StableHash, CrossPolytopeHash, LearnedCells)
Hash = SimHash | StableHash | CrossPolytopeHash | LearnedCells


def signatures(hash: Hash, x: np.ndarray, *, n_threads: int | None = None) -> np.ndarray:
    """Return ``hash.signatures(x)`` of a NumPy array (n, d), column by column in memory.

    A code may differ from the reference within rounding of an interval's end or a plane, as it may
    there between batch sizes. Here it depends on the vector alone: equal vectors have equal
    signatures whatever batch they come in. The codes of a `CrossPolytopeHash` are the same to the
    last bit. Raises TypeError and ValueError as the reference.
    """
    _check(hash, x)
    if isinstance(hash, (CrossPolytopeHash, LearnedCells)):
        return probes(hash, x, 1, n_threads=n_threads)[:, :, 0]
    joined = np.empty((hash.n_tables, len(x)), dtype=np.int64)
    _write(_join_rows, hash, x, joined, n_threads)
    return joined.T


def probes(hash: Hash, x: np.ndarray, n_probes: int, *, n_threads: int | None = None) -> np.ndarray:
    """Return ``hash.probes(x, n_probes)`` of a NumPy array (n, d).

    Codes may differ from the reference as in `signatures`, and probes of nearly equal cost may
    stand in another order. Raises TypeError and ValueError as the reference.
    """
    _check(hash, x)
    joined = np.empty((len(x), hash.n_tables * n_probes), dtype=np.int64)
    _write(probe_rows, hash, x, joined, n_threads)
    return joined.reshape(len(x), hash.n_tables, n_probes)


class HashArrays(NamedTuple):
    """What the loops read of a hash."""

    panels: np.ndarray  # directions or centres, 16 side by side; signs (L κ, 3, D) of corners
    offsets: np.ndarray  # (n_tables, n_projections), or (n_tables, n_cells)
    multipliers: np.ndarray  # (n_projections,)
    of_signs: bool  # of a SimHash
    of_corners: bool
    of_cells: bool


def _check(hash, x):
    if not isinstance(hash, HASHES):
        names = ", ".join(kind.__name__ for kind in HASHES)
        raise TypeError(f"hash must be one of {names}, got {type(hash).__name__}")
    if x.ndim != 2 or x.shape[1] != hash.d:
        raise ValueError(f"x must have shape (n, {hash.d}) to match the hash, got {x.shape}")


def _write(loop, hash, x, joined, n_threads):
    """Write the signatures of all rows by a loop, or raise where one has none."""
    x = read_only(x.astype(accumulation_dtype(np, x.dtype), copy=False))
    arrays, n_bad = arrays_of(hash, x.dtype), []

    def write(start, stop, thread):
        n_bad.append(loop(TILE, x, arrays, joined, start, stop))

    in_parts(write, len(x), n_threads_for(len(x), n_threads, WORTH))
    if any(n_bad):
        raise ValueError(
            "x must be finite, and within 2**62 widths of 0 along every direction of a StableHash, "
            "got a point that is not"
        )


@functools.lru_cache(maxsize=16)  # a single query takes less time than to make them
def arrays_of(hash: Any, dtype: np.dtype) -> HashArrays:
    """Return what the loops read of a hash, for vectors of this dtype."""
    of_corners, of_cells = isinstance(hash, CrossPolytopeHash), isinstance(hash, LearnedCells)
    if of_corners:
        n_tables, n_projections, _, D = hash.signs.shape
        panels = hash.signs.reshape(n_tables * n_projections, -1, D).astype(dtype)
        offsets = np.zeros((n_tables, n_projections), dtype=dtype)
        return HashArrays(panels, offsets, hash.multipliers, False, True, False)
    given = hash.centres if of_cells else hash.directions
    n_tables, n, d = given.shape
    rows = np.zeros((-(-n_tables * n // LANES) * LANES, d), dtype=dtype)
    rows[: n_tables * n] = given.reshape(-1, d)
    offsets = np.zeros((n_tables, n), dtype=dtype)
    if of_cells:
        offsets = (-0.5 * np.sum(given.astype(np.float64) ** 2, axis=-1)).astype(dtype)
    elif isinstance(hash, StableHash):
        rows /= dtype.type(hash.width)  # ⌊a·x/r + b/r⌋: divided once, not for every vector
        offsets = (hash.offsets / hash.width).astype(dtype)
    panels = np.ascontiguousarray(rows.reshape(-1, LANES, d).transpose(0, 2, 1))
    return HashArrays(panels, offsets, hash.multipliers, isinstance(hash, SimHash), False, of_cells)


def all_finite(x: np.ndarray, *, n_threads: int | None = None) -> bool:
    """Return whether no number of `x` is NaN or infinite: ``bool(np.all(np.isfinite(x)))``."""
    x = read_only(x).reshape(-1)
    # NaN and infinities are the numbers whose exponent has all bits set
    bits = x.view(np.int32 if x.itemsize == 4 else np.int64)
    ones = np.array(np.inf, dtype=x.dtype).view(bits.dtype)[()]
    found = []

    def look(start, stop, thread):
        found.append(_any_has_all(bits[start:stop], ones))

    in_parts(look, len(x), n_threads_for(len(x), n_threads))
    return not any(found)


@compile_loops
def _any_has_all(x, bits):
    """Return whether all of these bits are set in one of the numbers."""
    n_found = 0
    for i in range(len(x)):
        n_found += (x[i] & bits) == bits
    return n_found > 0


@compile_loops
def _join_rows(tile, x, arrays, joined, start, stop):
    """Write the signatures of rows start … stop, table by table; return how many do not fit."""
    d, n_panels = x.shape[1], len(arrays.panels)
    projected = np.empty((LANES, n_panels, LANES), x.dtype)
    numbers = projected.reshape(LANES, n_panels * LANES)
    rest = np.zeros((LANES, d), x.dtype)
    n_bad = 0
    for first in range(start, stop, LANES):
        n = min(LANES, stop - first)
        _project_few(tile, x, first, n, rest, arrays.panels, projected)
        n_bad += _join_tile(numbers, n, arrays, joined, first)
    return n_bad


@compile_loops
def probe_rows(tile, x, arrays, joined, start, stop):
    """Write the probes of rows start … stop, row by row; return how many numbers do not fit."""
    if arrays.of_corners:
        return corner_rows(x, arrays, joined, start, stop)
    d, n_panels = x.shape[1], len(arrays.panels)
    projected = np.empty((LANES, n_panels, LANES), x.dtype)
    numbers = projected.reshape(LANES, n_panels * LANES)
    rest = np.zeros((LANES, d), x.dtype)
    n_tables = len(arrays.offsets)
    n_probes = joined.shape[1] // n_tables
    costs, sums = np.empty((2, n_probes), x.dtype), np.empty((2, n_probes), np.int64)
    n_bad = 0
    for first in range(start, stop, LANES):
        n = min(LANES, stop - first)
        _project_few(tile, x, first, n, rest, arrays.panels, projected)
        for r in range(n):
            for t in range(n_tables):
                own = joined[first + r, t * n_probes : (t + 1) * n_probes]
                if arrays.of_cells:
                    n_bad += probe_cells(numbers[r], t, arrays, own, costs[0])
                else:
                    n_bad += probe_intervals(numbers[r], t, arrays, own, costs, sums)
    return n_bad


@compile_inner
def _project_few(tile, x, first, n, rest, panels, projected):
    """Multiply up to 16 rows of `x` with all directions; `rest` has room for a tile of zeros."""
    if n == LANES:
        _project(tile, x, first, panels, projected)
        return
    if n <= FEW:
        n_panels, d, _ = panels.shape
        for r in range(n):
            for p in range(n_panels):
                multiply(
                    *(ROW, x, (first + r) * d, d, 1, panels, p * d * LANES, LANES),
                    *(projected, (r * n_panels + p) * LANES, n_panels * LANES, 1, d),
                )
        return
    for r in range(n):  # the last rows, filled up to a tile
        for k in range(x.shape[1]):
            rest[r, k] = x[first + r, k]
    _project(tile, rest, 0, panels, projected)


@compile_inner
def _project(tile, x, first, panels, projected):
    """Multiply 16 rows of `x` with all directions: ``projected[r] = x[first + r] @ panels``."""
    n_panels, d, _ = panels.shape
    line = 64 // x.itemsize
    share = -(-LANES * d // (n_panels * line)) * line
    for p in range(n_panels):
        # ask for the tile after the next, a few cache lines with each panel
        for i in range(p * share, (p + 1) * share, line):
            prefetch(x, (first + 2 * LANES) * d + i)
        # each sum is built in the order of d with fused multiply-adds: equal rows have equal sums
        at = p * d * LANES
        multiply(
            *(tile, x, first * d, d, 1, panels, at, LANES),
            *(projected, p * LANES, n_panels * LANES, LANES, d),
        )


@compile_inner
def _join_tile(numbers, n_rows, arrays, joined, first):
    """Write the signatures of the rows of one tile; return how many numbers do not fit."""
    offsets, multipliers, signs = arrays.offsets, arrays.multipliers, arrays.of_signs
    n_tables, n_projections = offsets.shape
    farthest = numbers.dtype.type(FARTHEST)
    infinity = numbers.dtype.type(np.inf)
    n_bad = 0
    for t in range(n_tables):
        for r in range(n_rows):
            signature, bad = 0, 0
            if signs:
                for j in range(n_projections):
                    number = numbers[r, t * n_projections + j]
                    signature += np.int64(number >= 0) * multipliers[j]
                    bad += not (abs(number) < infinity)  # also for NaN
            else:
                for j in range(n_projections):
                    code = np.floor(numbers[r, t * n_projections + j] + offsets[t, j])
                    signature += np.int64(code) * multipliers[j]
                    bad += not (abs(code) <= farthest)
            joined[t, first + r] = signature
            n_bad += bad
    return n_bad
