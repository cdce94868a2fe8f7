"""Linear attention with decay in chunks, in steps, and the ways to get each wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def chunkwise_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check linear attention with decay, computed in chunks.

    Runs `f` on several chunks, on a last chunk that is shorter, on chunks of one token, on one
    chunk of all tokens, on a decay so strong that the state is lost, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, log_decay, length)``, by position, on (n, d_k), (n, d_k),
        (n, d_v), (n,) and an int, the number of tokens in a chunk. It returns the output (n, d_v)
        and the last state (d_k, d_v) of the recurrence S ← exp(log_decay) S + k vᵀ, o = Sᵀq.

    Examples
    --------
    >>> from attnbook import check, linear_attention
    >>> def my_chunks(query, key, value, log_decay, length):
    ...     return linear_attention.decayed_attention(query, key, value, 0 * log_decay)
    >>> check.chunkwise_attention(my_chunks).mistake
    'no decay'
    """
    return run(CHUNKWISE_ATTENTION, f, time_limit)


def _chunks(s: Any, query, key, value, log_decay, length):
    state, rows = np.zeros((key.shape[1], value.shape[1]), value.dtype), []
    length = s.length_of(length, len(query))
    for start in range(0, len(query), length):
        q, k, v = (x[start : start + length] for x in (query, key, value))
        since = s.since(log_decay[start : start + length])
        before = s.faded_read(since)[:, np.newaxis] * s.read(q, state)
        rows.append(s.output(before, s.inside(q, k, s.gamma(since), v)))
        added = (s.faded_keys(since)[:, np.newaxis] * k).T @ v
        state = s.carried(s.faded_state(since) * state, added)
    return s.results(np.concatenate(rows), state)


def the_length_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say from which token on the output differs from the recurrence."""
    q, k, v, log_decay, length = case.arguments.values()
    if values[0].shape != v.shape:
        return None
    state, right = np.zeros((k.shape[1], v.shape[1])), np.empty(v.shape)
    for t in range(len(q)):
        state = np.exp(log_decay[t]) * state + np.outer(k[t], v[t])
        right[t] = q[t] @ state
    wrong = ~np.all(np.isclose(values[0], right, rtol=1e-3, atol=1e-4), axis=-1)
    if np.any(wrong) and np.argmax(wrong) >= length:
        return f"The first chunk is right; the first wrong row is {int(np.argmax(wrong))}."
    return None


def _case(
    n: int, length: int, d_k: int = 3, d_v: int = 5, dtype: str = "float64", strong: int = 0
) -> Case:
    arrays = {
        "query": draw(87, n, d_k),
        "key": draw(88, n, d_k),
        "value": draw(89, n, d_v),
        "log_decay": -0.1 - 0.5 * np.abs(draw(90, n)),
    }
    if strong:  # this token's decay is 0 in floating point
        arrays["log_decay"][strong] = -1000
    arguments = {name: x.astype(dtype) for name, x in arrays.items()}
    about = f", where log_decay[{strong}] = -1000" if strong else ""
    return Case(arguments | {"length": length}, about=about)


TEXT = Text(globals())

CHUNKWISE_ATTENTION = Check(
    name="chunkwise_attention",
    parameters=("query", "key", "value", "log_decay", "length"),
    results={"output": "(n, d_v)", "state": "(d_k, d_v)"},
    compute=_chunks,
    steps=TEXT.steps,
    stages=(
        Stage((_case(6, 3), _case(8, 2, 2, 3), _case(9, 3, 3, 3), _case(5, 5, 2, 3))),
        Stage((_case(5, 1), _case(4, 4))),
        Stage((_case(7, 3), _case(11, 4))),
        Stage((_case(9, 4, 2, 3, strong=5), _case(7, 7, strong=3))),
        Stage((_case(6, 3, dtype="float32"),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(the_length_is_free,),
)
