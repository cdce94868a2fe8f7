"""The check of multi-probe in steps: which buckets a query looks into, in which order."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def probes(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the sequence of buckets of multi-probe SimHash (Lv et al. 2007).

    The first bucket is that of the query itself. Each further one lies behind some of the planes:
    the signature with those bits flipped. Buckets follow one another by the sum of (x · a_j)² over
    the planes that lie between. Runs `f` on one row and on several, on one bucket, on single planes
    and on pairs of planes that are nearer than a single one, in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(x, directions, n_probes)``, by position, on arrays (n, d) and
        (n_projections, d) and an int of at most 2 ** n_projections. It returns an array
        (n, n_probes) of integers: signatures as in `simhash`, those most likely to hold a near
        vector first.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_probes(x, directions, n_probes):
    ...     along = x @ directions.T
    ...     own = (along >= 0) @ (1 << np.arange(len(directions)))
    ...     nearest = np.argsort(np.abs(along), axis=-1)[:, : n_probes - 1]
    ...     return np.concatenate([own[:, None], own[:, None] ^ (1 << nearest)], axis=1)
    >>> check.probes(my_probes).mistake
    'single planes alone'
    """
    return run(PROBES, f, time_limit)


def _crossed(sets, n_projections):
    return (sets[:, np.newaxis] >> np.arange(n_projections)) & 1  # (sets, n_projections)


def _probed(s: Any, x, directions, n_probes):
    k = len(directions)
    along = s.project(x, directions)
    places = 1 << s.order(np.arange(k))
    own = np.sum((along >= 0) * places, axis=-1)
    sets = s.sets(k)
    crossed = _crossed(sets, k)
    chosen = s.rank(s.total(s.price(along), crossed), n_probes)
    flips = np.sum(crossed * s.flipped(places), axis=-1)[chosen]
    return s.results(s.flip(own[:, np.newaxis], flips).astype(np.int64))


def nearest(x, directions):
    return np.argsort(np.abs(x @ directions.T), axis=-1)


def flipped_by(flips, x, directions, n_probes):
    own = ((x @ directions.T >= 0) @ (1 << np.arange(len(directions))))[:, np.newaxis]
    return np.concatenate([own, own ^ flips], axis=1)[:, :n_probes]


def own_first(others, crossed):
    """Put the own bucket first, whatever the others cost."""
    first = np.min(others, axis=-1, keepdims=True) - 1
    return np.where(np.sum(crossed, axis=-1) > 0, others, first)


def single_price(price, crossed, most=1):
    """Count a set of more planes as farther than any single one, or any set of so many."""
    several = np.sum(crossed, axis=-1) > most
    return price @ crossed.T + several * (1 + np.sum(price, axis=-1, keepdims=True))


TEXT = Text(globals())


def buckets_exist(case: Case, values: Values, again: Callable) -> str | None:
    most = (1 << len(case.arrays["directions"])) - 1
    off = values[0][(values[0] < 0) | (values[0] > most)]
    return f"The buckets are 0 to {most}; one of yours is {off[0]}." if off.size else None


def each_bucket_once(case: Case, values: Values, again: Callable) -> str | None:
    twice = np.argwhere(np.diff(np.sort(values[0], axis=1), axis=1) == 0)[:1, 0]
    return f"Each bucket is looked into once; row {twice[0]} has one twice." if twice.size else None


def _case(
    n: int, d: int, k: int, n_probes: int, dtype: str = "float64", of_length_1: bool = True
) -> Case:
    directions = draw(42, k, d)
    if of_length_1:
        lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
        directions = directions / lengths  # then |x · a| is the distance
    arrays = {"x": draw(41, n, d).astype(dtype), "directions": directions.astype(dtype)}
    return Case({**arrays, "n_probes": n_probes})


PROBES = Check(
    name="probes",
    parameters=("x", "directions", "n_probes"),
    results={"signatures": "(n, n_probes)"},
    compute=_probed,
    steps=TEXT.steps,
    stages=(
        Stage((_case(5, 3, 5, 3), _case(7, 5, 3, 4), _case(2, 3, 3, 3))),
        Stage((_case(5, 3, 5, 7), _case(1, 7, 5, 11), _case(3, 2, 5, 32), _case(11, 5, 5, 1))),
        Stage((_case(3, 5, 5, 7, "float32"), _case(3, 5, 11, 13))),
        Stage((_case(7, 3, 5, 7, of_length_1=False),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(buckets_exist, each_bucket_once),
    kind="integral",
)
