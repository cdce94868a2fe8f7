"""What only some models have in their layers: positions and norms of their own, capped logits."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import HALF, close, held, leaves_of, need, shaken, with_head_options
from error_table import error_test

import attnbook
from attnbook import (
    DecoderLayerWeights,
    LayerNormWeights,
    MultiHeadWeights,
    RMSNormWeights,
    TransformerWeights,
    decoder_layer,
    masking,
    nn,
    rotary_layout,
    transformer,
)
from attnbook.decoding import WindowCache, greedy_decode
from attnbook.positions import Rotary, rotation

LOCAL, GLOBAL = Rotary(base=100.0), Rotary(base=1e6)


def with_options(layer, rotary=None, **heads):
    """Return the layer with norms of what is added, a rotary, and all options of its heads."""
    d_model = layer.d_model
    return replace(
        layer,
        self_attention=with_head_options(layer.self_attention, 3, **heads),
        rotary=rotary,
        self_attention_post_norm=RMSNormWeights(np.ones(d_model)),
        feed_forward_post_norm=LayerNormWeights(np.ones(d_model), np.ones(d_model)),
    )


def model(seed=0, n_encoder_layers=0, rotaries=(LOCAL, GLOBAL, LOCAL), **options):
    """Return a language model of three layers with everything, two of them local."""
    weights = TransformerWeights.init(
        *(seed, 11),
        **{"d_model": 12, "n_heads": 3, "d_ff": 7, "n_layers": 3, "positions": "none"} | options,
        n_encoder_layers=n_encoder_layers,
    )
    layers = tuple(
        with_options(layer, rotary, window=window)
        for layer, rotary, window in zip(
            weights.decoder.layers, rotaries, (3, None, 2), strict=True
        )
    )
    decoder = replace(weights.decoder, layers=layers)
    return shaken(replace(weights, decoder=decoder, logit_cap=0.9), seed)


def ids(*shape, seed=1):
    return np.random.default_rng(seed).integers(11, size=shape)


# Against the loop.


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("rotary", [None, LOCAL, Rotary(interleaved=True)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_agrees_with_the_loop(library, dtype, norm, rotary):
    layer = DecoderLayerWeights.init(0, 12, 3, 7, norm=norm)
    layer = shaken(with_options(layer, rotary))
    rng = np.random.default_rng(0)
    x, memory = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 7, 12))
    mask = masking.causal(5)
    arrays = [library.array(a, dtype) for a in (x, memory)]
    got = decoder_layer(*arrays, library.place(layer, dtype), library.array(mask))
    exact, *_ = oracle.decoder_layer(*map(library.numpy, arrays), held(library, layer, dtype), mask)
    close(library.numpy(got), exact, dtype, size=1000)


@pytest.mark.parametrize("n_encoder_layers", [0, 1])
def test_a_model_agrees_with_the_loop(library, n_encoder_layers):
    weights = model(n_encoder_layers=n_encoder_layers)
    source = ids(2, 7, seed=2) if n_encoder_layers else None
    target = ids(2, 5)
    exact = oracle.transformer(source, target, weights)
    assert np.max(np.abs(exact)) < 0.9
    given = (None if source is None else library.array(source), library.array(target))
    got = transformer(*given, library.place(weights))
    close(library.numpy(got), exact, "float64", size=1000)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_stays_half(library, dtype):
    need(library, dtype)
    weights = model()
    got = transformer(None, library.array(ids(2, 5)), library.place(weights, dtype))
    assert got.dtype == library.array(np.ones(1), dtype).dtype
    exact = oracle.transformer(None, ids(2, 5), held(library, weights, dtype))
    assert np.max(np.abs(library.numpy(got) - exact)) < {"float16": 0.01, "bfloat16": 0.08}[dtype]


def test_a_rotary_of_a_layer_stands_in_place_of_the_stack_s():
    weights = model(rotaries=(LOCAL, None, LOCAL))
    of_stack = replace(weights.decoder, positions=GLOBAL)
    want = transformer(None, ids(2, 5), model())
    got = transformer(None, ids(2, 5), replace(weights, decoder=of_stack))
    np.testing.assert_array_equal(got, want)
    # by the name of the model, the layers without one rotate as a plain Rotary says
    want = transformer(None, ids(2, 5), model(rotaries=(LOCAL, Rotary(), LOCAL)))
    got = transformer(None, ids(2, 5), replace(weights, positions="rotary"))
    np.testing.assert_array_equal(got, want)
    assert np.max(np.abs(transformer(None, ids(2, 5), weights) - want)) > 1e-4  # it has none


def test_equal_layers_share_the_angles(monkeypatch):
    calls, known = [], rotation.cosines_and_sines

    def counted(start, n, frequencies):
        calls.append((start, n))
        return known(start, n, frequencies)

    monkeypatch.setattr(rotation, "cosines_and_sines", counted)
    weights = model(rotaries=(LOCAL, GLOBAL, Rotary(base=100.0)))
    transformer(None, ids(2, 5), weights)
    assert calls == [(0, 5), (0, 5)]


# A cache.


@pytest.mark.parametrize("n_encoder_layers", [0, 1])
def test_greedy_text_is_the_same_with_a_cache(library, n_encoder_layers):
    weights = library.place(model(n_encoder_layers=n_encoder_layers))
    source = library.array(ids(2, 7, seed=2)) if n_encoder_layers else None
    given = {"prompt": library.array(ids(2, 5)), "max_length": 9}
    found = [
        greedy_decode(weights, source, **given, cache=cache)
        for cache in (False, True, WindowCache(weights))
    ]
    for other in found[1:]:
        for name in ("tokens", "log_probabilities"):
            got, want = (library.numpy(getattr(x, name)) for x in (other, found[0]))
            np.testing.assert_allclose(got, want, atol=1e-10)


# Layouts of rotary pairs.


@pytest.mark.parametrize("rotaries", [(LOCAL, GLOBAL, LOCAL), (None, Rotary(width=2), None)])
def test_rotary_layout_takes_the_rotaries_and_norms_of_layers_along(rotaries):
    weights = model(rotaries=rotaries)
    other = rotary_layout(weights, interleaved=True)
    for layer, before in zip(other.decoder.layers, rotaries, strict=True):
        assert layer.rotary == (before and replace(before, interleaved=True))
    logits = [transformer(None, ids(2, 5), w) for w in (weights, other)]
    np.testing.assert_allclose(*logits, atol=1e-12)
    back = rotary_layout(other, interleaved=False)
    for name, x in back.arrays().items():
        np.testing.assert_array_equal(x, weights.arrays()[name], err_msg=name)
    assert rotary_layout(weights.decoder, interleaved=False) is weights.decoder
    changed = [w.decoder.layers[1].self_attention.q_norm.gain for w in (weights, other)]
    assert np.array_equal(*changed) == (rotaries[1].width == 2)  # one pair is both


# Modules.


def test_a_module_holds_them_all_and_its_gradients_are_those_by_hand():
    weights = model()
    module = nn.Transformer(weights)
    assert set(module.state_dict()) == set(weights.arrays())
    assert module.logit_cap == 0.9
    assert module.decoder.layers[0].rotary == LOCAL
    assert module.decoder.layers[0].self_attention.window == 3
    assert isinstance(module.decoder.layers[0].self_attention.q_norm, nn.RMSNorm)
    inputs, targets = ids(2, 5), ids(2, 5, seed=3)
    logits = module(None, torch.tensor(inputs))
    np.testing.assert_allclose(
        logits.detach().numpy(), transformer(None, inputs, weights), atol=1e-12
    )
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()
    ours, by_hand = attnbook.training.gradients(weights, inputs, targets)
    np.testing.assert_allclose(ours, loss.item(), rtol=1e-12)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            by_hand.arrays()[name], parameter.grad.numpy(), atol=1e-10, err_msg=name
        )


# Dynamo sees through a cache in array-api-compat and says so
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_a_module_with_them_compiles_into_one_graph():
    weights = model()
    module, twin = nn.Transformer(weights), nn.Transformer(weights)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    tokens = torch.tensor(ids(2, 5))
    torch.testing.assert_close(compiled(None, tokens), twin(None, tokens), rtol=0, atol=1e-12)


def test_every_array_gets_a_gradient():
    weights, leaves = leaves_of(model().to("torch"))
    transformer(None, torch.tensor(ids(2, 5)), weights).sum().backward()
    for name, x in leaves.items():
        assert bool(torch.isfinite(x.grad).all()), name
        # a constant that is added to all scores of a query changes none of its weights
        assert bool((x.grad != 0).any()) or name.endswith("k_norm.bias"), name


# Errors.


def layer(**options):
    return replace(DecoderLayerWeights.init(0, 12, 3, 7, cross=False), **options)


def as_torch(**options):
    made = replace(DecoderLayerWeights.init(0, 12, 3, 7), **options)
    return nn.DecoderLayer(made.to(dtype="float32")).to_torch()


def heads_as_torch(name):
    heads = MultiHeadWeights.init(0, 12, 3)
    return nn.MultiHeadAttention(with_head_options(heads, names=[name])).torch_state_dict()


def crossed(**options):
    cross = replace(MultiHeadWeights.init(0, 12, 3), **options)
    return replace(DecoderLayerWeights.init(0, 12, 3, 7), cross_attention=cross)


NORM = RMSNormWeights(np.ones(12))
ERRORS = """
layer(rotary=3.0)
    TypeError: rotary must be Rotary, got float
layer(rotary=Rotary(width=6))
    ValueError: d_k must be at least the width 6 to rotate, got 4
layer(self_attention_post_norm=RMSNormWeights(np.ones(4)))
    ValueError: self_attention_post_norm.gain must have length 12 on its last axis, the width of
    the tokens that it is added to, got shape (4,)
DecoderWeights((layer(rotary=LOCAL),), positions=positions.Alibi())
    ValueError: positions must be Rotary or None, since layers have a rotary of their own, got
    Alibi
crossed(window=3)
    ValueError: cross_attention must have no window, since the positions of source and target are
    unrelated, got 3
replace(model(), logit_cap=0)
    ValueError: logit_cap must be above 0, got 0.0
as_torch(rotary=LOCAL)
    ValueError: rotary must be None to fit torch.nn.TransformerDecoderLayer
as_torch(feed_forward_post_norm=NORM)
    ValueError: feed_forward_post_norm must be None to fit torch.nn.TransformerDecoderLayer
heads_as_torch("sinks")
    ValueError: sinks must be None to fit torch.nn.MultiheadAttention, got Parameter
heads_as_torch("window")
    ValueError: window must be None to fit torch.nn.MultiheadAttention, got 2
heads_as_torch("q_norm")
    ValueError: q_norm must be None to fit torch.nn.MultiheadAttention, got RMSNormWeights
"""
test_error = error_test(ERRORS, vars(attnbook) | globals())
