"""Attention round a ring of processes in steps, and the ways to get each wrong."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.arrays.array import array_namespace
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, draw, only
from attnbook.check.engine.text import Text
from attnbook.check.exercises.attention import OUTPUT_MISTAKES, SCALE_MISTAKES
from attnbook.check.exercises.softmax import maximum
from attnbook.check.shared.merging import MERGE_MISTAKES, merge_from_steps


@documented
def ring_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention of all processes of a ring, each of which holds a shard.

    Runs `f` on one to four processes, on values of another width, on scores of ±1000, in float64
    and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position: the shards of all p processes, each
        (n / p, d_k), (n / p, d_k) and (n / p, d_v), in arrays (p, n / p, …). It returns the output
        of each process, (p, n / p, d_v), or a list of p outputs: what its queries find among the
        keys of all, without a mask.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> def my_ring(query, key, value):
    ...     return attention(query, key, value)
    >>> check.ring_attention(my_ring).mistake
    'own keys alone'
    """
    return run(RING_ATTENTION, f, time_limit)


def _read(q, k, v, scale, hide):
    scores = hide(q @ k.T * scale)
    m = maximum(scores, -1)
    weights = np.exp(scores - m)
    return m, np.sum(weights, axis=-1, keepdims=True), weights @ v


def all_merged(parts, s):
    state = parts[0]
    for part in parts[1:]:
        state = merge_from_steps(s, *state, *part)
    return state


def ring(s: Any, query, key, value):
    """Return the output of each process by the steps `s`."""
    query, key, value = s.inputs(query, key, value)
    p, scale = len(query), s.factor(query, key, value, None)
    outputs = []
    for r in range(p):
        parts = []
        for i in range(s.steps(p)):
            source = s.source(r, i, p)
            k, v = key[source], value[s.value_source(source, r, i, p)]
            parts.append(_read(query[r], k, v, scale, functools.partial(s.hide, later=source - r)))
        outputs.append(s.divide(s.join(parts, s), p))
    return s.home(np.stack(outputs))


def with_output(output, parts):
    """Return the part of all that is divided already."""
    return parts[0][0], np.ones_like(parts[0][1]), output


def mean_of_two(outputs):
    """Return the mean of what one has and of each new output, one after the other."""
    return functools.reduce(lambda before, new: (before + new) / 2, outputs)


def by_maxima(parts):
    top = np.max([m for m, *_ in parts], axis=0)
    weights = [np.exp(m - top) for m, *_ in parts]
    return top, sum(weights), sum(w * u / t for w, (_, t, u) in zip(weights, parts, strict=True))


def last_lost(r, i, p):
    """Return whose pair process r holds in a list that is moved down in place, place by place."""
    return r + i if r + i < p else (r + i - p) % max(p - 1, 1) + 1 if p > 1 else 0


def running(parts, rescaled_total, rescaled_weighted):
    """Return the join of a running softmax that rescales some of what it has when m grows."""
    m, t, u = parts[0]
    for m_2, t_2, u_2 in parts[1:]:
        before, m = m, np.maximum(m, m_2)
        old, new = np.exp(before - m), np.exp(m_2 - m)
        t = (old if rescaled_total else 1) * t + new * t_2
        u = (old if rescaled_weighted else 1) * u + new * u_2
    return m, t, u


def _adapt(function: Callable) -> Callable:
    """Return `function` with the outputs of all processes in one array."""

    def adapted(*given):
        found = function(*given)
        if (
            isinstance(found, (list, tuple))
            and len({getattr(x, "shape", None) for x in found}) == 1
        ):
            return (
                array_namespace(*found).stack(list(found)) if hasattr(found[0], "shape") else found
            )
        return found

    return signed_as(function, adapted)


def _case(p: int, m: int, d_k: int = 3, d_v: int = 5, size: float = 1.0, dtype="float64") -> Case:
    query, key = size * draw(81, p, m, d_k), draw(82, p, m, d_k)
    drawn = {"query": query, "key": key, "value": draw(83, p, m, d_v)}
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


_OF_MERGING = (
    *("total not rescaled", "weighted not rescaled", "one part rescaled", "factors exchanged"),
    *("compared with the other part", "sign of the exponent", "minimum"),
    *("one part's maximum for both", "sum or mean of the maxima", "one maximum for all rows"),
    *("maximum not updated", "no maximum", "outputs added", "divided already", "base 2"),
    *("rescaled twice", "no exponential", "weighted taken for an output", "totals averaged"),
    *("factors divided by their sum", "logarithm of the total", "totals multiplied"),
)
_OF_INPUTS = (
    *("query and key swapped", "key and value swapped", "value used as key", "key used as value"),
    *("query used as value", "query compared with itself", "keys compared with themselves"),
)

TEXT = Text(globals())

RING_ATTENTION = Check(
    name="ring_attention",
    parameters=("query", "key", "value"),
    results={"outputs": "(p, n / p, d_v)"},
    compute=ring,
    steps=TEXT.steps,
    stages=(
        Stage((_case(2, 2), _case(3, 2), _case(4, 3), _case(3, 5, 4, 4))),
        Stage((_case(1, 3), _case(2, 1), _case(3, 3, size=1000.0))),
        Stage((_case(3, 2, dtype="float32"),)),
    ),
    variants=TEXT.variants,
    mistakes=SCALE_MISTAKES
    + TEXT.mistakes
    + only(MERGE_MISTAKES, *_OF_MERGING)
    + only(OUTPUT_MISTAKES, *_OF_INPUTS),
    adapt=_adapt,
)
