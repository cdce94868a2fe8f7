"""Decoding over a cache on several processes against float64 loops over the whole cache."""

import numpy as np
import oracle
import pytest
import ring_cases

TOLERANCES = {"float64": 1e-14, "float32": 1e-5}


@pytest.mark.parametrize("name", ring_cases.DECODE)
def test_a_cache_in_pieces_answers_as_a_whole_one(equal, name):
    case = ring_cases.of(ring_cases.DECODE[name])
    query, key, value, _ = (x.numpy() for x in ring_cases.drawn(name, case, 3))
    group = query.shape[0] // key.shape[0]
    mask = ring_cases.mask_of(case, 3)
    judge = oracle.attention(
        *(query, key.repeat(group, 0), value.repeat(group, 0)),
        mask=None if mask is None else mask.numpy(),
    )
    for of_rank in equal:
        found = of_rank["decode"][name]
        np.testing.assert_allclose(found, judge, rtol=0, atol=TOLERANCES[case["dtype"]])
        np.testing.assert_array_equal(found, equal[0]["decode"][name])  # the same bits everywhere


def test_one_query_a_head_goes_without_panels(equal):
    assert all(of_rank["few queries"] == ("nothing", "") for of_rank in equal)
