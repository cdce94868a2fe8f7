"""A decoder as today's language models have it: RMSNorm, rotary, SwiGLU, grouped heads, tied."""

import numpy as np
import oracle
import pytest
import torch
from cases import held, shaken
from error_table import error_test

import attnbook
from attnbook import TransformerWeights, nn, transformer
from attnbook.training import load_weights, save_weights

SIZES = {"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 17, "n_layers": 2}


def drawn(seed=0, **options):
    kinds = {"normalization": "rms", "gated": True, "activation": "silu", "positions": "rotary"}
    options = SIZES | kinds | {"bias": False, "n_encoder_layers": 0} | options
    weights = TransformerWeights.init(seed, 11, **options, scale_embeddings=False)
    return shaken(weights, seed)


def ids(library, *shape, seed=0):
    return library.array(np.random.default_rng(seed).integers(11, size=shape))


def test_init_draws_what_it_was_told():
    weights = drawn(n_encoder_layers=1)
    layers = (*weights.encoder.layers, *weights.decoder.layers)
    assert {type(layer.feed_forward) for layer in layers} == {attnbook.GatedFeedForwardWeights}
    slots = [vars(part) for part in (weights.encoder, weights.decoder, *layers)]
    norms = [norm for slot in slots for name, norm in slot.items() if name.endswith("_norm")]
    assert {type(norm) for norm in norms if norm} == {attnbook.RMSNormWeights}
    assert not any("b_" in name or "bias" in name for name in weights.arrays())
    plain = TransformerWeights.init(0, 11, **SIZES)
    assert type(plain.decoder.layers[0].feed_forward) is attnbook.FeedForwardWeights
    assert type(plain.encoder.final_norm) is attnbook.LayerNormWeights


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("bias", "layers"), [(False, 0), (True, 2)])
def test_agrees_with_the_loop(library, dtype, bias, layers):
    weights = drawn(bias=bias, n_encoder_layers=layers)
    source, target = ids(library, 2, 5) if layers else None, ids(library, 2, 7, seed=1)
    got = transformer(source, target, library.place(weights, dtype))
    source = library.numpy(source) if layers else None
    exact = oracle.transformer(source, library.numpy(target), held(library, weights, dtype))
    exact = exact[0] if isinstance(exact, tuple) else exact
    tolerance = {"float32": 1e-4, "float64": 1e-11}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, rtol=tolerance, atol=tolerance)


def test_module_has_the_same_logits_and_gradients_for_every_parameter():
    weights = drawn().to("torch")
    model = nn.Transformer(weights)
    assert set(model.state_dict()) == set(weights.arrays())
    target = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(model(None, target), transformer(None, target, weights))
    model(None, target).square().sum().backward()
    assert all(bool(p.grad.any()) for p in model.parameters())
    again = nn.Transformer(drawn(1))
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(None, target), model(None, target))


def test_files_give_back_the_same_model(tmp_path):
    weights = drawn()
    save_weights(tmp_path / "model.safetensors", weights)
    found = load_weights(tmp_path / "model.safetensors")
    assert type(found.decoder.layers[1].feed_forward) is attnbook.GatedFeedForwardWeights
    assert type(found.decoder.final_norm) is attnbook.RMSNormWeights
    target = np.array([[3, 1, 4, 1, 5]])
    np.testing.assert_array_equal(
        transformer(None, target, found), transformer(None, target, weights)
    )


ERRORS = """
attnbook.EncoderWeights.init(0, 1, 4, 2, 8, normalization="batch")
    ValueError: normalization must be one of layer, rms, got 'batch'
attnbook.EncoderWeights((), np.ones(3))
    TypeError: final_norm must be LayerNormWeights or RMSNormWeights, got ndarray
EncoderWeights.init(0, 1, 4, 2, 8, gated=1)
    TypeError: gated must be a bool, got int
drawn(activation="swish")
    ValueError: activation must be one of relu, gelu, gelu_tanh, silu, got 'swish'
nn.Transformer(drawn()).decoder.to_torch()
    ValueError: feed_forward must be FeedForward to fit torch.nn.TransformerDecoderLayer,
    got GatedFeedForward
nn.EncoderLayer(EncoderWeights.init(0, 1, 4, 2, 8, normalization="rms").layers[0]).to_torch()
    ValueError: self_attention_norm must be LayerNorm to fit torch.nn.TransformerEncoderLayer,
    got RMSNorm
"""

test_error = error_test(ERRORS, vars(attnbook) | globals())
