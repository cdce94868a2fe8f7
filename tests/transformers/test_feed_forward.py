"""The feed-forward sublayer, plain and gated, against the loop and PyTorch, in every library."""

import math
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from cases import HALF, close, held, leaves_of, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import FeedForwardWeights, GatedFeedForwardWeights, feed_forward
from attnbook.transformers.feed_forward import feed_forward_of

LEADING = st.sampled_from(((), (2,), (2, 3), (0,)))
SIZES = st.sampled_from((0, 1, 3, 5))
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
DRAWS = (
    *(LEADING, SIZES, st.sampled_from(ACTIVATIONS)),
    *(st.booleans(), st.booleans(), st.integers(0, 99)),
)


def drawn(seed=0, d_model=5, d_ff=11, d_out=7, activation="relu", bias=True, gated=False):
    """Return weights of random numbers with widths that are all different."""
    rng = np.random.default_rng(seed)
    W_1, W_2 = rng.standard_normal((d_model, d_ff)), rng.standard_normal((d_ff, d_out))
    b_1, b_2 = (rng.standard_normal(d_ff), rng.standard_normal(d_out)) if bias else (None, None)
    if gated:
        W_gate = rng.standard_normal((d_model, d_ff))
        b_gate = rng.standard_normal(d_ff) if bias else None
        return GatedFeedForwardWeights(W_gate, W_1, W_2, b_gate, b_1, b_2, activation)
    return FeedForwardWeights(W_1, b_1, W_2, b_2, activation)


# The sublayer.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(*DRAWS)
def test_agrees_with_the_loop(library, dtype, leading, n, activation, bias, gated, seed):
    weights = drawn(seed, activation=activation, bias=bias, gated=gated)
    x = np.random.default_rng(seed).standard_normal((*leading, n, 5))
    mine = library.array(x, dtype)
    got = feed_forward(mine, library.place(weights, dtype))
    assert library.same_kind(got, mine)
    exact = oracle.feed_forward(library.numpy(mine), held(library, weights, dtype))
    close(library.numpy(got), exact, dtype, size=100)
    np.testing.assert_array_equal(library.numpy(mine), library.numpy(library.array(x, dtype)))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_half_precision_rounds_after_each_step(library, dtype, activation, gated):
    need(library, dtype)
    weights = drawn(activation=activation, gated=gated)
    x = library.array(np.random.default_rng(1).standard_normal((3, 13, 5)), dtype)
    got = feed_forward(x, library.place(weights, dtype))
    assert library.same_kind(got, x)
    expected = oracle.feed_forward(
        *(library.numpy(x), held(library, weights, dtype)),
        rounded=lambda y: library.numpy(library.array(y, dtype)),
    )
    size = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(library.numpy(got), expected, rtol=0, atol=48 * size)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_agrees_with_torch_and_has_its_gradients(activation, bias, gated):
    drawn_weights = drawn(activation=activation, bias=bias, gated=gated)
    weights, leaves = leaves_of(drawn_weights.to("torch"))
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    linear, functions = torch.nn.functional.linear, torch.nn.functional
    tanh = partial(functions.gelu, approximate="tanh")
    act = tanh if activation == "gelu_tanh" else getattr(functions, activation)
    hidden = linear(x, weights.W_1.T, weights.b_1)
    gate = act(linear(x, weights.W_gate.T, weights.b_gate)) if gated else None
    hidden = gate * hidden if gated else act(hidden)
    theirs = linear(hidden, weights.W_2.T, weights.b_2)
    ours = feed_forward(x, weights)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.linspace(-1, 1, theirs.numel(), dtype=torch.float64).reshape(theirs.shape)
    grads = (torch.autograd.grad(y, [x, *leaves.values()], cotangent) for y in (ours, theirs))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("gated", [False, True])
def test_gradcheck_and_vmap(gated):
    weights, leaves = leaves_of(drawn(activation="gelu", d_ff=3, gated=gated).to("torch"))
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(2, 2, 5).requires_grad_()

    def function(x, *arrays):
        return feed_forward(x, weights.with_arrays(dict(zip(leaves, arrays, strict=True))))

    assert torch.autograd.gradcheck(function, (x, *leaves.values()))
    mapped = torch.func.vmap(lambda row: feed_forward(row, weights))(x)
    torch.testing.assert_close(mapped, feed_forward(x, weights))


# The weights.


SHAPES = {"W_1": (5, 11), "W_2": (11, 5)}
"""Of the matrices, in the order in which they are drawn."""
BIASES = {"b_1": (11,), "b_2": (5,)}


@pytest.mark.parametrize("bias", [False, True, None])
@pytest.mark.parametrize(
    ("cls", "gate", "bias_of_gate", "activation"),
    [
        (FeedForwardWeights, {}, {}, "relu"),
        (GatedFeedForwardWeights, {"W_gate": (5, 11)}, {"b_gate": (11,)}, "silu"),
    ],
)
def test_init_draws_the_matrices_in_order(cls, gate, bias_of_gate, activation, bias):
    options = {} if bias is None else {"bias": bias}
    has_bias = cls is FeedForwardWeights if bias is None else bias
    for rng in (7, np.random.default_rng(7)):
        weights = cls.init(rng, 5, 11, **options)
        draws, bound = np.random.default_rng(7), math.sqrt(6 / 16)
        expected = {
            name: draws.uniform(-bound, bound, shape) for name, shape in (gate | SHAPES).items()
        }
        if has_bias:
            expected |= {name: np.zeros(shape) for name, shape in (bias_of_gate | BIASES).items()}
        assert weights.arrays().keys() == expected.keys()
        for name, x in weights.arrays().items():
            np.testing.assert_array_equal(x, expected[name], err_msg=name)
            assert x.dtype == np.float64
    assert weights.activation == activation
    assert cls.init(0, 5, 11, activation="gelu").activation == "gelu"


def test_drop_is_applied_to_the_product_with_the_gate():
    weights, x = drawn(gated=True, activation="silu"), np.ones((3, 5))
    seen = []
    feed_forward_of(x, weights, drop=lambda hidden: seen.append(hidden) or hidden)
    gate = oracle.silu(x @ weights.W_gate + weights.b_gate)
    np.testing.assert_allclose(seen[0], gate * (x @ weights.W_1 + weights.b_1), rtol=1e-12)


# Errors.


def gated(W_gate=(5, 11), W_1=(5, 11), W_2=(11, 7), *others):
    arrays = [np.ones(a) if isinstance(a, tuple) else a for a in (W_gate, W_1, W_2, *others)]
    return GatedFeedForwardWeights(*arrays)


def weights(W_1=(5, 11), b_1=None, W_2=(11, 7), b_2=None, *activation):
    arrays = [np.ones(a) if isinstance(a, tuple) else a for a in (W_1, b_1, W_2, b_2)]
    return FeedForwardWeights(*arrays, *activation)


def call(x=(3, 5), weights=None, dtype="float64"):
    x = np.ones(x, dtype) if isinstance(x, tuple) else x
    return feed_forward(x, drawn() if weights is None else weights)


ERRORS = """
call(weights=np.ones(3))
    TypeError: weights must be FeedForwardWeights or GatedFeedForwardWeights, got ndarray
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
    ValueError: activation must be one of relu, gelu, gelu_tanh, silu, got 'swish'
gated((11, 5))
    ValueError: W_gate must have shape (5, 11) to match W_2 (11, 7), got (11, 5)
gated((5, 7), (5, 7))
    ValueError: W_gate must have shape (5, 11) to match W_2 (11, 7), got (5, 7)
gated((5,))
    ValueError: W_gate must have 2 axes, got shape (5,)
gated((5, 11), (5, 11), (11, 7), (7,))
    ValueError: b_gate must have shape (11,) to match W_2 (11, 7), got (7,)
gated((5, 11), (5, 11), (11, 7), None, None, None, "swish")
    ValueError: activation must be one of relu, gelu, gelu_tanh, silu, got 'swish'
gated(None)
    TypeError: W_gate must be an array of NumPy, CuPy, PyTorch or another Array API library,
    got NoneType
call((3, 4), gated())
    ValueError: x must have shape (..., n, 5) to match the weights, got (3, 4)
GatedFeedForwardWeights.init(0, 5, 0)
    ValueError: d_ff must be at least 1, got 0
GatedFeedForwardWeights.init(0, 5, 3, bias=None)
    TypeError: bias must be a bool, got NoneType
FeedForwardWeights.init(0, 0, 11)
    ValueError: d_model must be at least 1, got 0
FeedForwardWeights.init(0, 5, 0)
    ValueError: d_ff must be at least 1, got 0
FeedForwardWeights.init(0, 3, 2, bias="no")
    TypeError: bias must be a bool, got str
"""

test_error = error_test(ERRORS, globals())
