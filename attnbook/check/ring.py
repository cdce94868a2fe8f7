"""Attention round a ring of processes in steps, and the ways to get each wrong."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.arrays.array import array_namespace
from attnbook.check.engine import documented, run
from attnbook.check.merge_mistakes import MERGE_MISTAKES, MERGE_STEPS, merge_from_steps
from attnbook.check.normalization import maximum
from attnbook.check.outputs import OUTPUT_MISTAKES, SCALE_MISTAKES
from attnbook.check.report import Report
from attnbook.check.scores import causal, one_over_root
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signed_as
from attnbook.check.steps import Case, Check, Stage, draw, each, only


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


STEPS: dict[str, Callable] = {
    **MERGE_STEPS,
    "inputs": lambda query, key, value: (query, key, value),
    "steps": lambda p: p,
    "source": lambda r, i, p: (r - i) % p,
    "value_source": lambda own, r, i, p: own,
    "factor": one_over_root,
    "hide": lambda scores, later: scores,
    "join": lambda parts, s: _all(parts, s),
    "divide": lambda part, p: part[2] / part[1],
    "home": lambda outputs: outputs,
}


def _all(parts, s):
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


def _added(factor: Callable) -> Callable:
    """Return the join whose output is the sum of the outputs of p parts times ``factor(p)``."""

    def join(parts, s):
        output = factor(len(parts)) * sum(u / t for _, t, u in parts)
        return parts[0][0], np.ones_like(parts[0][1]), output

    return join


def _mean_of_two(parts, s):
    outputs = [u / t for _, t, u in parts]
    mean = functools.reduce(lambda before, new: (before + new) / 2, outputs)
    return parts[0][0], np.ones_like(parts[0][1]), mean


def _by_maxima(parts, s):
    top = np.max([m for m, *_ in parts], axis=0)
    weights = [np.exp(m - top) for m, *_ in parts]
    return top, sum(weights), sum(w * u / t for w, (_, t, u) in zip(weights, parts, strict=True))


def _last_lost(r, i, p):
    """Return whose pair process r holds in a list that is moved down in place, place by place."""
    return r + i if r + i < p else (r + i - p) % max(p - 1, 1) + 1 if p > 1 else 0


def _running(total: bool, weighted: bool) -> Callable:
    """Return the join of a running softmax that rescales some of what it has when m grows."""

    def join(parts, s):
        m, t, u = parts[0]
        for m_2, t_2, u_2 in parts[1:]:
            before, m = m, np.maximum(m, m_2)
            old, new = np.exp(before - m), np.exp(m_2 - m)
            t = (old if total else 1) * t + new * t_2
            u = (old if weighted else 1) * u + new * u_2
        return m, t, u

    return join


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

RING_ATTENTION = Check(
    name="ring_attention",
    parameters=("query", "key", "value"),
    results={"outputs": "(p, n / p, d_v)"},
    compute=ring,
    steps=STEPS,
    stages=(
        Stage((_case(2, 2), _case(3, 2), _case(4, 3), _case(3, 5, 4, 4))),
        Stage((_case(1, 3), _case(2, 1), _case(3, 3, size=1000.0))),
        Stage((_case(3, 2, dtype="float32"),)),
    ),
    variants=({"source": lambda r, i, p: (r + i) % p}, {"source": lambda r, i, p: i % p}),
    mistakes=SCALE_MISTAKES
    + mistakes(
        """
        own keys alone: Each process attends to its own keys alone, once or in every step. Keys have
            to go round: in step i process r has those of process r − i, and after p steps every
            query has met every key.
        one step too few: One process is left out. With p processes there are p steps, the first of
            them with the keys of the process itself.
        one step too many: You go on after a whole turn, so the first keys count twice.
        two steps: You take two steps, whatever the number of processes. There are p.
        own keys left out: You pass the keys on before the first step, and the last ones never come
            back: a process never meets its own. Begin with them.
        overwritten on the way: You write into the list while it moves, so a pair that was received
            is sent on at once and another one is lost. All send at the same time:
            make a new list from the old one.
        not home: Each process returns what the queries of another one have found. Queries that
            travel come home after p moves.
        values stay: The keys travel and the values do not, or they travel on their own, or the
            values alone do. Each key goes with its value.
        not rescaled: You add totals and sums that are relative to different maxima. Multiply both
            parts by exp(their own maximum − the common one) first.
        old total not rescaled: Where the maximum grows you rescale the weighted sums that you have,
            and not their total. Multiply both by exp(old maximum − new maximum).
        old sums not rescaled: Where the maximum grows you rescale the total that you have, and not
            the weighted sums. Multiply both by exp(old maximum − new maximum).
        sum of the outputs: You add the outputs of the steps. Merge the parts, and divide once at
            the end.
        mean of the outputs: You take the mean of the outputs of the steps, or of what you have and
            of each new output. A step in which large
            scores were met counts more: merge the parts, and divide once at the end.
        not divided: You return the weighted sums, or divide them by the number of processes. Divide
            by the total at the end.
        divided by the number of processes: You divide once more by the number of processes. The
            totals have all keys in them already.
        causal: You hide the keys, or the shards, that come after the query. Here every query sees
            all keys.
        last keys alone: Each step overwrites what the steps before have found, so only the keys
            that came last are left. Merge each new part with what you have.
        outputs weighed by their maxima: You weigh the output of each step by exp of its maximum
            alone. How many keys count besides the largest is in the totals: merge the parts.
        scale by a length: You divide the scores by the root of a number of keys or of processes,
            or have it in the root beside d_k. A score has d_k terms: divide by √d_k alone.
        """,
        {
            "own keys alone": each("steps", lambda p: 1),
            "last keys alone": each("join", lambda parts, s: parts[-1]),
            "one step too few": each("steps", lambda p: max(1, p - 1)),
            "one step too many": each("steps", lambda p: p + 1),
            "two steps": each("steps", lambda p: min(p, 2)),
            "own keys left out": (
                {"steps": lambda p: max(1, p - 1), "source": lambda r, i, p: (r - i - 1) % p},
                {"steps": lambda p: max(1, p - 1), "source": lambda r, i, p: (r + i + 1) % p},
            ),
            "overwritten on the way": each(
                "source",
                lambda r, i, p: r if i == 0 else p - 1,
                lambda r, i, p: r if i == 0 else 0,
                _last_lost,
                lambda r, i, p: p - 1 - _last_lost(p - 1 - r, i, p),
            ),
            "not home": each(
                "home",
                *(lambda x, by=by: np.roll(x, by, axis=0) for by in (1, -1)),
                lambda x: x[::-1],
            ),
            "values stay": each(
                "value_source",
                lambda own, r, i, p: r,
                *(lambda own, r, i, p, by=by: (own + by) % p for by in (1, -1)),
                lambda own, r, i, p: (2 * r - own) % p,
            )
            + tuple(
                {"source": lambda r, i, p: r, "value_source": value_source}
                for value_source in (
                    lambda own, r, i, p: (r - i) % p,
                    lambda own, r, i, p: (r + i) % p,
                )
            ),
            "not rescaled": (
                *only(MERGE_MISTAKES, "no rescaling")[0].ways,
                {"join": _running(total=False, weighted=False)},
            ),
            "old total not rescaled": each("join", _running(total=False, weighted=True)),
            "old sums not rescaled": each("join", _running(total=True, weighted=False)),
            "sum of the outputs": each("join", _added(lambda p: 1)),
            "outputs weighed by their maxima": each("join", _by_maxima),
            "mean of the outputs": each("join", _added(lambda p: 1 / p), _mean_of_two),
            "not divided": each("divide", lambda part, p: part[2], lambda part, p: part[2] / p),
            "divided by the number of processes": each(
                "divide", lambda part, p: part[2] / part[1] / p
            ),
            "scale by a length": each(
                "factor",
                lambda q, k, v, mask: k.shape[1] ** -0.5,
                lambda q, k, v, mask: (len(k) * k.shape[1]) ** -0.5,
                lambda q, k, v, mask: len(q) ** -0.5,
                lambda q, k, v, mask: (len(q) * q.shape[2]) ** -0.5,
            ),
            "causal": each(
                "hide",
                lambda scores, later: causal(scores, -later * len(scores)),
                lambda scores, later: scores - (np.inf if later > 0 else 0),
            ),
        },
    )
    + only(MERGE_MISTAKES, *_OF_MERGING)
    + only(OUTPUT_MISTAKES, *_OF_INPUTS),
    adapt=_adapt,
)
