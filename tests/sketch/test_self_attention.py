"""Self-attention by Gaussians, cells and tables, against sums over every key in float64."""

import math
import re

import numpy as np
import pytest

pytest.importorskip("numba")

import oracle

import attnbook
from attnbook.sketch import _self_simd
from attnbook.sketch._self_sketch import SelfSketch, long_distances, probes
from attnbook.sketch.self_attention import self_attention_sketch
from attnbook.sketch.tails import Moments


def draw(seed, n_q, n_k, d=5, d_v=7, lead=()):
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((*lead, n_q, d), dtype=np.float32)
    key = rng.standard_normal((*lead, n_k, d), dtype=np.float32)
    map_ = rng.standard_normal((d, d_v)) / math.sqrt(max(d, 1))
    value = np.float32(1) + key @ map_.astype(np.float32)
    return query, key, value


def error(got, exact):
    return np.linalg.norm(got - exact) / np.linalg.norm(exact)


def close(got, exact):
    np.testing.assert_allclose(got, exact, rtol=3e-5, atol=3e-5 * np.max(np.abs(exact)))


# The parts by themselves


@pytest.mark.parametrize("n_k", [1, 3, 67, 401])
@pytest.mark.parametrize("options", [{"n_cells": 11, "n_scored": 11}, {"n_heavy": 401}])
def test_all_keys_scored_is_attention(n_k, options):
    query, key, value = draw(0, 131, n_k, lead=(2, 3))
    got = self_attention_sketch(query, key, value, n_tables=0, **options)
    exact = oracle.attention(query[0, 0, :17], key[0, 0], value[0, 0])
    close(got[0, 0, :17], exact)
    close(got, attnbook.attention(*(x.astype(np.float64) for x in (query, key, value))))


@pytest.mark.parametrize("scale", [None, 0.1, 3.0])
def test_one_cell_is_the_closed_form(scale):
    query, key, value = draw(1, 71, 307)
    got = self_attention_sketch(query, key, value, n_tables=0, scale=scale)
    wide = [x.astype(np.float64) for x in (query, key, value)]
    moments, s = Moments.fit(*wide[1:]), 1 / math.sqrt(5) if scale is None else scale
    deviation = s * np.sqrt(np.einsum("qi,ij,qj->q", wide[0], moments.covariance, wide[0]))
    _, plain = moments.tail(wide[0], s)
    _, cut = moments.tail(wide[0], s, below=moments.limit(wide[0], s))
    close(got, np.where((deviation > 1.5)[:, None], cut, plain))
    assert (deviation > 1.5).any() or scale != 3.0
    assert not (deviation > 1.5).any() or scale != 0.1


def by_cells(query, key, value, labels, n_cells, n_scored, scale):
    """Return the output with the best cells scored and the rest from `Moments`, in float64."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    moments = Moments.fit(key, value, n_cells, labels.astype(np.int64))
    parts = []
    for c in range(n_cells):
        only = np.zeros((len(query), n_cells))
        only[:, c] = np.sum(labels == c)
        parts.append(moments.tail(query, scale, counts=only))
    log_mass = np.stack([mass for mass, _ in parts], axis=1)
    output = np.stack([mean for _, mean in parts], axis=1)
    best = np.argsort(-log_mass, axis=1)[:, :n_scored]
    for i in range(len(query)):
        for c in best[i]:
            rows = labels == c
            if rows.any():
                weights = np.exp(scale * key[rows] @ query[i])
                log_mass[i, c] = np.log(weights.sum())
                output[i, c] = weights @ value[rows] / weights.sum()
    share = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    return np.einsum("qc,qcd->qd", share, output)


@pytest.mark.parametrize("n_scored", [0, 1, 2, 5])
def test_the_best_cells_are_scored_and_the_others_estimated(n_scored):
    query, key, value = draw(2, 79, 509)
    key[::3] += np.float32(3)
    arrays = [np.pad(x, ((0, 0), (0, 16 - x.shape[1])))[None] for x in (key, value)]
    labels = SelfSketch(*arrays, 7, 0, np.random.default_rng(5), 1).labels[0]
    assert len(np.unique(labels)) == 7
    got = self_attention_sketch(
        query, key, value, n_cells=7, n_scored=n_scored, n_tables=0, scale=0.2, seed=5
    )
    close(got, by_cells(query, key, value, labels, 7, n_scored, 0.2))


def test_tables_that_find_every_key():
    query, key, value = draw(3, 61, 101, d=16)
    key[:4] = 5 * query[:4]
    options = {"n_tables": 2, "n_bits": 3, "n_probes": 8, "distance": 64}
    got = self_attention_sketch(query, key, value, scale=0.1, **options)
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    moments = Moments.fit(k, v)
    scores = 0.1 * q @ k.T
    above = scores >= moments.limit(q, 0.1)[:, None]
    assert 4 <= above.sum() < 100
    log_mass, tail = moments.tail(q, 0.1)
    weights = np.where(above, np.exp(scores), 0)
    mass = np.exp(log_mass)[:, None]
    close(got, (weights @ v + mass * tail) / (weights.sum(1, keepdims=True) + mass))


def test_keys_of_scored_cells_count_once():
    query, key, value = draw(4, 61, 101, d=16)
    options = {"n_tables": 2, "n_bits": 3, "n_probes": 8, "distance": 64}
    got = self_attention_sketch(query, 3 * key, value, n_cells=5, n_scored=5, **options)
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, 3 * key, value)))
    close(got, exact)


@pytest.mark.parametrize("n_cells", [1, 4])
def test_heavy_keys_are_no_part_of_the_gaussians(n_cells):
    query, key, value = draw(5, 61, 503)
    key[7::50] *= np.float32(30)
    got = self_attention_sketch(query, key, value, n_heavy=10, n_cells=n_cells, scale=0.1)
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)), scale=0.1)
    assert error(got, exact) < 0.03
    blind = self_attention_sketch(query, key, value, n_tables=0, scale=0.1)
    assert error(blind, exact) > 0.3


def test_long_keys_are_scored_where_they_promise_most():
    rng = np.random.default_rng(22)
    query, key, value = draw(23, 401, 4099, d=64, d_v=16)
    lengths = 6 * rng.lognormal(0, 0.8, 4099)
    key *= (lengths / np.linalg.norm(key, axis=1))[:, None].astype(np.float32)
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)))
    options = {"n_heavy": 41, "n_tables": 0}
    heavy = self_attention_sketch(query, key, value, **options)
    both = self_attention_sketch(query, key, value, n_long=160, **options)
    assert error(both, exact) < 0.5 * error(heavy, exact)
    # a Gaussian of keys without the longest 200, which all count for themselves
    every = self_attention_sketch(query, key, value, n_long=4099, **options)
    assert error(every, exact) < error(heavy, exact)


def test_long_distances_pass_an_eighth_of_the_keys_to_a_query_near_none():
    rng = np.random.default_rng(24)
    lengths = -np.sort(-rng.lognormal(0, 0.8, 803))
    most = long_distances(lengths)
    assert most.shape == (101,)
    assert np.all(np.diff(most) <= 0)
    signs = rng.integers(0, 2, (2003, 64)).sum(axis=1)
    passed = sum(np.mean(signs <= m) for m in np.repeat(most, 8)[:803]) / 803
    assert 0.1 < passed < 0.15
    np.testing.assert_array_equal(long_distances(np.zeros(9)), long_distances(np.zeros(9)))
    # the product of length and estimated cosine is what counts
    edge = lengths[::8] * np.cos(np.pi * most / 64)
    above = edge[(most >= 0) & (most < 31)]
    below = (lengths[::8] * np.cos(np.pi * (most + 1) / 64))[(most >= 0) & (most < 31)]
    assert above.min() >= below.max() - 1e-9


# What they reach together


def test_flat_keys():
    query, key, value = draw(6, 211, 8009, d=64, d_v=64)
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)))
    assert error(self_attention_sketch(query, key, value), exact) < 0.01


def test_planted_neighbours_need_tables():
    query, key, value = draw(7, 211, 4099, d=64, d_v=64)
    rng = np.random.default_rng(8)
    rows = rng.permutation(4099)[:211]
    query = np.float32(1.2) * (key[rows] + 0.25 * rng.standard_normal((211, 64), dtype=np.float32))
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)))
    assert error(self_attention_sketch(query, key, value), exact) < 0.04
    assert error(self_attention_sketch(query, key, value, n_tables=0), exact) > 0.3


def test_clusters_need_cells():
    rng = np.random.default_rng(9)
    centre = 0.9 * rng.standard_normal((17, 64), dtype=np.float32)
    label = rng.integers(0, 17, 4099)
    _, key, value = draw(10, 1, 4099, d=64, d_v=64)
    key = centre[label] + np.float32(0.5) * key
    value = value + np.float32(2) * rng.standard_normal((17, 64), dtype=np.float32)[label]
    query = centre[rng.integers(0, 17, 211)] + np.float32(0.5) * rng.standard_normal(
        (211, 64), dtype=np.float32
    )
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)))
    cells = self_attention_sketch(query, key, value, n_cells=64, n_scored=2, n_tables=0)
    assert error(cells, exact) < 0.05
    assert error(self_attention_sketch(query, key, value, n_tables=0), exact) > 0.3


# Edges


@pytest.mark.parametrize("n_q", [0, 1, 64, 65])
@pytest.mark.parametrize("n_k", [0, 1, 2, 130])
@pytest.mark.parametrize("options", [{}, {"n_cells": 3, "n_scored": 1, "n_heavy": 1, "n_long": 9}])
def test_sizes(n_q, n_k, options):
    query, key, value = draw(11, n_q, n_k)
    got = self_attention_sketch(query, key, value, **options)
    assert got.shape == (n_q, 7)
    assert got.dtype == np.float32
    assert np.all(np.isfinite(got))
    if n_k == 0:
        assert not got.any()
    elif n_k == 1 and n_q:
        close(got, np.broadcast_to(value, (n_q, 7)))


def test_leading_axes_broadcast_and_read_only_arrays_are_taken():
    query, key, value = draw(12, 23, 97, lead=(3,))
    query = np.stack([query, -query])  # (2, 3, n_q, d) against (3, n_k, d)
    for x in (query, key, value):
        x.setflags(write=False)
    got = self_attention_sketch(query, key, value, n_cells=2, n_scored=1)
    for i, j in np.ndindex(2, 3):
        one = self_attention_sketch(query[i, j], key[j], value[j], n_cells=2, n_scored=1)
        np.testing.assert_array_equal(got[i, j], one)


@pytest.mark.parametrize(("d", "d_v"), [(1, 1), (16, 48), (67, 16), (0, 3), (4, 0)])
def test_widths(d, d_v):
    query, key, value = draw(13, 19, 83, d=d, d_v=d_v)
    got = self_attention_sketch(query, key, value, n_cells=5, n_scored=5, scale=0.3)
    wide = [x.astype(np.float64) for x in (query, key, value)]
    np.testing.assert_allclose(got, attnbook.attention(*wide, scale=0.3), atol=2e-5)


def test_threads_and_seeds_do_not_matter_where_they_must_not():
    query, key, value = draw(14, 3001, 5003, d=16, d_v=16, lead=(2,))
    options = {"n_cells": 16, "n_scored": 1, "n_heavy": 7, "n_long": 80}
    one, two = (self_attention_sketch(query, key, value, n_threads=t, **options) for t in (1, 2))
    np.testing.assert_array_equal(one, two)
    other = self_attention_sketch(query, key, value, seed=1, **options)
    assert 0 < error(other, one) < 0.1
    again = self_attention_sketch(query, key, value, seed=np.random.default_rng(1), **options)
    np.testing.assert_array_equal(again, other)


@pytest.mark.parametrize("size", [30.0, 1000.0])
def test_large_scores_stay_finite(size):
    query, key, value = draw(15, 67, 211, d=16)
    query *= np.float32(size)
    for options in ({}, {"n_cells": 8, "n_scored": 1}, {"n_cells": 8}):
        got = self_attention_sketch(query, key, value, scale=1.0, **options)
        assert np.all(np.isfinite(got))
    exact = attnbook.attention(*(x.astype(np.float64) for x in (query, key, value)), scale=1.0)
    got = self_attention_sketch(query, key, value, scale=1.0, n_cells=8, n_scored=8)
    assert error(got, exact) < 1e-6 * size  # the rounding of a score is as large as it is


def test_equal_keys():
    key = np.ones((2003, 16), dtype=np.float32)
    value = np.arange(2003, dtype=np.float32)[:, None]
    parts = {"n_cells": 4}, {"n_cells": 4, "n_scored": 1}, {"n_heavy": 100}, {"n_long": 100}
    for options in ({}, *parts):
        got = self_attention_sketch(key[:5], key, value, **options)
        np.testing.assert_allclose(got, np.full((5, 1), 1001.0), rtol=1e-5)


def test_numbers_that_are_not_finite_end_nowhere_else():
    query, key, value = draw(16, 131, 211, d=16)
    query[3] = np.nan
    query[5, 0] = np.inf
    for options in ({}, {"n_cells": 8, "n_scored": 1}):
        got = self_attention_sketch(query, key, value, **options)
        clean = self_attention_sketch(np.nan_to_num(query, posinf=0), key, value, **options)
        rest = np.delete(np.arange(131), [3, 5])
        np.testing.assert_array_equal(got[rest], clean[rest])
    key[7] = np.nan
    assert self_attention_sketch(query, key, value, n_cells=8).shape == (131, 7)


# The pieces


def test_probes_are_the_cheapest_sets():
    parents, elements = probes(6, 64)
    sets = [frozenset()]
    for p, e in zip(parents[1:], elements[1:], strict=True):
        assert e not in sets[p]
        sets.append(sets[p] | {int(e)})
    assert len(set(sets)) == 64  # all subsets of 6 planes
    rng = np.random.default_rng(0)
    cost = (np.sort(np.abs(rng.standard_normal((2048, 6))), axis=1) ** 2).mean(axis=0)
    costs = [sum(cost[i] for i in s) for s in sets]
    assert np.all(np.diff(costs) > -1e-12)
    assert len(probes(2, 20)[0]) == 4
    np.testing.assert_array_equal(probes(12, 20)[0], probes(12, 30)[0][:20])


def test_product_equals_matmul():
    import numba

    @numba.njit
    def run(x, of_row, of_k, w, out, shape, add):
        _self_simd.product(x, 0, of_row, of_k, w, 0, w.shape[1], out, 0, out.shape[1], shape, add)

    rng = np.random.default_rng(17)
    for rows, columns, depth in ((8, 16, 1), (24, 48, 37), (16, 32, 5)):
        x = rng.standard_normal((rows, depth), dtype=np.float32)
        w = rng.standard_normal((depth, columns), dtype=np.float32)
        out = np.ones((rows, columns), dtype=np.float32)
        run(x, depth, 1, w, out, (rows, columns, depth), False)
        np.testing.assert_allclose(out, x @ w, atol=1e-4)
        run(np.ascontiguousarray(x.T), 1, rows, w, out, (rows, columns, depth), True)
        np.testing.assert_allclose(out, 2 * (x @ w), atol=1e-4)


def test_powers_ranks_and_codes():
    import numba

    @numba.njit
    def powers(x, out):
        for i in range(len(x)):
            out[i] = _self_simd.exp2(x[i])

    x = np.linspace(-125.9, 126.9, 20_011).astype(np.float32)
    out = np.empty_like(x)
    powers(x, out)
    np.testing.assert_allclose(out, np.exp2(x.astype(np.float64)), rtol=1e-6)
    powers(np.array([-1e30, -np.inf, 0.0], dtype=np.float32), out[:3])
    np.testing.assert_allclose(out[:3], [2.0**-126, 2.0**-126, 1.0], rtol=1e-6)

    @numba.njit
    def rank_of(x, first, n, out):
        _self_simd.ranks(x, first, np.int32(n), out)

    x = np.array([0, 3, -1, 4, 1, 5, -9, 2, 6, 5, 3, 5, 8, 9, -7, 9, 3], dtype=np.float32)
    rank = np.empty(16, dtype=np.int32)
    for n in (1, 11, 16):
        rank_of(x, 1, n, rank)
        expected = np.argsort(np.argsort(np.abs(x[1 : n + 1]), kind="stable"))
        np.testing.assert_array_equal(rank[:n], expected)

    @numba.njit
    def signs(x, first, threshold):
        return _self_simd.sign_bits(x, first, threshold)

    x, threshold = np.random.default_rng(18).standard_normal((2, 71)).astype(np.float32)
    x[9] = threshold[2]
    code = signs(x, 7, threshold)
    assert [bool(code >> j & 1) for j in range(64)] == list(x[7:] >= threshold[:64])

    @numba.njit
    def near(codes, first, code, distance):
        return _self_simd.near_codes(codes, first, np.uint64(code), distance)

    rng = np.random.default_rng(18)
    codes = rng.integers(0, 2**63, 12, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    code = int(codes[6])
    for distance in (0, 25, 32, 64):
        bits = near(codes, 3, code, distance)
        expected = [(int(codes[3 + i]) ^ code).bit_count() <= distance for i in range(8)]
        assert [bool(bits >> i & 1) for i in range(8)] == expected


# Errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_cells": 0}, ValueError, "n_cells must be at least 1, got 0"),
        ({"n_scored": -1}, ValueError, "n_scored must be at least 0, got -1"),
        ({"n_heavy": 1.5}, TypeError, "n_heavy must be an int, got float"),
        ({"n_long": -1}, ValueError, "n_long must be at least 0, got -1"),
        ({"n_tables": -1}, ValueError, "n_tables must be at least 0, got -1"),
        ({"n_probes": 0}, ValueError, "n_probes must be at least 1, got 0"),
        ({"n_bits": 0}, ValueError, "n_bits must be at least 1, got 0"),
        ({"n_bits": 17}, ValueError, "n_bits must be at most 16, got 17"),
        ({"distance": 65}, ValueError, "distance must be at most 64, got 65"),
        ({"n_threads": 0}, ValueError, "n_threads must be at least 1, got 0"),
        ({"scale": -1.0}, ValueError, "scale must be finite and at least 0, got -1.0"),
    ],
)
def test_options_out_of_range(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        self_attention_sketch(*draw(19, 3, 5), **options)


def test_arrays_of_another_kind():
    query, key, value = draw(20, 3, 5)
    wide = [x.astype(np.float64) for x in (query, key, value)]
    message = "query must be a float32 array of NumPy, got float64 of numpy"
    with pytest.raises(TypeError, match=message):
        self_attention_sketch(*wide)
    with pytest.raises(ValueError, match=r"key must have shape \(\.\.\., n_k, 5\) to match query"):
        self_attention_sketch(query, key[:, :3], value)


def test_without_numba_it_says_how_to_get_it(monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith("attnbook.sketch._")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    message = re.escape("self_attention_sketch needs Numba: pip install 'attnbook[fast]'")
    with pytest.raises(ImportError, match=f"^{message}$"):
        self_attention_sketch(*draw(21, 3, 5))
