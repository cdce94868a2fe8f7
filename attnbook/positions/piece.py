"""Positions inside attention: what a piece of a model that knows them can do."""

from collections.abc import Callable
from typing import Annotated

from attnbook.arrays.array import Array
from attnbook.arrays.weights import Weights


class AttentionPositions(Weights):
    """Base of what tells every self-attention of a stack where its tokens stand.

    `EncoderWeights` and `DecoderWeights` hold one as ``positions``. It rotates queries and keys, or
    adds a bias to their scores; here it does neither.
    """

    def check_heads(self, n_heads: int, d_k: int) -> None:
        """Raise ValueError unless it fits `n_heads` heads of width `d_k`."""

    def turn(self, start: int) -> Callable[[Array], Array] | None:
        """Return what rotates queries and keys (..., n, d_k) at the positions start, start + 1, ….

        All layers of a forward pass share one. None where nothing is rotated.
        """
        return None

    def turned(self, x: Annotated[Array, "... n d_k"], start: int) -> Annotated[Array, "... n d_k"]:
        """Return queries or keys at the positions start, start + 1, …, rotated."""
        turn = self.turn(start)
        return x if turn is None else turn(x)

    def turned_back(
        self, x: Annotated[Array, "... n d_k"], start: int
    ) -> Annotated[Array, "... n d_k"]:
        """Return the opposite of `turned`, which is its transpose: gradients go back by it."""
        return x

    def bias(
        self, n_heads: int, n_q: int, n_k: int, like: Array
    ) -> Annotated[Array, "h n_q n_k"] | None:
        """Return what is added to the scores; the last query stands at the last key."""
        return None
