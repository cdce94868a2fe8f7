"""The chance of two hits against the binomial sum in fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from attnbook.hashing.collision import at_least_twice


@pytest.mark.parametrize(("n_tables", "bits"), [(2, 1), (3, 5), (19, 2), (64, 10), (256, 12)])
def test_two_tables_or_more(library, n_tables, bits):
    p = np.array([0, 1e-20, 1e-6, 0.01, 0.3, 0.47, 0.6, 0.8, 0.99, 1 - 2**-53, 1])
    got = library.numpy(at_least_twice(library.array(p), n_tables, bits))
    for one, found in zip(p, got, strict=True):
        f = Fraction(one.item()) ** bits
        wanted = sum(
            math.comb(n_tables, t) * f**t * (1 - f) ** (n_tables - t)
            for t in range(2, n_tables + 1)
        )
        assert found == pytest.approx(float(wanted), rel=1e-11, abs=1e-300)
