"""What a sketch keeps of all its keys together: the heavy ones, their moments, a sample, a box."""

import math
from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import Array, accumulation_dtype, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.answers import gather, log_sum, masked
from attnbook.sketch.moments import Moments
from attnbook.sketch.tails import UniformTail, uniform_tail


class Far:
    """Everything that is worked out from all keys, when it is first needed, and then kept.

    Added keys enter what is there where that is exact; a removal makes all of it stale. The sketch
    is passed in, not held: two objects that hold each other would outlive their last user.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Make all of it stale."""
        self._heavy: Any = None  # rows of the longest keys, ascending
        self._moments: Any = None
        self._fitted = 0  # keys that the cells of the moments were chosen for
        self._sample: Any = None
        self._box: Any = None

    def add(self, sketch: Any, rows: Array) -> None:
        """Take in keys that were just added at the end."""
        if rows.shape[0] == 0:
            return
        self._sample = None
        xp = array_namespace(rows)
        if self._heavy is not None:
            before = self._heavy
            self._heavy = self._heaviest(sketch, xp.concat([before, rows]))
            if not _same(self._heavy, before):
                self._moments = None
        # cells are chosen anew when the keys have doubled, so they follow a drift
        if sketch.n_cells > 1 and len(sketch) > 2 * self._fitted:
            self._moments = None
        if self._box is None and self._moments is None:
            return  # no need to gather a million rows
        key, value = _rows(sketch, rows)
        if self._box is not None:
            low, high = _box(value)
            self._box = xp.minimum(self._box[0], low), xp.maximum(self._box[1], high)
        if self._moments is not None:
            self._moments = self._moments.add(key, value)

    def heavy(self, sketch: Any) -> Array:
        """Return the rows of the `n_heavy` longest keys, ascending."""
        if self._heavy is None:
            self._heavy = self._heaviest(sketch, sketch._index.live())
        return self._heavy

    def is_heavy(self, sketch: Any, rows: Array) -> Array:
        """Return whether each of `rows`, of any shape, is one of the heavy keys."""
        xp = array_namespace(rows)
        heavy = self.heavy(sketch)
        if heavy.shape[0] == 0:
            return xp.zeros_like(rows, dtype=xp.bool)
        flat = xp.reshape(rows, (-1,))
        place = xp.searchsorted(heavy, flat)
        place = xp.where(place < heavy.shape[0], place, heavy.shape[0] - 1)
        return xp.reshape(xp.take(heavy, place) == flat, rows.shape)

    def allowed(self, sketch: Any) -> Array:
        """Return False for the heavy keys and True for all other rows, shape (n_rows,)."""
        heavy = self.heavy(sketch)
        n_rows, device = sketch._key.n, array_api_compat.device(heavy)
        return ~self.is_heavy(sketch, array_namespace(heavy).arange(n_rows, device=device))

    def heavy_group(
        self, sketch: Any, query: Array, scale: float, visible: Any
    ) -> tuple[Array, Array, Array, Array]:
        """Return rows and scores (n_q, H) of the heavy keys, their mass and output.

        A key that the query may not see has the score -inf.
        """
        xp = array_namespace(query)
        wide = accumulation_dtype(xp, query.dtype)
        key, value = (xp.astype(x, wide, copy=False) for x in _rows(sketch, self.heavy(sketch)))
        rows = _places(query, self.heavy(sketch))
        scores = xp.matmul(xp.astype(query, wide, copy=False), xp.matrix_transpose(key)) * scale
        scores = masked(scores, visible.at(rows))
        return rows, scores, log_sum(scores), xp.matmul(softmax_of(scores, -1), value)

    def moments(self, sketch: Any) -> Moments:
        """Return the moments of all keys that are not heavy."""
        if self._moments is None:
            rows = sketch._index.live()
            if sketch.n_heavy:
                light = np.nonzero(~move(self.is_heavy(sketch, rows), "numpy"))[0]
                rows = array_namespace(rows).take(rows, placed(light, rows))
            whole = rows.shape[0] == sketch._key.n
            key, value = (x.array() for x in sketch._stored) if whole else _rows(sketch, rows)
            self._moments = Moments.fit(key, value, sketch.n_cells, seed=sketch.seed)
            self._fitted = len(sketch)
        return self._moments

    def sample_tail(
        self, sketch: Any, query: Array, signatures: Array, scale: float, visible: Any
    ) -> UniformTail:
        """Return the tail of the keys that were not found, from a sample of all."""
        rows = self._sampled(sketch)
        key, value = _rows(sketch, rows)
        xp = array_namespace(query)
        # a key was found if it shares a signature with the query
        there = sketch._signatures(key)
        found = xp.any(there[None, :, :] == signatures[:, None, :], axis=-1)  # (n_q, s)
        seen = visible.at(_places(query, rows))
        counted = ~found & ~self.is_heavy(sketch, rows)[None, :] & seen
        wide = accumulation_dtype(xp, query.dtype)
        q, key, value = (xp.astype(x, wide, copy=False) for x in (query, key, value))
        scores = xp.matmul(q, xp.matrix_transpose(key)) * scale
        delta = sketch.delta / 2  # an error of the mass, and one of the output
        return uniform_tail(scores, value, len(sketch), unseen=counted, delta=delta)

    def diameter(self, sketch: Any) -> float:
        """Return the diagonal of the box around all values, at least their largest distance."""
        if len(sketch) == 0:
            return 0.0
        if self._box is None:
            self._box = _box(_rows(sketch, sketch._index.live())[1])
        low, high = self._box
        xp = array_namespace(low)
        return math.sqrt(float(move(xp.sum((high - low) ** 2), "numpy")))

    def _heaviest(self, sketch: Any, rows: Array) -> Array:
        xp = array_namespace(rows)
        if sketch.n_heavy == 0:
            return rows[:0]
        key, _ = _rows(sketch, rows)
        wide = xp.astype(key, accumulation_dtype(xp, key.dtype), copy=False)
        order = xp.argsort(xp.sum(wide * wide, axis=-1), descending=True, stable=True)
        return xp.sort(xp.take(rows, order[: sketch.n_heavy]))

    def _sampled(self, sketch: Any) -> Array:
        """Return the rows of the sample, without replacement; the same until keys change."""
        if self._sample is None:
            live = sketch._index.live()
            n, wanted = live.shape[0], sketch.n_samples
            rng = np.random.default_rng(sketch.seed)
            drawn = np.sort(rng.choice(n, size=min(n, wanted), replace=False))
            self._sample = array_namespace(live).take(live, placed(drawn, live))
        return self._sample


def _box(value: Array) -> tuple[Array, Array]:
    xp = array_namespace(value)
    wide = xp.astype(value, accumulation_dtype(xp, value.dtype), copy=False)
    return xp.min(wide, axis=0), xp.max(wide, axis=0)


def _same(a: Array, b: Array) -> bool:
    xp = array_namespace(a)
    return a.shape == b.shape and bool(xp.all(a == b))


def _rows(sketch: Any, rows: Array) -> tuple[Array, Array]:
    return gather(sketch._key.array(), rows), gather(sketch._value.array(), rows)


def _places(query: Array, rows: Array) -> Array:
    return array_namespace(rows).broadcast_to(rows[None, :], (query.shape[0], rows.shape[0]))
