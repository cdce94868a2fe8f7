"""Cross-polytope hashing against loops in float64, and its chances against counts."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from attnbook.hashing import CrossPolytopeHash
from attnbook.hashing.cross_polytope import hadamard


def sylvester(D):
    """The Hadamard matrix by its definition: the parity of the bits that i and j share."""
    return np.array([[(-1) ** bin(i & j).count("1") for j in range(D)] for i in range(D)])


@pytest.mark.parametrize("D", [1, 2, 8, 32])
def test_the_fast_product_is_that_with_the_matrix(library, D):
    x = np.random.default_rng(0).standard_normal((3, 5, D))
    found = library.numpy(hadamard(library.array(x)))
    np.testing.assert_allclose(found, x @ sylvester(D) / math.sqrt(D), atol=1e-12)


@pytest.mark.parametrize("d", [1, 5, 8])
def test_codes_are_the_corners_of_a_loop(library, d):
    hash = CrossPolytopeHash.init(3, d, n_tables=2, n_projections=3)
    D = hash.signs.shape[3]
    x = np.random.default_rng(1).standard_normal((11, d))
    H = sylvester(D) / math.sqrt(D)
    moved = hash.to(library.name)
    codes = library.numpy(moved.codes(library.array(x)))
    signatures = library.numpy(moved.signatures(library.array(x)))
    assert codes.dtype == signatures.dtype == np.int64
    for i in range(11):
        for t in range(2):
            wanted = 0
            for j in range(3):
                y = np.zeros(D)
                y[:d] = x[i]
                for sign in hash.signs[t, j]:
                    y = H @ (sign * y)
                assert np.linalg.norm(y) == pytest.approx(np.linalg.norm(x[i]))
                corner = max(range(2 * D), key=lambda c, y=y: y[c] if c < D else -y[c - D])
                assert codes[i, t, j] == corner
                wanted += corner * (2 * D) ** j
            assert signatures[i, t] == wanted


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "n_projections"), [(1, 3), (5, 2), (16, 1), (37, 3)])
def test_compiled_codes_are_those_of_the_reference_to_the_last_bit(d, n_projections, dtype):
    compiled = pytest.importorskip("attnbook.hashing.numba_signatures")
    hash = CrossPolytopeHash.init(7, d, 3, n_projections).to(dtype=dtype)
    rng = np.random.default_rng(0)
    with_ties = rng.integers(-1, 2, size=(61, d))  # many corners are equally close
    for x in (rng.standard_normal((61, d)).astype(dtype), with_ties.astype(dtype)):
        found = compiled.signatures(hash, x)
        np.testing.assert_array_equal(found, hash.signatures(x))
        np.testing.assert_array_equal(compiled.signatures(hash, x[:3]), found[:3])
        for n_probes in (2, 7) if d > 1 else (2,):
            probes = compiled.probes(hash, x, n_probes)
            np.testing.assert_array_equal(probes, hash.probes(x, n_probes))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_compiled_codes_refuse_what_is_not_finite(bad):
    compiled = pytest.importorskip("attnbook.hashing.numba_signatures")
    x = np.ones((19, 5))
    x[18, 4] = bad
    with pytest.raises(ValueError, match="x must be finite"):
        compiled.signatures(CrossPolytopeHash.init(0, 5), x)


def test_only_the_direction_counts_and_opposites_are_opposite():
    hash = CrossPolytopeHash.init(0, 60, 4)
    x = np.random.default_rng(1).standard_normal((31, 60))
    np.testing.assert_array_equal(hash.codes(4.0 * x), hash.codes(x))
    np.testing.assert_array_equal(hash.codes(-x), (hash.codes(x) + 64) % 128)
    assert not hash.codes(0 * x).any()


@pytest.mark.parametrize("D", [1, 2, 16, 64])
@pytest.mark.parametrize("angle", [0.0, 0.1, 0.5, 1.2, 2.0, math.pi])
def test_collisions_are_as_often_as_with_gaussian_matrices(angle, D):
    rng, n = np.random.default_rng(2), 40_000
    s, other = rng.standard_normal((2, n, D))
    t = math.cos(angle) * s + math.sin(angle) * other
    corners = [np.concatenate([x, -x], axis=1).argmax(1) for x in (s, t)]
    met = np.mean(corners[0] == corners[1])
    found = CrossPolytopeHash.collision_probability(angle, D)
    assert found == pytest.approx(met, abs=5 * math.sqrt(met * (1 - met) / n) + 1e-3)


@pytest.mark.parametrize("n_projections", [1, 2])
def test_the_fast_rotation_collides_about_as_often(n_projections):
    rng, d, n_tables, angle = np.random.default_rng(3), 64, 5, 0.6
    x, other = rng.standard_normal((2, 3001, d))
    other -= (other * x).sum(1, keepdims=True) / (x * x).sum(1, keepdims=True) * x
    lengths = (np.linalg.norm(v, axis=1, keepdims=True) for v in (x, other))
    x, other = (v / length for v, length in zip((x, other), lengths, strict=True))
    y = math.cos(angle) * x + math.sin(angle) * other
    hash = CrossPolytopeHash.init(4, d, n_tables, n_projections)
    same = hash.signatures(x) == hash.signatures(y)
    p = CrossPolytopeHash.collision_probability(angle, d) ** n_projections
    assert same.mean() == pytest.approx(p, abs=0.02)
    found = hash.retrieval_probability(x[:3], y[:3])
    np.testing.assert_allclose(found, 1 - (1 - p) ** n_tables, atol=2e-3)


def test_chances_in_every_library(library):
    hash = CrossPolytopeHash.init(0, 5, 3).to(library.name)
    x, y = np.random.default_rng(0).standard_normal((2, 7, 5))
    x[0], y[1] = 0, x[1]
    found = hash.retrieval_probability(library.array(x), library.array(y))
    assert library.same_kind(found, library.array(x))
    found = library.numpy(found)
    assert found[1] == pytest.approx(1)
    p = CrossPolytopeHash.collision_probability(math.pi / 2, 8)
    assert found[0] == pytest.approx(1 - (1 - p) ** 3, rel=1e-3)
    angles = library.array(np.array([0.0, 0.3]))
    chances = library.numpy(CrossPolytopeHash.collision_probability(angles, 8))
    assert chances.tolist() == [1.0, CrossPolytopeHash.collision_probability(0.3, 8)]


def test_everything_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    hash = CrossPolytopeHash.init(0, 5, 3).to("array_api_strict", device=device)
    x = strict.asarray(np.eye(2, 5), device=device)
    for got in (hash.signatures(x), hash.probes(x, 3), hash.retrieval_probability(x, x)):
        assert got.device == device


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CrossPolytopeHash(np.ones((2, 3, 8)), 8), ValueError, "signs must have shape"),
        (lambda: CrossPolytopeHash(np.ones((1, 1, 2, 8)), 8), ValueError, "signs must have shape"),
        (lambda: CrossPolytopeHash(np.ones((1, 1, 3, 8)), 9), ValueError, "D = 16, the least"),
        (lambda: CrossPolytopeHash(np.ones((1, 1, 3, 8)), 0), ValueError, "d must be at least 1"),
        (lambda: CrossPolytopeHash(np.ones((1, 1, 3, 8), int), 8), TypeError, "signs must"),
        (lambda: CrossPolytopeHash.init(0, 64, 1, 10), ValueError, "up to 2^63, got (128)^10"),
        (lambda: CrossPolytopeHash.init(0, 0), ValueError, "d must be at least 1, got 0"),
        (lambda: CrossPolytopeHash.init(0, 5, 0), ValueError, "n_tables must be at least 1, got"),
        (
            lambda: CrossPolytopeHash.collision_probability(4.0, 8),
            ValueError,
            "angle must be from 0 to π",
        ),
        (lambda: CrossPolytopeHash.collision_probability(1.0, 0), ValueError, "D must be at least"),
        (
            lambda: CrossPolytopeHash.init(0, 5).signatures(np.ones((2, 8))),
            ValueError,
            "x must have shape (..., 5) to match the directions, got (2, 8)",
        ),
        (
            lambda: CrossPolytopeHash.init(0, 5).signatures(np.full((2, 5), np.nan)),
            ValueError,
            "x must be finite, got NaN or infinity",
        ),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("angle", [np.int64(1), Fraction(1), np.float64(1), 1])
def test_the_chance_at_a_number_of_any_kind(angle):
    assert CrossPolytopeHash.collision_probability(angle, 8) == pytest.approx(0.2548, abs=1e-3)
