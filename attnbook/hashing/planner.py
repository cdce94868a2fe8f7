r"""The planner: how many tables and projections, and how wide, for a promise and the least work.

.. math:: \bigl(1 - p(D_\text{avg})^\kappa\bigr)^L \le \delta
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_floats, check_int, check_number
from attnbook.arrays.array import Array
from attnbook.arrays.move import move
from attnbook.arrays.weights import check_part
from attnbook.hashing.collision import at_least_once
from attnbook.hashing.probe_chance import chance_of_probes, distance_of_chance
from attnbook.hashing.stable_hash import StableHash

PRODUCT, PROBE, CANDIDATE = 0.05, 160.0, 150.0
"""Nanoseconds of one multiply-add of a hash, one look-up, and one candidate of 64 floats.

Measured with one thread and 10⁶ keys; only their ratios matter for the choice.
"""

MOST = 32
"""Largest number of tables, and of projections, that the planner tries."""

PROBES = (1, 2, 4, 8, 16)
"""Buckets in each table that it tries; with more than one, every fourth number of projections."""

FINEST = 1e-6
"""Distance in widths below which the planner takes vectors for one."""

ENTRY_BYTES, START_BYTES = 8, 4
"""Of a row in a table, and of a cell of its directory: see `attnbook.sketch.bucket_tables`."""


@dataclass(frozen=True)
class Costs:
    """What the planner weighs with, in nanoseconds of your machine.

    Attributes
    ----------
    product : float
        Of one multiply-add of a hash.
    probe : float
        Of one look-up of a bucket.
    candidate : float
        Of one key that is scored, with its value.

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
        Keys that a query meets, those met in several tables as often.
    memory_bytes : int
        Of the tables.

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
        """Nanoseconds a query."""
        return self.hashing + self.look_ups + self.candidates


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
        Share of the slots of a Robin Hood table that may be taken before it grows.
    n_probes : int
        Buckets that a query looks into in each table; with more than one, the chances are means
        over 512 positions in the buckets, right to some thousandths.
    predicted : Cost or None
        What a query costs, if there was a sample to tell.
    considered : tuple of Plan
        All plans that were weighed, this one first and the most expensive last.

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
    n_probes: int = 1
    predicted: Cost | None = field(default=None, compare=False, repr=False)
    considered: "tuple[Plan, ...]" = field(default=(), compare=False, repr=False)

    @property
    def n_slots(self) -> int:
        """m = 4n, the size of a table in the sources.

        With a vector in each slot the load would be 1/4 at most, and the load factor never
        reached. An index has no slots for what is sorted.
        """
        return 4 * self.n

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables, once sorted: an entry for each row and a directory of cells.

        An index has 16 kB of its own beside, and up to a tenth more while it grows.
        """
        cells = 2 ** max(1, (self.n - 1).bit_length())
        return self.n_tables * (ENTRY_BYTES * self.n + START_BYTES * (cells + 1))

    def table(self, most: int = 10) -> str:
        """Return the cheapest plans that were weighed as lines of text, `most` of them.

        Examples
        --------
        >>> sample = np.random.default_rng(0).standard_normal((100, 64))
        >>> print(plan(1_000_000, n_projections=None, sample=sample).table(2))
        tables projections probes    width candidates    MB hashing look-ups candidates total (ns)
             5          17      1    13.56        6.4  61.0     272      800        954       2026
             5          18      1    14.35        6.3  61.0     288      800        947       2035
        """
        lines = [
            "tables projections probes    width candidates    MB "
            "hashing look-ups candidates total (ns)"
        ]
        for p in self.considered[:most]:
            c = p.predicted
            assert c is not None
            lines.append(
                f"{p.n_tables:6} {p.n_projections:11} {p.n_probes:6} {p.width:8.2f} "
                f"{c.n_candidates:10.1f} {c.memory_bytes / 1e6:5.1f} {c.hashing:7.0f} "
                f"{c.look_ups:8.0f} {c.candidates:10.0f} {c.total:10.0f}"
            )
        return "\n".join(lines)

    def hash(self, rng: Any, d: int) -> StableHash:
        """Draw the hash of this plan for vectors of width `d`; `rng` is a Generator or a seed."""
        return StableHash.init(rng, d, self.width, self.n_tables, self.n_projections)

    def retrieval_probability(self, distance: Any) -> Any:
        r"""Return :math:`1 - (1 - p_T(D))^L`, the chance to find a vector at this distance.

        In one bucket a table :math:`p_T = p(D)^\kappa`. `distance` is a number or an array of
        floats, at least 0.
        """
        if self.n_probes > 1:
            return 1 - self.miss_probability(distance)
        p = StableHash.collision_probability(distance, self.width)
        return at_least_once(p, self.n_tables, self.n_projections)

    def miss_probability(self, distance: Any) -> Any:
        r"""Return :math:`(1 - p_T(D))^L`: at most δ up to `d_avg`, but for rounding."""
        return (1 - self._in_a_table(distance)) ** self.n_tables

    def _in_a_table(self, distance):
        """Return the chance to find a vector in one table."""
        if self.n_probes == 1:
            return StableHash.collision_probability(distance, self.width) ** self.n_projections
        widths = np.asarray(move(distance, "numpy") if hasattr(distance, "shape") else distance)
        found = chance_of_probes(widths / self.width, self.n_projections, self.n_probes)
        return found if found.ndim else float(found)

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
        if distinct:
            return self.n * float(np.mean(self.retrieval_probability(distances)))
        return self.n * self.n_tables * float(np.mean(self._in_a_table(distances)))

    def _cost(self, distances, d, costs):
        """Return the cost of a query: hashing, look-ups, and each candidate once a table."""
        widths = np.maximum(distances / self.width, FINEST)
        if self.n_probes == 1:
            log_p = np.interp(np.log(widths), *_log_collision())
            found = np.exp(self.n_projections * log_p)
        else:
            found = chance_of_probes(widths, self.n_projections, self.n_probes)
        met = self.n * self.n_tables * float(np.mean(found))
        return Cost(
            costs.product * d * self.n_tables * self.n_projections,
            costs.probe * self.n_tables * self.n_probes,
            costs.candidate * met * d / 64,
            met,
            self.memory_bytes,
        )


DEFAULT_COSTS = Costs()


def plan(
    n: int = 1_000_000,
    delta: float = 0.01,
    d_avg: float = 0.5,
    n_tables: int | None = 5,
    n_projections: int | None = 1,
    n_probes: int | None = 1,
    *,
    sample: Annotated[Array, "s d"] | None = None,
    queries: Annotated[Array, "q d"] | None = None,
    max_bytes: float | None = None,
    costs: Costs = DEFAULT_COSTS,
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
    n_probes : int, optional
        Buckets that a query looks into in each table (multi-probe): more of them keep the promise
        with fewer tables or narrower intervals, for more look-ups. None chooses among 1, 2, 4, 8
        and 16, and then among every fourth number of projections where that is None too.
    sample : array, shape (s, d), optional
        Some of the keys, a few hundred, at least 2.
    queries : array, shape (q, d), optional
        Some queries; other keys of the sample by default.
    max_bytes : float, optional
        Plans whose tables need more are left out.
    costs : Costs
        Nanoseconds of a product, a look-up and a candidate on your machine.

    Returns
    -------
    Plan
        Its `considered` has all plans that were weighed, and `table()` shows them.

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
    Work is counted in nanoseconds for hashing, look-ups and candidates. Cost of a choice:
    O(s q (d + plans tried)); a fifth of a second more for each κ with several
    probes.

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
    given = {"n_tables": n_tables, "n_projections": n_projections, "n_probes": n_probes}
    for name, count in given.items():
        if count is not None:
            check_int(name, count, at_least=1)
    check_part("costs", costs, Costs)
    if max_bytes is not None:
        check_number("max_bytes", max_bytes)
    tables = range(1, MOST + 1) if n_tables is None else (n_tables,)
    projections = range(1, MOST + 1) if n_projections is None else (n_projections,)
    if n_probes is None and n_projections is None:
        projections = range(4, MOST + 1, 4)
    probes = PROBES if n_probes is None else (n_probes,)
    choices = [(L, K, T) for T in probes for L in tables for K in projections if T <= 3**K]
    if not choices:
        raise ValueError(f"n_probes must be at most 3**n_projections, got {n_probes}")
    widths = _widths(delta, d_avg, choices)
    plans = [
        Plan(n, delta, d_avg, L, K, r, n_probes=T)
        for (L, K, T), r in zip(choices, widths, strict=True)
    ]
    plans = [p for p in plans if max_bytes is None or p.memory_bytes <= max_bytes]
    if not plans:
        raise ValueError(f"max_bytes must allow one plan at least, got {max_bytes}")
    if len(plans) == 1 and sample is None:
        return plans[0]
    if sample is None:
        raise ValueError(
            "sample must be given where n_tables, n_projections or n_probes is None, got None"
        )
    distances, d = _distances(sample, queries), sample.shape[-1]
    weighed = [replace(p, predicted=p._cost(distances, d, costs)) for p in plans]
    weighed.sort(key=lambda p: p.predicted.total)  # type: ignore[union-attr]
    return replace(weighed[0], considered=tuple(weighed))


def _widths(delta, d_avg, choices):
    """Return the least widths that keep the promise, or the sources' 2 d_avg where that does."""
    n_tables, n_projections, n_probes = np.asarray(choices, dtype=np.float64).T
    in_a_table = -np.expm1(math.log(delta) / n_tables)
    needed = in_a_table ** (1 / n_projections)
    low, high = np.zeros_like(needed), np.ones_like(needed)  # in units of d_avg
    while (short := _meets(high) < needed).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while (high - low > 1e-12 * high).any():
        middle = (low + high) / 2
        enough = _meets(middle) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    of_the_sources = (n_projections == 1) & (_meets(np.full_like(needed, 2.0)) >= needed)
    widths = np.where(of_the_sources & (n_probes == 1), 2.0, high)
    for i, (_, K, T) in enumerate(choices):
        if T > 1:
            widths[i] = 1 / distance_of_chance(in_a_table[i], K, T)
    return (d_avg * widths).tolist()


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
