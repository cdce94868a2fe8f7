"""The check of the p-stable hash: the number of the interval into which a projection falls."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._report import Report
from attnbook.hashing.stable_hash import StableHash


def stable_hash(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the codes of the p-stable hash, ⌊(a · x + b)/r⌋ for each direction a and its offset b.

    Runs `f` on a square, on one vector, on one projection, on sizes that are all different primes,
    on projections that end exactly where an interval does, with widths below and above 1, in
    float64 and float32, and on vectors so far out that a code does not fit an int32.

    Parameters
    ----------
    f : callable
        Called as ``f(x, directions, offsets, width)``, by position, on arrays (n, d),
        (n_projections, d) and (n_projections,), and a float above 0. It returns an array
        (n, n_projections) of integers.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

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


def _reference(x, directions, offsets, width):
    hashes = StableHash(directions[np.newaxis], offsets[np.newaxis], width)
    return hashes.codes(x)[..., 0, :]


def _inside(along, offsets, width):
    return (along + offsets) / width


def _model(
    inside: Callable = _inside,
    cut: Callable = np.floor,
    along: Callable = lambda x, directions: x @ directions.T,
    show: Callable = lambda codes: codes,
) -> Callable:
    """Return the hash with one of its steps replaced."""

    def model(x, directions, offsets, width):
        return show(cut(inside(along(x, directions), offsets, width)).astype(np.int64))

    return model


def _in_int32(codes: Any, saturate: bool) -> Any:
    """Return codes as an int32 holds them: without the upper bits, or with none that is right."""
    low, high = -(2.0**31), 2.0**31 - 1
    return np.clip(codes, low, high) if saturate else codes.astype(np.int64).astype(np.int32)


def _lowest_beyond(codes):
    return np.where(np.abs(codes) < 2.0**31, codes, -(2.0**31))


def _is_float(returned: Any) -> bool:
    return "float" in str(getattr(returned, "dtype", ""))


def _unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


_MISTAKES = (
    Mistake(
        "floats for integers",
        "Your codes are floating-point numbers: floor keeps the dtype. A code is part of a key of "
        "a table. Turn it into int64 after the floor.",
        (),
        _is_float,
    ),
    Mistake(
        "truncated",
        "You cut off the digits, which rounds towards 0: the interval around 0 is twice as long as "
        "the others, and vectors on either side of 0 meet in it. Take the floor before you turn "
        "the number into an integer.",
        (_model(cut=np.trunc),),
    ),
    Mistake(
        "rounded",
        "You round to the nearest integer, which moves every interval by half a width. Take the "
        "floor.",
        (_model(cut=np.rint), _model(cut=lambda codes: np.floor(codes + 0.5))),
    ),
    Mistake(
        "rounded up",
        "You round up. Take the floor: an interval holds its left end and not its right one.",
        (_model(cut=np.ceil), _model(cut=lambda codes: np.floor(codes) + 1)),
    ),
    Mistake(
        "right ends",
        "Your intervals hold their right end, and not the left one: ⌈t⌉ − 1 is ⌊t⌋ but for "
        "integers. A vector of zeros, such as padding, may lie on an end. Take the floor.",
        (_model(cut=lambda codes: np.ceil(codes) - 1),),
    ),
    Mistake(
        "offset forgotten",
        "You do not use the offsets. Without them 0 is an end of an interval in every projection, "
        "so two vectors on either side of it never meet, however near they are.",
        (_model(lambda along, offsets, width: along / width),),
    ),
    Mistake(
        "offset divided alone",
        "You divide the offset and not the projection: in a + b / r the division comes first. "
        "Write (a + b) / r.",
        (_model(lambda along, offsets, width: along + offsets / width),),
    ),
    Mistake(
        "offset outside the division",
        "You add the offset after you divide by the width. It is measured in the unit of the "
        "vectors, from 0 to r, and is added before: (a · x + b) / r.",
        (
            _model(lambda along, offsets, width: along / width + offsets),
            _model(lambda along, offsets, width: along / width + offsets, np.trunc),
            _model(lambda along, offsets, width: np.floor(along / width) + offsets, np.trunc),
            _model(lambda along, offsets, width: np.floor(along / width) + offsets, np.rint),
        ),
    ),
    Mistake(
        "offset subtracted",
        "You subtract the offset. It is added: (a · x + b) / r. The hash would be as good, but its "
        "codes are others, and codes of two rules never meet.",
        (_model(lambda along, offsets, width: (along - offsets) / width),),
    ),
    Mistake(
        "width forgotten",
        "You do not divide by the width, so your intervals have length 1 whatever it is.",
        (_model(lambda along, offsets, width: along + offsets),),
    ),
    Mistake(
        "width multiplied",
        "You multiply by the width. A larger width must give longer intervals, so fewer codes: "
        "divide by it.",
        (
            _model(lambda along, offsets, width: (along + offsets) * width),
            _model(lambda along, offsets, width: along * width + offsets),
        ),
    ),
    Mistake(
        "width squared",
        "You divide by the square of the width. Divide by the width: (a · x + b) / r.",
        (
            _model(lambda along, offsets, width: (along + offsets) / width**2),
            _model(lambda along, offsets, width: (along / width + offsets) / width),
        ),
    ),
    Mistake(
        "rounded twice",
        "You take a floor before you divide, and another one after. Unless the width is an integer "
        "that moves the ends of the intervals. Divide first, then take the floor.",
        (
            _model(lambda along, offsets, width: np.floor(along + offsets) / width),
            _model(lambda along, offsets, width: (np.floor(along) + offsets) / width),
        ),
    ),
    Mistake(
        "sign for the floor",
        "You keep the sign alone. That is SimHash; this hash numbers the intervals of a line.",
        (_model(cut=lambda codes: codes >= 0), _model(cut=np.sign)),
    ),
    Mistake(
        "no negative codes",
        "You take the absolute value, so vectors on opposite sides of 0 meet. A code may be "
        "negative.",
        (
            _model(lambda along, offsets, width: (np.abs(along) + offsets) / width),
            _model(lambda along, offsets, width: np.abs(along + offsets) / width),
            _model(cut=lambda codes: np.abs(np.floor(codes))),
        ),
    ),
    Mistake(
        "vectors normalised",
        "You divide the vectors, or the directions, by their length. This hash looks at distances, "
        "and lengths are part of them; cosines are the business of SimHash.",
        (
            _model(along=lambda x, directions: _unit(x) @ directions.T),
            _model(along=lambda x, directions: x @ _unit(directions).T),
            _model(along=lambda x, directions: _unit(x) @ _unit(directions).T),
        ),
    ),
    Mistake(
        "codes summed",
        "You add up the codes of a vector, so that different ones can give one sum. Return them "
        "all, (n, n_projections); how they are joined to one key is another step.",
        (_model(show=partial(np.sum, axis=-1)),),
    ),
    Mistake(
        "transposed",
        "Your result has a row for each projection. It has a row for each vector, (n, "
        "n_projections).",
        (
            _model(show=np.transpose),
            _model(
                lambda along, offsets, width: (along + offsets[:, np.newaxis]) / width,
                along=lambda x, directions: directions @ x.T,
            ),
        ),
    ),
    Mistake(
        "offset of the vector",
        "You add an offset for each vector, where each projection has one: (n_projections,) is "
        "added along the last axis. It runs only where n is n_projections.",
        (_model(lambda along, offsets, width: (along + offsets[:, np.newaxis]) / width),),
    ),
    Mistake(
        "one offset for all",
        "You add the first offset to every projection. Each has its own.",
        (_model(lambda along, offsets, width: (along + offsets[0]) / width),),
    ),
    Mistake(
        "directions transposed",
        "You take the columns of `directions` for the directions. Its rows are, (n_projections, "
        "d): multiply x by its transpose. It runs only where n_projections is d.",
        (_model(along=lambda x, directions: x @ directions),),
    ),
    Mistake(
        "int32",
        "Your codes are cut to int32: those beyond 2³¹ are wrong. A code grows with the length of "
        "a vector over the width, so use int64.",
        (
            _model(cut=lambda codes: _in_int32(np.floor(codes), saturate=False)),
            _model(cut=lambda codes: _in_int32(np.floor(codes), saturate=True)),
            _model(cut=lambda codes: _lowest_beyond(np.floor(codes))),
        ),
    ),
)


def vectors_are_hashed_alone(case: Case, values: Values, again: Callable) -> str | None:
    flipped = again(x=np.flip(case.arrays["x"], axis=0))
    if flipped and not np.array_equal(np.flip(flipped[0], axis=0), values[0]):
        return "Reversing the order of the vectors must reverse the codes; here it changes them."
    return None


def codes_can_be_negative(case: Case, values: Values, again: Callable) -> str | None:
    far = -1e3 * np.sum(case.arrays["directions"], axis=0)
    moved = again(x=case.arrays["x"] * 0 + far)
    if moved and not np.any(moved[0] < 0):
        return (
            "Far out on one side the codes are negative; yours never are. What brings them into "
            "the range of a table comes later."
        )
    return None


def digits_are_enough(case: Case, values: Values, again: Callable) -> str | None:
    """Recognise float32, in which every order of summation gives other last digits."""
    expected = _reference(*case.arguments.values())
    if values[0].shape != expected.shape or not np.allclose(values[0], expected, rtol=1e-4):
        return None
    return (
        "Your codes agree in their first digits, and no further: is something computed in float32? "
        "Project, add and divide in the dtype of the vectors."
    )


def an_offset_of_a_width_moves_by_one(case: Case, values: Values, again: Callable) -> str | None:
    moved = again(offsets=case.arrays["offsets"] + case.arguments["width"])
    if moved and moved[0].shape == values[0].shape and not np.all(moved[0] == values[0] + 1):
        return "Adding the width to every offset must add 1 to every code; here it does not."
    return None


def _case(
    n: int, d: int, n_projections: int, width: float, dtype: str = "float64", size: float = 1.0
) -> Case:
    offsets = width * np.random.default_rng([34, n_projections]).uniform(size=n_projections)
    arrays = {"x": size * draw(32, n, d), "directions": draw(33, n_projections, d)}
    arrays["offsets"] = offsets
    given: dict[str, Any] = {name: x.astype(dtype) for name, x in arrays.items()}
    return Case({**given, "width": width})


_AT_THE_ENDS = Case(
    {
        "x": np.array([[1.0, -1.0], [0.0, 0.0], [2.0, 1.0], [-3.0, 1.0], [0.0, -2.0]]),
        "directions": np.array([[1.0, 1.0], [-1.0, 3.0], [1.0, -2.0]]),
        "offsets": np.array([0.0, 0.5, 0.25]),
        "width": 0.5,
    }
)

STABLE_HASH = Check(
    name="stable_hash",
    parameters=("x", "directions", "offsets", "width"),
    results={"codes": "(n, n_projections)"},
    reference=_reference,
    stages=(
        Stage(
            (
                _case(3, 3, 3, 0.75),
                _case(7, 5, 3, 2.5),
                _case(5, 3, 5, 0.3),
                _case(11, 2, 2, 1.5),
                _case(1, 7, 5, 0.7),
                _case(13, 3, 1, 0.6),
            )
        ),
        Stage((_AT_THE_ENDS,)),
        Stage((_case(3, 3, 3, 0.75, "float32"), _case(5, 7, 3, 2.5, "float32"))),
        Stage((_case(5, 3, 2, 0.01, size=1e8), _case(3, 3, 3, 1e-3, size=1e7))),
    ),
    mistakes=_MISTAKES,
    properties=(
        digits_are_enough,
        vectors_are_hashed_alone,
        codes_can_be_negative,
        an_offset_of_a_width_moves_by_one,
    ),
    options=(),
    remarked_options=(),
    kind="integral",
)
