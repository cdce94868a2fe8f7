"""Causal attention in which several heads of queries share one of keys, and the check of it."""

from collections.abc import Callable

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Stage
from attnbook.check.engine.text import Text
from attnbook.check.exercises.tiled_attention import SLOPES, arrays, check_of, unmoved_sums


@documented
def grouped_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check causal grouped-query attention, in which groups of query heads share a KV head.

    Query head h reads KV head h // group, where group = n_heads / n_kv_heads. Runs `f` on groups of
    two, three and four, on a single KV head and on one per query head, on lengths that no tile
    divides, and on the cases of `tiled_attention`, without counting tiles.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on arrays (n_heads, n, 16) and twice
        (n_kv_heads, n, 16). It returns the output, (n_heads, n, 16); query i sees keys 0 to i. It
        may be a kernel that takes only PyTorch tensors, and it may raise an error for float16.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> def in_turn(query, key, value):
    ...     heads = [h % len(key) for h in range(len(query))]
    ...     return attention(query, key[heads], value[heads], is_causal=True)
    >>> check.grouped_attention(in_turn).mistake
    'heads in turn'
    """
    return run(GROUPED_ATTENTION, f, time_limit)


def in_groups(query, key):
    """Return the queries as (n_kv_heads, group, n, d)."""
    return query.reshape(len(key), -1, *query.shape[1:])


TEXT = Text(globals())

GROUPED_ATTENTION = check_of(
    "grouped_attention",
    (
        Stage((Case(arrays(6, 5, 3)), Case(arrays(4, 37, 2)))),
        Stage((Case(arrays(3, 5, 1)), Case(arrays(4, 17, 1)), Case(arrays(2, 5, 2)))),
        *SLOPES,
        Stage((Case(unmoved_sums(2)),), may_raise="float16"),
    ),
    TEXT.mistakes,
    "first head for all",
    "query compared with itself",
    "keys compared with themselves",
    "query and key swapped",
    "query used as value",
)
