"""What layer normalisation alone promises; the rest is in `test_normalization`."""

import numpy as np
import pytest
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LayerNormWeights, layer_norm


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
