"""The probability that the tables return a key for a query, in compiled loops."""

import math
from typing import NamedTuple

import numpy as np

from attnbook.compilers.jit import compile_inner, compile_sums
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash


class RetrievalTable(NamedTuple):
    """The probability P that a key is found, in a form that a compiled loop reads quickly.

    Let u = r/(r + c) for a `StableHash` and u = 1 − θ/π for a `SimHash`. The probability p that
    one code agrees is u times a smooth function between 1/√(2π) and 1. `ratio` holds that function
    at even steps of u from 0 to 1. Linear interpolation gives p with a relative error below 1e-7.
    """

    ratio: np.ndarray
    width: float  # r, or 0 for angles
    n_projections: int
    n_tables: int

    @classmethod
    def of(cls, hash: SimHash | StableHash) -> "RetrievalTable":
        """Tabulate the probabilities of `hash`."""
        if isinstance(hash, SimHash):
            return cls(np.ones(2), 0.0, hash.n_projections, hash.n_tables)
        u = np.linspace(0, 1, 2**12 + 1)
        distance = hash.width * (1 - u[1:]) / u[1:]
        ratio = StableHash.collision_probability(distance, hash.width) / u[1:]
        far = 1 / math.sqrt(2 * math.pi)  # p → r / (√(2π) c)
        return cls(np.append(far, ratio), float(hash.width), hash.n_projections, hash.n_tables)


@compile_inner
def retrieval_chance(query, i, key, row, table, least):
    """Return the probability that query i finds `row` in some table, or `least` if that is larger.

    It is `retrieval_probability` of the hash.
    """
    if table.width > 0:
        u = table.width / (table.width + math.sqrt(_squared_distance(query, i, key, row, 1.0, 1.0)))
    else:
        a, b = _inverse_length(query, i), _inverse_length(key, row)
        apart = _squared_distance(query, i, key, row, a, b)
        together = _squared_distance(query, i, key, row, a, -b)
        u = 1 - 2 / math.pi * math.atan2(math.sqrt(apart), math.sqrt(together))
    n_cells = len(table.ratio) - 1
    cell = min(int(u * n_cells), n_cells - 1)
    beyond = u * n_cells - cell
    p = u * ((1 - beyond) * table.ratio[cell] + beyond * table.ratio[cell + 1])
    in_a_table = min(1.0, p**table.n_projections)
    return max(least, -math.expm1(table.n_tables * math.log1p(-in_a_table)))


@compile_inner
def _inverse_length(x, i):
    """Return 1 / ‖x[i]‖, 0 for a row of zeros."""
    square = _squared_distance(x, i, x, i, 1.0, 0.0)
    return 1 / math.sqrt(square) if square > 0 else 0.0


@compile_sums
def _squared_distance(x, i, y, j, a, b):
    """Return ‖a x[i] - b y[j]‖², in float64."""
    total = 0.0
    for k in range(x.shape[1]):
        difference = a * x[i, k] - b * y[j, k]
        total += difference * difference
    return total
