"""Queries on arrays of any library: attention is estimated from near keys, those in the tables."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.move import move
from attnbook.hashing.collision import log_chance
from attnbook.sketch.estimators import ESTIMATORS, Candidates
from attnbook.sketch.logits import first_of_largest, log_sum, masked
from attnbook.sketch.state import SketchState
from attnbook.sketch.visible_keys import Visible

GATHERED = 2**22
"""How many numbers of keys and values are gathered at once; queries are taken in blocks."""


class NearKeys(NamedTuple):
    """What the tables give for a block of queries.

    Where nothing counts, the output is 0, logarithms and scores are -inf and the best row is -1.
    """

    mass: Array  # (n_q,), log Σ exp of the scores of all different keys
    output: Array  # (n_q, d_v)
    count: Any  # int64 (n_q,), different keys; tuple has a method of this name
    best: Array  # int64 (n_q,), the row with the largest score
    largest: Array  # (n_q,), its score
    expected: Any = None  # (n_q,), the mass if each key stands for 1 / P like it; None without P
    rows: Any = None  # int64 (n_q, M), -1 where there is none; None where a kernel kept them
    weights: Any = None  # (n_q, M)


def near_in_blocks(
    state: SketchState, query: Array, visible: Visible, weigh: bool
) -> Iterator[tuple[slice, NearKeys]]:
    """Yield slices of queries (n_q, d) with what the tables give for each."""
    columns = state.tables().columns(state.engine.signatures(query, of_queries=True))
    for part in blocks(state, columns):
        yield part, near(state, query[part, :], columns[part, :], visible.of(part), weigh)


def blocks(state: SketchState, columns: Array) -> Iterator[slice]:
    """Yield slices of queries whose padded candidates fit into `GATHERED` numbers together.

    `columns` are the checked signatures of the queries, with a column for each bucket.
    """
    counts = state.tables().counts_of(columns)
    widest = move(counts, "numpy").max(axis=-1, initial=0).tolist()
    held = (state.key.array(), state.value.array())
    numbers = counts.shape[1] * sum(x.shape[1] + 2 for x in held)
    start, width = 0, 0
    for i in range(len(widest)):
        width = max(width, widest[i])
        if i > start and (i + 1 - start) * width * numbers > GATHERED:
            yield slice(start, i)
            start, width = i, widest[i]
    yield slice(start, len(widest))


def candidates(state: SketchState, columns: Array, visible: Visible) -> Candidates:
    """Return what the tables hold for each query, without keys that it may not attend to."""
    xp = array_namespace(columns)
    rows, found = state.tables().rows_of(columns)
    flat = xp.reshape(rows, (rows.shape[0], rows.shape[1] * rows.shape[2]))
    return Candidates.of(rows, found & xp.reshape(visible.at(flat), rows.shape))


def near(
    state: SketchState, query: Array, columns: Array, visible: Visible, weigh: bool = True
) -> NearKeys:
    """Return the estimate from the tables for queries whose signatures are `columns`.

    Without `weigh` the probabilities to be found are computed only if the estimator needs them.
    """
    settings, xp = state.settings, array_namespace(query)
    found = candidates(state, columns, visible)
    shape = tuple(found.rows.shape)
    flat = (shape[0], shape[1] * shape[2])
    rows = xp.reshape(found.rows, flat)
    q, key, value = (to_accumulate(x) for x in (query, *state.taken(rows)))
    scores = xp.matmul(key, q[:, :, None])[..., 0] * settings.scale_of(query)  # (n_q, M)
    expected, chances = None, list[Array]()
    distinct = xp.reshape(found.distinct, flat)
    by_importance = settings.estimator == "importance"
    if (weigh or by_importance) and settings.knows_chances:
        probability = state.engine.retrieval_probability(q[:, None, :], key)
        sure = xp.where(distinct, probability, xp.ones_like(probability))
        expected = log_sum(masked(scores - log_chance(sure), distinct))
        chances = [xp.reshape(probability, shape)] if by_importance else []
    weights = ESTIMATORS[settings.estimator](xp.reshape(scores, shape), found, *chances)
    weights = xp.reshape(weights, flat)
    logits = masked(scores, distinct)
    counted = distinct if settings.estimator in ("union", "importance") else found.found
    best, largest = first_of_largest(rows, logits)
    return NearKeys(
        mass=log_sum(logits),
        output=xp.matmul(weights[:, None, :], value)[:, 0, :],
        count=xp.astype(xp.count_nonzero(distinct, axis=-1), xp.int64),
        best=best,
        largest=largest,
        expected=expected,
        rows=xp.where(xp.reshape(counted, flat), rows, xp.full_like(rows, -1)),
        weights=weights,
    )
