"""Moments and uniform samples of unseen keys, against sums over every key in float64."""

import itertools
import math
import re
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from cases import DTYPES, HALF, close, every_day, need
from hypothesis import given
from hypothesis import strategies as st

from attnbook.masking import Causal
from attnbook.sketch import normal
from attnbook.sketch.tails import Moments, uniform_tail

dtypes = pytest.mark.parametrize("dtype", DTYPES)
NODES, PARTS = np.polynomial.legendre.leggauss(400)  # of an integral from -1 to 1
FIELDS = ("counts", "means", "value_means", "spread", "covariance", "cross")


def draw(seed, n, d=3, d_v=5, n_cells=1):
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, n_cells, n)
    key = rng.standard_normal((n, d)) * (1 + cells[:, None]) + cells[:, None]
    return key, key @ rng.standard_normal((d, d_v)) + rng.standard_normal((n, d_v)), cells


def slow_moments(key, value, cells, n_cells):
    """Return the fields of the moments, key by key."""
    (n, d), d_v = key.shape, value.shape[1]
    counts, means, value_means = np.zeros(n_cells), np.zeros((n_cells, d)), np.zeros((n_cells, d_v))
    for c in range(n_cells):
        rows = [i for i in range(n) if cells[i] == c]
        counts[c] = len(rows)
        for i in rows:
            means[c] += key[i] / len(rows)
            value_means[c] += value[i] / len(rows)
    traces, covariance, cross = np.zeros(n_cells), np.zeros((d, d)), np.zeros((d, d_v))
    for i in range(n):
        k, v = key[i] - means[cells[i]], value[i] - value_means[cells[i]]
        traces[cells[i]] += k @ k / counts[cells[i]]
        covariance += np.outer(k, k) / n
        cross += np.outer(k, v) / n
    trace = np.trace(covariance)
    spread = traces / trace if trace else np.ones(n_cells)
    return counts, means, value_means, spread, covariance, cross


def slow_tail(fields, query, scale, below=None):
    """Return log mass and output of one query by integrals along the score, cell by cell."""
    counts, means, value_means, spread, covariance, cross = fields
    masses, sums = [], []
    for c in range(len(counts)):
        mean = scale * float(query @ means[c])
        deviation = scale * math.sqrt(spread[c] * float(query @ covariance @ query))
        top = deviation + 14 if below is None else min((below - mean) / deviation, deviation + 14)
        low = min(top, deviation) - 14  # the integrand peaks at t = deviation
        t = low + (top - low) * (NODES + 1) / 2
        weight = PARTS * np.exp(mean + deviation * t - t * t / 2) / math.sqrt(2 * math.pi)
        mass = counts[c] * weight.sum() * (top - low) / 2
        first = counts[c] * (weight * t).sum() * (top - low) / 2
        shift = scale * spread[c] * (cross.T @ query) / deviation
        masses.append(mass)
        sums.append(mass * value_means[c] + first * shift)
    return math.log(sum(masses)), sum(sums) / sum(masses)


def as_numpy(library, moments):
    return [library.numpy(getattr(moments, name)) for name in FIELDS]


# Moments: what they are


@dtypes
@pytest.mark.parametrize("n_cells", [1, 3])
def test_fit_equals_sums_over_the_keys(library, dtype, n_cells):
    need(library, dtype)
    key, value, cells = draw(0, 23, n_cells=n_cells)
    key, value = library.array(key, dtype), library.array(value, dtype)
    given_cells = None if n_cells == 1 else library.array(cells)
    moments = Moments.fit(key, value, n_cells, given_cells)
    exact = slow_moments(library.numpy(key), library.numpy(value), cells, n_cells)
    wide = "float32" if dtype in HALF else dtype
    for got, expected in zip(as_numpy(library, moments), exact, strict=True):
        close(got, expected, wide, size=20)
    assert wide in str(moments.covariance.dtype)


def test_keys_are_read_in_parts(monkeypatch):
    key, value, cells = draw(1, 29, n_cells=3)
    whole = Moments.fit(key, value, 3, cells)
    monkeypatch.setattr("attnbook.hashing.k_means.ROWS", 7)
    parts = Moments.fit(key, value, 3, cells)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    np.testing.assert_array_equal(parts.assign(key), whole.assign(key))


def test_k_means_finds_separate_clusters(library):
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 5, 1009)
    key = 40 * rng.standard_normal((5, 3))[truth] + rng.standard_normal((1009, 3))
    placed = library.array(key)
    moments = Moments.fit(placed, placed, 11, seed=3)
    cells = library.numpy(moments.assign(placed))
    for cell in np.unique(cells):
        assert len(set(truth[cells == cell])) == 1
    assert library.numpy(moments.counts).sum() == 1009
    again = Moments.fit(placed, placed, 11, seed=np.random.default_rng(3))
    np.testing.assert_array_equal(library.numpy(again.means), library.numpy(moments.means))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_more_cells_than_keys(library, n):
    key, value, _ = draw(3, n)
    moments = Moments.fit(library.array(key), library.array(value), 5)
    assert library.numpy(moments.counts).sum() == n
    log_mass, output = moments.tail(library.array(np.ones((2, 3))), 1.0)
    assert np.all(np.isfinite(library.numpy(output)))
    assert np.all(np.isfinite(library.numpy(log_mass))) == (n > 0)
    assert tuple(moments.assign(library.array(key)).shape) == (n,)


# Moments: what they predict


@dtypes
@pytest.mark.parametrize("n_cells", every_day([3], [1, 3]))
@pytest.mark.parametrize("cut", every_day([True], [False, True]))
def test_tail_is_the_gaussian_integral(library, dtype, n_cells, cut):
    need(library, dtype)
    key, value, cells = draw(4, 31, n_cells=n_cells)
    moments = Moments.fit(key, value, n_cells, cells)
    wide = "float32" if dtype in HALF else dtype
    moments = library.place(moments, wide)
    fields = as_numpy(library, moments)
    query = library.array(np.random.default_rng(5).standard_normal((2, 7, 3)), dtype)
    below = np.random.default_rng(6).uniform(-1, 2, (2, 7)) if cut else None
    placed = None if below is None else library.array(below, dtype)
    log_mass, output = moments.tail(query, 0.5, below=placed)
    for i in np.ndindex(2, 7):
        limit = None if below is None else library.numpy(placed)[i]
        expected = slow_tail(fields, library.numpy(query)[i], 0.5, limit)
        close(library.numpy(log_mass)[i], np.array(expected[0]), wide, size=400)
        close(library.numpy(output)[i], expected[1], wide, size=400)


def test_many_gaussian_keys_are_predicted():
    key, value, _ = draw(7, 200_003)
    query = 0.5 * np.random.default_rng(8).standard_normal((11, 3))
    moments = Moments.fit(key, value)
    weights = np.exp(query @ key.T)
    exact = weights @ value / weights.sum(1, keepdims=True)
    log_mass, output = moments.tail(query, 1.0)
    np.testing.assert_allclose(log_mass, np.log(weights.sum(1)), atol=0.01)
    np.testing.assert_allclose(output, exact, atol=0.03)
    plain = np.broadcast_to(value.mean(0), exact.shape)
    assert np.linalg.norm(output - exact) < 0.02 * np.linalg.norm(plain - exact)


def test_keys_of_two_sizes_need_two_cells():
    rng = np.random.default_rng(9)
    size = rng.integers(0, 2, 50_021)
    key = rng.standard_normal((50_021, 3)) * np.where(size, 2.0, 0.2)[:, None]
    query = rng.standard_normal((13, 3))
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    exact = np.log(np.exp(query @ key.T).sum(1))
    one, two = (Moments.fit(key, key, 1 + n, n * size).tail(query, 1.0)[0] for n in (0, 1))
    assert np.max(np.abs(two - exact)) < 0.05 < 0.2 < np.max(np.abs(one - exact))


def test_scored_outliers_and_the_tail_below_them_make_up_the_whole():
    key, value, _ = draw(10, 4099)
    rng = np.random.default_rng(11)
    query = rng.standard_normal((17, 3))
    key[:5], value[:5] = 6 * query[:5], 10.0
    moments = Moments.fit(key, value)
    limit = moments.limit(query, 1.0)
    scores = query @ key.T
    weights = np.exp(scores)
    scored = np.where(scores >= limit[:, None], weights, 0)
    assert np.all((scored > 0).sum(1) <= 6)
    assert np.all(scored[np.arange(5), np.arange(5)] > 0)
    log_mass, output = moments.tail(query, 1.0, below=limit)
    mass = np.exp(log_mass)[:, None]
    joined = (scored @ value + mass * output) / (scored.sum(1, keepdims=True) + mass)
    exact = weights @ value / weights.sum(1, keepdims=True)
    _, blind = moments.tail(query, 1.0)
    assert np.linalg.norm(joined - exact) < 0.05 * np.linalg.norm(exact)
    assert np.linalg.norm(blind - exact) > 0.5 * np.linalg.norm(exact)


def test_a_cell_that_was_scored_is_left_out(library):
    key, value, cells = draw(12, 37, n_cells=3)
    moments = library.place(Moments.fit(key, value, 3, cells))
    query = library.array(np.ones((2, 3)))
    counts = np.broadcast_to(library.numpy(moments.counts), (2, 3)).copy()
    counts[0, 1], counts[1] = 0, 0
    log_mass, output = moments.tail(query, 0.3, counts=library.array(counts))
    rest = cells != 1
    fields = list(slow_moments(key, value, cells, 3))
    fields[0] = np.array([sum(cells == 0), 0, sum(cells == 2)])
    expected = slow_tail(fields, np.ones(3), 0.3)
    np.testing.assert_allclose(library.numpy(log_mass)[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(library.numpy(output)[0], expected[1], rtol=1e-9)
    assert library.numpy(log_mass)[1] == -np.inf
    np.testing.assert_array_equal(library.numpy(output)[1], np.zeros(5))
    assert rest.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_scores_do_not_overflow(library, dtype):
    key = library.array(np.array([[1.0, 0.0], [-1.0, 0.0]]), dtype)
    value = library.array(np.array([[1.0], [2.0]]), dtype)
    moments = Moments.fit(key, value, 2, library.array(np.array([0, 1])))
    query = library.array(np.array([[1000.0, 0], [-1000.0, 0], [1e4, 0]]), dtype)
    log_mass, output = moments.tail(query, 1.0)
    np.testing.assert_allclose(library.numpy(log_mass), [1000, 1000, 1e4], rtol=1e-6)
    np.testing.assert_allclose(library.numpy(output), [[1.0], [2.0], [1.0]], rtol=1e-6)
    one = Moments.fit(key, value)  # one wide cell: its deviation is the score itself
    limit = one.limit(query, 1.0)
    log_mass, output = one.tail(query, 1.0, below=limit)
    assert np.all(library.numpy(log_mass) <= math.log(2) + library.numpy(limit))
    assert np.all(np.isfinite(library.numpy(output)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("below", [-np.inf, -1e30, 0.0, 1.0, 1e30, np.inf])
def test_limits_far_away(library, dtype, below):
    key = np.random.default_rng(13).standard_normal((101, 2))
    moments = library.place(Moments.fit(key, key), dtype)
    query = library.array(np.array([[1.0, 1.0], [0.0, 0.0]]), dtype)
    log_mass, output = moments.tail(query, 1.0, below=library.array(np.full(2, below), dtype))
    log_mass, output = library.numpy(log_mass), library.numpy(output)
    assert not np.any(np.isnan(output))
    whole = library.numpy(moments.tail(query, 1.0)[0])
    if below == 1e30 or below == np.inf:
        np.testing.assert_allclose(log_mass, whole, rtol=1e-6)
    assert np.all(log_mass <= whole + 1e-6)
    # with a zero query every score is 0: at most the limit, or not
    assert log_mass[1] == (pytest.approx(math.log(101)) if below >= 0 else -np.inf)


def test_no_keys_and_no_queries(library):
    moments = Moments.fit(library.array(np.zeros((0, 2))), library.array(np.zeros((0, 3))), 2)
    query = library.array(np.ones((3, 2)))
    log_mass, output = moments.tail(query, 1.0)
    np.testing.assert_array_equal(library.numpy(log_mass), np.full(3, -np.inf))
    np.testing.assert_array_equal(library.numpy(output), np.zeros((3, 3)))
    np.testing.assert_array_equal(library.numpy(moments.limit(query, 1.0)), np.full(3, -np.inf))
    log_mass, output = moments.tail(query, 1.0, below=library.array(np.zeros(3)))
    np.testing.assert_array_equal(library.numpy(log_mass), np.full(3, -np.inf))
    log_mass, output = moments.tail(library.array(np.ones((0, 2))), 1.0)
    assert tuple(log_mass.shape) == (0,)
    assert tuple(output.shape) == (0, 3)


@pytest.mark.parametrize("a", [-1e4, -40.0, -37.0, -5.0, -0.3, 0.0, 0.2, 1.0, 3.0, 6.0, 9.0, 38.0])
def test_normal_below(library, a):
    log_cdf, ratio = (float(library.numpy(x)[0]) for x in normal.below(library.array([a])))
    with mpmath.workdps(60):
        cdf = 0.5 * mpmath.erfc(-mpmath.mpf(a) / mpmath.sqrt(2))
        expected = float(mpmath.log(cdf)), float(mpmath.npdf(a) / cdf)
    assert log_cdf == pytest.approx(expected[0], rel=1e-13, abs=1e-300)
    assert ratio == pytest.approx(expected[1], rel=1e-11, abs=1e-300)


# Moments: changes


@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 3)), st.sampled_from((0, 1, 5, 11)))
def test_adding_equals_fitting_anew_and_removing_undoes_it(seed, n_cells, n):
    key, value, cells = draw(seed, 11 + n, n_cells=n_cells)
    old, new = slice(0, 11), slice(11, None)
    whole = Moments.fit(key, value, n_cells, cells)
    first = Moments.fit(key[old], value[old], n_cells, cells[old])
    added = first.add(key[new], value[new], cells[new])
    removed = added.remove(key[new], value[new], cells[new])
    for name in FIELDS:
        np.testing.assert_allclose(getattr(added, name), getattr(whole, name), atol=1e-10)
        np.testing.assert_allclose(getattr(removed, name), getattr(first, name), atol=1e-9)


def test_moments_stay_on_the_device_of_the_keys():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    key, value = strict.ones((5, 3), device=device), strict.ones((5, 2), device=device)
    fitted = Moments.fit(key, value)
    for moments in (fitted, fitted.add(key, value), fitted.remove(key, value)):
        assert {getattr(moments, name).device for name in FIELDS} == {device}


def test_new_keys_go_to_the_nearest_mean_and_an_empty_sketch_fills(library):
    key, value, cells = draw(14, 41, n_cells=2)
    key = key + 50 * cells[:, None]
    placed = [library.array(x) for x in (key, value)]
    moments = Moments.fit(*(x[:20, :] for x in placed), 2, library.array(cells[:20]))
    added = moments.add(*(x[20:, :] for x in placed))
    exact = slow_moments(key, value, cells, 2)
    for got, expected in zip(as_numpy(library, added), exact, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    empty = Moments.fit(*(x[:0, :] for x in placed))
    filled = empty.add(*placed)
    exact = slow_moments(key, value, 0 * cells, 1)
    for got, expected in zip(as_numpy(library, filled), exact, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
    emptied = filled.remove(*placed)
    for name in ("counts", "means", "value_means", "covariance", "cross"):
        assert not np.any(library.numpy(getattr(emptied, name)))


def test_an_empty_cell_takes_no_key(library):
    key = library.array(np.arange(15.0).reshape(5, 3) + 50)
    moments = Moments.fit(key, key, 2, library.array(np.ones(5, dtype=np.int64)))
    near_its_mean = library.array(np.zeros((2, 3)))  # an empty cell has the mean 0
    np.testing.assert_array_equal(library.numpy(moments.assign(near_its_mean)), [1, 1])
    added = moments.add(near_its_mean, near_its_mean)
    np.testing.assert_array_equal(library.numpy(added.counts), [0, 7])


# The uniform sample


@dtypes
def test_uniform_tail_equals_the_sums(library, dtype):
    need(library, dtype)
    rng = np.random.default_rng(15)
    scores = library.array(rng.standard_normal((2, 7, 11)), dtype)
    value = library.array(rng.standard_normal((2, 11, 3)), dtype)
    unseen = rng.random((2, 7, 11)) < 0.6
    unseen[0, 0] = False
    tail = uniform_tail(scores, value, 23, unseen=library.array(unseen), delta=0.1)
    wide = "float32" if dtype in HALF else dtype
    assert wide in str(tail.output.dtype)
    z = 1.6448536269514722
    x, v = library.numpy(scores), library.numpy(value)
    for b, i in np.ndindex(2, 7):
        y = np.array([math.exp(x[b, i, j]) if unseen[b, i, j] else 0.0 for j in range(11)])
        if not y.any():
            assert library.numpy(tail.log_mass)[b, i] == -np.inf
            assert not library.numpy(tail.output)[b, i].any()
            assert library.numpy(tail.mass_error)[b, i] == np.inf
            assert library.numpy(tail.output_error)[b, i] == np.inf
            continue
        output = sum(y[j] * v[b, j] for j in range(11)) / y.sum()
        part = z * math.sqrt((1 - 11 / 23) / 11) / y.mean()
        spread = sum((y[j] * np.linalg.norm(v[b, j] - output)) ** 2 for j in range(11)) / 10
        expected = {
            "log_mass": math.log(23 / 11 * y.sum()),
            "output": output,
            "mass_error": part * y.std(ddof=1),
            "output_error": part * math.sqrt(spread),
        }
        for name, exact in expected.items():
            close(library.numpy(getattr(tail, name))[b, i], np.array(exact), wide, size=8)


def test_mass_is_unbiased_over_all_samples():
    rng = np.random.default_rng(16)
    scores, value = 2 * rng.standard_normal((3, 7)), rng.standard_normal((7, 2))
    unseen = rng.random((3, 7)) < 0.7
    mass, moment = np.zeros(3), np.zeros((3, 2))
    samples = list(itertools.combinations(range(7), 3))
    for sample in map(list, samples):
        tail = uniform_tail(scores[:, sample], value[sample], 7, unseen=unseen[:, sample])
        mass += np.exp(tail.log_mass) / len(samples)
        moment += np.exp(tail.log_mass)[:, None] * tail.output / len(samples)
    weights = np.exp(scores) * unseen
    np.testing.assert_allclose(mass, weights.sum(1), rtol=1e-12)
    np.testing.assert_allclose(moment, weights @ value, rtol=1e-12)


def test_a_sample_of_all_keys_is_exact(library):
    rng = np.random.default_rng(17)
    scores, value = 300 * rng.standard_normal((5, 13)), rng.standard_normal((13, 2))
    tail = uniform_tail(library.array(scores), library.array(value), 13)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    exact = weights @ value / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(library.numpy(tail.output), exact, rtol=1e-10)
    log_mass = np.log(weights.sum(1)) + top[:, 0]
    np.testing.assert_allclose(library.numpy(tail.log_mass), log_mass, rtol=1e-12)
    assert not library.numpy(tail.mass_error).any()
    assert not library.numpy(tail.output_error).any()


@pytest.mark.parametrize("deviation", [0.5, 1.0])
def test_coverage_of_the_bounds(deviation):
    rng = np.random.default_rng(18)
    n, s, n_q, rounds = 5003, 401, 31, 40
    scores = deviation * rng.standard_normal((n_q, n))
    value = rng.standard_normal((n, 3)) + rng.standard_normal(3)
    weights = np.exp(scores)
    output = weights @ value / weights.sum(1, keepdims=True)
    mass_held = output_held = 0.0
    for _ in range(rounds):
        rows = rng.permutation(n)[:s]
        tail = uniform_tail(scores[:, rows], value[rows], n, delta=0.1)
        error = np.abs(np.exp(tail.log_mass) - weights.sum(1)) / np.exp(tail.log_mass)
        mass_held += np.mean(error <= tail.mass_error) / rounds
        away = np.linalg.norm(tail.output - output, axis=-1)
        output_held += np.mean(away <= tail.output_error) / rounds
    # 0.9 is promised for s → ∞; the interval of a skewed mean falls a little short at s = 401
    assert 0.86 < mass_held < 0.95
    assert output_held > 0.9


def test_the_bounds_fail_where_one_key_holds_the_mass():
    scores = np.zeros((1, 1009))
    scores[0, 7] = 12.0
    rows = np.arange(100, 200)  # as likely as any other hundred, and nine in ten miss key 7
    tail = uniform_tail(scores[:, rows], np.ones((100, 1)), 1009)
    assert tail.mass_error[0] == 0
    assert np.exp(tail.log_mass[0]) < 0.01 * np.exp(scores).sum()


@pytest.mark.parametrize("n", [0, 1, 5])
def test_samples_of_no_key_and_of_one(library, n):
    for s in (0, 1):
        if s > n:
            continue
        tail = uniform_tail(library.array(np.zeros((2, s))), library.array(np.ones((s, 3))), n)
        error = 0.0 if s == n else np.inf
        np.testing.assert_array_equal(library.numpy(tail.mass_error), [error, error])
        np.testing.assert_array_equal(library.numpy(tail.output_error), [error, error])
        np.testing.assert_allclose(
            library.numpy(tail.log_mass), np.full(2, math.log(n) if s else -np.inf)
        )
        np.testing.assert_array_equal(library.numpy(tail.output), np.full((2, 3), float(s)))


# What is refused

K, V, ONES = np.arange(15.0).reshape(5, 3), np.ones((5, 2)), np.ones((3, 5))
FITTED = Moments.fit(K, V, 2, np.array([0, 0, 0, 1, 1]))


def tail(query=K[:2], scale=1.0, **options):
    return FITTED.tail(query, scale, **options)


def sampled(scores=ONES, value=V, n_keys=7, **options):
    return uniform_tail(scores, value, n_keys, **options)


WRONG = [
    (lambda: replace(FITTED, counts=np.ones(3)), "counts must have shape (2,) to match means, got"),
    (
        lambda: replace(FITTED, cross=ONES),
        "cross must have shape (3, 2) to match means, got",
    ),
    (lambda: replace(FITTED, means=np.ones(3)), "means must have 2 axes, got shape (3,)"),
    (lambda: replace(FITTED, value_means=np.ones(2)), "value_means must have 2 axes, got shape"),
    (lambda: replace(FITTED, counts=None), "counts must be an array of NumPy"),
    (lambda: Moments.fit(K, V[:4]), "value must have shape (5, d_v) to match key, got (4, 2)"),
    (lambda: Moments.fit(K[:, 0], V), "key must have 2 axes, got shape (5,)"),
    (lambda: Moments.fit(K, V[:, 0]), "value must have 2 axes, got shape (5,)"),
    (lambda: Moments.fit(K, V, 0), "n_cells must be at least 1, got 0"),
    (lambda: Moments.fit(K, V, 2, np.ones(5)), "cells must have an integer dtype, got float64"),
    (lambda: Moments.fit(K, V, 2, np.array([0] * 4)), "cells must have shape (5,), got (4,)"),
    (
        lambda: Moments.fit(K, V, 2, np.array([0, 1, 2, 0, 0])),
        "cells must be from 0 to 1, got 0",
    ),
    (lambda: FITTED.remove(K, V), "cells must say which cell each key is in, got None"),
    (
        lambda: FITTED.remove(K[:3], V[:3], np.array([1] * 3)),
        "key must hold no more keys of a cell than are in it, got 1 too many",
    ),
    (lambda: FITTED.add(V, V), "key must have shape (n, 3), got (5, 2)"),
    (lambda: FITTED.add(K, K), "value must have shape (n, 2), got (5, 3)"),
    (lambda: FITTED.add(K.astype("f4"), V.astype("f4")), "key must have the dtype of means"),
    (lambda: tail(V), "query must have shape (..., n_q, 3), got (5, 2)"),
    (lambda: tail(np.ones(3)), "query must have shape (..., n_q, 3), got (3,)"),
    (lambda: tail(scale=-1.0), "scale must be finite and at least 0, got -1.0"),
    (lambda: tail(scale="1"), "scale must be a real number, got str"),
    (lambda: FITTED.limit(K, -1.0), "scale must be finite and at least 0, got -1.0"),
    (lambda: tail(below=np.ones(3)), "below must have shape (2,), got (3,)"),
    (lambda: tail(counts=np.ones(2)), "counts must have shape (2, 2), got (2,)"),
    (lambda: tail(counts=np.ones((2, 2), dtype=int)), "counts must have a real floating dtype"),
    (lambda: sampled(np.ones(5)), "scores must have shape (..., n_q, s), got (5,)"),
    (lambda: sampled(value=np.ones(5)), "value must have shape (..., s, d_v), got (5,)"),
    (lambda: sampled(value=V[:4]), "value must have shape (..., 5, d_v) to match scores"),
    (lambda: sampled(value=np.ones((2, 5, 2))), "value must have shape (..., 5, d_v) to match"),
    (lambda: sampled(n_keys=4), "n_keys must be at least 5, got 4"),
    (lambda: sampled(delta=0.0), "delta must be above 0 and at most 0.2, got 0.0"),
    (lambda: sampled(delta=0.5), "delta must be above 0 and at most 0.2, got 0.5"),
    (lambda: sampled(unseen=ONES), "unseen must be boolean, True = may attend"),
    (lambda: sampled(unseen=Causal()), "unseen must be a boolean array, since this function reads"),
    (
        lambda: sampled(unseen=np.ones((4, 5)) > 0),
        "unseen must broadcast to the shape",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


@pytest.mark.parametrize("delta", [5e-324, 1e-320, 1e-17])
def test_a_chance_of_next_to_nothing_has_a_bound(delta):
    rng = np.random.default_rng(0)
    scores, value = rng.standard_normal((2, 5)), rng.standard_normal((5, 2))
    nearly_sure, sure = (sampled(scores, value, delta=d) for d in (1e-3, delta))
    assert np.isfinite(sure.mass_error).all()
    assert (sure.mass_error > 2 * nearly_sure.mass_error).all()
