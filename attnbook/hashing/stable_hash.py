r"""The p-stable hash: in which interval of a random line a vector falls.

.. math:: \operatorname{hash}(x) = \Bigl\lfloor \frac{a \cdot x + \xi}{r} \Bigr\rfloor, \quad
          a \sim \mathcal N(0, I), \quad \xi \sim \mathcal U[0, r)
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_floats, check_positive
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.erf import erf
from attnbook.hashing.collision import at_least_once, check_within
from attnbook.hashing.probing import cheapest, check_probes
from attnbook.hashing.projections import (
    RandomProjections,
    check_directions,
    draw_directions,
    joined,
    pair,
    projected,
    root,
)

FARTHEST = 2.0**62
"""Largest code that is allowed: its neighbours must fit an int64 too."""

MIXER = 0x9E3779B97F4A7C15
"""Seed of the multipliers that join the codes of a table."""


@dataclass(frozen=True, eq=False)
class StableHash(RandomProjections):
    r"""L tables of κ intervals each.

    A projection cuts a line into intervals of length r; its code is the number of the interval.
    A signature joins the κ codes of a table into one integer,
    :math:`\sum_j w_j \operatorname{code}_j` modulo 2⁶⁴ with odd random multipliers
    :math:`w_j` and :math:`w_1 = 1`: with κ = 1 it is the code.

    What counts is the Euclidean distance of two vectors. The normal distribution is 2-stable: the
    difference of their projections is normal with their distance as standard deviation.

    Attributes
    ----------
    directions : array, shape (n_tables, n_projections, d)
    offsets : array, shape (n_tables, n_projections)
        ξ, from 0 to `width`.
    width : float
        r, in the unit of the vectors, above 0.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not floats of one library and dtype and of these shapes, or `width` is
        not a finite number above 0.

    Notes
    -----
    Two different tuples of codes may share a signature. Over the draw of the multipliers the
    probability of that is below 2⁻⁵⁰ if no two codes of a projection are 2¹² or more apart. The
    codes of a vector within rounding of an interval's end may differ between libraries, dtypes and
    batch sizes, since each sums the products in its own order.

    References
    ----------
    Datar, Immorlica, Indyk and Mirrokni (2004), "Locality-sensitive hashing scheme based on
    p-stable distributions"; chapter `hashing`.

    Examples
    --------
    >>> import numpy as np
    >>> line = StableHash(np.array([[[3.0, 4.0]]]), np.array([[0.5]]), width=2.0)
    >>> line.signatures(np.array([[1.0, 1.0], [-1.0, 0.5]]))  # (7 + .5) / 2, (-1 + .5) / 2
    array([[ 3],
           [-1]])
    """

    directions: Annotated[Array, "n_tables n_projections d"]
    offsets: Annotated[Array, "n_tables n_projections"]
    width: float

    def __post_init__(self):
        check_directions(self.directions)
        check_floats(directions=self.directions, offsets=self.offsets)
        shape = tuple(self.directions.shape[:2])
        if tuple(self.offsets.shape) != shape:
            raise ValueError(
                f"offsets must have shape {shape} to match directions, "
                f"got {tuple(self.offsets.shape)}"
            )
        object.__setattr__(self, "width", check_positive("width", self.width))

    @classmethod
    def init(
        cls, rng: Any, d: int, width: float, n_tables: int = 1, n_projections: int = 1
    ) -> "StableHash":
        """Draw standard normal directions and uniform offsets (NumPy, float64).

        `rng` is a numpy.random.Generator or a seed, `d` the width of the vectors and `width` the
        length r of an interval. Raises TypeError or ValueError if one of the ints is below 1, or
        `width` is not a finite number above 0.
        """
        width = check_positive("width", width)
        directions, rng = draw_directions(rng, d, n_tables, n_projections)
        offsets = rng.uniform(0, width, size=directions.shape[:2])
        return cls(directions, offsets, width)

    @property
    def multipliers(self) -> np.ndarray:
        """The κ odd numbers that join codes to a signature, int64; the first is 1."""
        drawn = np.random.default_rng(MIXER).integers(2**63, size=self.n_projections)
        return np.where(np.arange(self.n_projections) == 0, 1, drawn | 1)

    def codes(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables n_projections"]:
        """Return ⌊(a·x + ξ) / r⌋, int64.

        Raises TypeError or ValueError as `signatures`. Cost: O(n d L κ), one matrix product.
        """
        along = self._in_widths(x)
        xp = array_namespace(along)
        return xp.astype(xp.floor(along), xp.int64)

    def probes(
        self, x: Annotated[Array, "... d"], n_probes: int
    ) -> Annotated[Array, "... n_tables n_probes"]:
        r"""Return the signatures of the buckets to look into, int64, the query's own first.

        The others are one interval away in the projections of a set. They are ordered by the sum of
        the squared distances to the ends that are crossed, the least first: the query-directed
        probing sequence of Lv et al. (2007). Raises TypeError or ValueError as `signatures`, or if
        `n_probes` is not an int from 1 to 3^κ, or exceeds 1,024. Cost: O(n d L κ), and
        O(κ n_probes) for each table.

        References
        ----------
        Lv, Josephson, Wang, Charikar and Li (2007), "Multi-probe LSH: efficient indexing for
        high-dimensional similarity search"; chapter `hashing`.

        Examples
        --------
        >>> line = StableHash(np.array([[[1.0, 0.0]]]), np.array([[0.0]]), width=2.0)
        >>> line.probes(np.array([6.5, 0.0]), 3)  # 3.25 widths: the end behind is nearer
        array([[3, 2, 4]])
        """
        check_probes(n_probes, 3**self.n_projections, "the buckets in reach")
        along = self._in_widths(x)
        xp = array_namespace(along)
        multipliers = self._multipliers_like(along)
        codes = xp.floor(along)
        beyond = along - codes  # from the lower end of the interval, in widths
        own = joined(xp.astype(codes, xp.int64), multipliers)
        costs = xp.stack([beyond * beyond, (1 - beyond) * (1 - beyond)], axis=-1)
        steps = xp.broadcast_to(xp.stack([-multipliers, multipliers], axis=-1), costs.shape)
        return own + cheapest(costs, steps, n_probes)

    def _in_widths(self, x):
        """Return (a·x + ξ) / r, or raise where its floor does not fit an int64."""
        along = projected(x, self.directions)
        xp = array_namespace(along)
        along = (along + xp.astype(self.offsets, along.dtype, copy=False)) / self.width
        if not bool(xp.all(xp.abs(along) <= FARTHEST)):
            raise ValueError(
                "x must be within 2**62 widths of 0 along every direction, since codes are int64; "
                "got a point beyond"
            )
        return along

    @staticmethod
    def collision_probability(distance: Any, width: float) -> Any:
        r"""Return the probability that two vectors at this distance fall into one interval.

        .. math:: p(D) = 1 - 2\Phi(-r/D)
                  - \frac{2D}{\sqrt{2\pi}\, r}\bigl(1 - e^{-r^2 / (2D^2)}\bigr), \quad p(0) = 1

        `distance` is D = ‖x − y‖, a float or an array of floats, at least 0; infinity is allowed.
        `width` is r, above 0. The result is like `distance`. Raises TypeError or ValueError if one
        is not such a number.

        Examples
        --------
        >>> round(StableHash.collision_probability(0.5, width=1.0), 4)
        0.6095
        """
        width = check_positive("width", width)
        check_within("distance", distance, math.inf, "infinity")
        if isinstance(distance, (int, float, Fraction)):
            return _collision(np.asarray(float(distance)), width)[()].item()
        return _collision(distance, width)

    def retrieval_probability(
        self, query: Annotated[Array, "... d"], key: Annotated[Array, "... d"]
    ) -> Annotated[Array, "..."]:
        r"""Return the probability that `key` shares a bucket with `query` in at least one table.

        .. math:: 1 - (1 - p(D)^\kappa)^L, \quad D = \lVert q - k \rVert

        over the draw of directions and offsets. Leading axes broadcast.
        """
        q, k = pair(query, key, self.directions)
        xp = array_namespace(q)
        difference = (q - k) / self.width  # only the ratio counts, and its square fits a float
        distance = root(xp.sum(difference * difference, axis=-1))
        return at_least_once(_collision(distance, 1.0), self.n_tables, self.n_projections)


def _collision(distance: Array, width: float) -> Array:
    xp = array_namespace(distance)
    # below this the probability rounds to 1, and width / distance or its square might overflow
    near = distance < 1e-17 * width
    t = width / xp.where(near, xp.full_like(distance, width), distance)  # r / c
    within = erf(t / math.sqrt(2))  # 1 - 2Φ(-t)
    short = xp.clip(t, 0.0, 40.0)  # exp(-40²/2) is 0 in every dtype, and t² cannot overflow
    far = t < 1e-9  # (1 - exp(-t²/2)) / t is t/2 here, and t² might vanish
    lost = xp.where(far, t / 2, -xp.expm1(-short * short / 2) / xp.where(far, xp.ones_like(t), t))
    return xp.where(near, xp.ones_like(t), within - math.sqrt(2 / math.pi) * lost)
