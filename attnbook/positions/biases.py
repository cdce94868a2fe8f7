r"""Positions as a bias: what is added to a score grows or falls with the distance of query and key.

.. math:: \text{score}_{ij} = s\, q_i \cdot k_j + b_{h,\, j - i}
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_bool, check_float, check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.positions.angles import placed
from attnbook.positions.piece import AttentionPositions

# The mathematics, of checked arguments.


def distances(n_q: int, n_k: int) -> np.ndarray:
    """Return j - i for every query and key, where the last query stands at the last key."""
    return np.arange(n_k)[np.newaxis, :] - np.arange(n_k - n_q, n_k)[:, np.newaxis]


def buckets_of(
    distances: np.ndarray, n_buckets: int, bidirectional: bool, max_distance: int
) -> np.ndarray:
    offset = np.zeros_like(distances)
    if bidirectional:
        n_buckets //= 2
        offset = np.where(distances > 0, n_buckets, 0)
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    exact = n_buckets // 2
    # float32, as in the code that T5 was trained with: one more digit may change a bucket
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(max_distance / exact)) * np.float32(n_buckets - exact)
    coarse = np.minimum(exact + np.maximum(steps, 0).astype(np.int64), n_buckets - 1)
    return offset + np.where(far < exact, far, coarse)


def slopes_of(n_heads: int) -> np.ndarray:
    whole = 2 ** int(math.log2(n_heads))  # heads of the next power of 2 below
    first = 2.0 ** (-8 / whole * np.arange(1, whole + 1))
    between = 2.0 ** (-4 / whole * np.arange(1, 2 * (n_heads - whole), 2))
    return np.concatenate([first, between])


# The pieces of a model.


@dataclass(frozen=True, eq=False)
class RelativeBias(AttentionPositions):
    """A learned bias for every head and every bucket of distances, as in T5.

    Attributes
    ----------
    table : array, shape (n_buckets, h)
        Column i is added to the scores of head i; the row is the bucket of the distance between
        query and key, as in `relative_buckets`.
    bidirectional : bool
        If True, half of the buckets are for keys after the query, as an encoder needs them. If
        False, all these keys are in bucket 0, which suits a decoder because it never sees them.
    max_distance : int
        All distances from this one on share one bucket.

    Raises
    ------
    TypeError, ValueError
        If the table is not an array of this kind, the number of its rows is odd or too small, or
        `max_distance` is not above the distances that have a bucket of their own.

    Notes
    -----
    Every layer of the stack adds the same biases. T5 also has the scale 1 in every attention; see
    `MultiHeadWeights`. Only ``impl="reference"`` computes a gradient with respect to a bias, so
    train with it.

    References
    ----------
    Raffel et al. (2020), "Exploring the limits of transfer learning with a unified text-to-text
    transformer", section 2.1.

    Examples
    --------
    >>> piece = RelativeBias(np.arange(8.0)[:, None], bidirectional=False, max_distance=16)
    >>> piece.bias(1, 3, 3, np.zeros(1))
    array([[[0., 0., 0.],
            [1., 0., 0.],
            [2., 1., 0.]]])
    """

    table: Annotated[Array, "n_buckets h"]
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        self.check_fields()
        check_buckets(self.table.shape[0], self.bidirectional, self.max_distance)

    def check_heads(self, n_heads: int, d_k: int) -> None:
        """Raise ValueError unless the table has one column per head."""
        if self.table.shape[1] != n_heads:
            raise ValueError(
                f"positions must have a table of {n_heads} columns, one per head, "
                f"got shape {tuple(self.table.shape)}"
            )

    def bias(
        self, n_heads: int, n_q: int, n_k: int, like: Array
    ) -> Annotated[Array, "h n_q n_k"] | None:
        """Return the learned biases for every query and key."""
        xp = array_namespace(self.table)
        rows = xp.take(self.table, self.buckets(n_q, n_k), axis=0)  # (n_q·n_k, h)
        return xp.reshape(xp.matrix_transpose(rows), (n_heads, n_q, n_k))

    def buckets(self, n_q: int, n_k: int) -> Annotated[Array, "n_scores"]:
        """Return the row of the table for every pair of query and key, one query after another."""
        xp, device = array_namespace(self.table), array_api_compat.device(self.table)
        how = (self.table.shape[0], self.bidirectional, self.max_distance)
        return xp.asarray(buckets_of(distances(n_q, n_k), *how).reshape(-1), device=device)


@dataclass(frozen=True)
class Alibi(AttentionPositions):
    """Attention with linear biases: in every head, scores fall with distance at a fixed slope.

    Attributes
    ----------
    None
        The slopes follow from the number of heads; see `alibi`. There is nothing to learn.

    Examples
    --------
    >>> Alibi().bias(8, 1, 3, np.zeros(1))[0]
    array([[-1. , -0.5, -0. ]])
    """

    def bias(
        self, n_heads: int, n_q: int, n_k: int, like: Array
    ) -> Annotated[Array, "h n_q n_k"] | None:
        """Return minus the slope times the distance."""
        return alibi_of(n_heads, n_q, n_k, like)


def alibi_of(n_heads: int, n_q: int, n_k: int, like: Any) -> Any:
    table = -slopes_of(n_heads)[:, np.newaxis, np.newaxis] * np.abs(distances(n_q, n_k))
    return table if like is None else placed(table, like)


# The functions, which check what they are given.


def check_buckets(n_buckets: int, bidirectional: bool, max_distance: int) -> None:
    """Raise unless there are buckets for distance 0, and one for what is far."""
    check_bool("bidirectional", bidirectional)
    least = 4 if bidirectional else 2
    if check_int("n_buckets", n_buckets, at_least=least) % 2:
        raise ValueError(f"n_buckets must be even, got {n_buckets}")
    exact = n_buckets // least
    if check_int("max_distance", max_distance) <= exact:
        raise ValueError(
            f"max_distance must be above {exact}, up to which every distance has its own bucket, "
            f"got {max_distance}"
        )


def relative_buckets(
    n_q: int,
    n_k: int,
    *,
    n_buckets: int = 32,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Annotated[np.ndarray, "n_q n_k"]:
    r"""Return the bucket of the distance between every query and key, as T5 defines it.

    With b buckets for one direction, the first e = ⌊b/2⌋ hold one distance each. From there on,
    the buckets grow, so that all distances from `max_distance` on share the last one:

    .. math:: \text{bucket}(r) = \min\Bigl(b - 1,\; e + \Bigl\lfloor
              \frac{\log(r/e)}{\log(r_{\max}/e)}\, (b - e) \Bigr\rfloor\Bigr)
              \qquad (r \ge e)

    Parameters
    ----------
    n_q, n_k : int
        Numbers of queries and keys; the last query is aligned with the last key.
    n_buckets : int
        An even number; 32 in T5.
    bidirectional : bool
        If True, the second half of the buckets is for keys after the query. If False, all these
        keys are in bucket 0, and b is n_buckets.
    max_distance : int
        r_max; 128 in T5.

    Returns
    -------
    int64 array of NumPy, shape (n_q, n_k)

    Raises
    ------
    TypeError, ValueError
        If a number is not an int, `n_buckets` is odd or too small, or `max_distance` is not above
        b/2.

    Notes
    -----
    The logarithm is computed in float32, as in the code that trained T5.
    Cost: O(n_q n_k).

    References
    ----------
    Raffel et al. (2020), "Exploring the limits of transfer learning with a unified text-to-text
    transformer", section 2.1.

    Examples
    --------
    >>> relative_buckets(1, 12, n_buckets=8, bidirectional=False, max_distance=16)
    array([[6, 6, 6, 6, 5, 5, 4, 4, 3, 2, 1, 0]])
    """
    check_buckets(n_buckets, bidirectional, max_distance)
    apart = distances(check_int("n_q", n_q), check_int("n_k", n_k))
    return buckets_of(apart, n_buckets, bidirectional, max_distance)


def alibi(
    n_heads: int, n_q: int, n_k: int, *, like: Array | None = None
) -> Annotated[Array, "h n_q n_k"]:
    r"""Return minus the slope of each head times the distance between query and key.

    .. math:: b_{hij} = -m_h\, |i - j|, \qquad m_h = 2^{-8h/H}, \quad h = 1, \dots, H

    Parameters
    ----------
    n_heads : int
        H, at least 1. For H = 8 the slopes are 1/2, 1/4, …, 1/256. If H is not a power of 2, the
        slopes are those for the next lower power, followed by every second one of those for the
        next higher power.
    n_q, n_k : int
        Numbers of queries and keys; the last query is aligned with the last key.
    like : array, optional
        The result gets the library, device and dtype of this array; by default NumPy's float64.

    Returns
    -------
    array, shape (H, n_q, n_k)
        To be passed as ``bias=`` to `multi_head_attention` and others.

    Raises
    ------
    TypeError, ValueError
        If a number is not an int in its range, or `like` is not an array of a real floating dtype.

    Notes
    -----
    Models that use ALiBi hide later keys, so the slope for these does not matter; here it is the
    same on both sides. To use it in a whole stack, pass ``positions=Alibi()``.
    Cost: O(H n_q n_k).

    References
    ----------
    Press, Smith and Lewis (2022), "Train short, test long: attention with linear biases enables
    input length extrapolation".

    Examples
    --------
    >>> alibi(8, 1, 3)[:2]
    array([[[-1.  , -0.5 , -0.  ]],
    <BLANKLINE>
           [[-0.5 , -0.25, -0.  ]]])
    """
    n_heads = check_int("n_heads", n_heads, at_least=1)
    n_q, n_k = check_int("n_q", n_q), check_int("n_k", n_k)
    if like is not None:
        check_float("like", like)
    made: Any = alibi_of(n_heads, n_q, n_k, like)
    return made
