"""A sketch that looks into several buckets of each table, against a loop over all keys."""

import numpy as np
import pytest
from slow_sketch import buckets, mix, union

from attnbook.hashing import (
    CrossPolytopeHash,
    GivenHash,
    LearnedCells,
    LiftedHash,
    SimHash,
    StableHash,
)
from attnbook.sketch import SketchAttention, sketch_attention

HASHES = {
    "planes": SimHash.init(1, 5, 2, 4),
    "intervals": StableHash.init(1, 5, 1.7, 2, 3),
    "corners": CrossPolytopeHash.init(1, 5, 2, 1),
    "cells": LearnedCells(np.random.default_rng(3).standard_normal((1, 13, 5))),
    "two tables of cells": LearnedCells(np.random.default_rng(4).standard_normal((2, 13, 5))),
    "lifted": LiftedHash(SimHash.init(1, 6, 2, 4), 9.0),
}


def drawn(n=97, n_q=11):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 5)), rng.standard_normal((n, 3)), rng.standard_normal((n_q, 5))


def loop(hash, key, value, query, n_probes, scale=0.4):
    """Return the output and the keys that are found, query by query."""
    tables = buckets(hash.probes(query, n_probes), hash.signatures(key))
    output = [
        mix("union", *pair, value) for pair in zip(tables, scale * query @ key.T, strict=True)
    ]
    return np.stack(output), [union(found) for found in tables]


@pytest.mark.parametrize("kind", HASHES)
@pytest.mark.parametrize("n_probes", [1, 2, 5])
def test_answers_are_those_of_a_loop(impl, kind, n_probes):
    hash, (key, value, query) = HASHES[kind], drawn()
    if n_probes == 1 and kind == "lifted":
        pytest.skip("queries and keys have different signatures, as other tests show")
    expected, found = loop(hash, key, value, query, n_probes)
    sketch = SketchAttention(hash, scale=0.4, impl=impl, n_probes=n_probes)
    sketch.update(key[:90], value[:90])
    sketch.merge()
    sketch.update(key[90:], value[90:])
    for batch in (query, query[:1]):
        output, evidence = sketch.attention_output(batch, return_evidence=True)
        np.testing.assert_allclose(output, expected[: len(batch)], atol=1e-12)
        np.testing.assert_allclose(sketch.attention_output(batch), output, atol=1e-12)
        assert evidence.candidates.tolist() == [len(rows) for rows in found[: len(batch)]]
        if n_probes > 1:
            assert np.isnan(evidence.found_probability).all()
    ids, there = sketch.query(query)
    assert [row[f].tolist() for row, f in zip(ids, there, strict=True)] == found
    whole = sketch_attention(query, key, value, hash=hash, scale=0.4, impl=impl, n_probes=n_probes)
    np.testing.assert_allclose(whole, expected, atol=1e-12)


def test_the_one_call_of_the_kernel_follows_every_change():
    pytest.importorskip("numba")
    hash, (key, value, query) = HASHES["planes"], drawn()
    sketch = SketchAttention(hash, scale=0.4, impl="numba", n_probes=2)
    np.testing.assert_array_equal(sketch.attention_output(query), np.zeros((11, 5)))
    alive = np.zeros(97, dtype=bool)
    for start, stop in ((0, 60), (60, 61), (61, 97)):
        sketch.update(key[start:stop], value[start:stop])
        alive[start:stop] = True
        if start == 60:
            sketch.remove([3, 60])
            alive[[3, 60]] = False
        output = sketch.attention_output(query)
        expected, _ = loop(hash, key[alive], value[alive], query, 2)
        np.testing.assert_allclose(output, expected, atol=1e-12)
    bad = query.copy()
    bad[3, 2] = np.nan
    with pytest.raises(ValueError, match="query must be finite, got NaN or infinity"):
        sketch.attention_output(bad)
    with pytest.raises(ValueError, match=r"query must have shape \(..., 5\) to match the sketch"):
        sketch.attention_output(query[:, :4])
    with pytest.raises(TypeError, match="float"):
        sketch.attention_output(query.astype(np.float32))
    sketch.initialize()
    np.testing.assert_array_equal(sketch.attention_output(query), np.zeros((11, 5)))


@pytest.mark.parametrize("kind", ["corners", "intervals"])
def test_probes_are_saved(tmp_path, kind):
    key, value, query = drawn()
    sketch = SketchAttention(HASHES[kind], n_probes=3)
    sketch.update(key, value)
    sketch.save(tmp_path / "sketch.safetensors")
    again = SketchAttention.load(tmp_path / "sketch.safetensors")
    assert again.n_probes == 3
    np.testing.assert_array_equal(again.attention_output(query), sketch.attention_output(query))


def test_what_is_refused():
    ones = GivenHash(lambda x: x[:, 0] > 0)
    for hash, options, error, message in (
        (HASHES["planes"], {"n_probes": 0}, ValueError, "n_probes must be at least 1, got 0"),
        (HASHES["planes"], {"n_probes": 1.5}, TypeError, "n_probes must be an int, got float"),
        (ones, {"n_probes": 2}, ValueError, "n_probes must be 1 for a hash without probes, Given"),
        (
            HASHES["planes"],
            {"n_probes": 2, "impl": "cupy"},
            ValueError,
            "must be 1 for impl 'cupy'",
        ),
        (
            HASHES["planes"],
            {"n_probes": 2, "estimator": "importance"},
            ValueError,
            "n_probes must be 1 for estimator 'importance'",
        ),
    ):
        with pytest.raises(error, match=message):
            SketchAttention(hash, **options)


@pytest.mark.parametrize("hash", [SimHash.init(0, 5, 2, 1), HASHES["cells"], HASHES["corners"]])
def test_compiled_loops_refuse_more_probes_than_buckets(hash):
    pytest.importorskip("numba")
    with pytest.raises(ValueError, match=r"n_probes must be at most \d+, the buckets that"):
        SketchAttention(hash, impl="numba", n_probes=17)
