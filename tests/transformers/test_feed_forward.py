"""The feed-forward sublayer and its activations against the loop and PyTorch, in every library."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, held, leaves_of, need
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import FeedForwardWeights, feed_forward, gelu, relu

dtypes = pytest.mark.parametrize("dtype", DTYPES)
LEADING = st.sampled_from(((), (2,), (2, 3), (0,)))
SIZES = st.sampled_from((0, 1, 3, 5))


def drawn(seed=0, d_model=5, d_ff=11, d_out=7, activation="relu", bias=True):
    """Return weights of random numbers with widths that are all different."""
    rng = np.random.default_rng(seed)
    W_1, W_2 = rng.standard_normal((d_model, d_ff)), rng.standard_normal((d_ff, d_out))
    b_1, b_2 = (rng.standard_normal(d_ff), rng.standard_normal(d_out)) if bias else (None, None)
    return FeedForwardWeights(W_1, b_1, W_2, b_2, activation)


# The activations.

NUMBERS = np.array([-40.0, -6.0, -1.0, -0.5, -1e-3, 0.0, 1e-8, 0.3, 1.0, 2.5, 6.0, 40.0, 300.0])


@dtypes
@pytest.mark.parametrize("shape", [(13,), (1, 13), (13, 1), ()])
def test_activations_agree_with_the_loop(library, dtype, shape):
    need(library, dtype)
    numbers = NUMBERS.reshape(shape) if shape else np.array(-0.75)
    x = library.array(numbers, dtype)
    rounded = library.numpy(x)
    for function, name in ((relu, "relu"), (gelu, "gelu")):
        got = function(x)
        assert library.same_kind(got, x)
        exact = getattr(oracle, name)(np.atleast_1d(rounded)).reshape(shape)
        close(library.numpy(got), exact, dtype, size=1)
        np.testing.assert_array_equal(library.numpy(x), rounded)


@pytest.mark.parametrize("dtype", HALF)
def test_gelu_rounds_half_precision_once(library, dtype):
    need(library, dtype)
    x = library.array(np.linspace(-3, 3, 101), dtype)
    exact = oracle.gelu(library.numpy(x))
    rounded = library.numpy(library.array(exact, dtype))
    np.testing.assert_allclose(library.numpy(gelu(x)), rounded, rtol=2e-2, atol=1e-6)
    assert np.mean(library.numpy(gelu(x)) == rounded) > 0.97


def test_activations_by_hand(library):
    x = library.array(np.array([-math.inf, math.nan, math.inf, -0.0]))
    np.testing.assert_array_equal(library.numpy(relu(x)), [0, math.nan, math.inf, 0])
    x = library.array(np.array([math.nan, math.inf, 0.0]))
    np.testing.assert_array_equal(library.numpy(gelu(x)), [math.nan, math.inf, 0])
    for function in (relu, gelu):
        assert tuple(function(library.array(np.ones((2, 0, 3)))).shape) == (2, 0, 3)


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_activations_agree_with_torch_and_have_its_gradients(name):
    x = torch.tensor(NUMBERS, requires_grad=True)
    ours, theirs = getattr(attnbook, name)(x), getattr(torch.nn.functional, name)(x)
    torch.testing.assert_close(ours, theirs, atol=1e-15, rtol=1e-12)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
    moved = x != 0  # at 0 the maximum of two equal numbers has half the gradient
    torch.testing.assert_close(grads[0][moved], grads[1][moved], atol=1e-15, rtol=1e-12)
    assert bool(torch.isfinite(grads[0]).all())


def test_gelu_stays_on_its_device():
    assert gelu(torch.empty(2, 3, device="meta")).shape == (2, 3)
    assert relu(torch.empty(2, 3, device="meta")).device.type == "meta"
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    x = strict.asarray(np.ones((2, 3)), device=strict.Device("device1"))
    assert relu(x).device == x.device


# The sublayer.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(LEADING, SIZES, st.sampled_from(("relu", "gelu")), st.booleans(), st.integers(0, 99))
def test_agrees_with_the_loop(library, dtype, leading, n, activation, bias, seed):
    weights = drawn(seed, activation=activation, bias=bias)
    x = np.random.default_rng(seed).standard_normal((*leading, n, 5))
    mine = library.array(x, dtype)
    got = feed_forward(mine, library.place(weights, dtype))
    assert library.same_kind(got, mine)
    exact = oracle.feed_forward(library.numpy(mine), held(library, weights, dtype))
    close(library.numpy(got), exact, dtype, size=100)
    np.testing.assert_array_equal(library.numpy(mine), library.numpy(library.array(x, dtype)))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_half_precision_rounds_after_each_step(library, dtype, activation):
    need(library, dtype)
    weights = drawn(activation=activation)
    x = library.array(np.random.default_rng(1).standard_normal((3, 13, 5)), dtype)
    got = feed_forward(x, library.place(weights, dtype))
    assert library.same_kind(got, x)
    expected = oracle.feed_forward(
        *(library.numpy(x), held(library, weights, dtype)),
        rounded=lambda y: library.numpy(library.array(y, dtype)),
    )
    size = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(library.numpy(got), expected, rtol=0, atol=48 * size)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_agrees_with_torch_and_has_its_gradients(activation, bias):
    weights, leaves = leaves_of(drawn(activation=activation, bias=bias).to("torch"))
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    linear, act = torch.nn.functional.linear, getattr(torch.nn.functional, activation)
    theirs = linear(act(linear(x, weights.W_1.T, weights.b_1)), weights.W_2.T, weights.b_2)
    ours = feed_forward(x, weights)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.linspace(-1, 1, theirs.numel(), dtype=torch.float64).reshape(theirs.shape)
    grads = (torch.autograd.grad(y, [x, *leaves.values()], cotangent) for y in (ours, theirs))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_and_vmap():
    weights, leaves = leaves_of(drawn(activation="gelu", d_ff=3).to("torch"))
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(2, 2, 5).requires_grad_()

    def function(x, *arrays):
        return feed_forward(x, weights.with_arrays(dict(zip(leaves, arrays, strict=True))))

    assert torch.autograd.gradcheck(function, (x, *leaves.values()))
    mapped = torch.func.vmap(lambda row: feed_forward(row, weights))(x)
    torch.testing.assert_close(mapped, feed_forward(x, weights))


# The weights.


@pytest.mark.parametrize("bias", [False, True])
def test_init_draws_both_matrices_in_order(bias):
    for rng in (7, np.random.default_rng(7)):
        weights = FeedForwardWeights.init(rng, 5, 11, bias=bias)
        draws, bound = np.random.default_rng(7), math.sqrt(6 / 16)
        for name, shape in (("W_1", (5, 11)), ("W_2", (11, 5))):
            np.testing.assert_array_equal(
                getattr(weights, name), draws.uniform(-bound, bound, shape), err_msg=name
            )
        assert list(weights.arrays()) == (["W_1", "b_1", "W_2", "b_2"] if bias else ["W_1", "W_2"])
        if bias:
            np.testing.assert_array_equal(weights.b_1, np.zeros(11))
            np.testing.assert_array_equal(weights.b_2, np.zeros(5))
            assert {weights.b_1.dtype, weights.b_2.dtype} == {np.dtype("f8")}
    assert weights.activation == "relu"
    assert FeedForwardWeights.init(0, 5, 11).b_1 is not None
    assert FeedForwardWeights.init(0, 5, 11, activation="gelu").activation == "gelu"
    assert drawn().activation == "relu"


# Errors.


def weights(W_1=(5, 11), b_1=None, W_2=(11, 7), b_2=None, *activation):
    arrays = [np.ones(a) if isinstance(a, tuple) else a for a in (W_1, b_1, W_2, b_2)]
    return FeedForwardWeights(*arrays, *activation)


def call(x=(3, 5), weights=None, dtype="float64"):
    x = np.ones(x, dtype) if isinstance(x, tuple) else x
    return feed_forward(x, drawn() if weights is None else weights)


ERRORS = """
relu(np.arange(3))
    TypeError: x must have a real floating dtype, got int64
gelu(np.ones(3, complex))
    TypeError: x must have a real floating dtype, got complex128
call(weights=attnbook.LayerNormWeights())
    TypeError: weights must be FeedForwardWeights, got LayerNormWeights
call(dtype="float32")
    TypeError: weights must have the dtype of x (float32), got float64
call((2, 3, 11))
    ValueError: x must have shape (..., n, 5) to match the weights, got (2, 3, 11)
weights((5,))
    ValueError: W_1 must have 2 axes, got shape (5,)
weights((5, 7))
    ValueError: W_1 must have shape (5, 11) to match W_2 (11, 7), got (5, 7)
weights(b_1=(5,))
    ValueError: b_1 must have shape (11,) to match W_2 (11, 7), got (5,)
weights(b_2=(11,))
    ValueError: b_2 must have shape (7,) to match W_2 (11, 7), got (11,)
weights((5, 11), None, (11, 7), None, "swish")
    ValueError: activation must be one of relu, gelu, got 'swish'
FeedForwardWeights.init(0, 0, 11)
    ValueError: d_model must be at least 1, got 0
FeedForwardWeights.init(0, 5, 0)
    ValueError: d_ff must be at least 1, got 0
FeedForwardWeights.init(0, 3, 2, bias="no")
    TypeError: bias must be a bool, got str
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_error(call, kind, message):
    assert_raises(call, kind, message, globals())
