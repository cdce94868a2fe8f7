r"""The planner: how many tables and projections keep a promise with the least work, and how wide.

.. math:: \bigl(1 - p(D_\text{avg})^\kappa\bigr)^L \le \delta
"""

import math
import warnings
from dataclasses import replace
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_int, check_number, check_positive
from attnbook.arrays.array import Array
from attnbook.arrays.weights import check_part
from attnbook.hashing.probe_chance import MOST_PROBED, distance_of_chance
from attnbook.hashing.stable_hash import StableHash
from attnbook.hashing.table_plan import Costs, Plan, distances_of, expected_cost

MOST = 32
"""Largest number of tables, and of projections, that the planner tries."""

PROBES = (1, 2, 4, 8, 16)
"""Probes per table that it tries. With more than one, it tries every fourth κ."""

DEFAULT_COSTS = Costs()

FAR = 20.0
"""The distance, in d_avg, of the far keys that the warning of a plan without a sample counts."""


def plan(
    n: int = 1_000_000,
    delta: float = 0.01,
    d_avg: float = 0.5,
    n_tables: int | None = 5,
    n_projections: int | None = None,
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

    A vector at distance d_avg or less from the query is missed with probability at most δ, over
    the draw of the tables. The smallest width that keeps the promise leaves the fewest candidates.
    It grows with κ, although fewer and fewer tables then return the vectors farther away.

    Parameters
    ----------
    n : int
        Expected number of vectors.
    delta : float
        δ, above 0 and below 1.
    d_avg : float
        Distance between similar vectors, above 0.
    n_tables, n_projections : int, optional
        L and κ. None chooses the number, up to 32, with the least expected work on `sample`. The
        sources take κ = 1, r = 2 d_avg and L = ⌈ln 1/δ⌉ = 5. With κ = 1 this width is used where
        it keeps the promise. Without `sample` κ is 1, with a warning unless you ask for it,
        because such tables keep the promise but also return many far keys.
    n_probes : int, optional
        Buckets that a query looks into in each table (multi-probe). More of them keep the promise
        with fewer tables or narrower intervals, at the cost of more look-ups. None chooses among
        1, 2, 4, 8 and 16, and among every fourth number of projections if that is None, too.
    sample : array, shape (s, d), optional
        A few hundred of the keys, at least 2.
    queries : array, shape (q, d), optional
        Some queries; the other keys of the sample by default.
    max_bytes : float, optional
        Plans whose tables need more bytes are left out.
    costs : Costs
        Nanoseconds that a product, a look-up and a candidate take on your machine.

    Returns
    -------
    Plan
        The cheapest plan. Its `considered` holds all plans compared, and `table()` shows them.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If δ is not between 0 and 1, d_avg is not above 0, a count is below 1, n_projections is
        above 39 with several probes, or no plan fits into `max_bytes`. If `sample` is missing
        where a choice depends on it, has fewer than 2 rows or is not finite.

    Warns
    -----
    UserWarning
        If there is neither `n_projections` nor `sample`. It says how many far keys a query reads.

    Notes
    -----
    Work is the nanoseconds of hashing, look-ups and candidates. Cost of a choice:
    O(s q (d + plans tried)), and a fifth of a second more for each κ with several probes.

    References
    ----------
    Datar et al. (2004); claim 24 of the book.

    Examples
    --------
    >>> plan(1_000_000, n_projections=1).n_tables, plan(1_000_000, n_projections=1).width
    (5, 1.0)
    >>> sample = np.random.default_rng(0).standard_normal((100, 64))
    >>> plan(1_000_000, sample=sample).n_projections > 8
    True
    """
    check_int("n", n, at_least=1, at_most=2**62)
    delta, d_avg = check_number("delta", delta), check_positive("d_avg", d_avg)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")
    given = {"n_tables": n_tables, "n_projections": n_projections, "n_probes": n_probes}
    for name, count in given.items():
        if count is not None:
            check_int(name, count, at_least=1)
    warned = sample is None and None not in (n_tables, n_probes) and n_projections is None
    if warned:
        n_projections = 1
    check_part("costs", costs, Costs)
    if max_bytes is not None:
        check_number("max_bytes", max_bytes)
    if n_probes not in (None, 1) and (n_projections or 0) > MOST_PROBED:
        raise ValueError(
            f"n_projections must be at most {MOST_PROBED} with several probes, got {n_projections}"
        )
    tables = range(1, MOST + 1) if n_tables is None else (n_tables,)
    projections = range(1, MOST + 1) if n_projections is None else (n_projections,)
    if n_probes is None and n_projections is None:
        projections = range(4, MOST + 1, 4)
    probes = PROBES if n_probes is None else (n_probes,)
    choices = [
        (L, K, T)
        for T in probes
        for L in tables
        for K in projections
        if T <= 3**K and (T == 1 or K <= MOST_PROBED)
    ]
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
        if warned:
            _warn(plans[0])
        return plans[0]
    if sample is None:
        raise ValueError(
            "sample must be given where n_tables, n_projections or n_probes is None, got None"
        )
    distances, d = distances_of(sample, queries), sample.shape[-1]
    weighed = [replace(p, predicted=expected_cost(p, distances, d, costs)) for p in plans]
    weighed.sort(key=lambda p: p.predicted.total)  # type: ignore[union-attr]
    return replace(weighed[0], considered=tuple(weighed))


def _warn(made):
    share = made.retrieval_probability(FAR * made.d_avg)
    warnings.warn(
        f"plan without sample or n_projections has one projection per table: if all keys lie at "
        f"distance {FAR * made.d_avg:g} from a query, {FAR:g} times d_avg, it reads "
        f"{made.n * share:,.0f} of {made.n:,}. Give sample, some hundred of the keys, to choose "
        "n_projections by cost, or n_projections=1 to keep this plan",
        UserWarning,
        stacklevel=3,
    )


def _widths(delta, d_avg, choices):
    """Return the smallest widths that keep the promise, or the sources' 2 d_avg where it does."""
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
        # the width for one probe keeps the promise with more of them, too
        if T > 1 and (distance := distance_of_chance(in_a_table[i], K, T)):
            widths[i] = 1 / distance
    return (d_avg * widths).tolist()


def _meets(widths):
    """Return P at distance 1 for each width: only the ratio of both counts."""
    return StableHash.collision_probability(1 / widths, 1.0)
