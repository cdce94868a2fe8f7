"""Rows that grow: an array with room at its end, in any library."""

from typing import Any

from attnbook.arrays.arguments import Array, array_namespace


class Rows:
    """Rows of one width, appended in amortised constant time.

    The first rows are kept as they are given, not copied: a million keys stay in one place.
    """

    def __init__(self):
        self._held: Any = None
        self.n = 0

    def array(self) -> Array:
        """Return the rows, a view."""
        return self._held[: self.n, ...]

    def with_room(self, x: Array) -> Array:
        """Return an array that holds the rows and `x` behind them, without changing anything."""
        if self._held is None:
            return x
        n, held = self.n + x.shape[0], self._held
        if n <= held.shape[0]:
            return held
        xp = array_namespace(held)
        # doubled, so that n single appends copy O(n) rows in all
        room = xp.zeros_like(held[:1, ...] if held.shape[0] else x[:1, ...])
        room = xp.broadcast_to(room, (max(n, 2 * self.n) - self.n, *held.shape[1:]))
        return xp.concat([held[: self.n, ...], room], axis=0)

    def append(self, x: Array, room: Array) -> None:
        """Append `x` into `room`, which came from `with_room(x)`."""
        if room is not x:
            room[self.n : self.n + x.shape[0], ...] = x
        self._held = room
        self.n += x.shape[0]
