"""A query and a key at two places: their scores are those of the package's positions."""

import math

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook import models, positions

FARTHEST = 24


def vectors():
    found = lab_named("positions").call("() => modules['positions.js'].VECTORS")
    return np.array(found["query"]), np.array(found["key"])


def at(x, place, kind, base):
    """Return a vector that stands at a place."""
    if kind == "rotary":
        return positions.rotary(x[np.newaxis], start=place, base=base)[0]
    return x + positions.sinusoidal(1, 32, start=place, base=base)[0]


def score(query_place, key_place, kind, base):
    query, key = vectors()
    product = at(query, query_place, kind, base) @ at(key, key_place, kind, base)
    return product / math.sqrt(32)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    rng, lab = np.random.default_rng(seed), lab_named("positions")
    kind, power = ("rotary", "sines")[seed % 2], int(rng.integers(2, 7))
    place, distance = int(rng.integers(41)), int(rng.integers(FARTHEST + 1))
    state = {"kind": kind, "base": power, "place": place, "distance": distance}
    found, base = lab.numbers(**fits(lab, **state)), 10.0**power
    for name, x, where in zip(("query", "key"), vectors(), (place + distance, place), strict=True):
        halves = at(x, where, kind, base).reshape(2, 16).T
        np.testing.assert_allclose(found[name], halves, atol=1e-12)
    np.testing.assert_allclose(
        found["score"], score(place + distance, place, kind, base), atol=1e-12
    )
    np.testing.assert_allclose(sum(found["parts"]), found["score"], atol=1e-12)
    rows = positions.sinusoidal(place + distance + 1, 32, base=base)
    sines = rows[place + distance] @ rows[place] / math.sqrt(32)
    np.testing.assert_allclose(found["ofSines"], sines, atol=1e-12)
    for name, start in (("scores", place), ("still", 0)):
        curve = [score(start + away, start, kind, base) for away in range(FARTHEST + 1)]
        np.testing.assert_allclose(found[name], curve, atol=1e-12)


def test_the_vectors_are_those_of_the_writer():
    text, layer, head = "Good morrow to you, my gracious", 2, 2
    query, key, _ = models.writer().heads(text, layer)
    words = models.writer().tokens(text)
    ours = lab_named("positions").call("() => modules['positions.js'].VECTORS")
    i, j = (words.index(" " + ours[name]) for name in ("queryWord", "keyWord"))
    for name, x, place in (("query", query, i), ("key", key, j)):
        # rotated at its place: turn it back
        turned = positions.Rotary().turned_back(x[head, [place]].astype(np.float64), place)[0]
        np.testing.assert_allclose(ours[name], turned, atol=0.0051)


def test_the_query_moves_and_the_key_stays():
    lab = lab_named("positions")
    act = "event => lab.act(lab.start, 'query', event) || null"
    far = lab.start["distance"] + 1
    assert lab.call(act, {"kind": "key", "key": "ArrowRight"}) == {"distance": far}
    assert lab.call(act, {"kind": "drag", "x": 700, "width": 680}) == {"distance": FARTHEST}
    assert lab.call(act, {"kind": "drag", "x": 0, "width": 340}) == {"distance": 0}
    assert not lab.call(act, {"kind": "key", "key": "Home"})
