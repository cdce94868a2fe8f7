"""A sketch on several processes against one sketch with all keys."""

import numpy as np
import pytest
import ring_cases

from attnbook.arrays.move import move
from attnbook.sketch import SimHash, SketchAttention


@pytest.mark.parametrize("name", ring_cases.SKETCHES)
def test_answers_and_evidence_are_those_of_one_sketch(equal, name):
    case = ring_cases.SKETCHES[name]
    query, key, value = (move(x, case["library"]) for x in ring_cases.sketched(name, case))
    one = SketchAttention(
        SimHash.init(3, 6, n_tables=3, n_projections=4).to(case["library"]),
        estimator=case["estimator"],
        impl=case.get("impl", "reference"),
    )
    one.update(key, value)
    output, evidence = one.attention_output(query, return_evidence=True)
    near = {"rtol": 1e-9, "atol": 1e-12}
    if case["dtype"] == "float32":
        near = {"rtol": 1e-4, "atol": 1e-5}
    for of_rank in equal:
        found = of_rank["sketch"][name]
        np.testing.assert_allclose(found["output"], output, **near)
        assert found["n_keys"] == evidence.n_keys
        np.testing.assert_array_equal(found["candidates"], evidence.candidates)
        for field in ("found_probability", "missed_mass", "bound"):
            np.testing.assert_allclose(found[field], getattr(evidence, field), **near)


def test_some_queries_find_nothing_on_one_process_and_some_nowhere(equal):
    """Or the cases above would not be hard ones."""
    case = ring_cases.SKETCHES["far queries"]
    query, key, value = ring_cases.sketched("far queries", case)
    hash = SimHash.init(3, 6, n_tables=3, n_projections=4)
    counts = []
    for start, stop in ((0, 40), (40, 97)):
        part = SketchAttention(hash)
        part.update(key[start:stop], value[start:stop])
        counts.append(part.attention_output(query, return_evidence=True)[1].candidates)
    assert ((counts[0] == 0) & (counts[1] == 0)).any()
    assert ((counts[0] == 0) != (counts[1] == 0)).any()
