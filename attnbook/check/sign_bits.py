"""The check of sign-SimHash in steps: one bit a projection, packed into one integer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, moved
from attnbook.check.steps import Case, Check, Stage, draw, each
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


STEPS: dict[str, Callable] = {
    "project": lambda x, directions: x @ directions.T,
    "bit": lambda along: along >= 0,
    "choose": lambda bits: bits,
    "order": lambda bits: bits,
    "places": lambda k: 1 << np.arange(k, dtype=np.int64),
    "join": lambda bits, places: np.sum(bits * places, axis=-1),
    "hold": lambda signatures: signatures,
}


def _length(x):
    return np.sqrt(np.sum(x * x, axis=-1, keepdims=True))


def simhash_from_steps(s, x, directions):
    """Return the signatures by the steps `s`; numbers in the place of bits are cut to integers."""
    bits = s.order(s.choose(s.bit(s.project(x, directions)).astype(np.int64)))
    return s.hold(s.join(bits, s.places(bits.shape[-1]))).astype(np.int64)


_MISTAKES = mistakes(
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
    2·j for the power: The weight of bit j is 2j, j, j + 1 or j² in your sum. It is 2 to the power
        of j: 2 ** j, or 1 << j.
    powers of 10: You write the bits as the digits of a decimal number. No two signatures meet that
        should not, but 19 projections fill an int64. Use powers of 2.
    shifted once more: Your signatures are twice as large as they should be: the first projection
        has the weight 2. Its weight is 1, 2^0.
    packed into bytes: np.packbits puts eight bits into a byte, so more than eight projections make
        more than one number for a vector, and it begins with the highest bit unless
        bitorder='little'; the first byte is the lowest one. Add up bit j times 2^j in int64.
    first projection alone: Your signature holds one projection, the first or the last. All of them
        go into it.
    one projection left out: A projection is missing from your signature, the last one or the first:
        look at the end of a range or of a slice.
    another threshold: You compare the projections with another number than 0, so a long vector and
        a short one in the same direction get different bits. The planes go through the origin: x ·
        a ≥ 0.
    mean for a threshold: You compare the projections with their mean or median. A bit then depends
        on the other projections, or on the other vectors; the bit is 1 where x · a ≥ 0, whatever
        the others are.
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
    vector of zeros: A vector of zeros gets no ones, as if it were compared with NaN. It lies on
        every plane, and x · a ≥ 0 holds for each of them, so all its bits are 1. If you divide the
        vectors by their lengths, 0 / 0 is NaN, and no comparison with NaN is true. The signs need
        no division.
    half a bit for 0: A projection of exactly 0 counts as half a one: np.sign gives 0 there, and (0
        + 1) / 2 is a half. The bit is 1 where x · a ≥ 0: compare, and no half comes up.
    all bits 1: Every bit is 1, whatever the vectors are, as if a square or an absolute value were
        compared with 0. The bit is 1 where x · a ≥ 0, and 0 on the other side.
    any or all: You keep one bit of all: whether any projection is at least 0, or whether all are.
        Every projection has a bit of its own: give bit j the weight 2^j.
    """,
    {
        "bits not packed": {"join": lambda bits, places: bits},
        "bits reversed": {"order": lambda bits: bits[:, ::-1]},
        "vector of zeros": {"project": lambda x, a: x / _length(x) @ a.T},
        "half a bit for 0": {
            "bit": lambda along: np.sign(along) + 1,  # twice the bit
            "join": lambda bits, places: np.sum(bits * places, axis=-1) // 2,
        },
        "strict sign": {"bit": lambda along: along > 0},
        "sign inverted": each("bit", lambda along: along < 0, lambda along: along <= 0),
        "signs for bits": each(
            "bit", np.sign, lambda p: 2 * (p >= 0) - 1, lambda p: 2 * (p > 0) - 1
        ),
        "floor for the sign": each("bit", np.floor, np.trunc, np.rint),
        "bits summed": {"join": lambda bits, places: bits.sum(axis=-1)},
        "all bits 1": {"bit": np.ones_like},
        "any or all": each(
            "join", lambda bits, places: bits.any(axis=-1), lambda bits, places: bits.all(axis=-1)
        ),
        "parity": {"join": lambda bits, places: bits.sum(axis=-1) % 2},
        "exclusive or for the power": {"places": lambda k: 2 ^ np.arange(k)},
        "2·j for the power": each(
            "places",
            *(lambda k, f=f: f(np.arange(k)) for f in (lambda j: 2 * j, lambda j: j, np.square)),
            lambda k: np.arange(1, k + 1),
        ),
        "powers of 10": each(
            "places", lambda k: 10 ** np.arange(k), lambda k: 10 ** np.arange(k)[::-1]
        ),
        "shifted once more": {"places": lambda k: 2 << np.arange(k)},
        "packed into bytes": each(
            "join",
            lambda bits, places: np.packbits(bits.astype(bool), axis=-1),
            lambda bits, places: np.packbits(bits.astype(bool), axis=-1, bitorder="little"),
        )
        + each(
            "places",
            lambda k: 1 << (-k % 8 + np.arange(k)[::-1]),
            lambda k: 1 << ((k - 1) // 8 * 8 - np.arange(k) // 8 * 8 + np.arange(k) % 8),
        ),
        "first projection alone": each(
            "choose", lambda bits: bits[:, :1], lambda bits: bits[:, -1:]
        ),
        "one projection left out": each(
            "choose",
            lambda bits: bits[:, :-1],
            lambda bits: bits[:, 1:],
            lambda bits: bits * (np.arange(bits.shape[-1]) > 0),
        ),
        "another threshold": each(
            "bit", *(lambda along, t=t: along >= t for t in (1.0, 0.5, -1.0, -0.5, 0.1))
        ),
        "mean for a threshold": each(
            "bit",
            *(lambda p, f=f: p >= f(p, axis=-1, keepdims=True) for f in (np.mean, np.median)),
            *(lambda p, f=f: p >= f(p) for f in (np.mean, np.median)),
            lambda p: p >= np.median(p, axis=0),
        ),
        "vectors centred": (
            {"project": lambda x, a: (x - np.mean(x, axis=0)) @ a.T},
            {"project": lambda x, a: (x - np.mean(x, axis=-1, keepdims=True)) @ a.T},
            {"project": lambda x, a: (x - np.mean(x, axis=0)) @ a.T, "bit": lambda p: p > 0},
        ),
        "projections summed": {"bit": lambda along: np.sum(along, axis=-1, keepdims=True) >= 0},
        "largest projection": tuple(
            {"bit": lambda p, f=f: np.argmax(f(p), axis=-1), "join": lambda bits, places: bits}
            for f in (np.asarray, np.abs)
        ),
        "directions transposed": {"project": lambda x, directions: x @ directions},
        "packed over the vectors": {"order": np.transpose},
        "too few bits": each(
            "hold",
            *(lambda s, dtype=dtype: s.astype(dtype) for dtype in ("int8", "int16", "int32")),
            *(lambda s, k=k: s % 2**k for k in (8, 16, 20, 24, 30, 31, 32)),
        ),
        "packed in floats": tuple(
            {
                "places": lambda k: 2.0 ** np.arange(k),
                "join": lambda b, p, t=t, add=add: add(b.astype(t), p.astype(t)),
            }
            for t in ("float64", "float32")
            for add in (
                lambda b, p: np.sum(b * p, axis=-1),
                lambda b, p: np.cumsum(b * p, axis=-1)[:, -1],
                np.matmul,
            )
        ),
    },
    {"bits not packed": returns("bool"), "floats for integers": returns("float")},
)

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
    steps=STEPS,
    stages=(
        _stage((3, 3, 3), (7, 5, 5), (11, 3, 2), (5, 7, 3), (1, 2, 5), (13, 2, 1)),
        Stage((Case(_ON_A_PLANE),)),
        _stage((5, 3, 7), (3, 3, 3), dtype="float32"),
        _stage((3, 5, 11), (5, 3, 19)),
        _stage((3, 7, 37), (5, 7, 61), (3, 5, 63)),
    ),
    mistakes=_MISTAKES,
    properties=_PROPERTIES,
    kind="integral",
)
