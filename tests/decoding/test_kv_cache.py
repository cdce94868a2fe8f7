"""The cache grows in place, follows the beams, and refuses what does not fit."""

import numpy as np
import pytest
import torch
from cases import NOT_AN_ARRAY
from decoding_models import model
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab
from attnbook.decoding import (
    KVCache,
    beam_search,
    greedy_decode,
    speculative_sample,
    stream,
)
from attnbook.decoding.kv_cache import BLOCK
from attnbook.models import writer
from attnbook.positions import Alibi


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 1, 2, 61, 200)), st.none() | st.integers(0, 200)), max_size=7
    ),
    st.integers(0, 99),
)
def test_it_holds_all_that_was_appended_and_not_cut(library, rounds, seed):
    rng, cache = np.random.default_rng(seed), KVCache()
    whole = [np.empty((2, 3, 0, d)) for d in (5, 7)]
    for m, cut in rounds:
        new = [rng.normal(size=(2, 3, m, d)) for d in (5, 7)]
        pair = [library.array(x) for x in new]
        whole = [np.concatenate(x, axis=2) for x in zip(whole, new, strict=True)]
        n = whole[0].shape[2]
        for layer in (0, 1):
            for got, x, like in zip(cache.append(layer, *pair), whole, pair, strict=True):
                assert library.same_kind(got, like)
                np.testing.assert_array_equal(library.numpy(got), x)
        room = cache.nbytes // (2 * 2 * 3 * (5 + 7) * 8)  # in tokens
        assert room % BLOCK == 0
        assert n <= room
        if cut is not None:
            n = min(n, cut)
            cache.truncate(n)
            whole = [x[:, :, :n] for x in whole]
        assert len(cache) == n
        for layer in (0, 1):
            for got, x in zip((cache.keys(layer), cache.values(layer)), whole, strict=True):
                np.testing.assert_array_equal(library.numpy(got), x)


def test_it_grows_in_place_and_seldom():
    cache, rooms = KVCache(), set()
    for n in range(1, 1001):
        keys, _ = cache.append(0, np.full((1, 2), float(n)), np.ones((1, 3)))
        assert np.shares_memory(keys, cache.keys(0))
        rooms.add(cache.nbytes)
    assert len(rooms) == 5  # 64, 128, 256, 512 and 1024 tokens
    assert keys[:, 0].tolist() == list(range(1, 1001))


def test_reorder_gives_each_beam_what_its_parent_had(library):
    rng, cache = np.random.default_rng(0), KVCache()
    keys, values = rng.normal(size=(2, 3, 5, 1, 7)), rng.normal(size=(2, 3, 5, 1, 2))
    cache.append(0, library.array(keys), library.array(values))
    for index in (np.array([[2, 0, 2, 1], [1, 1, 0, 2]]), np.array([[3], [0]])):
        cache.reorder(library.array(index))
        rows = np.arange(2)[:, None]
        keys, values = keys[rows, index], values[rows, index]
        cache.append(0, library.array(keys[..., :1, :]), library.array(values[..., :1, :]))
        keys, values = (np.concatenate([x, x[..., :1, :]], axis=-2) for x in (keys, values))
        np.testing.assert_array_equal(library.numpy(cache.keys(0)), keys)
        np.testing.assert_array_equal(library.numpy(cache.values(0)), values)


def test_reorder_keeps_room_for_one_more_token_alone():
    cache = KVCache()
    cache.append(0, np.ones((2, 3, 4 * BLOCK, 5)), np.ones((2, 3, 4 * BLOCK, 7)))
    for n, blocks in ((3 * BLOCK - 1, 3), (BLOCK, 2), (BLOCK - 1, 1), (0, 1)):
        cache.truncate(n)
        cache.reorder(np.array([[1, 0], [1, 1]]))
        assert cache.nbytes == 2 * 2 * blocks * BLOCK * (5 + 7) * 8


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_a_cache_of_the_caller_is_filled(library, decode):
    weights, cache = library.place(model(0, encoder=False, n_kv_heads=1)), KVCache()
    more = {"n_beams": 3} if decode is beam_search else {}
    options = {"prompt": library.array(np.array([[3, 1]] * 2)), "max_length": 4} | more
    result = decode(weights, cache=cache, **options)
    np.testing.assert_array_equal(
        library.numpy(result.tokens), library.numpy(decode(weights, **options).tokens)
    )
    assert len(cache) == 2 + 4 - 1  # the last token is not read
    beams = (3,) if more else ()
    assert tuple(cache.keys(1).shape) == tuple(cache.values(0).shape) == (2, *beams, 1, 5, 4)
    if more:
        message = (
            r"^cache must be empty, since beam_search does not go on from one, got one of 5 tokens$"
        )
        with pytest.raises(ValueError, match=message):
            decode(weights, cache=cache, **options)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", Alibi(), "none"])
def test_decoding_goes_on_from_a_filled_cache(library, positions):
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_layers": 2, "n_encoder_layers": 0}
    sizes |= {"n_positions": 12} if positions == "learned" else {}
    weights = library.place(ab.TransformerWeights.init(3, 11, positions=positions, **sizes))
    asked, added = np.array([[3, 1, 4], [1, 5, 9]]), np.array([[2, 6], [5, 3]])
    cache = KVCache()
    first = greedy_decode(weights, prompt=library.array(asked), max_length=3, cache=cache)
    made = library.numpy(first.tokens)
    held = len(cache)
    more = np.concatenate([made[:, -1:], added], axis=1)
    whole = np.concatenate([asked, made, added], axis=1)
    expected = greedy_decode(weights, prompt=library.array(whole), max_length=3, cache=False)
    for _ in range(2):  # again from the same point, as from a shared prompt
        got = greedy_decode(weights, prompt=library.array(more), max_length=3, cache=cache)
        np.testing.assert_array_equal(library.numpy(got.tokens), library.numpy(expected.tokens))
        np.testing.assert_allclose(
            *(library.numpy(x.log_probabilities) for x in (got, expected)), rtol=2e-5, atol=1e-6
        )
        cache.truncate(held)


@pytest.mark.parametrize("impl", ["tiled", "packed"])
def test_a_shared_prompt_is_read_once(impl):
    model, cache = writer(), KVCache()
    ids = [model.tokenizer.stop, *model.tokenizer.encode("ROMEO:\n")]
    list(stream(model.weights, prompt=np.array([ids[:-1]]), max_length=1, cache=cache, impl=impl))
    steps = stream(model.weights, prompt=np.array([ids[-1:]]), max_length=5, cache=cache, impl=impl)
    got = [(int(step.tokens[0]), step.n_read) for step in steps]
    expected = greedy_decode(model.weights, prompt=np.array([ids]), max_length=5)
    assert got == [(token, 1) for token in expected.tokens[0].tolist()]


def used(batch):
    cache = KVCache()
    greedy_decode(
        model(0, encoder=False), prompt=np.ones((batch, 1), int), max_length=2, cache=cache
    )
    return cache


def test_a_subclass_may_watch_it():
    sizes = []

    class Watched(KVCache):
        def append(self, layer, keys, values):
            sizes.append((layer, keys.shape[-2]))
            return super().append(layer, keys, values)

    greedy_decode(model(0), np.ones((1, 5), int), prompt=1, max_length=3, cache=Watched())
    assert sizes == [(0, 1), (1, 1)] * 3


def filled(*leading):
    cache = KVCache()
    cache.append(0, np.ones((*leading, 3, 2)), np.ones((*leading, 3, 5)))
    return cache


ERRORS = rf"""
filled().append(0, np.ones((1, 3)), np.ones((1, 5)))
    ValueError: keys must have shape (1, 2), got (1, 3)
filled().append(0, np.ones((1, 2)), np.ones((2, 5)))
    ValueError: values must have shape (1, 5), got (2, 5)
filled().append(0, np.ones((1, 2), "float32"), np.ones((1, 5)))
    TypeError: keys must have the dtype of cache (float64), got float32
filled().append(2, np.ones((1, 2)), np.ones((1, 5)))
    ValueError: layer must be from 0 to 1, got 2
KVCache().append(0, [1.0], np.ones((1, 5)))
    TypeError: keys {NOT_AN_ARRAY}list
KVCache().append(0, np.ones((1, 2)), np.ones((2, 5)))
    ValueError: values must have shape (1, 5), got (2, 5)
KVCache().append(0, np.ones(3), np.ones(3))
    ValueError: keys must have shape (..., m, d), got (3,)
KVCache().append(0, torch.ones(1, 2, requires_grad=True), torch.ones(1, 5))
    ValueError: keys must need no gradient: decode under torch.no_grad()
filled().append(0, [[1.0]], np.ones((1, 5)))
    TypeError: keys {NOT_AN_ARRAY}list
filled().append("0", np.ones((1, 2)), np.ones((1, 5)))
    TypeError: layer must be an int, got str
filled().append(0, torch.ones(1, 2), np.ones((1, 5)))
    TypeError: keys must be an array of the same library as cache (numpy), got torch
filled().keys(1)
    ValueError: layer must be below the number of layers, 1, got 1
KVCache().values(0)
    ValueError: layer must be below the number of layers, 0, got 0
filled(3, 2).reorder(np.zeros((2, 1), int))
    ValueError: index must have shape (3, m), got (2, 1)
filled().truncate(4)
    ValueError: n must be from 0 to 3, the tokens of the cache, got 4
filled().truncate(-1)
    ValueError: n must be at least 0, got -1
filled().truncate(1.0)
    TypeError: n must be an int, got float
greedy_decode(model(0, encoder=False), prompt=1, max_length=2, cache=used(2))
    ValueError: cache must hold 2 layers of 1 sequences to go on with this prompt, got 2 of 2
greedy_decode(model(0, encoder=False, n_layers=1), prompt=1, max_length=2, cache=used(1))
    ValueError: cache must hold 1 layers of 1 sequences to go on with this prompt, got 2 of 1
speculative_sample(*[model(0, encoder=False)] * 2, rng=0, prompt=1, max_length=2, cache=used(1))
    ValueError: cache must be empty, since speculative_sample does not go on from one,
    got one of 2 tokens
filled().reorder([[0]])
    TypeError: index {NOT_AN_ARRAY}list
"""


USED = {"torch": torch, "speculative_sample": speculative_sample}
test_the_cache_refuses = error_test(ERRORS, globals() | USED)
