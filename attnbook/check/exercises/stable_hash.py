"""The check of the p-stable hash in steps: the interval into which a projection falls."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text
from attnbook.check.exercises.simhash import REVERSED
from attnbook.sketch import StableHash


@documented
def stable_hash(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the codes of the p-stable hash, ⌊(a · x + ξ)/r⌋ for each direction a and its offset ξ.

    Runs `f` on a square, on one vector, on one projection, on different primes, on projections that
    end exactly where an interval does, with widths below and above 1, in float64 and float32, and
    on vectors so far out that a code does not fit an int32.

    Parameters
    ----------
    f : callable
        Called as ``f(x, directions, offsets, width)``, by position, on arrays (n, d),
        (n_projections, d) and (n_projections,), and a float above 0. It returns an array
        (n, n_projections) of integers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_hash(x, directions, offsets, width):
    ...     return ((x @ directions.T + offsets) / width).astype(np.int64)
    >>> check.stable_hash(my_hash).mistake
    'truncated'
    """
    return run(STABLE_HASH, f, time_limit)


def _codes(x, directions, offsets, width):
    hashes = StableHash(directions[np.newaxis], offsets[np.newaxis], width)
    return hashes.codes(x)[..., 0, :]


def stable_hash_from_steps(s, x, directions, offsets, width):
    """Return the codes by the steps `s`."""
    inside = s.inside(s.project(x, directions), s.offset(offsets), s.width(width))
    return s.show(s.hold(s.cut(inside)).astype(np.int64))


def unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


TEXT = Text(globals())


def _digits_are_enough(case: Case, values: Values, again: Callable) -> str | None:
    """Recognise float32, in which every order of summation gives other last digits."""
    expected = _codes(*case.arguments.values())
    if values[0].shape != expected.shape or not np.allclose(values[0], expected, rtol=1e-4):
        return None
    return (
        "Your codes agree in their first digits, and no further: is something computed in float32? "
        "Project, add and divide in the dtype of the vectors."
    )


_PROPERTIES = (
    _digits_are_enough,
    REVERSED,
    moved(
        lambda given: {"x": 0 * given["x"] - 1e3 * np.sum(given["directions"], axis=0)},
        lambda codes, far: np.any(far < 0),
        "Far out on one side the codes are negative; yours never are. What brings them into the "
        "range of a table comes later.",
    ),
    moved(
        lambda given: {"offsets": given["offsets"] + given["width"]},
        lambda codes, added: added == codes + 1,
        "Adding the width to every offset must add 1 to every code; here it adds something else.",
    ),
)


def _points(n: int, d: int, k: int, width: float, dtype: str = "float64", size: float = 1) -> Case:
    offsets = width * np.random.default_rng([34, k]).uniform(size=k)
    arrays = {"x": size * draw(32, n, d), "directions": draw(33, k, d), "offsets": offsets}
    return Case({**{name: x.astype(dtype) for name, x in arrays.items()}, "width": width})


_AT_THE_ENDS = {
    "x": np.array([[1.0, -1.0], [0.0, 0.0], [2.0, 1.0], [-3.0, 1.0], [0.0, -2.0]]),
    "directions": np.array([[1.0, 1.0], [-1.0, 3.0], [1.0, -2.0]]),
    "offsets": np.array([0.0, 0.5, 0.25]),
    "width": 0.5,
}
_SIZES_AND_WIDTHS = (
    *((3, 3, 3, 0.75), (7, 5, 3, 2.5), (5, 3, 5, 0.3)),
    *((11, 2, 2, 1.5), (1, 7, 5, 0.7), (13, 3, 1, 0.6)),
)

STABLE_HASH = Check(
    name="stable_hash",
    parameters=("x", "directions", "offsets", "width"),
    results={"codes": "(n, n_projections)"},
    reference=_codes,
    compute=stable_hash_from_steps,
    steps=TEXT.steps,
    stages=(
        Stage(tuple(_points(*sizes) for sizes in _SIZES_AND_WIDTHS)),
        Stage((Case(_AT_THE_ENDS),)),
        Stage((_points(3, 3, 3, 0.75, "float32"), _points(5, 7, 3, 2.5, "float32"))),
        Stage((_points(5, 3, 2, 0.01, size=1e8), _points(3, 3, 3, 1e-3, size=1e7))),
    ),
    mistakes=TEXT.mistakes,
    properties=_PROPERTIES,
    kind="integral",
)
