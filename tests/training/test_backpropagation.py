"""Backpropagation by hand against PyTorch's autograd and against differences, piece by piece."""

from dataclasses import replace

import numpy as np
import torch
from cases import LAYER_MASKS, layer_mask, leaves_of, shaken
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook import (
    LayerNormWeights,
    MultiHeadWeights,
    TransformerWeights,
    transformer,
)
from attnbook.positions import Alibi, Llama3Scaling, RelativeBias, Rotary
from attnbook.training import gradients

VOCABULARY = 11


# The whole model


@st.composite
def models(draw):
    """Draw a decoder of any structure that the package can build, with random numbers in it."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    h = draw(st.sampled_from((1, 2, 4)))
    n_layers = draw(st.sampled_from((0, 1, 2)))
    pieces = {
        **{name: name for name in ("sinusoidal", "interleaved", "learned", "rotary", "none")},
        "halves": Rotary(base=100.0),
        "pairs": Rotary(interleaved=True, width=2),
        "scaled": Rotary(scaling=Llama3Scaling(factor=4.0, low=1.0, high=4.0, n_positions=16)),
        "alibi": Alibi(),
        "relative": RelativeBias(rng.standard_normal((8, h)), bidirectional=True, max_distance=9),
        "before": RelativeBias(rng.standard_normal((4, h)), bidirectional=False, max_distance=5),
    }
    positions = draw(st.sampled_from(sorted(pieces)))
    options = {
        "norm": draw(st.sampled_from(("pre", "post"))),
        "activation": draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
        "bias": draw(st.booleans()),
        "tied": draw(st.booleans()),
        "positions": pieces[positions],
        "n_positions": 9 if positions == "learned" else None,
        "n_kv_heads": draw(st.sampled_from([n for n in (1, 2, 4) if h % n == 0])),
        "normalization": draw(st.sampled_from(("layer", "rms"))),
        "gated": draw(st.booleans()),
        "final_norm": draw(st.sampled_from((None, True, False))),
        "scale_embeddings": draw(st.booleans()),
    }
    sizes = {"d_model": 4 * h, "n_heads": h, "d_ff": 7, "n_layers": n_layers}
    weights = TransformerWeights.init(seed, VOCABULARY, **sizes, n_encoder_layers=0, **options)
    if draw(st.booleans()):
        weights = replace(weights, b_out=np.zeros(VOCABULARY))  # also where the output is tied
    return shaken(draw(st.sampled_from(ODD))(weights), seed)


def with_heads_of_other_widths(weights):
    """Heads of other widths than d_model / h, and a scale of their own."""
    d_model = weights.d_model

    def layer(old):
        h, h_kv = old.self_attention.n_heads, old.self_attention.n_kv_heads
        heads = MultiHeadWeights.init(0, d_model, h, n_kv_heads=h_kv, d_k=6, d_v=3, bias=True)
        return replace(old, self_attention=replace(heads, scale=0.3))

    layers = tuple(layer(old) for old in weights.decoder.layers)
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


def without_output_and_gains(weights):
    """No W_O, normalisations without gain, and another ε."""

    def layer(old):
        bare = replace(old.self_attention, W_O=None, b_O=None)
        norm = LayerNormWeights(None, None, epsilon=0.1)
        return replace(old, self_attention=bare, self_attention_norm=norm)

    layers = tuple(layer(old) for old in weights.decoder.layers)
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


def of_features(weights):
    """Features in place of token ids; without an output the features are the logits."""
    bare = {"target_embedding": None, "target_positions": None}
    b_out = None if weights.output is None else weights.b_out
    return replace(weights, **bare, b_out=b_out)


ODD = (lambda weights: weights,) * 3 + (
    with_heads_of_other_widths,
    without_output_and_gains,
    of_features,
)


@st.composite
def calls(draw):
    """Draw weights, inputs, targets and options of `gradients`, as NumPy arrays."""
    weights = draw(models())
    shape = draw(st.sampled_from(((1,), (5,), (3, 4), (2, 1, 6), (0, 3), (2, 0))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    known = weights.target_embedding is not None
    inputs = rng.integers(VOCABULARY, size=shape)
    inputs = inputs if known else rng.standard_normal((*shape, weights.d_model or 4))
    n_logits = VOCABULARY if known or weights.output is not None else inputs.shape[-1]
    targets = rng.integers(n_logits, size=shape)
    counts = {"all": None, "some": rng.random(shape) < 0.6, "none": np.zeros(shape, dtype=bool)}
    mask = counts[draw(st.sampled_from(sorted(counts)))]
    targets = targets if mask is None else np.where(mask, targets, -100)
    heads = [layer.self_attention.n_heads for layer in weights.decoder.layers] or [1]
    seen = layer_mask(
        rng, draw(st.sampled_from(LAYER_MASKS)), (*shape[:-1], heads[0], *shape[-1:] * 2)
    )
    return (
        weights,
        inputs,
        targets,
        {
            "mask": mask,
            "label_smoothing": draw(st.sampled_from((0.0, 0.1))),
            "target_mask": seen,
            "is_causal": draw(st.sampled_from((True, True, False))),
        },
    )


def by_autograd(weights, inputs, targets, *, mask, label_smoothing, target_mask, is_causal):
    """Return loss and gradients of PyTorch: autograd, and its own cross-entropy."""
    ours, leaves = leaves_of(weights.to("torch"))
    seen = None if target_mask is None else torch.tensor(target_mask)
    how = {"target_mask": seen, "is_causal": is_causal}
    logits = transformer(None, torch.tensor(inputs), ours, **how)
    counted = targets.size if mask is None else mask.sum()
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2),
        torch.tensor(targets).flatten(),
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    loss = total / max(int(counted), 1)
    if loss.requires_grad:
        loss.backward()
    grads = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
    return loss.item(), {name: x.numpy() for name, x in grads.items()}


@settings(max_examples=100)
@given(calls())
def test_gradients_are_those_of_autograd(call):
    *arrays, options = call
    loss, grads = gradients(*arrays, **options)
    expected_loss, expected = by_autograd(*arrays, **options)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12, atol=1e-12)
    weights = arrays[0]
    assert type(grads) is type(weights)
    assert list(grads.arrays()) == list(weights.arrays()) == list(expected)
    for name, got in grads.arrays().items():
        assert got.dtype == np.float64
        assert got.shape == expected[name].shape
        size = max(1.0, np.abs(expected[name]).max(initial=0))
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-10 * size, err_msg=name)
