r"""The probability that one of several buckets of a table holds a key, for the p-stable hash.

.. math:: p_T(D) = \mathbb E_x \sum_{e \in \text{probes}(x)} \prod_{j} P(e_j \mid x_j, D)

x_j, uniform from 0 to 1, is where in its interval the query lies along projection j. A probe takes
for each projection a step e_j = -1, 0 or 1 from the interval of the query. The factor is the
probability that the key lies in that interval.
"""

import functools
import math
from typing import Annotated

import numpy as np

from attnbook.arrays.erf import erf
from attnbook.hashing.probing import cheapest

POSITIONS = 512
"""Evenly spread points over which the mean is taken; it errs by some thousandths."""

MOST_PROBED = 39
"""Codes a table: the step of each is a digit of base 3 in one int64."""

NEAREST, FARTHEST, STEPS = 1e-3, 32.0, 72
"""Distances, in widths, at which it is computed. Between them its logarithm is linear."""


def chance_of_probes(
    distance: Annotated[np.ndarray, "n"], n_projections: int, n_probes: int
) -> Annotated[np.ndarray, "n"]:
    """Return p_T at distances in widths, a NumPy array, for κ ≤ 39 codes per table."""
    at = np.log(np.clip(distance, NEAREST, FARTHEST))
    beyond = np.log(np.maximum(distance, FARTHEST) / FARTHEST)  # each code's chance falls as 1/D
    return np.exp(np.interp(at, *_table(n_projections, n_probes)) - n_projections * beyond)


def distance_of_chance(chance: float, n_projections: int, n_probes: int) -> float:
    """Return the largest distance in widths at which p_T is at least `chance`, below 1.

    0 if that is nearer than `NEAREST`.
    """
    log_distance, log_p = _table(n_projections, n_probes)
    if math.log(chance) > log_p[0]:
        return 0.0
    return float(np.exp(np.interp(-math.log(chance), -log_p, log_distance)))


@functools.cache
def _table(n_projections, n_probes):
    """Return the logarithms of distances and of p_T there, which falls."""
    u, steps = _probed(n_projections, n_probes)
    distances = np.geomspace(NEAREST, FARTHEST, STEPS)
    chances = []
    for distance in distances:
        # the key lies at u + distance · N(0, 1): before 0, from 0 to 1, beyond 1, up to a width
        edges = (np.stack([-1 - u, -u, 1 - u, 2 - u]) / distance) / math.sqrt(2)
        below = 0.5 * (1 + erf(edges))
        stay, back, ahead = below[2] - below[1], below[1] - below[0], below[3] - below[2]
        logs = np.log(np.maximum(np.stack([stay, back, ahead], axis=-1), 1e-30))  # (s, κ, 3)
        sums = np.take_along_axis(logs, steps, axis=-1).sum(axis=1)  # (s, T)
        chances.append(np.exp(sums).sum(axis=-1).mean())
    falling = np.minimum.accumulate(np.minimum(chances, 1.0))
    return np.log(distances), np.log(np.maximum(falling, 1e-300))


def _probed(n_projections, n_probes):
    """Return positions (s, κ) and the step of each code in each probe, (s, κ, T) from 0 to 2."""
    primes = [p for p in range(2, 180) if all(p % q for q in range(2, p))][:n_projections]
    # Kronecker's sequence: multiples of irrational numbers, modulo 1, fill the cube evenly
    u = np.modf(np.outer(np.arange(1, POSITIONS + 1), np.sqrt(primes)))[0]
    costs = np.stack([u * u, (1 - u) * (1 - u)], axis=-1)
    powers = 3 ** np.arange(n_projections)
    changes = np.broadcast_to(powers[:, None] * np.array([1, 2]), costs.shape)
    packed = cheapest(costs, changes, n_probes)  # a step for each code, as digits of base 3
    return u, packed[:, None, :] // powers[:, None] % 3
