"""The compiled backward pass, against PyTorch's autograd in float64 and in the same precision."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook

torch = pytest.importorskip("torch")
numba = pytest.importorskip("numba")

from attnbook.compilers import register_tiles  # noqa: E402
from attnbook.kernels.numba_loops import backward, products  # noqa: E402

IMPLS = pytest.mark.parametrize("impl", ["numba", "packed"])
NAMES = ("query", "key", "value")


def tensors(arrays, dtype):
    return [torch.as_tensor(x).to(dtype).clone().requires_grad_() for x in arrays]


def causal(n_q, n_k):
    return np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q


def exact_grads(arrays, grad, mask=None, bias=None, scale=None, is_causal=False):
    """Return the gradients by autograd in float64, of inputs that are rounded already."""
    q, k, v = leaves = tensors(arrays, torch.float64)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + torch.tensor(bias).double()
    seen = (
        np.ones(scores.shape, dtype=bool) if mask is None else np.broadcast_to(mask, scores.shape)
    )
    seen = torch.tensor(seen & causal(*scores.shape[-2:]) if is_causal else seen)
    scores = torch.where(seen, scores, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    weights = torch.where(seen, scores - top, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    ((weights / torch.where(total == 0, 1.0, total)) @ v).backward(torch.as_tensor(grad).double())
    return [x.grad.numpy() for x in leaves]


def torch_grads(arrays, grad, mask=None, bias=None, scale=None, is_causal=False):
    """Return the gradients by PyTorch's own attention, in the dtype of the tensors."""
    q, k, _ = leaves = [x.detach().clone().requires_grad_() for x in arrays]
    shape = (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    add = None
    if mask is not None or bias is not None or is_causal:
        seen = np.broadcast_to(True if mask is None else mask, shape)
        seen = torch.tensor(seen & causal(*shape[-2:]) if is_causal else seen.copy())
        add = torch.zeros(shape, dtype=q.dtype) if bias is None else torch.tensor(bias).to(q.dtype)
        add = torch.where(seen, add, -torch.inf)
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in leaves))
    wide = [x.expand(*lead, *x.shape[-2:]) for x in leaves]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=add, scale=scale)
    out.backward(grad)
    return [x.grad for x in leaves]


def draw(query, key, value, seed=3, spread=1.0):
    """Return q, k, v and a gradient of the output in float32."""
    rng = np.random.default_rng(seed)
    lead = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    shapes = (query, key, value, (*lead, query[-2], value[-1]))
    *arrays, grad = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return [x * np.float32(spread) for x in arrays], grad


def worst(got, exact):
    return max((np.abs(np.asarray(a) - b).max(initial=0) for a, b in zip(got, exact, strict=True)))


def mean_error(got, exact):
    """Return the root of the mean square of the error; a single worst number is up to luck."""
    return np.sqrt(np.mean(np.square(np.asarray(got) - exact)))


RNG = np.random.default_rng(11)
CASES = {
    "one tile": (((5, 3), (7, 3), (7, 2)), {}),
    "some tiles": (((3, 211, 17), (3, 307, 17), (3, 307, 13)), {}),
    "causal, fewer queries": (((2, 101, 16), (2, 307, 16), (2, 307, 33)), {"is_causal": True}),
    "causal, more queries": (((2, 307, 16), (2, 101, 16), (2, 101, 33)), {"is_causal": True}),
    "square, causal": (((197, 64), (197, 64), (197, 64)), {"is_causal": True}),
    "whole tiles": (((192, 64), (288, 64), (288, 64)), {}),
    "one query": (((2, 1, 8), (2, 401, 8), (2, 401, 8)), {"is_causal": True}),
    "one key": (((401, 8), (1, 8), (1, 8)), {}),
    "one token": (((1, 1, 5), (1, 1, 5), (1, 1, 3)), {"is_causal": True}),
    "many heads": (((3, 5, 23, 7), (3, 5, 29, 7), (3, 5, 29, 3)), {}),
    "grouped heads": (((2, 3, 5, 101, 7), (2, 3, 1, 103, 7), (2, 3, 1, 103, 11)), {}),
    "grouped heads, causal": (
        ((2, 5, 101, 7), (2, 1, 103, 7), (2, 1, 103, 11)),
        {"is_causal": True},
    ),
    "keys for all batches": (((2, 3, 53, 7), (1, 3, 59, 7), (3, 59, 5)), {"is_causal": True}),
    "shared queries": (((53, 7), (3, 2, 59, 7), (3, 1, 59, 5)), {}),
    "wide values": (((53, 7), (3, 1, 59, 7), (2, 59, 5)), {}),
    "mask": (
        ((3, 101, 7), (3, 103, 7), (3, 103, 5)),
        {"mask": RNG.random((3, 101, 103)) < 0.4},
    ),
    "mask of keys": (((3, 101, 7), (3, 203, 7), (3, 203, 5)), {"mask": RNG.random(203) < 0.1}),
    "mask of blocks": (
        ((2, 211, 7), (2, 307, 7), (2, 307, 5)),
        {"mask": np.kron(RNG.random((2, 7, 11)) < 0.5, np.ones((31, 29)))[:, :211, :307] > 0},
    ),
    "mask of queries": (
        ((3, 101, 7), (3, 103, 7), (3, 103, 5)),
        {"mask": np.arange(101)[:, None] > 50},
    ),
    "bias": (
        ((3, 101, 7), (3, 103, 7), (3, 103, 5)),
        {"bias": RNG.standard_normal((3, 101, 103)).astype(np.float32)},
    ),
    "bias of keys": (
        ((3, 101, 7), (3, 103, 7), (3, 103, 5)),
        {"bias": RNG.standard_normal((3, 1, 103)).astype(np.float32)},
    ),
    "everything": (
        ((2, 3, 101, 7), (2, 1, 103, 7), (2, 1, 103, 5)),
        {
            "mask": RNG.random((2, 1, 101, 103)) < 0.6,
            "bias": RNG.standard_normal((3, 101, 103)).astype(np.float32),
            "scale": 0.7,
            "is_causal": True,
        },
    ),
}


@IMPLS
@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_that_of_pytorch(impl, name):
    shapes, options = CASES[name]
    arrays, grad = draw(*shapes)
    got = attnbook.attention_vjp(*arrays, grad, **options, impl=impl)
    exact = exact_grads(arrays, grad, **options)
    theirs = torch_grads(tensors(arrays, torch.float32), torch.tensor(grad), **options)
    for label, ours, other, right in zip(NAMES, got, theirs, exact, strict=True):
        assert ours.shape == right.shape, label
        assert ours.dtype == np.float32, label
        size = np.abs(right).max()
        # PyTorch may be exact by luck: some rounding of the largest number is always allowed
        assert mean_error(ours, right) <= 2 * mean_error(other, right) + 2.0**-24 * size, label
        assert worst([ours], [right]) <= 4 * worst([other], [right]) + 2.0**-22 * size, label


@IMPLS
def test_large_logits(impl):
    rng = np.random.default_rng(5)
    # logits of about ±10,000; each query leads to one key by far, but the last two tie
    key = rng.standard_normal((131, 8)).astype(np.float32)
    key *= 100 / np.linalg.norm(key, axis=1, keepdims=True)
    key[-1] = key[-2]
    arrays = [key[::2].copy(), key, rng.standard_normal((131, 5)).astype(np.float32)]
    grad = rng.standard_normal((66, 5)).astype(np.float32)
    got = attnbook.attention_vjp(*arrays, grad, scale=1.0, impl=impl)
    exact = exact_grads(arrays, grad, scale=1.0)
    theirs = torch_grads(tensors(arrays, torch.float32), torch.tensor(grad), scale=1.0)
    for ours, other, right in zip(got, theirs, exact, strict=True):
        assert (
            worst([ours], [right]) <= 2 * worst([other], [right]) + 1e-4 * np.abs(arrays[1]).max()
        )
    # with weights of 0 and 1 the gradient of a value is that of its query
    np.testing.assert_allclose(got[2][0:128:2], grad[:64], rtol=4e-7)
    np.testing.assert_array_equal(got[2][1:129:2], 0)


@IMPLS
def test_large_sums_of_exponentials(impl):
    """A logarithm of 4096 is rounded by 2e-4 in float32; the scores here are exact."""
    rng = np.random.default_rng(6)
    arrays = [rng.integers(-8, 9, shape).astype(np.float32) / 8 for shape in ((29, 5), (31, 5))]
    arrays.append(rng.standard_normal((31, 3)).astype(np.float32))
    grad = rng.standard_normal((29, 3)).astype(np.float32)
    options = {"bias": np.full((1, 1), 4096, np.float32), "scale": 1.0}
    got = attnbook.attention_vjp(*arrays, grad, **options, impl=impl)
    for ours, right in zip(got, exact_grads(arrays, grad, **options), strict=True):
        np.testing.assert_allclose(ours, right, atol=4e-6)


@IMPLS
def test_rows_that_see_nothing_have_no_gradient(impl):
    arrays, grad = draw((2, 103, 7), (2, 109, 7), (2, 109, 5))
    mask = np.random.default_rng(1).random((103, 109)) < 0.5
    mask[3:50] = mask[:, 7:31] = mask[-1] = False
    got = attnbook.attention_vjp(*arrays, grad, mask, impl=impl)
    for ours, right in zip(got, exact_grads(arrays, grad, mask), strict=True):
        np.testing.assert_allclose(ours, right, atol=3e-6)
    np.testing.assert_array_equal(got[0][:, 3:50], 0)
    np.testing.assert_array_equal(got[1][:, 7:31], 0)
    np.testing.assert_array_equal(got[2][:, 7:31], 0)
    for ours in attnbook.attention_vjp(*arrays, grad, np.array(False), impl=impl):
        np.testing.assert_array_equal(ours, 0)


@IMPLS
def test_nan_reaches_its_own_query_only(impl):
    arrays, grad = draw((103, 7), (109, 7), (109, 5))
    arrays[0][5, 2] = np.nan
    grad_query, *_ = attnbook.attention_vjp(*arrays, grad, impl=impl)
    assert np.isnan(grad_query[5]).all()
    assert np.isfinite(np.delete(grad_query, 5, axis=0)).all()


SIZES = {
    "no queries": ((2, 0, 3), (2, 5, 3), (2, 5, 7)),
    "no keys": ((2, 5, 3), (2, 0, 3), (2, 0, 7)),
    "no heads": ((0, 5, 3), (0, 5, 3), (0, 5, 7)),
    "no query heads": ((0, 5, 3), (1, 5, 3), (5, 7)),
    "no features": ((5, 0), (7, 0), (7, 3)),
    "no values": ((5, 3), (7, 3), (7, 0)),
    "nothing": ((0, 0), (0, 0), (0, 0)),
}


@IMPLS
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_0(impl, name):
    arrays, grad = draw(*SIZES[name])
    got = attnbook.attention_vjp(*arrays, grad, scale=1.0, is_causal=True, impl=impl)
    for x, ours in zip(arrays, got, strict=True):
        assert ours.shape == x.shape
        assert ours.dtype == x.dtype
    right = attnbook.attention_vjp(*arrays, grad, scale=1.0, is_causal=True)
    for ours, other in zip(got, right, strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-6)


@IMPLS
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_widened(impl, name):
    dtype = getattr(torch, name)
    arrays, grad = draw((2, 3, 101, 7), (2, 1, 103, 7), (2, 1, 103, 5))
    half = [x.detach() for x in tensors(arrays, dtype)]
    half_grad = torch.tensor(grad).to(dtype)
    got = attnbook.attention_vjp(*half, half_grad, is_causal=True, impl=impl)
    exact = exact_grads([x.double().numpy() for x in half], half_grad.double(), is_causal=True)
    theirs = torch_grads(half, half_grad, is_causal=True)
    for x, ours, other, right in zip(half, got, theirs, exact, strict=True):
        assert ours.dtype == dtype
        assert ours.shape == x.shape
        assert worst([ours.double()], [right]) <= 2 * worst([other.double()], [right])


@IMPLS
def test_numpys_half_precision(impl):
    arrays, grad = draw((19, 7), (23, 7), (23, 5))
    half = [x.astype(np.float16) for x in (*arrays, grad)]
    got = attnbook.attention_vjp(*half, impl=impl)
    exact = exact_grads([x.astype(np.float64) for x in half[:3]], half[3].astype(np.float64))
    for ours, right in zip(got, exact, strict=True):
        assert ours.dtype == np.float16
        np.testing.assert_allclose(ours, right, rtol=2e-3, atol=2e-3)


@IMPLS
def test_tensors_and_strides(impl):
    """Tensors that need a gradient, transposed inputs and repeated masks give the same bits."""
    arrays, grad = draw((2, 101, 7), (2, 103, 7), (2, 103, 5))
    mask = np.arange(103) % 3 > 0
    right = attnbook.attention_vjp(*arrays, grad, mask, impl=impl)
    turned = [np.asfortranarray(x) for x in (*arrays, grad)]
    wide = np.broadcast_to(mask, (2, 101, 103))
    in_torch = [torch.tensor(x, requires_grad=True) for x in (*arrays, grad)]
    for got in (
        attnbook.attention_vjp(*turned, wide, impl=impl),
        attnbook.attention_vjp(*in_torch, torch.tensor(mask).expand(2, 101, 103), impl=impl),
    ):
        for ours, other in zip(got, right, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), other)
    assert all(isinstance(x, torch.Tensor) and not x.requires_grad for x in got)


@IMPLS
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 307, 8), (1, 1009, 8), (1, 1009, 8)),  # keys are split
        ((1009, 8), (97, 8), (97, 8)),  # queries are split too
        ((3, 5, 97, 8), (3, 1, 193, 8), (3, 1, 193, 8)),
        ((11, 97, 8), (11, 97, 8), (11, 97, 8)),
    ],
    ids=["keys", "queries", "groups", "heads"],
)
def test_threads_do_not_change_a_bit(impl, shapes, monkeypatch):
    arrays, grad = draw(*shapes)
    results = []
    for n_threads in (1, 2, 3, 7, 3):
        monkeypatch.setattr(backward, "n_threads_for", lambda *_, n=n_threads, **__: n)
        results.append(attnbook.attention_vjp(*arrays, grad, is_causal=True, impl=impl))
    for other in results[1:]:
        for ours, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(ours, first)


def test_work_is_shared_out(monkeypatch):
    """One head is split among threads; a small one is not worth it."""
    seen = []
    in_parts = backward.in_parts

    def spy(function, n, n_threads):
        seen.append(n_threads)
        in_parts(function, n, n_threads)

    monkeypatch.setattr(backward, "in_parts", spy)
    monkeypatch.setattr("attnbook.arrays.threads._cores", lambda: 2)
    for n in (8, 601):
        arrays, grad = draw((n, 16), (n, 16), (n, 16))
        attnbook.attention_vjp(*arrays, grad, impl="packed")
    assert seen == [1, 2]


@IMPLS
def test_no_matrix_of_weights_is_kept(impl):
    n = 3001
    arrays, grad = draw((n, 4), (n, 4), (n, 4))
    mask = np.broadcast_to(np.arange(n) % 7 > 0, (n, n))
    attnbook.attention_vjp(*arrays, grad, mask, is_causal=True, impl=impl)
    tracemalloc.start()
    attnbook.attention_vjp(*arrays, grad, mask, is_causal=True, impl=impl)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * n


@IMPLS
def test_inputs_are_not_written_to(impl):
    arrays, grad = draw((101, 16), (103, 16), (103, 16))
    before = [x.copy() for x in (*arrays, grad)]
    attnbook.attention_vjp(*arrays, grad, impl=impl)
    for x, other in zip((*arrays, grad), before, strict=True):
        np.testing.assert_array_equal(x, other)


@IMPLS
def test_against_differences(impl):
    """A step along the gradient changes the loss as the gradient says."""
    arrays, grad = draw((2, 101, 7), (1, 103, 7), (2, 103, 5))
    got = attnbook.attention_vjp(*arrays, grad, is_causal=True, impl=impl)
    rng = np.random.default_rng(2)

    def loss(*inputs):
        return np.sum(grad * attnbook.attention(*inputs, is_causal=True))

    inputs = [x.astype(np.float64) for x in arrays]
    for i, ours in enumerate(got):
        step = 1e-5 * rng.standard_normal(ours.shape)
        up, down = ([*inputs[:i], inputs[i] + s, *inputs[i + 1 :]] for s in (step, -step))
        slope = (loss(*up) - loss(*down)) / 2
        np.testing.assert_allclose(np.sum(ours * step), slope, rtol=1e-3, atol=1e-9)


LEADS = (
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((2, 3), (2, 1), (2, 1)),
    ((2,), (), (1,)),
    ((), (2, 1), (3,)),
    ((2, 3), (1, 3), (3,)),
)


@st.composite
def cases(draw_one):
    """Draw shapes around the size of a tile, leading axes that broadcast, and options."""
    size = st.sampled_from((1, 2, 17, 95, 96, 97, 191, 193, 211))
    n_q, n_k = draw_one(size), draw_one(size)
    d_k, d_v = (draw_one(st.sampled_from((1, 3, 16, 32, 33))) for _ in range(2))
    leads = draw_one(
        st.sampled_from(
            (((), (), ()), ((2,), (2,), (2,)), ((2, 3), (2, 1), (2, 1)), ((2,), (), (1,)))
        )
    )
    shapes = [(*leads[0], n_q, d_k), (*leads[1], n_k, d_k), (*leads[2], n_k, d_v)]
    rng = np.random.default_rng(draw_one(st.integers(0, 2**32 - 1)))
    scores = (*np.broadcast_shapes(*leads[:2]), n_q, n_k)
    forms = (None, scores, (n_q, n_k), (n_q, 1), (n_k,))
    of_mask, of_bias = draw_one(st.sampled_from(forms)), draw_one(st.sampled_from(forms))
    options = {
        "mask": None if of_mask is None else rng.random(of_mask) < 0.5,
        "bias": None if of_bias is None else rng.standard_normal(of_bias, dtype=np.float32),
        "scale": draw_one(st.sampled_from((None, 0.0, 0.3, 2.0))),
        "is_causal": draw_one(st.booleans()),
    }
    return shapes, options


@IMPLS
@settings(max_examples=20, deadline=None)
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_any_shape(impl, case, seed):
    shapes, options = case
    arrays, grad = draw(*shapes, seed=seed)
    got = attnbook.attention_vjp(*arrays, grad, **options, impl=impl)
    exact = exact_grads(arrays, grad, **options)
    for ours, right in zip(got, exact, strict=True):
        assert ours.shape == right.shape
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=2e-5 * (1 + np.abs(right).max()))


# The product of tiles


@numba.njit
def multiplied(tile, part, a, a_row, a_column, b, c, rows, columns, depth, add):
    if add:
        products.product_onto(tile, part, a, 0, a_row, a_column, b, c, rows, columns, depth, None)
    else:
        products.product(tile, a, 0, a_row, a_column, b, c, rows, columns, depth, None)


@pytest.mark.parametrize("tile", [None, *backward.TILES.values()], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_product(tile, turned):
    """Every tile that any processor uses, with rows and depths that do not fill it."""
    rng = np.random.default_rng(4)
    columns = 64 if tile else 61
    for rows, depth in ((1, 1), (7, 5), (29, 8), (96, 31)):
        a = rng.standard_normal((depth, rows) if turned else (rows, depth)).astype(np.float32)
        b = rng.standard_normal((depth, columns)).astype(np.float32)
        c = rng.standard_normal((rows + 5, columns)).astype(np.float32)
        right = (a.T if turned else a).astype(np.float64) @ b
        for add, first in ((False, 0), (True, 2)):
            to, part = c.copy(), np.empty_like(c)
            steps = (1, rows) if turned else (depth, 1)
            multiplied(tile, part, a.ravel(), *steps, b, to[first:], rows, columns, depth, add)
            np.testing.assert_allclose(
                to[first : first + rows], right + add * c[first : first + rows], atol=1e-4
            )
            np.testing.assert_array_equal(to[:first], c[:first])
            np.testing.assert_array_equal(to[first + rows :], c[first + rows :])


def test_the_tile_of_this_processor():
    assert backward.TILES[register_tiles.lanes()].lanes == register_tiles.lanes()
    for lanes, tile in backward.TILES.items():
        assert tile.lanes == lanes
        assert backward.KEYS % (tile.lanes * tile.vectors) == 0
