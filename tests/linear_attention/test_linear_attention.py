"""States that fade or are overwritten: every form against loops over single numbers."""

import numpy as np
import pytest
import torch
from cases import DTYPES, HALF, close, need
from hypothesis import given
from hypothesis import strategies as st

from attnbook import linear_attention as linear
from attnbook.linear_attention.arguments import LENGTH

RULES = ("decayed", "delta")
FORMS = ("reference", "parallel", "chunkwise", "numba")
FUNCTIONS = {"decayed": linear.decayed_attention, "delta": linear.delta_rule}
GRADIENTS = {"decayed": linear.decayed_attention_vjp, "delta": linear.delta_rule_vjp}
rules = pytest.mark.parametrize("rule", RULES)


def by_loops(rule, query, key, value, beta, log_decay, state):
    """Return output and last state of one head, one number at a time."""
    n, d_k = key.shape
    d_v = value.shape[1]
    state = [[float(x) for x in row] for row in state]
    output = np.zeros((n, d_v))
    for t in range(n):
        fade = float(np.exp(log_decay[t]))
        state = [[fade * x for x in row] for row in state]
        new = [float(x) for x in value[t]]
        if rule == "delta":
            held = [sum(state[i][j] * key[t, i] for i in range(d_k)) for j in range(d_v)]
            new = [beta[t] * (v - h) for v, h in zip(new, held, strict=True)]
        for i in range(d_k):
            for j in range(d_v):
                state[i][j] += key[t, i] * new[j]
        for j in range(d_v):
            output[t, j] = sum(state[i][j] * query[t, i] for i in range(d_k))
    return output, np.array(state).reshape(d_k, d_v)


def inputs(seed, n=9, d_k=3, d_v=5, leading=(), fading=0.4):
    """Draw query, key, value, beta, log-decay and state; keys have length 1."""
    rng = np.random.default_rng(seed)
    query, key = (rng.standard_normal((*leading, n, d_k)) for _ in range(2))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value = rng.standard_normal((*leading, n, d_v))
    beta, log_decay = rng.random((*leading, n)), -fading * rng.exponential(size=(*leading, n))
    return query, key, value, beta, log_decay, rng.standard_normal((*leading, d_k, d_v))


def call(rule, query, key, value, beta, log_decay, state, impl):
    each = (query, key, value) if rule == "decayed" else (query, key, value, beta)
    return FUNCTIONS[rule](*each, log_decay, state=state, impl=impl)


@rules
@pytest.mark.parametrize("impl", FORMS)
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from((0, 1, 2, 5, LENGTH, LENGTH + 7)))
def test_every_form_agrees_with_the_loops(rule, impl, seed, n):
    drawn = inputs(seed, n, fading=seed % 3)  # also without decay, and with a strong one
    dtype = "float32" if impl == "numba" else "float64"
    rounded = [x.astype(dtype).astype(np.float64) for x in drawn]
    expected = by_loops(rule, *rounded)
    got = call(rule, *(x.astype(dtype) for x in drawn), impl)
    for x, exact in zip(got, expected, strict=True):
        assert x.dtype == dtype
        size = 1 + max(np.max(np.abs(exact), initial=0), n)
        close(x.astype(np.float64), exact, dtype, size=size)


@rules
@pytest.mark.parametrize("impl", FORMS[:3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_library_and_dtype(library, dtype, rule, impl):
    need(library, dtype)
    arrays = [library.array(x, dtype) for x in inputs(1, 70, leading=(2, 1))]
    if dtype in HALF:
        arrays[5] = library.array(library.numpy(arrays[5]), "float32")
    expected = [
        np.stack(x)[:, None]
        for x in zip(
            *(by_loops(rule, *(library.numpy(x)[i, 0] for x in arrays)) for i in range(2)),
            strict=True,
        )
    ]
    output, state = call(rule, *arrays, impl)
    assert library.same_kind(output, arrays[0])
    assert library.same_kind(state, arrays[5])
    close(library.numpy(output), expected[0], dtype, size=70)
    close(library.numpy(state), expected[1], "float32" if dtype in HALF else dtype, size=70)


@rules
@pytest.mark.parametrize("impl", FORMS)
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 80))
def test_a_state_goes_on_where_it_was_cut(rule, impl, seed, cut):
    drawn = [x.astype(np.float32) for x in inputs(seed, 80)]
    whole, last = call(rule, *drawn, impl)
    state, parts = drawn[5], []
    for half in (slice(None, cut), slice(cut, None)):
        part, state = call(rule, *(x[half] for x in drawn[:5]), state, impl)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=2e-4)
    np.testing.assert_allclose(state, last, rtol=0, atol=2e-4)


@rules
@pytest.mark.parametrize("impl", FORMS)
def test_no_output_depends_on_a_later_token(rule, impl):
    drawn = [x.astype(np.float32) for x in inputs(3, 100)]
    before, _ = call(rule, *drawn, impl)
    for i, x in enumerate(drawn[:5]):
        x[71:] = -x[71:] if i < 3 else x[71:] / 2
    after, _ = call(rule, *drawn, impl)
    np.testing.assert_array_equal(after[:71], before[:71])


@rules
@pytest.mark.parametrize("impl", FORMS)
@pytest.mark.parametrize("fading", [200.0, 1e4])
def test_a_strong_decay_neither_overflows_nor_leaves_anything(rule, impl, fading):
    query, key, value, beta, _, state = (x.astype(np.float32) for x in inputs(4, 90))
    log_decay = np.full(90, -fading, np.float32)
    output, last = call(rule, query, key, value, beta, log_decay, state, impl)
    new = value if rule == "decayed" else beta[:, None] * value
    np.testing.assert_allclose(output, np.sum(query * key, -1, keepdims=True) * new, atol=1e-5)
    np.testing.assert_allclose(last, key[-1][:, None] * new[-1], atol=1e-6)


@rules
@pytest.mark.parametrize("impl", FORMS[:3])
@given(seed=st.integers(0, 2**32 - 1), n=st.sampled_from((1, 2, 7, LENGTH + 3)))
def test_gradients_are_those_of_autograd_through_the_recurrence(rule, impl, seed, n):
    drawn = inputs(seed, n, leading=(2,))
    rng = np.random.default_rng(seed)
    tensors = [torch.tensor(x, requires_grad=True) for x in drawn]
    output, last = call(rule, *tensors, "reference")
    grad_output, grad_state = rng.standard_normal(output.shape), rng.standard_normal(last.shape)
    loss = (output * torch.tensor(grad_output)).sum() + (last * torch.tensor(grad_state)).sum()
    query, key, value, beta, log_decay, state = tensors
    wanted = [query, key, value, *((beta,) if rule == "delta" else ()), log_decay, state]
    expected = torch.autograd.grad(loss, wanted)
    each = drawn[:4] if rule == "delta" else drawn[:3]
    given = (*each, drawn[4], grad_output, grad_state)
    got = GRADIENTS[rule](*given, state=drawn[5], impl=impl)
    for x, exact in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, exact.numpy(), rtol=0, atol=1e-10 * (1 + n))


@rules
def test_autograd_through_the_chunks_passes_gradcheck(rule):
    tensors = [torch.tensor(x, requires_grad=True) for x in inputs(5, 6, d_v=2)]
    if rule == "decayed":
        tensors[3].requires_grad_(False)
    assert torch.autograd.gradcheck(lambda *x: call(rule, *x, "chunkwise"), tensors)


@rules
def test_gradients_of_axes_that_were_broadcast_are_summed(rule):
    query, key, value, beta, log_decay, state = inputs(6, 7, leading=(3,))
    key, log_decay = key[:1], log_decay[0]
    each = (query, key, value, *((beta,) if rule == "delta" else ()))
    got = GRADIENTS[rule](*each, log_decay, np.ones((3, 7, 5)), state=state[0])
    assert [x.shape for x in got] == [x.shape for x in (*each, log_decay, state[0])]
    full = [np.broadcast_to(x, (3, *x.shape[-2:])) for x in (query, key, value)]
    rest = [np.broadcast_to(x, (3, 7)) for x in ([beta] if rule == "delta" else []) + [log_decay]]
    states = np.broadcast_to(state[0], state.shape)
    whole = GRADIENTS[rule](*full, *rest, np.ones((3, 7, 5)), state=states)
    np.testing.assert_allclose(got[1][0], whole[1].sum(0), atol=1e-12)
    np.testing.assert_allclose(got[-1], whole[-1].sum(0), atol=1e-12)


def test_without_decay_it_is_attention_with_weights_that_are_products():
    query, key, value, *_ = inputs(7, 130)
    scores = np.tril(query @ key.T)
    output, state = linear.decayed_attention(query, key, value, impl="chunkwise")
    np.testing.assert_allclose(output, scores @ value, atol=1e-12)
    np.testing.assert_allclose(state, key.T @ value, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_delta_rule_returns_the_last_value_of_each_orthogonal_key(seed):
    rng = np.random.default_rng(seed)
    keys = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    order = rng.integers(0, 8, 40)
    value = rng.standard_normal((40, 3))
    _, state = linear.delta_rule(keys[order], keys[order], value, np.ones(40), impl="chunkwise")
    for i in set(order.tolist()):
        last = max(t for t in range(40) if order[t] == i)
        np.testing.assert_allclose(keys[i] @ state, value[last], atol=1e-10)


@rules
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": np.ones((9, 4))}, r"key must have shape \(\.\.\., 9, 3\) to match query"),
        ({"value": np.ones((8, 5))}, r"value must have shape \(\.\.\., 9, d_v\), got \(8, 5\)"),
        ({"log_decay": np.ones(8)}, r"log_decay must have shape \(\.\.\., 9\), got \(8,\)"),
        ({"state": np.ones((5, 3))}, r"state must have shape \(\.\.\., 3, 5\)"),
        ({"query": np.ones(3)}, r"query must have shape \(\.\.\., n, d\), got \(3,\)"),
        ({"key": np.ones((2, 9, 3)), "value": np.ones((4, 9, 5))}, "leading axes must broadcast"),
        ({"impl": "chunked"}, "impl must be one of reference, parallel, chunkwise, numba, triton"),
    ],
)
def test_what_does_not_fit_is_named(rule, change, message):
    names = ("query", "key", "value", "beta", "log_decay", "state")
    given = dict(zip(names, inputs(8), strict=True)) | {"impl": "reference"} | change
    with pytest.raises(ValueError, match=message):
        call(rule, **given)


def test_beta_is_checked_as_the_decay_is():
    query, key, value, *_ = inputs(8)
    with pytest.raises(ValueError, match=r"beta must have shape \(\.\.\., 9\), got \(9, 1\)"):
        linear.delta_rule(query, key, value, np.ones((9, 1)))
    with pytest.raises(TypeError, match="beta must have the dtype of query"):
        linear.delta_rule(query, key, value, np.ones(9, np.float32))


@rules
def test_gradients_of_another_shape_are_refused(rule):
    query, key, value, beta, log_decay, _ = inputs(9)
    each = (query, key, value, *((beta,) if rule == "delta" else ()), log_decay)
    with pytest.raises(ValueError, match=r"grad_output must have the shape of the output \(9, 5\)"):
        GRADIENTS[rule](*each, np.ones((9, 4)))
    with pytest.raises(ValueError, match=r"grad_state must have the shape of the state \(3, 5\)"):
        GRADIENTS[rule](*each, np.ones((9, 5)), np.ones((5, 3)))
    with pytest.raises(ValueError, match="impl must be one of reference, parallel, chunkwise, got"):
        GRADIENTS[rule](*each, np.ones((9, 5)), impl="numba")


@rules
def test_the_compiled_form_takes_single_precision_and_no_gradients(rule):
    drawn = inputs(10)
    with pytest.raises(
        ValueError, match='impl="numba" takes float32 or half precision, got float64'
    ):
        call(rule, *drawn, "numba")
    tensors = [torch.tensor(x, dtype=torch.float32) for x in drawn]
    got = call(rule, *tensors, "numba")
    assert all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in got)
    tensors[1].requires_grad_()
    with pytest.raises(ValueError, match='key must need no gradient with impl="numba"'):
        call(rule, *tensors, "numba")
    half = [x.detach().to(torch.bfloat16) for x in tensors[:5]]
    output, state = call(rule, *half, tensors[5], "numba")
    assert (output.dtype, state.dtype) == (torch.bfloat16, torch.float32)


# The kernel trick.


@pytest.mark.parametrize("impl", FORMS[:3])
def test_the_kernel_trick_is_the_mean_by_products_of_features(library, impl):
    query, key, value, *_ = inputs(11, 70)
    features = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)]
    weights = np.tril(features[0] @ features[1].T)
    expected = weights @ value / weights.sum(1, keepdims=True)
    got = linear.kernel_attention(*(library.array(x) for x in (query, key, value)), impl=impl)
    np.testing.assert_allclose(library.numpy(got), expected, atol=1e-12)


def test_the_kernel_trick_takes_any_feature_map_and_half_precision():
    query, key, value, *_ = (x.astype(np.float16) for x in inputs(12, 5))
    got = linear.kernel_attention(query, key, value, lambda x: x * x)
    weights = np.tril((query.astype(float) ** 2) @ (key.astype(float) ** 2).T)
    assert got.dtype == np.float16
    np.testing.assert_allclose(
        got, weights @ value.astype(float) / weights.sum(1, keepdims=True), rtol=2e-3, atol=1e-3
    )
    with pytest.raises(TypeError, match="feature_map must be callable, got str"):
        linear.kernel_attention(query, key, value, "elu")


def test_elu_plus_one_is_positive_and_does_not_overflow(library):
    x = np.array([-1e3, -1.0, 0.0, 2.0, 1e3])
    with np.errstate(over="raise"):
        got = linear.elu_plus_one(library.array(x))
    elu = torch.nn.functional.elu(torch.tensor(x)) + 1
    np.testing.assert_allclose(library.numpy(got), elu.numpy(), atol=1e-15)
    with pytest.raises(TypeError, match="x must have a real floating dtype, got int64"):
        linear.elu_plus_one(np.arange(3))


# The short convolution.


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_the_short_convolution_is_that_of_pytorch(library, width, leading):
    rng = np.random.default_rng(13)
    x, filters = rng.standard_normal((*leading, 7, 5)), rng.standard_normal((width, 5))
    got = linear.short_convolution(library.array(x), library.array(filters))
    channels = torch.tensor(x.reshape(-1, 7, 5)).transpose(1, 2)
    padded = torch.nn.functional.pad(channels, (width - 1, 0))
    exact = torch.nn.functional.conv1d(padded, torch.tensor(filters.T.copy())[:, None], groups=5)
    exact = exact.transpose(1, 2).reshape(x.shape).numpy()
    np.testing.assert_allclose(library.numpy(got), exact, atol=1e-12)
    if width > 1:  # token by token, each with those before it
        late = linear.short_convolution(x[..., 4:, :], filters, before=x[..., 5 - width : 4, :])
        np.testing.assert_allclose(late, exact[..., 4:, :], atol=1e-12)


@pytest.mark.parametrize(
    ("x", "filters", "before", "message"),
    [
        ((5,), (2, 5), None, r"x must have shape \(\.\.\., n, d\)"),
        ((7, 5), (5,), None, r"filters must have shape \(width, 5\), got \(5,\)"),
        ((7, 5), (0, 5), None, r"filters must have shape \(width, 5\), got \(0, 5\)"),
        ((7, 5), (3, 5), (3, 5), r"before must have shape \(2, 5\), got \(3, 5\)"),
    ],
)
def test_a_convolution_that_does_not_fit_is_refused(x, filters, before, message):
    with pytest.raises(ValueError, match=message):
        linear.short_convolution(
            np.ones(x), np.ones(filters), before=None if before is None else np.ones(before)
        )
