r"""Multi-probe: the buckets beside a query's own, the likeliest to hold a near key first.

.. math:: \min_{C}\; \sum_{j \in C} c_j^2

A near key differs from the query by a little along every projection. So the codes that differ are
most likely those of projections in which the query lies close to a border. c_j is the distance to
the border that code j crosses, and the buckets with the least sums of squares over the set C of
crossed borders come first.
"""

from typing import Annotated

from attnbook.arrays.arguments import check_int
from attnbook.arrays.array import Array, array_namespace

MOST_PROBES = 2**10


def cheapest(
    costs: Annotated[Array, "... n_codes n_changes"],
    changes: Annotated[Array, "... n_codes n_changes"],
    n: int,
) -> Annotated[Array, "... n"]:
    """Return the sums of `changes` of the n cheapest choices, of one change a code at most.

    The cheapest is to change nothing, 0. `costs` are at least 0. Code by code, each choice so far
    is kept as it is or joined with a change, and the n cheapest remain: a choice that is not among
    the n cheapest of its codes is not after more codes either. Cost: O(n_codes · n log n) per
    query, for a few changes per code. (Lv et al. use a heap, which no array library has.)
    """
    xp = array_namespace(costs)
    total, sums = xp.zeros_like(costs[..., :1, 0]), xp.zeros_like(changes[..., :1, 0])
    for j in range(costs.shape[-2]):
        total = xp.concat(
            [total, *(total + costs[..., j, i, None] for i in range(costs.shape[-1]))], axis=-1
        )
        sums = xp.concat(
            [sums, *(sums + changes[..., j, i, None] for i in range(costs.shape[-1]))], axis=-1
        )
        most = min(n, total.shape[-1])
        order = xp.argsort(total, axis=-1, stable=True)[..., :most]
        total = xp.take_along_axis(total, order, axis=-1)
        sums = xp.take_along_axis(sums, order, axis=-1)
    return sums


def check_probes(n_probes: int, n_buckets: int, shown: str) -> int:
    """Return `n_probes` as an int of at least 1 and at most `n_buckets`, or raise."""
    check_int("n_probes", n_probes, at_least=1, at_most=MOST_PROBES)
    if n_probes > n_buckets:
        raise ValueError(
            f"n_probes must be at most {n_buckets}, {shown} that a table can have, got {n_probes}"
        )
    return n_probes
