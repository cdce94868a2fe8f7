"""Pages hold what was appended, are shared by equal beginnings, and change no text."""

import importlib.util

import numpy as np
import pytest
import torch
from decoding_models import cases, model
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab
from attnbook.decoding import (
    KVCache,
    PagedCache,
    beam_search,
    greedy_decode,
    paged_attention,
    sample,
    speculative_sample,
)
from attnbook.positions import Alibi

IMPLS = ("reference", "tiled", *(("packed",) if importlib.util.find_spec("numba") else ()))


def same(library, cache, other, layers=(0, 1)):
    assert len(cache) == len(other)
    for layer in layers:
        for name in ("keys", "values"):
            got, expected = (getattr(x, name)(layer) for x in (cache, other))
            np.testing.assert_array_equal(library.numpy(got), library.numpy(expected))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # who goes on
            st.sampled_from((0, 1, 2, 5, 9)),
            st.sampled_from(("", "", "fork", "truncate", "free", "reorder")),
            st.integers(0, 30),
        ),
        max_size=12,
    ),
    st.sampled_from((1, 3, 4)),
    st.integers(0, 99),
)
def test_caches_that_share_pages_hold_what_each_was_given(library, rounds, size, seed):
    rng, pairs = np.random.default_rng(seed), [(PagedCache(size), KVCache())]
    for who, m, then, n in rounds:
        cache, other = pairs[who % len(pairs)]
        shape = (2, 3, 2, m)
        if other.n_layers:
            shape = (*other.keys(0).shape[:-2], m)
        for layer, d in ((0, 5), (1, 1)):
            new = [library.array(rng.normal(size=(*shape, x))) for x in (d, 7)]
            for got, x in zip(cache.append(layer, *new), other.append(layer, *new), strict=True):
                assert library.same_kind(got, x)
                np.testing.assert_array_equal(library.numpy(got), library.numpy(x))
        if then == "fork" and len(pairs) < 4:
            n = min(n, len(cache))
            copy = KVCache()
            for layer in (0, 1):
                held = [library.numpy(f(layer)) for f in (other.keys, other.values)]
                copy.append(layer, *(library.array(x[..., :n, :]) for x in held))
            pairs.append((cache.fork(n), copy if n else KVCache()))
        elif then == "truncate":
            for x in (cache, other):
                x.truncate(min(n, len(other)))
        elif then == "reorder":
            index = library.array(rng.integers(shape[1], size=(2, 2)))
            for x in (cache, other):
                x.reorder(index)
        elif then == "free":
            cache.free()
            pairs[who % len(pairs)] = (cache, KVCache())
        for x, y in pairs:
            same(library, x, y, range(y.n_layers))
            assert x.block_table.shape[1] == -(-len(x) // size)
        listed = np.concatenate([x.block_table.reshape(-1) for x, _ in pairs])
        pool = pairs[0][0]._pool
        np.testing.assert_array_equal(np.bincount(listed, minlength=len(pool.users)), pool.users)
        assert pool.n_used == len(set(listed.tolist()))


@given(cases(), st.sampled_from(IMPLS), st.sampled_from((1, 3, 16)))
def test_the_text_is_that_of_a_cache_in_one_piece(case, impl, size):
    weights, source = case.weights, case.source
    if impl == "packed":
        weights = weights.to(dtype="float32")
    options = {
        **{"prompt": case.prompt, "prompt_lengths": case.prompt_lengths, "pad": 5},
        **{"source_lengths": case.source_lengths, "max_length": case.max_length},
        **{"stop": case.stop, "impl": impl},
    }
    found = [greedy_decode(weights, source, cache=c, **options) for c in (PagedCache(size), True)]
    np.testing.assert_array_equal(*(x.tokens for x in found))
    np.testing.assert_allclose(*(x.log_probabilities for x in found), rtol=1e-5, atol=1e-5)


def rotary(**options):
    options = {"encoder": False, "n_heads": 4, "n_kv_heads": 2, "positions": "rotary"} | options
    return model(3, d_model=16, **options).to(dtype="float32")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_grouped_heads(library, impl):
    weights, prompt = rotary().to(library), ab.move(np.array([[3, 1, 4], [1, 5, 2]]), library)
    options = {"prompt": prompt, "max_length": 40, "impl": impl}
    found = [greedy_decode(weights, cache=c, **options) for c in (PagedCache(), KVCache())]
    for name in ("tokens", "log_probabilities"):
        one, other = (ab.move(getattr(x, name), "numpy") for x in found)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    drawn = [sample(weights, rng=0, cache=c, **options).tokens for c in (PagedCache(), True)]
    assert np.array_equal(*(ab.move(x, "numpy") for x in drawn))


@pytest.mark.skipif("packed" not in IMPLS, reason="numba is not installed")
@pytest.mark.parametrize("positions", ["rotary", Alibi()])
def test_a_step_reads_the_pages_unless_there_is_a_bias(monkeypatch, positions):
    weights, asked = rotary(positions=positions), {"prompt": np.array([[3, 1, 4]]), "max_length": 5}
    expected = greedy_decode(weights, impl="packed", **asked).tokens
    gathers, gathered = [], PagedCache._gathered
    monkeypatch.setattr(*(PagedCache, "_gathered"), lambda *x: gathers.append(1) or gathered(*x))
    found = greedy_decode(weights, impl="packed", cache=PagedCache(2), **asked).tokens
    np.testing.assert_array_equal(found, expected)
    assert len(gathers) == (0 if positions == "rotary" else 4 * 2)


@pytest.mark.parametrize("impl", IMPLS)
def test_windows_sinks_and_caps(impl):
    from dataclasses import replace

    weights = rotary()
    for change in ({"window": 3}, {"sinks": np.ones(4, np.float32)}, {"cap": 5.0}):
        if "cap" in change and impl != "reference":
            continue
        layers = tuple(
            replace(x, self_attention=replace(x.self_attention, **change))
            for x in weights.decoder.layers
        )
        changed = replace(weights, decoder=replace(weights.decoder, layers=layers))
        options = {"prompt": np.array([[3, 1, 4]]), "max_length": 9, "impl": impl}
        found = [greedy_decode(changed, cache=c, **options).tokens for c in (PagedCache(4), True)]
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("impl", IMPLS)
def test_beams_share_their_beginnings(impl):
    weights = rotary()
    options = {"prompt": np.array([[3, 1, 4, 1, 5, 2, 6, 5]]), "max_length": 12, "impl": impl}
    cache = PagedCache(4)
    found = [beam_search(weights, n_beams=3, cache=c, **options) for c in (cache, True)]
    np.testing.assert_array_equal(*(x.tokens for x in found))
    assert cache.block_table.shape == (3, 5)
    assert cache.n_pages < 3 * 5


def test_speculative_text_is_the_same():
    weights, draft = rotary(), model(4, encoder=False).to(dtype="float32")
    options = {"prompt": np.array([[3, 1, 4]]), "max_length": 20, "rng": 0, "lookahead": 3}
    found = [
        speculative_sample(weights, draft, cache=c, impl=IMPLS[-1], **options)
        for c in (PagedCache(4), True)
    ]
    np.testing.assert_array_equal(*(x.tokens for x in found))


def test_texts_of_several_lengths_share_a_prompt_and_attend_together():
    weights, prompt, ends = rotary(), np.array([[3, 1, 4, 1, 5, 2, 6]]), ([2], [5, 6, 1], [])
    shared, texts = PagedCache(4), []
    greedy_decode(weights, prompt=prompt, max_length=1, cache=shared)
    assert shared.n_pages == 2
    for end in ends:
        cache, alone = shared.fork(), np.array([[*prompt[0], *end, 3]])
        more = np.array([[*end, 3]])
        got = greedy_decode(weights, prompt=more, max_length=4, cache=cache)
        np.testing.assert_array_equal(
            got.tokens, greedy_decode(weights, prompt=alone, max_length=4).tokens
        )
        texts.append(cache)
    lengths = [len(cache) for cache in texts]
    assert lengths == [7 + len(end) + 1 + 3 for end in ends]
    # one page of the prompt is shared by all, and the second one belongs to `shared` alone
    assert shared.n_pages == 2 + sum(-(-n // 4) - 1 for n in lengths)
    table = np.full((3, 4), -1)
    for row, cache in zip(table, texts, strict=True):
        row[: cache.block_table.shape[1]] = cache.block_table[0]
    query = np.random.default_rng(0).normal(size=(3, 4, 1, 4)).astype("f4")
    pages = shared.key_pages(1), shared.value_pages(1)
    output = paged_attention(query, *pages, table, np.array(lengths))
    for row, q, cache in zip(output, query, texts, strict=True):
        keys, values = (np.repeat(x[0], 2, axis=0) for x in (cache.keys(1), cache.values(1)))
        np.testing.assert_allclose(row, ab.attention(q, keys, values), rtol=1e-5, atol=1e-6)
    for cache in texts:
        cache.free()
    assert shared.n_pages == 2


def test_layers_with_a_state_and_latents():
    from attnbook.linear_attention import LinearAttentionWeights

    cache, state = PagedCache(4), (np.ones((2, 3)),)
    cache.keep_state(0, state, 5)
    cache.append(1, np.ones((2, 1, 5, 3)), np.ones((2, 1, 5, 2)))
    copy = cache.fork()
    assert copy.state(0) is state
    assert len(copy) == 5
    with pytest.raises(ValueError, match="n must be 5, since layer 0 keeps a state"):
        cache.fork(3)
    assert cache.n_pages == copy.n_pages == 2 * 2
    assert len(cache.fork(0)) == 0
    assert LinearAttentionWeights  # such a layer keeps one


def filled(size=2, **options):
    cache = PagedCache(size, **options)
    cache.append(0, np.ones((2, 1, 3, 5)), np.ones((2, 1, 3, 7)))
    return cache


def test_a_full_pool_changes_nothing():
    cache = filled(max_pages=5)
    copy = cache.fork()
    with pytest.raises(ValueError, match="max_pages must be at least 6 to hold the new tokens"):
        copy.append(0, np.ones((2, 1, 1, 5)), np.ones((2, 1, 1, 7)))
    assert cache.n_pages == 4
    assert len(copy) == 3
    cache.free()
    copy.append(0, np.ones((2, 1, 1, 5)), np.ones((2, 1, 1, 7)))
    assert cache.n_pages == 4


def test_the_pool_grows_seldom_and_counts_its_bytes():
    cache, sizes = PagedCache(4), set()
    for _ in range(200):
        cache.append(0, np.ones((1, 2, 1, 5)), np.ones((1, 2, 1, 3)))
        sizes.add(cache.nbytes // (4 * 2 * (5 + 3) * 8))
    assert sizes == {1, 2, 4, 8, 16, 32, 64}


def test_a_fork_that_finds_no_room_changes_nothing():
    """Not even where it writes into several shared pages, of which some would still fit."""
    cache = PagedCache(4, max_pages=3)
    keys = np.arange(8.0).reshape(1, 1, 8, 1)
    cache.append(0, keys, keys)
    other = cache.fork()
    users = cache._pool.users.copy()
    with pytest.raises(ValueError, match=r"^max_pages must be at least 4"):
        other.append(1, keys, keys)
    np.testing.assert_array_equal(cache._pool.users, users)
    other.free()
    late = cache.fork(0)
    late.append(0, keys[:, :, :4] + 9, keys[:, :, :4])
    np.testing.assert_array_equal(cache.keys(0), keys)
    assert cache.n_pages == 3


ERRORS = """
PagedCache(0)
    ValueError: size must be at least 1, got 0
PagedCache(2.0)
    TypeError: size must be an int, got float
PagedCache(max_pages=0)
    ValueError: max_pages must be at least 1, got 0
PagedCache().append(0, np.ones((3, 5)), np.ones((3, 5)))
    ValueError: keys must have shape (..., h_kv, m, d_k), got (3, 5)
filled().append(0, np.ones((2, 1, 3, 4)), np.ones((2, 1, 3, 7)))
    ValueError: keys must have shape (2, 1, 3, 5), got (2, 1, 3, 4)
filled().append(1, np.ones((3, 1, 3, 4)), np.ones((3, 1, 3, 7)))
    ValueError: keys must be of sequences (2,), got (3,)
filled().append(1, torch.ones(2, 1, 3, 4, requires_grad=True), torch.ones(2, 1, 3, 7))
    ValueError: keys must need no gradient: decode under torch.no_grad()
filled().fork(0).append(0, np.ones((1, 1, 3, 5), np.float32), np.ones((1, 1, 3, 7), np.float32))
    TypeError: keys must have the dtype of the pages of the pool (float64), got float32
filled().fork(0).append(0, torch.ones((1, 1, 3, 5)).double(), torch.ones((1, 1, 3, 7)).double())
    TypeError: keys must be an array of the same library as the pages of the pool (numpy), got torch
filled().fork(0).append(0, np.ones((1, 1, 3, 5)), np.ones((1, 1, 3, 1)))
    ValueError: values must have 1 heads of width 7, as the pages of the pool, got 1 of width 1
filled().fork(4)
    ValueError: n must be from 0 to 3, the tokens of the cache, got 4
filled().fork(1.0)
    TypeError: n must be an int, got float
filled().truncate(4)
    ValueError: n must be from 0 to 3, the tokens of the cache, got 4
filled().key_pages(1)
    ValueError: layer must be below the number of layers, 1, got 1
filled().reorder(np.zeros((2, 1), int))
    ValueError: index must have shape (2, m), got (2, 1)
greedy_decode(model(0, encoder=False), prompt=1, max_length=2, cache=filled())
    ValueError: cache must hold 2 layers of 1 sequences to go on with this prompt, got 1 of 2
"""
test_what_is_refused = error_test(ERRORS, globals() | {"torch": torch})
