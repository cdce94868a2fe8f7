r"""Sign-SimHash: on which side of random planes through the origin a vector lies.

.. math:: \operatorname{hash}(x) = [\, a \cdot x \ge 0 \,], \quad a \sim \mathcal N(0, I), \qquad
          P(\operatorname{hash}(x) = \operatorname{hash}(y)) = 1 - \theta / \pi
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.array import Array, array_namespace
from attnbook.hashing.collision import at_least_once, check_within
from attnbook.hashing.probing import cheapest, check_probes
from attnbook.hashing.projections import (
    RandomProjections,
    angle_of,
    check_directions,
    draw_directions,
    joined,
    pair,
    projected,
)

MOST_BITS = 63
"""A signature is an int64, whose top bit is the sign."""


@dataclass(frozen=True, eq=False)
class SimHash(RandomProjections):
    r"""L tables of κ signs each.

    The code of projection j is 1 where :math:`a_j \cdot x \ge 0`, else 0. A signature packs the κ
    codes of a table into one integer: projection j gives bit j, so the first is the lowest.

    Only the direction of a vector matters, not its length: use it for cosine similarity, or after
    `lift_keys` for inner products.

    Attributes
    ----------
    directions : array, shape (n_tables, n_projections, d)
        The normals of the planes; κ = n_projections is at most 63.

    Raises
    ------
    TypeError, ValueError
        If `directions` is not such an array of floats, or has more than 63 projections per table,
        which would overflow an int64.

    Notes
    -----
    The codes of a vector within rounding of a plane may differ between libraries, dtypes and
    batch sizes, since each sums the products in its own order.

    References
    ----------
    Charikar (2002), "Similarity estimation techniques from rounding algorithms"; Goemans and
    Williamson (1995) for the probability; chapter `hashing`.

    Examples
    --------
    >>> import numpy as np
    >>> planes = SimHash(np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]]))
    >>> planes.signatures(np.array([[2.0, 1.0], [-1.0, 3.0]]))
    array([[7],
           [2]])
    """

    directions: Annotated[Array, "n_tables n_projections d"]

    def __post_init__(self):
        check_directions(self.directions)
        if self.n_projections > MOST_BITS:
            raise ValueError(
                f"directions must have at most {MOST_BITS} projections per table, as a signature "
                f"has 64 bits, got {self.n_projections}"
            )

    @classmethod
    def init(cls, rng: Any, d: int, n_tables: int = 1, n_projections: int = 1) -> "SimHash":
        """Draw standard normal directions (NumPy, float64) for vectors of width `d`.

        `rng` is a numpy.random.Generator or a seed. Raises TypeError or ValueError if a number is
        not an int of at least 1, or n_projections is above 63.
        """
        return cls(draw_directions(rng, d, n_tables, n_projections)[0])

    @property
    def multipliers(self) -> np.ndarray:
        """The powers of 2 that join codes to a signature, int64."""
        return 1 << np.arange(self.n_projections, dtype=np.int64)

    def codes(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables n_projections"]:
        """Return the sign bits of `x`, int64, 1 where a·x ≥ 0.

        Raises TypeError or ValueError as `signatures`. Cost: O(n d L κ), one matrix product.
        """
        along = projected(x, self.directions)
        xp = array_namespace(along)
        return xp.astype(along >= 0, xp.int64)

    def probes(
        self, x: Annotated[Array, "... d"], n_probes: int
    ) -> Annotated[Array, "... n_tables n_probes"]:
        r"""Return the signatures of the buckets to look into, int64, the query's own first.

        The others change the bits j of a set C, by ascending
        :math:`\sum_{j \in C} (a_j \cdot x)^2`. This is the query-directed probing sequence of Lv
        et al. (2007), for planes. Raises TypeError or ValueError as `signatures`, or if `n_probes`
        is not an int from 1 to the number of buckets, 2^κ, or exceeds 1,024. Cost: O(n d L κ), and
        O(κ n_probes) for each table.

        Examples
        --------
        >>> planes = SimHash(np.array([[[1.0, 0.0], [0.0, 1.0]]]))
        >>> planes.probes(np.array([2.0, 1.0]), 4)  # bits 1 and 0 are 1 and 2 from their planes
        array([[3, 1, 2, 0]])
        """
        check_probes(n_probes, 2**self.n_projections, "the buckets")
        along = projected(x, self.directions)
        xp = array_namespace(along)
        multipliers = self._multipliers_like(along)
        bits = xp.astype(along >= 0, xp.int64)
        flips = (1 - 2 * bits) * multipliers
        others = cheapest((along * along)[..., None], flips[..., None], n_probes)
        return joined(bits, multipliers) + others

    @staticmethod
    def collision_probability(angle: Any) -> Any:
        r"""Return the probability that one random plane leaves two vectors on the same side.

        .. math:: p = 1 - \theta / \pi

        `angle` is θ between the vectors in radians, a float or an array of floats from 0 to π; the
        result is like it. For unit vectors it is also 1 − (2/π) arcsin(‖x − y‖ / 2). Raises
        TypeError or ValueError if `angle` is no such number.

        Examples
        --------
        >>> round(SimHash.collision_probability(0.5), 4)
        0.8408
        """
        check_within("angle", angle, math.pi, "π")
        return 1 - angle / math.pi

    def retrieval_probability(
        self, query: Annotated[Array, "... d"], key: Annotated[Array, "... d"]
    ) -> Annotated[Array, "..."]:
        r"""Return the probability that `key` shares a bucket with `query` in at least one table.

        .. math:: 1 - (1 - p^\kappa)^L, \quad p = 1 - \theta / \pi

        over the draw of the directions. Leading axes broadcast. A vector of zeros has the code 1
        everywhere, another vector half the time: its angle to any other counts as π/2, that to
        another vector of zeros as 0.
        """
        angle = angle_of(*pair(query, key, self.directions))
        return at_least_once(1 - angle / math.pi, self.n_tables, self.n_projections)
