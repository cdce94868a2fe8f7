"""Both normalisations against the loop and PyTorch, in every library and dtype."""

from itertools import combinations

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, close, need
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


@pytest.mark.parametrize("kind", [LayerNormWeights, RMSNormWeights])
def test_epsilon_of_the_weights_is_1e_5_unless_given(kind):
    assert kind().epsilon == kind.init(3).epsilon == 1e-5


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
