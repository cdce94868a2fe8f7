r"""Cross-polytope hashing: the axis, with its sign, that a randomly rotated vector is closest to.

.. math:: \operatorname{hash}(x) = \pm e_i \text{ with the largest } \pm (R x)_i, \qquad
          R = H D_3\, H D_2\, H D_1

The points ± e_i are the corners of the cross-polytope. H is the Hadamard matrix over √D, and D_1,
D_2, D_3 are diagonals of random signs: a product with R takes O(D log D), not O(D²).
"""

import functools
import math
import numbers
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_int, generator
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.erf import erf
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import move
from attnbook.hashing.collision import at_least_once, check_within
from attnbook.hashing.probing import cheapest, check_probes
from attnbook.hashing.projections import VectorHash, angle_of, joined, pair, widened

ROTATIONS = 3
"""Rounds of signs and Hadamard matrix; with fewer, some vectors stay close to an axis."""

ANGLES = 65
"""Angles at which the collision probability is integrated, for `retrieval_probability`."""


@dataclass(frozen=True, eq=False)
class CrossPolytopeHash(VectorHash):
    r"""L tables of κ corners each.

    A vector is filled up with zeros to D entries and rotated. Its code is i if the corner e_i is
    the closest and D + i if -e_i is: 2 D values. A signature joins the κ codes of a table into one
    integer, :math:`\sum_j (2D)^j \operatorname{code}_j`.

    Only the direction of a vector matters. The vectors that are closest to a corner lie in a
    rounder piece of the sphere than κ planes cut out, so at equal chances for near vectors far
    vectors meet less often. As D grows, the exponent ρ approaches the least that a hash of the
    sphere can have which does not depend on the keys.

    Attributes
    ----------
    signs : array, shape (n_tables, n_projections, 3, D)
        The diagonals, of entries 1 and -1. D is the least power of two from d on.
    d : int
        Width of the vectors.

    Raises
    ------
    TypeError, ValueError
        If `signs` is not such an array of floats, D is not the least power of two from d on, or
        κ log₂(2 D) is above 63, which would overflow an int64.

    Notes
    -----
    Where the two largest entries of a rotated vector are within rounding of one another, its code
    may differ between libraries and dtypes; up to D = 16 some draws of the signs make such pairs.
    A vector of zeros has the code 0.

    References
    ----------
    Andoni, Indyk, Laarhoven, Razenshteyn and Schmidt (2015), "Practical and optimal LSH for angular
    distance"; chapter `hashing`.

    Examples
    --------
    >>> import numpy as np
    >>> corners = CrossPolytopeHash.init(0, d=4, n_tables=2)
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> corners.signatures(np.concatenate([x, -x])).tolist()  # the opposite corner is 4 on
    [[3, 7], [7, 3]]
    """

    signs: Annotated[Array, "n_tables n_projections 3 D"]
    d: int

    def __post_init__(self):
        check_float("signs", self.signs)
        shape = tuple(self.signs.shape)
        if len(shape) != 4 or 0 in shape or shape[2] != ROTATIONS:
            raise ValueError(
                "signs must have shape (n_tables, n_projections, 3, D) with each at least 1, "
                f"got {shape}"
            )
        if shape[3] != corners_for(check_int("d", self.d, at_least=1)):
            raise ValueError(
                f"signs must have D = {corners_for(self.d)}, the least power of two from d on, "
                f"got {shape[3]}"
            )
        if (2 * shape[3]) ** shape[1] > 2**63:
            raise ValueError(
                f"signs must have (2 D)^n_projections up to 2^63, got ({2 * shape[3]})^{shape[1]}"
            )

    @classmethod
    def init(
        cls, rng: Any, d: int, n_tables: int = 1, n_projections: int = 1
    ) -> "CrossPolytopeHash":
        """Draw random signs (NumPy, float64) for vectors of width `d`.

        `rng` is a numpy.random.Generator or a seed. Raises TypeError or ValueError if a number is
        not an int of at least 1, or so many codes do not fit an int64.
        """
        rng = generator(rng)
        for name, size in {"d": d, "n_tables": n_tables, "n_projections": n_projections}.items():
            check_int(name, size, at_least=1)
        shape = (n_tables, n_projections, ROTATIONS, corners_for(d))
        return cls(2.0 * rng.integers(2, size=shape) - 1, d)

    @property
    def n_tables(self) -> int:
        """L."""
        return int(self.signs.shape[0])

    @property
    def n_projections(self) -> int:
        """κ, the number of rotations in a table."""
        return int(self.signs.shape[1])

    @property
    def multipliers(self) -> np.ndarray:
        """The powers of 2 D that join codes to a signature, int64."""
        return (2 * int(self.signs.shape[3])) ** np.arange(self.n_projections, dtype=np.int64)

    def rotated(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... L K D"]:
        """Return R x for every rotation: vectors as long as x. Cost: O(L κ D log D) per vector.

        Raises TypeError or ValueError as `signatures`.
        """
        x, signs = widened("x", x, self.signs, self.d)
        xp = array_namespace(x)
        if not bool(xp.all(xp.isfinite(x))):
            raise ValueError("x must be finite, got NaN or infinity")
        missing = xp.zeros_like(x[..., :1])
        missing = xp.broadcast_to(missing, (*x.shape[:-1], signs.shape[3] - self.d))
        x = xp.concat([x, missing], axis=-1)[..., None, None, :]
        for i in range(ROTATIONS):
            x = hadamard(signs[:, :, i, :] * x)
        return x

    def codes(self, x: Annotated[Array, "... d"]) -> Annotated[Array, "... n_tables n_projections"]:
        """Return the corners that x is closest to, int64, from 0 to 2 D - 1.

        Raises TypeError or ValueError as `signatures`.
        """
        y = self.rotated(x)
        xp = array_namespace(y)
        both = xp.concat([y, -y], axis=-1)
        return xp.astype(xp.argmax(both, axis=-1), xp.int64)

    def probes(
        self, x: Annotated[Array, "... d"], n_probes: int
    ) -> Annotated[Array, "... n_tables n_probes"]:
        r"""Return the signatures of the buckets to look into, int64, the query's own first.

        The others have another corner in some codes, by ascending sum of the squared gaps
        :math:`(\max_i |y_i| - (\pm y_i))^2` between the corner taken and the closest one. Raises
        TypeError or ValueError as `signatures`, or if `n_probes` is not an int from 1 to (2 D)^κ,
        or exceeds 1,024.
        """
        n_corners = 2 * int(self.signs.shape[3])
        check_probes(n_probes, n_corners**self.n_projections, "the buckets")
        y = self.rotated(x)
        xp = array_namespace(y)
        both = xp.concat([y, -y], axis=-1)
        # of one rotation at most n_probes corners count, the closest first
        order = xp.argsort(-both, axis=-1, stable=True)[..., : min(n_probes, n_corners)]
        near = xp.take_along_axis(both, order, axis=-1)
        corner = xp.astype(order, xp.int64)
        multipliers = self._multipliers_like(corner)
        own = joined(corner[..., 0], multipliers)
        if n_probes == 1:
            return own
        gaps = near[..., :1] - near[..., 1:]
        moves = (corner[..., 1:] - corner[..., :1]) * multipliers[:, None]
        return own + cheapest(gaps * gaps, moves, n_probes)

    @staticmethod
    def collision_probability(angle: Any, D: int) -> Any:
        r"""Return the probability that two vectors are closest to the same corner of D axes.

        .. math:: p = 2D \int_0^\infty\!\!\int_0^\infty \varphi_\theta(x, y)\,
                  P(|X| \le x, |Y| \le y)^{D - 1}\, dx\, dy

        X and Y are standard normal with correlation cos θ, and φ_θ is their density. Times √D, the
        entries of two rotated unit vectors are such pairs: exactly if a Gaussian matrix takes the
        place of the rotation, and nearly for the fast rotation. There is no closed form; the
        integral is computed with Gauss-Legendre points, to about four digits. `angle` is θ in
        radians, a float or an array of floats from 0 to π, and the result is like it. D is an int
        of at least 1. Raises TypeError or ValueError if they are no such numbers. Cost: 3·10⁵ error
        functions an angle.

        Examples
        --------
        >>> round(CrossPolytopeHash.collision_probability(0.5, D=64), 3)
        0.421
        """
        check_within("angle", angle, math.pi, "π")
        check_int("D", D, at_least=1)
        if isinstance(angle, (float, numbers.Rational)):
            return _collision(float(angle), D)
        xp = array_namespace(angle)
        flat = np.asarray(move(xp.reshape(angle, (-1,)), "numpy"), dtype=np.float64)
        chances: Any = np.asarray([_collision(float(a), D) for a in flat]).reshape(angle.shape)
        return xp.astype(placed(chances, angle), angle.dtype, copy=False)

    def retrieval_probability(
        self, query: Annotated[Array, "... d"], key: Annotated[Array, "... d"]
    ) -> Annotated[Array, "..."]:
        r"""Return the probability that `key` shares a bucket with `query` in at least one table.

        .. math:: 1 - (1 - p^\kappa)^L

        with p of `collision_probability`, interpolated between 65 angles. Leading axes broadcast.
        The angle of a vector of zeros to any other counts as π/2, that to another vector of zeros
        as 0.
        """
        angle = angle_of(*pair(query, key, self.signs, self.d))
        xp = array_namespace(angle)
        # log p falls evenly with the square of sin(θ/2), about; and cells end where it is known
        at = xp.clip(angle / math.pi, 0.0, 1.0) * (ANGLES - 1)
        cell = xp.clip(xp.astype(at, xp.int64), 0, ANGLES - 2)
        beyond = at - xp.astype(cell, at.dtype)
        table = placed(_log_collisions(int(self.signs.shape[3])), at)
        table = xp.astype(table, at.dtype, copy=False)
        flat = xp.reshape(cell, (-1,))
        low, high = (xp.reshape(xp.take(table, flat + i), cell.shape) for i in (0, 1))
        p = xp.exp(low + beyond * (high - low))
        return at_least_once(p, self.n_tables, self.n_projections)


def corners_for(d: int) -> int:
    """Return D, the least power of two from d on."""
    return 1 << (d - 1).bit_length()


def hadamard(x: Annotated[Array, "... D"]) -> Annotated[Array, "... D"]:
    """Return H x / √D for the Hadamard matrix H of Sylvester, D a power of two: O(D log D)."""
    xp, D = array_namespace(x), x.shape[-1]
    shape, half = tuple(x.shape), 1
    while half < D:  # sums and differences of blocks: [[H, H], [H, -H]]
        pairs = xp.reshape(x, (*shape[:-1], D // (2 * half), 2, half))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = xp.reshape(xp.stack([first + second, first - second], axis=-2), shape)
        half *= 2
    return x / math.sqrt(D)


@functools.lru_cache(maxsize=4096)
def _collision(angle, D):
    """Integrate over s, of the larger entries, over their difference, and over S."""
    rho, apart = math.cos(angle), math.sin(angle)
    if apart < 1e-9:
        return 1.0 if rho > 0 else 0.0
    if D == 1:
        return 1 - angle / math.pi
    s, s_weight = _legendre(0.0, 9.0, 56)
    u, u_weight = _legendre(-7.0, 7.0, 48)
    t = rho * s[:, None] + apart * u  # (s, u)
    v, v_weight = _legendre(-1.0, 1.0, 56)
    inner = v * s[:, None]  # S from -s to s
    ahead = (t[..., None] - rho * inner[:, None, :]) / apart  # (s, u, v)
    behind = (-t[..., None] - rho * inner[:, None, :]) / apart
    both = 0.5 * (erf(ahead / math.sqrt(2)) - erf(behind / math.sqrt(2)))
    within = s[:, None] * np.sum(v_weight * _density(inner)[:, None, :] * both, axis=-1)
    within = np.where(t > 0, np.clip(within, 0.0, 1.0), 0.0)
    weights = s_weight[:, None] * _density(s)[:, None] * u_weight * _density(u)
    return float(min(1.0, 2 * D * np.sum(weights * within ** (D - 1) * (t > 0))))


@functools.lru_cache(maxsize=8)
def _log_collisions(D):
    """Return log p at even steps of the angle, from 0 to π."""
    p = [_collision(math.pi * i / (ANGLES - 1), D) for i in range(ANGLES)]
    return np.log(np.maximum(p, 1e-300))


def _legendre(low, high, n):
    x, weight = np.polynomial.legendre.leggauss(n)
    return low + (high - low) * (x + 1) / 2, weight * (high - low) / 2


def _density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
