"""The activations against the loop and PyTorch, in every library and dtype."""

import math
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import error_test

from attnbook import gelu, gelu_tanh, relu, silu
from attnbook.transformers.activations import ACTIVATIONS

FUNCTIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
NUMBERS = np.array([-40.0, -6.0, -1.0, -0.5, -1e-3, 0.0, 1e-8, 0.3, 1.0, 2.5, 6.0, 40.0, 300.0])

named = pytest.mark.parametrize("name", FUNCTIONS)


@named
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(13, 1), ()])
def test_agrees_with_the_loop(library, dtype, name, shape):
    need(library, dtype)
    numbers = NUMBERS.reshape(shape) if shape else np.array(-0.75)
    x = library.array(numbers, dtype)
    rounded = library.numpy(x)
    got = FUNCTIONS[name](x)
    assert library.same_kind(got, x)
    exact = getattr(oracle, name)(np.atleast_1d(rounded)).reshape(shape)
    close(library.numpy(got), exact, dtype, size=1)
    np.testing.assert_array_equal(library.numpy(x), rounded)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_rounded_once(library, dtype, name):
    need(library, dtype)
    x = library.array(np.linspace(-3, 3, 101), dtype)
    exact = getattr(oracle, name)(library.numpy(x))
    rounded, got = library.numpy(library.array(exact, dtype)), library.numpy(FUNCTIONS[name](x))
    np.testing.assert_allclose(got, rounded, rtol=2e-2, atol=1e-6)
    assert np.mean(got == rounded) > 0.97


def test_by_hand(library):
    x = library.array(np.array([-math.inf, math.nan, math.inf, -0.0]))
    np.testing.assert_array_equal(library.numpy(relu(x)), [0, math.nan, math.inf, 0])
    x = library.array(np.array([math.nan, math.inf, 0.0]))
    for function in (gelu, gelu_tanh, silu):
        np.testing.assert_array_equal(library.numpy(function(x)), [math.nan, math.inf, 0])
    for function in FUNCTIONS.values():
        assert tuple(function(library.array(np.ones((2, 0, 3)))).shape) == (2, 0, 3)


@named
def test_agrees_with_torch_and_has_its_gradients(name):
    functions = torch.nn.functional
    tanh = partial(functions.gelu, approximate="tanh")
    x = torch.tensor(NUMBERS, requires_grad=True)
    judge = tanh if name == "gelu_tanh" else getattr(functions, name)
    ours, theirs = FUNCTIONS[name](x), judge(x)
    torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=1e-12)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)]
    moved = x != 0  # at 0 the maximum of two equal numbers has half the gradient
    torch.testing.assert_close(grads[0][moved], grads[1][moved], atol=1e-14, rtol=1e-12)
    assert bool(torch.isfinite(grads[0]).all())


def test_gelu_by_tanh_is_near_gelu_and_another_function():
    x = np.linspace(-5, 5, 1001)
    assert 1e-4 < np.max(np.abs(gelu_tanh(x) - gelu(x))) < 5e-4


def test_large_numbers_do_not_overflow():
    x = np.array([-1e4, 1e4], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        for function in (relu, silu):
            np.testing.assert_array_equal(function(x), [0, 1e4])


def test_every_activation_has_a_public_function():
    assert list(ACTIVATIONS) == list(FUNCTIONS)
    for name, function in FUNCTIONS.items():
        np.testing.assert_array_equal(ACTIVATIONS[name](NUMBERS), function(NUMBERS))


ERRORS = """
relu(np.arange(3))
    TypeError: x must have a real floating dtype, got int64
gelu(np.ones(3, complex))
    TypeError: x must have a real floating dtype, got complex128
gelu_tanh([1.0])
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
silu(np.ones(3, bool))
    TypeError: x must have a real floating dtype, got bool
"""

test_error = error_test(ERRORS, globals())
