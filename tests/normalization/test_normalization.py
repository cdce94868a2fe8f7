"""Both normalisations against the loop and PyTorch, in every library and dtype; their weights."""

from itertools import combinations

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
from error_table import assert_raises, error_rows, error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LayerNormWeights, RMSNormWeights, layer_norm, rms_norm

SHAPES = st.sampled_from(((5,), (3, 1), (2, 3, 7), (0, 5), (2, 0, 3), (1, 1, 11)))
EPSILONS = st.sampled_from((1e-5, 1e-12, 0.1, 1))
NORMS = {  # the arrays that each takes behind x
    layer_norm: ("gain", "bias"),
    rms_norm: ("gain",),
}
ORACLES = {layer_norm: oracle.layer_norm, rms_norm: oracle.rms_norm}
both = pytest.mark.parametrize("norm", NORMS)


@both
@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, EPSILONS, st.sets(st.sampled_from(("gain", "bias"))), st.integers(0, 99))
def test_agrees_with_the_loop(library, norm, dtype, shape, epsilon, names, seed):
    need(library, dtype)
    rng = np.random.default_rng(seed)
    x = library.array(rng.standard_normal(shape) + rng.standard_normal(), dtype)
    drawn = {name: rng.standard_normal(shape[-1]) for name in NORMS[norm]}
    given = {name: library.array(a, dtype) for name, a in drawn.items() if name in names}
    before = {name: library.numpy(a).copy() for name, a in (given | {"x": x}).items()}
    got = norm(x, **given, epsilon=epsilon)
    assert library.same_kind(got, x)
    close(library.numpy(got), ORACLES[norm](**before, epsilon=epsilon), dtype, size=50)
    for name, a in (given | {"x": x}).items():
        np.testing.assert_array_equal(library.numpy(a), before[name])


@both
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_computed_in_float32(library, norm, dtype):
    need(library, dtype)
    # the squares of 300 overflow float16, and 4099 ones sum to 2048 or to 256
    x = np.where(np.arange(4099) % 2, 300.0, -300.0)[np.newaxis]
    got = library.numpy(norm(library.array(x, dtype)))
    np.testing.assert_allclose(got, np.sign(x), atol=2e-2)


@both
def test_epsilon_is_1e_5_unless_given(norm):
    x = np.array([[1e-3, -1e-3, 2e-3]])
    np.testing.assert_array_equal(norm(x), norm(x, epsilon=1e-5))
    np.testing.assert_allclose(norm(x), ORACLES[norm](x, epsilon=1e-5), rtol=1e-12)


@pytest.mark.parametrize(
    ("norm", "names"),
    [(norm, names) for norm, a in NORMS.items() for k in range(3) for names in combinations(a, k)],
)
def test_agrees_with_torch(norm, names):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    drawn = [
        torch.randn(7, dtype=torch.float64, requires_grad=True) if name in names else None
        for name in NORMS[norm]
    ]
    leaves = [a for a in (x, *drawn) if a is not None]
    ours = norm(x, *drawn, epsilon=1e-3)
    theirs = getattr(torch.nn.functional, norm.__name__)(x, (7,), *drawn, eps=1e-3)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn(2, 3, 7, dtype=torch.float64)
    pairs = (torch.autograd.grad(y, leaves, cotangent) for y in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@both
def test_gradcheck_and_vmap(norm):
    torch.manual_seed(0)
    shapes = [(2, 3, 5), *[(5,) for _ in NORMS[norm]]]
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(norm, leaves)
    mapped = torch.func.vmap(norm, in_dims=(0, *[None for _ in NORMS[norm]]))(*leaves)
    torch.testing.assert_close(mapped, norm(*leaves))


# rows that are divided by epsilon alone
@pytest.mark.parametrize(("norm", "row"), [(layer_norm, 0.0), (layer_norm, 3.0), (rms_norm, 0.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_size_is_finite_and_so_is_its_gradient(norm, row, dtype):
    x = torch.full((2, 5), row, dtype=getattr(torch, dtype), requires_grad=True)
    y = norm(x)
    assert y.dtype == x.dtype
    assert bool((y == 0).all())
    y.sum().backward()
    assert bool(torch.isfinite(x.grad).all())
    with np.errstate(invalid="ignore"):
        assert np.isnan(norm(np.full((1, 3), row), epsilon=0)).all()


@given(st.integers(0, 99), st.sampled_from((2, 3, 5, 64)), st.floats(0.01, 1000))
def test_rows_have_mean_0_and_variance_1(seed, d, spread):
    x = spread * np.random.default_rng(seed).standard_normal((7, d)) + 10 * spread
    y = layer_norm(x, epsilon=0)
    np.testing.assert_allclose(np.mean(y, axis=-1), np.zeros(7), atol=1e-11)
    np.testing.assert_allclose(np.mean(y**2, axis=-1), np.ones(7), rtol=1e-11)


@given(st.integers(0, 99), st.booleans())
def test_rms_norm_is_layer_norm_of_rows_whose_mean_is_0(seed, with_gain):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 7))
    x = x - np.mean(x, axis=-1, keepdims=True)
    gain = rng.standard_normal(7) if with_gain else None
    np.testing.assert_allclose(rms_norm(x, gain), layer_norm(x, gain), atol=1e-12)


# The weights.


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        (LayerNormWeights, {}, ["gain", "bias"]),
        (LayerNormWeights, {"bias": True}, ["gain", "bias"]),
        (LayerNormWeights, {"bias": False}, ["gain"]),
        (RMSNormWeights, {}, ["gain"]),
    ],
)
def test_init(kind, options, names):
    weights = kind.init(np.int64(5), **options)
    assert list(weights.arrays()) == names
    for name, x in weights.arrays().items():
        np.testing.assert_array_equal(x, np.ones(5) if name == "gain" else np.zeros(5))
        assert x.dtype == np.float64
    assert weights.epsilon == kind().epsilon == 1e-5


def test_weights_may_lack_gain_and_bias():
    bias = np.ones(3)
    assert LayerNormWeights().arrays() == RMSNormWeights().arrays() == {}
    assert LayerNormWeights(bias=bias, epsilon=0).bias is bias
    assert LayerNormWeights(None, None, 0.25).epsilon == RMSNormWeights(None, 0.25).epsilon == 0.25


# Errors.


def called(norm, x=(2, 3), dtype="float64", **options):
    given = {"x": x} | options
    ones = {name: np.ones(a, dtype) for name, a in given.items() if isinstance(a, tuple)}
    return norm(**(given | ones))


BOTH_REFUSE = """
called(norm, dtype="int64")
    TypeError: x must have a real floating dtype, got int64
called(norm, ())
    ValueError: x must have shape (..., d_model), d_model >= 1, got ()
called(norm, (3, 0))
    ValueError: x must have shape (..., d_model), d_model >= 1, got (3, 0)
called(norm, gain=np.ones(3, "float32"))
    TypeError: gain must have the dtype of x (float64), got float32
called(norm, (5, 2, 3), gain=(2,))
    ValueError: gain must have shape (3,) to match x, got (2,)
called(norm, gain=(1, 3))
    ValueError: gain must have shape (3,) to match x, got (1, 3)
called(norm, epsilon=-1e-05)
    ValueError: epsilon must be finite and at least 0, got -1e-05
called(norm, epsilon=np.nan)
    ValueError: epsilon must be finite and at least 0, got nan
called(norm, epsilon=None)
    TypeError: epsilon must be a real number, got NoneType
"""
ERRORS = """
called(layer_norm, gain=(3,), bias=(1, 3))
    ValueError: bias must have shape (3,) to match x, got (1, 3)
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
RMSNormWeights(np.ones((1, 3)))
    ValueError: gain must have shape (d_model,), got (1, 3)
RMSNormWeights(np.ones(3, int))
    TypeError: gain must have a real floating dtype, got int64
RMSNormWeights(epsilon=-1)
    ValueError: epsilon must be finite and at least 0, got -1.0
RMSNormWeights.init(0)
    ValueError: d_model must be at least 1, got 0
"""


@both
@pytest.mark.parametrize(("call", "kind", "message"), error_rows(BOTH_REFUSE))
def test_both_refuse(norm, call, kind, message):
    assert_raises(call, kind, message, globals() | {"norm": norm})


test_error = error_test(ERRORS, globals())
