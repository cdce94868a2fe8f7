"""attention, its weights and its gradient, in every library and dtype."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, HALF, ArrayLibrary, Case, attention_cases, close, masks, need
from hypothesis import given

import attnbook

dtypes = pytest.mark.parametrize("dtype", DTYPES)


def largest(x):
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def sizes_of(case):
    """Return the largest score and the largest value of a case, which bound what rounding loses."""
    score = largest(oracle.scores(case.query, case.key, case.mask, case.bias, case.scale))
    return 1 + score, largest(case.value)


# The functions against the loops.


@dtypes
@given(attention_cases())
def test_weights_and_output_agree_with_the_loop(library, dtype, case):
    need(library, dtype)
    (query, key, value), options = case.arrays(library, dtype)
    weights = attnbook.attention_weights(query, key, **options)
    output = attnbook.attention(query, key, value, **options)
    assert library.same_kind(weights, query)
    assert library.same_kind(output, query)
    exact = case.rounded(library, dtype)
    score, number = sizes_of(exact)
    shares = oracle.attention_weights(exact.query, exact.key, exact.mask, exact.bias, exact.scale)
    close(library.numpy(weights), shares, dtype, size=score)
    expected = oracle.weighted_sum(shares, exact.value)
    close(library.numpy(output), expected, dtype, size=score * number)
    # the inputs are not written to
    for x, before in zip((query, key, value), vars(exact).values(), strict=False):
        np.testing.assert_array_equal(library.numpy(x), before)


@pytest.mark.parametrize("mask", ["none", "random", "of keys"])
@pytest.mark.parametrize(("n_q", "n_k"), [(5, 11), (11, 5), (7, 7), (1, 3), (3, 0)])
def test_is_causal_hides_what_comes_later(library, n_q, n_k, mask):
    rng = np.random.default_rng(13)
    shapes = ((2, n_q, 3), (2, n_k, 3), (2, n_k, 2), (2, n_q, 2))
    *arrays, grad_output = (library.array(rng.standard_normal(shape)) for shape in shapes)
    given = masks(rng, (n_q, n_k))[mask]
    causal = oracle.mask_of(n_q, n_k, lambda place, j: j <= place)
    joined = library.array(causal if given is None else causal & given)
    given = None if given is None else library.array(given)
    for function, inputs in (
        (attnbook.attention_weights, arrays[:2]),
        (attnbook.attention, arrays),
        (attnbook.attention_vjp, (*arrays, grad_output)),
    ):
        for got, wanted in (
            (function(*inputs, given, is_causal=True), function(*inputs, joined)),
            (function(*inputs, given, is_causal=False), function(*inputs, given)),
        ):
            pairs = zip(got, wanted, strict=True) if len(inputs) == 4 else [(got, wanted)]
            for x, y in pairs:
                np.testing.assert_array_equal(library.numpy(x), library.numpy(y))


@pytest.mark.parametrize("is_causal", [1, None, "yes", np.bool_(True)])
def test_is_causal_must_be_a_bool(is_causal):
    x = np.ones((3, 2))
    one = attnbook.SingleHeadWeights.init(0, 2, d_k=2, d_v=2)
    for function, arguments in (
        (attnbook.attention_weights, (x, x)),
        (attnbook.attention, (x, x, x)),
        (attnbook.attention_vjp, (x, x, x, x)),
        (attnbook.single_head_attention, (x, x, x, one)),
        (attnbook.multi_head_attention, (x, x, x, attnbook.MultiHeadWeights.init(0, 2, 2))),
    ):
        message = f"^is_causal must be a bool, got {type(is_causal).__name__}$"
        with pytest.raises(TypeError, match=message):
            function(*arguments, is_causal=is_causal)


def test_a_query_without_keys_gets_zeros(library):
    query, key, value = (library.array(np.ones(s)) for s in ((3, 2), (4, 2), (4, 5)))
    mask = library.array(np.array([[True] * 4, [False] * 4, [False, False, True, False]]))
    weights = library.numpy(attnbook.attention_weights(query, key, mask))
    np.testing.assert_array_equal(weights, [[0.25] * 4, [0] * 4, [0, 0, 1, 0]])
    output = library.numpy(attnbook.attention(query, key, value, mask))
    np.testing.assert_array_equal(output, [[1] * 5, [0] * 5, [1] * 5])
    no_keys = (library.array(np.ones(s)) for s in ((3, 2), (0, 2), (0, 5)))
    np.testing.assert_array_equal(library.numpy(attnbook.attention(*no_keys)), np.zeros((3, 5)))


@dtypes
def test_scores_beyond_the_range_of_half_precision(library, dtype):
    # 300 · 300 = 90,000 is above the largest float16; with scale 1 nothing brings it back
    need(library, dtype)
    query, key = np.array([[300.0], [-300.0], [0.0]]), np.array([[300.0], [299.0], [-300.0]])
    value = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    case = Case(query, key, value, None, None, 1.0)
    arrays, options = case.arrays(library, dtype)
    got = library.numpy(attnbook.attention(*arrays, **options))
    exact = case.rounded(library, dtype)
    close(got, oracle.attention(**vars(exact)), dtype)
    np.testing.assert_array_equal(got[1], [3, 1])


@dtypes
def test_half_precision_sums_in_float32(library, dtype):
    need(library, dtype)
    # 4099 equal keys: a half-precision total would stop at 2048 or at 256
    ones = [library.array(np.ones((n, 1)), dtype) for n in (1, 4099, 4099)]
    got = library.numpy(attnbook.attention(*ones, scale=1.0))
    np.testing.assert_allclose(got, [[1.0]], atol=1e-4)
    if dtype == "float16":  # the bias is added in float32: 1024 + 0.25 is no float16
        query, key = (library.array(np.full((n, 1), 32.0), dtype) for n in (1, 2))
        bias = library.array([[0.0, 0.25]], dtype)
        got = library.numpy(attnbook.attention_weights(query, key, bias=bias, scale=1.0))
        close(got, oracle.softmax(np.array([[1024.0, 1024.25]])), dtype, size=1024.0)


def test_a_masked_score_is_out_whatever_it_was(library):
    key = library.array([[1.0], [np.nan], [np.inf], [2.0]])
    mask = library.array(np.array([True, False, False, True]))
    got = attnbook.attention_weights(library.array([[1.0]]), key, mask)
    expected = [oracle.softmax_row([1, -math.inf, -math.inf, 2])]
    np.testing.assert_allclose(library.numpy(got), expected)
    # an infinite bias masks as well
    bias = library.array([[0.0, -np.inf, -np.inf, 0.0], [-np.inf] * 4])
    zeros = [library.array(np.zeros((n, 1))) for n in (2, 4)]
    got = library.numpy(attnbook.attention_weights(*zeros, bias=bias))
    np.testing.assert_array_equal(got, [[0.5, 0, 0, 0.5], [0] * 4])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_nan_and_infinity_stay_in_their_row(library):
    keys = library.array([[1.0], [1.0]])
    for number in (np.nan, np.inf):
        query = library.array([[1.0], [number], [2.0]])
        got = library.numpy(attnbook.attention_weights(query, keys))
        np.testing.assert_array_equal(got, [[0.5, 0.5], [np.nan, np.nan], [0.5, 0.5]])
    # in a masked value it reaches the output
    mask = library.array(np.array([True, False]))
    value = library.array([[1.0], [np.nan]])
    assert np.isnan(library.numpy(attnbook.attention(keys[:1, :], keys, value, mask))).all()


@dtypes
def test_any_scale(library, dtype):
    need(library, dtype)
    x = library.array(np.eye(3), dtype)
    for scale in (np.float32(0.5), np.float16(0.5), np.float64(0.5)):  # which do not widen
        got = attnbook.attention(x, x, x, scale=scale)
        assert got.dtype == x.dtype
        same = library.numpy(attnbook.attention(x, x, x, scale=0.5))
        np.testing.assert_array_equal(library.numpy(got), same)
    for wide, scale in ((x, 0), (library.array(np.zeros((3, 0)), dtype), 2.0)):  # the mean
        got = library.numpy(attnbook.attention(wide, wide, x, scale=scale))
        np.testing.assert_allclose(got, np.full((3, 3), 1 / 3), rtol=4e-3)


@pytest.mark.parametrize("shape", [(2, 1, 1, 11), (3, 5, 11), (5, 1), (11,), (), (2, 3, 5, 11)])
def test_mask_and_bias_broadcast_over_leading_axes(library, shape):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 3, 5, 7)), rng.standard_normal((3, 11, 7))
    mask, bias = rng.random(shape) < 0.7, rng.standard_normal(shape)
    *arrays, added = map(library.array, (query, key, mask, bias))
    got = library.numpy(attnbook.attention_weights(*arrays, bias=added))
    exact = oracle.attention_weights(query, key, mask, bias)
    np.testing.assert_allclose(got, exact, atol=1e-12)


def test_strided_arrays_and_foreign_byte_order():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal(s) for s in ((6, 10), (14, 10), (14, 4)))
    got = attnbook.attention(query[::-2, ::3], key[::2, ::3], value[::-2, ::2])
    exact = oracle.attention(query[::-2, ::3], key[::2, ::3], value[::-2, ::2])
    np.testing.assert_allclose(got, exact)
    foreign = [x.astype(x.dtype.newbyteorder()) for x in (query, key, value)]
    got = attnbook.attention(*foreign)
    assert got.dtype == foreign[0].dtype
    np.testing.assert_allclose(got, oracle.attention(query, key, value))


def test_tensors_stay_what_they_are():
    class Marked(torch.Tensor):
        pass

    x, y = torch.nn.Parameter(torch.eye(3)), torch.eye(3).as_subclass(Marked)
    assert attnbook.attention(x, x, x).requires_grad
    assert isinstance(attnbook.attention(y, y, y), Marked)


# PyTorch's own functions and transformations.


def torch_case(mask="random", leading=(2, 3), dtype=torch.float64):
    rng = np.random.default_rng(5)
    arrays = [
        torch.tensor(rng.standard_normal((*leading, *shape)), dtype=dtype)
        for shape in ((5, 4), (7, 4), (7, 3))
    ]
    drawn = masks(rng, (*leading, 5, 7))[mask]
    if drawn is not None and mask == "random":
        drawn[..., 0] = True  # PyTorch's own function has no agreed answer for empty rows
    return arrays, None if drawn is None else torch.tensor(drawn)


@pytest.mark.parametrize("mask", ["none", "random", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_agrees_with_torch_scaled_dot_product_attention(mask, scale):
    arrays, mask = torch_case(mask)
    drawn = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for bias in (None, drawn):
        added = mask
        if bias is not None:
            added = bias if mask is None else torch.where(mask, bias, -math.inf)
        got = attnbook.attention(*arrays, mask, bias=bias, scale=scale)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        torch.testing.assert_close(got, sdpa(*arrays, attn_mask=added, scale=scale))


@dtypes
def test_gradients_are_finite_with_empty_rows(dtype):
    arrays, _ = torch_case(dtype=getattr(torch, dtype))
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[1] = False
    mask[3, 2:] = False
    arrays = [(100 * x).requires_grad_() for x in arrays]
    attnbook.attention(*arrays, mask).sum().backward()
    for x in arrays:
        assert x.grad.dtype == x.dtype
        assert bool(torch.isfinite(x.grad).all())
    assert bool((arrays[0].grad[..., 1, :] == 0).all())


@pytest.mark.parametrize("mask", ["random", "empty row"])
def test_gradcheck(mask):
    arrays, mask = torch_case(mask, leading=())
    arrays = [x.requires_grad_() for x in arrays]
    bias = torch.zeros(5, 7, dtype=torch.float64, requires_grad=True)

    def function(query, key, value, bias):
        return attnbook.attention(query, key, value, mask, bias=bias)

    assert torch.autograd.gradcheck(function, (*arrays, bias))
    assert torch.autograd.gradgradcheck(function, (*arrays, bias), fast_mode=True)


def test_vmap_equals_a_loop():
    (query, key, value), mask = torch_case(leading=(3,))
    mapped = torch.func.vmap(attnbook.attention)(query, key, value, mask)
    rows = zip(query, key, value, mask, strict=True)
    torch.testing.assert_close(mapped, torch.stack([attnbook.attention(*row) for row in rows]))
    shared = torch.func.vmap(attnbook.attention, in_dims=(0, None, None))(query, key[0], value[0])
    torch.testing.assert_close(shared, attnbook.attention(query, key[0], value[0]))


# PyTorch's forward mode compiles a helper the old way
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_jacobian_of_functional_transforms_equals_autograd():
    (query, key, value), mask = torch_case("empty row", leading=())
    by_func = torch.func.jacrev(attnbook.attention, argnums=(0, 1, 2))(query, key, value, mask)
    by_autograd = torch.autograd.functional.jacobian(
        lambda *x: attnbook.attention(*x, mask), (query, key, value)
    )
    for ours, theirs in zip(by_func, by_autograd, strict=True):
        torch.testing.assert_close(ours, theirs)
    _, tangent = torch.func.jvp(
        lambda q: attnbook.attention(q, key, value, mask), (query,), (torch.ones_like(query),)
    )
    torch.testing.assert_close(tangent, by_func[0].sum(dim=(-2, -1)))


# The gradient by hand.


@given(attention_cases())
def test_vjp_equals_autograd(library, case):
    arrays, options = case.arrays(library, "float64")
    shape = tuple(attnbook.attention(*arrays, **options).shape)
    grad_output = np.random.default_rng(3).standard_normal(shape)
    grads = attnbook.attention_vjp(*arrays, library.array(grad_output), **options)
    leaves, options = case.arrays(ArrayLibrary("torch"), "float64")
    output = attnbook.attention(*(x.requires_grad_() for x in leaves), **options)
    output.backward(torch.tensor(grad_output))
    for grad, leaf, x in zip(grads, leaves, arrays, strict=True):
        assert library.same_kind(grad, x)
        np.testing.assert_allclose(library.numpy(grad), leaf.grad.numpy(), atol=1e-11)


@pytest.mark.parametrize("dtype", [*HALF, "float32"])
def test_vjp_rounds_once(library, dtype):
    need(library, dtype)
    rng = np.random.default_rng(6)
    shapes = ((5, 3), (2, 7, 3), (7, 2), (2, 5, 2))  # the gradients of query and value are sums
    arrays = [library.array(rng.standard_normal(shape), dtype) for shape in shapes]
    exact = attnbook.attention_vjp(*(library.numpy(x) for x in arrays))
    for got, expected in zip(attnbook.attention_vjp(*arrays), exact, strict=True):
        assert got.dtype == arrays[0].dtype
        close(library.numpy(got), expected, dtype, size=20.0)
