"""A mixture of experts against a loop over tokens, in every library."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from cases import HALF, close, held, leaves_of, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import (
    GatedFeedForwardWeights,
    MixtureWeights,
    RouterWeights,
    mixture_of_experts,
    route,
)
from attnbook.transformers.mixture import GATED, mixture_of


def drawn(seed=0, n_experts=4, top_k=2, activation="silu", bias=False, shared=False, **router):
    """Return weights of random numbers with widths that are all different."""
    rng = np.random.default_rng(seed)
    d_model, d_ff, d_out = 5, 3, 7

    def numbers(*shape):
        return rng.standard_normal(shape)

    biases = [numbers(n_experts, width) for width in (d_ff, d_ff, d_out)] if bias else []
    network = None
    if shared:
        network = GatedFeedForwardWeights(numbers(5, 11), numbers(5, 11), numbers(11, 7))
    return MixtureWeights(
        RouterWeights(numbers(d_model, n_experts), top_k=top_k, **router),
        *(numbers(n_experts, d_model, d_ff), numbers(n_experts, d_model, d_ff)),
        numbers(n_experts, d_ff, d_out),
        *(biases or [None] * 3),
        shared=network,
        activation=activation,
    )


def clamped(gate, up):
    """Return the hidden units of gpt-oss, one number at a time."""
    out = np.zeros(gate.shape)
    for i in np.ndindex(gate.shape):
        g, u = min(float(gate[i]), 7.0), min(max(float(up[i]), -7.0), 7.0)
        out[i] = g / (1 + math.exp(-1.702 * g)) * (u + 1)
    return out


def expert(row, w, e):
    """Return what expert e makes of one token."""
    biases = [None if b is None else b[e] for b in (w.b_gate, w.b_1, w.b_2)]
    if w.activation != "clamped_swiglu":
        own = GatedFeedForwardWeights(w.W_gate[e], w.W_1[e], w.W_2[e], *biases, w.activation)
        return oracle.feed_forward(row, own)
    gate, up = (oracle.affine(row, W[e], b) for W, b in ((w.W_gate, biases[0]), (w.W_1, biases[1])))
    return oracle.affine(clamped(gate, up), w.W_2[e], biases[2])


def loop(x, w):
    """Return the weighted sum over the chosen experts, one token at a time."""
    experts, shares = route(x, w.router)
    out = np.zeros((*x.shape[:-1], w.d_out))
    for place in np.ndindex(x.shape[:-1]):
        for e, g in zip(experts[place], shares[place], strict=True):
            out[place] += g * expert(x[place][np.newaxis], w, e)[0]
    return out if w.shared is None else out + oracle.feed_forward(x, w.shared)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    *(st.sampled_from(((), (2,), (2, 3), (0,))), st.sampled_from((0, 1, 3))),
    *(st.sampled_from(GATED), st.booleans(), st.booleans(), st.integers(1, 4)),
    st.integers(0, 99),
)
def test_agrees_with_the_loop(library, dtype, leading, n, activation, bias, shared, top_k, seed):
    weights = drawn(seed, top_k=top_k, activation=activation, bias=bias, shared=shared)
    x = np.random.default_rng(seed).standard_normal((*leading, n, 5))
    mine = library.array(x, dtype)
    got = mixture_of_experts(mine, library.place(weights, dtype))
    assert library.same_kind(got, mine)
    exact = loop(library.numpy(mine), held(library, weights, dtype))
    close(library.numpy(got), exact, dtype, size=100)
    np.testing.assert_array_equal(library.numpy(mine), library.numpy(library.array(x, dtype)))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_near(library, dtype):
    need(library, dtype)
    weights = drawn(shared=True, bias=True)
    x = library.array(np.random.default_rng(1).standard_normal((13, 5)), dtype)
    got = mixture_of_experts(x, library.place(weights, dtype))
    assert library.same_kind(got, x)
    exact = loop(library.numpy(x), held(library, weights, dtype))
    size = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(library.numpy(got), exact, rtol=0, atol=32 * size)


def test_an_expert_reads_only_its_own_tokens():
    """NaN in the weights of the others reaches no token that did not choose them."""
    weights = drawn(n_experts=6)
    x = np.random.default_rng(1).standard_normal((2, 5))
    used = np.unique(route(x, weights.router)[0])
    spoilt = weights.W_1.copy()
    spoilt[[e for e in range(6) if e not in used]] = np.nan
    assert len(used) < 6
    got = mixture_of_experts(x, replace(weights, W_1=spoilt))
    np.testing.assert_array_equal(got, mixture_of_experts(x, weights))


def test_one_expert_is_a_gated_network():
    weights = drawn(n_experts=1, top_k=1)
    x = np.random.default_rng(1).standard_normal((3, 5))
    network = GatedFeedForwardWeights(weights.W_gate[0], weights.W_1[0], weights.W_2[0])
    np.testing.assert_allclose(mixture_of_experts(x, weights), oracle.feed_forward(x, network))


def test_equal_experts_are_one_network_whatever_the_router_chooses():
    weights = drawn(n_experts=6, top_k=3)
    same = {n: np.stack([getattr(weights, n)[0]] * 6) for n in ("W_gate", "W_1", "W_2")}
    x = np.random.default_rng(1).standard_normal((3, 5))
    network = GatedFeedForwardWeights(*(same[n][0] for n in ("W_gate", "W_1", "W_2")))
    got = mixture_of_experts(x, replace(weights, **same))
    np.testing.assert_allclose(got, oracle.feed_forward(x, network), atol=1e-12)


def test_dropout_reaches_the_hidden_units_of_every_expert():
    weights, x = drawn(shared=True, bias=True), np.ones((3, 5))
    nothing = mixture_of(x, weights, lambda hidden: 0 * hidden)
    experts, shares = route(x, weights.router)
    expected = (shares[..., np.newaxis] * weights.b_2[experts]).sum(axis=1)
    np.testing.assert_allclose(nothing, expected)


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
def test_gradcheck(activation):
    made = drawn(activation=activation, bias=True, shared=True)
    weights, leaves = leaves_of(made.to("torch"))
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(2, 2, 5).requires_grad_()

    def function(x, *arrays):
        return mixture_of_experts(x, weights.with_arrays(dict(zip(leaves, arrays, strict=True))))

    assert torch.autograd.gradcheck(function, (x, *leaves.values()))


def test_the_clamped_gate_has_limits():
    weights = replace(
        drawn(n_experts=1, top_k=1, activation="clamped_swiglu"),
        W_gate=np.ones((1, 5, 3)),
        W_1=np.ones((1, 5, 3)),
        W_2=np.ones((1, 3, 7)),
    )
    got = mixture_of_experts(np.array([[100.0] * 5, [-100.0] * 5]), weights)
    np.testing.assert_allclose(got[0], 3 * 7 / (1 + math.exp(-7 * 1.702)) * 8)
    np.testing.assert_allclose(got[1], 0, atol=1e-100)


# The weights.


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [0, 11])
def test_init(bias, shared):
    options = {"n_experts": 4, "top_k": 2, "shared": shared, "bias": bias}
    weights = MixtureWeights.init(3, 5, 7, **options, activation="clamped_swiglu")
    shapes = {name: x.shape for name, x in weights.arrays().items()}
    expected = {"router.W": (5, 4)} | ({"router.bias": (4,)} if bias else {})
    expected |= {"W_gate": (4, 5, 7), "W_1": (4, 5, 7), "W_2": (4, 7, 5)}
    expected |= {"b_gate": (4, 7), "b_1": (4, 7), "b_2": (4, 5)} if bias else {}
    if shared:
        expected |= {"shared.W_gate": (5, 11), "shared.W_1": (5, 11), "shared.W_2": (11, 5)}
    assert shapes == expected
    assert (weights.n_experts, weights.d_out, weights.activation) == (4, 5, "clamped_swiglu")
    bound = math.sqrt(6 / 12)
    assert 0.8 * bound < np.max(np.abs(weights.W_1)) <= bound
    assert not np.array_equal(weights.W_1[0], weights.W_1[1])
    assert all(np.all(x == 0) for name, x in weights.arrays().items() if "b_" in name)
    assert weights.shared is None or weights.shared.activation == "silu"


W = drawn(bias=True, shared=True)
X = np.ones((3, 5))

test_wrong_calls_say_what_is_wrong = error_test(
    """
mixture(X, 3)
    TypeError: weights must be MixtureWeights, got int
mixture(X[:, :2], W)
    ValueError: x must have shape (..., n, 5) to match the weights, got (3, 2)
mixture(X.astype("float32"), W)
    TypeError: weights must have the dtype of x (float32), got float64
changed(router=3)
    TypeError: router must be RouterWeights, got int
changed(activation="none")
    ValueError: activation must be one of relu, gelu, gelu_tanh, silu, clamped_swiglu, got 'none'
changed(W_2=np.ones((3, 7)))
    ValueError: W_2 must have 3 axes, got shape (3, 7)
changed(W_2=np.ones((3, 3, 7)))
    ValueError: W_2 must have shape (4, 3, 7) to match the router and W_2, got (3, 3, 7)
changed(W_gate=np.ones((4, 3, 3)))
    ValueError: W_gate must have shape (4, 5, 3) to match the router and W_2, got (4, 3, 3)
changed(W_1=np.ones((4, 5, 2)))
    ValueError: W_1 must have shape (4, 5, 3) to match the router and W_2, got (4, 5, 2)
changed(b_gate=np.ones((4, 7)))
    ValueError: b_gate must have shape (4, 3) to match the router and W_2, got (4, 7)
changed(b_1=np.ones(3))
    ValueError: b_1 must have 2 axes, got shape (3,)
changed(b_2=np.ones((4, 3)))
    ValueError: b_2 must have shape (4, 7) to match the router and W_2, got (4, 3)
changed(shared=Gated.init(0, 5, 11))
    ValueError: shared must lead from width 5 to width 7, got 5 and 5
init(0, 5, 7, n_experts=2, top_k=3)
    ValueError: top_k must be at most 2, got 3
init(0, 5, 7, n_experts=2, top_k=1, shared=-1)
    ValueError: shared must be at least 0, got -1
init(0, 5, 7, n_experts=2, top_k=1, bias=1)
    TypeError: bias must be a bool, got int
init(0, 5, 7, n_experts=2, top_k=1, activation="none")
    ValueError: activation must be one of relu, gelu, gelu_tanh, silu, clamped_swiglu, got 'none'
""",
    {
        **{"mixture": mixture_of_experts, "W": W, "X": X, "np": np, "init": MixtureWeights.init},
        **{"Gated": GatedFeedForwardWeights, "changed": partial(replace, W)},
    },
)
