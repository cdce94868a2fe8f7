"""Root-mean-square normalisation against the loop and PyTorch, in every library and dtype."""

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

from attnbook import RMSNormWeights, layer_norm, rms_norm

SHAPES = st.sampled_from(((5,), (3, 1), (2, 3, 7), (0, 5), (2, 0, 3), (1, 1, 11)))
EPSILONS = st.sampled_from((1e-5, 1e-12, 0.1, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, EPSILONS, st.booleans(), st.integers(0, 99))
def test_agrees_with_the_loop(library, dtype, shape, epsilon, with_gain, seed):
    need(library, dtype)
    rng = np.random.default_rng(seed)
    x = library.array(rng.standard_normal(shape) + rng.standard_normal(), dtype)
    gain = library.array(rng.standard_normal(shape[-1]), dtype) if with_gain else None
    before = library.numpy(x).copy()
    got = rms_norm(x, gain, epsilon=epsilon)
    assert library.same_kind(got, x)
    numbers = None if gain is None else library.numpy(gain)
    close(library.numpy(got), oracle.rms_norm(before, numbers, epsilon), dtype, size=50)
    np.testing.assert_array_equal(library.numpy(x), before)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_computed_in_float32(library, dtype):
    need(library, dtype)
    # the squares of 300 overflow float16, and 4099 ones sum to 2048 or to 256
    x = np.where(np.arange(4099) % 2, 300.0, -300.0)[np.newaxis]
    got = library.numpy(rms_norm(library.array(x, dtype)))
    np.testing.assert_allclose(got, np.sign(x), atol=2e-2)


def test_epsilon_is_1e_5_unless_given():
    x = np.array([[1e-3, -1e-3, 2e-3]])
    np.testing.assert_array_equal(rms_norm(x), rms_norm(x, epsilon=1e-5))
    np.testing.assert_allclose(rms_norm(x), oracle.rms_norm(x, epsilon=1e-5), rtol=1e-12)
    assert RMSNormWeights().epsilon == RMSNormWeights.init(3).epsilon == 1e-5


@pytest.mark.parametrize("with_gain", [False, True])
def test_agrees_with_torch(with_gain):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(7, dtype=torch.float64, requires_grad=True) if with_gain else None
    leaves = [a for a in (x, gain) if a is not None]
    ours = rms_norm(x, gain, epsilon=1e-3)
    theirs = torch.nn.functional.rms_norm(x, (7,), gain, eps=1e-3)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn(2, 3, 7, dtype=torch.float64)
    pairs = (torch.autograd.grad(y, leaves, cotangent) for y in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_and_vmap():
    torch.manual_seed(0)
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5), 5)]
    assert torch.autograd.gradcheck(rms_norm, leaves)
    mapped = torch.func.vmap(rms_norm, in_dims=(0, None))(*leaves)
    torch.testing.assert_close(mapped, rms_norm(*leaves))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_zeros_is_finite_and_so_is_its_gradient(dtype):
    x = torch.zeros((2, 5), dtype=getattr(torch, dtype), requires_grad=True)
    y = rms_norm(x)
    assert y.dtype == x.dtype
    assert bool((y == 0).all())
    y.sum().backward()
    assert bool(torch.isfinite(x.grad).all())


def test_epsilon_0_makes_a_row_of_zeros_nan():
    with np.errstate(invalid="ignore"):
        assert np.isnan(rms_norm(np.zeros((1, 3)), epsilon=0)).all()


@given(st.integers(0, 99), st.sampled_from((2, 3, 5, 64)), st.floats(0.01, 1000))
def test_the_mean_of_the_squares_is_1_and_the_mean_may_be_any(seed, d, spread):
    x = spread * np.random.default_rng(seed).standard_normal((7, d)) + 10 * spread
    y = rms_norm(x, epsilon=0)
    np.testing.assert_allclose(np.mean(y**2, axis=-1), np.ones(7), rtol=1e-11)
    assert np.all(np.mean(y, axis=-1) > 0.5)


@given(st.integers(0, 99), st.floats(0.01, 100))
def test_the_length_of_a_row_does_not_matter(seed, factor):
    x = np.random.default_rng(seed).standard_normal((3, 7))
    y = rms_norm(x, epsilon=0)
    np.testing.assert_allclose(rms_norm(factor * x, epsilon=0), y, atol=1e-9)
    np.testing.assert_allclose(rms_norm(-factor * x, epsilon=0), -y, atol=1e-9)


@given(st.integers(0, 99), st.booleans())
def test_is_layer_norm_of_rows_whose_mean_is_0(seed, with_gain):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 7))
    x = x - np.mean(x, axis=-1, keepdims=True)
    gain = rng.standard_normal(7) if with_gain else None
    np.testing.assert_allclose(rms_norm(x, gain), layer_norm(x, gain), atol=1e-12)


def test_everything_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    x, gain = (strict.asarray(a, device=device) for a in (np.ones((2, 3)), np.ones(3)))
    assert rms_norm(x, gain).device == device
    assert rms_norm(torch.ones(2, 3, device="meta")).shape == (2, 3)


# The weights.


def test_init():
    weights = RMSNormWeights.init(np.int64(5))
    np.testing.assert_array_equal(weights.gain, np.ones(5))
    assert weights.gain.dtype == np.float64
    assert list(weights.arrays()) == ["gain"]


def test_weights_may_lack_a_gain():
    assert RMSNormWeights().arrays() == {}
    assert RMSNormWeights(None, 0.25).epsilon == 0.25


# Errors.


def norm(x=(2, 3), gain=None, dtype="float64", **options):
    x, gain = (np.ones(a, dtype) if isinstance(a, tuple) else a for a in (x, gain))
    return rms_norm(x, gain, **options)


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
norm(gain=(1, 3))
    ValueError: gain must have shape (3,) to match x, got (1, 3)
norm(epsilon=-1e-05)
    ValueError: epsilon must be finite and at least 0, got -1e-05
norm(epsilon=None)
    TypeError: epsilon must be a real number, got NoneType
RMSNormWeights(np.ones((1, 3)))
    ValueError: gain must have shape (d_model,), got (1, 3)
RMSNormWeights(np.ones(3, int))
    TypeError: gain must have a real floating dtype, got int64
RMSNormWeights(epsilon=-1)
    ValueError: epsilon must be finite and at least 0, got -1.0
RMSNormWeights.init(0)
    ValueError: d_model must be at least 1, got 0
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_error(call, kind, message):
    assert_raises(call, kind, message, globals())
