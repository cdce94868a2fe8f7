"""The check of a planner in steps: how many tables a promise needs, and what a query then costs."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import as_floats, signed_as
from attnbook.check.engine.steps import Case, Check, Stage
from attnbook.check.engine.text import Text

MOST = 32
"""The planner looks at 1 to this many projections a table."""


@documented
def table_costs(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check what a planner of tables weighs: the tables that a promise needs, and their cost.

    With κ projections a table, the least number of tables that misses a near key with probability
    δ at most is L = ⌈ln δ / ln(1 − p_near^κ)⌉. A query then costs d κ L products, L look-ups, and
    n L · mean(p_other^κ) candidates. Runs `f` on promises, widths, numbers of keys and costs that
    make each of the three terms the largest.

    Parameters
    ----------
    f : callable
        Called as ``f(n, d, p_near, p_other, delta, costs)``, by position: the number of keys, their
        width, the chance that one projection agrees on a near key, that chance for a sample of
        other keys (s,), the promise δ, and what one product, one look-up and one candidate cost,
        (3,). It returns two arrays or lists of 32 numbers, for κ = 1, …, 32: L and the cost of a
        query.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_costs(n, d, p_near, p_other, delta, costs):
    ...     kappa = np.arange(1, 33)
    ...     L = np.ceil(np.log(delta) / np.log(1 - p_near**kappa))
    ...     met = n * L * np.mean(p_other) ** kappa
    ...     return L, costs[0] * d * kappa * L + costs[1] * L + costs[2] * met
    >>> check.table_costs(my_costs).mistake
    'mean before the power'
    """
    return run(TABLE_COSTS, f, time_limit)


def _costs(s: Any, n, d, p_near, p_other, delta, costs):
    k, (n, d) = s.kappa(np.arange(1, MOST + 1)), s.sizes(n, d)
    sample = np.asarray(p_other, dtype=np.float64)[:, np.newaxis]
    needed = s.miss(s.promise(delta, n), s.table_has(p_near, k, sample))
    tables = s.whole(needed)
    paid = s.paid(tables, needed)
    shares = s.share(sample, k, p_near)
    terms = (s.hashing(d, k, paid, n), paid, s.candidates(n, paid, shares, sample, k))
    prices = [s.price(cost) for cost in costs]
    total = s.add([p * term for p, term in zip(prices, s.terms(terms, k, d), strict=True)])
    return s.results(tables * 1.0, total)


def _adapt(function: Callable) -> Callable:
    """Return `function` with lists, and arrays of integers, as arrays of floats."""

    def adapted(*given):
        found = function(*given)
        return tuple(map(as_floats, found)) if isinstance(found, (tuple, list)) else found

    return signed_as(function, adapted)


ORDERS = tuple(itertools.permutations(range(3)))[1:]

TEXT = Text(globals())


def _case(n: int, d: int, p_near: float, spread: float, delta: float, *costs: float) -> Case:
    p_other = 0.45 + spread * np.linspace(-0.8, 1, 7) ** 3  # whose median is not their mean
    return Case(
        {
            **{"n": n, "d": d, "p_near": p_near, "p_other": p_other},
            **{"delta": delta, "costs": np.array(costs)},
        }
    )


TABLE_COSTS = Check(
    name="table_costs",
    parameters=("n", "d", "p_near", "p_other", "delta", "costs"),
    results={"tables": "(32,)", "cost": "(32,)"},
    compute=_costs,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                _case(1000, 64, 0.9, 0.2, 0.01, 1.0, 100.0, 50.0),
                _case(7, 3, 0.8, 0.3, 0.05, 0.5, 2.0, 3.0),
                _case(100_003, 128, 0.95, 0.1, 0.001, 0.005, 20.0, 15.0),
            )
        ),
    ),
    mistakes=TEXT.mistakes,
    adapt=_adapt,
)
