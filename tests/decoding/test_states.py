"""Models with layers that keep a state: with a cache and without, with padding, and in training."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import attnbook
from attnbook import TransformerWeights, nn
from attnbook.data import Batches
from attnbook.decoding import (
    HybridCache,
    KVCache,
    beam_search,
    greedy_decode,
    speculative_sample,
)
from attnbook.linear_attention import LinearAttentionWeights, Mamba2Weights
from attnbook.training import Settings, train

PROMPT = np.array([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]])


def hybrid(kinds="dlsm", seed=0, positions="rotary"):
    """Return a language model: d, l and m keep a state, s attends."""
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "n_layers": len(kinds)}
    weights = TransformerWeights.init(
        *(seed, 31),
        **sizes,
        n_encoder_layers=0,
        positions=positions,
        normalization="rms",
        tied=False,
        bias=False,
    )
    rng, layers = np.random.default_rng(seed), []
    makes = {
        "d": lambda: LinearAttentionWeights.init(rng, 16, 4, n_key_heads=2),
        "l": lambda: LinearAttentionWeights.init(rng, 16, 2, delta=False),
        "m": lambda: Mamba2Weights.init(rng, 16, 4, 3),
        "s": lambda: None,
    }
    for kind, layer in zip(kinds, weights.decoder.layers, strict=True):
        own = makes[kind]()
        layers.append(layer if own is None else replace(layer, self_attention=own))
    return replace(weights, decoder=replace(weights.decoder, layers=tuple(layers)))


@pytest.mark.parametrize("kinds", ["dlsm", "sd", "dm"])
def test_a_cache_changes_nothing(library, kinds):
    weights = library.place(hybrid(kinds))
    prompt = library.array(PROMPT)
    made = [
        library.numpy(greedy_decode(weights, prompt=prompt, max_length=90, cache=cache).tokens)
        for cache in (True, False)
    ]
    np.testing.assert_array_equal(*made)
    assert len(np.unique(made[0])) > 1


@pytest.mark.parametrize("positions", [attnbook.positions.Alibi(), "none", "sinusoidal"])
def test_positions_act_on_the_layers_that_attend(positions):
    weights = hybrid("dssl", positions=positions)
    made = [
        greedy_decode(weights, prompt=PROMPT, max_length=20, cache=cache).tokens
        for cache in (True, False)
    ]
    np.testing.assert_array_equal(*made)


def test_beams_take_their_states_along():
    weights = hybrid()
    made = [
        beam_search(weights, prompt=PROMPT, max_length=20, n_beams=3, cache=cache).tokens
        for cache in (True, False)
    ]
    np.testing.assert_array_equal(*made)


def test_prompts_of_different_lengths_are_those_alone():
    weights = hybrid()
    both = greedy_decode(weights, prompt=PROMPT, prompt_lengths=[5, 3], max_length=12).tokens
    alone = greedy_decode(weights, prompt=PROMPT[1:, :3], max_length=12).tokens
    np.testing.assert_array_equal(both[1], alone[0])


def test_the_state_does_not_grow():
    sizes = []
    for n in (10, 100):
        cache = KVCache()
        greedy_decode(hybrid("dlm"), prompt=PROMPT, max_length=n, cache=cache)
        sizes.append(cache.nbytes)
    assert sizes[0] == sizes[1]
    assert [x.shape[0] for x in cache.state(0)] == [2, 2]


def test_a_state_cannot_be_cut_back():
    cache = KVCache()
    greedy_decode(hybrid("sdl"), prompt=PROMPT, max_length=9, cache=cache)
    n = len(cache)
    cache.truncate(n)
    message = f"^n must be {n}, since layer 1 keeps a state, which cannot forget its last tokens"
    with pytest.raises(ValueError, match=message):
        cache.truncate(n - 1)
    with pytest.raises(ValueError, match="since layer 1 keeps a state"):
        speculative_sample(hybrid("sdl"), hybrid("s", 1), prompt=PROMPT[:1], max_length=20, rng=0)


def test_what_a_layer_of_a_cache_keeps_stays():
    cache, keys = KVCache(), np.ones((1, 2, 3))
    cache.keep_state(0, (keys, keys), 3)
    cache.append(1, keys, keys)
    assert cache.state(1) is None
    with pytest.raises(ValueError, match="layer must keep keys and values, got 0, which keeps"):
        cache.append(0, keys, keys)
    with pytest.raises(ValueError, match="layer must keep keys and values, got 0, which keeps"):
        cache.keys(0)
    with pytest.raises(ValueError, match="layer must keep a state, got 1, which keeps keys"):
        cache.keep_state(1, (keys, keys), 3)
    with pytest.raises(ValueError, match="layer must be from 0 to 2, got 3"):
        cache.keep_state(3, (keys, keys), 3)
    with pytest.raises(ValueError, match=r"^cache must be a KVCache for weights without Multi"):
        greedy_decode(hybrid("d"), prompt=PROMPT, max_length=9, cache=HybridCache())


@pytest.mark.parametrize("kinds", ["dlsm", "ll"])
def test_padding_before_and_after_a_text_changes_nothing(kinds):
    weights, ids = hybrid(kinds, positions="none"), PROMPT[:1]
    exact = attnbook.transformer(None, ids, weights)
    for before, after in ((0, 4), (3, 0)):
        padded = np.pad(ids, ((0, 0), (before, after)))
        shown = np.pad(np.ones((1, 5), bool), ((0, 0), (before, after)))[:, None, None]
        got = attnbook.transformer(None, padded, weights, target_mask=shown)
        np.testing.assert_allclose(got[:, before : before + 5], exact, rtol=0, atol=1e-10)


def test_a_mask_with_rows_of_its_own_for_each_query_is_refused():
    mask = attnbook.masking.causal(5)
    message = r"^mask must have one row for all queries and heads, \(\.\.\., 1, 1, n\), where a "
    with pytest.raises(ValueError, match=message):
        attnbook.transformer(None, PROMPT, hybrid(), target_mask=mask)


def test_a_layer_with_a_state_is_causal_without_a_mask():
    layer = hybrid("d").decoder.layers[0]
    x = np.random.default_rng(0).standard_normal((5, 16))
    whole = attnbook.decoder_layer(x, None, layer)
    np.testing.assert_allclose(
        attnbook.decoder_layer(x[:3], None, layer), whole[:3], rtol=0, atol=1e-12
    )


def test_an_encoder_has_no_such_layer():
    own = LinearAttentionWeights.init(0, 8, 2)
    encoder = attnbook.EncoderWeights.init(0, 1, 8, n_heads=2, d_ff=8)
    with pytest.raises(TypeError, match=r"^self_attention must be .* got LinearAttentionWeights"):
        replace(encoder.layers[0], self_attention=own)


def test_the_module_trains_and_has_the_names_of_the_weights():
    weights = hybrid().to("torch", dtype="float32")
    model = nn.Transformer(weights, impl="packed")
    assert set(model.state_dict()) == set(weights.arrays())
    ids = np.random.default_rng(0).integers(3, 31, (8, 30))
    batches = Batches(None, [*ids, ids[0, :9]], 9, start=None, stop=None)  # one has padding
    history = train(model, batches, Settings(20, lr=1e-2))
    assert history.losses[-1] < 0.9 * history.losses[0]
    got = model(None, torch.tensor(PROMPT)).detach()
    exact = attnbook.transformer(None, torch.tensor(PROMPT), model.weights).detach()
    torch.testing.assert_close(got, exact, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="self_attention must be MultiHeadAttention to fit"):
        model.decoder.layers[0].torch_state_dict()
