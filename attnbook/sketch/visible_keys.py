"""The keys that each query may attend to."""

from dataclasses import dataclass
from typing import Any

from attnbook.arrays.array import Array, array_namespace


@dataclass(frozen=True, eq=False)
class Visible:
    """A query sees rows below `before` for which `mask` is True. None allows all."""

    before: Any = None  # int64 (n_q,)
    mask: Any = None  # boolean (n_q, n_rows)

    def of(self, part: slice) -> "Visible":
        """Return the visible rows of a slice of the queries."""
        before = None if self.before is None else self.before[part]
        return Visible(before, None if self.mask is None else self.mask[part, :])

    def at(self, rows: Array) -> Array:
        """Return whether each of `rows` (n_q, M) may be attended to."""
        xp = array_namespace(rows)
        seen = xp.ones_like(rows, dtype=xp.bool)
        if self.before is not None:
            seen = seen & (rows < self.before[:, None])
        if self.mask is not None and rows.shape[1] > 0:
            seen = seen & xp.take_along_axis(self.mask, rows, axis=-1)
        return seen


EVERYTHING = Visible()
