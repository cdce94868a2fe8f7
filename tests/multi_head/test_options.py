"""What only some models have in their heads: norms, a window, a cap, sinks and a gate."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import (
    DTYPES,
    EPSILON,
    HALF,
    HEAD_OPTIONS,
    HeadsCase,
    close,
    every_day,
    heads_cases,
    leaves_of,
    many_heads,
    masks,
    need,
    recorded,
    with_head_options,
)
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import kernels, masking
from attnbook.arrays.intervals import Intervals
from attnbook.multi_head.attention import attend, keys_and_values

dtypes = pytest.mark.parametrize("dtype", DTYPES)


@st.composite
def cases_with_options(draw):
    case = draw(heads_cases())
    weights = with_head_options(
        *(case.weights, draw(st.integers(0, 99)), draw(st.sets(st.sampled_from(HEAD_OPTIONS)))),
        cap=draw(st.sampled_from((0.1, 1, 50.0))),
        window=draw(st.sampled_from((1, 2, 3, 100))),
    )
    return replace(case, weights=weights)


def all_keys(shares, n_k, has_sinks):
    """Return weights of all keys, with zeros for those that no query reads in its window."""
    first = shares[..., :1] if has_sinks else shares[..., :0]
    own = shares[..., has_sinks:]
    unread = np.zeros((*own.shape[:-1], n_k - own.shape[-1]))
    return np.concatenate([first, unread, own], axis=-1)


# The function against the loop.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(cases_with_options())
def test_agrees_with_the_loop(library, dtype, case):
    arguments = case.arguments(library, dtype)
    output, [shares] = recorded(attnbook.multi_head_attention, *arguments)
    assert library.same_kind(output, arguments[0])
    exact_output, exact_shares = case.exact(library, dtype)
    has_sinks = case.weights.sinks is not None
    shares = all_keys(library.numpy(shares), case.key.shape[-2], has_sinks)
    if case.query.shape[-2] <= case.key.shape[-2]:  # else early queries may not see the sink
        close(shares, exact_shares, dtype, size=64.0)
    close(library.numpy(output), exact_output, dtype, size=64.0)
    alone = attnbook.multi_head_attention(*arguments)
    np.testing.assert_array_equal(library.numpy(alone), library.numpy(output))


def case_of(names, leading=(2,), n_q=5, n_k=7, g=2, mask=None, seed=1, **changed):
    """Return a case of 4 heads with these options."""
    weights = many_heads(seed, 4, g, d_k=3, d_v=2, d_out=13, bias=True)
    rng = np.random.default_rng(seed)
    shapes = ((n_q, 5), (n_k, 11), (n_k, 7))
    arrays = (rng.standard_normal((*leading, *shape)) for shape in shapes)
    drawn = masks(rng, (*leading, 4, n_q, n_k))[mask] if mask else None
    return HeadsCase(*arrays, with_head_options(weights, seed, names, **changed), drawn)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("names", [(name,) for name in HEAD_OPTIONS] + [HEAD_OPTIONS])
def test_half_precision(library, dtype, names):
    need(library, dtype)
    case = case_of(names)
    arguments = case.arguments(library, dtype)
    output = attnbook.multi_head_attention(*arguments)
    assert library.same_kind(output, arguments[0])

    def rounded(x):
        return library.numpy(library.array(x, dtype))

    exact, _ = case.exact(library, dtype, rounded=rounded)
    # the norms of the loop are not rounded
    allowed = 16 * EPSILON[dtype] * (1 + np.abs(exact))
    assert np.all(np.abs(library.numpy(output) - exact) <= allowed)


@pytest.mark.parametrize("shape", [(7,), (1,), (), (5, 1), (5, 7), (4, 5, 7), (2, 1, 1, 7)])
@pytest.mark.parametrize("window", [None, 2, 100])
def test_a_mask_and_a_bias_of_every_shape_fit_sinks_and_windows(library, shape, window):
    names = ("sinks",) if window is None else ("sinks", "window")
    rng = np.random.default_rng(3)
    mask, bias = rng.random(shape) < 0.6, rng.standard_normal(shape)
    for n_q in (5, 1):
        if len(shape) > 1 and shape[-2] > n_q:
            continue
        case = replace(case_of(names, n_q=n_q, window=window), mask=mask)
        arguments = case.arguments(library, "float64")
        got = attnbook.multi_head_attention(*arguments, bias=library.array(bias))
        exact, _ = case.exact(library, "float64", bias=bias)
        close(library.numpy(got), exact, "float64", size=10)


# Every implementation.


@pytest.mark.parametrize("mask", [None, "random", "empty row"])
@pytest.mark.parametrize("names", [("sinks",), ("window",), ("sinks", "window")])
@pytest.mark.parametrize("g", [4, 2])
@pytest.mark.parametrize("kernel", [k for k in kernels.LADDER if k.device != "cuda"])
def test_every_implementation_has_sinks_and_windows(kernel, g, names, mask):
    if kernel.needs:
        pytest.importorskip(kernel.needs)
    for n_q in (7, 5, 1):
        case = case_of(names, n_q=n_q, g=g, mask=mask, window=3)
        for is_causal in (False, True):
            for kind in kernel.takes or ("numpy", "torch"):
                *arrays, mask_of_kind = (
                    x if x is None else attnbook.move(x, kind)
                    for x in (case.query, case.key, case.value, case.mask)
                )
                arrays = [attnbook.move(x, dtype="float32") for x in arrays]
                w = case.weights.to(kind, dtype="float32")
                given = (*arrays, w, mask_of_kind)
                got = attnbook.multi_head_attention(*given, is_causal=is_causal, impl=kernel.name)
                want = attnbook.multi_head_attention(*given, is_causal=is_causal)
                close(np.asarray(got), np.asarray(want), "float32", size=10)


def test_a_window_reaches_the_kernels_as_ranges_made_once(monkeypatch):
    """In place of a mask of n² numbers, and joined with a rule that stands there already."""
    attention, seen = kernels.attention, []

    def keep(impl, query, key, value, mask, *others):
        seen.append(mask)
        return attention(impl, query, key, value, mask, *others)

    monkeypatch.setattr(kernels, "attention", keep)
    case, rule = case_of(("window",), n_q=7, n_k=7, window=3), masking.FirstKeys(5)
    for mask in (None, None, rule, rule):
        given = (case.query, case.key, case.value, case.weights)
        attnbook.multi_head_attention(*given, mask, is_causal=True, impl="tiled")
    assert all(isinstance(x, Intervals) for x in seen)
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    near = masking.sliding_window(7, 7, left=2)
    assert np.array_equal(seen[0].dense(), near)
    assert np.array_equal(np.squeeze(seen[2].dense()), near & rule.dense(7))


# Sinks.


def heads_of(case):
    """Return queries, keys and values of all heads, and the scale of their scores."""
    w, seen = case.weights, []

    def keep(query, key, value, mask, bias, scale, is_causal):
        seen.append((query, key, value, mask, scale))
        return query @ np.swapaxes(key, -1, -2) @ value

    attend(
        *(case.query, keys_and_values(case.key, case.value, w), replace(w, sinks=None), case.mask),
        impl=keep,
    )
    return seen[0]


@pytest.mark.parametrize("mask", [None, "random", "empty row"])
def test_a_sink_is_a_merge_with_a_value_of_zeros(mask):
    """The log of the total of the empty value is the sink."""
    case = case_of(("sinks",), mask=mask, n_q=7)
    query, key, value, mask, scale = heads_of(case)
    scores = np.where(
        True if mask is None else mask, scale * query @ np.swapaxes(key, -1, -2), -np.inf
    )
    of_keys = attnbook.RunningSoftmax.read(scores, value)
    sinks = np.broadcast_to(case.weights.sinks[:, None, None], (2, 4, 7, 1))
    nothing = attnbook.RunningSoftmax.read(sinks, np.zeros((2, 4, 1, 2)))
    merged = of_keys.merge(nothing).output()
    got = attnbook.multi_head_attention(*case.arguments_of_numpy())
    w = case.weights
    want = np.moveaxis(merged, 1, 2).reshape(2, 7, -1) @ w.W_O + w.b_O
    np.testing.assert_allclose(got, want, atol=1e-12)
    # so the plain output is scaled by one number for each query: its share that is not the sink's
    share = 1 / (1 + np.exp(sinks - of_keys.log_total()))
    np.testing.assert_allclose(merged, share * of_keys.output(), atol=1e-12)


@pytest.mark.parametrize("mask", [None, "empty row"])
@pytest.mark.parametrize("kernel", [k for k in kernels.LADDER if k.device != "cuda"])
def test_a_sink_of_minus_infinity_changes_nothing(kernel, mask):
    if kernel.needs:
        pytest.importorskip(kernel.needs)
    sinks = np.array([0.5, -np.inf, -np.inf, 0.5])
    case = case_of(("sinks",), mask=mask, sinks=sinks)
    w = case.weights.to(dtype="float32")
    given = [x.astype("float32") for x in (case.query, case.key, case.value)]
    # without W_O, the heads stand side by side
    w = replace(w, W_O=None, b_O=None)
    plain = replace(w, sinks=None)
    got, want = (
        attnbook.multi_head_attention(*given, some, case.mask, impl=kernel.name)
        for some in (w, plain)
    )
    assert np.all(np.isfinite(got))
    close(got[..., 2:6], want[..., 2:6], "float32", size=4)
    if mask is None:
        assert np.all(got[..., [0, 1, 6, 7]] != want[..., [0, 1, 6, 7]])


def test_a_large_sink_takes_all_the_attention():
    case = case_of(("sinks",), sinks=np.full(4, 1e4))
    got = attnbook.multi_head_attention(*case.arguments_of_numpy())
    np.testing.assert_array_equal(got, np.broadcast_to(case.weights.b_O, (2, 5, 13)))


def test_a_recorder_keeps_the_weights_of_the_sinks_first():
    case = case_of(("sinks",))
    _, [A] = recorded(attnbook.multi_head_attention, *case.arguments_of_numpy())
    assert A.shape == (2, 4, 5, 1 + 7)
    np.testing.assert_allclose(A.sum(-1), np.ones((2, 4, 5)), rtol=1e-12)


# Windows.


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("n_k", [5, 7, 3])
def test_a_window_is_the_mask_of_that_name(library, window, n_k):
    case = case_of(("window",), window=window, n_k=n_k)
    plain = replace(case, weights=replace(case.weights, window=None))
    mask = masking.sliding_window(5, n_k, left=window - 1)
    for is_causal in (False, True):
        got = attnbook.multi_head_attention(
            *case.arguments(library, "float64"), is_causal=is_causal
        )
        masked = replace(plain, mask=mask).arguments(library, "float64")
        want = attnbook.multi_head_attention(*masked)
        np.testing.assert_allclose(library.numpy(got), library.numpy(want), atol=1e-14)


@pytest.mark.parametrize("n_new", [1, 2])
def test_new_tokens_read_the_keys_of_their_window_alone(n_new):
    """What stands before the window may be anything, even NaN."""
    case = case_of(("window",), n_q=n_new, n_k=11, window=4)
    query, key, value, w, mask = case.arguments_of_numpy()
    want = attnbook.multi_head_attention(query, key, value, w, mask)
    unread = 11 - (4 + n_new - 1)
    key[:, :unread] = np.nan
    value[:, :unread] = np.nan
    got = attnbook.multi_head_attention(query, key, value, w, mask)
    np.testing.assert_array_equal(got, want)
    _, [A] = recorded(attnbook.multi_head_attention, query, key, value, w)
    assert A.shape == (2, 4, n_new, 4 + n_new - 1)


# The cap.


def test_a_function_gets_the_cap_by_name():
    case, seen = case_of(("cap",), cap=np.float64(30)), []

    def capped(query, key, value, mask, bias, scale, is_causal, *, cap):
        seen.append(cap)
        return kernels.attention("reference", query, key, value, mask, bias, scale, is_causal, cap)

    given = case.arguments_of_numpy()
    got = attnbook.multi_head_attention(*given, impl=capped)
    assert seen == [30.0]
    for impl in ("reference", "naive", kernels.Recorder()):
        want = attnbook.multi_head_attention(*given, impl=impl)
        np.testing.assert_array_equal(got, want)


def test_a_cap_stays_below_itself_and_a_wide_one_changes_nothing():
    case = case_of(("cap",), cap=0.01)
    query = 1e6 * case.query
    _, [A] = recorded(attnbook.multi_head_attention, query, *case.arguments_of_numpy()[1:])
    spread = A.max(-1) / A.min(-1)
    assert spread.max() <= math.exp(0.02) * (1 + 1e-12)  # scores between ±0.01
    wide = replace(case.weights, cap=1e9)
    given = (case.query, case.key, case.value)
    got = attnbook.multi_head_attention(*given, wide)
    want = attnbook.multi_head_attention(*given, replace(wide, cap=None))
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_a_cap_keeps_float32():
    case = case_of(("cap",), cap=np.float64(2))
    got = attnbook.multi_head_attention(
        *(x.astype("float32") for x in (case.query, case.key, case.value)),
        case.weights.to(dtype="float32"),
    )
    assert got.dtype == np.float32


# Gradients.


@pytest.mark.parametrize(
    ("names", "n_q"),
    every_day(
        [(HEAD_OPTIONS, 5)],
        [(HEAD_OPTIONS, 5), (HEAD_OPTIONS, 1), *(((n,), 5) for n in HEAD_OPTIONS)],
    ),
)
def test_gradcheck(names, n_q):
    case = case_of(names, mask="empty row", n_q=n_q)
    query, key, value, w, mask = (
        x if x is None else attnbook.move(x, "torch") if isinstance(x, np.ndarray) else x
        for x in case.arguments_of_numpy()
    )
    w = w.to("torch")
    named = list(w.arrays())
    leaves = [x.clone().requires_grad_() for x in (query, key, value, *w.arrays().values())]

    def function(query, key, value, *held):
        weights = w.filled(dict(zip(named, held, strict=True)))
        return attnbook.multi_head_attention(query, key, value, weights, mask)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@dtypes
def test_gradients_are_finite_with_empty_rows(dtype):
    case = case_of(HEAD_OPTIONS, mask="empty row", sinks=np.array([-np.inf, 0.0, 1.0, 5.0]))
    weights, leaves = leaves_of(case.weights.to("torch", dtype=dtype))
    inputs = [
        torch.tensor(30 * x, dtype=getattr(torch, dtype)).requires_grad_()
        for x in (case.query, case.key, case.value)
    ]
    mask = torch.tensor(case.mask)
    attnbook.multi_head_attention(*inputs, weights, mask).sum().backward()
    for name, x in [*enumerate(inputs), *leaves.items()]:
        assert x.grad.dtype == x.dtype, name
        assert bool(torch.isfinite(x.grad).all()), name


def test_vmap():
    case = case_of(HEAD_OPTIONS, leading=(3,), mask="random")
    arrays = [torch.tensor(x) for x in (case.query, case.key, case.value)]
    w, mask = case.weights.to("torch"), torch.tensor(case.mask)
    mapped = torch.func.vmap(lambda q, k, v, m: attnbook.multi_head_attention(q, k, v, w, m))
    expected = attnbook.multi_head_attention(*arrays, w, mask)
    torch.testing.assert_close(mapped(*arrays, mask), expected)


# Errors.


def call(names, impl, **changed):
    case = case_of(names, **changed)
    return attnbook.multi_head_attention(*case.arguments_of_numpy(), impl=impl)


def plain(query, key, value, mask, bias, scale, is_causal):
    return query


def weights(**options):
    return replace(many_heads(0, 4, 2, d_k=3, d_v=2), **options)


def trained(name):
    case = case_of(("sinks",))
    w, _ = leaves_of(case.weights.to("torch", dtype="float32"))
    arrays = [torch.tensor(x, dtype=torch.float32) for x in (case.query, case.key, case.value)]
    return attnbook.multi_head_attention(*arrays, w, impl=name)


ERRORS = """
call(("cap",), "tiled", cap=30)
    ValueError: impl must be 'reference' or a function, since the weights have cap=30.0, got
    'tiled'
call(("cap",), plain)
    TypeError: impl must take (query, key, value, mask, bias, scale, is_causal) by position and
    cap= by name, got plain: plain() got an unexpected keyword argument 'cap'
weights(cap=0)
    ValueError: cap must be above 0, got 0.0
weights(cap="30")
    TypeError: cap must be a real number, got str
weights(window=0)
    ValueError: window must be at least 1, got 0
weights(window=2.0)
    TypeError: window must be an int, got float
weights(sinks=np.ones(2))
    ValueError: sinks must have shape (4,), got (2,)
weights(sinks=np.ones(4, "float32"))
    TypeError: sinks must have the dtype of W_Q (float64), got float32
weights(W_gate=np.ones((5, 12)))
    ValueError: W_gate must have shape (5, 8), got (5, 12)
weights(q_norm=RMSNormWeights.init(2))
    ValueError: q_norm.gain must have shape (3,), the width of a head, got (2,)
weights(k_norm=LayerNormWeights(None, np.ones(5)))
    ValueError: k_norm.bias must have shape (3,), the width of a head, got (5,)
weights(k_norm=np.ones(3))
    TypeError: k_norm must be LayerNormWeights or RMSNormWeights, got ndarray
with_head_options(weights(), names=["window"]).heads()
    ValueError: weights must have no window to be split, got 2
with_head_options(weights(), names=["cap"]).heads()
    ValueError: weights must have no cap to be split, got 0.7
with_head_options(weights(), names=["sinks"]).heads()
    ValueError: weights must have no sinks to be split, got ndarray
with_head_options(weights(), names=["W_gate"]).heads()
    ValueError: weights must have no W_gate to be split, got ndarray
with_head_options(weights(), names=["q_norm"]).heads()
    ValueError: weights must have no q_norm to be split, got RMSNormWeights
weights(scale=2).heads()
    ValueError: weights must have no scale to be split, got 2.0
trained("tiled")
    ValueError: bias must not require a gradient for impl='tiled', got requires_grad=True;
    impl='reference' gives one
"""
test_error = error_test(ERRORS, vars(attnbook) | globals())
