r"""The planner: how many tables and projections, and how wide, for a promise and the least work.

.. math:: \bigl(1 - p(D_\text{avg})^\kappa\bigr)^L \le \delta
"""

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_floats, check_int, check_number
from attnbook.arrays.array import Array
from attnbook.arrays.move import move
from attnbook.hashing.collision import at_least_once
from attnbook.hashing.stable_hash import StableHash

PRODUCT, PROBE, CANDIDATE = 0.005, 20.0, 15.0
"""Nanoseconds of one multiply-add of a hash, one look-up and one candidate of 64 floats.

Measured on one machine; only their ratios matter for the choice.
"""

MOST = 32
"""Largest number of tables, and of projections, that the planner tries."""

FINEST = 1e-6
"""Distance in widths below which the planner takes vectors for one."""

ROW_BYTES, SLOT_BYTES = 4, 24
"""Of one row in a table's order, and of one slot: signature, range and displacement."""


@dataclass(frozen=True)
class Plan:
    """A choice of tables, and what it predicts.

    Attributes
    ----------
    n : int
        Expected number of vectors.
    delta : float
        δ, the chance that a vector at distance `d_avg` may be missed by all tables.
    d_avg : float
        Distance between vectors that count as similar.
    n_tables, n_projections : int
        L and κ.
    width : float
        r, the interval of the p-stable hash.
    load_factor : float
        Share of a table's slots that may be taken before it grows.

    Examples
    --------
    >>> plan(1_000_000).width
    1.0
    >>> round(plan(1_000_000, n_projections=16).width, 2)
    12.77
    """

    n: int
    delta: float
    d_avg: float
    n_tables: int
    n_projections: int
    width: float
    load_factor: float = 0.75

    @property
    def n_slots(self) -> int:
        """m = 4n, the size of a table in the sources.

        With a vector in each slot the load would be 1/4 at most, and the load factor never
        reached. An index needs a slot for each bucket in use only, and sizes its tables by that.
        """
        return 4 * self.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables, once sorted, when every vector has a bucket of its own.

        Fewer when vectors share buckets. An index has 16 kB of its own beside, and up to a tenth
        more while it grows; up to about a thousand vectors it takes 2 to 3 times as much.
        """
        slots = math.ceil(self.n / self.load_factor)
        return self.n_tables * (ROW_BYTES * self.n + SLOT_BYTES * slots)

    def hash(self, rng: Any, d: int) -> StableHash:
        """Draw the hash of this plan for vectors of width `d`; `rng` is a Generator or a seed."""
        return StableHash.init(rng, d, self.width, self.n_tables, self.n_projections)

    def retrieval_probability(self, distance: Any) -> Any:
        r"""Return :math:`1 - (1 - p(D)^\kappa)^L`, the chance to find a vector at this distance.

        `distance` is a number or an array of floats, at least 0.
        """
        p = StableHash.collision_probability(distance, self.width)
        return at_least_once(p, self.n_tables, self.n_projections)

    def miss_probability(self, distance: Any) -> Any:
        r"""Return :math:`(1 - p(D)^\kappa)^L`: at most δ up to `d_avg`, but for rounding."""
        p = StableHash.collision_probability(distance, self.width)
        return (1 - p**self.n_projections) ** self.n_tables

    def expected_candidates(
        self,
        sample: Annotated[Array, "s d"],
        queries: Annotated[Array, "q d"] | None = None,
        *,
        distinct: bool = True,
    ) -> float:
        """Predict how many of n keys like those of `sample` a query finds, by the mean over pairs.

        `sample` are keys drawn from those that the tables will hold; `queries` are other rows of
        the sample by default. A key counts once, or, unless `distinct`, as often as it is found,
        which is the work. Raises as `plan` for its sample.
        """
        return self._candidates(_distances(sample, queries), distinct)

    def _candidates(self, distances, distinct):
        p = StableHash.collision_probability(distances, self.width)
        if distinct:
            return self.n * float(np.mean(at_least_once(p, self.n_tables, self.n_projections)))
        return self.n * self.n_tables * float(np.mean(p**self.n_projections))

    def _work(self, distances, d):
        """Return nanoseconds per query: hashing, look-ups, and each candidate once a table."""
        hashing = PRODUCT * d * self.n_tables * self.n_projections
        log_p = np.interp(np.log(np.maximum(distances / self.width, FINEST)), *_log_collision())
        met = self.n * self.n_tables * float(np.mean(np.exp(self.n_projections * log_p)))
        return hashing + PROBE * self.n_tables + CANDIDATE * met


def plan(
    n: int = 1_000_000,
    delta: float = 0.01,
    d_avg: float = 0.5,
    n_tables: int | None = 5,
    n_projections: int | None = 1,
    *,
    sample: Annotated[Array, "s d"] | None = None,
    queries: Annotated[Array, "q d"] | None = None,
    max_bytes: float | None = None,
) -> Plan:
    r"""Choose the tables of a p-stable hash that keep a promise.

    .. math:: \bigl(1 - p(D_\text{avg})^\kappa\bigr)^L \le \delta
              \quad\Longleftrightarrow\quad p(D_\text{avg}) \ge (1 - \delta^{1/L})^{1/\kappa}

    A vector at distance d_avg or less from the query is missed with probability δ at most, over
    the draw of the tables. The least width that keeps the promise leaves the fewest candidates. It
    grows with κ; and what lies farther away is then met by fewer and fewer tables.

    Parameters
    ----------
    n : int
        Expected number of vectors.
    delta : float
        δ, above 0 and below 1.
    d_avg : float
        Distance between similar vectors, above 0.
    n_tables, n_projections : int, optional
        L and κ. None chooses the number with the least expected work on `sample`, up to 32. The
        defaults are the κ = 1 plan of the sources, where r = 2 d_avg and L = ⌈ln 1/δ⌉ = 5; this
        width is kept wherever it keeps the promise.
    sample : array, shape (s, d), optional
        Some of the keys, a few hundred, at least 2.
    queries : array, shape (q, d), optional
        Some queries; other keys of the sample by default.
    max_bytes : float, optional
        Plans whose tables may need more are left out.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If δ is not between 0 and 1, d_avg not above 0, a count below 1, `sample` is missing where
        a choice depends on it, has fewer than 2 rows or is not finite; or if no plan fits into
        `max_bytes`.

    Notes
    -----
    Work is counted in nanoseconds of one machine for hashing, look-ups and candidates. Cost of a
    choice: O(s q (d + candidates tried)).

    References
    ----------
    Datar et al. (2004); chapter `hashing`, claim 24.

    Examples
    --------
    >>> plan(1_000_000).n_tables, plan(1_000_000).n_projections
    (5, 1)
    >>> sample = np.random.default_rng(0).standard_normal((100, 64))
    >>> plan(1_000_000, n_projections=None, sample=sample).n_projections > 8
    True
    """
    check_int("n", n, at_least=1, at_most=2**62)
    delta, d_avg = check_number("delta", delta), check_number("d_avg", d_avg)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")
    if d_avg == 0:
        raise ValueError("d_avg must be above 0, got 0.0")
    for name, count in (("n_tables", n_tables), ("n_projections", n_projections)):
        if count is not None:
            check_int(name, count, at_least=1)
    if max_bytes is not None:
        check_number("max_bytes", max_bytes)
    tables = range(1, MOST + 1) if n_tables is None else (n_tables,)
    projections = range(1, MOST + 1) if n_projections is None else (n_projections,)
    pairs = [(L, K) for L in tables for K in projections]
    widths = _widths(delta, d_avg, np.asarray(pairs, dtype=np.float64))
    plans = [Plan(n, delta, d_avg, *pair, r) for pair, r in zip(pairs, widths, strict=True)]
    plans = [p for p in plans if max_bytes is None or p.memory_bytes <= max_bytes]
    if not plans:
        raise ValueError(f"max_bytes must allow one plan at least, got {max_bytes}")
    if len(plans) == 1:
        return plans[0]
    if sample is None:
        raise ValueError("sample must be given where n_tables or n_projections is None, got None")
    distances = _distances(sample, queries)
    return min(plans, key=lambda p: p._work(distances, sample.shape[-1]))


def _widths(delta, d_avg, pairs):
    """Return the least widths that keep the promise, or the sources' 2 d_avg where that does."""
    n_tables, n_projections = pairs.T
    needed = (-np.expm1(math.log(delta) / n_tables)) ** (1 / n_projections)
    low, high = np.zeros_like(needed), np.ones_like(needed)  # in units of d_avg
    while (short := _meets(high) < needed).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while (high - low > 1e-12 * high).any():
        middle = (low + high) / 2
        enough = _meets(middle) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    of_the_sources = (n_projections == 1) & (_meets(np.full_like(needed, 2.0)) >= needed)
    return (d_avg * np.where(of_the_sources, 2.0, high)).tolist()


def _meets(widths):
    """Return P at distance 1 for each width: only the ratio of both counts."""
    return StableHash.collision_probability(1 / widths, 1.0)


@functools.cache
def _log_collision():
    """Return log(c / r) and log P there, for plans by the hundred: NumPy's erf is slow."""
    ratio = np.geomspace(FINEST, 1e6, 4096)
    return np.log(ratio), np.log(StableHash.collision_probability(ratio, 1.0))


def _distances(sample, queries):
    """Return the distances of queries from keys, float64, those of a row from itself left out."""
    arrays = {"sample": sample} if queries is None else {"sample": sample, "queries": queries}
    check_floats(**arrays)
    for name, x in arrays.items():
        check_float(name, x)
        least = 2 if queries is None else 1
        if x.ndim != 2 or x.shape[0] < least or x.shape[1] != sample.shape[-1]:
            raise ValueError(
                f"{name} must have shape (s, d) with s >= {least} and one d, got {tuple(x.shape)}"
            )
    keys = move(sample, "numpy", dtype="float64")
    rows = keys if queries is None else move(queries, "numpy", dtype="float64")
    if not (np.isfinite(keys).all() and np.isfinite(rows).all()):
        raise ValueError("sample and queries must be finite, got NaN or infinity")
    centre = keys.mean(0)  # squares of far-off keys would leave no digits for the differences
    keys, rows = keys - centre, rows - centre
    squares = (rows**2).sum(1)[:, np.newaxis] + (keys**2).sum(1) - 2 * rows @ keys.T
    distances = np.sqrt(np.maximum(squares, 0))
    return distances[~np.eye(len(keys), dtype=bool)] if queries is None else distances.reshape(-1)
