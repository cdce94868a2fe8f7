"""The router of a mixture of experts against a loop over tokens, in every library."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import HALF, close, held, leaves_of, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import RouterWeights, expert_load, load_balancing_loss, route

GROUPED = {"n_groups": 4, "top_groups": 2}
CHOICES = (
    {"top_k": 1},
    {"top_k": 2, "normalized": False},
    {"top_k": 3, "scaling": 2.5},
    {"top_k": 12},
    {"top_k": 3, "normalized": False, "scaling": 16.0, **GROUPED},  # DeepSeek-V2
    {"top_k": 5, "score": "sigmoid", "scaling": 2.5, "best_per_group": 2, **GROUPED},  # V3
    {"top_k": 4, "score": "sigmoid", "normalized": False, "best_per_group": 3, "n_groups": 3},
)


def drawn(seed=0, d_model=5, bias=False, correction=False, **options):
    """Return the weights of a router of 12 experts, of random numbers."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((d_model, 12))
    more = [rng.standard_normal(12) if there else None for there in (bias, correction)]
    return RouterWeights(W, *more, **options)


def scores_of(row, w):
    """Return the score of every expert for one token."""
    bias = [0.0] * 12 if w.bias is None else w.bias.tolist()
    columns = w.W.T.tolist()
    logits = [
        math.fsum(a * b for a, b in zip(row, column, strict=True)) + bias[e]
        for e, column in enumerate(columns)
    ]
    if w.score == "softmax":
        return oracle.softmax_row(logits)
    return [1 / (1 + math.exp(-logit)) for logit in logits]


def loop(x, w):
    """Return the chosen experts and their weights, one token at a time."""
    experts = np.zeros((*x.shape[:-1], w.top_k), dtype=int)
    shares = np.zeros(experts.shape)
    for place in np.ndindex(x.shape[:-1]):
        scores = scores_of(x[place].tolist(), w)
        rank = [
            s + (0 if w.correction is None else float(w.correction[e]))
            for e, s in enumerate(scores)
        ]
        size = 12 // w.n_groups
        groups = [rank[g * size : (g + 1) * size] for g in range(w.n_groups)]
        values = [math.fsum(sorted(group, reverse=True)[: w.best_per_group]) for group in groups]
        best = sorted(range(w.n_groups), key=lambda g: -values[g])[: w.top_groups]
        allowed = [e for e in range(12) if e // size in best]
        chosen = sorted(allowed, key=lambda e: -rank[e])[: w.top_k]
        total = math.fsum(scores[e] for e in chosen) if w.normalized else 1.0
        experts[place] = chosen
        shares[place] = [w.scaling * scores[e] / total for e in chosen]
    return experts, shares


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    st.sampled_from(((), (2,), (2, 3), (0,))),
    st.sampled_from((0, 1, 3)),
    *(st.sampled_from(CHOICES), st.booleans(), st.booleans(), st.integers(0, 99)),
)
def test_agrees_with_the_loop(library, dtype, leading, n, options, bias, correction, seed):
    weights = drawn(seed, bias=bias, correction=correction, **options)
    x = library.array(np.random.default_rng(seed).standard_normal((*leading, n, 5)), dtype)
    experts, shares = route(x, library.place(weights, dtype))
    assert library.same_kind(shares, x)
    exact_experts, exact_shares = loop(library.numpy(x), held(library, weights, dtype))
    np.testing.assert_array_equal(library.numpy(experts), exact_experts)
    close(library.numpy(shares), exact_shares, dtype, size=16)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_scores_in_float32(library, dtype):
    need(library, dtype)
    weights = drawn(top_k=2)
    x = library.array(np.random.default_rng(1).standard_normal((7, 5)), dtype)
    experts, shares = route(x, library.place(weights, dtype))
    assert library.same_kind(shares, x)
    exact_experts, exact_shares = loop(library.numpy(x), held(library, weights, dtype))
    np.testing.assert_array_equal(library.numpy(experts), exact_experts)
    close(library.numpy(shares), exact_shares, dtype)


def test_of_equal_scores_the_first_expert_comes_first(library):
    weights = library.place(replace(drawn(top_k=3), W=np.zeros((5, 12))))
    experts, shares = route(library.array(np.ones((2, 5))), weights)
    np.testing.assert_array_equal(library.numpy(experts), [[0, 1, 2]] * 2)
    np.testing.assert_allclose(library.numpy(shares), 1 / 3)
    grouped = replace(weights, n_groups=4, top_groups=2)
    np.testing.assert_array_equal(
        library.numpy(route(library.array(np.ones((1, 5))), grouped)[0]), [[0, 1, 2]]
    )


def test_a_normalised_softmax_is_the_softmax_over_the_chosen_logits():
    """gpt-oss takes the softmax after the choice, Mixtral before it."""
    weights, x = drawn(bias=True, top_k=3), np.random.default_rng(1).standard_normal((7, 5))
    experts, shares = route(x, weights)
    logits = np.take_along_axis(x @ weights.W + weights.bias, experts, axis=-1)
    np.testing.assert_allclose(shares, oracle.softmax(logits))


def test_large_logits_overflow_nowhere(library):
    for score in ("softmax", "sigmoid"):
        weights = library.place(replace(drawn(top_k=2, score=score), W=np.full((1, 12), 1e30)))
        for sign in (1.0, -1.0):
            shares = route(library.array(np.full((1, 1), sign * 1e30)), weights)[1]
            assert np.all(np.isfinite(library.numpy(shares)))


def test_the_correction_changes_the_choice_and_not_the_weights():
    x = np.random.default_rng(1).standard_normal((7, 5))
    plain = drawn(top_k=12, score="sigmoid", normalized=False)
    experts, shares = route(x, replace(plain, correction=np.linspace(99, 0, 12)))
    np.testing.assert_array_equal(experts, np.tile(np.arange(12), (7, 1)))
    plain_experts, plain_shares = route(x, plain)
    np.testing.assert_allclose(np.take_along_axis(shares, plain_experts, axis=-1), plain_shares)


def test_gradients_reach_the_router_through_the_weights():
    for options in CHOICES:
        weights, leaves = leaves_of(drawn(bias=True, correction=True, **options).to("torch"))
        x = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5).requires_grad_()
        learned = {name: leaf for name, leaf in leaves.items() if name != "correction"}

        def function(x, *arrays, weights=weights, leaves=leaves, learned=learned):
            own = leaves | dict(zip(learned, arrays, strict=True))
            return route(x, weights.with_arrays(own))[1]

        assert torch.autograd.gradcheck(function, (x, *learned.values()))


def test_vmap():
    weights, x = drawn(top_k=2).to("torch"), torch.randn(3, 2, 5, dtype=torch.float64)
    mapped = torch.func.vmap(lambda rows: route(rows, weights)[1])(x)
    torch.testing.assert_close(mapped, route(x, weights)[1])


# The load of the experts.


@given(st.lists(st.integers(0, 4), max_size=20))
def test_the_load_counts_the_choices(library, chosen):
    experts = library.array(np.array(chosen, dtype=np.int64))
    got = library.numpy(expert_load(experts, 5))
    np.testing.assert_array_equal(got, np.bincount(np.array(chosen, dtype=int), minlength=5))


@pytest.mark.parametrize("options", CHOICES)
def test_the_loss_is_that_of_the_loop(library, options):
    weights = drawn(correction=True, **options)
    x = np.random.default_rng(1).standard_normal((2, 7, 5))
    experts, rows = loop(x, weights)[0], x.reshape(-1, 5)
    exact = 0.0
    scores = [scores_of(row.tolist(), weights) for row in rows]
    for e in range(12):
        chosen = np.sum(experts == e) / len(rows)
        share = math.fsum(row[e] / math.fsum(row) for row in scores) / len(rows)
        exact += 12 * chosen * share
    got = load_balancing_loss(library.array(x), library.place(weights))
    assert got.shape == ()
    np.testing.assert_allclose(library.numpy(got), exact)


def test_balanced_experts_have_the_loss_k_and_others_more():
    balanced = RouterWeights(np.eye(4), top_k=2)
    x = np.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    np.testing.assert_allclose(load_balancing_loss(x, balanced), 2)
    assert load_balancing_loss(x[:1], balanced) > 2.5


def test_descent_along_the_loss_balances_the_load():
    weights = replace(drawn(top_k=2), bias=np.linspace(0, 5, 12)).to("torch")
    bias = weights.bias.clone().requires_grad_()
    x = torch.tensor(np.random.default_rng(1).standard_normal((97, 5)))
    loads = []
    for _ in range(200):
        mine = replace(weights, bias=bias)
        loads.append(expert_load(route(x, mine)[0], 12))
        (slope,) = torch.autograd.grad(load_balancing_loss(x, mine), bias)
        bias = (bias - 0.5 * slope).detach().requires_grad_()
    assert loads[-1].double().std() < 0.6 * loads[0].double().std()


def test_init():
    weights = RouterWeights.init(3, 5, 7, 2)
    assert (weights.W.shape, weights.n_experts, weights.top_k) == ((5, 7), 7, 2)
    bound = math.sqrt(6 / 12)
    assert 0.7 * bound < np.max(np.abs(weights.W)) <= bound


W = drawn(top_k=2)
X = np.ones((3, 5))

test_wrong_calls_say_what_is_wrong = error_test(
    """
route(X, 3)
    TypeError: weights must be RouterWeights, got int
route(X[:, :2], W)
    ValueError: x must have shape (..., n, 5) to match the weights, got (3, 2)
route(X.astype("float32"), W)
    TypeError: weights must have the dtype of x (float32), got float64
load_balancing_loss(X[:0], W)
    ValueError: x must have at least 1 token, got shape (0, 5)
load_balancing_loss(X, X)
    TypeError: weights must be RouterWeights, got ndarray
expert_load([1], 3)
    TypeError: experts must be an array of NumPy, CuPy, PyTorch or another Array API library,
        got list
expert_load(np.ones(3), 3)
    TypeError: experts must be an array of integers, got float64
expert_load(np.array([3]), 3)
    ValueError: experts must be from 0 to 2 to be known to the router, got 3
expert_load(np.array([1]), 0)
    ValueError: n_experts must be at least 1, got 0
changed(bias=np.ones(3))
    ValueError: bias must have shape (12,) to match W, got (3,)
changed(correction=np.ones(3))
    ValueError: correction must have shape (12,) to match W, got (3,)
changed(top_k=0)
    ValueError: top_k must be at least 1, got 0
changed(top_k=13)
    ValueError: top_k must be at most 12, got 13
changed(score="tanh")
    ValueError: score must be one of softmax, sigmoid, got 'tanh'
changed(normalized=1)
    TypeError: normalized must be a bool, got int
changed(scaling=0.0)
    ValueError: scaling must be above 0, got 0.0
changed(n_groups=5)
    ValueError: n_groups must divide the number of experts 12, got 5
changed(n_groups=4, top_groups=5)
    ValueError: top_groups must be at most 4, got 5
changed(n_groups=4, best_per_group=4)
    ValueError: best_per_group must be at most 3, got 4
changed(n_groups=4, top_k=4)
    ValueError: top_k must be at most 3, the experts of the chosen groups, got 4
changed(W=np.ones(3))
    ValueError: W must have 2 axes, got shape (3,)
""",
    {
        **{"route": route, "W": W, "X": X, "np": np, "expert_load": expert_load},
        "load_balancing_loss": load_balancing_loss,
        "changed": lambda **fields: replace(W, **fields),
    },
)
