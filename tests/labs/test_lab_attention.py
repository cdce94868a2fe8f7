"""Attention by hand: the numbers of the figure are those of the package."""

import math

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

import attnbook as ab

KEYS = np.array([[1.0, 0, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1]])  # those of the chapter
VALUES = np.array([[1.0, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    lab = lab_named("attention")
    query = np.random.default_rng(seed).uniform(-2.6, 2.6, 2).round(2)
    state = fits(lab, query=query.tolist())
    found = lab.numbers(**state)
    whole = np.array([[*query, 0, 0]])  # it looks for no deed, and for nothing royal
    scores = whole @ KEYS.T / math.sqrt(4)
    weights = ab.attention_weights(whole, KEYS)
    np.testing.assert_allclose([found["dots"]], whole @ KEYS.T, atol=1e-14)
    np.testing.assert_allclose([found["scores"]], scores, atol=1e-14)
    np.testing.assert_allclose([found["exponentials"]], np.exp(scores), rtol=1e-14)
    np.testing.assert_allclose(found["sum"], np.exp(scores).sum(), rtol=1e-14)
    np.testing.assert_allclose([found["weights"]], weights, rtol=1e-13)
    np.testing.assert_allclose([found["output"]], weights @ VALUES, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ((2, 2), "The query (2.00, 2.00), that of she, fits queen best: weight 0.67."),
        ((2, -2), "The query (2.00, −2.00), that of he, fits king best: weight 0.58."),
        ((0, 0), "The query (0.00, 0.00) fits all three keys alike: weight 0.33 each."),
        ((1, 0), "The query (1.00, 0.00) fits king and queen best: weight 0.38 each."),
    ],
)
def test_words(query, words):
    state = {"query": query}
    found = lab_named("attention").call("state => lab.says(state, lab.numbers(state))", state)
    assert found.startswith(words)


def test_the_query_follows_the_pointer_and_the_arrows():
    lab = lab_named("attention")
    act = "event => lab.act(lab.start, 'query', event) ?? null"
    assert lab.call(act, {"kind": "key", "key": "ArrowLeft"}) == {"query": [1.9, 2]}
    assert lab.call(act, {"kind": "key", "key": "ArrowDown", "shift": True}) == {"query": [2, 1.5]}
    assert not lab.call(act, {"kind": "key", "key": "Home"})
    far = lab.call(act, {"kind": "drag", "x": 900, "y": 130, "width": 680})
    assert far == {"query": [2.6, 0]}
