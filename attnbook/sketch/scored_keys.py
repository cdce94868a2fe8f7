"""Keys that a block of queries scores one by one, whatever the tables return."""

from typing import NamedTuple

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.logits import log_sum, masked
from attnbook.sketch.state import SketchState
from attnbook.sketch.visible_keys import Visible


class ScoredKeys(NamedTuple):
    """What queries get from keys that all of them score, such as those of a window."""

    scores: Array  # (n_q, H), -inf for a key that the query may not see
    mass: Array  # (n_q,), log Σ exp of the scores
    output: Array  # (n_q, d_v)


def score_keys(state: SketchState, query: Array, rows: Array, visible: Visible) -> ScoredKeys:
    """Return the scores of queries (n_q, d) with the keys in `rows` (H,), and their mix."""
    q, key, value = (to_accumulate(x) for x in (query, *state.taken(rows)))
    xp = array_namespace(q)
    rows = xp.broadcast_to(rows[None, :], (query.shape[0], rows.shape[0]))
    scores = xp.matmul(q, xp.matrix_transpose(key)) * state.settings.scale_of(query)
    scores = masked(scores, visible.at(rows))
    return ScoredKeys(scores, log_sum(scores), xp.matmul(softmax_of(scores, -1), value))
