"""Toys of the sketch's benchmarks: what they promise of their keys."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from attnbook import attention_weights

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no part of the package

from benchmarks import (
    inputs,
    sketch_inputs,
)

# Inputs


def test_planted_neighbours_are_where_they_should_be():
    key, query, row = sketch_inputs.planted(3, 101, 7)
    distances = np.linalg.norm(query[:, None] - key[None], axis=-1)
    np.testing.assert_allclose(distances[np.arange(7), row], 0.5, rtol=1e-5)
    assert np.sort(distances, axis=1)[:, 1].min() > 5


@pytest.mark.parametrize("values", sketch_inputs.VALUES)
@pytest.mark.parametrize("kind", sketch_inputs.KINDS)
def test_inputs_have_shape_and_seed(kind, values):
    given, again, other = (
        sketch_inputs.draw(kind, 129, 2, seed=seed, values=values) for seed in (3, 3, 4)
    )
    for x, same, different in zip(given, again, other, strict=True):
        assert (x.shape, x.dtype) == ((2, 129, sketch_inputs.WIDTH), np.float32)
        assert np.isfinite(x).all()
        assert np.array_equal(x, same)
        assert not np.array_equal(x, different)


@pytest.mark.parametrize("kind", sketch_inputs.COSINES)
def test_planted_keys_of_a_peaked_query_hold_about_half(kind):
    query, key, _ = (x[0].astype(float) for x in sketch_inputs.draw(kind, 2048, 1))
    weights = attention_weights(query, key)
    held = np.sort(weights, axis=1)[:, -sketch_inputs.GROUP :].sum(axis=1).mean()
    assert 0.35 < held < 0.7


def test_few_keys_of_heavy_tails_hold_everything():
    query, key, _ = (x[0].astype(float) for x in sketch_inputs.draw("heavy-tailed", 2048, 1))
    weights = np.sort(attention_weights(query, key), axis=1)
    assert weights[:, -20:].sum(axis=1).mean() > 0.9


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("odd", "following", r"kind must be one of random, .*, got 'odd'"),
        ("random", "odd", r"values must be one of following, .*, got 'odd'"),
    ],
)
def test_inputs_refuse_unknown_names(kind, values, message):
    with pytest.raises(ValueError, match=message):
        sketch_inputs.draw(kind, 17, 1, values=values)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_exact_attention_in_pieces(monkeypatch, scale):
    given = sketch_inputs.draw("clustered", 67, 2)
    rows = np.array([3, 5, 66])
    factor = 1 if scale is None else scale * math.sqrt(sketch_inputs.WIDTH)
    expected = inputs.reference(factor * given.query, given.key, given.value)[:, rows]
    np.testing.assert_allclose(sketch_inputs.exact(given, rows, scale), expected, atol=1e-5)
