"""Encoder layers and stacks against the loop and PyTorch, in every library."""

import re
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import (
    AS_NUMBERS,
    HALF,
    LAYER_MASKS,
    NOT_AN_ARRAY,
    NOT_BOOLEAN,
    SCORES,
    close,
    held,
    layer_mask,
    leaves_of,
    need,
    shaken,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import (
    EncoderLayerWeights,
    EncoderWeights,
    FeedForwardWeights,
    LayerNormWeights,
    MultiHeadWeights,
    check,
    encoder,
    encoder_layer,
    encoder_layer_with_weights,
    encoder_with_weights,
    masking,
)

ORDERS = ("pre", "post")
LEADING = st.sampled_from(((), (2,), (3, 1), (0,)))
orders = pytest.mark.parametrize("norm", ORDERS)


def layer(seed=0, d_model=6, n_heads=3, d_ff=5, **options):
    """Return the weights of a layer in which nothing is 0 or 1."""
    return shaken(EncoderLayerWeights.init(0, d_model, n_heads, d_ff, **options), seed)


def stack(seed=0, n_layers=2, d_model=6, n_heads=3, d_ff=5, **options):
    return shaken(EncoderWeights.init(0, n_layers, d_model, n_heads, d_ff, **options), seed)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


OPTIONS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(ORDERS),
        "activation": st.sampled_from(("relu", "gelu")),
        "bias": st.booleans(),
        "n_kv_heads": st.sampled_from((None, 1, 3)),
    }
)


# Against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=25)
@given(
    LEADING, st.sampled_from((0, 1, 2, 5)), st.sampled_from(LAYER_MASKS), OPTIONS, st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_layer_agrees_with_the_loop(library, dtype, leading, n, kind, options, rotate, seed):
    weights = layer(seed, **options)
    x = library.array(tokens(*leading, n, 6, seed=seed), dtype)
    mask = layer_mask(np.random.default_rng(seed), kind, (*leading, 3, n, n))
    before = library.numpy(x).copy()
    placed = library.place(weights, dtype)
    given = None if mask is None else library.array(mask)
    got, shares = encoder_layer_with_weights(x, placed, given, rotate=rotate)
    assert library.same_kind(got, x)
    assert library.same_kind(shares, x)
    turn = oracle.rotary if rotate else oracle.as_it_is
    exact, exact_shares = oracle.encoder_layer(before, held(library, weights, dtype), mask, turn)
    close(library.numpy(got), exact, dtype, size=300)
    close(library.numpy(shares), exact_shares, dtype, size=64)
    alone = encoder_layer(x, placed, given, rotate=rotate)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))
    np.testing.assert_array_equal(library.numpy(x), before)
    for name, array in placed.arrays().items():
        expected = library.numpy(library.array(weights.arrays()[name], dtype))
        np.testing.assert_array_equal(library.numpy(array), expected)


@settings(max_examples=15)
@given(
    LEADING, st.sampled_from((0, 1, 2, 3)), st.sampled_from((None, False, True)), OPTIONS,
    st.sampled_from(LAYER_MASKS), st.booleans(),
)  # fmt: skip
def test_stack_agrees_with_the_loop(library, leading, n_layers, final, options, kind, rotate):
    weights = stack(7, n_layers, final_norm=final, **options)
    assert len(weights.layers) == n_layers
    expected = options["norm"] == "pre" if final is None else final
    assert (weights.final_norm is not None) == expected
    x = library.array(tokens(*leading, 5, 6))
    mask = layer_mask(np.random.default_rng(0), kind, (*leading, 3, 5, 5))
    given = None if mask is None else library.array(mask)
    placed = library.place(weights)
    got, shares = encoder_with_weights(x, placed, given, rotate=rotate)
    assert library.same_kind(got, x)
    turn = oracle.rotary if rotate else oracle.as_it_is
    exact, exact_shares = oracle.encoder(library.numpy(x), weights, mask, turn)
    close(library.numpy(got), exact, "float64", size=1000)
    assert isinstance(shares, tuple)
    assert len(shares) == n_layers
    for one, other in zip(shares, exact_shares, strict=True):
        assert tuple(one.shape) == (*leading, 3, 5, 5)
        close(library.numpy(one), other, "float64", size=100)
    alone = encoder(x, placed, given, rotate=rotate)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))


@pytest.mark.parametrize("dtype", HALF)
@orders
@pytest.mark.parametrize("rotate", [False, True])
def test_half_precision(library, dtype, norm, rotate):
    need(library, dtype)
    weights = stack(norm=norm, activation="gelu")
    x = library.array(tokens(2, 5, 6), dtype)
    got, shares = encoder_with_weights(x, library.place(weights, dtype), rotate=rotate)
    assert library.same_kind(got, x)
    assert all(library.same_kind(share, x) for share in shares)
    turn = oracle.rotary if rotate else oracle.as_it_is
    exact, _ = oracle.encoder(library.numpy(x), held(library, weights, dtype), None, turn)
    atol = {"float16": 0.02, "bfloat16": 0.2}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=atol)


def test_norms_without_gain_and_heads_without_output_matrix(library):
    weights = EncoderLayerWeights(
        MultiHeadWeights.init(0, 6, 3, output=False),
        FeedForwardWeights.init(1, 6, 5, bias=False),
        LayerNormWeights(epsilon=0.5),
        LayerNormWeights(epsilon=0.25),
        "post",
    )
    x = library.array(tokens(5, 6))
    got = library.numpy(encoder_layer(x, library.place(weights)))
    close(got, oracle.encoder_layer(library.numpy(x), weights)[0], "float64", size=100)


def test_a_token_that_sees_nothing_keeps_its_residual(library):
    weights = layer(norm="pre", bias=False)
    x = tokens(4, 6)
    mask = library.array(np.arange(4)[:, np.newaxis] > np.zeros((1, 4)))  # the first sees nothing
    got = library.numpy(encoder_layer(library.array(x), library.place(weights), mask))
    y = oracle.feed_forward(oracle.norm_of(x[:1], weights.feed_forward_norm), weights.feed_forward)
    np.testing.assert_allclose(got[:1], x[:1] + y, atol=1e-12)
    assert np.isfinite(got).all()


# PyTorch's own layer.


def torch_layer(norm, activation):
    torch.manual_seed(5)
    module = torch.nn.TransformerEncoderLayer(
        6, 3, 5, dropout=0.0, activation=activation, norm_first=norm == "pre",
        batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.7)
    attention = module.self_attn
    weights = EncoderLayerWeights(
        MultiHeadWeights(
            *(W.T for W in attention.in_proj_weight.split(6)),
            attention.out_proj.weight.T,
            *attention.in_proj_bias.split(6),
            attention.out_proj.bias,
            n_heads=3,
        ),
        FeedForwardWeights(
            *(module.linear1.weight.T, module.linear1.bias),
            *(module.linear2.weight.T, module.linear2.bias, activation),
        ),
        LayerNormWeights(module.norm1.weight, module.norm1.bias),
        LayerNormWeights(module.norm2.weight, module.norm2.bias),
        norm,
    )
    return module, weights


@orders
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_torch_and_has_its_gradients(norm, activation, causal):
    module, weights = torch_layer(norm, activation)
    x = torch.tensor(tokens(2, 7, 6), requires_grad=True)
    mask = masking.causal(7, like=x) if causal else None
    theirs = module(x, src_mask=None if mask is None else ~mask)
    ours = encoder_layer(x, weights, mask)
    torch.testing.assert_close(ours, theirs)
    leaves = [x, *module.parameters()]
    cotangent = torch.tensor(tokens(2, 7, 6, seed=1))
    grads = (torch.autograd.grad(y, leaves, cotangent) for y in (ours, theirs))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@orders
def test_gradcheck(norm):
    weights = layer(d_model=4, n_heads=2, d_ff=3, norm=norm, activation="gelu").to("torch")
    weights, leaves = leaves_of(weights)
    x = torch.tensor(tokens(2, 3, 4), requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def function(x, *arrays):
        one = weights.with_arrays(dict(zip(leaves, arrays, strict=True)))
        return encoder_layer(x, one, mask, rotate=True)

    assert torch.autograd.gradcheck(function, (x, *leaves.values()), fast_mode=True)


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
@orders
def test_gradients_reach_everything_and_are_finite(dtype, norm):
    weights, leaves = leaves_of(stack(norm=norm, final_norm=True).to("torch", dtype=dtype))
    x = torch.tensor(tokens(2, 5, 6), dtype=getattr(torch, dtype), requires_grad=True)
    mask = masking.padding(torch.tensor([[5], [0]]), 5)
    encoder(x, weights, mask).square().sum().backward()
    for name, leaf in {"x": x, **leaves}.items():
        assert leaf.grad.dtype == leaf.dtype
        assert bool(torch.isfinite(leaf.grad).all()), name
        # a bias of the keys shifts all scores of a query alike, which the softmax does not see
        assert bool((leaf.grad != 0).any()) or name.endswith("b_K"), name


def test_vmap_meta_and_devices():
    weights = stack().to("torch")
    x = torch.tensor(tokens(3, 5, 6))
    mapped = torch.func.vmap(lambda row: encoder(row, weights, rotate=True))(x)
    torch.testing.assert_close(mapped, encoder(x, weights, rotate=True))
    empty = encoder_with_weights(x.to("meta"), weights.to(device="meta"))
    assert (empty[0].shape, empty[1][1].shape) == ((3, 5, 6), (3, 3, 5, 5))
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    there = stack().to("array_api_strict", device=device)
    got = encoder(strict.asarray(tokens(5, 6), device=device), there, rotate=True)
    assert got.device == device


# Properties.


@orders
def test_without_positions_order_does_not_matter(norm):
    weights = stack(norm=norm, activation="gelu")
    report = check.permutation_equivariance(lambda x: encoder(x, weights), tokens(3, 7, 6))
    assert report.passed, report
    report = check.permutation_equivariance(
        lambda x: encoder(x, weights, rotate=True), tokens(3, 7, 6)
    )
    assert not report.passed


@orders
@pytest.mark.parametrize("rotate", [False, True])
def test_a_causal_mask_leaks_nothing(norm, rotate):
    weights, mask = stack(norm=norm), masking.causal(7)
    report = check.no_future_leak(
        lambda x: encoder(x, weights, mask, rotate=rotate), tokens(2, 7, 6)
    )
    assert report.passed, report
    assert not check.no_future_leak(lambda x: encoder(x, weights), tokens(2, 7, 6)).passed


@orders
def test_padding_hides_what_is_behind_it(norm):
    weights = stack(norm=norm)
    report = check.padding_invariance(
        lambda x, mask: encoder(x, weights, mask, rotate=True),
        tokens(3, 7, 6),
        padding=lambda lengths, n: masking.padding(lengths, n)[:, None],
    )
    assert report.passed, report


def test_rotation_sees_distances_alone(library):
    # tokens behind two hidden ones stand two places later, and are the same to each other
    weights = library.place(stack())
    x = tokens(5, 6)
    later = np.concatenate([tokens(2, 6, seed=1), x])
    mask = library.array(np.arange(7) >= 2)
    got = library.numpy(encoder(library.array(later), weights, mask, rotate=True))[2:]
    expected = library.numpy(encoder(library.array(x), weights, rotate=True))
    np.testing.assert_allclose(got, expected, atol=1e-12)


# Dropout.


def double_everything(weights):
    """Return weights that do what a `drop` that doubles does."""
    factors = {"W_O": 2, "b_O": 2, "W_2": 4, "b_2": 2}
    return weights.with_arrays(
        {name: factors.get(name.split(".")[-1], 1) * x for name, x in weights.arrays().items()}
    )


@orders
def test_drop_is_applied_to_both_sublayers_and_to_the_hidden_units(library, norm):
    weights, seen = stack(norm=norm, activation="relu"), []

    def drop(y):
        seen.append(tuple(y.shape))
        return 2 * y

    x = tokens(2, 4, 6)
    got = encoder(library.array(x), library.place(weights), drop=drop)
    assert seen == [(2, 4, 6), (2, 4, 5), (2, 4, 6)] * 2
    exact, _ = oracle.encoder(x, double_everything(weights))
    close(library.numpy(got), exact, "float64", size=1000)
    seen.clear()
    one = weights.layers[0]
    got = encoder_layer(library.array(x), library.place(one), drop=drop)
    assert seen == [(2, 4, 6), (2, 4, 5), (2, 4, 6)]
    exact, _ = oracle.encoder_layer(x, double_everything(one))
    close(library.numpy(got), exact, "float64", size=1000)


def test_what_is_dropped_whole_leaves_the_residual(library):
    x = library.array(tokens(2, 4, 6))
    got = encoder_layer(x, library.place(layer(norm="pre")), drop=lambda y: 0 * y)
    np.testing.assert_array_equal(library.numpy(got), library.numpy(x))


# The weights.


@pytest.mark.parametrize("bias", [False, True])
def test_init_draws_attention_then_feed_forward(bias):
    options = {"norm": "post", "activation": "gelu", "bias": bias, "n_kv_heads": 1}
    weights = EncoderLayerWeights.init(3, 6, 3, 5, **options)
    rng = np.random.default_rng(3)
    attention = MultiHeadWeights.init(rng, 6, 3, n_kv_heads=1, bias=bias)
    feed_forward = FeedForwardWeights.init(rng, 6, 5, activation="gelu", bias=bias)
    for part, expected in (
        (weights.self_attention, attention),
        (weights.feed_forward, feed_forward),
        (weights.self_attention_norm, LayerNormWeights.init(6, bias=bias)),
        (weights.feed_forward_norm, LayerNormWeights.init(6, bias=bias)),
    ):
        assert list(part.arrays()) == list(expected.arrays())
        for name, x in expected.arrays().items():
            np.testing.assert_array_equal(part.arrays()[name], x)
    assert (weights.norm, weights.feed_forward.activation) == ("post", "gelu")
    names = {name.split(".")[-1] for name in weights.arrays()}
    assert bias or not any(name.startswith("b") for name in names)
    assert (weights.self_attention.n_heads, weights.self_attention.n_kv_heads) == (3, 1)


def test_init_defaults():
    weights = EncoderLayerWeights.init(0, 6, 3, 5)
    assert (weights.norm, weights.feed_forward.activation) == ("pre", "relu")
    assert (len(weights.arrays()), weights.self_attention.n_kv_heads) == (16, 3)
    assert EncoderWeights((weights,)).final_norm is None
    assert EncoderWeights.init(0, 1, 6, 3, 5).layers[0].norm == "pre"
    assert EncoderWeights.init(0, 1, 6, 3, 5).final_norm.bias is not None
    assert EncoderWeights.init(0, 1, 6, 3, 5, bias=False).final_norm.bias is None
    parts = (weights.self_attention, weights.feed_forward)
    norms = (weights.self_attention_norm, weights.feed_forward_norm)
    assert EncoderLayerWeights(*parts, *norms).norm == "pre"


def test_init_of_a_stack_draws_layer_after_layer():
    weights = EncoderWeights.init(np.random.default_rng(3), 3, 6, 3, 5, norm="post")
    rng = np.random.default_rng(3)
    for one in weights.layers:
        expected = EncoderLayerWeights.init(rng, 6, 3, 5, norm="post")
        for name, x in expected.arrays().items():
            np.testing.assert_array_equal(one.arrays()[name], x)
    assert weights.final_norm is None
    assert len(weights.layers) == 3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("g", [1, 2, 4])
def test_number_of_parameters(bias, g):
    d, d_ff, h, n = 8, 11, 4, 3
    weights = EncoderWeights.init(0, n, d, h, d_ff, bias=bias, n_kv_heads=g)
    of_heads = 2 * d * d + 2 * d * (d * g // h) + bias * (2 * d + 2 * d * g // h)
    of_layer = of_heads + 2 * d * d_ff + bias * (d_ff + d) + 2 * d * (1 + bias)
    assert sum(x.size for x in weights.arrays().values()) == n * of_layer + d * (1 + bias)


def test_heads_of_other_widths_are_taken(library):
    # d_k and d_v are free, as long as W_O leads back to d_model
    attention = MultiHeadWeights.init(0, 6, 2, d_k=2, d_v=5)
    weights = replace(layer(), self_attention=attention)
    x = library.array(tokens(4, 6))
    got = library.numpy(encoder_layer(x, library.place(weights), rotate=True))
    exact, _ = oracle.encoder_layer(library.numpy(x), weights, None, oracle.rotary)
    close(got, exact, "float64", size=100)


def test_heads_of_odd_width_are_taken_where_nothing_rotates(library):
    weights, x = stack(n_heads=2), library.array(tokens(4, 6))
    got = library.numpy(encoder(x, library.place(weights)))
    close(got, oracle.encoder(library.numpy(x), weights)[0], "float64", size=500)


def test_layers_may_differ_in_their_heads(library):
    weights = EncoderWeights((layer(), layer(n_heads=1), layer(norm="post")))
    x = library.array(tokens(2, 4, 6))
    mask = np.random.default_rng(0).random((2, 1, 4, 4)) < 0.7
    got = library.numpy(encoder(x, library.place(weights), library.array(mask)))
    close(got, oracle.encoder(library.numpy(x), weights, mask)[0], "float64", size=1000)


# Errors.


def part(**parts):
    return lambda: replace(layer(), **parts)


def call(x=(4, 6), weights=None, mask=None, dtype="float64", **options):
    x = np.ones(x, dtype) if isinstance(x, tuple) else x
    return lambda: encoder_layer(x, layer() if weights is None else weights, mask, **options)


def in_stack(x=(4, 6), weights=None, mask=None, **options):
    x = np.ones(x) if isinstance(x, tuple) else x
    return lambda: encoder(x, stack() if weights is None else weights, mask, **options)


def layers(*parts, final_norm=None):
    return lambda: EncoderWeights(parts, final_norm)


def heads(*arguments, **options):
    return MultiHeadWeights.init(0, *arguments, **options)


def single_init(*arguments, **options):
    return lambda: EncoderLayerWeights.init(*arguments, **options)


def masked(mask, batch=()):
    return call((*batch, 4, 6), mask=mask)


ADDED = (
    "must have length 6 on its last axis, the width of the tokens that it is added to, got shape "
)
OF_X = "x must have shape (..., n, 6) to match the weights, got "
JOIN = "self_attention must have heads that join to width 6, or a W_O, got "
ERRORS = {
    "attention None": (
        part(self_attention=None),
        TypeError,
        "self_attention must be MultiHeadWeights, got NoneType",
    ),
    "attention of one head": (
        part(self_attention=attnbook.SingleHeadWeights.init(0, 6, d_k=2, d_v=6)),
        TypeError,
        "self_attention must be MultiHeadWeights, got SingleHeadWeights",
    ),
    "feed forward None": (
        part(feed_forward=None),
        TypeError,
        "feed_forward must be FeedForwardWeights, got NoneType",
    ),
    "norm None": (
        part(self_attention_norm=None),
        TypeError,
        "self_attention_norm must be LayerNormWeights, got NoneType",
    ),
    "second norm an array": (
        part(feed_forward_norm=np.ones(6)),
        TypeError,
        "feed_forward_norm must be LayerNormWeights, got ndarray",
    ),
    "order unknown": (
        part(norm="both"),
        ValueError,
        "norm must be one of pre, post, got 'both'",
    ),
    "parts of two dtypes": (
        part(feed_forward=FeedForwardWeights.init(0, 6, 5).to(dtype="float32")),
        TypeError,
        "feed_forward.W_1 must have the dtype of self_attention.W_Q (float64), got float32",
    ),
    "parts of two libraries": (
        part(feed_forward_norm=LayerNormWeights.init(6).to("torch")),
        TypeError,
        "feed_forward_norm.gain must be an array of the same library as self_attention.W_Q "
        "(numpy), got torch",
    ),
    "keys of another width": (
        part(self_attention=heads(6, 3, d_key=5)),
        ValueError,
        "self_attention.W_K must have 6 rows, got shape (5, 6)",
    ),
    "values of another width": (
        part(self_attention=heads(6, 3, d_value=7)),
        ValueError,
        "self_attention.W_V must have 6 rows, got shape (7, 6)",
    ),
    "output of another width": (
        part(self_attention=heads(6, 3, d_out=7)),
        ValueError,
        f"self_attention.W_O {ADDED}(6, 7)",
    ),
    "heads that do not join": (
        part(self_attention=heads(6, 3, d_v=5, output=False)),
        ValueError,
        f"{JOIN}15",
    ),
    "groups that do not join": (
        part(self_attention=heads(6, 3, n_kv_heads=1, d_v=1, output=False)),
        ValueError,
        f"{JOIN}3",
    ),
    "hidden layer of another width": (
        part(feed_forward=FeedForwardWeights(np.ones((5, 4)), None, np.ones((4, 6)), None)),
        ValueError,
        "feed_forward.W_1 must have 6 rows, got shape (5, 4)",
    ),
    "feed forward to another width": (
        part(feed_forward=FeedForwardWeights(np.ones((6, 4)), None, np.ones((4, 5)), None)),
        ValueError,
        f"feed_forward.W_2 {ADDED}(4, 5)",
    ),
    "gain of another width": (
        part(self_attention_norm=LayerNormWeights(np.ones(5))),
        ValueError,
        f"self_attention_norm.gain {ADDED}(5,)",
    ),
    "bias of another width": (
        part(feed_forward_norm=LayerNormWeights(None, np.ones(1))),
        ValueError,
        f"feed_forward_norm.bias {ADDED}(1,)",
    ),
    "init from nothing": (
        single_init(None, 6, 3, 5),
        TypeError,
        "rng must be a numpy.random.Generator or an int, got NoneType",
    ),
    "init heads": (
        single_init(0, 6, 4, 5),
        ValueError,
        "d_model must be divisible by n_heads, got d_model = 6 and n_heads = 4",
    ),
    "init order": (
        single_init(0, 6, 3, 5, norm="both"),
        ValueError,
        "norm must be one of pre, post, got 'both'",
    ),
    "init d_ff": (single_init(0, 6, 3, 0), ValueError, "d_ff must be at least 1, got 0"),
    # stacks
    "layers a list": (
        lambda: EncoderWeights([layer()]),
        TypeError,
        "layers must be a tuple, got list",
    ),
    "a layer of another class": (
        layers(layer(), attnbook.DecoderLayerWeights.init(0, 6, 3, 5)),
        TypeError,
        "layers[1] must be EncoderLayerWeights, got DecoderLayerWeights",
    ),
    "a final norm of another class": (
        layers(layer(), final_norm=np.ones(6)),
        TypeError,
        "final_norm must be LayerNormWeights, got ndarray",
    ),
    "layers of two widths": (
        layers(layer(), layer(d_model=9), layer()),
        ValueError,
        "layers and final_norm must have one width d_model, got [6, 9, 6]",
    ),
    "a final norm of another width": (
        layers(layer(), final_norm=LayerNormWeights.init(5)),
        ValueError,
        "layers and final_norm must have one width d_model, got [6, 5, 5]",
    ),
    "layers of two dtypes": (
        layers(layer(), layer().to(dtype="float32")),
        TypeError,
        "layers.1.self_attention.W_Q must have the dtype of layers.0.self_attention.W_Q "
        "(float64), got float32",
    ),
    "init of -1 layers": (
        lambda: EncoderWeights.init(0, -1, 6, 3, 5),
        ValueError,
        "n_layers must be at least 0, got -1",
    ),
    "init of a float of layers": (
        lambda: EncoderWeights.init(0, 2.0, 6, 3, 5),
        TypeError,
        "n_layers must be an int, got float",
    ),
    # calls
    "weights of a stack": (
        call(weights=stack()),
        TypeError,
        "weights must be EncoderLayerWeights, got EncoderWeights",
    ),
    "weights of a layer": (
        in_stack(weights=layer()),
        TypeError,
        "weights must be EncoderWeights, got EncoderLayerWeights",
    ),
    "x a list": (call([[1.0]]), TypeError, f"x {NOT_AN_ARRAY}list"),
    "x of integers": (
        call(dtype="int64"),
        TypeError,
        "x must have a real floating dtype, got int64",
    ),
    "x of another dtype": (
        call(dtype="float32"),
        TypeError,
        "weights must have the dtype of x (float32), got float64",
    ),
    "x of another library": (
        in_stack(torch.ones(4, 6)),
        TypeError,
        "weights must be an array of the same library as x (torch), got numpy",
    ),
    "x of another width": (call((2, 4, 5)), ValueError, f"{OF_X}(2, 4, 5)"),
    "x a vector": (in_stack((6,)), ValueError, f"{OF_X}(6,)"),
    "x a string where there are no layers": (
        in_stack("x", EncoderWeights(())),
        TypeError,
        f"x {NOT_AN_ARRAY}str",
    ),
    "x a vector where there are no layers": (
        in_stack((3,), EncoderWeights(())),
        ValueError,
        "x must have shape (..., n, d_model) to match the weights, got (3,)",
    ),
    "x of another width than the final norm": (
        in_stack((4, 5), EncoderWeights((), LayerNormWeights.init(6))),
        ValueError,
        f"{OF_X}(4, 5)",
    ),
    "odd heads that rotate in a later layer": (
        in_stack(weights=EncoderWeights((layer(), layer(n_heads=2))), rotate=True),
        ValueError,
        "d_k must be even to rotate pairs of features, got 3",
    ),
    "mask of another library": (
        masked(torch.ones(4, 4, dtype=torch.bool)),
        TypeError,
        "mask must be an array of the same library as x (numpy), got torch",
    ),
    "odd heads that rotate": (
        call(weights=layer(n_heads=2), rotate=True),
        ValueError,
        "d_k must be even to rotate pairs of features, got 3",
    ),
    "mask of numbers": (
        masked(np.ones((4, 4))),
        TypeError,
        f"{NOT_BOOLEAN}float64{AS_NUMBERS}",
    ),
    "mask a list": (masked([[True]]), TypeError, f"mask {NOT_AN_ARRAY}list"),
    "mask of another length": (
        masked(np.ones((4, 5), bool)),
        ValueError,
        f"mask {SCORES}(3, 4, 4), got (4, 5)",
    ),
    "mask for each sequence": (
        masked(np.ones((2, 4, 4), bool), (2,)),
        ValueError,
        "mask must have 1 or 3 entries on the axis of the heads, the third from the right, got "
        "shape (2, 4, 4); one mask a sequence is mask[:, None]",
    ),
    "mask for the heads of one layer alone": (
        in_stack(
            (4, 6),
            EncoderWeights((layer(), layer(n_heads=1))),
            np.ones((3, 4, 4), bool),
        ),
        ValueError,
        "mask must have 1 entry on the axis of the heads, the third from the right, got "
        "shape (3, 4, 4)",
    ),
}


@pytest.mark.parametrize("row", ERRORS)
def test_error(row):
    function, kind, message = ERRORS[row]
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        function()
    assert type(caught.value) is kind
