"""What each query may see, as a few ranges of keys in place of a row of a mask.

Causal order, windows, documents, prefixes and chunks let a query see one range of keys or a few, so
a row of n_k booleans says the same as the ends of these ranges. `attnbook.masking.Rule` makes
them, and the kernels in `kernels.READ_RANGES` read them: they skip what no query sees, do not mask
what all queries see, and hold no array of n_q · n_k numbers.
"""

from typing import Any

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, broadcast_shapes, library
from attnbook.arrays.lengths import home, placed

HIDDEN, PARTLY, WHOLE = 0, 1, 2
"""Of a tile: no query of it sees a key of it, some do, and all see all."""


class Intervals:
    """The keys that each query may see: m ranges ``starts[..., i, k] ≤ j < stops[..., i, k]``.

    Parameters
    ----------
    starts, stops : arrays of ints of one shape (..., n_q, m)
        They may lie in any order, overlap, be empty or reach beyond the keys.
    n_k : int
        The number of keys.

    Attributes
    ----------
    starts, stops : int32 arrays of NumPy, shape (..., n_q, m), m ≥ 1
        Sorted, apart from each other and inside 0 … n_k; unused ones are empty, at n_k.
    n_q, n_k : int
    shape : tuple of int
        (..., n_q, n_k), the shape of the mask that says the same.

    Notes
    -----
    Cost: O(n_q m log m) time to put the ranges in order, and O(n_q m) memory.
    """

    def __init__(self, starts: Any, stops: Any, n_k: int):
        starts, stops = np.broadcast_arrays(starts, stops)
        self.n_q, self.n_k = starts.shape[-2], n_k
        self.starts, self.stops = _in_order(starts, stops, n_k)
        self.shape = (*self.starts.shape[:-1], n_k)
        self._made: dict[Any, Any] = {}

    @classmethod
    def causal(cls, n_q: int, n_k: int) -> "Intervals":
        """Return what is seen in causal order, the last query beside the last key."""
        stops = np.arange(n_k - n_q, n_k)[:, np.newaxis] + 1
        return cls(np.zeros_like(stops), stops, n_k)

    @classmethod
    def window(cls, n_q: int, n_k: int, size: int) -> "Intervals":
        """Return the same with no more than the last `size` keys, the query's own included."""
        stops = np.arange(n_k - n_q, n_k)[:, np.newaxis] + 1
        return cls(stops - size, stops, n_k)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __and__(self, other: "Intervals") -> "Intervals":
        a, b = self.starts.shape[-1], other.starts.shape[-1]
        if a > 1 < b:
            return ~(~self | ~other)
        starts = np.maximum(self.starts, other.starts)
        return Intervals(starts, np.minimum(self.stops, other.stops), self.n_k)

    def __or__(self, other: "Intervals") -> "Intervals":
        starts = _joined(self.starts, other.starts)
        return Intervals(starts, _joined(self.stops, other.stops), self.n_k)

    def __invert__(self) -> "Intervals":
        edge = np.zeros((*self.starts.shape[:-1], 1), np.int32)
        starts = np.concatenate([edge, self.stops], axis=-1)
        stops = np.concatenate([self.starts, edge + np.int32(self.n_k)], axis=-1)
        return Intervals(starts, stops, self.n_k)

    def dense(self, like: Array | None = None) -> Array:
        """Return the mask, (..., n_q, n_k), in the library and on the device of `like`."""
        return self.tile(slice(0, self.n_q), slice(0, self.n_k), like)

    def tile(self, rows: slice, columns: slice, like: Array | None = None) -> Array:
        """Return the mask of some queries and some keys."""
        starts, stops = (
            self.made(
                (name, None if like is None else (library(like), str(home(like)[1]))),
                lambda name=name: placed(getattr(self, name), like),
            )
            for name in ("starts", "stops")
        )
        xp = array_namespace(starts)
        keys = xp.arange(columns.start, columns.stop, device=array_api_compat.device(starts))
        starts, stops = starts[..., rows, :], stops[..., rows, :]
        seen: Any = None
        for k in range(self.starts.shape[-1]):
            part = (keys >= starts[..., k : k + 1]) & (keys < stops[..., k : k + 1])
            seen = part if seen is None else seen | part
        return seen

    def made(self, key: Any, make: Any) -> Any:
        """Return what ``make()`` returned when it was first called for this `key`."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def seen_by_any(self, block: int) -> "Intervals":
        """Return the keys that at least one query of each block of queries sees.

        The result has ⌈n_q / block⌉ rows; the last block may be short.
        """
        return self.made(("any", block), lambda: self._of_blocks(self, block))

    def seen_by_all(self, block: int) -> "Intervals":
        """Return the keys that all queries of each block of queries see."""
        return self.made(("all", block), lambda: ~self._of_blocks(~self, block))

    def _of_blocks(self, rows: "Intervals", block: int) -> "Intervals":
        short = -self.n_q % block
        pad = [(0, 0)] * (rows.starts.ndim - 2) + [(0, short), (0, 0)]
        shape = (
            *rows.starts.shape[:-2],
            (self.n_q + short) // block,
            block * rows.starts.shape[-1],
        )
        starts, stops = (
            np.pad(x, pad, constant_values=self.n_k).reshape(shape)
            for x in (rows.starts, rows.stops)
        )
        return Intervals(starts, stops, self.n_k)

    def tiles(self, block_q: int, block_k: int) -> np.ndarray:
        """Return of each tile whether its queries see none of its keys, some, or all.

        int8 array (..., ⌈n_q / block_q⌉, ⌈n_k / block_k⌉) of `HIDDEN`, `PARTLY` and `WHOLE`.
        """
        return self.made(("tiles", block_q, block_k), lambda: self._tiles(block_q, block_k))

    def _tiles(self, block_q: int, block_k: int) -> np.ndarray:
        any_of, all_of = self.seen_by_any(block_q), self.seen_by_all(block_q)
        n_tiles = -(-self.n_k // block_k)
        of_tile = np.arange(n_tiles, dtype=np.int64) * block_k
        ends = np.minimum(of_tile + block_k, self.n_k)
        kinds = np.full((*any_of.shape[:-1], n_tiles), HIDDEN, np.int8)
        for k in range(any_of.starts.shape[-1]):
            start, stop = any_of.starts[..., k, None], any_of.stops[..., k, None]
            kinds[(start < ends) & (stop > of_tile) & (start < stop)] = PARTLY
        for k in range(all_of.starts.shape[-1]):
            start, stop = all_of.starts[..., k, None], all_of.stops[..., k, None]
            kinds[(start <= of_tile) & (stop >= ends)] = WHOLE
        return kinds

    def of_head(self, place: tuple[int, ...]) -> "Intervals":
        """Return those of one head, by its places along leading axes that these broadcast to."""
        leading = self.shape[:-2]
        own = place[len(place) - len(leading) :]
        own = tuple(0 if n == 1 else i for i, n in zip(own, leading, strict=True))
        if not leading:
            return self
        return self.made(
            ("head", own), lambda: Intervals(self.starts[own], self.stops[own], self.n_k)
        )

    def last_keys(self, n: int) -> "Intervals":
        """Return what is seen of the last `n` keys, which are then all keys."""
        gone = self.n_k - n
        return Intervals(self.starts - gone, self.stops - gone, n)

    def with_first_key(self) -> "Intervals":
        """Return the same with one more key in front, which every query sees."""
        edge = np.zeros((*self.starts.shape[:-1], 1), np.int32)
        starts = np.concatenate([edge, self.starts + 1], axis=-1)
        return Intervals(starts, np.concatenate([edge + 1, self.stops + 1], axis=-1), self.n_k + 1)

    def with_axes(self, *lengths: int) -> "Intervals":
        """Return the same with these axes in front of that of the queries, for heads."""
        shape = (*self.starts.shape[:-2], *lengths, *self.starts.shape[-2:])
        of_one = (*self.starts.shape[:-2], *[1] * len(lengths), *self.starts.shape[-2:])
        starts, stops = (
            np.broadcast_to(x.reshape(of_one), shape) for x in (self.starts, self.stops)
        )
        return Intervals(starts, stops, self.n_k)


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return two arrays side by side along the last axis; their other axes broadcast."""
    leading = broadcast_shapes(a.shape[:-1], b.shape[:-1])
    assert leading is not None  # both are of the same queries
    return np.concatenate([np.broadcast_to(x, (*leading, x.shape[-1])) for x in (a, b)], axis=-1)


def _in_order(starts: Any, stops: Any, n_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ranges that are sorted, apart and inside 0 … n_k, as few columns as hold them."""
    starts, stops = (np.clip(x, 0, n_k).astype(np.int32) for x in (starts, stops))
    if starts.shape[-1] == 0:
        starts = stops = np.full((*starts.shape[:-1], 1), n_k, np.int32)
    empty = starts >= stops
    starts, stops = (np.where(empty, np.int32(n_k), x) for x in (starts, stops))
    if starts.shape[-1] > 1:
        order = np.argsort(starts, axis=-1, kind="stable")
        starts, stops = (np.take_along_axis(x, order, axis=-1) for x in (starts, stops))
        reached = np.maximum.accumulate(stops, axis=-1)
        begins = np.ones(starts.shape, bool)  # a range that touches none before it
        begins[..., 1:] = starts[..., 1:] > reached[..., :-1]
        ends = np.ones(starts.shape, bool)
        ends[..., :-1] = begins[..., 1:]
        starts = np.sort(np.where(begins, starts, np.int32(n_k)), axis=-1)
        stops = np.sort(np.where(ends, reached, np.int32(n_k)), axis=-1)
        used = max(1, int((starts < n_k).sum(axis=-1).max(initial=0)))
        starts, stops = starts[..., :used], stops[..., :used]
    return np.ascontiguousarray(starts), np.ascontiguousarray(stops)
