"""The small writers of `variants` compute what they say, whole and token by token."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import attnbook
from attnbook import TransformerWeights, transformer
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.transformers.mixture import MixtureWeights
from attnbook.transformers.router import RouterWeights
from benchmarks import scaling, variants
from benchmarks.variants_model import Shape, Writer, attend, counted, fitted

SMALL = Shape(vocabulary=23, d_model=24, d_k=6, d_ff=10)  # 4 layers and 4 heads


def drawn(name, seed=0, **more):
    """Return a small writer of a choice in float64, whose gains and sinks are not 1 and 0."""
    torch.manual_seed(seed)
    small = {x: 5 if x in ("latent", "window") else y for x, y in variants.CHOICES[name].items()}
    model = Writer(replace(SMALL, **small, **more)).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim < 2:
                p.add_(torch.randn_like(p))
    return model


def numpy_of(*tensors):
    return [x.detach().numpy() for x in tensors]


def norm_of(norm):
    return attnbook.RMSNormWeights(*numpy_of(norm.gamma))


def attention_of(heads, s):
    """Return the package's weights of the attention of a layer."""
    if s.latent:
        down, shared = numpy_of(*heads.W_D.split([s.latent, s.rotary], dim=1))
        up = numpy_of(heads.W_UK, heads.W_UV)
        (W_Q, W_O), norm = numpy_of(heads.W_Q, heads.W_O), norm_of(heads.latent_norm)
        return LatentWeights(W_Q, down, *up, shared, W_O, kv_norm=norm, n_heads=s.n_heads)
    optional = {}
    if s.qk_norm:
        optional = {"q_norm": norm_of(heads.q_norm), "k_norm": norm_of(heads.k_norm)}
    if s.sinks:
        (optional["sinks"],) = numpy_of(heads.sinks)
    if s.gate:
        (optional["W_gate"],) = numpy_of(heads.W_gate)
    return attnbook.MultiHeadWeights(
        *numpy_of(heads.W_Q, heads.W_K, heads.W_V, heads.W_O),
        **{"n_heads": s.n_heads, "n_kv_heads": s.n_kv_heads, "cap": s.cap},
        **{"window": heads.window, **optional},
    )


def network_of(feed, s):
    """Return the package's weights of the feed-forward network of a layer."""
    matrices = numpy_of(feed.W_gate, feed.W_1, feed.W_2)
    if s.experts is None:
        gate, first, second = matrices
        return attnbook.GatedFeedForwardWeights(
            W_gate=gate, W_1=first, W_2=second, activation="silu"
        )
    router = RouterWeights(*numpy_of(feed.W_R), top_k=s.chosen)
    return MixtureWeights(router, *matrices)


def weights_of(model):
    """Return the package's weights of a whole writer."""
    s = model.shape
    sizes = {"d_model": s.d_model, "n_heads": 4, "d_ff": s.d_ff, "scale_embeddings": True}
    drawn = TransformerWeights.init(0, s.vocabulary, n_layers=4, **scaling.KIND | sizes)
    layers = [
        replace(
            old,
            self_attention=attention_of(new.attention, s),
            feed_forward=network_of(new.feed, s),
            self_attention_norm=norm_of(new.attention_norm),
            feed_forward_norm=norm_of(new.feed_norm),
        )
        for old, new in zip(drawn.decoder.layers, model.layers, strict=True)
    ]
    decoder = replace(drawn.decoder, layers=tuple(layers), final_norm=norm_of(model.final_norm))
    (table,) = numpy_of(model.embedding)
    return replace(drawn, decoder=decoder, target_embedding=table, logit_cap=s.logit_cap)


@pytest.mark.parametrize("name", [x for x in variants.CHOICES if x != "shared caches"])
def test_a_writer_is_that_of_the_package(name):
    model = drawn(name)
    ids = np.random.default_rng(0).integers(0, SMALL.vocabulary, 11)
    with torch.no_grad():
        found = model(torch.tensor(ids)[None])[0][0].numpy()
    np.testing.assert_allclose(found, transformer(None, ids, weights_of(model)), atol=1e-10)


@pytest.mark.parametrize("name", variants.CHOICES)
def test_token_by_token_a_writer_says_what_it_says_of_the_whole(name):
    model = drawn(name)
    ids = torch.randint(0, SMALL.vocabulary, (3, 17))
    with torch.no_grad():
        whole, _ = model(ids)
        room = model.room(3, 17)
        for i in range(17):
            step = model.step(ids[:, i : i + 1], room, i)
            torch.testing.assert_close(step, whole[:, i], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", variants.CHOICES)
def test_no_token_sees_a_later_one_and_all_parameters_learn(name):
    model = drawn(name)
    ids = torch.randint(0, SMALL.vocabulary, (2, 13))
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % SMALL.vocabulary
    first, more = model(ids)
    second, _ = model(changed)
    torch.testing.assert_close(first[:, :7], second[:, :7], atol=1e-12, rtol=0)
    assert (first[:, 7:] - second[:, 7:]).abs().max() > 1e-3
    (first.logsumexp(dim=-1).sum() + first[..., 3].sin().sum() + more).backward()
    for parameter, p in model.named_parameters():
        assert p.grad is not None, parameter
        assert torch.isfinite(p.grad).all(), parameter
        assert p.grad.abs().max() > 0, parameter


def test_attention_of_the_writers_is_a_loop():
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, h, n, 3)) for h, n in ((4, 5), (2, 7), (2, 7)))
    mask, sinks = rng.random((5, 7)) < 0.6, rng.normal(size=4)
    mask[2] = False
    tensors = map(torch.tensor, (q, k, v))
    found = attend(*tensors, 0.7, torch.tensor(mask), 1.3, torch.tensor(sinks))
    for b, h, i in np.ndindex(2, 4, 5):
        scores = [1.3 * math.tanh(0.7 * (q[b, h, i] @ k[b, h // 2, j]) / 1.3) for j in range(7)]
        powers = [math.exp(s) * mask[i, j] for j, s in enumerate(scores)]
        z = sum(powers) + math.exp(sinks[h])
        expected = sum(p * v[b, h // 2, j] for j, p in enumerate(powers)) / z
        np.testing.assert_allclose(found[b, h, i].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", variants.CHOICES)
def test_all_writers_have_as_many_parameters(name):
    first = counted(Shape())["parameters"]
    shapes = variants.shapes_of(variants.FULL_PLAN, 512)
    found = counted(shapes[name])
    assert abs(found["parameters"] / first - 1) < 0.01
    assert (found["all_parameters"] > 2 * first) == (name == "mixture of experts")
    if name != "mixture of experts":
        real = sum(p.numel() for p in Writer(shapes[name]).parameters())
        assert found["parameters"] == found["all_parameters"] == real


@pytest.mark.parametrize("name", variants.CHOICES)
def test_the_cache_holds_the_numbers_that_are_counted(name):
    model = drawn(name)
    held = {id(x): x for stored in model.room(1, 9) for x in stored}
    numbers = sum(x.numel() for x in held.values())
    if model.shape.window is not None:  # three local layers of 5 of 9 tokens, and a global one
        numbers = numbers * (3 * 5 + 9) // (4 * 9)
    assert model.shape.cached_numbers(9) == numbers


def test_a_mixture_of_equal_experts_is_one_of_them():
    model = drawn("mixture of experts")
    feed = model.layers[0].feed
    x = torch.randn(2, 5, SMALL.d_model, dtype=torch.float64)
    with torch.no_grad():
        for W in (feed.W_gate, feed.W_1, feed.W_2):
            W[:] = W[:1]
        output, _ = feed(x)
        one = torch.nn.functional.silu(x @ feed.W_gate[0]) * (x @ feed.W_1[0]) @ feed.W_2[0]
    torch.testing.assert_close(output, one)


def test_the_best_rate_has_neighbours():
    plan = variants.FULL_PLAN
    found = variants.rates(lambda rate: abs(math.log(rate / 0.03)), plan)
    assert sorted(found) == [0.006, 0.012, 0.024, 0.048]
    found = variants.rates(lambda rate: abs(math.log(rate / 0.012)), plan)
    assert sorted(found) == [0.006, 0.012, 0.024]


def test_differences_below_the_spread_of_seeds_are_called_that():
    rng = np.random.default_rng(0)
    rows = {
        name: {"test": list(mean + 0.01 * rng.normal(size=3))}
        for name, mean in (("multi-head", 3.0), ("sinks", 3.001), ("gate", 2.9))
    }
    found = variants.differences(rows, 3)
    assert {row["variant"]: row["is_distinct"] for row in found["rows"]} == {
        **{"sinks": False, "gate": True}
    }
    assert found["rows"][1]["difference"] == pytest.approx(-0.1, abs=0.03)
    assert 0.003 < found["spread"] < 0.02


def test_the_shape_nearest_to_a_number_of_parameters_is_found():
    made = fitted(replace(SMALL, gate=True), counted(SMALL)["parameters"])
    assert made.d_ff < SMALL.d_ff
    assert abs(counted(made)["parameters"] - counted(SMALL)["parameters"]) <= 4 * 3 * 24 // 2
