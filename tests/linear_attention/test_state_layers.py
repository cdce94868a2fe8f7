"""Layers with a state: each against loops over tokens and against `transformers`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import DTYPES, EPSILON, HALF, close, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import linear_attention as linear
from attnbook import nn
from attnbook.linear_attention import LinearAttentionWeights, Mamba2Weights

SIZES = {"d_model": 11, "n_heads": 6}
MAKES = {
    "gated delta": lambda rng: LinearAttentionWeights.init(
        rng, **SIZES, n_key_heads=2, d_k=5, d_v=7
    ),
    "delta": lambda rng: LinearAttentionWeights.init(rng, **SIZES, d_k=5, d_v=7, decay=False),
    "gated": lambda rng: LinearAttentionWeights.init(
        rng, **SIZES, n_key_heads=3, d_k=5, d_v=7, delta=False
    ),
    "retention": lambda rng: replace(
        LinearAttentionWeights.init(rng, **SIZES, d_k=5, d_v=7, delta=False, gate=False),
        W_decay=None,
    ),
    "plain": lambda rng: LinearAttentionWeights.init(
        rng, **SIZES, d_k=5, d_v=7, width=None, delta=False, decay=False, gate=False, unit=False
    ),
    "mamba": lambda rng: Mamba2Weights.init(rng, **SIZES, d_k=5, d_v=7, n_key_heads=2, width=3),
}
layers = pytest.mark.parametrize("name", MAKES)


def drawn(name, seed=0):
    """Return weights without an array that is all alike."""
    rng = np.random.default_rng(seed)
    weights = MAKES[name](rng)
    return weights.filled({k: x + rng.normal(0, 0.2, x.shape) for k, x in weights.arrays().items()})


def layer(x, weights, past=None, **options):
    is_mamba = isinstance(weights, Mamba2Weights)
    function = linear.mamba2_layer if is_mamba else linear.linear_attention_layer
    return function(x, weights, past, **options)


def silu(x):
    return x / (1 + np.exp(-x))


def normed(x, epsilon):
    return x / np.sqrt(np.mean(x * x) + epsilon)


def by_tokens(x, w):
    """Return the output of one sequence, token by token and head by head."""
    is_mamba = isinstance(w, Mamba2Weights)
    h, d_k, d_v, group = w.n_heads, w.d_k, w.d_v, w.n_heads // w.n_key_heads
    states, inputs, output = np.zeros((h, d_k, d_v)), [], []
    for token in x:
        inputs.append(np.concatenate([token @ w.W_Q, token @ w.W_K, token @ w.W_V]))
        y = inputs[-1]
        if w.filters is not None:
            back = range(min(len(inputs), len(w.filters)))
            y = sum(w.filters[len(w.filters) - 1 - i] * inputs[-1 - i] for i in back)
        y = silu(y + w.filter_bias) if is_mamba else silu(y)
        query, key, value = np.split(y, [w.W_Q.shape[1], 2 * w.W_Q.shape[1]])
        query, key = query.reshape(-1, d_k), key.reshape(-1, d_k)
        gate = None if w.W_gate is None else silu(token @ w.W_gate)
        heads = []
        for i in range(h):
            q, k, v = query[i // group], key[i // group], value[i * d_v : (i + 1) * d_v]
            if is_mamba:
                step = np.log1p(np.exp(token @ w.W_step[:, i] + w.dt_bias[i]))
                states[i] = np.exp(-np.exp(w.A_log[i]) * step) * states[i] + np.outer(k, step * v)
                heads.append(states[i].T @ q + w.skip[i] * v)
                continue
            if w.unit:
                q, k = (r / np.sqrt(r @ r + 1e-6) for r in (q, k))
            if w.A_log is not None:
                a = w.dt_bias[i] + (0 if w.W_decay is None else token @ w.W_decay[:, i])
                states[i] *= np.exp(-np.exp(w.A_log[i]) * np.log1p(np.exp(a)))
            if w.W_beta is not None:
                beta = 1 / (1 + np.exp(-token @ w.W_beta[:, i]))
                v = beta * (v - states[i].T @ k)
            states[i] += np.outer(k, v)
            heads.append(normed(states[i].T @ q / np.sqrt(d_k), w.epsilon) * w.norm_gain)
        joined = np.concatenate(heads)
        joined = joined if gate is None else joined * gate
        if is_mamba:
            parts = joined.reshape(w.n_key_heads, -1)
            joined = np.concatenate([normed(part, w.epsilon) for part in parts]) * w.norm_gain
        output.append(joined @ w.W_O)
    return np.array(output).reshape(len(x), -1)


@layers
@pytest.mark.parametrize("impl", ["reference", "parallel", "chunkwise"])
@pytest.mark.parametrize("n", [1, 2, 70])
def test_every_form_agrees_with_the_loop(name, impl, n):
    weights, x = drawn(name), np.random.default_rng(1).standard_normal((n, 11))
    got, _ = layer(x, weights, impl=impl)
    np.testing.assert_allclose(got, by_tokens(x, weights), rtol=0, atol=1e-10)


@layers
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_library_and_dtype(library, dtype, name):
    need(library, dtype)
    x = library.array(np.random.default_rng(2).standard_normal((2, 3, 9, 11)), dtype)
    weights = library.place(drawn(name), dtype)
    output, past = layer(x, weights)
    assert library.same_kind(output, x)
    assert str(past.state.dtype).endswith("float32" if dtype in HALF else dtype)
    assert library.same_kind(past.inputs, x)
    exact = weights.filled({k: library.numpy(v) for k, v in weights.arrays().items()})
    rows = library.numpy(x).reshape(-1, 9, 11)
    expected = np.stack([by_tokens(row, exact) for row in rows]).reshape(x.shape)
    if dtype in HALF:  # the projections are rounded, and a norm divides by what is small
        error = np.abs(library.numpy(output).astype(np.float64) - expected)
        assert error.max() < 100 * EPSILON[dtype] * np.abs(expected).max()
        return
    close(library.numpy(output), expected, dtype, size=300)


@layers
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 9))
def test_a_layer_goes_on_where_it_was_cut(name, seed, cut):
    weights, x = drawn(name, seed), np.random.default_rng(seed).standard_normal((2, 9, 11))
    whole, last = layer(x, weights)
    first, past = layer(x[:, :cut], weights)
    rest, past = layer(x[:, cut:], weights, past)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, rtol=0, atol=1e-10)
    for got, exact in zip(past, last, strict=True):
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-10)


@layers
def test_prefill_then_step_by_step_is_one_pass(name):
    weights, x = drawn(name), np.random.default_rng(3).standard_normal((2, 80, 11))
    whole, _ = layer(x, weights)
    _, past = layer(x[:, :70], weights)
    for t in range(70, 80):
        y, past = layer(x[:, t : t + 1], weights, past, impl="reference")
        np.testing.assert_allclose(y[:, 0], whole[:, t], rtol=0, atol=1e-10)


@layers
def test_gradients_through_the_module_reach_every_parameter(name):
    weights = drawn(name).to("torch")
    module = (nn.Mamba2 if name == "mamba" else nn.LinearAttention)(weights)
    x = torch.tensor(np.random.default_rng(4).standard_normal((2, 7, 11)), requires_grad=True)
    output, _ = module(x)
    np.testing.assert_array_equal(output.detach().numpy(), layer(x.detach(), weights)[0].numpy())
    (output**2).sum().backward()
    assert set(module.state_dict()) == set(weights.arrays())
    for parameter in (x, *module.parameters()):
        assert torch.isfinite(parameter.grad).all()
        assert (parameter.grad != 0).any()


# Against transformers.


def theirs(name):
    """Return their module that holds what `name` is of, with random numbers, and our weights."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    if name == "mamba":
        from transformers.models.mamba2 import Mamba2Config
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

        sizes = {"hidden_size": 24, "num_heads": 6, "head_dim": 8, "n_groups": 2, "state_size": 5}
        module = Mamba2Mixer(Mamba2Config(**sizes, num_hidden_layers=1, chunk_size=16), 0)
    else:
        from transformers.models.qwen3_next import Qwen3NextConfig
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        widths = {"linear_key_head_dim": 5, "linear_value_head_dim": 7, "hidden_size": 24}
        module = Qwen3NextGatedDeltaNet(Qwen3NextConfig(**heads, **widths, num_hidden_layers=4), 0)
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for x in module.parameters():
            x.copy_(torch.tensor(0.3 * rng.standard_normal(tuple(x.shape))))
    state = {k: x.detach() for k, x in module.named_parameters()}
    return module.eval(), (mamba2_of if name == "mamba" else gated_delta_of)(state)


def mamba2_of(state):
    gate, value, key, query, step = state["in_proj.weight"].T.split([48, 48, 10, 10, 6], 1)
    order = torch.cat([torch.arange(58, 68), torch.arange(48, 58), torch.arange(48)])
    return Mamba2Weights(
        *(query, key, value, state["out_proj.weight"].T, gate, step),
        *(state[name] for name in ("A_log", "dt_bias", "D")),
        state["conv1d.weight"][order, 0].T,
        *(state["conv1d.bias"][order], state["norm.weight"]),
        n_heads=6,
        n_key_heads=2,
    )


def gated_delta_of(state):
    groups = state["in_proj_qkvz.weight"].T.reshape(24, 2, 38).split([5, 5, 14, 14], -1)
    query, key, value, gate = (x.reshape(24, -1) for x in groups)
    both = state["in_proj_ba.weight"].T.reshape(24, 2, 4).split([2, 2], -1)
    beta, decay = (x.reshape(24, -1) for x in both)
    return LinearAttentionWeights(
        *(query, key, value, state["out_proj.weight"].T, gate, beta, decay),
        *(state["A_log"], state["dt_bias"], state["conv1d.weight"][:, 0].T, state["norm.weight"]),
        n_heads=4,
        n_key_heads=2,
    )


@pytest.mark.parametrize("impl", ["reference", "parallel", "chunkwise"])
@pytest.mark.parametrize("name", ["gated delta", "mamba"])
def test_a_layer_is_that_of_transformers(name, impl):
    module, weights = theirs(name)
    x = torch.tensor(np.random.default_rng(6).standard_normal((3, 70, 24)), dtype=torch.float32)
    with torch.no_grad():
        exact = module(x)
    got, _ = layer(x, weights, impl=impl)
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 * (1 + float(exact.abs().max())))


class Wide:
    """PyTorch, in which float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.mark.parametrize(
    "name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
def test_the_gated_delta_rule_is_that_of_transformers_in_double_precision(name, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    rule = getattr(modeling, name)
    monkeypatch.setattr(modeling, "torch", Wide())
    rng = np.random.default_rng(7)
    shapes = ((2, 70, 3, 5), (2, 70, 3, 5), (2, 70, 3, 7), (2, 70, 3), (2, 70, 3), (2, 3, 5, 7))
    query, key, value, g, beta, state = (torch.tensor(rng.standard_normal(s)) for s in shapes)
    g, beta = -g.abs(), beta.sigmoid()
    key = torch.nn.functional.normalize(key, dim=-1)
    exact = rule(query, key, value, g, beta, initial_state=state.clone(), output_final_state=True)
    heads = [x.transpose(1, 2) for x in (query / 5**0.5, key, value)]
    got = linear.delta_rule(*heads, beta.mT, g.mT, state=state, impl="chunkwise")
    np.testing.assert_allclose(got[0].transpose(1, 2), exact[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(got[1], exact[1], rtol=0, atol=1e-10)


# What does not fit.

W = LinearAttentionWeights.init(0, 8, 4, n_key_heads=2)
M = Mamba2Weights.init(0, 8, 4, 3)
PAST = linear.LayerState(np.ones((4, 2, 2)), np.ones((3, 16)))
NAMES = {"replace": replace, "W": W, "M": M, "np": np, "layer": layer, "x": np.ones((5, 8))}
NAMES |= {"PAST": PAST, "Linear": LinearAttentionWeights, "Mamba": Mamba2Weights}

test_what_does_not_fit_is_named = error_test(
    """
replace(W, n_key_heads=3)
    ValueError: n_key_heads must divide n_heads = 4, got 3
replace(M, n_key_heads=3)
    ValueError: n_key_heads must divide n_heads = 4, got 3
replace(W, n_heads=0)
    ValueError: n_heads must be at least 1, got 0
replace(W, unit=1)
    TypeError: unit must be a bool, got int
replace(W, dt_bias=None)
    ValueError: A_log and dt_bias must both be there or both be None
replace(W, A_log=None, dt_bias=None)
    ValueError: W_decay must be None where there is no A_log
replace(W, W_V=np.ones((8, 6)))
    ValueError: W_V must have columns for each of 4 heads, a multiple of 4, got shape (8, 6)
replace(W, W_K=np.ones((8, 6)))
    ValueError: W_K must have shape (8, 4) to match the others, got (8, 6)
replace(W, filters=np.ones((4, 15)))
    ValueError: filters must have shape (width, 16) to match the others, got (4, 15)
replace(W, norm_gain=np.ones(3))
    ValueError: norm_gain must have shape (2,) to match the others, got (3,)
replace(M, skip=np.ones(3))
    ValueError: skip must have shape (4,) to match the others, got (3,)
replace(M, filters=np.ones((0, 22)))
    ValueError: filters must have shape (width, 22) to match the others, got (0, 22)
Linear.init(0, 7, 2)
    ValueError: d_model must be divisible by n_heads = 2 without d_k and d_v, got 7
Mamba.init(0, 7, 4, 3)
    ValueError: d_model must have a double divisible by n_heads = 4 without d_v, got 7
layer(np.ones((5, 7)), W)
    ValueError: x must have shape (..., n, 8) to match the weights, got (5, 7)
layer(x, W, PAST.state)
    TypeError: past must be LayerState, got ndarray
layer(x, W, PAST._replace(inputs=PAST.inputs[:2]))
    ValueError: past must have inputs of shape (3, 16), got (2, 16)
layer(x, W, PAST._replace(state=PAST.state[:3]))
    ValueError: past must have state of shape (4, 2, 2), got (3, 2, 2)
layer(x, M, PAST)
    ValueError: past must have state of shape (4, 3, 4), got (4, 2, 2)
layer(x, W, impl="fast")
    ValueError: impl must be one of reference, parallel, chunkwise, numba, triton, got 'fast'
""",
    NAMES,
)
