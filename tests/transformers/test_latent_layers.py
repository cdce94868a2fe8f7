"""Latent attention and mixtures of experts in the layers of a whole model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import recorded
from error_table import assert_raises

import attnbook
from attnbook import (
    DecoderLayerWeights,
    EncoderLayerWeights,
    LatentWeights,
    MixtureWeights,
    TransformerWeights,
    latent_attention,
    masking,
    mixture_of_experts,
    nn,
    rms_norm,
    rotary_layout,
    training,
)
from attnbook.decoding import (
    HybridCache,
    KVCache,
    beam_search,
    greedy_decode,
    speculative_sample,
)
from attnbook.positions import Alibi, Rotary

SIZES = {"d_model": 12, "n_heads": 3, "d_ff": 7}
INTERLEAVED = Rotary(interleaved=True, base=50.0)
PROMPT = np.array([[1, 2, 3], [4, 5, 6]])


def model(seed=0, positions=INTERLEAVED, q_rank=5, d_rope=4):
    """Return a language model of random numbers with latent attention and experts."""
    rng = np.random.default_rng(seed)
    options = {"normalization": "rms", "bias": False, "positions": positions}
    plain = TransformerWeights.init(rng, 11, **SIZES, n_layers=2, n_encoder_layers=0, **options)
    ranks = {"rank": 6, "q_rank": q_rank, "d_nope": 5, "d_rope": d_rope, "d_v": 2}
    layers = tuple(
        replace(
            layer,
            self_attention=LatentWeights.init(rng, 12, 3, **ranks),
            feed_forward=MixtureWeights.init(rng, 12, 7, n_experts=5, top_k=2, shared=3),
        )
        for layer in plain.decoder.layers
    )
    weights = replace(plain, decoder=replace(plain.decoder, layers=layers))
    return weights.with_arrays(
        {name: x + rng.normal(0, 0.4, x.shape) for name, x in weights.arrays().items()}
    )


def test_a_layer_is_made_of_both():
    layer, x = model().decoder.layers[0], np.random.default_rng(1).normal(size=(2, 5, 12))
    got = attnbook.decoder_layer(x, None, layer, masking.causal(5))

    def normed(y, norm):
        return rms_norm(y, norm.gain, epsilon=norm.epsilon)

    y = x + latent_attention(
        normed(x, layer.self_attention_norm), layer.self_attention, is_causal=True
    )
    y = y + mixture_of_experts(normed(y, layer.feed_forward_norm), layer.feed_forward)
    np.testing.assert_allclose(got, y, atol=1e-12)
    parts = {n: getattr(layer, n) for n in EncoderLayerWeights.field_names}
    both = attnbook.encoder_layer(x, EncoderLayerWeights(**parts), masking.causal(5))
    np.testing.assert_array_equal(both, got)


@pytest.mark.parametrize(
    "positions", [Rotary(), Rotary(interleaved=True, width=2), Alibi(), "none"]
)
def test_positions_reach_the_queries_and_the_shared_key(positions):
    weights = model(positions=positions)
    [shares, _] = recorded(attnbook.transformer, None, PROMPT[0], weights)[1]
    assert shares.shape == (3, 3, 3)
    plain, swapped = (
        attnbook.transformer(None, PROMPT[0][order], weights, is_causal=False)[-1]
        for order in ([0, 1, 2], [1, 0, 2])
    )
    assert np.allclose(plain, swapped) == (positions == "none")


@pytest.mark.parametrize("impl", ["reference", "naive", "in_place", "tiled"])
@pytest.mark.parametrize("d_rope", [0, 4])
def test_decoding_from_latents_is_decoding_without_a_cache(impl, d_rope):
    weights = model(d_rope=d_rope)
    cache, options = KVCache(), {"prompt": PROMPT, "max_length": 13, "stop": 10, "impl": impl}
    with_cache = greedy_decode(weights, None, **options, cache=cache)
    without = greedy_decode(weights, None, **options, cache=False)
    np.testing.assert_array_equal(with_cache.tokens, without.tokens)
    np.testing.assert_allclose(with_cache.scores, without.scores, atol=1e-10)
    n = len(cache)
    assert (cache.keys(0).shape, cache.values(1).shape) == ((2, 1, n, d_rope), (2, 1, n, 6))
    assert with_cache.tokens[0].tolist() != with_cache.tokens[1].tolist()


def test_beams_and_rejected_tokens_follow_the_latents():
    weights = model()
    options = {"prompt": PROMPT, "max_length": 9, "stop": 10}
    found, again = (
        beam_search(weights, None, **options, n_beams=3, cache=cache) for cache in (True, False)
    )
    np.testing.assert_array_equal(found.tokens, again.tokens)
    options |= {"rng": 0, "lookahead": 3, "temperature": 0.5}
    found, again = (
        speculative_sample(weights, model(1), None, **options, cache=cache)
        for cache in (True, False)
    )
    np.testing.assert_array_equal(found.tokens, again.tokens)


def test_decoding_in_every_library(library):
    weights = model()
    want = greedy_decode(weights, None, prompt=PROMPT, max_length=9, stop=10)
    placed, prompt = library.place(weights), library.array(PROMPT)
    if library.name == "array_api_strict":
        logits = attnbook.transformer(None, prompt, placed)
        exact = attnbook.transformer(None, PROMPT, weights)
        np.testing.assert_allclose(library.numpy(logits), exact, atol=1e-10)
        return
    got = greedy_decode(placed, None, prompt=prompt, max_length=9, stop=10)
    np.testing.assert_array_equal(library.numpy(got.tokens), want.tokens)


@pytest.mark.parametrize("width", [None, 2])
def test_the_other_layout_is_the_same_model(width):
    weights = model(positions=Rotary(interleaved=True, width=width))
    other = rotary_layout(weights, interleaved=False)
    assert not other.decoder.positions.interleaved
    got, want = (attnbook.transformer(None, PROMPT, w) for w in (other, weights))
    np.testing.assert_allclose(got, want, atol=1e-12)
    again = rotary_layout(other, interleaved=True)
    for name, x in again.arrays().items():
        np.testing.assert_array_equal(x, weights.arrays()[name])


# The modules.


def test_a_module_trains_both():
    torch.manual_seed(0)
    module = nn.Transformer(model().to(dtype="float32"))
    layer = module.decoder.layers[0]
    assert isinstance(layer.self_attention, nn.LatentAttention)
    assert isinstance(layer.feed_forward, nn.MixtureOfExperts)
    assert isinstance(layer.feed_forward.router, nn.Router)
    assert isinstance(layer.self_attention.kv_norm, nn.RMSNorm)
    assert set(module.state_dict()) == set(module.weights.arrays())
    ids = torch.tensor(PROMPT)
    torch.testing.assert_close(
        module(None, ids), attnbook.transformer(None, ids, module.weights), rtol=0, atol=0
    )
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-2), []
    for _ in range(30):
        loss = attnbook.cross_entropy(module(None, ids[:, :-1]), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_the_modules_call_the_functions():
    layer = model().to("torch").decoder.layers[0]
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    attention = nn.LatentAttention(layer.self_attention, impl="tiled")
    options = {"rotary": Rotary(), "is_causal": True}
    torch.testing.assert_close(
        attention(x, **options), latent_attention(x, layer.self_attention, **options)
    )
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(
        attention(x, mask), latent_attention(x, layer.self_attention, is_causal=True)
    )
    experts = nn.MixtureOfExperts(layer.feed_forward)
    torch.testing.assert_close(experts(x), mixture_of_experts(x, layer.feed_forward))
    for got, want in zip(
        experts.router(x), attnbook.route(x, layer.feed_forward.router), strict=True
    ):
        torch.testing.assert_close(got, want)
    assert "top_k=2" in repr(experts)
    assert "W_DKV=(12, 6)" in repr(attention)


# What does not fit.


def test_what_does_not_fit_says_so():
    weights = model()
    layer = weights.decoder.layers[0]
    narrow = MixtureWeights.init(0, 8, 7, n_experts=5, top_k=2)
    names = {
        **{"replace": replace, "layer": layer, "narrow": narrow, "weights": weights},
        **{"greedy_decode": greedy_decode, "HybridCache": HybridCache, "prompt": PROMPT},
        **{"gradients": training.gradients, "other": LatentWeights.init(0, 8, 2, rank=3)},
        **{"decoder": attnbook.DecoderWeights, "Rotary": Rotary},
        "mixed": replace(
            weights,
            decoder=replace(
                weights.decoder,
                layers=(
                    replace(
                        DecoderLayerWeights.init(0, **SIZES, cross=False),
                        feed_forward=layer.feed_forward,
                    ),
                ),
            ),
        ),
    }
    table = {
        "replace(layer, feed_forward=narrow)": (
            ValueError,
            "feed_forward.W_gate must have length 12 on axis 1, the width of the tokens that it is "
            "added to, got shape (5, 8, 7)",
        ),
        "replace(layer, self_attention=other)": (
            ValueError,
            "feed_forward.W_gate must have length 8 on axis 1, the width of the tokens that it is "
            "added to, got shape (5, 12, 7)",
        ),
        "decoder((layer,), positions=Rotary(width=6))": (
            ValueError,
            "d_k must be at least the width 6 to rotate, got 4",
        ),
        "greedy_decode(weights, None, prompt=prompt, max_length=9, stop=10, cache=HybridCache())": (
            ValueError,
            "cache must be a KVCache for weights without MultiHeadWeights, got a HybridCache and "
            "LatentWeights in layer 0",
        ),
        "gradients(weights, prompt, prompt)": (
            TypeError,
            "layers[0].self_attention must be of a class with a backward pass by hand, got "
            "LatentWeights; attnbook.training.train uses PyTorch's autograd",
        ),
        "gradients(mixed, prompt, prompt)": (
            TypeError,
            "layers[0].feed_forward must be of a class with a backward pass by hand, got "
            "MixtureWeights; attnbook.training.train uses PyTorch's autograd",
        ),
    }
    for call, (kind, message) in table.items():
        assert_raises(call, kind, message, names)
