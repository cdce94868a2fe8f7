"""The check of sign-SimHash in steps: one bit a projection, packed into one integer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text
from attnbook.sketch import SimHash


@documented
def simhash(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the signatures of sign-SimHash: the signs of K projections as the bits of an integer.

    Bit j of the signature of a row x is 1 where x · directions[j] ≥ 0, and the first projection is
    the lowest bit. Runs `f` on a square, on one row, on one projection, on different primes, on a
    vector of zeros, in float64 and float32, and with up to 63 projections, more than an int32 or a
    float holds.

    Parameters
    ----------
    f : callable
        Called as ``f(x, directions)``, by position, on arrays (n, d) and (n_projections, d). It
        returns an array (n,) of integers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_simhash(x, directions):
    ...     bits = x @ directions.T >= 0
    ...     return (bits * 2 ** np.arange(len(directions))[::-1]).sum(axis=-1)
    >>> check.simhash(my_simhash).mistake
    'bits reversed'
    """
    return run(SIMHASH, f, time_limit)


def returns(kind: str) -> Callable[[Any], bool]:
    """Tell whether an object that was returned is an array of "float" or of "bool"."""
    return lambda returned: kind in str(getattr(returned, "dtype", ""))


def simhash_from_steps(s, x, directions):
    """Return the signatures by the steps `s`; numbers in the place of bits are cut to integers."""
    bits = s.order(s.choose(s.bit(s.project(x, directions)).astype(np.int64)))
    return s.hold(s.join(bits, s.places(bits.shape[-1]))).astype(np.int64)


TEXT = Text(globals())


REVERSED = moved(
    lambda given: {"x": np.flip(given["x"], axis=0)},
    lambda codes, flipped: np.flip(flipped, axis=0) == codes,
    "Reversing the order of the vectors must reverse what they get; here it changes it.",
)
_PROPERTIES = (
    REVERSED,
    moved(
        lambda given: {"x": 2 * given["x"]},
        np.equal,
        "A vector twice as long lies on the same sides; here its signature is another.",
    ),
    moved(
        lambda given: {
            "directions": np.concatenate([-given["directions"][:1], given["directions"][1:]])
        },
        lambda signatures, turned: (turned ^ signatures) & ~1 == 0,
        "Turning the first direction around must change the lowest bit and no other; here it "
        "changes others.",
    ),
)


def _stage(*sizes: tuple[int, int, int], dtype: str = "float64") -> Stage:
    """Return a stage of random vectors, for each (n, d, n_projections)."""
    drawn = (
        {"x": draw(30, n, d).astype(dtype), "directions": draw(31, k, d).astype(dtype)}
        for n, d, k in sizes
    )
    return Stage(tuple(map(Case, drawn)))


_ON_A_PLANE = {
    "x": np.array([[1.0, -1.0], [0.0, 0.0], [2.0, 1.0]]),
    "directions": np.array([[1.0, 1.0], [-1.0, 3.0], [1.0, -2.0]]),
}

SIMHASH = Check(
    name="simhash",
    parameters=("x", "directions"),
    results={"signatures": "(n,)"},
    reference=lambda x, directions: SimHash(directions[np.newaxis]).signatures(x)[..., 0],
    compute=simhash_from_steps,
    steps=TEXT.steps,
    stages=(
        _stage((3, 3, 3), (7, 5, 5), (11, 3, 2), (5, 7, 3), (1, 2, 5), (13, 2, 1)),
        Stage((Case(_ON_A_PLANE),)),
        _stage((5, 3, 7), (3, 3, 3), dtype="float32"),
        _stage((3, 5, 11), (5, 3, 19)),
        _stage((3, 7, 37), (5, 7, 61), (3, 5, 63)),
    ),
    mistakes=TEXT.mistakes,
    properties=_PROPERTIES,
    kind="integral",
)
