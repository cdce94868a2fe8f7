"""Decoder layers and stacks against the loop and PyTorch, in every library."""

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
    DecoderLayerWeights,
    DecoderWeights,
    FeedForwardWeights,
    LayerNormWeights,
    MultiHeadWeights,
    check,
    decoder,
    decoder_layer,
    decoder_layer_with_weights,
    decoder_with_weights,
    masking,
)
from attnbook.transformers.decoder import decoder_of, memory_keys_and_values

ORDERS = ("pre", "post")
orders = pytest.mark.parametrize("norm", ORDERS)
LEADING = st.sampled_from(
    (((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((3, 1), (2,)), ((0,), ()))
)


def layer(seed=0, d_model=6, n_heads=3, d_ff=5, d_memory=None, **options):
    """Return the weights of a layer in which nothing is 0 or 1; the memory may be wider."""
    weights = DecoderLayerWeights.init(0, d_model, n_heads, d_ff, **options)
    if d_memory is not None:
        bias = options.get("bias", True)
        heads = MultiHeadWeights.init(0, d_model, n_heads, d_key=d_memory, bias=bias)
        weights = replace(weights, cross_attention=heads)
    return shaken(weights, seed)


def stack(seed=0, n_layers=2, d_model=6, n_heads=3, d_ff=5, **options):
    return shaken(DecoderWeights.init(0, n_layers, d_model, n_heads, d_ff, **options), seed)


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def optional(library, x):
    return None if x is None else library.array(x)


OPTIONS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(ORDERS),
        "activation": st.sampled_from(("relu", "gelu")),
        "bias": st.booleans(),
        "cross": st.booleans(),
        "n_kv_heads": st.sampled_from((None, 1, 3)),
    }
)


# Against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=25)
@given(
    LEADING, st.sampled_from((0, 1, 4)), st.sampled_from((0, 1, 5)),
    st.sampled_from(LAYER_MASKS), st.sampled_from(LAYER_MASKS), OPTIONS, st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_layer_agrees_with_the_loop(
    library, dtype, leading, n_t, n_s, kind, memory_kind, options, rotate, seed
):
    weights, rng = layer(seed, **options), np.random.default_rng(seed)
    x = library.array(tokens(*leading[0], n_t, 6, seed=seed), dtype)
    memory, memory_mask, both = None, None, leading[0]
    if options["cross"]:
        memory = library.array(tokens(*leading[1], n_s, 6, seed=seed + 1), dtype)
        both = np.broadcast_shapes(*leading)
        memory_mask = layer_mask(rng, memory_kind, (*both, 3, n_t, n_s))
    mask = layer_mask(rng, kind, (*leading[0], 3, n_t, n_t))
    before = library.numpy(x).copy()
    placed = library.place(weights, dtype)
    arguments = (x, memory, placed, optional(library, mask), optional(library, memory_mask))
    got, shares, cross = decoder_layer_with_weights(*arguments, rotate=rotate)
    assert library.same_kind(got, x)
    exact, exact_shares, exact_cross = oracle.decoder_layer(
        before,
        None if memory is None else library.numpy(memory),
        *(held(library, weights, dtype), mask, memory_mask),
        oracle.rotary if rotate else oracle.as_it_is,
    )
    assert exact.shape == (*both, n_t, 6)
    close(library.numpy(got), exact, dtype, size=500)
    close(library.numpy(shares), exact_shares, dtype, size=64)
    if options["cross"]:
        assert library.same_kind(cross, x)
        close(library.numpy(cross), exact_cross, dtype, size=300)
    else:
        assert cross is None
    alone = decoder_layer(*arguments, rotate=rotate)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))
    np.testing.assert_array_equal(library.numpy(x), before)


@settings(max_examples=15)
@given(
    st.sampled_from((0, 1, 2, 3)), st.sampled_from((None, False, True)), OPTIONS,
    st.sampled_from(LAYER_MASKS), st.sampled_from(LAYER_MASKS), st.booleans(),
)  # fmt: skip
def test_stack_agrees_with_the_loop(library, n_layers, final, options, kind, other, rotate):
    weights, rng = stack(7, n_layers, final_norm=final, **options), np.random.default_rng(0)
    assert len(weights.layers) == n_layers
    expected = options["norm"] == "pre" if final is None else final
    assert (weights.final_norm is not None) == expected
    x = library.array(tokens(2, 4, 6))
    memory = memory_mask = None
    if options["cross"] and n_layers:
        memory = tokens(2, 5, 6, seed=1)
        memory_mask = layer_mask(rng, other, (2, 3, 4, 5))
    mask = layer_mask(rng, kind, (2, 3, 4, 4))
    turn = oracle.rotary if rotate else oracle.as_it_is
    exact = oracle.decoder(library.numpy(x), memory, weights, mask, memory_mask, turn)
    arguments = [x, optional(library, memory), library.place(weights)]
    arguments += [optional(library, mask), optional(library, memory_mask)]
    got, shares, cross = decoder_with_weights(*arguments, rotate=rotate)
    assert library.same_kind(got, x)
    close(library.numpy(got), exact[0], "float64", size=2000)
    assert isinstance(shares, tuple)
    assert isinstance(cross, tuple)
    assert len(shares) == len(cross) == n_layers
    for one, other_one in zip(shares, exact[1], strict=True):
        assert tuple(one.shape) == (2, 3, 4, 4)
        close(library.numpy(one), other_one, "float64", size=300)
    for one, other_one in zip(cross, exact[2], strict=True):
        if memory is None:
            assert one is other_one is None
        else:
            assert tuple(one.shape) == (2, 3, 4, 5)
            close(library.numpy(one), other_one, "float64", size=300)
    alone = decoder(*arguments, rotate=rotate)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(got))


@pytest.mark.parametrize("dtype", HALF)
@orders
@pytest.mark.parametrize("rotate", [False, True])
def test_half_precision(library, dtype, norm, rotate):
    need(library, dtype)
    weights = stack(norm=norm, activation="gelu")
    x, memory = library.array(tokens(2, 4, 6), dtype), library.array(tokens(5, 6, seed=1), dtype)
    got, shares, cross = decoder_with_weights(
        x, memory, library.place(weights, dtype), rotate=rotate
    )
    assert all(library.same_kind(y, x) for y in (got, *shares, *cross))
    turn = oracle.rotary if rotate else oracle.as_it_is
    exact, _, _ = oracle.decoder(
        *(library.numpy(x), library.numpy(memory), held(library, weights, dtype)), turn=turn
    )
    atol = {"float16": 0.03, "bfloat16": 0.3}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, atol=atol)


def test_the_memory_may_have_a_width_of_its_own(library):
    weights = DecoderWeights((layer(d_memory=7), layer(1, d_memory=7, norm="post")))
    x, memory = library.array(tokens(4, 6)), library.array(tokens(5, 7, seed=1))
    got = decoder(x, memory, library.place(weights))
    exact, _, _ = oracle.decoder(library.numpy(x), library.numpy(memory), weights)
    close(library.numpy(got), exact, "float64", size=1000)
    got = decoder_layer(x, memory, library.place(weights.layers[1]))
    exact, _, _ = oracle.decoder_layer(library.numpy(x), library.numpy(memory), weights.layers[1])
    close(library.numpy(got), exact, "float64", size=1000)


def test_the_memory_mask_hides_source_tokens(library):
    # what is hidden may as well not be there, and weighs nothing
    weights = library.place(stack())
    x, memory = tokens(4, 6), tokens(5, 6, seed=1)
    seen = np.array([True, False, True, True, False])
    mine = library.array(x), library.array(memory), weights
    got, _, cross = decoder_with_weights(*mine, None, library.array(seen))
    short = decoder(mine[0], library.array(memory[seen]), weights)
    np.testing.assert_allclose(library.numpy(got), library.numpy(short), atol=1e-12)
    for share in cross:
        assert (library.numpy(share)[..., ~seen] == 0).all()
        np.testing.assert_allclose(library.numpy(share).sum(axis=-1), np.ones((3, 4)))
    assert not np.allclose(library.numpy(decoder(*mine)), library.numpy(got))


# PyTorch's own layer.


def torch_heads(attention, n_heads):
    return MultiHeadWeights(
        *(W.T for W in attention.in_proj_weight.split(6)),
        attention.out_proj.weight.T,
        *attention.in_proj_bias.split(6),
        attention.out_proj.bias,
        n_heads=n_heads,
    )


@orders
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_agrees_with_torch_and_has_its_gradients(norm, activation):
    torch.manual_seed(5)
    module = torch.nn.TransformerDecoderLayer(
        6, 3, 5, dropout=0.0, activation=activation, norm_first=norm == "pre",
        batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.7)
    norms = [LayerNormWeights(n.weight, n.bias) for n in (module.norm1, module.norm2, module.norm3)]
    weights = DecoderLayerWeights(
        torch_heads(module.self_attn, 3),
        torch_heads(module.multihead_attn, 3),
        FeedForwardWeights(
            *(module.linear1.weight.T, module.linear1.bias),
            *(module.linear2.weight.T, module.linear2.bias, activation),
        ),
        *(*norms, norm),
    )
    x = torch.tensor(tokens(2, 7, 6), requires_grad=True)
    memory = torch.tensor(tokens(2, 5, 6, seed=1), requires_grad=True)
    mask = masking.causal(7, like=x)
    memory_mask = torch.rand(7, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    memory_mask[:, 0] = True
    theirs = module(x, memory, tgt_mask=~mask, memory_mask=~memory_mask)
    ours = decoder_layer(x, memory, weights, mask, memory_mask)
    torch.testing.assert_close(ours, theirs)
    leaves = [x, memory, *module.parameters()]
    cotangent = torch.tensor(tokens(2, 7, 6, seed=1))
    grads = (torch.autograd.grad(y, leaves, cotangent) for y in (ours, theirs))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@orders
def test_gradcheck(norm):
    weights = layer(d_model=4, n_heads=2, d_ff=3, norm=norm, activation="gelu").to("torch")
    weights, leaves = leaves_of(weights)
    x = torch.tensor(tokens(3, 4), requires_grad=True)
    memory = torch.tensor(tokens(2, 4, seed=1), requires_grad=True)
    mask, memory_mask = masking.causal(3, like=x), torch.tensor([[True, False], [False] * 2] * 2)

    def function(x, memory, *arrays):
        one = weights.with_arrays(dict(zip(leaves, arrays, strict=True)))
        return decoder_layer(x, memory, one, mask, memory_mask[:3], rotate=True)

    assert torch.autograd.gradcheck(function, (x, memory, *leaves.values()), fast_mode=True)


@pytest.mark.parametrize("dtype", [*HALF, "float32", "float64"])
@orders
def test_gradients_reach_everything_and_are_finite(dtype, norm):
    weights, leaves = leaves_of(stack(norm=norm, final_norm=True).to("torch", dtype=dtype))
    x, memory = (
        torch.tensor(tokens(2, n, 6), dtype=getattr(torch, dtype), requires_grad=True)
        for n in (4, 5)
    )
    memory_mask = masking.padding(torch.tensor([[5], [0]]), 5)
    decoder(x, memory, weights, masking.causal(4, like=x), memory_mask).square().sum().backward()
    for name, leaf in {"x": x, "memory": memory, **leaves}.items():
        assert leaf.grad.dtype == leaf.dtype
        assert bool(torch.isfinite(leaf.grad).all()), name
        # a bias of the keys shifts all scores of a query alike, which the softmax does not see
        assert bool((leaf.grad != 0).any()) or name.endswith("b_K"), name


def test_vmap_meta_and_devices():
    weights = stack().to("torch")
    x, memory = torch.tensor(tokens(3, 4, 6)), torch.tensor(tokens(3, 5, 6))
    mapped = torch.func.vmap(lambda a, b: decoder(a, b, weights, rotate=True))(x, memory)
    torch.testing.assert_close(mapped, decoder(x, memory, weights, rotate=True))
    empty = decoder_with_weights(x.to("meta"), memory.to("meta"), weights.to(device="meta"))
    assert (empty[0].shape, empty[2][1].shape) == ((3, 4, 6), (3, 3, 4, 5))
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    there = stack().to("array_api_strict", device=device)
    arrays = (strict.asarray(tokens(n, 6), device=device) for n in (4, 5))
    assert decoder(*arrays, there, rotate=True).device == device


# Properties.


@orders
def test_without_positions_and_masks_order_does_not_matter(norm):
    weights, memory = stack(norm=norm, activation="gelu"), tokens(5, 6, seed=1)
    report = check.permutation_equivariance(lambda x: decoder(x, memory, weights), tokens(3, 7, 6))
    assert report.passed, report
    x, order = tokens(4, 6), np.random.default_rng(0).permutation(5)
    np.testing.assert_allclose(
        decoder(x, memory[order], weights, rotate=True),
        decoder(x, memory, weights, rotate=True),  # the source is not rotated
        atol=1e-12,
    )


@orders
@pytest.mark.parametrize("cross", [False, True])
def test_a_causal_mask_leaks_nothing(norm, cross):
    weights, mask = stack(norm=norm, cross=cross), masking.causal(7)
    memory = tokens(5, 6, seed=1) if cross else None
    report = check.no_future_leak(
        lambda x: decoder(x, memory, weights, mask, rotate=True), tokens(2, 7, 6)
    )
    assert report.passed, report
    # layers add no mask by themselves
    assert not check.no_future_leak(lambda x: decoder(x, memory, weights), tokens(2, 7, 6)).passed


@orders
def test_padding_of_target_and_source_hides_what_is_behind_it(norm):
    weights, x = stack(norm=norm), tokens(3, 4, 6)

    def padding(lengths, n):
        return masking.padding(lengths, n)[:, None]

    memory = tokens(3, 7, 6, seed=1)
    report = check.padding_invariance(
        lambda x, mask: decoder(x, memory[:1], weights, mask), tokens(3, 7, 6), padding=padding
    )
    assert report.passed, report
    # of a source that ends early nothing else reaches the target
    lengths = [7, 2, 5]
    got = decoder(x, memory, weights, None, padding(lengths, 7))
    for target, source, length, output in zip(x, memory, lengths, got, strict=True):
        alone = decoder(target, source[:length], weights)
        np.testing.assert_allclose(output, alone, atol=1e-12)


# Dropout.


def double_everything(weights):
    """Return weights that do what a `drop` that doubles does."""
    factors = {"W_O": 2, "b_O": 2, "W_2": 4, "b_2": 2}
    return weights.with_arrays(
        {name: factors.get(name.split(".")[-1], 1) * x for name, x in weights.arrays().items()}
    )


@orders
@pytest.mark.parametrize("cross", [False, True])
def test_drop_is_applied_to_all_sublayers_and_to_the_hidden_units(library, norm, cross):
    weights, seen = stack(norm=norm, cross=cross), []

    def drop(y):
        seen.append(tuple(y.shape))
        return 2 * y

    x, memory = tokens(2, 4, 6), tokens(7, 6, seed=1) if cross else None
    places = [(2, 4, 6)] * (1 + cross) + [(2, 4, 5), (2, 4, 6)]
    mine = library.array(x), optional(library, memory)
    got = decoder(*mine, library.place(weights), drop=drop)
    assert seen == places * 2
    exact = oracle.decoder(x, memory, double_everything(weights))[0]
    close(library.numpy(got), exact, "float64", size=2000)
    seen.clear()
    got = decoder_layer(*mine, library.place(weights.layers[0]), drop=drop)
    assert seen == places
    exact = oracle.decoder_layer(x, memory, double_everything(weights.layers[0]))[0]
    close(library.numpy(got), exact, "float64", size=2000)


# A cache of keys and values.


@orders
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("chunk", "leading"), [(1, (2,)), (2, ()), (3, (2, 1))])
def test_the_past_continues_where_it_ended(library, norm, cross, chunk, leading):
    weights = library.place(stack(norm=norm, cross=cross, n_kv_heads=1))
    x = tokens(*leading, 7, 6)
    memory = library.array(tokens(*leading, 5, 6, seed=1)) if cross else None
    whole = library.array(x)
    expected = library.numpy(decoder(whole, memory, weights, masking.causal(7, like=whole)))
    heads, past, outputs = memory_keys_and_values(memory, weights.layers), None, []
    for start in range(0, 7, chunk):
        stop = min(start + chunk, 7)
        new = library.array(x[..., start:stop, :])
        mask = masking.causal(stop - start, stop, like=new)
        y, (_, _, past) = decoder_of(new, heads, weights, mask, None, past=past)
        assert {tuple(k.shape) for both in past for k in both} == {(*leading, 1, stop, 2)}
        outputs.append(library.numpy(y))
    np.testing.assert_allclose(np.concatenate(outputs, axis=-2), expected, atol=1e-12)


# The weights.


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_init_draws_both_attentions_then_feed_forward(bias, cross):
    options = {"norm": "post", "activation": "gelu", "bias": bias, "n_kv_heads": 1}
    weights = DecoderLayerWeights.init(3, 6, 3, 5, cross=cross, **options)
    rng = np.random.default_rng(3)
    heads = [MultiHeadWeights.init(rng, 6, 3, n_kv_heads=1, bias=bias) for _ in range(1 + cross)]
    feed_forward = FeedForwardWeights.init(rng, 6, 5, activation="gelu", bias=bias)
    norm = LayerNormWeights.init(6, bias=bias)
    for name, expected in {
        "self_attention": heads[0],
        "cross_attention": heads[1] if cross else None,
        "feed_forward": feed_forward,
        "self_attention_norm": norm,
        "cross_attention_norm": norm if cross else None,
        "feed_forward_norm": norm,
    }.items():
        part = getattr(weights, name)
        assert (part is None) == (expected is None)
        if part is not None:
            assert list(part.arrays()) == list(expected.arrays())
            for key, x in expected.arrays().items():
                np.testing.assert_array_equal(part.arrays()[key], x)
    assert (weights.norm, weights.feed_forward.activation) == ("post", "gelu")


def test_init_defaults():
    weights = DecoderLayerWeights.init(0, 6, 3, 5)
    assert (weights.norm, weights.feed_forward.activation) == ("pre", "relu")
    assert (len(weights.arrays()), weights.cross_attention.n_kv_heads) == (26, 3)
    assert DecoderWeights((weights,)).final_norm is None
    whole = DecoderWeights.init(0, 1, 6, 3, 5)
    assert whole.layers[0].norm == "pre"
    assert whole.layers[0].cross_attention is not None
    assert whole.final_norm.bias is not None
    assert DecoderWeights.init(0, 1, 6, 3, 5, bias=False).final_norm.bias is None
    assert DecoderWeights.init(0, 1, 6, 3, 5, norm="post").final_norm is None
    parts = [getattr(weights, name) for name in list(vars(weights))[:6]]
    assert DecoderLayerWeights(*parts).norm == "pre"


def test_init_of_a_stack_draws_layer_after_layer():
    weights = DecoderWeights.init(np.random.default_rng(3), 3, 6, 3, 5, cross=False)
    rng = np.random.default_rng(3)
    for one in weights.layers:
        expected = DecoderLayerWeights.init(rng, 6, 3, 5, cross=False)
        assert list(one.arrays()) == list(expected.arrays())
        for name, x in expected.arrays().items():
            np.testing.assert_array_equal(one.arrays()[name], x)
    assert len(weights.layers) == 3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_number_of_parameters(bias, cross):
    d, d_ff, h, g, n = 8, 11, 4, 2, 3
    weights = DecoderWeights.init(0, n, d, h, d_ff, bias=bias, n_kv_heads=g, cross=cross)
    of_heads = 2 * d * d + 2 * d * (d * g // h) + bias * (2 * d + 2 * d * g // h)
    of_layer = (1 + cross) * of_heads + 2 * d * d_ff + bias * (d_ff + d)
    of_layer += (2 + cross) * d * (1 + bias)
    assert sum(x.size for x in weights.arrays().values()) == n * of_layer + d * (1 + bias)


# Errors.


def part(**parts):
    return lambda: replace(layer(), **parts)


def call(x=(4, 6), memory=(5, 6), weights=None, mask=None, memory_mask=None, **options):
    x, memory = (np.ones(a) if isinstance(a, tuple) else a for a in (x, memory))
    weights = layer() if weights is None else weights
    return lambda: decoder_layer(x, memory, weights, mask, memory_mask, **options)


def in_stack(x=(4, 6), memory=(5, 6), weights=None, mask=None, memory_mask=None, **options):
    x, memory = (np.ones(a) if isinstance(a, tuple) else a for a in (x, memory))
    weights = stack() if weights is None else weights
    return lambda: decoder(x, memory, weights, mask, memory_mask, **options)


def layers(*parts, final_norm=None):
    return lambda: DecoderWeights(parts, final_norm)


BOTH = "cross_attention and cross_attention_norm must both be there or both be None"
OF_X = "x must have shape (..., n, 6) to match the weights, got "
OF_MEMORY = "memory must have shape (..., n_s, 6) to match the weights, got "
ALONE = "must be None, since no layer has a cross-attention"
ONE_WIDTH = "layers must all attend to a memory of one width, or none to any, got "
ERRORS = {
    "attention None": (
        part(self_attention=None),
        TypeError,
        "self_attention must be MultiHeadWeights, got NoneType",
    ),
    "cross attention an array": (
        part(cross_attention=np.ones((6, 6))),
        TypeError,
        "cross_attention must be MultiHeadWeights, got ndarray",
    ),
    "cross attention without its norm": (
        part(cross_attention_norm=None),
        ValueError,
        BOTH,
    ),
    "norm without its cross attention": (part(cross_attention=None), ValueError, BOTH),
    "cross norm an array": (
        part(cross_attention_norm=np.ones(6)),
        TypeError,
        "cross_attention_norm must be LayerNormWeights, got ndarray",
    ),
    "last norm None": (
        part(feed_forward_norm=None),
        TypeError,
        "feed_forward_norm must be LayerNormWeights, got NoneType",
    ),
    "feed forward None": (
        part(feed_forward=None),
        TypeError,
        "feed_forward must be FeedForwardWeights, got NoneType",
    ),
    "order unknown": (
        part(norm="sandwich"),
        ValueError,
        "norm must be one of pre, post, got 'sandwich'",
    ),
    "queries of the memory of another width": (
        part(cross_attention=MultiHeadWeights.init(0, 9, 3, d_key=6, d_out=6)),
        ValueError,
        "cross_attention.W_Q must have 6 rows, got shape (9, 9)",
    ),
    "keys and values of two widths": (
        part(cross_attention=MultiHeadWeights.init(0, 6, 3, d_key=5, d_value=7)),
        ValueError,
        "cross_attention must have W_K and W_V of as many rows as the memory is wide, got 5 and 7",
    ),
    "cross attention to another width": (
        part(cross_attention=MultiHeadWeights.init(0, 6, 3, d_out=7)),
        ValueError,
        "cross_attention.W_O must have length 6 on its last axis, the width of the tokens that it "
        "is added to, got shape (6, 7)",
    ),
    "cross heads that do not join": (
        part(cross_attention=MultiHeadWeights.init(0, 6, 3, d_v=3, output=False)),
        ValueError,
        "cross_attention must have heads that join to width 6, or a W_O, got 9",
    ),
    "cross norm of another width": (
        part(cross_attention_norm=LayerNormWeights.init(5)),
        ValueError,
        "cross_attention_norm.gain must have length 6 on its last axis, the width of the tokens "
        "that it is added to, got shape (5,)",
    ),
    "layers a generator": (
        lambda: DecoderWeights(x for x in ()),
        TypeError,
        "layers must be a tuple, got generator",
    ),
    "a layer of another class": (
        layers(attnbook.EncoderLayerWeights.init(0, 6, 3, 5)),
        TypeError,
        "layers[0] must be DecoderLayerWeights, got EncoderLayerWeights",
    ),
    "layers of two widths": (
        layers(layer(), layer(d_model=9)),
        ValueError,
        "layers and final_norm must have one width d_model, got [6, 9]",
    ),
    "layers with and without a memory": (
        layers(layer(), layer(cross=False)),
        ValueError,
        f"{ONE_WIDTH}6 and None",
    ),
    "layers with two memories": (
        layers(layer(), layer(d_memory=7), layer()),
        ValueError,
        f"{ONE_WIDTH}6 and 7",
    ),
    # calls
    "weights of an encoder": (
        call(weights=attnbook.EncoderLayerWeights.init(0, 6, 3, 5)),
        TypeError,
        "weights must be DecoderLayerWeights, got EncoderLayerWeights",
    ),
    "weights of a layer": (
        in_stack(weights=layer()),
        TypeError,
        "weights must be DecoderWeights, got DecoderLayerWeights",
    ),
    "x a list": (call([[1.0]]), TypeError, f"x {NOT_AN_ARRAY}list"),
    "x of another width": (in_stack((4, 5)), ValueError, f"{OF_X}(4, 5)"),
    "x a vector": (call((6,)), ValueError, f"{OF_X}(6,)"),
    "no memory": (
        call(memory=None),
        ValueError,
        "memory must be an array for the cross-attention, got None",
    ),
    "memory a list": (call(memory=[[1.0]]), TypeError, f"memory {NOT_AN_ARRAY}list"),
    "memory of another dtype": (
        call(memory=np.ones((5, 6), "float32")),
        TypeError,
        "memory must have the dtype of x (float64), got float32",
    ),
    "memory of another library": (
        in_stack(memory=torch.ones(5, 6, dtype=torch.float64)),
        TypeError,
        "memory must be an array of the same library as x (numpy), got torch",
    ),
    "memory of another width": (call(memory=(5, 7)), ValueError, f"{OF_MEMORY}(5, 7)"),
    "memory a vector": (call(memory=(6,)), ValueError, f"{OF_MEMORY}(6,)"),
    "memory of another batch": (
        call((2, 4, 6), (3, 5, 6)),
        ValueError,
        "memory must have leading axes that broadcast with (2,), got shape (3, 5, 6)",
    ),
    "a memory nobody reads": (
        call(weights=layer(cross=False)),
        ValueError,
        f"memory {ALONE}",
    ),
    "a mask for no memory": (
        in_stack(memory=None, weights=stack(cross=False), memory_mask=np.ones((4, 5), bool)),
        ValueError,
        f"memory_mask {ALONE}",
    ),
    "odd heads that rotate": (
        call(weights=layer(n_heads=2), rotate=True),
        ValueError,
        "d_k must be even to rotate pairs of features, got 3",
    ),
    "x a string where there are no layers": (
        in_stack("x", None, DecoderWeights(())),
        TypeError,
        f"x {NOT_AN_ARRAY}str",
    ),
    "odd heads of a stack that rotate": (
        in_stack(weights=stack(n_heads=2), rotate=True),
        ValueError,
        "d_k must be even to rotate pairs of features, got 3",
    ),
    "mask of a stack of another length": (
        in_stack(mask=np.ones((4, 5), bool)),
        ValueError,
        f"mask {SCORES}(3, 4, 4), got (4, 5)",
    ),
    "mask of another library": (
        call(mask=torch.ones(4, 4, dtype=torch.bool)),
        TypeError,
        "mask must be an array of the same library as x (numpy), got torch",
    ),
    "memory mask of another library": (
        call(memory_mask=torch.ones(4, 5, dtype=torch.bool)),
        TypeError,
        "memory_mask must be an array of the same library as x (numpy), got torch",
    ),
    "mask of another length": (
        call(mask=np.ones((4, 5), bool)),
        ValueError,
        f"mask {SCORES}(3, 4, 4), got (4, 5)",
    ),
    "memory mask of another length": (
        call(memory_mask=np.ones((4, 4), bool)),
        ValueError,
        f"memory_mask {SCORES}(3, 4, 5), got (4, 4)",
    ),
    "memory mask of numbers": (
        call(memory_mask=np.ones((4, 5), int)),
        TypeError,
        f"memory_{NOT_BOOLEAN}int64{AS_NUMBERS}",
    ),
    "memory mask for each sequence": (
        in_stack((2, 4, 6), (5, 6), memory_mask=np.ones((2, 4, 5), bool)),
        ValueError,
        "memory_mask must have 1 or 3 entries on the axis of the heads, the third from the right, "
        "got shape (2, 4, 5); one mask a sequence is memory_mask[:, None]",
    ),
}


@pytest.mark.parametrize("row", ERRORS)
def test_error(row):
    function, kind, message = ERRORS[row]
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as caught:
        function()
    assert type(caught.value) is kind
