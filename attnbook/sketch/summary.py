"""The summary of all keys of a sketch: heavy keys, moments of the others, a sample, a box.

Each part is computed when it is first needed and then kept in the state. Added keys enter a part
where that is exact. A removal discards all parts.
"""

import math
from typing import NamedTuple

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.logits import log_sum, masked
from attnbook.sketch.moments import Moments
from attnbook.sketch.sorted_index import is_in
from attnbook.sketch.state import SketchState
from attnbook.sketch.tails import UniformTail, uniform_tail
from attnbook.sketch.visible import Visible


def take_in(state: SketchState, rows: Array) -> None:
    """Let keys that were just added at the end enter the summary."""
    if rows.shape[0] == 0:
        return
    xp, kept, n_cells = array_namespace(rows), state.summary, state.settings.n_cells
    kept.sample = None
    if kept.heavy is not None:
        before = kept.heavy
        kept.heavy = _heaviest(state, xp.concat([before, rows]))
        same = kept.heavy.shape == before.shape and bool(xp.all(kept.heavy == before))
        kept.moments = kept.moments if same else None
    # cells are chosen anew when the keys have doubled, so they follow a drift
    if n_cells > 1 and state.n > 2 * kept.fitted:
        kept.moments = None
    if kept.box is None and kept.moments is None:
        return  # nothing needs the rows, which may be a million
    key, value = state.taken(rows)
    if kept.box is not None:
        low, high = _box(value)
        kept.box = xp.minimum(kept.box[0], low), xp.maximum(kept.box[1], high)
    if kept.moments is not None:
        kept.moments = kept.moments.add(key, value)


def heavy_rows(state: SketchState) -> Array:
    """Return the rows of the `n_heavy` longest keys, ascending."""
    if state.summary.heavy is None:
        state.summary.heavy = _heaviest(state, state.tables().live())
    return state.summary.heavy


def is_heavy(state: SketchState, rows: Array) -> Array:
    """Return whether each of `rows`, of any shape, is one of the heavy keys."""
    return is_in(rows, heavy_rows(state))


def light_rows(state: SketchState) -> Array:
    """Return False for the heavy keys and True for all other rows, shape (n_rows,)."""
    heavy = heavy_rows(state)
    every = array_namespace(heavy).arange(state.key.n, device=array_api_compat.device(heavy))
    return ~is_heavy(state, every)


class Group(NamedTuple):
    """Keys that are scored for a block of queries, whatever the tables return."""

    rows: Array  # int64 (n_q, H)
    scores: Array  # (n_q, H), -inf for a key that the query may not see
    mass: Array  # (n_q,)
    output: Array  # (n_q, d_v)


def group_of(state: SketchState, query: Array, rows: Array, visible: Visible) -> Group:
    """Return the scores of queries (n_q, d) with the keys in `rows` (H,), and their mix."""
    q, key, value = (to_accumulate(x) for x in (query, *state.taken(rows)))
    xp, rows = array_namespace(q), _places(query, rows)
    scores = xp.matmul(q, xp.matrix_transpose(key)) * state.settings.scale_of(query)
    scores = masked(scores, visible.at(rows))
    return Group(rows, scores, log_sum(scores), xp.matmul(softmax_of(scores, -1), value))


def moments_of(state: SketchState) -> Moments:
    """Return the moments of all keys that are not heavy."""
    kept, settings = state.summary, state.settings
    if kept.moments is None:
        rows = state.tables().live()
        if settings.n_heavy:
            light = np.nonzero(~move(is_heavy(state, rows), "numpy"))[0]
            rows = array_namespace(rows).take(rows, placed(light, rows))
        whole = rows.shape[0] == state.key.n
        pair = (state.key.array(), state.value.array()) if whole else state.taken(rows)
        kept.moments = Moments.fit(*pair, settings.n_cells, seed=settings.seed)
        kept.fitted = state.n
    return kept.moments


def sample_tail(
    state: SketchState, query: Array, signatures: Array, visible: Visible
) -> UniformTail:
    """Return the tail of the keys that were not found, from a sample of all."""
    rows = _sample(state)
    key, value = state.taken(rows)
    xp = array_namespace(query)
    # a key was found if it shares a signature with the query
    there = state.engine.signatures(key, of_queries=False)
    n_probes = state.settings.n_probes
    asked = xp.reshape(signatures, (query.shape[0], 1, there.shape[1], n_probes))
    found = xp.any(there[None, :, :, None] == asked, axis=(-2, -1))  # (n_q, s)
    unseen = ~found & ~is_heavy(state, rows)[None, :] & visible.at(_places(query, rows))
    q, key, value = (to_accumulate(x) for x in (query, key, value))
    scores = xp.matmul(q, xp.matrix_transpose(key)) * state.settings.scale_of(query)
    delta = state.settings.delta / 2  # an error of the mass, and one of the output
    return uniform_tail(scores, value, state.n, unseen=unseen, delta=delta)


def diameter(state: SketchState) -> float:
    """Return the diagonal of the box around all values, at least their largest distance."""
    if state.n == 0:
        return 0.0
    if state.summary.box is None:
        state.summary.box = _box(state.taken(state.tables().live())[1])
    low, high = state.summary.box
    return math.sqrt(float(move(array_namespace(low).sum((high - low) ** 2), "numpy")))


def _heaviest(state, rows):
    xp, n_heavy = array_namespace(rows), state.settings.n_heavy
    if n_heavy == 0:
        return rows[:0]
    key = to_accumulate(state.taken(rows)[0])
    order = xp.argsort(xp.sum(key * key, axis=-1), descending=True, stable=True)
    return xp.sort(xp.take(rows, order[:n_heavy]))


def _sample(state):
    """Return the rows of the sample, drawn without replacement. It stays until keys change."""
    if state.summary.sample is None:
        live = state.tables().live()
        n, wanted = live.shape[0], state.settings.n_samples
        rng = np.random.default_rng(state.settings.seed)
        drawn = np.sort(rng.choice(n, size=min(n, wanted), replace=False))
        state.summary.sample = array_namespace(live).take(live, placed(drawn, live))
    return state.summary.sample


def _box(value):
    xp, wide = array_namespace(value), to_accumulate(value)
    return xp.min(wide, axis=0), xp.max(wide, axis=0)


def _places(query, rows):
    return array_namespace(rows).broadcast_to(rows[None, :], (query.shape[0], rows.shape[0]))
