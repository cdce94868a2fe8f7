"""What the tables find: the numbers of the figure are those of SimHash."""

import math

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook.hashing import SimHash


def points(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers(seed):
    rng, lab = np.random.default_rng(seed), lab_named("hashing")
    state = {"planes": int(rng.integers(1, 9)), "tables": int(rng.integers(1, 13))}
    state |= {"draw": int(rng.integers(1, 50)), "query": round(rng.uniform(0, 2 * math.pi), 2)}
    found = lab.numbers(**fits(lab, **state))
    planes = SimHash(points(np.array(found["directions"])))
    assert (planes.n_tables, planes.n_projections) == (state["tables"], state["planes"])
    query, keys = points(np.array(state["query"])), points(np.array(found["keys"]))
    own, signatures = planes.signatures(query), planes.signatures(keys)
    np.testing.assert_array_equal(found["own"], own)
    np.testing.assert_array_equal(found["signatures"], signatures)
    np.testing.assert_array_equal(found["met"], (signatures == own).sum(axis=1))
    apart = np.arccos(np.clip(keys @ query, -1, 1))
    np.testing.assert_allclose(found["apart"], apart, atol=1e-7)
    chances = planes.retrieval_probability(query, keys)
    np.testing.assert_allclose(found["chances"], chances, atol=1e-12)
    p = SimHash.collision_probability(0.5)
    at_near = 1 - (1 - p ** state["planes"]) ** state["tables"]
    np.testing.assert_allclose(found["chanceNear"], at_near, rtol=1e-12)
    is_read, is_near = (signatures == own).any(axis=1), apart <= 0.5
    assert found["nRead"] == np.count_nonzero(is_read)
    assert found["nNear"] == np.count_nonzero(is_near)
    assert found["nMissed"] == np.count_nonzero(is_near & ~is_read)


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_those_of_many_draws(seed):
    """The figure looks whether a key lies in the arc of the query; here signatures are compared."""
    rng, lab = np.random.default_rng(seed), lab_named("hashing")
    L, kappa = int(rng.integers(1, 13)), int(rng.integers(1, 9))
    query = round(rng.uniform(0, 2 * math.pi), 2)
    found = lab.numbers(planes=kappa, tables=L, query=query)
    shares = np.array(found["shares"])
    draws = (
        "(...sizes) => kit.range(200).map(i => modules['hashing.js'].normals(1000 + i, ...sizes))"
    )
    drawn = np.array(lab.call(draws, L, kappa))
    planes = SimHash(points(drawn).reshape(200 * L, kappa, 2))
    own = planes.signatures(points(np.array(query))).reshape(200, L)
    signatures = planes.signatures(points(np.array(found["keys"]))).reshape(-1, 200, L)
    read = (signatures == own).any(axis=-1)
    np.testing.assert_allclose(shares, read.mean(axis=1), atol=1e-12)
    spread = np.sqrt(np.array(found["chances"]) * (1 - np.array(found["chances"])) / 200)
    assert (np.abs(shares - found["chances"]) < 5 * spread + 1e-9).all()


def test_more_planes_and_tables_come_to_those_that_are_there():
    few = lab_named("hashing").numbers(planes=3, tables=2, draw=7)["directions"]
    many = lab_named("hashing").numbers(planes=5, tables=4, draw=7)["directions"]
    assert [row[:3] for row in many[:2]] == few


def test_the_query_follows_the_pointer_and_the_arrows():
    lab = lab_named("hashing")
    act = "event => lab.act(lab.start, 'query', event) || null"
    assert lab.call(act, {"kind": "key", "key": "ArrowUp"}) == {"query": 0.95}
    assert lab.call(act, {"kind": "key", "key": "ArrowRight", "shift": True}) == {"query": 0.65}
    assert lab.call(act, {"kind": "drag", "x": 170, "y": 40}) == {"query": 1.57}
    assert not lab.call(act, {"kind": "key", "key": "Home"})
