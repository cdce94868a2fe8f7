"""Rules that show each query one range of keys."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import LARGEST, check_int
from attnbook.arrays.array import Array
from attnbook.arrays.intervals import Intervals
from attnbook.arrays.lengths import lengths_of
from attnbook.masking.masks import UNLIMITED
from attnbook.masking.rules import At, Rule


class _Range(Rule):
    """A rule that shows each query one range of keys."""

    def _range(self, position: np.ndarray) -> tuple[Any, Any]:
        """Return the first key and the one after the last, for positions (n_q, 1)."""
        raise NotImplementedError

    def _intervals(self, n_q: int, n_k: int) -> Intervals:
        starts, stops = self._range(np.arange(n_k - n_q, n_k)[:, np.newaxis])
        shape = (*self.leading, n_q, 1)
        return Intervals(np.broadcast_to(starts, shape), np.broadcast_to(stops, shape), n_k)


class Causal(_Range):
    """Let each query see the key at its own position and the keys before it, as `causal` does.

    Attributes
    ----------
    leading : tuple of int
        (), since one mask serves all sequences.

    Examples
    --------
    >>> Causal().dense(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    is_causal = True

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return key <= position

    def _range(self, position: np.ndarray) -> tuple[Any, Any]:
        return 0, position + 1

    def __repr__(self) -> str:
        return "Causal()"


class SlidingWindow(_Range):
    """Let each query see the keys from `left` before its own position to `right` after it.

    Parameters
    ----------
    left, right : int
        How many positions to each side, at least 0, as in `sliding_window`.

    Raises
    ------
    TypeError, ValueError
        If a number is not an int of at least 0.

    Attributes
    ----------
    left, right : int

    Examples
    --------
    >>> SlidingWindow(left=1).dense(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """

    def __init__(self, left: int, right: int = 0):
        self.left, self.right = (
            min(check_int(name, n, at_most=UNLIMITED), LARGEST)
            for name, n in (("left", left), ("right", right))
        )

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return (key >= position - self.left) & (key <= position + self.right)

    def _range(self, position: np.ndarray) -> tuple[Any, Any]:
        return position - self.left, position + min(self.right, LARGEST // 2) + 1

    def __repr__(self) -> str:
        return f"SlidingWindow(left={self.left}, right={self.right})"


class FirstKeys(_Range):
    """Let every query see the first `count` keys: sinks, a prefix, or all that is not padding.

    Parameters
    ----------
    count : int, or ints of shape (...,)
        At least 0; or one number per sequence.

    Raises
    ------
    TypeError, ValueError
        If `count` is not an int or ints of at least 0.

    Attributes
    ----------
    count : int array of NumPy, shape (...,)

    Examples
    --------
    >>> (FirstKeys(2) | Causal()).dense(3).astype(int)
    array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """

    def __init__(self, count: int | Sequence[int] | Annotated[Array, "..."]):
        self.count = lengths_of("count", count).copy()
        self.leading = self.count.shape

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return (key < at(self.count)) & (position == position)

    def _range(self, position: np.ndarray) -> tuple[Any, Any]:
        return 0, self.count[..., np.newaxis, np.newaxis]

    def arrays(self) -> list[np.ndarray]:
        return [self.count]

    def __repr__(self) -> str:
        return f"FirstKeys({self.count.tolist()})"


class Chunks(_Range):
    """Let each query see the keys of its own chunk, if positions are cut into chunks of `size`.

    Parameters
    ----------
    size : int
        At least 1.

    Raises
    ------
    TypeError, ValueError
        If `size` is not an int of at least 1.

    Attributes
    ----------
    size : int

    Examples
    --------
    >>> (Chunks(2) & Causal()).dense(4).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 1, 1]])
    """

    def __init__(self, size: int):
        self.size = check_int("size", size, at_least=1)

    def allows(self, position: Any, key: Any, at: At) -> Any:
        return position // self.size == key // self.size

    def _range(self, position: np.ndarray) -> tuple[Any, Any]:
        start = position // self.size * self.size
        return start, start + self.size

    def __repr__(self) -> str:
        return f"Chunks({self.size})"
