"""The claims of the book, harder than its cells: random and adversarial cases.

A claim that holds is tested as it stands. A false one is broken by its counterexample, and what
replaces it is tested instead.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import attnbook

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
