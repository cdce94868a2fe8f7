"""The check of a planner in steps: how many tables a promise needs, and what a query then costs."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import as_floats, signed_as
from attnbook.check.steps import Case, Check, Stage, each

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


_STEPS: dict[str, Callable] = {
    "kappa": lambda k: k,
    "sizes": lambda n, d: (n, d),
    "promise": lambda delta, n: delta,
    "table_has": lambda p, k, sample: p**k,
    "miss": lambda delta, f: np.log(delta) / np.log1p(-f),
    "whole": np.ceil,
    "paid": lambda tables, needed: tables,
    "share": lambda p, k, near: np.mean(p**k, axis=0),
    "hashing": lambda d, k, tables, n: d * k * tables,
    "candidates": lambda n, tables, share, p, k: n * tables * share,
    "price": lambda cost: cost,
    "terms": lambda terms, k, d: terms,
    "add": sum,
    "results": lambda tables, total: (tables, total),
}


def _any_of(p, k, sample):
    return 1 - (1 - p) ** k


_ORDERS = tuple(itertools.permutations(range(3)))[1:]

_MISTAKES = mistakes(
    """
    one projection for all: The number of tables does not grow with κ. All κ projections of a table
        must agree, which has the chance p_near to the power of κ.
    kappa from 0: Your first number is that of κ = 0. κ runs from 1 to 32.
    all tables must have it: You ask that all tables have the key, or that a mean number of them
        does, or your fraction is upside down. One table is enough: all L miss it with probability
        (1 − p^κ)^L, so L is at least ln δ / ln(1 − p^κ).
    delta and one minus delta: You take 1 − δ for δ. δ is the chance of a miss.
    found for missed: You take the logarithm of p^κ. A table has the key with the chance p^κ and
        misses it with 1 − p^κ.
    approximated: You divide by p^κ in place of −ln(1 − p^κ). That is near only where p^κ is small.
    one table too many: You take a table more than are needed: ⌈x⌉ is enough.
    rounded down: You round the number of tables down, or to the nearest. Then the promise is
        broken: round up.
    not rounded: The number of tables is not whole, in what you return or in the cost: round up
        first.
    mean before the power: You take the mean of p_other and then its power κ. Take the powers first:
        the keys that lie nearest are found far more often than the mean of all would be.
    not the mean: You take the median, the smallest, the largest or the geometric mean over the
        sample. The number of candidates is a sum over the keys: take the plain mean.
    power forgotten: Your share of candidates does not fall with κ. Another key is a candidate where
        all κ projections agree: take p_other to the power of κ.
    mean over κ too: You take the mean over all κ at once. Each κ has a mean of its own, over the
        sample.
    sum for the mean: You add up p_other^κ over the sample. A share is its mean: the sample stands
        for all n keys.
    near for other: You take p_near for p_other. The candidates are other keys, nearly all of them.
    candidates of one table: You count the candidates of one table. Each of the L tables has them.
    each candidate once: You count a candidate once, however many tables have it. It is read in each
        of them, and only then known to be the same.
    share for a number: You forget to multiply by n: p_other^κ is the share of the keys in a bucket.
    one projection to hash: Your cost of hashing lacks κ, L or d. A query is multiplied with κ
        directions for each of L tables, of d numbers each.
    look-ups of projections: You count a look-up for each projection. The projections of a table
        make one signature, which is looked up once.
    costs in another order: `costs` are those of a product, of a look-up and of a candidate, in this
        order.
    hashing left out: The cost of hashing is missing: d κ L products.
    look-ups left out: The cost of looking up is missing: one in each table.
    candidates left out: The cost of the candidates is missing.
    exchanged: You return the two results in the other order.
    one projection enough: You take the chance that one projection or more agrees, 1 − (1 − p)^κ.
        All κ projections of a table must agree: p^κ.
    other for near: You count tables by the chance of other keys. The promise is about a near key:
        p_near^κ.
    promise for all keys: You divide δ by the number of keys. The promise is about one near key: δ
        is taken as it is.
    kappa from 2: Your first number is that of κ = 2. κ runs from 1 to 32.
    n and d exchanged: You exchange the number of keys and their width: hashing costs d κ L
        products, and there are n keys to be candidates.
    wrong sign: A sign is wrong: ln δ and ln(1 − p^κ) are both below 0, and their ratio is above 0.
        Look at the minus in front and at the one inside.
    not agreeing: You take the chance that other keys do not agree. A candidate is a key on which
        all κ projections agree: p_other^κ.
    sum for a product: You add in the cost of hashing where d κ L is a product: each of κ L
        directions costs d products.
    keys hashed too: You count the hashing of all n keys. That is done once, when the tables are
        made; a query is hashed alone.
    one look-up: You count one look-up. A query looks into each of its L tables.
    tables counted twice: L stands twice in the cost, in one of its terms or in all. Each term has
        it once: d κ L, L and n L · mean(p_other^κ).
    candidates times a width: You multiply the candidates by κ or by d. What one of them costs is
        given, and is counted once for each.
    prices not used: You add the numbers of products, look-ups and candidates without their costs.
    not their total: You take the largest, the mean or the product of the three costs. A query pays
        for all of them: add them up.
    """,
    {
        "one projection for all": each("table_has", lambda p, k, sample: p + 0 * k),
        "one projection enough": (
            {"table_has": _any_of},
            {"table_has": _any_of, "whole": lambda x: np.maximum(np.ceil(x), 1)},
        ),
        "other for near": each(
            "table_has",
            lambda p, k, sample: np.mean(sample) ** k,
            lambda p, k, sample: np.mean(sample**k, axis=0),
        ),
        "promise for all keys": each("promise", lambda delta, n: delta / n),
        "all tables must have it": each(
            "miss",
            lambda delta, f: np.log(1 - delta) / np.log(f),
            lambda delta, f: (1 - delta) / f,
            lambda delta, f: 1 / f,
        ),
        "delta and one minus delta": each("miss", lambda delta, f: np.log1p(-delta) / np.log1p(-f)),
        "found for missed": each("miss", lambda delta, f: np.log(delta) / np.log(f)),
        "wrong sign": each(
            "miss",
            lambda delta, f: -np.log(delta) / np.log1p(-f),
            lambda delta, f: -np.log(delta) / np.log1p(f),
            lambda delta, f: np.log(delta) / np.log1p(f),
        ),
        "approximated": each("miss", lambda delta, f: -np.log(delta) / f),
        "one table too many": each("whole", lambda x: np.ceil(x) + 1),
        "rounded down": each("whole", np.floor, np.rint, lambda x: np.maximum(np.floor(x), 1)),
        "not rounded": each("whole", lambda x: x) + each("paid", lambda tables, needed: needed),
        "kappa from 0": (
            {"kappa": lambda k: k - 1},
            {"kappa": lambda k: k - 1, "whole": lambda x: np.maximum(np.ceil(x), 1)},
        ),
        "kappa from 2": {"kappa": lambda k: k + 1},
        "n and d exchanged": {"sizes": lambda n, d: (d, n)},
        "mean before the power": each("share", lambda p, k, near: np.mean(p) ** k),
        "not the mean": each(
            "share",
            lambda p, k, near: np.median(p**k, axis=0),
            lambda p, k, near: np.max(p**k, axis=0),
            lambda p, k, near: np.min(p**k, axis=0),
            lambda p, k, near: np.exp(np.mean(np.log(p), axis=0) * k),
        ),
        "power forgotten": each("share", lambda p, k, near: np.mean(p) + 0.0 * k),
        "mean over κ too": each("share", lambda p, k, near: np.mean(p**k) + 0 * k),
        "sum for the mean": each("share", lambda p, k, near: np.sum(p**k, axis=0)),
        "not agreeing": each(
            "share",
            lambda p, k, near: np.mean((1 - p) ** k, axis=0),
            lambda p, k, near: 1 - np.mean(p**k, axis=0),
        ),
        "near for other": each("share", lambda p, k, near: near**k),
        "candidates of one table": each("candidates", lambda n, tables, share, p, k: n * share),
        "each candidate once": each(
            "candidates",
            lambda n, tables, share, p, k: n * (1 - (1 - share) ** tables),
            lambda n, tables, share, p, k: n * np.mean(1 - (1 - p**k) ** tables, axis=0),
        ),
        "share for a number": each("candidates", lambda n, tables, share, p, k: tables * share),
        "one projection to hash": each(
            "hashing",
            lambda d, k, tables, n: d * tables,
            lambda d, k, tables, n: d * k,
            lambda d, k, tables, n: k * tables,
        ),
        "sum for a product": each(
            "hashing",
            lambda d, k, tables, n: d + k + tables,
            lambda d, k, tables, n: d * (k + tables),
            lambda d, k, tables, n: (d + k) * tables,
        ),
        "keys hashed too": each(
            "hashing",
            lambda d, k, tables, n: n * d * k * tables,
            lambda d, k, tables, n: (n + 1) * d * k * tables,
        ),
        "look-ups of projections": each(
            "terms", lambda t, k, d: (t[0], t[1] * k, t[2]), lambda t, k, d: (t[0], k, t[2])
        ),
        "one look-up": each("terms", lambda t, k, d: (t[0], 1, t[2])),
        "tables counted twice": each(
            "terms",
            lambda t, k, d: (t[0] * t[1], t[1], t[2]),
            lambda t, k, d: (t[0], t[1] ** 2, t[2]),
            lambda t, k, d: (t[0], t[1], t[2] * t[1]),
            lambda t, k, d: tuple(term * t[1] for term in t),
        ),
        "candidates times a width": each(
            "terms", lambda t, k, d: (*t[:2], t[2] * k), lambda t, k, d: (*t[:2], t[2] * d)
        ),
        "prices not used": each("price", lambda cost: 1.0),
        "not their total": each(
            "add",
            lambda costs: np.max(costs, axis=0),
            lambda costs: np.mean(costs, axis=0),
            lambda costs: np.prod(costs, axis=0),
        ),
        "costs in another order": each(
            "terms", *(lambda t, k, d, order=order: [t[i] for i in order] for order in _ORDERS)
        ),
        "hashing left out": each("terms", lambda t, k, d: (0 * t[0], *t[1:])),
        "look-ups left out": each("terms", lambda t, k, d: (t[0], 0 * t[1], t[2])),
        "candidates left out": each("terms", lambda t, k, d: (*t[:2], 0 * t[2])),
        "exchanged": each("results", lambda tables, total: (total, tables)),
    },
)


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
    steps=_STEPS,
    stages=(
        Stage(
            (
                _case(1000, 64, 0.9, 0.2, 0.01, 1.0, 100.0, 50.0),
                _case(7, 3, 0.8, 0.3, 0.05, 0.5, 2.0, 3.0),
                _case(100_003, 128, 0.95, 0.1, 0.001, 0.005, 20.0, 15.0),
            )
        ),
    ),
    mistakes=_MISTAKES,
    adapt=_adapt,
)
