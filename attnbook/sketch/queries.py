"""Queries are checked, and answered in blocks from the near keys of the tables and a window.

Both are groups of keys. The mass of a group is the logarithm of its sum of exponentials, and its
output is its weighted mean value. A softmax over the masses mixes the outputs.
"""

from dataclasses import dataclass
from typing import Any

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.evidence import evidence_of
from attnbook.sketch.scored_keys import ScoredKeys
from attnbook.sketch.state import SketchState
from attnbook.sketch.visible_keys import EVERYTHING, Visible


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a block of queries."""

    output: Array  # (n_q, d_v)
    evidence: Any = None  # the arrays of `Evidence`, in its order


def check_query(state: SketchState, query: Array) -> None:
    """Raise unless `query` is finite and fits the keys."""
    check_floats(query=query)
    state.check_rows("query", query, "n_q, d", state.key)
    hashed = state.index is not None and state.engine.compiled  # then the hash looks at it
    if not hashed and not state.engine.all_finite(query):
        raise ValueError("query must be finite, got NaN or infinity")


def answer(
    state: SketchState,
    query: Array,
    visible: Visible = EVERYTHING,
    with_evidence: bool = False,
    *,
    window: ScoredKeys | None = None,
) -> Answer:
    """Return the answer to checked queries (n_q, d); `window` is of keys that all of them score."""
    parts = []
    for part, near in state.engine.near(state, query, visible, with_evidence):
        own = None if window is None else ScoredKeys(*(x[part, ...] for x in window))
        evidence = evidence_of(state, query[part, :], near, own) if with_evidence else None
        parts.append(Answer(_mixed(near, own), evidence))
    return joined(parts)


def joined(parts: list[Answer]) -> Answer:
    """Return the answers to successive blocks as one."""
    xp = array_namespace(parts[0].output)
    output = xp.concat([a.output for a in parts], axis=0)
    if parts[0].evidence is None:
        return Answer(output)
    fields = zip(*(a.evidence for a in parts), strict=True)
    return Answer(output, evidence=[xp.concat(list(blocks), axis=0) for blocks in fields])


def _mixed(near, window):
    """Return the output of near keys and window together."""
    if window is None:  # also for weights that do not sum to 1
        return near.output
    xp = array_namespace(near.output)
    shares = softmax_of(xp.stack([near.mass, window.mass], axis=-1), axis=-1)  # (n_q, 2)
    outputs = xp.stack([near.output, window.output], axis=1)
    return xp.matmul(shares[:, None, :], outputs)[:, 0, :]
