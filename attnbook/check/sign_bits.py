"""The check of sign-SimHash in steps: one bit a projection, packed into one integer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.steps import Case, Check, Stage, Way, draw, each
from attnbook.sketch import SimHash


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
