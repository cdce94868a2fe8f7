"""The chance of two hits against the binomial sum in 60 digits."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from attnbook.hashing.collision import at_least_twice


@pytest.mark.parametrize(("n_tables", "bits"), [(2, 1), (3, 5), (19, 2), (64, 10), (256, 12)])
def test_two_tables_or_more(library, n_tables, bits):
    p = np.array([0, 1e-20, 1e-6, 0.01, 0.3, 0.47, 0.6, 0.8, 0.99, 1 - 2**-53, 1])
    got = library.numpy(at_least_twice(library.array(p), n_tables, bits))
    for one, found in zip(p, got, strict=True):
        with localcontext(prec=60):
            f = Decimal(one.item()) ** bits
            terms = (
                math.comb(n_tables, t) * f**t * (1 - f) ** (n_tables - t)
                if f < 1
                else t // n_tables
                for t in range(2, n_tables + 1)
            )
            assert found == pytest.approx(float(sum(terms)), rel=1e-11, abs=1e-300)
