"""Linear attention with a normaliser in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def linear_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check causal linear attention with the features ELU + 1 and a normaliser.

    Runs `f` on several sizes, on one token, on values of another width, on a batch, and in float64
    and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on (n, d_k), (n, d_k) and (n, d_v). It
        returns the output (n, d_v): row t is the mean of the values up to t, weighted by the
        products of the features of query t and of each key. The features of x are x + 1 above 0
        and eˣ below. It may be written for one sequence, without leading axes.

    Examples
    --------
    >>> from attnbook import check, linear_attention
    >>> def my_attention(query, key, value):
    ...     features = linear_attention.elu_plus_one
    ...     return linear_attention.decayed_attention(features(query), features(key), value)[0]
    >>> check.linear_attention(my_attention).mistake
    'no normaliser'
    """
    return run(LINEAR_ATTENTION, f, time_limit)


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def softmax_of(x):
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


def _attend(s: Any, query, key, value):
    q, k = s.query_features(query), s.key_features(key)
    weights = s.masked(s.products(q, k))
    output = s.divided(s.mixed(weights, value), s.total(weights, q, k))
    return s.finish(output, value)


def first_row_is_the_first_value(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the first query, which sees one token, gets its value."""
    first = case.arrays["value"][..., 0, :]
    if values[0].shape != case.arrays["value"].shape or np.allclose(values[0][..., 0, :], first):
        return None
    return "The first query sees only the first token, so it gets its value; here it gets another."


def _case(*shape: int, d_k: int, d_v: int, dtype: str = "float64") -> Case:
    drawn = {
        "query": draw(81, *shape, d_k),
        "key": draw(82, *shape, d_k),
        "value": draw(83, *shape, d_v),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


TEXT = Text(globals())

LINEAR_ATTENTION = Check(
    name="linear_attention",
    parameters=("query", "key", "value"),
    results={"output": "(..., n, d_v)"},
    compute=_attend,
    steps=TEXT.steps,
    stages=(
        Stage((_case(3, d_k=2, d_v=5), _case(7, d_k=5, d_v=3), _case(4, d_k=4, d_v=4))),
        Stage((_case(1, d_k=3, d_v=2),)),
        Stage((_case(5, d_k=3, d_v=2, dtype="float32"),)),
        Stage(
            (_case(2, 5, d_k=3, d_v=7), _case(3, 3, d_k=3, d_v=3)),
            may_raise="a batch (leading axes)",
        ),
    ),
    mistakes=TEXT.mistakes,
    properties=(first_row_is_the_first_value,),
)
