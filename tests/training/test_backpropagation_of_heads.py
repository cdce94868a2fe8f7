"""Backpropagation by hand through the options of heads and layers, each alone and all at once."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import HEAD_OPTIONS, leaves_of, shaken, with_head_options

from attnbook import LayerNormWeights, MultiHeadWeights, TransformerWeights, transformer
from attnbook.linear_attention.layers import LinearAttentionWeights
from attnbook.linear_attention.mamba import Mamba2Weights
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.positions import RelativeBias, Rotary
from attnbook.training import backpropagation as back
from attnbook.training import gradients
from attnbook.transformers.mixture import MixtureWeights
from attnbook.transformers.self_attention import SELF_ATTENTIONS

options = pytest.mark.parametrize(
    "names", [(name,) for name in HEAD_OPTIONS] + [HEAD_OPTIONS], ids="+".join
)
N = 5


def relative_bias():
    """Biases for four heads: every distance within `N` tokens has a bucket of its own."""
    table = np.random.default_rng(1).standard_normal((16, 4))
    return RelativeBias(table, bidirectional=True, max_distance=16)


def plain_heads(x, w, bias, mask):
    """Multi-head self-attention in PyTorch's own functions, none of the package."""
    functional, n = torch.nn.functional, x.shape[-2]

    def heads(W, count):
        return (x @ W).unflatten(-1, (count, -1)).transpose(-3, -2)

    query, key, value = heads(w.W_Q, 4), heads(w.W_K, 2), heads(w.W_V, 2)
    if w.q_norm is not None:
        query = functional.rms_norm(query, query.shape[-1:], w.q_norm.gain, w.q_norm.epsilon)
    if w.k_norm is not None:
        norm = w.k_norm
        key = functional.layer_norm(key, key.shape[-1:], norm.gain, norm.bias, norm.epsilon)
    key, value = (y.repeat_interleave(2, dim=-3) for y in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if w.cap is not None:
        scores = w.cap * torch.tanh(scores / w.cap)
    seen = torch.ones(n, n, dtype=torch.bool) if mask is None else torch.tensor(mask)
    if w.window is not None:
        distance = torch.arange(n)[:, None] - torch.arange(n)
        seen = seen & (distance >= 0) & (distance < w.window)
    scores = (scores + bias).masked_fill(~seen, -math.inf)
    if w.sinks is not None:
        scores = torch.cat([w.sinks[:, None, None].expand(*scores.shape[:-1], 1), scores], -1)
    mixed = (torch.softmax(scores, -1)[..., -n:] @ value).transpose(-3, -2).flatten(-2)
    if w.W_gate is not None:
        mixed = mixed * torch.sigmoid(x @ w.W_gate)
    return mixed @ w.W_O


@options
@pytest.mark.parametrize("masked", [True, False])
def test_heads_agree_with_plain_steps(library, names, masked):
    rng = np.random.default_rng(0)
    weights = MultiHeadWeights.init(0, 6, 4, n_kv_heads=2, d_k=7, d_v=3)
    weights = with_head_options(weights, names=names, window=3)
    x, G = rng.standard_normal((2, 3, N, 6))
    bias = relative_bias().bias(4, N, N, x)
    mask = (rng.random((3, 4, N, N)) < 0.6) | np.eye(N, dtype=bool) if masked else None

    ours, leaves = leaves_of(weights.to("torch"))
    inputs = {name: torch.tensor(y, requires_grad=True) for name, y in (("x", x), ("bias", bias))}
    expected = plain_heads(inputs["x"], ours, inputs["bias"], mask)
    expected.backward(torch.tensor(G))

    given = library.array(x), library.place(weights)
    seen = None if mask is None else library.array(mask)
    output, vjp = back.multi_head_with_vjp(*given, seen, library.array(bias))
    grad_x, grads, grad_bias = vjp(library.array(G))
    got = {"x": grad_x, "bias": grad_bias, **grads.arrays(), "output": output}
    wanted = {name: y.grad for name, y in (inputs | leaves).items()} | {"output": expected.detach()}
    assert got.keys() == wanted.keys()
    for name, y in wanted.items():
        np.testing.assert_allclose(
            library.numpy(got[name]), y.numpy(), rtol=1e-11, atol=1e-11, err_msg=name
        )


def decoder(change, positions):
    """A decoder of two layers, with random numbers in what `change` returns for each of them."""
    sizes = {"d_model": 8, "n_heads": 4, "n_kv_heads": 2, "d_ff": 7, "n_layers": 2}
    weights = TransformerWeights.init(0, 11, **sizes, n_encoder_layers=0, positions=positions)
    layers = tuple(change(layer) for layer in weights.decoder.layers)
    return shaken(replace(weights, decoder=replace(weights.decoder, layers=layers)))


def assert_gradients_are_those_of_autograd(weights):
    ids, targets = np.random.default_rng(2).integers(11, size=(2, 3, N))
    loss, grads = gradients(weights, ids, targets)
    ours, leaves = leaves_of(weights.to("torch"))
    logits = transformer(None, torch.tensor(ids), ours, is_causal=True)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), torch.tensor(targets).flatten()
    )
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-12)
    assert list(grads.arrays()) == list(leaves)
    for name, y in leaves.items():
        got = grads.arrays()[name]
        np.testing.assert_allclose(got, y.grad.numpy(), rtol=1e-10, atol=1e-12, err_msg=name)


@options
def test_a_decoder_learns_the_options_of_its_heads(names):
    """The table of relative positions, which all layers share, is learned beside them."""

    def change(layer):
        heads = with_head_options(layer.self_attention, names=names, window=3)
        return replace(layer, self_attention=heads)

    assert_gradients_are_those_of_autograd(decoder(change, relative_bias()))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_decoder_learns_with_the_options_of_its_layers(order):
    """Rotations of their own, norms before the sums, and capped logits."""
    norm = LayerNormWeights(np.ones(8), np.ones(8), epsilon=0.1)
    names = {"norm": order, "self_attention_post_norm": norm, "feed_forward_post_norm": norm}
    bases = iter((10.0, 100.0))

    def change(layer):
        return replace(layer, rotary=Rotary(base=next(bases)), **names)

    weights = replace(decoder(change, "none"), logit_cap=0.7)
    assert_gradients_are_those_of_autograd(weights)


OTHERS = {
    LatentWeights: ("self_attention", LatentWeights.init(0, 8, 4, rank=3)),
    LinearAttentionWeights: ("self_attention", LinearAttentionWeights.init(0, 8, 4)),
    Mamba2Weights: ("self_attention", Mamba2Weights.init(0, 8, 4, 2)),
    MixtureWeights: ("feed_forward", MixtureWeights.init(0, 8, 7, n_experts=3, top_k=2)),
}


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_another_class_of_a_sublayer_is_refused_by_its_place_and_name(other):
    name, part = OTHERS[other]
    sizes = {"d_model": 8, "n_heads": 4, "d_ff": 7, "n_layers": 2, "n_encoder_layers": 0}
    weights = TransformerWeights.init(0, 11, **sizes, positions="none")
    first, second = weights.decoder.layers
    layers = (first, replace(second, **{name: part}))
    weights = replace(weights, decoder=replace(weights.decoder, layers=layers))
    message = (
        f"layers[1].{name} must be of a class with a backward pass by hand, got "
        f"{other.__name__}; attnbook.training.train uses PyTorch's autograd"
    )
    ids = np.array([1, 2, 0])
    with pytest.raises(TypeError, match=re.escape(message)):
        gradients(weights, ids, ids)


def test_every_class_of_self_attention_is_learned_or_refused():
    refused = {other for other, (name, _) in OTHERS.items() if name == "self_attention"}
    assert set(SELF_ATTENTIONS) == refused | {MultiHeadWeights}
