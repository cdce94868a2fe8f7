"""What root-mean-square normalisation alone promises; the rest is in `test_normalization`."""

import numpy as np
import pytest
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

from attnbook import RMSNormWeights, layer_norm, rms_norm


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
