"""The check of causal attention in tiles that skips what it need not read, and its cases.

The check of heads that share keys takes most of the cases over.
"""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Mistake, Stage, Values, without
from attnbook.check.engine.text import Text
from attnbook.check.exercises.attention import outputs_between_values
from attnbook.check.shared import attention_cases as cases
from attnbook.check.shared.tiles import (
    TILE,
    TILE_MISTAKES,
    tiles_from_steps,
)

WIDTH = 16
"""Of every head here."""


@documented
def tiled_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check causal attention in tiles of 16 queries and 16 keys that skips fully masked tiles.

    Runs `f` on one tile and on several, on lengths that no tile divides, on scores that rise slowly
    or steeply, that fall or that are far below 0, and in float16, where the sums need a higher
    precision. Then it makes a late value infinite. A weight of 0 times infinity is NaN, so the rows
    that become NaN show which tiles were read.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on (n_heads, n, 16) arrays. It returns the
        output, of the same shape; query i sees keys 0 to i. It may be a kernel, compiled or
        interpreted, that takes only PyTorch tensors, and it may raise an error for float16.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> check.tiled_attention(lambda q, k, v: attention(q, k, v, is_causal=True)).mistake
    'hidden tiles read'
    """
    return run(TILED_ATTENTION, f, time_limit)


def arrays(n_heads: int, n: int, n_own: int = 0, *, dtype: str = "float32") -> dict:
    """Return drawn query, key and value; the last two of fewer heads if `n_own` says so."""
    sizes = (n_heads, n_own or n_heads, n_own or n_heads)
    drawn = (cases.draw(91 + i, size, n, WIDTH) for i, size in enumerate(sizes))
    return dict(zip(("query", "key", "value"), (x.astype(dtype) for x in drawn), strict=True))


def sloped(slope: float, start: float = 0.0) -> dict:
    """Return arrays whose score of key j is exactly start + slope · j, for every query."""
    given = arrays(1, 37)
    query, key = np.zeros_like(given["query"]), np.zeros_like(given["key"])
    query[..., 0], key[..., 0] = 4, start + slope * np.arange(37)  # the scale is 1/4
    return {**given, "query": query, "key": key}


def unmoved_sums(n_heads: int = 1, n_own: int = 1) -> dict:
    """Return arrays of float16 whose weighted sums lose what is added to them in float16.

    All scores are equal. The values of the first tile add up to 32768, where float16 knows every
    32nd number; those of the next three add 8 each, and those of the last take 32768 away.
    """
    value = np.repeat([2048.0, 0.5, 0.5, 0.5, -2048.0], TILE)[:, np.newaxis]
    zeros = np.zeros((n_own, 5 * TILE, WIDTH), np.float16)
    query = np.zeros((n_heads, *zeros.shape[1:]), np.float16)
    return {"query": query, "key": zeros, "value": (zeros + value).astype(np.float16)}


SLOPES = (
    Stage((Case(sloped(3.0), about=" (scores that rise)"),)),
    Stage((Case(sloped(-3.0), about=" (scores that fall)"),)),
    Stage((Case(sloped(-3.0, -32768.0), about=" (scores far below 0)"),)),
    Stage((Case(sloped(12.0), about=" (scores that rise steeply)"),)),
)


def _infinite(n: int, place: int) -> Case:
    given = arrays(1, n)
    value = given["value"].copy()
    value[0, place, 3] = np.inf
    return Case({**given, "value": value}, about=f" (a value of key {place} is infinite)")


def what_comes_later_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    later = {name: case.arrays[name].copy() for name in ("key", "value")}
    for x in later.values():
        x[:, -1] += 1
    moved = again(**later)
    if moved and not np.allclose(moved[0][:, :-1], values[0][:, :-1], equal_nan=True):
        return "The last key and value change the output of an earlier query."
    return None


def one_row_is_its_value(case: Case, values: Values, again: Callable) -> str | None:
    value, n_heads = case.arrays["value"], len(values[0])
    first = value[[h * len(value) // n_heads for h in range(n_heads)], 0]
    if values[0].ndim == 3 and np.allclose(values[0][:, 0], first, 1e-2, 1e-2):
        return None
    return "Query 0 sees key 0 alone, so its output is value 0; here it is not."


def check_of(name: str, stages: tuple[Stage, ...], own: tuple[Mistake, ...], *left: str) -> Check:
    """Return a check of tiles with these stages, its own mistakes and all others but those left."""
    return Check(
        name=name,
        parameters=("query", "key", "value"),
        results={"output": "(n_heads, n, 16)"},
        compute=tiles_from_steps,
        steps=TEXT.steps,
        variants=TEXT.variants,
        stages=stages,
        mistakes=(*own, *without(TILE_MISTAKES, *left)),
        properties=(
            one_row_is_its_value,
            what_comes_later_changes_nothing,
            outputs_between_values,
        ),
        legible=True,
    )


TEXT = Text(globals())

TILED_ATTENTION = check_of(
    "tiled_attention",
    (
        Stage((Case(arrays(1, 3)), *(Case(arrays(2, n)) for n in (16, 17, 37)))),
        *SLOPES,
        Stage((Case(unmoved_sums()),), may_raise="float16"),
        # in another tile of keys each time: the second, the third and the last
        Stage((_infinite(53, 20), _infinite(53, 47), _infinite(53, 52))),
    ),
    TEXT.mistakes,
)
