"""Causal attention in which several heads of queries share one of keys, and the check of it."""

from collections.abc import Callable

import numpy as np

from attnbook.check.causal_tiles import SLOPES, arrays, check_of, unmoved_sums
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Stage, Way


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


def _both(key_head: Callable) -> tuple[Way, ...]:
    """Return the ways to read keys, values or both of the heads that a function tells."""

    def of_value(own, h, n_heads, n_own):
        return key_head(h, n_heads, n_own)

    def right(own, h, n_heads, n_own):
        return h * n_own // n_heads

    return (
        {"key_head": key_head},
        {"key_head": key_head, "value_head": right},
        {"value_head": of_value},
    )


GROUPED_ATTENTION = check_of(
    "grouped_attention",
    (
        Stage((Case(arrays(6, 5, 3)), Case(arrays(4, 37, 2)))),
        Stage((Case(arrays(3, 5, 1)), Case(arrays(4, 19, 1)), Case(arrays(2, 5, 2)))),
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
    first key head for all: Every query head reads the first head of keys or of values. Head h reads
        head h // group of both.
    last key head for all: Every query head reads the last head of keys or of values. Head h reads
        head h // group of both.
    neighbouring key head: A query head reads keys or values of the head after its own, or before.
        Head h reads head h // group of both.
    key heads averaged: You average the heads of keys or of values, or add them up. Each keeps to
        itself: query head h reads head h // group of both.
    groups in reverse: The first query heads read the last heads of keys or of values. Head 0
        reads head 0.
    """,
        {
            "heads in turn": _both(lambda h, n_heads, n_own: h % n_own),
            "divided by the number of key heads": _both(lambda h, n_heads, n_own: h // n_own),
            "first key head for all": _both(lambda h, n_heads, n_own: 0),
            "last key head for all": _both(lambda h, n_heads, n_own: n_own - 1),
            "neighbouring key head": tuple(
                way
                for key_head in (
                    lambda h, n_heads, n_own: (h * n_own // n_heads + 1) % n_own,
                    lambda h, n_heads, n_own: (h * n_own // n_heads - 1) % n_own,
                    lambda h, n_heads, n_own: min(h * n_own // n_heads + 1, n_own - 1),
                    lambda h, n_heads, n_own: max(h * n_own // n_heads - 1, 0),
                )
                for way in _both(key_head)
            ),
            "key heads averaged": tuple(
                {"inputs": change}
                for f in (np.mean, np.sum)
                for change in (
                    lambda q, k, v, f=f: (q, 0 * k + f(k, 0), 0 * v + f(v, 0)),
                    lambda q, k, v, f=f: (q, 0 * k + f(k, 0), v),
                    lambda q, k, v, f=f: (q, k, 0 * v + f(v, 0)),
                )
            ),
            "groups in reverse": _both(
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
