"""Causal attention in which several heads of queries share one of keys, and the check of it."""

from collections.abc import Callable

import numpy as np

from attnbook.check.causal_tiles import SLOPES, arrays, check_of, unmoved_sums
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Stage, each
from attnbook.check.tile_mistakes import of_heads


@documented
def grouped_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check causal attention whose query heads share the heads of keys and values in groups.

    Query head h reads key head h // group, with group = n_heads / n_kv_heads. Runs `f` on groups of
    two, three and four, on one head of keys for all and on one for each, on lengths that no tile
    divides, and on what `tiled_attention` has, without counting tiles.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on arrays (n_heads, n, 16) and twice
        (n_kv_heads, n, 16). It returns the output, (n_heads, n, 16); query i sees keys 0 to i. It
        may be a kernel that takes the tensors of PyTorch alone, and it may raise on float16.

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


def _grouped(query, n_own, one: Callable):
    """Return the queries with one for each group, in the place of all of its heads."""
    group = len(query) // n_own
    return np.repeat(one(query.reshape(n_own, group, *query.shape[1:])), group, axis=0)


GROUPED_ATTENTION = check_of(
    "grouped_attention",
    (
        Stage((Case(arrays(6, 5, 3)), Case(arrays(4, 37, 2)))),
        Stage((Case(arrays(3, 5, 1)), Case(arrays(4, 17, 1)), Case(arrays(2, 5, 2)))),
        *SLOPES,
        Stage((Case(unmoved_sums(2)),), may_raise="float16"),
    ),
    mistakes(
        """
    heads in turn: Query head h reads keys or values of head h % n_kv_heads: neighbours read
        different heads. Those of one group stand side by side, so it is h // group.
    divided by the number of key heads: Query head h reads keys or values of head h // n_kv_heads.
        Divide by the number of query heads that share one, group = n_heads / n_kv_heads: h //
        group.
    first key head for all: Every query head reads the first head of keys or of values, or the last.
        Head h reads head h // group of both.
    groups in reverse: The first query heads read the last heads of keys or of values. Head 0
        reads head 0.
    ends of the groups: A group begins or ends at the wrong head, or query head h reads head h as
        long as there is one. A group has n_heads / n_kv_heads neighbours: h // group.
    first head of each group alone: All but the first head of each group are 0. Every head of
        queries has an output of its own.
    groups taken apart: The outputs are right, and stand in another order: the heads of a group are
        not side by side. Output h is that of query head h.
    key heads averaged: You take the mean or the sum of the heads of keys, of values, or of both,
        for all. Each group reads its own head.
    one query for a group: All heads of a group have one output, of their mean or of the first of
        them. They share keys and values; each has queries of its own.
    """,
        {
            "heads in turn": of_heads(lambda h, n_heads, n_own: h % n_own),
            "divided by the number of key heads": of_heads(lambda h, n_heads, n_own: h // n_own),
            "first key head for all": (
                *of_heads(lambda h, n_heads, n_own: 0),
                *of_heads(lambda h, n_heads, n_own: n_own - 1),
            ),
            "ends of the groups": (
                *of_heads(lambda h, n_heads, n_own: min((h + 1) * n_own // n_heads, n_own - 1)),
                *of_heads(lambda h, n_heads, n_own: max((h - 1) * n_own // n_heads, 0)),
                *of_heads(lambda h, n_heads, n_own: min(h, n_own - 1)),
                *of_heads(lambda h, n_heads, n_own: h // (n_heads // n_own + 1)),
            ),
            "first head of each group alone": each(
                "store",
                lambda x, n_own: x * (np.arange(len(x)) % (len(x) // n_own) == 0)[:, None, None],
            ),
            "groups taken apart": each(
                "store",
                lambda x, n_own: x.reshape(n_own, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape),
                lambda x, n_own: x.reshape(-1, n_own, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape),
            ),
            "key heads averaged": each(
                "inputs",
                *(
                    change
                    for f in (np.mean, np.sum)
                    for change in (
                        lambda q, k, v, f=f: (q, 0 * k + f(k, axis=0), 0 * v + f(v, axis=0)),
                        lambda q, k, v, f=f: (q, 0 * k + f(k, axis=0), v),
                        lambda q, k, v, f=f: (q, k, 0 * v + f(v, axis=0)),
                    )
                ),
            ),
            "one query for a group": each(
                "inputs",
                *(
                    lambda q, k, v, f=f: (_grouped(q, len(k), f), k, v)
                    for f in (lambda x: np.mean(x, axis=1), lambda x: x[:, 0])
                ),
            ),
            "groups in reverse": of_heads(
                lambda h, n_heads, n_own: n_own - 1 - h * n_own // n_heads,
            ),
        },
    ),
    "first head for all",
    "query compared with itself",
    "keys compared with themselves",
    "query and key swapped",
    "query used as value",
)
