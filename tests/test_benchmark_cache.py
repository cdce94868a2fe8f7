"""The rivals over a long cache: with a full budget each is exact attention, and each its oracle."""

import math

import numpy as np
import pytest
import torch
from cases import with_cloud
from hypothesis import given
from hypothesis import strategies as st

from attnbook.hashing.simhash import SimHash
from attnbook.sketch import Moments, SketchAttention
from benchmarks import cache, cache_rivals, cache_sketch
from benchmarks.cache_past import Past, Prompt, answer, best, near, of_text, share

D, D_V, FIRST, M = 5, 3, 37, 11
N = FIRST + M
FULL = {
    "window": {"sinks": 0, "window": N},
    "SnapKV": {"sinks": 0, "window": M, "keys": N, "pool": 1},
    "H2O": {"sinks": 0, "window": 3, "keys": N},
    "Quest": {"sinks": 0, "window": 1, "page": 7, "pages": N},
    "graph": {"sinks": 0, "window": 1, "links": 16, "keys": N, "effort": 4 * N},
    "IVF": {"sinks": 0, "window": 1, "lists": 3, "probes": 3},
    "MagicPIG": {"sinks": 0, "window": 1, "tables": 400, "bits": 1},
    "sketch": {"sinks": 0, "window": 1, "tables": 200, "bits": 1, "estimator": "union"},
    "cells": {"sinks": 0, "window": 1, "lists": 3, "probes": 3},
    "best keys": {"keys": N},
}


def past(draw=0, **how):
    rng = np.random.default_rng(draw)
    query, key = rng.standard_normal((2, N, D), dtype=np.float32)
    value = rng.standard_normal((N, D_V), dtype=np.float32)
    prompt = Prompt(query[:FIRST], key[:FIRST] + 1, value[:FIRST])
    return Past(prompt, query[FIRST:], key[FIRST:] + 1, value[FIRST:], **how)


def exact(p):
    """Return what PyTorch says."""
    arrays = (torch.tensor(x)[None] for x in (p.query, p.key, p.value))
    mask = torch.tensor(np.arange(N) <= np.arange(FIRST, N)[:, None])
    return torch.nn.functional.scaled_dot_product_attention(*arrays, mask)[0].numpy()


def test_every_method_has_a_full_budget_here():
    assert set(FULL) == set(cache.SOUGHT) == set(cache.SIMPLIFIED)


@pytest.mark.parametrize("name", FULL)
def test_a_full_budget_is_exact_attention(name):
    pytest.importorskip("faiss")
    p = past()
    read = cache.SOUGHT[name].run(p, **FULL[name])
    np.testing.assert_allclose(answer(p, read), exact(p), atol=2e-5)
    whole, beside = share(p, read)
    assert whole - beside > 1 - 1e-9


@pytest.mark.parametrize("name", FULL)
def test_a_future_key_changes_nothing(name):
    """What stands behind query i has no say in its answer, neither as a key nor in a mean."""
    pytest.importorskip("faiss")
    small = {"window": 2, "keys": 4, "pages": 1, "probes": 1, "effort": 16, "bits": 3, "tables": 8}
    settings = {k: small.get(k, v) for k, v in FULL[name].items()}
    if name == "sketch":
        settings["estimator"] = "cloud"
    p, other = past(), past()
    other.key[FIRST + 6 :] += 3
    other.value[FIRST + 6 :] -= 5
    run = cache.SOUGHT[name].run
    np.testing.assert_allclose(
        answer(p, run(p, **settings))[:6], answer(other, run(other, **settings))[:6], atol=1e-5
    )


def test_the_share_counts_keys_values_and_what_else_is_read():
    p = past()
    read = cache_rivals.recent(p, sinks=2, window=3)
    expected = np.mean([5 / (i + 1) for i in range(FIRST, N)])
    assert share(p, read) == pytest.approx((expected, 0))
    more = np.mean([2 / (i + 1) for i in range(FIRST, N)])
    with_more = share(p, read._replace(numbers=2 * p.width))
    assert with_more == pytest.approx((expected + more, more))


BESIDE = {  # of a query that sees n keys
    "window": lambda n: 0,
    "SnapKV": lambda n: 0,
    "H2O": lambda n: 0,
    "Quest": lambda n: D * (n // 7),
    "IVF": lambda n: 3 * D,
    "MagicPIG": lambda n: 400 * D + D + 400,  # and the entries of the buckets
    "sketch": lambda n: 200 * D + 200,
    "cells": lambda n: 3 * (D + D_V + 2) + D * (D + D_V) + 3 * D,
    "best keys": lambda n: 0,
}


@pytest.mark.parametrize("name", BESIDE)
def test_hashes_centres_bounds_and_clouds_count(name):
    """In numbers that a query meets: a direction and a centre have as many as a key."""
    p = past()
    read = cache.SOUGHT[name].run(p, **FULL[name])
    entries = np.zeros(M)
    if name in ("MagicPIG", "sketch"):
        hash = SimHash.init(0, D, FULL[name]["tables"], 1)
        own, stored = hash.signatures(p.query), hash.signatures(p.key - p.prompt.middle)
        for i in range(M):  # its own key is in the window
            entries[i] = (own[i] == stored[: FIRST + i]).sum()
    expected = [BESIDE[name](FIRST + i + 1) + entries[i] for i in range(M)]
    np.testing.assert_allclose(np.broadcast_to(read.numbers, M), expected)


def test_a_graph_counts_the_keys_that_it_visits():
    faiss = pytest.importorskip("faiss")
    p, how = past(), {"sinks": 0, "window": 1, "links": 4, "keys": 3, "effort": 3}
    read = cache_rivals.graph(p, **how)
    index = faiss.IndexHNSWFlat(D, 4, faiss.METRIC_INNER_PRODUCT)
    index.add(p.prompt.key)
    for i in range(M):
        index.add(p.key[FIRST + i : FIRST + i + 1])
        index.hnsw.efSearch = 3
        faiss.cvar.hnsw_stats.reset()
        index.search(p.query[i : i + 1], 3)
        assert read.numbers[i] == max(faiss.cvar.hnsw_stats.ndis - 3, 0) * D
    assert read.numbers.max() > 0


def test_near_and_best():
    p = past()
    for i, row in enumerate(near(p, 2, 3)):
        assert np.flatnonzero(row).tolist() == [0, 1, *range(FIRST + i - 2, FIRST + i + 1)]
    values = np.array([[3.0, -np.inf, 5, 4], [1, -np.inf, -np.inf, -np.inf]])
    assert best(values, 2).tolist() == [[False, False, True, True], [True, False, False, False]]
    assert not best(values, 0).any()


def test_snapkv_keeps_what_the_last_queries_looked_at():
    p = past()
    votes = np.zeros(FIRST)
    for i in range(FIRST - 32, FIRST):
        s = [p.prompt.query[i] @ p.prompt.key[j] / np.sqrt(D) for j in range(i + 1)]
        votes[: i + 1] += np.exp(s) / np.exp(s).sum()
    np.testing.assert_allclose(p.prompt.votes, votes, rtol=1e-4)
    pooled = [max(votes[max(j - 2, 0) : j + 3]) for j in range(FIRST)]
    pooled[:1] = [-1]
    read = cache_rivals.snapkv(p, sinks=1, window=3, keys=4, pool=5)
    for i, row in enumerate(read.scored):
        always = {0, *range(FIRST + i - 2, FIRST + i + 1)}
        assert always <= set(np.flatnonzero(row))
    kept = set(np.flatnonzero(row)) - always  # neighbours tie by pooling: any of them will do
    assert len(kept) == 4
    assert min(pooled[j] for j in kept) >= max(pooled[j] for j in set(range(FIRST)) - kept)


def test_h2o_drops_who_received_least():
    p = past()
    total = np.zeros(N)
    for i in range(FIRST):
        s = np.exp([p.prompt.query[i] @ p.prompt.key[j] / np.sqrt(D) for j in range(i + 1)])
        total[: i + 1] += s / s.sum()
    np.testing.assert_allclose(p.prompt.received, total[:FIRST], rtol=1e-4)
    read = cache_rivals.h2o(p, sinks=1, window=3, keys=4)
    heavy = set(sorted(range(1, FIRST - 3), key=lambda j: total[j])[-4:])
    for i in range(M):
        heavy.add(FIRST + i - 3)
        if len(heavy) > 4:
            heavy.remove(min(heavy, key=lambda j: total[j]))
        seen = sorted(heavy | {0} | set(range(FIRST + i - 2, FIRST + i + 1)))
        assert np.flatnonzero(read.scored[i]).tolist() == seen
        s = np.exp(p.query[i] @ p.key[seen].T / np.sqrt(D))
        total[seen] += s / s.sum()


def test_the_bound_of_a_page_is_never_below_a_score():
    """So a page that holds the best key is chosen when its rivals' bounds are below its score."""
    p = past()
    read = cache_rivals.quest(p, sinks=0, window=1, page=7, pages=2)
    for i, row in enumerate(read.scored):
        closed = (FIRST + i + 1) // 7
        bounds = [
            max(
                sum(max(a * b for b in box) for a, box in zip(p.query[i], page.T, strict=True)),
                -9e9,
            )
            for page in p.key[: closed * 7].reshape(closed, 7, D)
        ]
        chosen = np.argsort(bounds)[-2:]
        rows = {7 * c + j for c in chosen for j in range(7)} | set(range(7 * closed, FIRST + i + 1))
        assert set(np.flatnonzero(row)) == rows
    assert read.numbers.tolist() == [D * ((FIRST + i + 1) // 7) for i in range(M)]


def test_magicpig_divides_by_the_chance_of_two_tables():
    p = past()
    read = cache_rivals.magicpig(p, sinks=1, window=2, tables=6, bits=2)
    hash = SimHash.init(0, D, 6, 2)
    key = p.key - p.prompt.key.mean(axis=0)
    for i in range(M):
        own = hash.signatures(p.query[i : i + 1])[0]
        for j in range(FIRST + i + 1):
            met = int((own == hash.signatures(key[j : j + 1])[0]).sum())
            always = j < 1 or j > FIRST + i - 2
            assert read.scored[i, j] == (always or met >= 2)
            c = p.query[i] @ key[j] / np.linalg.norm(p.query[i]) / np.linalg.norm(key[j])
            u = (1 - np.arccos(c) / np.pi) ** 2
            chance = sum(math.comb(6, t) * u**t * (1 - u) ** (6 - t) for t in range(2, 7))
            bias = 0 if always else -np.log(chance)
            if read.scored[i, j]:
                assert read.bias[i, j] == pytest.approx(bias, abs=1e-3)


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(1, 9))
def test_clouds_are_the_moments_of_what_has_left_the_window(seed, sinks, window):
    p = past(seed)
    rng = np.random.default_rng(seed)
    for n_cells in (1, 3):
        cell = rng.integers(0, n_cells, N)
        for i, (moments, q) in enumerate(cache_sketch.clouds(p, cell, n_cells, sinks, window)):
            rows = slice(sinks, FIRST + i + 1 - window)
            pair = p.key[rows].astype(np.float64), p.value[rows].astype(np.float64)
            expected = Moments.fit(*pair, n_cells, cell[rows]).arrays()
            for name, x in moments.arrays().items():
                np.testing.assert_allclose(x, expected[name], atol=1e-9)
            np.testing.assert_array_equal(q, p.query[i : i + 1])


@pytest.mark.parametrize("how", ["union", "importance", "cloud"])
def test_the_sketch_is_what_sketch_attention_says(how):
    p = past(3, seed=5)
    read = cache_sketch.tables(p, sinks=0, window=1, tables=6, bits=2, estimator=how)
    hash, middle = SimHash.init(5, D, 6, 2), p.prompt.middle
    for i in range(M):
        # the query's own key is scored apart, and the others are the sketch's
        rows = slice(0, FIRST + i)
        q, key = p.query[i : i + 1].astype(np.float64), (p.key[rows] - middle).astype(np.float64)
        value = p.value[rows].astype(np.float64)
        if how == "cloud":
            met = (hash.signatures(q) == hash.signatures(key)).any(axis=-1)
            output, n_scored = with_cloud(q, key, value, met[None], 1 / math.sqrt(D))
        else:
            sketch = SketchAttention(hash, estimator=how)
            sketch.update(key, value)
            output, evidence = sketch.attention_output(q, return_evidence=True)
            n_scored = evidence.candidates
        alone = read._replace(scored=read.scored & (np.arange(N) != FIRST + i))
        np.testing.assert_allclose(answer(p, alone)[i], output[0], atol=1e-4)
        assert alone.scored[i].sum() == n_scored[0]


def test_cells_read_the_cells_whose_centres_point_along_the_query():
    p = past(4, seed=2)
    read = cache_rivals.inverted_file(p, sinks=0, window=1, lists=4, probes=1)
    centre = p.prompt.centres(4, 2).astype(np.float64)
    cell = np.linalg.norm(p.key[:, None] - centre, axis=-1).argmin(axis=1)
    for i in range(M):
        chosen = (centre @ p.query[i]).argmax()
        rows = {j for j in range(FIRST + i + 1) if cell[j] == chosen} | {FIRST + i}
        assert set(np.flatnonzero(read.scored[i])) == rows


@pytest.fixture(scope="module")
def text():
    from benchmarks import real_keys

    return of_text(real_keys.layers(60), 9)


def test_a_text_is_what_its_layers_attend_with(text):
    from benchmarks import real_keys

    layers = real_keys.layers(60)
    assert [len(layer) for layer in text] == [6] * 6
    for layer, heads in zip(text, layers, strict=True):
        for i, p in enumerate(layer):
            kv = i * len(heads.key) // 6
            arrays = (
                torch.tensor(x)[None] for x in (heads.query[i], heads.key[kv], heads.value[kv])
            )
            whole = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True)
            np.testing.assert_allclose(p.exact, whole[0, 51:].numpy(), atol=1e-4)
            assert (p.first, p.m) == (51, 9)


def test_tuning_takes_the_least_error_within_the_budget(text):
    method = cache.SOUGHT["SnapKV"]
    (row,) = cache.tune("SnapKV", method, text, 60, budgets=(0.3,))
    error, within = {}, 0
    for settings in method.grid(int(0.3 * 51), 60):
        each, most = [], []
        for p in (p for layer in text[1::2] for p in layer):
            read = method.run(p, **settings)
            each.append(np.linalg.norm(answer(p, read) - p.exact) / np.linalg.norm(p.exact))
            most.append(share(p, read)[0])
        if np.mean(most) <= 1.02 * 0.3:
            error[tuple(settings.values())] = np.mean(each)
            within += 1
    assert row["validation_error"] == pytest.approx(min(error.values()))
    assert error[tuple(row["settings"].values())] == min(error.values())
    assert (row["tried"], row["within"]) == (48, within)
    (nothing,) = cache.tune("Quest", cache.SOUGHT["Quest"], text, 60, budgets=(0.02,))
    assert nothing["settings"] is None


def test_no_rival_has_fewer_settings_than_a_method_of_ours():
    """At a budget that fits all of them; a window and the best keys have nothing to choose."""
    sizes = {
        name: len(list(method.grid(int(0.4 * 4032), 4096))) for name, method in cache.SOUGHT.items()
    }
    most = max(sizes[name] for name in ("MagicPIG", "sketch", "cells"))
    assert {name for name, size in sizes.items() if size < most} == {
        *("window", "best keys", "sketch", "cells")
    }
