"""The claims of the book, harder than its cells: random and adversarial cases.

A claim that holds is tested as it stands. A false one is broken by its counterexample, and what
replaces it is tested instead.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import many_heads
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import attnbook
from attnbook import masking, nn

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(1, 9)
SPREADS = st.sampled_from((1e-3, 1.0, 30.0, 1e3))


@st.composite
def triples(draw, max_keys=9):
    """Draw query, key and value; keys of very different sizes among them."""
    n_q, d_k, d_v = draw(SIZES), draw(SIZES), draw(SIZES)
    n_k = draw(st.integers(1, max_keys))
    rng = np.random.default_rng(draw(SEEDS))
    query = draw(SPREADS) * rng.standard_normal((n_q, d_k))
    key = draw(SPREADS) * rng.standard_normal((n_k, d_k))
    value = draw(SPREADS) * rng.standard_normal((n_k, d_v))
    return query, key, value


def entropy(weights):
    return -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=-1)


def diameter(rows):
    return max(np.linalg.norm(a - b) for a in rows for b in rows)


# 1: softmax(v + c·1) = softmax(v). Holds.


@given(SEEDS, st.integers(1, 40), st.floats(-1e6, 1e6), SPREADS)
def test_claim_01_a_shift_changes_nothing(seed, n, c, spread):
    v = spread * np.random.default_rng(seed).standard_normal(n)
    # adding c rounds each score to the grid of |v + c|, which moves a weight by that share of it
    lost = 4 * np.finfo(float).eps * (abs(c) + np.abs(v).max()) + 1e-15
    np.testing.assert_allclose(attnbook.softmax(v + c), attnbook.softmax(v), rtol=lost, atol=lost)


@given(npst.arrays(np.float64, st.integers(1, 20), elements=st.integers(-700, 700)))
@example(np.array([-700.0, 700.0]))
@example(np.zeros(1))
def test_claim_01_a_shift_of_whole_numbers_changes_not_one_bit(v):
    for c in (2.0**20, -(2.0**20), 1.0, -v.max()):
        np.testing.assert_array_equal(attnbook.softmax(v + c), attnbook.softmax(v))


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 11), ("float32", 88), ("float64", 709)])
def test_claim_01_nothing_but_the_maximum_is_safe(dtype, largest):
    def naive(v, shift):
        exponentials = np.exp(v - v.dtype.type(shift))
        return exponentials / exponentials.sum()

    def breaks(v, shift):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return not np.isfinite(naive(v, shift)).all()

    v = np.array([largest, 0, -largest], dtype=dtype)
    assert not breaks(v, 0)
    above = np.array([largest + 1, 0, -largest], dtype=dtype)
    assert breaks(above, 0)  # overflow without a shift
    spread = np.array([10 * largest] + [-10 * largest] * 4, dtype=dtype)
    assert breaks(spread, spread.mean())  # the mean is too low
    assert breaks(-spread, 0)  # overflow again, for four of five
    below = np.array([-10 * largest, -11 * largest], dtype=dtype)
    assert breaks(below, 0)  # 0/0: every exponential vanished
    for x in (v, above, spread, -spread, below):
        assert not breaks(x, x.max())
        assert np.isfinite(attnbook.softmax(x)).all()
        assert abs(float(attnbook.softmax(x).sum(dtype=np.float64)) - 1) < 1e-3


# 2: Attention(Q, cK, V) = Attention(Q, K, V). False.


def test_claim_02_is_false_for_every_factor_but_one():
    query, key, value = np.eye(2), np.eye(2), np.array([[0.0], [1.0]])
    for c in (2.0, 0.5, 0.0, -1.0, 1 + 1e-6):
        scaled = attnbook.attention(query, c * key, value)
        assert np.abs(scaled - attnbook.attention(query, key, value)).max() > 1e-8
    # scaling *weights* by c adds log c to every score, and that changes nothing
    scores = np.array([[1.0, 2.0]])
    np.testing.assert_allclose(attnbook.softmax(scores + np.log(2)), attnbook.softmax(scores))
    assert np.abs(attnbook.softmax(2 * scores) - attnbook.softmax(scores)).max() > 0.1


@given(triples(), SEEDS)
def test_claim_02_repaired_translating_the_keys_changes_nothing(triple, seed):
    query, key, value = triple
    b = np.random.default_rng(seed).standard_normal(key.shape[1])
    got = attnbook.attention_weights(query, key + b, scale=1e-3)
    expected = attnbook.attention_weights(query, key, scale=1e-3)
    np.testing.assert_allclose(got, expected, atol=1e-8)
    moved = attnbook.attention(query, key + b, value, scale=1e-3)
    unmoved = attnbook.attention(query, key, value, scale=1e-3)
    np.testing.assert_allclose(moved, unmoved, atol=1e-7 * np.abs(value).max())


def test_claim_02_repaired_translation_holds_bit_by_bit_on_whole_numbers():
    rng = np.random.default_rng(0)
    for _ in range(100):
        query, key = rng.integers(-8, 9, (3, 4)) * 1.0, rng.integers(-8, 9, (7, 4)) * 1.0
        b = rng.integers(-64, 65, 4) * 1.0
        np.testing.assert_array_equal(
            attnbook.attention_weights(query, key + b, scale=1.0),
            attnbook.attention_weights(query, key, scale=1.0),
        )


@given(SEEDS, st.integers(1, 9), SIZES)
def test_claim_02_repaired_limits_of_the_temperature(seed, n_k, d_v):
    rng = np.random.default_rng(seed)
    key = rng.integers(-2, 3, (n_k, 1)) * 1.0  # few levels, so that the best key is often tied
    query, value = np.ones((1, 1)), rng.standard_normal((n_k, d_v))
    scores = key[:, 0]
    for c, winners in (
        (1e4, scores == scores.max()),
        (0.0, np.ones(n_k, bool)),
        (-1e4, scores == scores.min()),
    ):
        got = attnbook.attention(query, c * key, value)
        np.testing.assert_allclose(got[0], value[winners].mean(axis=0), atol=1e-12)


@given(SEEDS, st.integers(1, 30), SPREADS)
def test_claim_02_repaired_entropy_falls_with_c(seed, n_k, spread):
    rng = np.random.default_rng(seed)
    query, key = rng.standard_normal((3, 4)), spread * rng.standard_normal((n_k, 4))
    factors = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 60)])
    entropies = np.array([entropy(attnbook.attention_weights(query, c * key)) for c in factors])
    assert np.diff(entropies, axis=0).max() <= 1e-12
    np.testing.assert_allclose(entropies[0], math.log(n_k), atol=1e-12)
    if n_k > 1 and spread == 1.0:  # strictly, where the scores differ
        assert (entropies[0] - entropies[-1] > 1e-2).all()
    # its slope is −c · the variance of the scores under the weights, which is never positive
    c, step = 0.7, 1e-5
    up, down = (entropy(attnbook.attention_weights(query, (c + h) * key)) for h in (step, -step))
    weights = attnbook.attention_weights(query, c * key)
    scores = query @ key.T / 2
    mean = np.sum(weights * scores, axis=-1, keepdims=True)
    variance = np.sum(weights * (scores - mean) ** 2, axis=-1)
    if spread <= 1.0:
        np.testing.assert_allclose((up - down) / (2 * step), -c * variance, atol=1e-6)


# 3: Attention(Q, K, cV) = c·Attention(Q, K, V). Holds; it is linearity.


@given(triples(), st.floats(-1e3, 1e3), SEEDS, SIZES)
def test_claim_03_the_output_is_linear_and_affine_in_the_values(triple, c, seed, width):
    query, key, value = triple
    rng = np.random.default_rng(seed)
    size = np.abs(value).max()
    output = attnbook.attention(query, key, value)
    scaled = attnbook.attention(query, key, c * value)
    np.testing.assert_allclose(scaled, c * output, atol=1e-14 * abs(c) * size * len(key))
    other = rng.standard_normal(value.shape)
    total = attnbook.attention(query, key, value + other)
    parts = output + attnbook.attention(query, key, other)
    np.testing.assert_allclose(total, parts, atol=1e-13 * (size + 5))
    matrix, b = rng.standard_normal((value.shape[1], width)), 100 * rng.standard_normal(width)
    affine = attnbook.attention(query, key, value @ matrix + b)
    np.testing.assert_allclose(affine, output @ matrix + b, atol=1e-11 * (size + 1))


def test_claim_03_the_affine_form_needs_a_visible_key():
    query, key, value = np.ones((1, 2)), np.ones((3, 2)), np.ones((3, 1))
    nothing = np.zeros((1, 3), bool)
    assert attnbook.attention(query, key, 2 * value, nothing) == 0  # linear still
    assert attnbook.attention(query, key, value + 5, nothing) == 0  # affine no longer: not 5


# 4: the output has shape (batch, n_q, width of V). Holds.


@given(npst.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_dims=3), *[SIZES] * 4)
def test_claim_04_shape_of_the_output(library, shapes, n_q, n_k, d_k, d_v):
    sizes = ((n_q, d_k), (n_k, d_k), (n_k, d_v))
    arrays = [
        library.array(np.ones((*leading, *size)))
        for leading, size in zip(shapes.input_shapes, sizes, strict=True)
    ]
    output = attnbook.attention(*arrays)
    assert tuple(output.shape) == (*shapes.result_shape, n_q, d_v)
    weights = attnbook.attention_weights(*arrays[:2])
    leading = np.broadcast_shapes(*shapes.input_shapes[:2])
    assert tuple(weights.shape) == (*leading, n_q, n_k)


# 5: the rows of the weights sum to 1. Holds if a row sees a key.


@given(triples(), SEEDS, st.sampled_from((0.0, 0.2, 0.7, 1.0)))
def test_claim_05_rows_sum_to_one_where_a_key_is_visible(library, triple, seed, share):
    query, key, value = triple
    mask = np.random.default_rng(seed).random((len(query), len(key))) < share
    arrays = [library.array(x) for x in triple]
    weights = library.numpy(attnbook.attention_weights(*arrays[:2], library.array(mask)))
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), mask.any(axis=-1), atol=1e-14)
    output = library.numpy(attnbook.attention(*arrays, library.array(mask)))
    room = 1e-14 * np.abs(value).max() * len(key)
    for row, visible, mean in zip(weights, mask, output, strict=True):
        if not visible.any():
            assert (row == 0).all()
            assert (mean == 0).all()
            continue
        # in the convex hull of the visible values: no direction reaches further than they do
        for direction in np.random.default_rng(seed).standard_normal((20, value.shape[1])):
            reach = value[visible] @ direction
            slack = room * np.linalg.norm(direction) * math.sqrt(value.shape[1])
            assert reach.min() - slack <= mean @ direction <= reach.max() + slack


def test_claim_05_a_large_negative_number_is_no_mask():
    scores = np.array([[-2e4, 3e4]])
    additive = attnbook.softmax(scores + np.array([[0.0, -1e4]]))
    assert additive[0, 1] == 1  # the forbidden key outbids the mask and takes everything
    masked = attnbook.softmax(np.where([[True, False]], scores, -np.inf))
    np.testing.assert_array_equal(masked, [[1, 0]])
    uniform = attnbook.softmax(np.full((1, 2), -1e4))
    np.testing.assert_array_equal(uniform, [[0.5, 0.5]])  # an empty row that hides as a full one


# 6: cos(q₁, q₂) ≈ 1 ⇒ the outputs have cosine ≈ 1. False.


def crowd():
    """Return one key 1 with value e₁ and 1000 keys 0 with value e₂."""
    key = np.zeros((1001, 1))
    key[0] = 1.0
    return key, np.repeat(np.eye(2), [1, 1000], axis=0)


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_claim_06_is_false_length_is_temperature():
    key, value = crowd()
    query = np.array([[1.0], [50.0]])
    near, far = attnbook.attention(query, key, value)
    assert cosine(query[0], query[1]) == 1
    assert cosine(near, far) < 0.01
    np.testing.assert_allclose(far, [1, 0], atol=1e-12)
    np.testing.assert_allclose(near, [math.e / (math.e + 1000), 1000 / (math.e + 1000)])


def bound(key, value, distance):
    return diameter(key) * diameter(value) / (4 * math.sqrt(key.shape[1])) * distance


@given(triples(), SEEDS, st.sampled_from((1e-6, 1e-2, 1.0, 10.0)))
def test_claim_06_repaired_lipschitz_bound(triple, seed, step):
    query, key, value = triple
    other = query + step * np.random.default_rng(seed).standard_normal(query.shape)
    moved = np.linalg.norm(
        attnbook.attention(query, key, value) - attnbook.attention(other, key, value), axis=-1
    )
    allowed = bound(key, value, np.linalg.norm(query - other, axis=-1))
    # the scores themselves are rounded, so the output wavers by this much without any step
    size = 1 + np.abs(query).max() * np.abs(key).max() * key.shape[1]
    assert (moved <= allowed + 1e-14 * size * (1 + np.abs(value).max()) * len(key)).all()


@pytest.mark.parametrize("d_k", [1, 4, 7])
def test_claim_06_repaired_bound_is_tight(d_k):
    # two keys ±1 and values ±1 in the first feature: o(q) = tanh(q/√d_k), of slope 1/√d_k at 0
    key, value = np.zeros((2, d_k)), np.array([[1.0], [-1.0]])
    key[:, 0] = 1.0, -1.0
    query = np.zeros((2, d_k))
    ratios = []
    for h in (1.0, 1e-1, 1e-2, 1e-3):
        query[:, 0] = h, -h
        output = attnbook.attention(query, key, value)
        np.testing.assert_allclose(output[0, 0], math.tanh(h / math.sqrt(d_k)))
        ratios.append(abs(output[0, 0] - output[1, 0]) / bound(key, value, 2 * h))
    assert max(ratios) <= 1 + 1e-12
    assert ratios[-1] > 1 - 1e-6
    assert ratios == sorted(ratios)


def test_claim_06_repaired_bound_survives_a_search_for_a_worse_case():
    rng = np.random.default_rng(6)
    worst = 0.0
    for _ in range(300):
        n_k, d_k, d_v = rng.integers(2, 5), rng.integers(1, 4), rng.integers(1, 4)
        key, value = rng.standard_normal((n_k, d_k)), rng.standard_normal((n_k, d_v))
        query = rng.standard_normal((2, d_k)) * rng.choice([0.01, 1.0])
        first, second = attnbook.attention(query, key, value)
        allowed = bound(key, value, np.linalg.norm(query[0] - query[1]))
        worst = max(worst, np.linalg.norm(first - second) / allowed)
    assert 0.5 < worst <= 1  # the search comes near, and never above


# 7: K₁ ≈ K₂ and V₁ ≠ V₂ ⇒ the outputs differ. False.


def null_space(matrix):
    """Return an orthonormal basis of what `matrix` maps to 0, as columns."""
    _, singular, rows = np.linalg.svd(matrix)
    rank = int((singular > 1e-12 * singular.max()).sum())
    return rows[rank:].T


@given(SEEDS, st.integers(1, 5), st.integers(1, 4), SIZES)
def test_claim_07_is_false_values_can_change_unseen(seed, n_q, more, d_v):
    rng = np.random.default_rng(seed)
    n_k = n_q + more  # fewer queries than keys: there always is such a change
    query, key = rng.standard_normal((n_q, 3)), rng.standard_normal((n_k, 3))
    value = rng.standard_normal((n_k, d_v))
    basis = null_space(attnbook.attention_weights(query, key))
    assert basis.shape[1] >= more
    change = basis @ rng.standard_normal((basis.shape[1], d_v))
    change *= 100 / np.linalg.norm(change)
    np.testing.assert_allclose(
        attnbook.attention(query, key, value + change),
        attnbook.attention(query, key, value),
        atol=1e-11,
    )


@given(triples(), SEEDS)
def test_claim_07_repaired_equal_keys_show_exactly_what_the_weights_see(triple, seed):
    query, key, value = triple
    other = value + np.random.default_rng(seed).standard_normal(value.shape)
    weights = attnbook.attention_weights(query, key)
    difference = attnbook.attention(query, key, other) - attnbook.attention(query, key, value)
    size = 1e-13 * (1 + np.abs(value).max()) * len(key)
    np.testing.assert_allclose(difference, weights @ (other - value), atol=size)


def test_claim_07_repaired_enough_queries_see_every_change():
    # with a weight matrix of full column rank the null space is empty: each change is seen
    rng = np.random.default_rng(7)
    query, key = 5 * np.eye(4), 5 * np.eye(4)
    weights = attnbook.attention_weights(query, key)
    assert null_space(weights).shape[1] == 0
    smallest = np.linalg.svd(weights, compute_uv=False).min()
    for _ in range(100):
        change = rng.standard_normal((4, 3))
        seen = attnbook.attention(query, key, change) - attnbook.attention(query, key, 0 * change)
        assert np.linalg.norm(seen) >= 0.999 * smallest * np.linalg.norm(change)


@given(triples(), SEEDS, st.sampled_from((0.0, 1e-8, 1e-3, 0.1, 1.0)))
def test_claim_07_repaired_lower_bound_for_near_keys(triple, seed, step):
    query, key, first = triple
    rng = np.random.default_rng(seed)
    near, second = key + step * rng.standard_normal(key.shape), rng.standard_normal(first.shape)
    weights, others = (attnbook.attention_weights(query, k) for k in (key, near))
    outputs = attnbook.attention(query, key, first) - attnbook.attention(query, near, second)
    least = np.linalg.norm(weights @ (first - second)) - np.linalg.norm((weights - others) @ second)
    room = 1e-12 * (1 + np.abs(first).max()) * len(key)
    assert np.linalg.norm(outputs) >= least - room
    if step == 0.0:  # and with equal keys it is no bound but the difference itself
        np.testing.assert_allclose(np.linalg.norm(outputs), least, atol=room)


# 8: Dim(K) = Dim(V) = Dim(Q) is required. Too strict.


@pytest.mark.parametrize("sizes", list(itertools.product((1, 3), (1, 5), (1, 2), (1, 2))))
def test_claim_08_only_query_and_key_widths_and_lengths_must_agree(library, sizes):
    n_q, n_k, d_k, d_v = sizes
    rng = np.random.default_rng(8)
    query, key, value = (
        library.array(rng.standard_normal(size)) for size in ((n_q, d_k), (n_k, d_k), (n_k, d_v))
    )
    assert tuple(attnbook.attention(query, key, value).shape) == (n_q, d_v)
    with pytest.raises(ValueError, match=r"key must have shape \(\.\.\., n_k, "):
        attnbook.attention(query, library.array(rng.standard_normal((n_k, d_k + 1))), value)
    with pytest.raises(ValueError, match=r"value must have shape \(\.\.\., "):
        attnbook.attention(query, key, library.array(rng.standard_normal((n_k + 1, d_v))))


# 9: with h·d_v = d the joined heads have shape n × d. Holds, and then they add up.


@given(SEEDS, *[st.integers(1, 5)] * 4, SIZES, SIZES)
def test_claim_09_joined_heads_are_a_sum_over_heads(seed, h, d_k, d_v, d_out, n_q, n_k):
    weights = many_heads(seed, h, d_k=d_k, d_v=d_v, d_out=d_out)
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(shape) for shape in ((n_q, 5), (n_k, 11), (n_k, 7))]
    mask = rng.random((n_q, n_k)) < 0.7
    output = attnbook.multi_head_attention(*inputs, weights, mask)
    assert output.shape == (n_q, d_out)
    parts = []
    for i in range(h):
        columns, rows = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
        head = attnbook.attention(
            inputs[0] @ weights.W_Q[:, columns],
            inputs[1] @ weights.W_K[:, columns],
            inputs[2] @ weights.W_V[:, rows],
            mask,
        )
        parts.append(head @ weights.W_O[rows])
    np.testing.assert_allclose(sum(parts), output, atol=1e-12)
    # they do not mix: without its rows of W_O a head is gone, and the others stay as they were
    for i in range(h):
        W_O = weights.W_O.copy()
        W_O[i * d_v : (i + 1) * d_v] = 0
        fewer = attnbook.multi_head_attention(*inputs, replace(weights, W_O=W_O), mask)
        np.testing.assert_allclose(fewer, output - parts[i], atol=1e-12)


@given(SEEDS, st.integers(1, 5), st.integers(1, 4), SIZES)
def test_claim_09_without_an_output_matrix_the_heads_stand_side_by_side(seed, h, d_v, n):
    d = h * d_v
    weights = attnbook.MultiHeadWeights.init(seed, d, h, output=False)
    x = np.random.default_rng(seed).standard_normal((2, n, d))
    output = attnbook.multi_head_attention(x, x, x, weights)
    assert output.shape == (2, n, d)
    heads = [attnbook.single_head_attention(x, x, x, head) for head in weights.heads()]
    np.testing.assert_allclose(output, np.concatenate(heads, axis=-1), atol=1e-12)
    with_identity = replace(weights, W_O=np.eye(d))
    same = attnbook.multi_head_attention(x, x, x, with_identity)
    np.testing.assert_allclose(output, same, atol=1e-12)


# 10: (n, d_model) reshaped to (h, n, d_model / h) splits the heads. False.


def bare_reshape(x, h):
    n, d_model = x.shape
    return x.reshape(h, n, d_model // h)


NUMBERS = pytest.mark.parametrize(
    ("n", "h"), list(itertools.product((1, 2, 3, 5, 7), (1, 2, 3, 4, 7)))
)


def seen_by(split, merge, n, h, d=2):
    """Return which tokens each row of causal attention depends on, found by changing each."""
    rng = np.random.default_rng(n * 100 + h)
    matrices = rng.standard_normal((3, h * d, h * d))
    x = rng.standard_normal((n, h * d))

    def run(x):
        q, k, v = (split(x @ W, h) for W in matrices)
        return merge(attnbook.attention(q, k, v, masking.causal(n)))

    before, seen = run(x), [set() for _ in range(n)]
    for token in range(n):
        changed = x.copy()
        changed[token] += 1 + rng.random(h * d)
        moved = (run(changed) != before).any(axis=-1)
        for row in np.flatnonzero(moved):
            seen[row].add(token)
    return seen


@given(*[st.integers(1, 7)] * 3)
def test_claim_10_is_false_where_each_row_lands(n, h, d):
    x = np.arange(n * h * d).reshape(n, h * d)
    bare, right = bare_reshape(x, h), attnbook.split_heads(x, h)
    assert bare.shape == right.shape == (h, n, d)
    for i in range(h):
        for row in range(n):
            # row `row` of head i is one piece of one token, but not of token `row`
            token, piece = divmod(i * n + row, h)
            np.testing.assert_array_equal(bare[i, row], x[token, piece * d : (piece + 1) * d])
            np.testing.assert_array_equal(right[i, row], x[row, i * d : (i + 1) * d])
    assert (bare == right).all() == (n == 1 or h == 1)


@NUMBERS
def test_claim_10_is_false_a_later_token_changes_the_first_output(n, h):
    seen = seen_by(bare_reshape, attnbook.merge_heads, n, h)
    for row in range(n):
        heads = itertools.product(range(h), range(row + 1))
        assert seen[row] == {(i * n + before) // h for i, before in heads}
    assert max(seen[0]) == n * (h - 1) // h
    assert (max(seen[0]) > 0) == (n > 1 and h > 1)
    assert (max(seen[0]) == n - 1) == (n <= h or n == 1)


@NUMBERS
def test_claim_10_repaired_the_right_split_does_not_leak(n, h):
    seen = seen_by(attnbook.split_heads, attnbook.merge_heads, n, h)
    assert seen == [set(range(row + 1)) for row in range(n)]


def test_claim_10_reshaping_back_hides_the_leak_and_loses_the_past():
    # reshaped back the same way no later token shows, but rows forget what they should see
    def back(heads):
        h, n, d = heads.shape
        return heads.reshape(n, h * d)

    seen = seen_by(bare_reshape, back, n=6, h=2)
    assert all(max(tokens) == row for row, tokens in enumerate(seen))
    assert seen[3] == {3}  # the first row of the second head is where token 3 begins
    assert seen[5] == {3, 4, 5}


# 11: the weights have shape (h, d_head, d_head). False: (h, n_q, n_k).


@given(st.lists(st.integers(0, 3), max_size=2), *[st.integers(1, 4)] * 3, *[st.integers(0, 6)] * 2)
def test_claim_11_weights_have_a_row_a_query_and_a_column_a_key(
    library, leading, h, d_k, d_v, n_q, n_k
):
    weights = library.place(many_heads(0, h, d_k=d_k, d_v=d_v))
    shapes = ((n_q, 5), (n_k, 11), (n_k, 7))
    inputs = [library.array(np.ones((*leading, *shape))) for shape in shapes]
    _, shares = attnbook.multi_head_attention(*inputs, weights, return_weights=True)
    assert tuple(shares.shape) == (*leading, h, n_q, n_k)


# 12: d must be divisible by h. Holds if each head has width d / h.


@given(st.integers(1, 40), st.integers(1, 12), SEEDS)
def test_claim_12_the_width_must_be_a_multiple_of_the_heads_where_they_share_it(d, h, seed):
    x = np.random.default_rng(seed).standard_normal((2, d))
    if d % h == 0:
        weights = attnbook.MultiHeadWeights.init(seed, d, h)
        assert weights.W_Q.shape == weights.W_V.shape == (d, d)
        assert attnbook.multi_head_attention(x, x, x, weights).shape == (2, d)
        return
    message = f"d_model must be divisible by n_heads, got d_model = {d} and n_heads = {h}"
    for output in (True, False):
        with pytest.raises(ValueError, match=f"^{message}$"):
            attnbook.MultiHeadWeights.init(seed, d, h, output=output)
    with pytest.raises(ValueError, match=rf"divisible by n_heads = {h}, got \(2, {d}\)$"):
        attnbook.split_heads(x, h)
    with pytest.raises(ValueError, match=rf"divisible by n_heads = {h}, got shape \({d}, {d}\)$"):
        attnbook.MultiHeadWeights(*[np.ones((d, d))] * 3, n_heads=h)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), SEEDS)
def test_claim_12_heads_of_a_free_width_need_no_such_condition(d, h, d_k, d_v, seed):
    weights = attnbook.MultiHeadWeights.init(seed, d, h, d_k=d_k, d_v=d_v)
    x = np.random.default_rng(seed).standard_normal((2, d))
    output, shares = attnbook.multi_head_attention(x, x, x, weights, return_weights=True)
    assert output.shape == (2, d)
    assert shares.shape == (h, 2, 2)


# 13: the mask acts on the scores, before the softmax. Holds.


def masked_case(triple, seed, share):
    query, key, value = triple
    mask = np.random.default_rng(seed).random((len(query), len(key))) < share
    return query, key, value, mask


@given(triples(), SEEDS, st.sampled_from((0.1, 0.5, 0.9)))
def test_claim_13_masking_before_equals_zeroing_and_renormalising(triple, seed, share):
    query, key, _, mask = masked_case(triple, seed, share)
    before = attnbook.attention_weights(query, key, mask)
    zeroed = attnbook.attention_weights(query, key) * mask
    mass = zeroed.sum(axis=-1, keepdims=True)
    # below this the weights that are left were rounded to nothing, or nearly
    whole = mass[:, 0] > 1e-290
    renormalised = zeroed / np.where(mass > 0, mass, 1)
    np.testing.assert_allclose(before[whole], renormalised[whole], atol=1e-12)
    visible = mask.any(axis=-1)
    np.testing.assert_allclose(before.sum(axis=-1), visible, atol=1e-14)
    assert (before[~mask] == 0).all()


@given(triples(), SEEDS, SPREADS)
def test_claim_13_what_a_masked_key_holds_does_not_matter(triple, seed, spread):
    query, key, value, mask = masked_case(triple, seed, 0.5)
    hidden = ~mask.any(axis=0)  # keys that no query sees
    rng = np.random.default_rng(seed)
    other_key = np.where(hidden[:, np.newaxis], spread * rng.standard_normal(key.shape), key)
    other_value = np.where(hidden[:, np.newaxis], spread * rng.standard_normal(value.shape), value)
    np.testing.assert_array_equal(
        attnbook.attention(query, other_key, other_value, mask),
        attnbook.attention(query, key, value, mask),
    )
    # and each row is attention over the keys that are left, as if there were no others
    output = attnbook.attention(query, key, value, mask)
    for row, sees, got in zip(query, mask, output, strict=True):
        alone = attnbook.attention(row[np.newaxis], key[sees], value[sees])[0]
        np.testing.assert_allclose(got, alone, atol=1e-12 * (1 + np.abs(value).max()))


@pytest.mark.parametrize(("dtype", "far"), [("float16", 20), ("float32", 110), ("float64", 760)])
def test_claim_13_renormalising_afterwards_fails_where_the_visible_mass_underflows(dtype, far):
    # one hidden key that outbids two visible ones by `far`
    query = np.ones((1, 1), dtype)
    key = np.array([[far], [0], [-1]], dtype)
    mask = np.array([[False, True, True]])
    zeroed = attnbook.attention_weights(query, key) * mask
    assert zeroed.sum() == 0
    with np.errstate(invalid="ignore"):
        assert np.isnan(zeroed / zeroed.sum(axis=-1, keepdims=True)).all()
    got = attnbook.attention_weights(query, key, mask)
    expected = [[0, math.e / (math.e + 1), 1 / (math.e + 1)]]
    np.testing.assert_allclose(got, expected, atol=1e-3 if dtype == "float16" else 1e-6)


# 14: the mask acts on the weights, after the softmax. Incomplete.


@given(triples(), SEEDS, st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
def test_claim_14_without_renormalising_rows_sum_to_the_visible_mass(triple, seed, share):
    query, key, value, mask = masked_case(triple, seed, share)
    weights = attnbook.attention_weights(query, key)
    zeroed = weights * mask
    scores = query @ key.T / math.sqrt(key.shape[1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mass = (shares * mask).sum(axis=-1) / shares.sum(axis=-1)
    np.testing.assert_allclose(zeroed.sum(axis=-1), mass, atol=1e-8)
    assert (zeroed.sum(axis=-1) <= 1 + 1e-14).all()
    hides = (weights * ~mask).sum(axis=-1)
    np.testing.assert_allclose(zeroed.sum(axis=-1), 1 - hides, atol=1e-14)
    # so the output is the right one times that mass: too short, by what was hidden
    right = attnbook.attention(query, key, value, mask)
    room = 1e-12 * (1 + np.abs(value).max()) * len(key)
    np.testing.assert_allclose(
        zeroed @ value, zeroed.sum(axis=-1, keepdims=True) * right, atol=room
    )


def test_claim_14_equal_scores_lose_one_part_in_n_for_each_hidden_key():
    query, key = np.ones((7, 2)), np.ones((7, 2))
    zeroed = attnbook.attention_weights(query, key) * masking.causal(7)
    np.testing.assert_allclose(zeroed.sum(axis=-1), np.arange(1, 8) / 7)


@given(triples(), SEEDS)
def test_claim_14_an_empty_row_is_zero_and_not_nan(library, triple, seed):
    query, key, value, mask = masked_case(triple, seed, 0.5)
    mask[seed % len(query)] = False
    with np.errstate(invalid="ignore"):
        zeroed = attnbook.attention_weights(query, key) * mask
        naive = zeroed / zeroed.sum(axis=-1, keepdims=True)
        hidden = np.where(mask, query @ key.T, -np.inf)
        shifted = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    empty = ~mask.any(axis=-1)
    assert np.isnan(naive[empty]).all()
    assert np.isnan(shifted[empty]).all()
    arrays = [library.array(x) for x in (query, key, value)]
    weights = library.numpy(attnbook.attention_weights(*arrays[:2], library.array(mask)))
    output = library.numpy(attnbook.attention(*arrays, library.array(mask)))
    assert (weights[empty] == 0).all()
    assert (output[empty] == 0).all()
    assert np.isfinite(weights).all()


# 15: a decoder runs self-attention over the whole target, with no mask. False.


def losses(logits, targets):
    """Return −log p(target), one a place."""
    picked = np.take_along_axis(attnbook.log_softmax(logits), targets[..., np.newaxis], axis=-1)
    return -picked[..., 0]


def every_sequence(words, n):
    return np.array(list(itertools.product(range(words), repeat=n)))


def features(targets, words):
    """Return what a decoder reads under teacher forcing: the targets one place late, and places."""
    batch, n = targets.shape
    tokens = np.concatenate([np.full((batch, 1), words), targets], axis=1)  # a start token first
    places = np.broadcast_to(np.eye(n + 1), (batch, n + 1, n + 1))
    return np.concatenate([np.eye(words + 1)[tokens], places], axis=-1)


@pytest.mark.parametrize(("words", "n"), [(2, 5), (3, 3), (5, 2)])
def test_claim_15_is_false_weights_that_copy_the_answer(words, n):
    # the query of place i asks for place i + 1, whose value is the token that place i must say
    ask, offer = np.zeros((2, words + n + 2, n + 1))
    ask[words + 1 :] = 40 * np.eye(n + 1, k=1)
    offer[words + 1 :] = np.eye(n + 1)
    read = np.eye(words + n + 2, words + 1)
    weights = attnbook.MultiHeadWeights(ask, offer, read, 40 * np.eye(words + 1), n_heads=1)
    targets = every_sequence(words, n)
    x = features(targets, words)
    without = attnbook.multi_head_attention(x, x, x, weights)[:, :n, :words]
    assert losses(without, targets).max() < 1e-3  # every sequence there is, without learning any
    with_mask = attnbook.multi_head_attention(x, x, x, weights, masking.causal(n + 1))
    assert losses(with_mask[:, :n, :words], targets).mean() >= math.log(words)
    # decoding alone, place i has no place i + 1 to read: it is no better than chance
    hits = []
    for i in range(n):
        seen = x[:, : i + 1]
        logits = attnbook.multi_head_attention(seen, seen, seen, weights)[:, i, :words]
        hits.append(logits.argmax(axis=-1) == targets[:, i])
    np.testing.assert_allclose(np.mean(hits), 1 / words, atol=1e-12)


@given(SEEDS, st.sampled_from((1, 2)), st.sampled_from((0.1, 1.0, 10.0)))
def test_claim_15_under_a_causal_mask_no_weights_copy(seed, h, spread):
    # over all equally likely sequences the mean loss of any weights is at least log(words)
    words, n = 3, 3
    targets = every_sequence(words, n)
    x = features(targets, words)
    weights = many_heads(seed, h, widths=(x.shape[-1],) * 3, d_out=words, bias=True)
    x = spread * x
    output = attnbook.multi_head_attention(x, x, x, weights, masking.causal(n + 1))
    found = losses(output[:, :n], targets)
    assert (found.mean(axis=0) >= math.log(words) - 1e-12).all()
    # since equal beginnings get equal predictions, whatever follows
    for i in range(n):
        same_start = output[:, i].reshape(words**i, -1, words)
        np.testing.assert_allclose(same_start, same_start[:, :1] + 0 * same_start, atol=1e-10)


def chain(words, seed=0):
    """Return the two tokens that may follow each, equally likely."""
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(words, 2, replace=False) for _ in range(words)])


class Decoder(torch.nn.Module):
    """One block of self-attention over tokens and places."""

    def __init__(self, words, n, d=32):
        super().__init__()
        self.token = torch.nn.Embedding(words, d)
        self.place = torch.nn.Parameter(0.1 * torch.randn(n, d))
        weights = attnbook.MultiHeadWeights.init(0, d, 2).to(dtype="float32")
        self.attention = nn.MultiHeadAttention(weights)
        self.word = torch.nn.Linear(d, words)

    def forward(self, tokens, masked):
        x = self.token(tokens) + self.place[: tokens.shape[1]]
        mask = masking.causal(tokens.shape[1], like=x) if masked else None
        return self.word(x + self.attention(x, mask=mask))


def trained(masked, words=12, n=8, steps=150):
    """Return the teacher-forced loss on new text and how often free decoding obeys the chain."""
    torch.manual_seed(0)
    rng, follow = np.random.default_rng(1), chain(words)
    edge = words  # begins and ends every text

    def batch(size):
        text = [rng.integers(0, words, size)]
        for _ in range(n - 2):
            text.append(follow[text[-1], rng.integers(0, 2, size)])
        text = np.stack(text, axis=1)
        ends = np.full((size, 1), edge)
        return (torch.tensor(np.concatenate(x, axis=1)) for x in ((ends, text), (text, ends)))

    model = Decoder(words + 1, n)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        read, said = batch(64)
        loss = torch.nn.functional.cross_entropy(model(read, masked).flatten(0, 1), said.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        read, said = batch(512)
        logits = model(read, masked).flatten(0, 1)
        forced = float(torch.nn.functional.cross_entropy(logits, said.flatten()))
        text = torch.full((512, 1), edge)
        for _ in range(n - 1):
            last = model(text, masked)[:, -1, :words]  # a word, not the end
            text = torch.cat([text, torch.multinomial(last.softmax(-1), 1)], dim=1)
    text = text[:, 1:].numpy()
    obeys = (follow[text[:, :-1]] == text[:, 1:, np.newaxis]).any(axis=-1)
    return forced, float(obeys.mean())


def test_claim_15_trained_without_a_mask_the_loss_is_too_good_and_decoding_fails():
    words, n = 12, 8
    # what no honest model can beat: any first word, then one of two, then the end
    entropy_rate = (math.log(words) + (n - 2) * math.log(2)) / n
    forced, obeys = trained(masked=False)
    assert forced < 0.1 * entropy_rate
    assert obeys < 0.5
    forced, obeys = trained(masked=True)
    assert 0.95 * entropy_rate < forced < 1.1 * entropy_rate
    assert obeys > 0.95
