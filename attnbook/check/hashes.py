"""The checks of two hashes in steps: sign-SimHash, one bit a projection, and the p-stable hash."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook.check.engine import run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each
from attnbook.sketch import SimHash, StableHash


def simhash(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the signatures of sign-SimHash: the signs of K projections as the bits of an integer.

    Bit j of the signature of a row x is 1 where x · directions[j] ≥ 0, and the first projection is
    the lowest bit. Runs `f` on a square, on one row, on one projection, on sizes that are all
    different primes, on a vector of zeros, in float64 and float32, and with up to 63 projections,
    more than an int32 or a float holds.

    Parameters
    ----------
    f : callable
        Called as ``f(x, directions)``, by position, on arrays (n, d) and (n_projections, d). It
        returns an array (n,) of integers.
    time_limit : float
        Seconds of computing for all calls together.

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
    >>> def my_simhash(x, directions):
    ...     bits = x @ directions.T >= 0
    ...     return (bits * 2 ** np.arange(len(directions))[::-1]).sum(axis=-1)
    >>> check.simhash(my_simhash).mistake
    'bits reversed'
    """
    return run(SIMHASH, f, time_limit)


def _is_float(returned: Any) -> bool:
    return "float" in str(getattr(returned, "dtype", ""))


def _is_bool(returned: Any) -> bool:
    return str(getattr(returned, "dtype", "")).endswith("bool")


def _places(k: int) -> np.ndarray:
    return np.array([1 << j for j in range(k)], dtype=np.int64)


def _added(bits, places):
    return np.sum(bits * places, axis=-1)


SIMHASH_STEPS: dict[str, Callable] = {
    "vectors": lambda x: x,
    "project": lambda x, directions: x @ directions.T,
    "bit": lambda along: along >= 0,
    "choose": lambda bits: bits,
    "order": lambda bits: bits,
    "places": _places,
    "join": _added,
    "hold": lambda signatures: signatures,
}


def simhash_from_steps(s, x, directions):
    """Return the signatures by the steps `s`; numbers in the place of bits are cut to integers."""
    bits = s.bit(s.project(s.vectors(x), directions)).astype(np.int64)
    bits = s.order(s.choose(bits))
    return s.hold(s.join(bits, s.places(bits.shape[-1]))).astype(np.int64)


def _powers_of(dtype: str) -> Way:
    return {
        "places": lambda k: 2.0 ** np.arange(k),
        "join": lambda bits, places: np.sum(bits * places, -1, dtype),
    }


def _as_they_are(bits, places):
    return bits


_SIMHASH_MISTAKES = mistakes(
    """
    bits not packed: You return a row of bits for each vector, (n, n_projections). A table looks up
        one integer: add up bit j times 2^j over the projections.
    floats for integers: Your signatures are floating-point numbers. A signature is a key of a
        table: make it an integer, int64. A float64 also holds no more than 53 bits, and the bits
        beyond are lost.
    bits reversed: Your first projection is the highest bit. It is the lowest one here: bit j has
        the weight 2^j. Signatures in two orders never meet.
    strict sign: A projection of exactly 0 gives you the bit 0: you compare with > 0. The bit is 1
        where x · a ≥ 0. What matters is that keys and queries are hashed by one rule; a vector of
        zeros, such as padding, lies on every plane.
    sign inverted: Your bits are the opposite of what they should be: 1 where the projection is
        negative. The bit is 1 where x · a ≥ 0.
    signs for bits: You pack signs of −1 and 1. A bit is 0 or 1: turn the comparison x · a ≥ 0
        itself into an integer.
    floor for the sign: You round the projections to integers and pack those. That is the idea of
        another hash, ⌊(a · x + b)/r⌋, whose codes may have any size. SimHash keeps the sign alone.
    bits summed: You count the ones. Two vectors with as many ones, on different planes, then share
        a bucket. Give bit j the weight 2^j.
    parity: You keep one bit of all: whether the number of ones is odd. Give bit j the weight 2^j.
    exclusive or for the power: In Python 2 ^ j is the exclusive or of 2 and j. The power is 2 ** j,
        or the shift 1 << j.
    2·j for the power: The weight of bit j is 2j in your sum. It is 2 to the power of j: 2 ** j, or
        1 << j.
    powers of 10: You write the bits as the digits of a decimal number. No two signatures meet that
        should not, but 19 projections fill an int64. Use powers of 2.
    shifted once more: Your signatures are twice as large as they should be: the first projection
        has the weight 2. Its weight is 1, 2^0.
    packed into bytes: np.packbits puts eight bits into a byte, so more than eight projections make
        more than one number for a vector, and it begins with the highest bit unless
        bitorder='little'. Add up bit j times 2^j in int64.
    first projection alone: Your signature holds one projection, the first or the last. All of them
        go into it.
    one projection left out: A projection is missing from your signature, the last one or the first:
        look at the end of a range or of a slice.
    another threshold: You compare the projections with another number than 0, so a long vector and
        a short one in the same direction get different bits. The planes go through the origin: x ·
        a ≥ 0.
    mean for a threshold: You compare the projections with their mean. A bit then depends on the
        other projections, or on the other vectors; the bit is 1 where x · a ≥ 0, whatever the
        others are.
    vectors centred: You subtract the mean of the vectors before you hash them. Then the signature
        of a vector depends on the others of its batch, and a query, hashed alone, meets none of
        them.
    projections summed: You add the projections up and take the sign of the sum, which is one
        projection in another direction. Take the sign of each.
    largest projection: You return the index of the largest projection. That is another hash, for
        points on a sphere. SimHash packs the sign of every projection.
    directions transposed: You take the columns of `directions` for the directions. Its rows are,
        (n_projections, d): multiply x by its transpose. It runs only where n_projections is d.
    packed over the vectors: You add up along the vectors, so each projection gets a number. Add up
        along the projections, the last axis: each vector gets one.
    too few bits: The upper bits are lost: you pack in integers of 8, 16 or 32 bits, or take a
        remainder. The signature of 40 projections has 40 bits. Shift and add in int64.
    packed in floats: You add up floating-point numbers and turn the sum into an integer. A float64
        holds 53 bits and a float32 holds 24: the lowest projections are rounded away. Shift and add
        in int64.
    """,
    {
        "bits not packed": each("join", _as_they_are),
        "bits reversed": ({"order": lambda bits: bits[:, ::-1]},),
        "strict sign": each("bit", lambda along: along > 0),
        "sign inverted": each("bit", lambda along: along < 0, lambda along: along <= 0),
        "signs for bits": (
            *each(
                "bit",
                np.sign,
                lambda along: 2 * (along >= 0) - 1,
                lambda along: 2 * (along > 0) - 1,
            ),
            {"bit": np.sign, "join": lambda s, places: np.bitwise_or.reduce(s * places, -1)},
        ),
        "floor for the sign": each(
            "bit", np.floor, np.trunc, np.rint, lambda along: np.floor(along) % 2
        ),
        "bits summed": each("join", lambda bits, places: bits.sum(axis=-1)),
        "parity": each("join", lambda bits, places: bits.sum(axis=-1) % 2),
        "exclusive or for the power": ({"places": lambda k: 2 ^ np.arange(k)},),
        "2·j for the power": (
            {"places": lambda k: 2 * np.arange(k)},
            {"places": lambda k: np.arange(k)},
            {"places": lambda k: np.arange(1, k + 1)},
            {"places": lambda k: np.arange(k) ** 2},
        ),
        "powers of 10": (
            {"places": lambda k: 10 ** np.arange(k)},
            {"places": lambda k: 10 ** np.arange(k)[::-1]},
        ),
        "shifted once more": ({"places": lambda k: 2 * _places(k)},),
        "packed into bytes": tuple(
            {"join": lambda b, p, o=order: np.packbits(b.astype(bool), axis=-1, bitorder=o)}
            for order in ("big", "little")
        ),
        "first projection alone": (
            *each("join", lambda bits, places: bits[:, 0], lambda bits, places: bits[:, -1]),
            {"choose": lambda bits: bits * (np.arange(bits.shape[-1]) == bits.shape[-1] - 1)},
        ),
        "one projection left out": (
            {"choose": lambda bits: bits[:, :-1]},
            {"choose": lambda bits: bits[:, 1:]},
            {"choose": lambda bits: bits * (np.arange(bits.shape[-1]) > 0)},
        ),
        "another threshold": tuple(
            {"bit": lambda along, t=threshold: along >= t}
            for threshold in (1.0, 0.5, -1.0, -0.5, 0.1)
        ),
        "mean for a threshold": each(
            "bit",
            lambda along: along >= np.mean(along, axis=-1, keepdims=True),
            lambda along: along >= np.mean(along),
            lambda along: along >= np.median(along, axis=-1, keepdims=True),
            lambda along: along >= np.median(along, axis=0),
        ),
        "vectors centred": (
            {"vectors": lambda x: x - np.mean(x, axis=0)},
            {"vectors": lambda x: x - np.mean(x, axis=-1, keepdims=True)},
            {"vectors": lambda x: x - np.mean(x, axis=0), "bit": lambda along: along > 0},
        ),
        "projections summed": each("bit", lambda along: np.sum(along, axis=-1, keepdims=True) >= 0),
        "largest projection": tuple(
            {"bit": lambda along, f=f: np.argmax(f(along), axis=-1), "join": _as_they_are}
            for f in (np.asarray, np.abs)
        ),
        "directions transposed": ({"project": lambda x, directions: x @ directions},),
        "packed over the vectors": ({"order": np.transpose},),
        "too few bits": (
            *(
                {"hold": lambda s, t=f"{sign}int{n}": s.astype(t)}
                for sign in ("", "u")
                for n in (8, 16, 32)
            ),
            *(
                {"hold": lambda s, most=most: s % most}
                for most in (2**31, 2**32, 2**30, 2**24, 2**20, 2**16, 2**31 - 1)
            ),
        ),
        "packed in floats": (_powers_of("float64"), _powers_of("float32")),
    },
    {"bits not packed": _is_bool, "floats for integers": _is_float},
)


_SIMHASH_PROPERTIES = (
    moved(
        lambda given: {"x": np.flip(given["x"], axis=0)},
        lambda signatures, flipped: np.flip(flipped, axis=0) == signatures,
        "Reversing the order of the vectors must reverse the signatures; here it changes them.",
    ),
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


def _vectors(n: int, d: int, n_projections: int, dtype: str = "float64") -> Case:
    x, directions = draw(30, n, d), draw(31, n_projections, d)
    return Case({"x": x.astype(dtype), "directions": directions.astype(dtype)})


_ON_A_PLANE = {
    "x": np.array([[1.0, -1.0], [0.0, 0.0], [2.0, 1.0]]),
    "directions": np.array([[1.0, 1.0], [-1.0, 3.0], [1.0, -2.0]]),
}
_SIZES = ((3, 3, 3), (7, 5, 5), (11, 3, 2), (5, 7, 3), (1, 2, 5), (13, 2, 1))

SIMHASH = Check(
    name="simhash",
    parameters=("x", "directions"),
    results={"signatures": "(n,)"},
    reference=lambda x, directions: SimHash(directions[np.newaxis]).signatures(x)[..., 0],
    compute=simhash_from_steps,
    steps=SIMHASH_STEPS,
    stages=(
        Stage(tuple(_vectors(*sizes) for sizes in _SIZES)),
        Stage((Case(_ON_A_PLANE),)),
        Stage((_vectors(5, 3, 7, "float32"), _vectors(3, 3, 3, "float32"))),
        Stage((_vectors(3, 5, 11), _vectors(5, 3, 19))),
        Stage((_vectors(3, 7, 37), _vectors(5, 7, 61), _vectors(3, 5, 63))),
    ),
    mistakes=_SIMHASH_MISTAKES,
    properties=_SIMHASH_PROPERTIES,
    kind="integral",
)


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
        Seconds of computing for all calls together.

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


def _codes(x, directions, offsets, width):
    hashes = StableHash(directions[np.newaxis], offsets[np.newaxis], width)
    return hashes.codes(x)[..., 0, :]


STABLE_HASH_STEPS: dict[str, Callable] = {
    "project": lambda x, directions: x @ directions.T,
    "offset": lambda offsets, width: offsets,
    "width": lambda width: width,
    "inside": lambda along, offsets, width: (along + offsets) / width,
    "cut": np.floor,
    "show": lambda codes: codes,
    "hold": lambda codes: codes,
}


def stable_hash_from_steps(s, x, directions, offsets, width):
    """Return the codes by the steps `s`."""
    along, offsets = s.project(x, directions), s.offset(offsets, width)
    codes = s.cut(s.inside(along, offsets, s.width(width)))
    return s.show(s.hold(codes).astype(np.int64))


def _unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


_STABLE_HASH_MISTAKES = mistakes(
    """
    floats for integers: Your codes are floating-point numbers: floor keeps the dtype. A code is
        part of a key of a table. Turn it into int64 after the floor.
    truncated: You cut off the digits, which rounds towards 0: the interval around 0 is twice as
        long as the others, and vectors on either side of 0 meet in it. Take the floor before you
        turn the number into an integer.
    rounded: You round to the nearest integer, which moves every interval by half a width. Take the
        floor.
    rounded up: You round up. Take the floor: an interval holds its left end and not its right one.
    right ends: Your intervals hold their right end, and not the left one: ⌈t⌉ − 1 is ⌊t⌋ but for
        integers. A vector of zeros, such as padding, may lie on an end. Take the floor.
    offset forgotten: You do not use the offsets. Without them 0 is an end of an interval in every
        projection, so two vectors on either side of it never meet, however near they are.
    offset divided alone: You divide the offset and not the projection: in a + b / r the division
        comes first. Write (a + b) / r.
    offset outside the division: You add the offset after you divide by the width. It is measured in
        the unit of the vectors, from 0 to r, and is added before: (a · x + b) / r.
    offset subtracted: You subtract the offset. It is added: (a · x + b) / r. The hash would be as
        good, but its codes are others, and codes of two rules never meet.
    width forgotten: You do not divide by the width, so your intervals have length 1 whatever it is.
    width multiplied: You multiply by the width. A larger width must give longer intervals, so fewer
        codes: divide by it.
    width squared: You divide by the square of the width. Divide by the width: (a · x + b) / r.
    rounded twice: You take a floor before you divide, and another one after. Unless the width is an
        integer that moves the ends of the intervals. Divide first, then take the floor.
    sign for the floor: You keep the sign alone. That is SimHash; this hash numbers the intervals of
        a line.
    no negative codes: You take the absolute value, so vectors on opposite sides of 0 meet. A code
        may be negative.
    vectors normalised: You divide the vectors, or the directions, by their length. This hash looks
        at distances, and lengths are part of them; cosines are the business of SimHash.
    codes summed: You add up the codes of a vector, so that different ones can give one sum. Return
        them all, (n, n_projections); how they are joined to one key is another step.
    transposed: Your result has a row for each projection. It has a row for each vector, (n,
        n_projections).
    offset of the vector: You add an offset for each vector, where each projection has one:
        (n_projections,) is added along the last axis. It runs only where n is n_projections.
    one offset for all: You add the first offset to every projection. Each has its own.
    directions transposed: You take the columns of `directions` for the directions. Its rows are,
        (n_projections, d): multiply x by its transpose. It runs only where n_projections is d.
    int32: Your codes are cut to int32: those beyond 2³¹ are wrong. A code grows with the length of
        a vector over the width, so use int64.
    remainder: You take a remainder of the codes, so intervals far apart get one code. A code may
        have any size; what brings it into the range of a table comes later.
    """,
    {
        "truncated": each("cut", np.trunc),
        "rounded": each("cut", np.rint, lambda t: np.floor(t + 0.5)),
        "rounded up": each("cut", np.ceil, lambda t: np.floor(t) + 1),
        "right ends": each("cut", lambda t: np.ceil(t) - 1),
        "offset forgotten": ({"offset": lambda offsets, width: 0.0},),
        "offset divided alone": each(
            "inside", lambda along, offsets, width: along + offsets / width
        ),
        "offset outside the division": (
            *each("inside", lambda along, offsets, width: along / width + offsets),
            *(
                {"inside": lambda along, b, width: np.floor(along / width) + b, "cut": cut}
                for cut in (np.trunc, np.rint, np.floor)
            ),
        ),
        "offset subtracted": ({"offset": lambda offsets, width: -offsets},),
        "width forgotten": ({"width": lambda width: 1.0},),
        "width multiplied": (
            {"width": lambda width: 1 / width},
            *each("inside", lambda along, offsets, width: along * width + offsets),
        ),
        "width squared": (
            {"width": lambda width: width**2},
            *each("inside", lambda along, offsets, width: (along / width + offsets) / width),
        ),
        "rounded twice": each(
            "inside",
            lambda along, offsets, width: np.floor(along + offsets) / width,
            lambda along, offsets, width: (np.floor(along) + offsets) / width,
            lambda along, offsets, width: np.trunc(along + offsets) / width,
            lambda along, offsets, width: np.rint(along + offsets) / width,
        ),
        "sign for the floor": each("cut", lambda t: t >= 0, lambda t: t > 0, np.sign),
        "no negative codes": (
            {"project": lambda x, directions: np.abs(x @ directions.T)},
            *each("inside", lambda along, offsets, width: np.abs(along + offsets) / width),
            *each(
                "cut",
                lambda t: np.abs(np.floor(t)),
                lambda t: np.abs(np.trunc(t)),
                lambda t: np.maximum(np.floor(t), 0),
            ),
        ),
        "vectors normalised": tuple(
            {"project": lambda x, a, u=u, v=v: u(x) @ v(a).T}
            for u, v in ((_unit, np.asarray), (np.asarray, _unit), (_unit, _unit))
        ),
        "codes summed": ({"show": partial(np.sum, axis=-1)},),
        "transposed": ({"show": np.transpose},),
        "offset of the vector": ({"offset": lambda offsets, width: offsets[:, np.newaxis]},),
        "one offset for all": (
            {"offset": lambda offsets, width: offsets[0]},
            {"offset": lambda offsets, width: np.mean(offsets)},
        ),
        "directions transposed": ({"project": lambda x, directions: x @ directions},),
        "remainder": tuple(
            {"hold": lambda codes, n=n: codes % n} for n in (2, 8, 10, 16, 64, 100, 256, 2**16)
        ),
        "int32": (
            {"hold": lambda codes: codes.astype(np.int64).astype(np.int32)},
            {"hold": lambda codes: np.clip(codes, -(2.0**31), 2.0**31 - 1)},
            {"hold": lambda codes: np.where(np.abs(codes) < 2.0**31, codes, -(2.0**31))},
        ),
    },
    {"floats for integers": _is_float},
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


_STABLE_HASH_PROPERTIES = (
    _digits_are_enough,
    moved(
        lambda given: {"x": np.flip(given["x"], axis=0)},
        lambda codes, flipped: np.flip(flipped, axis=0) == codes,
        "Reversing the order of the vectors must reverse the codes; here it changes them.",
    ),
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


def _points(
    n: int, d: int, n_projections: int, width: float, dtype: str = "float64", size: float = 1.0
) -> Case:
    offsets = width * np.random.default_rng([34, n_projections]).uniform(size=n_projections)
    arrays = {"x": size * draw(32, n, d), "directions": draw(33, n_projections, d)}
    arrays["offsets"] = offsets
    given: dict[str, Any] = {name: x.astype(dtype) for name, x in arrays.items()}
    return Case({**given, "width": width})


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
    steps=STABLE_HASH_STEPS,
    stages=(
        Stage(tuple(_points(*sizes) for sizes in _SIZES_AND_WIDTHS)),
        Stage((Case(_AT_THE_ENDS),)),
        Stage((_points(3, 3, 3, 0.75, "float32"), _points(5, 7, 3, 2.5, "float32"))),
        Stage((_points(5, 3, 2, 0.01, size=1e8), _points(3, 3, 3, 1e-3, size=1e7))),
    ),
    mistakes=_STABLE_HASH_MISTAKES,
    properties=_STABLE_HASH_PROPERTIES,
    kind="integral",
)
