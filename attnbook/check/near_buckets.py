"""The check of multi-probe in steps: which buckets a query looks into, in which order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


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


def _sets(n_projections):
    """Return all sets of planes as bits, the own bucket, which crosses none, first."""
    return np.arange(1 << n_projections)


def _crossed(sets, n_projections):
    return (sets[:, np.newaxis] >> np.arange(n_projections)) & 1  # (sets, n_projections)


def _rank(prices, n_probes):
    return np.argsort(prices, axis=-1, kind="stable")[:, :n_probes]


def _nearest_first(along):
    return np.argsort(np.abs(along), axis=-1)


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


def _flipped_by(flips: Callable) -> Callable:
    """Return the computation that flips ``flips(planes)``, of planes in the order of distance."""

    def probed(x, directions, n_probes):
        along = x @ directions.T
        own = ((along >= 0) @ (1 << np.arange(len(directions))))[:, np.newaxis]
        return np.concatenate([own, own ^ flips(_nearest_first(along))], axis=1)[:, :n_probes]

    return probed


_STEPS: dict[str, Callable] = {
    "project": lambda x, directions: x @ directions.T,
    "order": lambda places: places,
    "flipped": lambda places: places,
    "sets": _sets,
    "price": np.square,
    "total": lambda price, crossed: price @ crossed.T,
    "rank": _rank,
    "flip": lambda own, flips: own ^ flips,
    "results": lambda buckets: buckets,
}


def _but_own(k):
    return _sets(k)[1:]


def _own_first(total: Callable) -> Callable:
    """Return the step that puts the own bucket first, and the others by `total`."""

    def first(price, crossed):
        others = total(price, crossed)
        begins = np.min(others, axis=-1, keepdims=True) - 1
        return np.where(np.sum(crossed, axis=-1) > 0, others, begins)

    return first


def _single_price(price, crossed, most=1):
    """Count a set of more planes as farther than any single one, or any set of so many."""
    several = np.sum(crossed, axis=-1) > most
    return price @ crossed.T + several * (1 + np.sum(price, axis=-1, keepdims=True))


_MISTAKES = mistakes(
    """
    own bucket left out: The bucket of the query itself is missing. It crosses no plane, and comes
        first: nothing else is as likely to hold a near vector.
    single planes alone: You flip single bits alone, or take pairs only when they are used up. Two
        planes that are both very near are crossed together more often than one that is far: compare
        sums of squares.
    pairs at most: You cross two planes at most. Three that are very near are crossed together more
        often than one that is far.
    one after the other: You cross the nearest plane, then the next one as well, and so on. Each
        bucket is a set of planes of its own: the second nearest alone comes before both together.
    lowest bits first: You flip bits in the order of their numbers. How likely a plane lies between
        the query and its neighbour depends on how near the query is to it: order by (x · a)².
    farthest first: You begin with the planes that are farthest away. A neighbour is behind a plane
        that is near.
    turned round: You begin with the bucket behind all planes: the order is turned round, or the
        bits are. Bit j is 1 where x · a_j ≥ 0, and the nearest comes first.
    directions normalised: You divide the directions by their lengths. They are taken as they are.
    signed products: You order by the products themselves, so that a plane far away on the negative
        side comes first. The distance has no sign: square it.
    distances not squared: You add up |x · a|, its root or its cube. Near vectors differ by normal
        noise, whose density falls with the square: add up (x · a)².
    nearest plane decides: You order sets of planes by their nearest or their farthest one alone, or
        by a power so high that the farthest decides. All of them have to be crossed: add up the
        squares.
    not their sum: You order by the product or by the mean of the squares. Add them up.
    one order for all rows: You order the planes by the first row, or by a mean over the rows. Each
        row has distances of its own.
    sorted: You return the buckets by their numbers. They come in the order in which they are looked
        into, the likeliest first.
    flips alone: You return which bits are flipped. The bucket is the own signature with these bits
        flipped, own ^ flips.
    added for flipped: You add or subtract 2^j, set the bit or clear it, where it is to be flipped.
        Each of these is right for one of the two values of a bit; the exclusive or ^ flips it
        either way.
    number of the bit flipped: You flip j itself into the signature, signature ^ j. Bit j has the
        weight 2^j: signature ^ (1 << j).
    bits reversed: Your first projection is the highest bit, in the signature, in what you flip or
        in both. It is the lowest one here, as in `simhash`; else the buckets that you look into are
        those of other planes.
    directions transposed: You take the columns of `directions` for the directions. Its rows are,
        (n_projections, d): multiply x by its transpose.
    own bucket alone: You return the bucket of the query itself again and again. Each further one
        lies behind other planes.
    own bucket twice: The bucket of the query comes twice. It crosses no plane and is there once, in
        front.
    own bucket last: You put the bucket of the query itself at the end. It comes first: nothing else
        is as likely to hold a near vector.
    likeliest last: You return the right buckets from the least likely to the likeliest. The
        likeliest comes first.
    sum before the square: You add up the products x · a and then take the square, or the absolute
        value, so that planes on two sides of 0 cancel each other. Square each, and add then.
    rank for the plane: You flip the bit whose number is the rank of a plane. argsort tells which
        plane comes first, and that is the bit to flip; another argsort of it tells ranks.
    next bit flipped: You flip the bit beside the right one. Bit j has the weight 2^j, with j from
        0: 1 << j.
    """,
    {
        "own bucket left out": each("sets", _but_own),
        "own bucket alone": each("results", lambda buckets: 0 * buckets + buckets[:, :1]),
        "own bucket twice": each(
            "results", lambda buckets: np.concatenate([buckets[:, :1], buckets[:, :-1]], axis=1)
        ),
        "own bucket last": each("results", lambda buckets: np.roll(buckets, -1, axis=1)),
        "likeliest last": each("results", lambda buckets: buckets[:, ::-1]),
        "single planes alone": each("total", _single_price),
        "pairs at most": each("total", partial(_single_price, most=2)),
        "one after the other": {
            "compute": _flipped_by(lambda planes: np.bitwise_xor.accumulate(1 << planes, axis=1))
        },
        "lowest bits first": (
            *each("price", np.ones_like),
            {"price": lambda p: 4.0 ** np.arange(p.shape[-1]) + 0 * p},
            {"price": np.ones_like, "total": _single_price},
        ),
        "farthest first": (
            {"price": lambda p: 1 / np.square(p)},
            {"price": lambda p: 1 / np.abs(p)},
            {"price": lambda p: 1 / np.square(p), "total": _single_price},
            {"total": _own_first(lambda price, crossed: -price @ crossed.T)},
        ),
        "turned round": each("price", lambda p: -np.square(p)),
        "directions normalised": each(
            "project", lambda x, a: x @ (a / np.linalg.norm(a, axis=-1, keepdims=True)).T
        ),
        "signed products": (
            {"price": lambda p: p},
            {"price": lambda p: p - np.min(p, axis=-1, keepdims=True) + 1e-3},
        ),
        "sum before the square": (
            {"price": lambda p: p, "total": lambda price, crossed: abs(price @ crossed.T)},
        ),
        "distances not squared": each(
            "price", np.abs, lambda p: np.sqrt(np.abs(p)), lambda p: np.abs(p) ** 3
        ),
        "nearest plane decides": each(
            "total",
            lambda price, crossed: np.max(price[:, np.newaxis] * crossed, axis=-1),
            lambda price, crossed: (
                np.min(np.where(crossed, price[:, np.newaxis], np.inf), axis=-1, initial=np.inf)
                * (np.sum(crossed, axis=-1) > 0)
            ),
        ),
        "not their sum": each(
            "total",
            _own_first(lambda price, crossed: np.log(price) @ crossed.T),
            _own_first(lambda price, crossed: price @ crossed.T / np.maximum(crossed.sum(-1), 1)),
        ),
        "one order for all rows": each(
            "price",
            lambda p: np.square(p[:1]) + 0 * p,
            lambda p: np.mean(np.square(p), axis=0) + 0 * p,
            lambda p: np.mean(np.abs(p), axis=0) + 0 * p,
        ),
        "rank for the plane": {
            "compute": _flipped_by(lambda planes: 1 << np.argsort(planes, axis=-1))
        },
        "sorted": each("results", lambda buckets: np.sort(buckets, axis=-1)),
        "flips alone": each("flip", lambda own, flips: flips + 0 * own),
        "added for flipped": each(
            "flip", np.add, np.subtract, np.bitwise_or, lambda own, flips: own & ~flips
        ),
        "next bit flipped": (
            *each("flip", lambda own, flips: own ^ (flips << 1), lambda own, f: own ^ (f >> 1)),
            *each("compute", _flipped_by(lambda p: 2 << p), _flipped_by(lambda p: (1 << p) >> 1)),
        ),
        "number of the bit flipped": {"compute": _flipped_by(lambda planes: planes)},
        "bits reversed": (
            {"order": lambda places: places[::-1]},
            {"flipped": lambda places: places[::-1]},
            {"order": lambda places: places[::-1], "flipped": lambda places: places[::-1]},
        ),
        "directions transposed": each("project", lambda x, directions: x @ directions),
    },
)


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
    steps=_STEPS,
    stages=(
        Stage((_case(5, 3, 5, 3), _case(7, 5, 3, 4), _case(2, 3, 3, 3))),
        Stage((_case(5, 3, 5, 7), _case(1, 7, 5, 11), _case(3, 2, 5, 32), _case(11, 5, 5, 1))),
        Stage((_case(3, 5, 5, 7, "float32"), _case(3, 5, 11, 13))),
        Stage((_case(7, 3, 5, 7, of_length_1=False),)),
    ),
    mistakes=_MISTAKES,
    properties=(buckets_exist, each_bucket_once),
    kind="integral",
)
