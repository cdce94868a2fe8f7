"""The check of sign-SimHash: one bit a projection, packed into one integer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._report import Report
from attnbook.hashing.simhash import SimHash


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
    >>> def my_simhash(x, directions):
    ...     bits = x @ directions.T >= 0
    ...     return (bits * 2 ** np.arange(len(directions))[::-1]).sum(axis=-1)
    >>> check.simhash(my_simhash).mistake
    'bits reversed'
    """
    return run(SIMHASH, f, time_limit)


def _reference(x, directions):
    return SimHash(directions[np.newaxis]).signatures(x)[..., 0]


def _along(x, directions):
    return x @ directions.T


def _places(k):
    return np.array([1 << j for j in range(k)], dtype=np.int64)


def _packed(bits):
    return np.sum(bits * _places(bits.shape[-1]), axis=-1)


def _model(bits: Callable, pack: Callable = _packed, along: Callable = _along) -> Callable:
    """Return the hash with one of its steps replaced; numbers are cut to integers."""
    return lambda x, directions: pack(bits(along(x, directions)).astype(np.int64)).astype(np.int64)


def _signs(along):
    return along >= 0


def _both_orders(pack: Callable) -> tuple[Callable, Callable]:
    return (
        _model(_signs, pack),
        _model(_signs, lambda bits: pack(bits[:, ::-1])),
    )


def _of_dtype(dtype: str) -> Callable:
    """Return what is left of a signature in another dtype."""
    return _model(_signs, lambda bits: _packed(bits).astype(dtype))


def _powers_of(dtype: str) -> Callable:
    return _model(_signs, lambda bits: np.sum(bits * 2.0 ** np.arange(bits.shape[-1]), -1, dtype))


def _bytes(order: Any) -> Callable:
    return _model(_signs, lambda bits: np.packbits(bits.astype(bool), axis=-1, bitorder=order))


def _is_float(returned: Any) -> bool:
    return "float" in str(getattr(returned, "dtype", ""))


def _is_bool(returned: Any) -> bool:
    return str(getattr(returned, "dtype", "")).endswith("bool")


NOT_PACKED = (
    "bits not packed",
    "You return a row of bits for each vector, (n, n_projections). A table looks up one integer: "
    "add up bit j times 2^j over the projections.",
)

_MISTAKES = (
    Mistake(*NOT_PACKED, (_model(_signs, lambda bits: bits),), _is_bool),
    Mistake(
        "floats for integers",
        "Your signatures are floating-point numbers. A signature is a key of a table: make it an "
        "integer, int64. A float64 also holds no more than 53 bits, and the bits beyond are lost.",
        (),
        _is_float,
    ),
    Mistake(
        "bits reversed",
        "Your first projection is the highest bit. It is the lowest one here: bit j has the weight "
        "2^j. Signatures in two orders never meet.",
        (_model(_signs, lambda bits: _packed(bits[:, ::-1])),),
    ),
    Mistake(
        "strict sign",
        "A projection of exactly 0 gives you the bit 0: you compare with > 0. The bit is 1 where "
        "x · a ≥ 0. What matters is that keys and queries are hashed by one rule; a vector of "
        "zeros, such as padding, lies on every plane.",
        (_model(lambda along: along > 0),),
    ),
    Mistake(
        "sign inverted",
        "Your bits are the opposite of what they should be: 1 where the projection is negative. "
        "The bit is 1 where x · a ≥ 0.",
        (_model(lambda along: along < 0), _model(lambda along: along <= 0)),
    ),
    Mistake(
        "signs for bits",
        "You pack signs of −1 and 1. A bit is 0 or 1: turn the comparison x · a ≥ 0 itself into "
        "an integer.",
        (
            _model(np.sign),
            _model(lambda along: 2 * (along >= 0) - 1),
            _model(
                np.sign, lambda signs: np.bitwise_or.reduce(signs * _places(signs.shape[-1]), -1)
            ),
        ),
    ),
    Mistake(
        "floor for the sign",
        "You round the projections to integers and pack those. That is the idea of another hash, "
        "⌊(a · x + b)/r⌋, whose codes may have any size. SimHash keeps the sign alone.",
        (
            _model(np.floor),
            _model(np.trunc),
            _model(np.rint),
            _model(lambda along: np.floor(along) % 2),
        ),
    ),
    Mistake(
        "bits summed",
        "You count the ones. Two vectors with as many ones, on different planes, then share a "
        "bucket. Give bit j the weight 2^j.",
        (_model(_signs, lambda bits: bits.sum(axis=-1)),),
    ),
    Mistake(
        "parity",
        "You keep one bit of all: whether the number of ones is odd. Give bit j the weight 2^j.",
        (_model(_signs, lambda bits: bits.sum(axis=-1) % 2),),
    ),
    Mistake(
        "exclusive or for the power",
        "In Python 2 ^ j is the exclusive or of 2 and j. The power is 2 ** j, or the shift 1 << j.",
        _both_orders(lambda bits: np.sum(bits * (2 ^ np.arange(bits.shape[-1])), axis=-1)),
    ),
    Mistake(
        "2·j for the power",
        "The weight of bit j is 2j in your sum. It is 2 to the power of j: 2 ** j, or 1 << j.",
        _both_orders(lambda bits: np.sum(bits * (2 * np.arange(bits.shape[-1])), axis=-1)),
    ),
    Mistake(
        "powers of 10",
        "You write the bits as the digits of a decimal number. No two signatures meet that should "
        "not, but 19 projections fill an int64. Use powers of 2.",
        _both_orders(lambda bits: np.sum(bits * 10 ** np.arange(bits.shape[-1]), axis=-1)),
    ),
    Mistake(
        "shifted once more",
        "Your signatures are twice as large as they should be: the first projection has the weight "
        "2. Its weight is 1, 2^0.",
        _both_orders(lambda bits: 2 * _packed(bits)),
    ),
    Mistake(
        "packed into bytes",
        "np.packbits puts eight bits into a byte, so more than eight projections make more than "
        "one number for a vector, and it begins with the highest bit unless bitorder='little'. "
        "Add up bit j times 2^j in int64.",
        (_bytes("big"), _bytes("little")),
    ),
    Mistake(
        "first projection alone",
        "Your signature holds one projection, the first or the last. All of them go into it.",
        (
            _model(_signs, lambda bits: bits[:, 0]),
            _model(_signs, lambda bits: bits[:, -1]),
            _model(_signs, lambda bits: bits[:, -1] * 2 ** (bits.shape[-1] - 1)),
        ),
    ),
    Mistake(
        "one projection left out",
        "A projection is missing from your signature, the last one or the first: look at the end "
        "of a range or of a slice.",
        (
            _model(_signs, lambda bits: _packed(bits[:, :-1])),
            _model(_signs, lambda bits: _packed(bits[:, 1:])),
            _model(_signs, lambda bits: _packed(bits * (np.arange(bits.shape[-1]) > 0))),
        ),
    ),
    Mistake(
        "another threshold",
        "You compare the projections with another number than 0, so a long vector and a short one "
        "in the same direction get different bits. The planes go through the origin: x · a ≥ 0.",
        tuple(
            _model(lambda along, t=threshold: along >= t) for threshold in (1.0, 0.5, -1.0, 1e-6)
        ),
    ),
    Mistake(
        "vectors centred",
        "You subtract the mean of the vectors before you hash them. Then the signature of a vector "
        "depends on the others of its batch, and a query, hashed alone, meets none of them.",
        (_model(_signs, along=lambda x, directions: _along(x - np.mean(x, axis=0), directions)),),
    ),
    Mistake(
        "projections summed",
        "You add the projections up and take the sign of the sum, which is one projection in "
        "another direction. Take the sign of each.",
        (_model(lambda along: np.sum(along, axis=-1, keepdims=True) >= 0),),
    ),
    Mistake(
        "largest projection",
        "You return the index of the largest projection. That is another hash, for points on a "
        "sphere. SimHash packs the sign of every projection.",
        (
            _model(lambda along: np.argmax(along, axis=-1), lambda index: index),
            _model(lambda along: np.argmax(np.abs(along), axis=-1), lambda index: index),
        ),
    ),
    Mistake(
        "directions transposed",
        "You take the columns of `directions` for the directions. Its rows are, (n_projections, "
        "d): multiply x by its transpose. It runs only where n_projections is d.",
        (_model(_signs, along=lambda x, directions: x @ directions),),
    ),
    Mistake(
        "packed over the vectors",
        "You add up along the vectors, so each projection gets a number. Add up along the "
        "projections, the last axis: each vector gets one.",
        (_model(_signs, lambda bits: _packed(bits.T)),),
    ),
    Mistake(
        "too few bits",
        "The upper bits are lost: you pack in integers of 8, 16 or 32 bits, or take a remainder. "
        "The signature of 40 projections has 40 bits. Shift and add in int64.",
        (
            *(_of_dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32)),
            *(
                _model(_signs, lambda bits, most=most: _packed(bits) % most)
                for most in (2**31, 2**30, 2**24, 2**20, 2**31 - 1)
            ),
        ),
    ),
    Mistake(
        "packed in floats",
        "You add up floating-point numbers and turn the sum into an integer. A float64 holds 53 "
        "bits and a float32 holds 24: the lowest projections are rounded away. Shift and add "
        "in int64.",
        (_powers_of("float64"), _powers_of("float32")),
    ),
)


def vectors_are_hashed_alone(case: Case, values: Values, again: Callable) -> str | None:
    flipped = again(x=np.flip(case.arrays["x"], axis=0))
    if flipped and not np.array_equal(np.flip(flipped[0], axis=0), values[0]):
        return (
            "Reversing the order of the vectors must reverse the signatures; here it changes them."
        )
    return None


def length_is_free(case: Case, values: Values, again: Callable) -> str | None:
    longer = again(x=2 * case.arrays["x"])
    if longer and not np.array_equal(longer[0], values[0]):
        return "A vector twice as long lies on the same sides; here its signature is another."
    return None


def directions_have_a_bit_each(case: Case, values: Values, again: Callable) -> str | None:
    directions = case.arrays["directions"].copy()
    directions[0] *= -1
    turned = again(directions=directions)
    if turned and np.any((turned[0] ^ values[0]) & ~1):
        return (
            "Turning the first direction around must change the lowest bit and no other; here it "
            "changes others."
        )
    return None


def _case(n: int, d: int, n_projections: int, dtype: str = "float64") -> Case:
    x, directions = draw(30, n, d), draw(31, n_projections, d)
    return Case({"x": x.astype(dtype), "directions": directions.astype(dtype)})


_ON_A_PLANE = Case(
    {
        "x": np.array([[1.0, -1.0], [0.0, 0.0], [2.0, 1.0]]),
        "directions": np.array([[1.0, 1.0], [-1.0, 3.0], [1.0, -2.0]]),
    }
)

SIMHASH = Check(
    name="simhash",
    parameters=("x", "directions"),
    results={"signatures": "(n,)"},
    reference=_reference,
    stages=(
        Stage(
            tuple(
                _case(*sizes)
                for sizes in ((3, 3, 3), (7, 5, 5), (11, 3, 2), (5, 7, 3), (1, 2, 5), (13, 2, 1))
            )
        ),
        Stage((_ON_A_PLANE,)),
        Stage((_case(5, 3, 7, "float32"), _case(3, 3, 3, "float32"))),
        Stage((_case(3, 5, 11), _case(5, 3, 19))),
        Stage((_case(3, 7, 37), _case(5, 7, 61), _case(3, 5, 63))),
    ),
    mistakes=_MISTAKES,
    properties=(vectors_are_hashed_alone, length_is_free, directions_have_a_bit_each),
    options=(),
    remarked_options=(),
    kind="integral",
)
