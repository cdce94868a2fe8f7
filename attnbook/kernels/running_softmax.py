"""The online softmax, which reads scores and values tile by tile."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import (
    Array,
    array_namespace,
    broadcast_shapes,
    dtype_name,
    to_accumulate,
)
from attnbook.arrays.empty_rows import finite, maximum, or_one


class State(NamedTuple):
    """The numbers of a `RunningSoftmax`, of checked arrays in the dtype to compute in."""

    maximum: Array  # (..., n_q, 1)
    total: Array  # (..., n_q, 1)
    weighted: Array  # (..., n_q, d_v)


def read_of(scores: Array, value: Array) -> State:
    """Return the state after reading `scores` (..., n_q, n_k) and `value` (..., n_k, d_v)."""
    xp = array_namespace(scores)
    highest = maximum(scores, -1)
    weights = xp.exp(scores - finite(highest))
    return State(highest, xp.sum(weights, axis=-1, keepdims=True), xp.matmul(weights, value))


def merge_of(ours: State, theirs: State) -> State:
    """Return the state of the keys of both."""
    xp = array_namespace(ours.maximum)
    highest = xp.maximum(ours.maximum, theirs.maximum)
    shift = finite(highest)  # 0 where neither has seen a key
    a, b = xp.exp(ours.maximum - shift), xp.exp(theirs.maximum - shift)
    return State(
        highest,
        a * ours.total + b * theirs.total,
        a * ours.weighted + b * theirs.weighted,
    )


@dataclass(frozen=True, eq=False)
class RunningSoftmax:
    r"""The state of an online softmax: what a weighted sum must remember of the keys read so far.

    For scores :math:`s_j` and values :math:`v_j` read so far, a row remembers

    .. math:: m = \max_j s_j, \qquad z = \sum_j e^{s_j - m}, \qquad u = \sum_j e^{s_j - m} v_j,

    so the output :math:`u / z` never needs all scores at once. `merge` turns the states of two
    disjoint sets of keys into the state of their union. Merging is associative and commutative (up
    to rounding), so keys may come in tiles, from a cache or from several machines, and in any
    grouping. The state without any keys is the neutral element.

    Attributes
    ----------
    maximum : array, shape (..., n_q, 1)
        Largest score read so far; −∞ before the first one.
    total : array, shape (..., n_q, 1)
        Sum of the exponentials, relative to `maximum`.
    weighted : array, shape (..., n_q, d_v)
        Sum of the values weighted by the exponentials, relative to `maximum`.
    dtype : dtype
        The dtype of the scores and values, and of `output`. The state itself is float32 if this is
        half precision.

    References
    ----------
    Milakov and Gimelshein (2018), "Online normalizer calculation for softmax"; Rabe and Staats
    (2021), "Self-attention does not need O(n²) memory".

    Examples
    --------
    >>> import numpy as np
    >>> scores, value = np.log([[1.0, 2.0, 5.0]]), np.array([[8.0], [4.0], [8.0]])
    >>> first = RunningSoftmax.read(scores[:, :2], value[:2])
    >>> last = RunningSoftmax.read(scores[:, 2:], value[2:])
    >>> first.merge(last).output()
    array([[7.]])
    """

    maximum: Annotated[Array, "... n_q 1"]
    total: Annotated[Array, "... n_q 1"]
    weighted: Annotated[Array, "... n_q d_v"]
    dtype: Any

    def __post_init__(self) -> None:
        check_floats(weighted=self.weighted, maximum=self.maximum, total=self.total)
        if self.weighted.ndim < 2:
            raise ValueError(
                f"weighted must have shape (..., n_q, d_v), got {tuple(self.weighted.shape)}"
            )
        rows = (*self.weighted.shape[:-1], 1)
        for name, x in (("maximum", self.maximum), ("total", self.total)):
            if broadcast_shapes(tuple(x.shape), rows) != rows:
                raise ValueError(
                    f"{name} must broadcast to {rows} to match weighted, got {tuple(x.shape)}"
                )

    @classmethod
    def read(
        cls, scores: Annotated[Array, "... n_q n_k"], value: Annotated[Array, "... n_k d_v"]
    ) -> "RunningSoftmax":
        """Return the state after reading `scores` (..., n_q, n_k) and `value` (..., n_k, d_v).

        n_k may be 0. Raises TypeError unless both are floating arrays of one library and dtype, and
        ValueError if the shapes do not match. Cost: O(n_q n_k d_v) time.
        """
        check_floats(scores=scores, value=value)
        for name, x in (("scores", scores), ("value", value)):
            if x.ndim < 2:
                raise ValueError(f"{name} must have at least 2 axes, got shape {tuple(x.shape)}")
        if (
            value.shape[-2] != scores.shape[-1]
            or broadcast_shapes(tuple(scores.shape[:-2]), tuple(value.shape[:-2])) is None
        ):
            raise ValueError(
                f"value must have shape (..., {scores.shape[-1]}, d_v) to match scores of shape "
                f"{tuple(scores.shape)}, got {tuple(value.shape)}"
            )
        return cls(*read_of(to_accumulate(scores), to_accumulate(value)), scores.dtype)

    def merge(self, other: "RunningSoftmax") -> "RunningSoftmax":
        """Return the state of the keys of both states, whose keys must not overlap.

        Raises TypeError if `other` has another class, library or dtype, and ValueError if its
        shapes differ. Cost: O(n_q d_v).
        """
        if not isinstance(other, RunningSoftmax):
            raise TypeError(f"other must be a RunningSoftmax, got {type(other).__name__}")
        check_floats(self=self.weighted, other=other.weighted)
        if self.dtype != other.dtype:
            raise TypeError(
                f"other must have dtype {dtype_name(self.dtype)}, got {dtype_name(other.dtype)}"
            )
        if self.weighted.shape != other.weighted.shape:
            raise ValueError(
                f"other must hold rows of shape {tuple(self.weighted.shape)}, "
                f"got {tuple(other.weighted.shape)}"
            )
        ours, theirs = (State(x.maximum, x.total, x.weighted) for x in (self, other))
        return RunningSoftmax(*merge_of(ours, theirs), self.dtype)

    def output(self) -> Annotated[Array, "... n_q d_v"]:
        """Return the weighted mean of the values read so far; fully masked rows are zeros."""
        xp = array_namespace(self.weighted)
        return xp.astype(self.weighted / or_one(self.total), self.dtype, copy=False)

    def log_total(self) -> Annotated[Array, "... n_q 1"]:
        """Return the logsumexp of the scores of each row; it is −∞ for fully masked rows."""
        xp = array_namespace(self.total)
        return self.maximum + xp.log(or_one(self.total))
