"""Learned sparse attention: scores, selection and blocks against loops over single numbers."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import DTYPES, NOT_BOOLEAN, close, need
from hypothesis import given
from hypothesis import strategies as st

import attnbook
from attnbook import sparse_attention as sparse

SIZES = st.sampled_from((0, 1, 2, 5, 11))


def dot(a, b):
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def index_scores(query, key, weight):
    """Return scores of one index, one number at a time."""
    h, n_q, _ = query.shape
    found = np.zeros((n_q, len(key)))
    for i, j in np.ndindex(*found.shape):
        parts = [weight[a, i] * max(dot(query[a, i], key[j]), 0.0) for a in range(h)]
        found[i, j] = math.fsum(parts)
    return found


def best(row, k):
    """Return the numbers of the k largest of a list, the earlier first, −1 for −∞, and padded."""
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]
    return [j if row[j] > -math.inf else -1 for j in order]


def read(query, key, value, selected, scale):
    """Return the output of one query over the listed keys."""
    selected = [j for j in selected if j >= 0]
    weights = oracle.softmax_row([scale * dot(query, key[j]) for j in selected])
    columns = range(value.shape[1])
    pairs = list(zip(weights, selected, strict=True))
    return [math.fsum(w * float(value[j, c]) for w, j in pairs) for c in columns]


def in_blocks(query, key, value, gates, block, n_selected, window, pooling, scale):
    """Return block-sparse attention of one KV head, query by query."""
    h, n_q, _ = query.shape
    n_k, n_blocks = len(key), len(key) // block
    pooling = [1 / block] * block if pooling is None else pooling
    means = [
        np.array(
            [
                [
                    math.fsum(float(p * x[m * block + t, c]) for t, p in enumerate(pooling))
                    for c in range(x.shape[1])
                ]
                for m in range(n_blocks)
            ]
        ).reshape(n_blocks, x.shape[1])
        for x in (key, value)
    ]
    output = np.zeros((h, n_q, value.shape[1]))
    for i in range(n_q):
        own = n_k - n_q + i
        whole = [m for m in range(n_blocks) if (m + 1) * block - 1 <= own]
        weights = [
            oracle.softmax_row([scale * dot(query[a, i], means[0][m]) for m in whole])
            for a in range(h)
        ]
        total = [math.fsum(w[m] for w in weights) for m in range(len(whole))]
        chosen = [whole[j] for j in best(total, n_selected)]
        tokens = [m * block + t for m in chosen for t in range(block)]
        near = range(max(own - window + 1, 0), own + 1)
        for a in range(h):
            each = (
                read(query[a, i], means[0], means[1], whole, scale),
                read(query[a, i], key, value, tokens, scale),
                read(query[a, i], key, value, near, scale),
            )
            for c in range(value.shape[1]):
                output[a, i, c] = math.fsum(
                    gates[a, i, b] * x[c] for b, x in enumerate(each) if len(x)
                )
    return output


def drawn(seed, n_q=5, n_k=11, leading=(), h=3, d_k=7, d_v=2):
    """Draw query, key, value, weights of index heads, and gates."""
    rng = np.random.default_rng(seed)
    shapes = ((h, n_q, d_k), (n_k, d_k), (n_k, d_v), (h, n_q), (h, n_q, 3))
    return [rng.normal(size=(*leading, *shape)) for shape in shapes]


def rounded(library, arrays, dtype):
    """Return the arrays of a library, and the numbers that they hold."""
    made = [library.array(x, dtype) for x in arrays]
    return made, [library.numpy(x) for x in made]


# The indexer


@given(seed=st.integers(0, 2**32 - 1), n_q=SIZES, n_k=SIZES, h=st.integers(0, 3))
def test_index_scores_agree_with_loops(seed, n_q, n_k, h):
    query, key, _, weight, _ = drawn(seed, n_q, n_k, h=h)
    found = sparse.indexer_scores(query, key, weight)
    close(found, index_scores(query, key, weight), "float64", size=100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_scores_in_every_library_and_dtype(library, dtype):
    need(library, dtype)
    arrays, numbers = rounded(library, [drawn(1, leading=(2,))[i] for i in (0, 1, 3)], dtype)
    found = sparse.indexer_scores(*arrays)
    assert library.same_kind(found, arrays[0])
    expected = np.stack([index_scores(*(x[i] for x in numbers)) for i in range(2)])
    close(library.numpy(found), expected, dtype, size=100)


def test_one_index_key_serves_several_selections():
    query, key, _, _, _ = drawn(2)
    weight = np.random.default_rng(3).normal(size=(2, 3, 5))
    found = sparse.indexer_scores(query, key, weight)
    expected = np.stack([index_scores(query, key, w) for w in weight])
    close(found, expected, "float64", size=100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loss_is_the_divergence_of_the_visible_keys(library, dtype):
    need(library, dtype)
    rng = np.random.default_rng(0)
    mask = rng.random((5, 7)) < 0.6
    mask[2] = False
    weights = np.where(mask, rng.exponential(size=(2, 5, 7)), 0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    (scores, weights), numbers = rounded(library, [rng.normal(size=(2, 5, 7)), weights], dtype)
    loss = sparse.indexer_loss(scores, weights, library.array(mask))
    expected = np.zeros((2, 5))
    for b, i in np.ndindex(2, 5):
        row = [x if m else -math.inf for x, m in zip(numbers[0][b, i], mask[i], strict=True)]
        q = oracle.log_softmax_row(row)
        p = numbers[1][b, i]
        expected[b, i] = math.fsum(x * (math.log(x) - y) for x, y in zip(p, q, strict=True) if x)
    assert library.same_kind(loss, scores)
    close(library.numpy(loss), expected, dtype, size=10)


def test_the_loss_is_zero_at_the_weights_and_infinite_at_hidden_keys():
    weights = np.array([[0.25, 0.75, 0.0]])
    with np.errstate(divide="ignore"):
        scores = np.log(weights)
    np.testing.assert_allclose(sparse.indexer_loss(scores, weights), [0.0], atol=1e-15)
    hidden = sparse.indexer_loss(np.zeros((1, 3)), weights, np.array([True, False, True]))
    assert hidden[0] == math.inf


def test_an_indexer_learns_from_the_loss():
    torch.manual_seed(0)
    query, key = torch.randn(2, 13, 3), torch.randn(13, 3)
    weights = torch.softmax(torch.randn(13, 13).tril() * 3, dim=-1).tril()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    mask = torch.ones(13, 13, dtype=torch.bool).tril()
    parts = [x.requires_grad_() for x in (query, key, torch.ones(2, 13))]
    before = None
    for _ in range(20):
        loss = sparse.indexer_loss(sparse.indexer_scores(*parts), weights, mask).sum()
        before = before or loss.item()
        grads = torch.autograd.grad(loss, parts)
        assert all(torch.isfinite(g).all() for g in grads)
        parts = [(x - 0.1 * g).detach().requires_grad_() for x, g in zip(parts, grads, strict=True)]
    assert loss.item() < 0.8 * before


# Selection


@given(seed=st.integers(0, 2**32 - 1), n_q=SIZES, n_k=SIZES, k=st.integers(0, 13))
def test_top_keys_are_those_of_a_sort(seed, n_q, n_k, k):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, size=(2, n_q, n_k)).astype(np.float64)  # with ties
    mask = rng.random((n_q, n_k)) < 0.7
    found = sparse.top_keys(scores, k, mask, is_causal=True)
    assert found.dtype == np.int64
    assert found.shape == (2, n_q, min(k, n_k))
    for b, i in np.ndindex(2, n_q):
        seen = [mask[i, j] and j <= i + n_k - n_q for j in range(n_k)]
        row = [x if y else -math.inf for x, y in zip(scores[b, i], seen, strict=True)]
        assert found[b, i].tolist() == best(row, k)


def test_top_keys_in_every_library(library):
    scores = library.array(np.array([[3.0, 1.0, 9.0], [3.0, 1.0, 9.0]]))
    found = library.numpy(sparse.top_keys(scores, 2, is_causal=True))
    np.testing.assert_array_equal(found, [[0, 1], [2, 0]])
    mask = library.array(np.array([False, True, False]))
    found = library.numpy(sparse.top_keys(scores, 2, mask))
    np.testing.assert_array_equal(found, [[1, -1], [1, -1]])


@given(seed=st.integers(0, 2**32 - 1), n_q=SIZES, n_k=st.sampled_from((1, 2, 11)), k=SIZES)
def test_selected_attention_agrees_with_loops(seed, n_q, n_k, k):
    query, key, value, _, _ = drawn(seed, n_q, n_k)
    selected = np.random.default_rng(seed).integers(-1, n_k, size=(n_q, k))
    found = sparse.selected_attention(query, key, value, selected, scale=0.3)
    expected = np.zeros((3, n_q, 2))
    for a, i in np.ndindex(3, n_q):
        expected[a, i] = read(query[a, i], key, value, selected[i], 0.3)
    close(found, expected, "float64", size=10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_selected_attention_in_every_library_and_dtype(library, dtype):
    need(library, dtype)
    arrays, numbers = rounded(library, drawn(4)[:3], dtype)
    selected = np.random.default_rng(5).integers(-1, 11, size=(3, 5, 4))
    found = sparse.selected_attention(*arrays, library.array(selected))
    assert library.same_kind(found, arrays[0])
    expected = np.zeros((3, 5, 2))
    for a, i in np.ndindex(3, 5):
        expected[a, i] = read(numbers[0][a, i], *numbers[1:], selected[a, i], 7**-0.5)
    close(library.numpy(found), expected, dtype, size=10)


def test_with_all_keys_selected_it_is_attention():
    query, key, value, _, _ = drawn(6)
    selected = sparse.top_keys(np.zeros((5, 11)), 11, is_causal=True)
    found = sparse.selected_attention(query, key, value, selected)
    np.testing.assert_allclose(found, attnbook.attention(query, key, value, is_causal=True))


def test_no_keys_give_zeros():
    query, key, value, _, _ = drawn(7, n_k=0)
    for selected in (np.full((5, 3), -1), np.zeros((5, 0), np.int64)):
        found = sparse.selected_attention(query, key, value, selected)
        np.testing.assert_array_equal(found, np.zeros((3, 5, 2)))


# Blocks


@given(
    **{"seed": st.integers(0, 2**32 - 1), "n_q": st.sampled_from((0, 1, 5, 11))},
    **{"block": st.integers(1, 4), "n_selected": st.integers(0, 4), "window": st.integers(1, 13)},
    weighted=st.booleans(),
)
def test_blocks_agree_with_loops(seed, n_q, block, n_selected, window, weighted):
    query, key, value, _, gates = drawn(seed, n_q)
    pooling = np.random.default_rng(seed).random(block) if weighted else None
    options = {"block": block, "n_selected": n_selected, "window": window, "pooling": pooling}
    found = sparse.block_sparse_attention(query, key, value, gates, **options, scale=0.4)
    expected = in_blocks(query, key, value, gates, block, n_selected, window, pooling, 0.4)
    close(found, expected, "float64", size=30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_in_every_library_and_dtype(library, dtype):
    need(library, dtype)
    query, key, value, _, gates = drawn(8, leading=(2,))
    pooling = np.array([0.25, 0.5, 0.25])
    arrays, numbers = rounded(library, [query, key, value, gates, pooling], dtype)
    options = {"block": 3, "n_selected": 2, "window": 4}
    found = sparse.block_sparse_attention(*arrays[:4], **options, pooling=arrays[4])
    assert library.same_kind(found, arrays[0])
    of_each = [
        in_blocks(*(x[i] for x in numbers[:4]), 3, 2, 4, numbers[4], 7**-0.5) for i in range(2)
    ]
    close(library.numpy(found), np.stack(of_each), dtype, size=30)


def test_no_output_of_blocks_depends_on_a_later_token():
    query, key, value, _, gates = drawn(9, n_q=11)
    options = {"block": 2, "n_selected": 2, "window": 3}
    before = sparse.block_sparse_attention(query, key, value, gates, **options)
    key[7:], value[7:] = -key[7:], -value[7:]
    after = sparse.block_sparse_attention(query, key, value, gates, **options)
    np.testing.assert_array_equal(after[:, :7], before[:, :7])
    assert np.all(np.abs(after[:, 7:] - before[:, 7:]).max(axis=-1) > 1e-6)


def test_all_blocks_and_tokens_are_attention():
    query, key, value, _, gates = drawn(10, n_q=12, n_k=12)
    gates[..., :] = [0, 1, 0]
    options = {"block": 1, "n_selected": 12, "window": 1}
    found = sparse.block_sparse_attention(query, key, value, gates, **options)
    np.testing.assert_allclose(found, attnbook.attention(query, key, value, is_causal=True))


def test_gradients_flow_through_all_branches():
    arrays = [torch.tensor(x, requires_grad=True) for x in drawn(11)]
    query, key, value, _, gates = arrays
    options = {"block": 2, "n_selected": 2, "window": 3}
    sparse.block_sparse_attention(query, key, value, gates, **options).sin().sum().backward()
    for x in (query, key, value, gates):
        assert torch.isfinite(x.grad).all()
        assert x.grad.abs().max() > 0
    made = [torch.tensor(x, requires_grad=True) for x in drawn(12)[:3]]
    selected = torch.full((5, 3), -1)
    sparse.selected_attention(*made, selected).sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in made)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pooled_blocks(library, dtype):
    need(library, dtype)
    x = library.array(np.arange(22.0).reshape(11, 2) / 4, dtype)
    means = library.numpy(sparse.pool_blocks(x, 3))
    exact = np.array([library.numpy(x)[i : i + 3].mean(axis=0) for i in (0, 3, 6)])
    close(means, exact, dtype, size=10)
    first = library.numpy(sparse.pool_blocks(x, 3, library.array(np.array([1.0, 0, 0]), dtype)))
    np.testing.assert_array_equal(first, library.numpy(x)[[0, 3, 6]])
    assert sparse.pool_blocks(x[:2, :], 3).shape == (0, 2)


# Errors


def call(function, **changed):
    """Call a function with right arguments, some of them changed."""
    query, key, value, weight, gates = drawn(0)
    right = {
        "indexer_scores": {"query": query, "key": key, "weight": weight},
        "indexer_loss": {"scores": np.zeros((5, 11)), "weights": np.full((5, 11), 1 / 11)},
        "top_keys": {"scores": np.zeros((5, 11)), "k": 2},
        "selected_attention": {
            **{"query": query, "key": key, "value": value},
            "selected": np.zeros((5, 2), np.int64),
        },
        "pool_blocks": {"x": key, "block": 2},
        "block_sparse_attention": {
            **{"query": query, "key": key, "value": value, "gates": gates},
            **{"block": 2, "n_selected": 2, "window": 3},
        },
    }[function]
    return getattr(sparse, function)(**{**right, **changed})


WRONG = [
    (
        "indexer_scores",
        {"query": np.ones((5, 7))},
        "query must have shape",
    ),
    (
        "indexer_scores",
        {"key": np.ones((11, 3))},
        r"to match query, got \(11, 3\)",
    ),
    ("indexer_scores", {"weight": np.ones((3, 4))}, r"shape \(\.\.\., 3, 5\) to match query, got"),
    (
        "indexer_scores",
        {"query": np.ones((2, 3, 5, 7)), "key": np.ones((3, 11, 7))},
        r"leading axes must broadcast, got \(2,\), \(3,\), \(\)",
    ),
    ("indexer_loss", {"scores": np.ones(5)}, r"scores must have shape \(\.\.\., n_q, n_k\), got"),
    ("indexer_loss", {"weights": np.ones((5, 3))}, r"the shape of scores \(5, 11\), got \(5, 3\)"),
    ("indexer_loss", {"mask": np.ones((4, 3), bool)}, "mask must broadcast"),
    (
        "top_keys",
        {"scores": np.ones(5)},
        r"scores must have shape .*, got \(5,\)",
    ),
    ("top_keys", {"k": -1}, "k must be at least 0, got -1"),
    ("top_keys", {"mask": np.ones((4, 3), bool)}, "mask must broadcast"),
    (
        "selected_attention",
        {"selected": np.zeros((4, 2), np.int64)},
        r"selected must have shape \(\.\.\., 5, n_top\) to match query, got \(4, 2\)",
    ),
    ("selected_attention", {"selected": np.full((5, 2), 11)}, "numbers of 11 keys.*got 11"),
    ("selected_attention", {"selected": np.full((5, 2), -2)}, "numbers of 11 keys.*got -2"),
    (
        "selected_attention",
        {"selected": np.zeros((2, 5, 2), np.int64)},
        r"leading axes must broadcast, got \(3,\), \(\), \(\), \(2,\)",
    ),
    ("pool_blocks", {"x": np.ones(5)}, r"x must have shape \(\.\.\., n, d\), got \(5,\)"),
    ("pool_blocks", {"block": 0}, "block must be at least 1, got 0"),
    ("pool_blocks", {"pooling": np.ones(3)}, r"pooling must have shape \(2,\), got \(3,\)"),
    (
        "block_sparse_attention",
        {"query": np.ones((5, 7))},
        r"h, n_q, d_k\), got \(5, 7\)",
    ),
    (
        "block_sparse_attention",
        {"gates": np.ones((3, 5, 2))},
        r"3, 5, 3\) to match query",
    ),
    (
        "block_sparse_attention",
        {"key": np.ones((11, 3))},
        r"key must have shape \(\.\.\., n_k, 7\)",
    ),
    ("block_sparse_attention", {"pooling": np.ones(3)}, r"pooling must have shape \(2,\)"),
    ("block_sparse_attention", {"window": 0}, "window must be at least 1, got 0"),
    (
        "block_sparse_attention",
        {"query": np.ones((3, 12, 7)), "gates": np.ones((3, 12, 3))},
        "query must have at most the 11 tokens of key, got 12",
    ),
    (
        "block_sparse_attention",
        {"query": np.ones((2, 3, 5, 7)), "key": np.ones((3, 11, 7))},
        "key must have leading axes that broadcast",
    ),
]


@pytest.mark.parametrize(("function", "changed", "match"), WRONG)
def test_wrong_shapes_and_numbers_are_named(function, changed, match):
    with pytest.raises(ValueError, match=match):
        call(function, **changed)


@pytest.mark.parametrize(
    ("function", "changed", "match"),
    [
        ("top_keys", {"mask": np.ones((5, 11))}, NOT_BOOLEAN),
        ("top_keys", {"is_causal": 1}, "is_causal must be a bool"),
        (
            "selected_attention",
            {"selected": np.zeros((5, 2))},
            "selected must have an integer",
        ),
        ("pool_blocks", {"block": 2.0}, "block must be an int"),
        ("indexer_scores", {"weight": np.ones((3, 5), np.float32)}, "weight must have .*dtype"),
        ("block_sparse_attention", {"gates": np.ones((3, 5, 3), int)}, "gates must"),
    ],
)
def test_wrong_types_are_named(function, changed, match):
    with pytest.raises(TypeError, match=match):
        call(function, **changed)
