"""Probing sequences against all buckets listed and sorted, and what they find against geometry."""

import itertools

import numpy as np
import pytest

from attnbook.hashing import (
    CrossPolytopeHash,
    LearnedCells,
    LiftedHash,
    SimHash,
    StableHash,
    lift_queries,
    plan,
)
from attnbook.hashing.probe_chance import chance_of_probes
from attnbook.hashing.probing import cheapest


@pytest.mark.parametrize("n_changes", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_the_cheapest_choices_are_those_of_a_list_of_all(library, n, n_changes):
    rng = np.random.default_rng(3)
    costs = rng.random((7, 4, n_changes))
    changes = rng.integers(-(10**9), 10**9, size=costs.shape)
    found = library.numpy(cheapest(library.array(costs), library.array(changes), n))
    for q in range(7):
        every = []
        for choice in itertools.product(range(n_changes + 1), repeat=4):
            taken = [(j, i - 1) for j, i in enumerate(choice) if i]
            every.append(
                (sum(costs[q, j, i] for j, i in taken), sum(changes[q, j, i] for j, i in taken))
            )
        assert found[q].tolist() == [change for _, change in sorted(every)[:n]]


def hashes(n_projections=3):
    return [
        SimHash.init(1, 5, 2, n_projections),
        StableHash.init(1, 5, 1.3, 2, n_projections),
        CrossPolytopeHash.init(1, 5, 2, n_projections),
        LearnedCells(np.random.default_rng(1).standard_normal((2, 8 * n_projections, 5))),
    ]


@pytest.mark.parametrize("hash", hashes(), ids=lambda hash: type(hash).__name__)
def test_probes_are_different_and_begin_with_the_own_bucket(hash, library):
    x = np.random.default_rng(0).standard_normal((3, 7, 5))
    moved = hash.to(library.name)
    found = moved.probes(library.array(x), 6)
    assert found.shape == (3, 7, 2, 6)
    assert library.same_kind(found, library.array(np.zeros(1, dtype=np.int64)))
    found = library.numpy(found)
    np.testing.assert_array_equal(found[..., 0], hash.signatures(x))
    assert all(len(set(row)) == 6 for row in found.reshape(-1, 6).tolist())
    np.testing.assert_array_equal(hash.probes(x, 1)[..., 0], hash.signatures(x))
    np.testing.assert_array_equal(hash.probes(x, 4), found[..., :4])


def test_probes_of_planes_flip_the_bits_of_the_nearest_planes():
    hash, x = SimHash.init(1, 5, 2, 4), np.random.default_rng(0).standard_normal((11, 5))
    along = np.einsum("nd,tkd->ntk", x, hash.directions)
    for i, t in itertools.product(range(11), range(2)):
        own = int(hash.signatures(x)[i, t])

        def cost(other, z=along[i, t], own=own):
            return sum(z[j] ** 2 for j in range(4) if (own ^ other) >> j & 1)

        assert hash.probes(x, 16)[i, t].tolist() == sorted(range(16), key=cost)


def test_probes_of_intervals_step_over_the_nearest_ends():
    hash, x = StableHash.init(1, 5, 1.3, 2, 2), np.random.default_rng(0).standard_normal((11, 5))
    along = (np.einsum("nd,tkd->ntk", x, hash.directions) + hash.offsets) / hash.width
    beyond = along - np.floor(along)
    for i, t in itertools.product(range(11), range(2)):
        ends = [{0: 0.0, -1: b**2, 1: (1 - b) ** 2} for b in beyond[i, t]]
        steps = sorted(
            itertools.product((0, -1, 1), repeat=2), key=lambda s: ends[0][s[0]] + ends[1][s[1]]
        )
        own = hash.signatures(x)[i, t]
        with np.errstate(over="ignore"):
            wanted = [int(own + np.dot(step, hash.multipliers)) for step in steps]
        assert hash.probes(x, 9)[i, t].tolist() == wanted


def test_probes_of_corners_take_the_next_closest():
    hash, x = CrossPolytopeHash.init(1, 5, 2, 1), np.random.default_rng(0).standard_normal((11, 5))
    y = hash.rotated(x)[:, :, 0]
    both = np.concatenate([y, -y], axis=-1)
    taken = np.take_along_axis(both, hash.probes(x, 16), axis=-1)
    np.testing.assert_allclose(taken, -np.sort(-both, axis=-1), atol=1e-12)


def test_lifted_probes_are_those_of_the_lifted_query():
    x = np.random.default_rng(0).standard_normal((7, 5))
    hash = LiftedHash(SimHash.init(1, 6, 2, 4), 3.0)
    found = hash.probes(x, 5)
    np.testing.assert_array_equal(found, hash.hash.probes(lift_queries(x), 5))
    np.testing.assert_array_equal(found[..., 0], hash.query_signatures(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_probes", [1, 2, 7, 20])
@pytest.mark.parametrize("kind", [0, 1, 3])
def test_compiled_probes_are_those_of_the_reference(kind, n_probes, dtype):
    numba_signatures = pytest.importorskip("attnbook.hashing.numba_signatures")
    hash = hashes(7)[kind]
    x = np.random.default_rng(2).standard_normal((67, 5)).astype(dtype)
    ours, theirs = numba_signatures.probes(hash, x, n_probes), hash.probes(x, n_probes)
    assert ours.shape == theirs.shape
    # within rounding two probes may change places, and a code may be another
    assert np.mean(ours == theirs) > (0.99 if dtype == "float64" else 0.95)
    np.testing.assert_array_equal(ours[..., 0], numba_signatures.signatures(hash, x))


@pytest.mark.parametrize(("n_projections", "n_probes"), [(3, 2), (8, 5), (16, 16)])
def test_the_chance_of_probes_is_what_happens(n_projections, n_probes):
    rng, n, distance, width = np.random.default_rng(5), 601, 0.5, 2.5
    x, away = rng.standard_normal((2, n, 9))
    away *= distance / np.linalg.norm(away, axis=1, keepdims=True)
    hash = StableHash.init(7, 9, width, 12, n_projections)
    met = (hash.probes(x, n_probes) == hash.signatures(x + away)[..., None]).any(-1).mean(0)
    error = np.std(met, ddof=1) / np.sqrt(12)
    found = chance_of_probes(np.array([distance / width]), n_projections, n_probes)[0]
    assert np.mean(met) == pytest.approx(found, abs=5 * error + 0.005)


@pytest.mark.parametrize("hash", hashes(2), ids=lambda hash: type(hash).__name__)
def test_probes_refuse_what_does_not_fit(hash):
    x = np.ones((1, 5))
    for n_probes, error, message in (
        (0, ValueError, "n_probes must be at least 1, got 0"),
        (1.0, TypeError, "n_probes must be an int, got float"),
        (10**3, ValueError, r"n_probes must be at most \d+, the buckets.*, got 1000"),
    ):
        with pytest.raises(error, match=message):
            hash.probes(x, n_probes)
    with pytest.raises(ValueError, match="must be finite"):
        hash.probes(x * np.nan, 2)


def test_a_plan_with_probes_keeps_its_promise_with_fewer_tables():
    rng, n = np.random.default_rng(6), 401
    x, away = rng.standard_normal((2, n, 9))
    away *= 0.5 / np.linalg.norm(away, axis=1, keepdims=True)
    made = plan(10**5, 0.05, 0.5, n_tables=1, n_projections=8, n_probes=8)
    assert made.width < plan(10**5, 0.05, 0.5, n_tables=1, n_projections=8).width / 2
    found = []
    for seed in range(20):
        hash = made.hash(seed, 9)
        same = hash.probes(x, 8) == hash.signatures(x + away)[..., None]
        found.append(same.any(axis=(1, 2)).mean())
    error = np.std(found, ddof=1) / np.sqrt(20)
    assert np.mean(found) == pytest.approx(0.95, abs=5 * error + 0.01)
    assert made.retrieval_probability(0.5) == pytest.approx(0.95, abs=1e-3)
    assert made.retrieval_probability(np.array([0.5]))[0] == pytest.approx(0.95, abs=1e-3)
    assert made.retrieval_probability(0.0) == made.retrieval_probability(np.array([0.0]))[0] == 1
