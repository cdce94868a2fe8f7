"""The hybrid cache reads sinks, window and keys with two hits: against a loop that counts hits."""

import math

import numpy as np
import pytest
import torch
from decoding_models import model
from error_table import error_test
from hypothesis import assume, given
from hypothesis import strategies as st

import attnbook as ab
from attnbook.decoding import HybridCache, beam_search, greedy_decode
from attnbook.hashing import SimHash
from attnbook.positions import Alibi

IMPLS = ("reference", "numba")
WITHIN = {"float32": 1e-4, "float64": 1e-5}  # numba interpolates the chance


class Loop:
    """One head in float64: every bit of every signature, every hit, and the binomial sum."""

    def __init__(self, centre, directions, sinks, window):
        self.centre, self.directions, self.sinks, self.window = centre, directions, sinks, window
        self.margin = math.inf  # of the products whose signs are taken

    def bits(self, x):
        found = []
        for table in self.directions:
            along = [math.fsum(a * b for a, b in zip(row, x, strict=True)) for row in table]
            self.margin = min(self.margin, *map(abs, along))
            found.append([product >= 0 for product in along])
        return found

    def chance(self, q, k):
        both = math.sqrt(math.fsum(q * q) * math.fsum(k * k))
        cosine = math.fsum(q * k) / both if both > 0 else 0.0  # a key may be the centre
        angle = math.acos(max(-1, min(1, cosine)))
        L, kappa, _ = self.directions.shape
        f = (1 - angle / math.pi) ** kappa
        return math.fsum(math.comb(L, t) * f**t * (1 - f) ** (L - t) for t in range(2, L + 1))

    def __call__(self, q, keys, values, scale):
        n, total, output = len(keys), 0.0, 0.0
        asked = self.bits(q)
        for j in range(n):
            weight = math.exp(scale * math.fsum(q * keys[j]))
            if self.sinks <= j < n - self.window:
                k = keys[j] - self.centre
                hits = sum(a == b for a, b in zip(asked, self.bits(k), strict=True))
                weight = weight / self.chance(q, k) if hits >= 2 else 0.0
            total, output = total + weight, output + weight * values[j]
        return output / total


def drawn(seed, h_kv, groups, n, dtype, lead=()):
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(*lead, h_kv * groups, n, 5)).astype(dtype)
    key = (rng.normal(size=(*lead, h_kv, n, 5)) + 1).astype(dtype)
    return query, key, rng.normal(size=(*lead, h_kv, n, 3)).astype(dtype)


def run(cache, arrays, n_prompt, chunks):
    """Return the outputs of all tokens after the prompt, which come in chunks of these lengths."""
    query, key, value = arrays
    cache.append(0, key[..., :n_prompt, :], value[..., :n_prompt, :])
    outputs, n = [], n_prompt
    for m in chunks:
        new = slice(n, n + m)
        cache.append(0, key[..., new, :], value[..., new, :])
        outputs.append(cache.attend(0, query[..., new, :], scale=0.7))
        n += m
    return np.concatenate(outputs, axis=-2)


@pytest.mark.parametrize("impl", IMPLS)
@given(
    seed=st.integers(0, 99),
    heads=st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 3)]),
    n_prompt=st.integers(1, 23),
    n_new=st.integers(1, 7),
    near=st.tuples(st.integers(0, 5), st.integers(1, 7)),
    tables=st.sampled_from([(0, 1), (2, 1), (5, 1), (17, 2), (31, 3)]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_it_is_the_loop_that_counts_hits(impl, seed, heads, n_prompt, n_new, near, tables, dtype):
    (h_kv, groups), (sinks, window), (n_tables, bits) = heads, near, tables
    n = n_prompt + n_new
    arrays = query, key, value = drawn(seed, h_kv, groups, n, dtype)
    directions = np.empty((0, bits, 5))
    if n_tables:
        directions = SimHash.init(seed, 5, n_tables, bits).directions
    cache = HybridCache(sinks, window, n_tables=n_tables, n_projections=bits, seed=seed, impl=impl)
    got = run(cache, arrays, n_prompt, [1] * n_new)
    assert (got.shape, got.dtype) == ((h_kv * groups, n_new, 3), dtype)
    for h in range(h_kv * groups):
        keys, values = (x[h // groups].astype(float) for x in (key, value))
        loop = Loop(keys[:n_prompt].mean(axis=0), directions, sinks, window)
        wanted = [
            loop(query[h, i].astype(float), keys[: i + 1], values[: i + 1], 0.7)
            for i in range(n_prompt, n)
        ]
        assume(loop.margin > 3e-6)  # else a sign is rounding's
        np.testing.assert_allclose(got[h], wanted, rtol=0, atol=WITHIN[dtype])


@pytest.fixture(params=IMPLS)
def impl(request):
    return request.param


def test_batches_and_a_head_without_axes(impl):
    arrays = drawn(0, 2, 3, 40, "float64", lead=(2,))
    options = {"sinks": 2, "window": 5, "n_tables": 20, "n_projections": 2, "impl": impl}
    whole = run(HybridCache(**options), arrays, 30, [1] * 10)
    assert whole.shape == (2, 6, 10, 3)
    for b, h in np.ndindex(2, 6):
        one = arrays[0][b, h], arrays[1][b, h // 3], arrays[2][b, h // 3]
        alone = run(HybridCache(**options), one, 30, [1] * 10)
        np.testing.assert_allclose(whole[b, h], alone, rtol=1e-12)


def test_several_tokens_at_once_read_as_one_after_the_other(impl):
    arrays = drawn(1, 2, 2, 90, "float64")
    options = {"sinks": 2, "window": 5, "n_tables": 20, "n_projections": 2, "impl": impl}
    one = run(HybridCache(**options), arrays, 30, [1] * 60)
    many = run(HybridCache(**options), arrays, 30, [7, 1, 22, 30])
    np.testing.assert_allclose(many, one, rtol=1e-12)


def test_buckets_grow_from_nothing(impl):
    arrays = drawn(2, 1, 1, 500, "float64")
    options = {"sinks": 1, "window": 2, "n_tables": 3, "n_projections": 1}
    grown = run(HybridCache(**options, impl=impl), arrays, 1, [1] * 499)
    wanted = run(HybridCache(**options), arrays, 1, [499])
    np.testing.assert_allclose(grown, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 1, 28, 33, 41, 47, 50])
def test_what_is_cut_off_is_read_no_more(impl, kept):
    arrays = drawn(3, 2, 1, 60, "float64")
    options = {"sinks": 2, "window": 5, "n_tables": 20, "n_projections": 2, "impl": impl}
    cache = HybridCache(**options)
    run(cache, arrays, 30, [1] * 20)
    cache.truncate(kept)
    others = drawn(4, 2, 1, 60, "float64")
    joined = [
        np.concatenate([x[:, :kept], y[:, kept:]], axis=1)
        for x, y in zip(arrays, others, strict=True)
    ]
    if kept == 0:  # all begins anew
        got, fresh = run(cache, others, 30, [1] * 30), HybridCache(**options)
        np.testing.assert_allclose(got, run(fresh, others, 30, [30]), rtol=1e-12)
        return
    fresh = HybridCache(**options)
    fresh.append(0, *(x[:, :30] for x in arrays[1:]))  # the centre stays that of the prompt
    fresh.truncate(min(kept, 30))
    fresh.append(0, *(x[:, min(kept, 30) :] for x in joined[1:]))
    wanted = fresh.attend(0, joined[0][:, kept:], scale=0.7)
    for i in range(kept, 60):
        cache.append(0, *(x[:, i : i + 1] for x in joined[1:]))
        got = cache.attend(0, joined[0][:, i : i + 1], scale=0.7)
        np.testing.assert_allclose(got, wanted[:, i - kept, None], rtol=1e-12)


def test_without_tables_it_is_a_band(impl):
    query, key, value = arrays = drawn(5, 1, 2, 40, "float64")
    got = run(HybridCache(3, 8, n_tables=0, impl=impl), arrays, 20, [1] * 20)
    i, j = np.arange(20, 40)[:, None], np.arange(40)
    band = (j <= i) & ((j < 3) | (j > i - 8))
    wanted = ab.attention(query[:, 20:], key, value, band, scale=0.7)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "positions": "rotary"}])
@pytest.mark.parametrize("encoder", [False, True])
def test_a_model_decodes_as_exactly_where_every_key_is_found(impl, options, encoder):
    weights = model(0, encoder=encoder, **options)
    asked = {"prompt": np.array([[3, 1, 4], [2, 0, 5]]), "max_length": 12}
    asked["source"] = np.array([[1, 2], [3, 4]]) if encoder else None
    wide = HybridCache(0, 1, n_tables=600, n_projections=1, impl=impl)
    got, wanted = greedy_decode(weights, cache=wide, **asked), greedy_decode(weights, **asked)
    np.testing.assert_array_equal(got.tokens, wanted.tokens)
    np.testing.assert_allclose(got.log_probabilities, wanted.log_probabilities, rtol=1e-5)
    assert len(wide) == 3 + 12 - 1
    few = HybridCache(0, 1, n_tables=0, impl=impl)  # and it does matter what is read
    got = greedy_decode(weights, cache=few, **asked)
    assert np.abs(got.log_probabilities - wanted.log_probabilities).max() > 1e-3


def test_speculation_reads_as_the_model_alone(impl):
    weights, draft = model(0, encoder=False), model(1, encoder=False)
    asked = {"prompt": np.array([[3, 1, 4, 1, 5]]), "max_length": 14, "rng": 0}
    wide = HybridCache(0, 1, n_tables=600, n_projections=1, impl=impl)
    got = ab.decoding.speculative_sample(weights, draft, cache=wide, **asked)
    wanted = ab.decoding.speculative_sample(weights, draft, **asked)
    np.testing.assert_array_equal(got.tokens, wanted.tokens)


def test_memory_counts_the_tables(impl):
    arrays = drawn(6, 1, 1, 90, "float32")
    cache, plain = HybridCache(n_tables=8, n_projections=3, impl=impl), ab.decoding.KVCache()
    for each in (cache, plain):
        each.append(0, *arrays[1:])
    assert cache.nbytes >= plain.nbytes + 4 * 8 * (90 - 54)


def filled(**options):
    cache = HybridCache(**options)
    cache.append(0, np.ones((2, 3, 5)), np.ones((2, 3, 7)))
    return cache


ERRORS = r"""
HybridCache(sinks=-1)
    ValueError: sinks must be at least 0, got -1
HybridCache(window=0)
    ValueError: window must be at least 1, got 0
HybridCache(n_tables=1)
    ValueError: n_tables must be 0 or at least 2, since a key needs two hits, got 1
HybridCache(n_projections=17)
    ValueError: n_projections must be at most 16, got 17
HybridCache(n_projections=0)
    ValueError: n_projections must be at least 1, got 0
HybridCache(seed="0")
    TypeError: seed must be a numpy.random.Generator or an int, got str
HybridCache(impl="fast")
    ValueError: impl must be one of reference, numba, got 'fast'
HybridCache().append(0, np.ones((3, 5), "float16"), np.ones((3, 5), "float16"))
    TypeError: keys must be a NumPy array of float32 or float64 for a HybridCache,
    got numpy of float16
HybridCache().append(0, torch.ones(3, 5), torch.ones(3, 5))
    TypeError: keys must be a NumPy array of float32 or float64 for a HybridCache,
    got torch of float32
filled().attend(1, np.ones((2, 1, 5)), scale=1.0)
    ValueError: layer must be below the number of layers, 1, got 1
filled().attend(0, np.ones((3, 1, 5)), scale=1.0)
    ValueError: query must have shape (..., h, m, 5) and dtype float64 to match keys of shape
    (2, 3, 5), got (3, 1, 5) and float64
filled().attend(0, np.ones((2, 4, 5)), scale=1.0)
    ValueError: query must have shape (..., h, m, 5) and dtype float64 to match keys of shape
    (2, 3, 5), got (2, 4, 5) and float64
filled().truncate(4)
    ValueError: n must be from 0 to 3, the tokens of the cache, got 4
filled().reorder(np.zeros((1, 1), int))
    ValueError: cache must be a KVCache to follow beams, got a HybridCache
beam_search(model(0, encoder=False), prompt=np.array([[1]]), max_length=3, n_beams=2,
cache=HybridCache())
    ValueError: cache must be a KVCache to follow beams, got a HybridCache
greedy_decode(model(0, encoder=False, positions=Alibi()), prompt=1, max_length=3,
cache=HybridCache())
    ValueError: cache must be a KVCache for weights whose positions are a bias, got a HybridCache
    and Alibi
filled().impl_for(0, "naive")(np.ones((2, 1, 5)), None, None, np.ones((1, 3)) > 0, None, 1.0, True)
    ValueError: mask and bias must be None for a HybridCache, got an array
"""

NAMES = {"Alibi": Alibi, "beam_search": beam_search, "torch": torch}
test_errors = error_test(ERRORS, globals() | NAMES)
