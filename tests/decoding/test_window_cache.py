"""The cache that forgets: the same text, in bounded memory."""

from dataclasses import replace

import numpy as np
import pytest
from decoding_models import model
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import decoding
from attnbook.decoding import (
    KVCache,
    WindowCache,
    beam_search,
    greedy_decode,
    speculative_sample,
)
from attnbook.decoding.kv_cache import BLOCK
from attnbook.positions import Alibi, Rotary


def with_windows(windows, *, sinks=False, encoder=False, **options):
    """Return a model whose layer i has the i-th window."""
    weights = model(encoder=encoder, n_layers=len(windows), **options)
    heads = [layer.self_attention for layer in weights.decoder.layers]
    if sinks:
        heads = [replace(own, sinks=np.linspace(-1, 2, own.n_heads)) for own in heads]
    layers = tuple(
        replace(layer, self_attention=replace(own, window=window))
        for layer, own, window in zip(weights.decoder.layers, heads, windows, strict=True)
    )
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", Rotary(base=500.0), Alibi()])
@pytest.mark.parametrize("encoder", [False, True])
def test_text_is_the_same_with_every_cache_and_with_none(positions, sinks, encoder):
    weights = with_windows([3, None, 1], positions=positions, sinks=sinks, encoder=encoder)
    source = np.array([[3, 1, 4], [1, 5, 9]]) if encoder else None
    prompt = np.random.default_rng(0).integers(7, size=(2, 90))
    given = {"prompt": prompt, "max_length": 70}
    caches = [KVCache(), WindowCache(weights)]
    found = [greedy_decode(weights, source, **given, cache=c) for c in (False, *caches)]
    for other in found[1:]:
        np.testing.assert_array_equal(other.tokens, found[0].tokens)
        np.testing.assert_allclose(other.log_probabilities, found[0].log_probabilities, atol=1e-9)
    assert len(caches[0]) == len(caches[1]) >= 90 + 69
    for i, window in enumerate((3, None, 1)):
        kept = caches[1].keys(i).shape[-2]
        assert kept == len(caches[0]) if window is None else window <= kept < window + BLOCK
        n = caches[0].keys(i).shape[-2]
        np.testing.assert_array_equal(
            caches[1].keys(i), caches[0].keys(i)[..., n - kept :, :], err_msg=str(i)
        )
    assert caches[1].nbytes < caches[0].nbytes


@given(
    st.lists(st.sampled_from((0, 1, 2, 61, 200)), max_size=9),
    st.sampled_from((1, 2, 63, 64, 65, 100)),
)
def test_it_keeps_what_new_tokens_see(library, rounds, window):
    weights = with_windows([window, None])
    rng, cache, whole = np.random.default_rng(0), WindowCache(weights), KVCache()
    for m in rounds:
        pair = [library.array(rng.normal(size=(2, m, d))) for d in (5, 7)]
        for layer in (0, 1):
            got, want = cache.append(layer, *pair), whole.append(layer, *pair)
            for x, y in zip(got, want, strict=True):
                n = x.shape[-2]
                assert n >= min(window + m - 1, y.shape[-2])
                np.testing.assert_array_equal(
                    library.numpy(x), library.numpy(y)[:, y.shape[-2] - n :]
                )
        assert len(cache) == len(whole)
        assert cache.keys(0).shape[-2] < window + BLOCK
        room = (cache.nbytes - whole.nbytes // 2) // (2 * (5 + 7) * 8)  # of the local layer
        assert room <= max(window + 2 * BLOCK, 2 * BLOCK)


def test_beams_are_the_same():
    weights = with_windows([2, None], positions="rotary")
    given = {"prompt": 1, "stop": 6, "max_length": 90, "n_beams": 3}
    want = beam_search(weights, None, **given, cache=True)
    got = beam_search(weights, None, **given, cache=WindowCache(weights))
    np.testing.assert_array_equal(got.tokens, want.tokens)


def cut(n):
    cache = WindowCache(with_windows([2]))
    cache.append(0, np.ones((1, 5, 2)), np.ones((1, 5, 2)))
    assert len(cache) == 5
    cache.truncate(n)
    assert len(cache) == 5


def test_to_cut_nothing_is_allowed():
    cut(5)


def decoded(cache, windows=(2,), **options):
    return greedy_decode(
        with_windows(list(windows), **options), None, prompt=1, stop=6, max_length=3, cache=cache
    )


def guessed():
    weights, draft = with_windows([2, None]), model(1, encoder=False)
    return speculative_sample(
        *(weights, draft, None),
        **{"prompt": 1, "max_length": 60, "rng": 0, "cache": WindowCache(weights)},
    )


ERRORS = """
cut(4)
    ValueError: cache must be a KVCache to be truncated to 4 tokens, got a WindowCache of 5
cut(6)
    ValueError: cache must be a KVCache to be truncated to 6 tokens, got a WindowCache of 5
WindowCache(3)
    TypeError: weights must be TransformerWeights, got int
decoded(WindowCache(with_windows([3])))
    ValueError: cache must be made for layers with the windows [2], got [3]
decoded(HybridCache())
    ValueError: cache must be a KVCache for weights with window, got a HybridCache and window in
    layer 0
decoded(HybridCache(), (None,), sinks=True)
    ValueError: cache must be a KVCache for weights with sinks, got a HybridCache and sinks in
    layer 0
"""
test_error = error_test(ERRORS, vars(decoding) | globals())


def test_speculative_decoding_says_what_it_needs():
    with pytest.raises(ValueError, match=r"^cache must be a KVCache to be truncated to "):
        guessed()
