"""The check of the p-stable hash in steps: the interval into which a projection falls."""

from collections.abc import Callable
from functools import partial

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.sign_bits import REVERSED, returns
from attnbook.check.steps import Case, Check, Stage, Values, draw, each
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


STEPS: dict[str, Callable] = {
    "project": lambda x, directions: x @ directions.T,
    "offset": lambda offsets: offsets,
    "width": lambda width: width,
    "inside": lambda along, offsets, width: (along + offsets) / width,
    "cut": np.floor,
    "show": lambda codes: codes,
    "hold": lambda codes: codes,
}


def stable_hash_from_steps(s, x, directions, offsets, width):
    """Return the codes by the steps `s`."""
    inside = s.inside(s.project(x, directions), s.offset(offsets), s.width(width))
    return s.show(s.hold(s.cut(inside)).astype(np.int64))


def _unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


_REMAINDERS = (2, 4, 7, 8, 10, 16, 32, 64, 97, 100, 101, 128, 256, 1000, 1024, 2**16)

_MISTAKES = mistakes(
    """
    floats for integers: Your codes are floating-point numbers: floor keeps the dtype. A code is
        part of a key of a table. Turn it into int64 after the floor.
    truncated: You cut off the digits, which rounds towards 0: the interval around 0 is twice as
        long as the others, and vectors on either side of 0 meet in it. Take the floor before you
        turn the number into an integer.
    rounded: You round to the nearest integer, or add half a width before the floor, so every
        interval moves by half a width. Take the floor alone.
    rounded up: You round up, or add 1 after the floor, or the width before it. Take the floor
        alone: an interval holds its left end and not its right one.
    right ends: Your intervals hold their right end, and not the left one: ⌈t⌉ − 1 is ⌊t⌋ but for
        integers. A vector of zeros, such as padding, may lie on an end. Take the floor.
    offset forgotten: You do not use the offsets, or you add them after the floor, where they
        vanish. Without them 0 is an end of an interval in every projection, so two vectors on
        either side of it never meet, however near they are.
    width forgotten: You do not divide by the width, so your intervals have length 1 whatever it is.
    offset divided alone: You divide the offset and not the projection: in a + ξ / r the division
        comes first. Write (a + ξ) / r.
    offset outside the division: You add the offset after you divide by the width. It is measured in
        the unit of the vectors, from 0 to r, and is added before: (a · x + ξ) / r.
    offset subtracted: You subtract the offset. It is added: (a · x + ξ) / r. The hash would be as
        good, but its codes are others, and codes of two rules never meet.
    width multiplied: You multiply by the width. A larger width must give longer intervals, so fewer
        codes: divide by it.
    width squared: You divide by the square of the width. Divide by the width: (a · x + ξ) / r.
    rounded twice: You round before you divide, and once more after. Unless the width is an
        integer that moves the ends of the intervals. Divide first, then take the floor.
    sign for the floor: You keep the sign alone. That is SimHash; this hash numbers the intervals of
        a line.
    no negative codes: You take an absolute value, or put 0 in the place of what is negative, so
        vectors on opposite sides of 0 meet. A code may be negative.
    vectors normalised: You divide the vectors, or the directions, by their length. This hash looks
        at distances, and lengths are part of them; cosines are the business of SimHash.
    vectors centred: You subtract the mean of the vectors, or of each vector, before you hash them.
        Distances stay as they are, but a vector that is hashed in another batch gets another code.
    codes summed: You add up the codes of a vector, so that different ones can give one sum. Return
        them all, (n, n_projections); how they are joined to one key is another step.
    transposed: Your result has a row for each projection. It has a row for each vector, (n,
        n_projections).
    offset of the vector: You add an offset for each vector, where each projection has one:
        (n_projections,) is added along the last axis. It runs only where n is n_projections.
    one offset for all: You add one number to every projection: one of the offsets, their mean or
        their sum. Each projection has an offset of its own.
    one projection for all: Every column of yours is the first one. Each projection has its own
        direction and offset.
    directions transposed: You take the columns of `directions` for the directions. Its rows are,
        (n_projections, d): multiply x by its transpose. It runs only where n_projections is d.
    int32: Your codes are cut to int32: those beyond 2³¹ are wrong. A code grows with the length of
        a vector over the width, so use int64.
    remainder: You take a remainder of the codes, or cut them to a few bits, so intervals far apart
        get one code. A code may have any size; what brings it into the range of a table comes
        later.
    one too low: You subtract 1 after the floor, or the width before it. Take the floor alone.
    offset counted twice: You add the offset twice, or its double. Add it once: (a · x + ξ) / r.
    another width: You divide by the half, the double or the root of the width. Divide by the width
        itself: it is the length of an interval.
    ratio upside down: You divide the width by the projection. The code counts how many widths fit:
        (a · x + ξ) / r.
    rest of the division: You take the remainder, the place inside the interval. The code is the
        number of the interval: divide by the width and take the floor.
    codes negated: Your codes have the opposite sign, or the projections have. The code is ⌊(a · x +
        ξ) / r⌋ as it is.
    projections scaled: You divide the projections by the number of features or by its root, as
        attention does with its scores. Nothing is scaled here but by the width.
    distances for projections: You take the distance of a vector from each direction, or its square.
        A direction is no point: project onto it, a · x.
    projections in another order: Your columns are in reverse, or a row is sorted. The code of
        projection j stands in column j: codes in another order are other buckets.
    """,
    {
        "truncated": {"cut": np.trunc},
        "rounded": each("cut", np.rint, lambda t: np.floor(t + 0.5)),
        "rounded up": each("cut", np.ceil, lambda t: np.floor(t) + 1),
        "right ends": {"cut": lambda t: np.ceil(t) - 1},
        "one too low": {"show": lambda codes: codes - 1},
        "offset forgotten": {"offset": lambda b: 0.0},
        "offset divided alone": {"inside": lambda along, b, r: along + b / r},
        "offset outside the division": (
            {"inside": lambda along, b, r: along / r + b},
            *(
                {"inside": lambda along, b, r: np.floor(along / r) + b, "cut": cut}
                for cut in (np.trunc, np.rint, np.floor)
            ),
        ),
        "offset subtracted": {"offset": lambda b: -b},
        "width forgotten": {"width": lambda r: 1.0},
        "offset counted twice": {"offset": lambda b: 2 * b},
        "width multiplied": (
            {"width": lambda r: 1 / r},
            {"inside": lambda along, b, r: along * r + b},
        ),
        "width squared": (
            {"width": lambda r: r**2},
            {"inside": lambda along, b, r: (along / r + b) / r},
        ),
        "another width": each("width", lambda r: r / 2, lambda r: 2 * r, np.sqrt),
        "ratio upside down": {"inside": lambda along, b, r: r / (along + b)},
        "rest of the division": {"inside": lambda along, b, r: (along + b) % r},
        "rounded twice": each(
            "inside",
            *(lambda along, b, r, f=f: (f(along) + b) / r for f in (np.floor, np.trunc, np.rint)),
            *(lambda along, b, r, f=f: f(along + b) / r for f in (np.floor, np.trunc, np.rint)),
        ),
        "sign for the floor": each("cut", lambda t: t >= 0, lambda t: t > 0, np.sign),
        "no negative codes": (
            {"project": lambda x, a: np.abs(x @ a.T)},
            {"inside": lambda along, b, r: np.abs(along + b) / r},
            *each("cut", lambda t: np.abs(np.floor(t)), lambda t: np.maximum(np.floor(t), 0)),
        ),
        "codes negated": (
            {"show": np.negative},
            {"project": lambda x, a: -x @ a.T},
            {"inside": lambda along, b, r: -(along + b) / r},
        ),
        "projections scaled": each(
            "project",
            lambda x, a: x @ a.T / a.shape[-1] ** 0.5,
            lambda x, a: x @ a.T / a.shape[-1],
        ),
        "vectors centred": each(
            "project",
            lambda x, a: (x - np.mean(x, axis=0)) @ a.T,
            lambda x, a: (x - np.mean(x, axis=-1, keepdims=True)) @ a.T,
        ),
        "distances for projections": each(
            "project",
            lambda x, a: np.sqrt(np.sum((x[:, np.newaxis] - a) ** 2, axis=-1)),
            lambda x, a: np.sum((x[:, np.newaxis] - a) ** 2, axis=-1),
        ),
        "vectors normalised": each(
            "project",
            lambda x, a: _unit(x) @ a.T,
            lambda x, a: x @ _unit(a).T,
            lambda x, a: _unit(x) @ _unit(a).T,
        ),
        "codes summed": {"show": partial(np.sum, axis=-1)},
        "transposed": {"show": np.transpose},
        "offset of the vector": {"offset": lambda b: b[:, np.newaxis]},
        "one offset for all": each(
            "offset", lambda b: b[0], lambda b: b[-1], *(np.mean, np.sum, np.min, np.max)
        ),
        "one projection for all": {"show": lambda codes: 0 * codes + codes[:, :1]},
        "projections in another order": each(
            "show", lambda codes: codes[:, ::-1], partial(np.sort, axis=-1)
        ),
        "directions transposed": {"project": lambda x, directions: x @ directions},
        "remainder": each("hold", *(lambda codes, n=n: codes % n for n in _REMAINDERS)),
        "int32": each(
            "hold",
            lambda codes: codes.astype(np.int64).astype(np.int32),
            lambda codes: np.clip(codes, -(2.0**31), 2.0**31 - 1),
            lambda codes: np.where(np.abs(codes) < 2.0**31, codes, -(2.0**31)),
        ),
    },
    {"floats for integers": returns("float")},
)


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
    steps=STEPS,
    stages=(
        Stage(tuple(_points(*sizes) for sizes in _SIZES_AND_WIDTHS)),
        Stage((Case(_AT_THE_ENDS),)),
        Stage((_points(3, 3, 3, 0.75, "float32"), _points(5, 7, 3, 2.5, "float32"))),
        Stage((_points(5, 3, 2, 0.01, size=1e8), _points(3, 3, 3, 1e-3, size=1e7))),
    ),
    mistakes=_MISTAKES,
    properties=_PROPERTIES,
    kind="integral",
)
