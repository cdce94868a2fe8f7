"""What is known of the quality of an answer: how many keys it rests on, and how much it missed."""

import math
from dataclasses import dataclass
from typing import Annotated

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.move import move
from attnbook.sketch.logits import count_and_largest, log_sum
from attnbook.sketch.reference_query import NearKeys
from attnbook.sketch.scored_keys import ScoredKeys
from attnbook.sketch.state import SketchState, box_of, gather


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""For each query, how much of the context the answer rests on.

    Attributes
    ----------
    n_keys : int
        The number of keys in the sketch. With none the output is zeros, as exact attention over no
        keys is.
    candidates : int64 array, shape (n_q,)
        How many different keys were scored one by one: keys from the tables and keys in the window.
    found_probability : array, shape (n_q,)
        The probability, over the draw of the tables, that they find the scored key with the largest
        weight. It is 1 for a key in the window. A small probability says that the key was found
        by luck and that others like it were missed. NaN where nothing was scored or the hash has
        no probabilities.
    missed_mass : array, shape (n_q,)
        An estimate of 1 − A_R, the share of the exact softmax on keys that were not scored. It
        comes from the candidates, each of which stands for 1 / P keys like it; keys unlike all of
        them are in no estimate. It is 1 where there are keys and none was scored, and NaN where the
        hash knows no probabilities.
    bound : array, shape (n_q,)
        :math:`(1 - A_R)\, D_V` with the estimate of A_R. D_V is the diagonal of the box around all
        values. If the estimate is right, the output of ``"union"`` is no farther from the exact one
        (claim 29); importance weights can err by more. Infinity where nothing was scored.
    """

    n_keys: int
    candidates: Annotated[Array, "n_q"]
    found_probability: Annotated[Array, "n_q"]
    missed_mass: Annotated[Array, "n_q"]
    bound: Annotated[Array, "n_q"]

    @classmethod
    def of_nothing(cls, n_keys: int, zeros: Array) -> "Evidence":
        """Return that of answers of zeros, where there was nothing to score."""
        xp = array_namespace(zeros)
        count, unknown = xp.astype(zeros, xp.int64), xp.full_like(zeros, xp.nan)
        return cls(n_keys, count, unknown, zeros, zeros)


def evidence_of(
    state: SketchState, query: Array, near: NearKeys, window: ScoredKeys | None
) -> tuple[Array, ...]:
    """Return the arrays of `Evidence` for answers from near keys and a window, in its order."""
    xp = array_namespace(near.mass)
    count, chance = near.count, found_probability_of(state, to_accumulate(query), near)
    scored, expected = near.mass, near.expected
    if window is not None:
        more, largest = count_and_largest(window.scores)
        count = count + more
        chance = xp.where(largest > near.largest, xp.ones_like(chance), chance)
        scored = log_sum(xp.stack([scored, window.mass], axis=-1))
        if expected is not None:
            expected = log_sum(xp.stack([expected, window.mass], axis=-1))
    missed = _missed_mass(scored, expected)
    if state.n == 0:
        missed = bound = xp.zeros_like(missed)  # zeros are what attention to no keys is
    else:  # nothing scored: zeros, which may lie far from all values
        bound = missed * diameter(state)
        bound = xp.where(scored == -xp.inf, xp.full_like(bound, xp.inf), bound)
    return count, chance, missed, bound


def found_probability_of(state: SketchState, q: Array, near: NearKeys) -> Array:
    """Return the probability that the tables find the best near key, NaN where there is none."""
    xp = array_namespace(q)
    nan = xp.full_like(near.mass, xp.nan)
    if not state.settings.knows_chances:
        return nan
    some = near.best >= 0
    key = gather(state.key.array(), xp.where(some, near.best, xp.zeros_like(near.best)))
    key = xp.astype(key, q.dtype, copy=False)
    return xp.where(some, state.engine.retrieval_probability(q, key), nan)


def diameter(state: SketchState) -> float:
    """Return the diagonal of the box around all values, at least their largest distance."""
    if state.n == 0:
        return 0.0
    low, high = box_of(state)
    return math.sqrt(float(move(array_namespace(low).sum((high - low) ** 2), "numpy")))


def _missed_mass(scored: Array, expected: Array | None) -> Array:
    """Return the estimate of 1 - A_R, from what each candidate stands for."""
    xp = array_namespace(scored)
    missed, nothing = xp.full_like(scored, xp.nan), scored == -xp.inf
    if expected is not None:
        # -inf - -inf is NaN: where nothing was scored compare 0 with 0
        safe = (xp.where(nothing, xp.zeros_like(x), x) for x in (scored, expected))
        missed = -xp.expm1(next(safe) - next(safe))
    return xp.where(nothing, xp.ones_like(missed), missed)
