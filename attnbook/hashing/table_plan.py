"""A plan of hash tables: the probability that it finds a vector, what a query costs, the memory."""

import functools
import math
import numbers
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_floats, check_number
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.hashing.collision import at_least_once, check_within
from attnbook.hashing.probe_chance import chance_of_probes
from attnbook.hashing.stable_hash import StableHash

PRODUCT, PROBE, CANDIDATE = 0.05, 160.0, 150.0
"""Nanoseconds of one multiply-add of a hash, one look-up, and one candidate of 64 floats.

Measured with one thread and 10⁶ keys; only their ratios matter for the choice.
"""

FINEST = 1e-6
"""Distance in widths below which the planner takes vectors for one."""

ENTRY_BYTES, START_BYTES = 8, 4
"""Of a row in a table, and of a cell of its directory: see `attnbook.sketch.bucket_tables`."""


@dataclass(frozen=True)
class Costs:
    """The costs that the planner uses, in nanoseconds on your machine.

    Attributes
    ----------
    product : float
        The price of one multiply-add of a hash.
    probe : float
        The price of one look-up of a bucket.
    candidate : float
        The price of one key that is scored, with its value.

    Examples
    --------
    >>> Costs().product
    0.05
    """

    product: float = PRODUCT
    probe: float = PROBE
    candidate: float = CANDIDATE

    def __post_init__(self) -> None:
        for name in ("product", "probe", "candidate"):
            check_number(name, getattr(self, name))


@dataclass(frozen=True)
class Cost:
    """What a plan is expected to cost.

    Attributes
    ----------
    hashing, look_ups, candidates : float
        Nanoseconds a query.
    n_candidates : float
        Keys that a query meets; a key counts once for each table in which it is met.
    memory_bytes : int
        Bytes of the tables.

    Examples
    --------
    >>> Cost(hashing=300.0, look_ups=800.0, candidates=900.0, n_candidates=6, memory_bytes=9).total
    2000.0
    """

    hashing: float
    look_ups: float
    candidates: float
    n_candidates: float
    memory_bytes: int

    @property
    def total(self) -> float:
        """Nanoseconds per query."""
        return self.hashing + self.look_ups + self.candidates


@dataclass(frozen=True)
class Plan:
    """A choice of tables, and what it predicts.

    Attributes
    ----------
    n : int
        Expected number of vectors.
    delta : float
        δ, the probability that a vector at distance `d_avg` may be missed by all tables.
    d_avg : float
        Distance between vectors that count as similar.
    n_tables, n_projections : int
        L and κ.
    width : float
        r, the interval of the p-stable hash.
    load_factor : float
        Share of the slots of a Robin Hood table that may be taken before it grows.
    n_probes : int
        Buckets that a query looks into in each table. With more than one, the probabilities are
        means over 512 positions in the buckets, right to some thousandths.
    predicted : Cost or None
        What a query costs, if a sample was given.
    considered : tuple of Plan
        All plans that were compared, from the cheapest, which is this one, to the most expensive.

    Examples
    --------
    >>> from attnbook.hashing import plan
    >>> plan(1_000_000, n_projections=1).width
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
    n_probes: int = 1
    predicted: Cost | None = field(default=None, compare=False, repr=False)
    considered: "tuple[Plan, ...]" = field(default=(), compare=False, repr=False)

    @property
    def n_slots(self) -> int:
        """4n, the number of slots of a table in the sources.

        With a vector in each slot the load would be 1/4 at most, so the table would never grow. An
        index of sorted rows has no slots.
        """
        return 4 * self.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of all sorted tables: an entry for each row, and a directory of cells.

        An index takes 16 kB more, and up to a tenth more while it grows.
        """
        cells = 2 ** max(1, (self.n - 1).bit_length())
        return self.n_tables * (ENTRY_BYTES * self.n + START_BYTES * (cells + 1))

    def table(self, most: int = 10) -> str:
        """Return up to `most` of the cheapest plans as lines of text.

        The columns are L, κ, buckets per table, the width, keys that are met (those met in several
        tables as often), megabytes, and the nanoseconds of a query.

        Examples
        --------
        >>> from attnbook.hashing import plan
        >>> sample = np.random.default_rng(0).standard_normal((100, 64))
        >>> print(plan(1_000_000, sample=sample).table(2))
        tables   κ probes  width    met    MB  hashing look-ups candidates total (ns)
             5  17      1  13.56    6.4  61.0      272      800        954       2026
             5  18      1  14.35    6.3  61.0      288      800        947       2035
        """
        lines = ["tables   κ probes  width    met    MB  hashing look-ups candidates total (ns)"]
        for p in self.considered[:most]:
            c = p.predicted
            assert c is not None
            lines.append(
                f"{p.n_tables:6} {p.n_projections:3} {p.n_probes:6} {p.width:6.2f} "
                f"{c.n_candidates:6.1f} {c.memory_bytes / 1e6:5.1f} {c.hashing:8.0f} "
                f"{c.look_ups:8.0f} {c.candidates:10.0f} {c.total:10.0f}"
            )
        return "\n".join(lines)

    def hash(self, rng: Any, d: int) -> StableHash:
        """Draw the hash of this plan for vectors of width `d`; `rng` is a Generator or a seed."""
        return StableHash.init(rng, d, self.width, self.n_tables, self.n_projections)

    def retrieval_probability(self, distance: Any) -> Any:
        r"""Return :math:`1 - (1 - p_T(D))^L`, the probability to find a vector at this distance.

        In one bucket per table :math:`p_T = p(D)^\kappa`. `distance` is a number or an array of
        floats, at least 0.
        """
        if self.n_probes > 1:
            return 1 - self.miss_probability(distance)
        p = StableHash.collision_probability(distance, self.width)
        return at_least_once(p, self.n_tables, self.n_projections)

    def miss_probability(self, distance: Any) -> Any:
        r"""Return :math:`(1 - p_T(D))^L`: at most δ up to `d_avg`, apart from rounding."""
        return (1 - self._in_a_table(distance)) ** self.n_tables

    def _in_a_table(self, distance):
        """Return the probability to find a vector in one table."""
        if self.n_probes == 1:
            return StableHash.collision_probability(distance, self.width) ** self.n_projections
        check_within("distance", distance, math.inf, "infinity")
        if isinstance(distance, numbers.Real):
            return float(self._with_probes(np.asarray(float(distance))))
        xp = array_namespace(distance)
        found = self._with_probes(np.asarray(move(distance, "numpy"), dtype=np.float64))
        return xp.astype(placed(found, distance), distance.dtype, copy=False)

    def _with_probes(self, distance):
        return chance_of_probes(distance / self.width, self.n_projections, self.n_probes)

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
        check_bool("distinct", distinct)
        return self._candidates(distances_of(sample, queries), distinct)

    def _candidates(self, distances, distinct):
        if distinct:
            return self.n * float(np.mean(self.retrieval_probability(distances)))
        return self.n * self.n_tables * float(np.mean(self._in_a_table(distances)))


def expected_cost(plan: Plan, distances: np.ndarray, d: int, costs: Costs) -> Cost:
    """Return the cost of a query: hashing, look-ups, and each candidate once per table."""
    widths = np.maximum(distances / plan.width, FINEST)
    if plan.n_probes == 1:
        log_p = np.interp(np.log(widths), *_log_collision())
        found = np.exp(plan.n_projections * log_p)
    else:
        found = chance_of_probes(widths, plan.n_projections, plan.n_probes)
    met = plan.n * plan.n_tables * float(np.mean(found))
    return Cost(
        costs.product * d * plan.n_tables * plan.n_projections,
        costs.probe * plan.n_tables * plan.n_probes,
        costs.candidate * met * d / 64,
        met,
        plan.memory_bytes,
    )


@functools.cache
def _log_collision():
    """Return log(c / r) and log P there, for plans by the hundred: NumPy's erf is slow."""
    ratio = np.geomspace(FINEST, 1e6, 4096)
    return np.log(ratio), np.log(StableHash.collision_probability(ratio, 1.0))


def distances_of(sample, queries):
    """Return the distances of queries from keys, float64, those of a row from itself left out."""
    arrays = {"sample": sample} if queries is None else {"sample": sample, "queries": queries}
    check_floats(**arrays)
    for name, x in arrays.items():
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
