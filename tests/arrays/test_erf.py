"""The error function against that of Python, number by number."""

import math

import numpy as np
import pytest
from cases import need

from attnbook.arrays.erf import BLOCK, erf

EDGES = (0.84375, 1.25, 1 / 0.35, 6.0)
NUMBERS = np.concatenate(
    [
        np.linspace(-7, 7, 2 * BLOCK + 11),  # so that there are more blocks than one
        *(np.nextafter(edge, side) * np.ones(1) for edge in EDGES for side in (0, edge, 9)),
        10.0 ** np.linspace(-320, 2, 500),
    ]
)


def test_agrees_with_the_standard_library_to_the_last_bit_or_the_one_before():
    exact = np.array([math.erf(x) for x in NUMBERS])
    for x, expected in ((NUMBERS, exact), (-NUMBERS, -exact)):
        steps = np.abs(erf(x) - expected) / np.spacing(np.abs(expected))
        assert np.max(steps) <= 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_library_gives_the_same(library, dtype):
    need(library, dtype)
    x = library.array(np.linspace(-3, 3, 70).reshape(2, 5, 7), dtype)
    got = erf(x)
    assert library.same_kind(got, x)
    assert tuple(got.shape) == (2, 5, 7)
    exact = np.array([math.erf(t) for t in library.numpy(x).reshape(-1)]).reshape(2, 5, 7)
    step = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, rtol=4 * step)


def test_odd_numbers(library):
    x = library.array(np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300]))
    got = library.numpy(erf(x))
    np.testing.assert_array_equal(got, [0, 0, 1, -1, math.nan, 1])
    assert np.signbit(got)[1]
    assert erf(library.array(np.ones((0, 3)))).shape == (0, 3)
    assert erf(library.array(np.array(0.5))).shape == ()
