"""Attention that goes on from a cache, in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.attention import SCALE_MISTAKES


@documented
def cached_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention that continues from the keys and values of a cache.

    Runs `f` on one new token after several, on several new tokens, on an empty cache, on values of
    another width, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, past_key, past_value)``, by position. The first three
        belong to m new tokens, (h, m, d_k), (h, m, d_k) and (h, m, d_v), the others to the n tokens
        before them, (h, n, d_k) and (h, n, d_v). It returns the output (h, m, d_v), and the keys
        (h, n + m, d_k) and values (h, n + m, d_v) of the longer cache. A new token sees itself and
        all tokens before it.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> def my_step(query, key, value, past_key, past_value):
    ...     keys = np.concatenate([past_key, key], axis=1)
    ...     values = np.concatenate([past_value, value], axis=1)
    ...     return attention(query, keys, values), keys, values
    >>> check.cached_attention(my_step).mistake
    'no mask'
    """
    return run(CACHED_ATTENTION, f, time_limit)


def last_corner(m, n):
    return np.tri(m, n, n - m, dtype=bool)


def softmax_of(scores, axis=-1):
    top = np.max(scores, axis=axis, keepdims=True)
    powers = np.exp(scores - np.where(top == -np.inf, 0, top))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _step(s: Any, query, key, value, past_key, past_value):
    both = s.join_keys(past_key, key), s.join_values(past_value, value)
    keys = s.attended(past_key, key, both[0])
    values = s.attended(past_value, value, both[1])
    scores = query @ np.swapaxes(keys, -1, -2) * s.factor(query, keys, values, None)
    A = s.weigh(s.softmax, scores, s.mask(query.shape[1], keys.shape[1]))
    output = s.finish(s.output(A, past_value, value, values), value)
    return s.results(output, *s.kept((past_key, past_value), (key, value), both))


def the_order_of_the_past_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the output depends on the order of the tokens in the cache."""
    past = {name: case.arrays[name][:, ::-1].copy() for name in ("past_key", "past_value")}
    moved = again(**past)
    fits = moved and moved[0].shape == values[0].shape
    if fits and not np.allclose(moved[0], values[0], atol=1e-4):
        return "Reversing the tokens of the cache must not change the output; it changes yours."
    return None


def _case(m: int, n: int, d_k: int = 3, d_v: int = 5, h: int = 2, dtype: str = "float64") -> Case:
    drawn = {
        "query": draw(63, h, m, d_k),
        "key": draw(64, h, m, d_k),
        "value": draw(65, h, m, d_v),
        "past_key": draw(66, h, n, d_k),
        "past_value": draw(67, h, n, d_v),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


TEXT = Text(globals())

CACHED_ATTENTION = Check(
    name="cached_attention",
    parameters=("query", "key", "value", "past_key", "past_value"),
    results={"output": "(h, m, d_v)", "keys": "(h, n + m, d_k)", "values": "(h, n + m, d_v)"},
    compute=_step,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                *(_case(1, 4), _case(1, 7, h=3), _case(1, 1), _case(1, 5, 4, 4)),
                *(_case(3, 4), _case(2, 2, 3, 3), _case(5, 2)),  # where the mask shows
            )
        ),
        Stage((_case(1, 0), _case(3, 0))),
        Stage((_case(1, 4, dtype="float32"), _case(3, 2, dtype="float32"))),
    ),
    mistakes=SCALE_MISTAKES + TEXT.mistakes,
    properties=(the_order_of_the_past_is_free,),
)
