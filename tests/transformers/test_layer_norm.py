"""Layer normalisation against the loop and PyTorch, in every library and dtype."""

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LayerNormWeights, layer_norm

SHAPES = st.sampled_from(((5,), (3, 1), (2, 3, 7), (0, 5), (2, 0, 3), (1, 1, 11)))
EPSILONS = st.sampled_from((1e-5, 1e-12, 0.1, 1))


def inputs(library, dtype, shape, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    x = spread * rng.standard_normal(shape) + rng.standard_normal()
    gain, bias = rng.standard_normal((2, shape[-1]))
    return [library.array(a, dtype) for a in (x, gain, bias)]


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, EPSILONS, st.booleans(), st.booleans(), st.integers(0, 99))
def test_agrees_with_the_loop(library, dtype, shape, epsilon, with_gain, with_bias, seed):
    need(library, dtype)
    x, gain, bias = inputs(library, dtype, shape, seed)
    before = [library.numpy(a).copy() for a in (x, gain, bias)]
    given = {"gain": gain} if with_gain else {}
    given |= {"bias": bias} if with_bias else {}
    got = layer_norm(x, **given, epsilon=epsilon)
    assert library.same_kind(got, x)
    numbers = {name: library.numpy(a) for name, a in given.items()}
    exact = oracle.layer_norm(before[0], **numbers, epsilon=epsilon)
    close(library.numpy(got), exact, dtype, size=50)
    for a, old in zip((x, gain, bias), before, strict=True):
        np.testing.assert_array_equal(library.numpy(a), old)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_computed_in_float32(library, dtype):
    need(library, dtype)
    # the squares of 300 overflow float16, and 4099 ones sum to 2048 or to 256
    x = np.where(np.arange(4099) % 2, 300.0, -300.0)[np.newaxis]
    got = library.numpy(layer_norm(library.array(x, dtype)))
    np.testing.assert_allclose(got, np.sign(x), atol=2e-2)


def test_epsilon_is_1e_5_unless_given():
    x = np.array([[1e-3, -1e-3, 2e-3]])
    np.testing.assert_array_equal(layer_norm(x), layer_norm(x, epsilon=1e-5))
    np.testing.assert_allclose(layer_norm(x), oracle.layer_norm(x, epsilon=1e-5), rtol=1e-12)
    assert LayerNormWeights().epsilon == 1e-5
    assert LayerNormWeights.init(3).epsilon == 1e-5


@pytest.mark.parametrize("with_gain", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_agrees_with_torch(with_gain, with_bias):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(7, dtype=torch.float64, requires_grad=True) if with_gain else None
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [a for a in (x, gain, bias) if a is not None]
    ours = layer_norm(x, gain, bias, epsilon=1e-3)
    theirs = torch.nn.functional.layer_norm(x, (7,), gain, bias, eps=1e-3)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn(2, 3, 7, dtype=torch.float64)
    pairs = (torch.autograd.grad(y, leaves, cotangent) for y in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_and_vmap():
    torch.manual_seed(0)
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5), 5, 5)]
    assert torch.autograd.gradcheck(layer_norm, leaves)
    mapped = torch.func.vmap(layer_norm, in_dims=(0, None, None))(*leaves)
    torch.testing.assert_close(mapped, layer_norm(*leaves))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_row_is_finite_and_so_is_its_gradient(dtype):
    x = torch.full((2, 5), 3.0, dtype=getattr(torch, dtype), requires_grad=True)
    y = layer_norm(x)
    assert y.dtype == x.dtype
    assert bool((y == 0).all())
    y.sum().backward()
    assert bool(torch.isfinite(x.grad).all())


def test_epsilon_0_makes_a_constant_row_nan():
    with np.errstate(invalid="ignore"):
        assert np.isnan(layer_norm(np.ones((1, 3)), epsilon=0)).all()


@given(st.integers(0, 99), st.sampled_from((2, 3, 5, 64)), st.floats(0.01, 1000))
def test_rows_have_mean_0_and_variance_1(seed, d, spread):
    x = spread * np.random.default_rng(seed).standard_normal((7, d)) + 10 * spread
    y = layer_norm(x, epsilon=0)
    np.testing.assert_allclose(np.mean(y, axis=-1), np.zeros(7), atol=1e-11)
    np.testing.assert_allclose(np.mean(y**2, axis=-1), np.ones(7), rtol=1e-11)


@given(st.integers(0, 99), st.floats(-100, 100), st.floats(0.01, 100))
def test_shift_and_scale_of_a_row_do_not_matter(seed, shift, factor):
    x = np.random.default_rng(seed).standard_normal((3, 7))
    y = layer_norm(x, epsilon=0)
    np.testing.assert_allclose(layer_norm(x + shift, epsilon=0), y, atol=1e-9)
    np.testing.assert_allclose(layer_norm(factor * x, epsilon=0), y, atol=1e-9)
    np.testing.assert_allclose(layer_norm(-factor * x, epsilon=0), -y, atol=1e-9)


def test_everything_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    x, gain = (strict.asarray(a, device=device) for a in (np.ones((2, 3)), np.ones(3)))
    assert layer_norm(x, gain).device == device
    assert layer_norm(torch.ones(2, 3, device="meta")).shape == (2, 3)


# The weights.


@pytest.mark.parametrize("bias", [False, True])
def test_init(bias):
    weights = LayerNormWeights.init(np.int64(5), bias=bias)
    np.testing.assert_array_equal(weights.gain, np.ones(5))
    assert weights.gain.dtype == np.float64
    if bias:
        np.testing.assert_array_equal(weights.bias, np.zeros(5))
        assert weights.bias.dtype == np.float64
    else:
        assert weights.bias is None
    assert LayerNormWeights.init(5).bias is not None
    assert list(weights.arrays()) == (["gain", "bias"] if bias else ["gain"])


def test_weights_may_lack_gain_and_bias(library):
    bias = library.array(np.ones(3))
    assert LayerNormWeights().arrays() == {}
    assert LayerNormWeights(bias=bias, epsilon=0).bias is bias
    assert LayerNormWeights(None, None, 0.25).epsilon == 0.25
    with pytest.raises(AttributeError, match="cannot assign to field 'gain'"):
        LayerNormWeights().gain = bias
    weights = LayerNormWeights()
    assert weights == weights
    assert weights != LayerNormWeights()


# Errors.


def norm(x=(2, 3), gain=None, bias=None, dtype="float64", **options):
    x, gain, bias = (
        np.ones(a, dtype) if isinstance(a, tuple) else a for a in (x, gain, bias)
    )  # fmt: skip
    return layer_norm(x, gain, bias, **options)


ERRORS = """
norm(dtype="int64")
    TypeError: x must have a real floating dtype, got int64
norm(())
    ValueError: x must have shape (..., d_model), d_model >= 1, got ()
norm((3, 0))
    ValueError: x must have shape (..., d_model), d_model >= 1, got (3, 0)
norm(gain=np.ones(3, "float32"))
    TypeError: gain must have the dtype of x (float64), got float32
norm((5, 2, 3), gain=(2,))
    ValueError: gain must have shape (3,) to match x, got (2,)
norm(gain=(3,), bias=(1, 3))
    ValueError: bias must have shape (3,) to match x, got (1, 3)
norm(epsilon=-1e-05)
    ValueError: epsilon must be finite and at least 0, got -1e-05
norm(epsilon=np.nan)
    ValueError: epsilon must be finite and at least 0, got nan
LayerNormWeights(np.ones(3), np.ones(3, "float32"))
    TypeError: bias must have the dtype of gain (float64), got float32
LayerNormWeights(np.ones(3), np.ones(5))
    ValueError: gain must have shape (d_model,), got gain (3,) and bias (5,)
LayerNormWeights(np.ones((1, 3)))
    ValueError: gain must have shape (d_model,), got gain (1, 3)
LayerNormWeights(epsilon=-1)
    ValueError: epsilon must be finite and at least 0, got -1.0
LayerNormWeights.init(0)
    ValueError: d_model must be at least 1, got 0
LayerNormWeights.init(3, bias=1)
    TypeError: bias must be a bool, got int
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_error(call, kind, message):
    assert_raises(call, kind, message, globals())
