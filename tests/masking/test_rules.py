"""Rules against loops over query and key: what they show, their tiles, and attention by them."""

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import many_heads
from error_table import error_test
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook import masking, sparse_attention
from attnbook.arrays.intervals import HIDDEN, PARTLY, WHOLE
from attnbook.kernels import tiled
from attnbook.masking import Causal, Chunks, Documents, FirstKeys, Rule, SlidingWindow

SIZES = st.integers(0, 11)
COUNTS = st.integers(0, 6)
N_IDS = 17
"""Documents are known for so many tokens, more than there are keys."""

# Each rule beside what a query at a place sees, written from its definition: sees(b, place, j).


@st.composite
def simple_rules(draw):
    kind = draw(st.sampled_from(("causal", "window", "first", "chunks", "documents")))
    many = draw(st.booleans())
    if kind == "causal":
        return Causal(), lambda b, place, j: j <= place
    if kind == "window":
        left, right = draw(COUNTS), draw(COUNTS)
        rule = SlidingWindow(left=left, right=right)
        return rule, lambda b, place, j: place - left <= j <= place + right
    if kind == "first" and many:
        counts = draw(st.lists(COUNTS, min_size=2, max_size=2))
        return FirstKeys(counts), lambda b, place, j: j < counts[b]
    if kind == "first":
        count = draw(COUNTS)
        return FirstKeys(count), lambda b, place, j: j < count
    if kind == "chunks":
        size = draw(st.integers(1, 5))
        return Chunks(size), lambda b, place, j: j in {*own_chunk(place, size)}
    ids = draw(st.lists(st.integers(-1, 2), min_size=N_IDS, max_size=N_IDS))
    if many:
        rows = [ids, ids[::-1]]
        return Documents(rows), lambda b, place, j: place >= 0 and rows[b][place] == rows[b][j]
    return Documents(ids), lambda b, place, j: place >= 0 and ids[place] == ids[j]


def own_chunk(place, size):
    """Return the places of the chunk of a place, found by going from chunk to chunk."""
    start = 0
    while start > place:
        start -= size
    while start + size <= place:
        start += size
    return range(start, start + size)


def combined(rules):
    def both(pair):
        (a, sees_a), (b, sees_b) = pair
        return a & b, lambda *at: sees_a(*at) and sees_b(*at)

    def either(pair):
        (a, sees_a), (b, sees_b) = pair
        return a | b, lambda *at: sees_a(*at) or sees_b(*at)

    def inverse(one):
        rule, sees = one
        return ~rule, lambda *at: not sees(*at)

    pairs = st.tuples(rules, rules)
    return pairs.map(both) | pairs.map(either) | rules.map(inverse)


RULES = st.recursive(simple_rules(), combined, max_leaves=5)


def loop(rule, sees, n_q, n_k):
    """Return the mask (..., n_q, n_k), one pair after another."""
    mask = np.zeros((*rule.leading, n_q, n_k), bool)
    for index in np.ndindex(mask.shape):
        *leading, i, j = index
        mask[index] = sees(leading[0] if leading else 0, i + n_k - n_q, j)
    return mask


@settings(max_examples=150)
@given(RULES, SIZES, SIZES, st.integers(1, 5), st.integers(1, 5))
def test_a_rule_is_what_it_says(pair, n_q, n_k, block_q, block_k):
    rule, sees = pair
    want = loop(rule, sees, n_q, n_k)
    got = rule.dense(n_q, n_k)
    assert got.dtype == bool
    np.testing.assert_array_equal(got, want)
    seen = rule.intervals(n_q, n_k)
    assert seen.shape == want.shape
    np.testing.assert_array_equal(seen.dense(), want)
    gaps = seen.starts[..., 1:] > seen.stops[..., :-1]
    used = seen.starts < seen.stops
    assert (gaps | ~used[..., 1:]).all()  # sorted, and apart
    assert (used[..., :-1] | ~used[..., 1:]).all()  # unused ones come last
    assert seen.starts.min(initial=0) >= 0
    assert seen.stops.max(initial=0) <= n_k
    check_tiles(seen.tiles(block_q, block_k), want, block_q, block_k)
    check_function(rule, want)


def check_tiles(kinds, mask, block_q, block_k):
    *leading, n_q, n_k = mask.shape
    assert kinds.shape == (*leading, -(-n_q // block_q), -(-n_k // block_k))
    for *b, i, j in np.ndindex(kinds.shape):
        rows = slice(i * block_q, (i + 1) * block_q)
        tile = mask[(*b, rows, slice(j * block_k, (j + 1) * block_k))]
        want = WHOLE if tile.all() else PARTLY if tile.any() else HIDDEN
        assert kinds[(*b, i, j)] == want


def check_function(rule, mask):
    """Check the function of FlexAttention, with tensors of indices as it passes them."""
    *leading, n_q, n_k = mask.shape
    if n_q and n_k:
        shape = (leading[0] if leading else 1, n_q, n_k)
        b, i, j = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
        got = torch.as_tensor(rule.mask_mod(n_q, n_k)(b, 0 * b, i, j))
        want = np.broadcast_to(mask, shape)
        np.testing.assert_array_equal(np.broadcast_to(got.numpy(), shape), want)


def test_rules_are_the_masks_of_their_names():
    for n_q, n_k in ((5, 5), (3, 7), (7, 3), (0, 4), (4, 0)):
        pairs = {
            Causal(): masking.causal(n_q, n_k),
            SlidingWindow(left=2): masking.sliding_window(n_q, n_k, left=2),
            SlidingWindow(2**70, 2**70): np.ones((n_q, n_k), bool),
            FirstKeys(2) | Causal(): masking.prefix(n_q, n_k, length=min(2, n_k)),
        }
        for rule, mask in pairs.items():
            np.testing.assert_array_equal(rule.dense(n_q, n_k), mask, err_msg=str(rule))
    packed = Documents.of_lengths([2, 0, 3])
    np.testing.assert_array_equal(packed.dense(5), masking.block_diagonal([2, 0, 3]))


def test_what_a_rule_keeps_is_what_it_made():
    rule = Causal() & SlidingWindow(left=2)
    assert rule.intervals(4, 6) is rule.intervals(4, 6)
    for n in range(1, 20):
        assert rule.intervals(n).shape == (n, n)
    np.testing.assert_array_equal(rule.intervals(4, 6).dense(), rule.dense(4, 6))


@pytest.mark.parametrize("kind", [FirstKeys, Documents])
def test_a_rule_does_not_change_with_the_array_that_it_was_given(kind):
    given = np.array([1, 1, 2])
    rule = kind(given)
    before = rule.dense(3), rule.intervals(3).dense()
    given[:] = 3
    for x, y in zip(before, (rule.dense(3), kind(np.array([1, 1, 2])).dense(3)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_threads_may_share_a_rule_and_a_copy_is_small():
    rule = Causal() & SlidingWindow(left=2)
    before = len(pickle.dumps(rule))

    def ask(seed):
        for n in np.random.default_rng(seed).integers(1, 40, 300):
            assert rule.intervals(int(n)).shape == (n, n)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len(pickle.dumps(rule)) == before
    assert pickle.loads(pickle.dumps(rule)).intervals(3).shape == (3, 3)


@settings(max_examples=60)
@given(RULES.filter(lambda pair: not pair[0].leading), st.lists(COUNTS, max_size=4), SIZES)
def test_each_document_has_a_rule_of_its_own(pair, lengths, n_q):
    rule, sees = pair
    if any(isinstance(x, Documents) for x in leaves_of_rule(rule)):
        return
    own = Documents.of_lengths(lengths).each(rule)
    n = sum(lengths)
    want, first = np.zeros((n, n), bool), 0
    for length in lengths:
        for i, j in np.ndindex(length, length):
            want[first + i, first + j] = sees(0, i, j)
        first += length
    want = np.concatenate([np.zeros((n_q, n), bool), want])[n:]  # some stand before all keys
    np.testing.assert_array_equal(own.dense(n_q, n), want)
    np.testing.assert_array_equal(own.intervals(n_q, n).dense(), want)
    check_function(own, want)


def leaves_of_rule(rule):
    parts = [x for x in vars(rule).values() if isinstance(x, Rule)]
    return [leaf for part in parts for leaf in leaves_of_rule(part)] or [rule]


def test_documents_count_their_tokens():
    rule = Documents([[4, 4, 4, 9, 9], [1, 2, 2, 1, 1]])
    np.testing.assert_array_equal(rule.positions, [[0, 1, 2, 0, 1], [0, 0, 1, 0, 1]])
    assert rule.longest == 3
    assert not rule.is_whole
    assert Documents([[4, 4, 4, 9, 9]]).is_whole
    assert (Documents([]).longest, Documents([]).is_whole) == (0, True)
    assert Documents(np.zeros((0, 3), int)).longest == 0


def test_arrays_are_where_they_shall_be(library):
    like = library.array(np.ones(2))
    ids = library.array(np.array([[0, 0, 1], [2, 1, 1]]))
    got = (Documents(ids) & FirstKeys(library.array(np.array([1, 3])))).dense(3, like=like)
    assert library.same_kind(got, library.array(np.zeros(1, bool)))
    want = [np.equal.outer(row, row) for row in ([0, 0, 1], [2, 1, 1])]
    want[0][:, 1:] = False
    np.testing.assert_array_equal(library.numpy(got), want)


# In attention.


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "ROWS", 5)
    monkeypatch.setattr(tiled, "COLUMNS", 7)


IDS = np.random.default_rng(0).integers(0, 3, (2, 1, 23))
WAYS = {
    "causal": Causal(),
    "sinks and window": (FirstKeys(2) | SlidingWindow(left=3)) & Causal(),
    "documents of each sequence": Documents(IDS),
    "the future": ~Causal(),
    "lengths": FirstKeys([[3], [23]]),
    "chunks": Chunks(6) & Causal(),
    "nothing": Causal() & ~Causal(),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_q", [23, 4, 29])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("small_tiles")
def test_attention_by_a_rule_is_attention_by_its_mask(library, way, n_q, is_causal):
    rule, rng = WAYS[way], np.random.default_rng(0)
    if n_q == 29 and way.startswith("documents"):
        rule = Documents(IDS[..., :23])  # the first queries stand before all keys
    q, k, v, g = (
        rng.normal(size=(2, 3, n, d)) for n, d in ((n_q, 11), (23, 11), (23, 5), (n_q, 5))
    )
    mask = rule.dense(n_q, 23)
    if is_causal:
        mask = mask & masking.causal(n_q, 23)
    arrays = [library.array(x) for x in (q, k, v)]
    output = attnbook.attention(q, k, v, mask)
    grads = attnbook.attention_vjp(q, k, v, g, mask)
    weights = attnbook.attention_weights(*arrays[:2], rule, is_causal=is_causal)
    want = attnbook.attention_weights(q, k, mask)
    np.testing.assert_allclose(library.numpy(weights), want, atol=1e-13)
    for impl in ("reference", "naive", "in_place", "tiled"):
        if impl == "in_place" and library.name != "numpy":
            continue
        got = attnbook.attention(*arrays, rule, is_causal=is_causal, impl=impl)
        np.testing.assert_allclose(library.numpy(got), output, atol=1e-12, err_msg=impl)
    for impl in ("reference", "tiled"):
        got = attnbook.attention_vjp(
            *arrays, library.array(g), rule, is_causal=is_causal, impl=impl
        )
        for x, y in zip(got, grads, strict=True):
            np.testing.assert_allclose(library.numpy(x), y, atol=1e-12, err_msg=impl)
    if library.name == "torch":
        leaves = [x.detach().clone().requires_grad_() for x in arrays]
        attnbook.attention(*leaves, rule, is_causal=is_causal, impl="tiled").backward(
            library.array(g)
        )
        for x, y in zip(leaves, grads, strict=True):
            np.testing.assert_allclose(library.numpy(x.grad), y, atol=1e-12)


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.usefixtures("small_tiles")
def test_the_leading_axes_of_a_rule_are_the_first(library, heads):
    """Also where there are as many heads as sequences."""
    rng = np.random.default_rng(0)
    rule = Documents([[0] * 6, [0, 0, 0, 1, 1, 1]]) & FirstKeys([5, 6])
    q, k, v = (library.array(x) for x in rng.normal(size=(3, 2, heads, 6, 4)))
    mask = rule.dense(6, like=q)[:, None, :, :]
    want = library.numpy(attnbook.attention(q, k, v, mask))
    for impl in ("reference", "tiled"):
        got = attnbook.attention(q, k, v, rule, impl=impl)
        np.testing.assert_allclose(library.numpy(got), want, atol=1e-12)
        got = attnbook.attention_vjp(q, k, v, v, rule, impl=impl)
        for x, y in zip(got, attnbook.attention_vjp(q, k, v, v, mask), strict=True):
            np.testing.assert_allclose(library.numpy(x), library.numpy(y), atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.usefixtures("small_tiles")
def test_heads_by_a_rule_are_heads_by_its_mask(library, n_kv_heads, sinks, window, is_causal):
    rng = np.random.default_rng(0)
    weights = attnbook.MultiHeadWeights.init(0, 16, 4, n_kv_heads=n_kv_heads)
    weights = replace(weights, window=window, sinks=rng.normal(size=4) if sinks else None)
    weights, x = library.place(weights), library.array(rng.normal(size=(2, 9, 16)))
    rule = Documents(rng.integers(0, 3, (2, 9))) | SlidingWindow(1, 2)
    mask = rule.dense(9, like=x)[:, None, :, :]
    want = attnbook.multi_head_attention(x, x, x, weights, mask, is_causal=is_causal)
    for impl in ("reference", "tiled"):
        got = attnbook.multi_head_attention(x, x, x, weights, rule, is_causal=is_causal, impl=impl)
        np.testing.assert_allclose(library.numpy(got), library.numpy(want), atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "rule",
    [
        (FirstKeys(1) | SlidingWindow(left=2)) & Causal(),
        (FirstKeys([1, 4]) | Chunks(3)) & FirstKeys([8]) & Causal(),
        Documents([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0] * 5 + [1] * 4]) & ~Causal(),
    ],
)
@pytest.mark.parametrize("n_q", [9, 4])
def test_other_libraries_read_a_rule(rule, n_q):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers.masking_utils import sdpa_mask

    torch.manual_seed(0)
    q = torch.randn(2, 3, n_q, 4, dtype=torch.float64)
    k, v = torch.randn(2, 2, 3, 9, 4, dtype=torch.float64)
    mask = rule.dense(n_q, 9, like=q)
    mask = mask[:, None] if rule.leading else mask
    ours = attnbook.attention(q, k, v, mask)
    function = rule.mask_mod(n_q, 9)
    blocks = create_block_mask(function, 2, None, n_q, 9, device="cpu")
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=blocks), ours)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(sdpa(q, k, v, attn_mask=masking.to_sdpa(mask)), ours)
    for use_vmap in (False, True):
        theirs = sdpa_mask(  # which counts queries from the first key on
            *(2, n_q, 9, 9 - n_q),
            mask_function=rule.mask_mod(9),
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
        )
        np.testing.assert_array_equal(theirs, np.broadcast_to(mask, (2, 1, n_q, 9)))


def test_single_heads(library):
    weights = library.place(attnbook.SingleHeadWeights.init(0, 8, d_k=4, d_v=6))
    x = library.array(np.random.default_rng(0).normal(size=(2, 5, 8)))
    rule = FirstKeys([2, 4])
    got = attnbook.single_head_attention(x, x, x, weights, rule)
    want = attnbook.single_head_attention(x, x, x, weights, rule.dense(5, like=x))
    np.testing.assert_allclose(library.numpy(got), library.numpy(want), atol=1e-14)


def test_where_there_are_scores(library):
    scores = library.array(np.random.default_rng(0).normal(size=(3, 5, 7)))
    rule = FirstKeys([1, 3, 7]) & SlidingWindow(left=4)
    mask = rule.dense(5, 7, like=scores)
    top = [sparse_attention.top_keys(scores, 2, m, is_causal=True) for m in (rule, mask)]
    np.testing.assert_array_equal(*(library.numpy(x) for x in top))
    weights = library.array(np.full((3, 5, 7), 1 / 7))
    loss = [sparse_attention.indexer_loss(scores, weights, m) for m in (rule, mask)]
    np.testing.assert_array_equal(*(library.numpy(x) for x in loss))


def attended(rule, n_q=3, n_k=5):
    return attnbook.attention(
        np.ones((2, n_q, 4)), np.ones((2, n_k, 4)), np.ones((2, n_k, 4)), rule
    )


def heads(rule):
    x = np.ones((2, 5, 8))
    return attnbook.multi_head_attention(x, x, x, many_heads(0, 2, widths=(8, 8, 8), d_out=7), rule)


ERRORS = """
Documents([0, 1]).each(3)
    TypeError: rule must be a masking.Rule, got int
Documents([0, 1]).each(Causal() & FirstKeys([1, 1]))
    ValueError: rule must have no numbers for each sequence or token, got (Causal() &
    FirstKeys([1, 1]))
Documents([0, 1, 0]).each(Causal())
    ValueError: documents must each be in one piece, because the rule counts in them
SlidingWindow(left=-1)
    ValueError: left must be at least 0, got -1
SlidingWindow(left=1.0)
    TypeError: left must be an int, got float
SlidingWindow(1, right=-1)
    ValueError: right must be at least 0, got -1
FirstKeys(-1)
    ValueError: count must be at least 0, got -1
FirstKeys(0.5)
    TypeError: count must be ints, got float64
Chunks(0)
    ValueError: size must be at least 1, got 0
Documents([0.5])
    TypeError: ids must be ints, got float64
Documents(3)
    ValueError: ids must have shape (..., n), got ()
Documents([[1], [2, 3]])
    ValueError: ids must be ints in rows of one length, got others
Documents([2**63])
    ValueError: ids must be at most 2**63 - 1, got 9223372036854775808
Documents.of_lengths([[1]])
    ValueError: lengths must have shape (documents,), got (1, 1)
Documents.of_lengths([-1])
    ValueError: lengths must be at least 0, got -1
Documents([0, 1]).dense(3)
    ValueError: there must be at most as many keys as ids, 2, got 3
Documents([0, 1]).intervals(1, 3)
    ValueError: there must be at most as many keys as ids, 2, got 3
(Causal() & ~Documents([0, 1])).mask_mod(3)
    ValueError: there must be at most as many keys as ids, 2, got 3
Causal().dense(-1)
    ValueError: n_q must be at least 0, got -1
Causal().intervals(2, 0.5)
    TypeError: n_k must be an int, got float
FirstKeys([1, 2]) & FirstKeys([1, 2, 3])
    ValueError: the leading axes of two rules must broadcast, got (2,) and (3,)
FirstKeys([[1, 2]]).mask_mod(3)
    ValueError: the rule must have at most one leading axis, (batch,), got (1, 2)
attended(FirstKeys([1, 2, 3]))
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (2, 3, 5), got
    (3, 3, 5)
attended(Documents([0, 0, 1]))
    ValueError: there must be at most as many keys as ids, 3, got 5
heads(FirstKeys([1, 2, 3]))
    ValueError: mask must be a rule whose leading axes broadcast to those of the sequences (2,), got
    (3,)
heads(Documents([[0, 0, 1]]))
    ValueError: there must be at most as many keys as ids, 3, got 5
"""
test_error = error_test(ERRORS, globals())


@pytest.mark.parametrize("other", [None, True, np.ones((3, 3), bool)])
def test_a_rule_joins_rules_alone(other):
    for join in (lambda: Causal() & other, lambda: Causal() | other):
        with pytest.raises(TypeError):
            join()


def test_names():
    rule = ~(Causal() & SlidingWindow(left=3)) | FirstKeys([1, 2]) & Chunks(4)
    assert isinstance(rule, Rule)
    assert repr(rule) == (
        "(~(Causal() & SlidingWindow(left=3, right=0)) | (FirstKeys([1, 2]) & Chunks(4)))"
    )
    assert repr(Documents([0, 1])) == "Documents([0, 1])"
    assert repr(Documents([0] * 9)) == "Documents((9,))"
