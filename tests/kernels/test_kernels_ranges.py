"""Rules in the compiled rung: what is visited, what is hidden, and what memory that takes.

The oracle has the dense mask of the rule, in float64.
"""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from cases import every_day, examples, register_lanes
from formula import exact
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook
from attnbook.arrays.intervals import Intervals
from attnbook.masking import Causal, Chunks, Documents, FirstKeys, SlidingWindow

numba = pytest.importorskip("numba")
from attnbook.compilers.register_tiles import TILES  # noqa: E402
from attnbook.kernels import packed  # noqa: E402
from attnbook.kernels.numba_loops import forward as panels  # noqa: E402
from attnbook.kernels.numba_loops.arrays import arrange  # noqa: E402
from attnbook.kernels.numba_loops.backward import KEYS, QUERIES  # noqa: E402
from attnbook.kernels.numba_loops.ranges import (  # noqa: E402
    all_seen,
    hide_unseen,
    longest_first,
    next_seen,
    sequences,
)
from attnbook.kernels.numba_loops.runs import runs_of, seen_in_pieces  # noqa: E402

WAYS = every_day(register_lanes()[:1], register_lanes())
WINDOW = Causal() & SlidingWindow(left=70)


@st.composite
def rules(draw_one, n_k, leading):
    """Draw an expression of the five rules, for sequences along the axes `leading`."""
    length = st.integers(0, n_k + 2)
    rng = np.random.default_rng(draw_one(st.integers(0, 2**32 - 1)))
    ids = rng.integers(0, 4, (*leading, n_k))
    leaves = (
        st.just(Causal()),
        st.builds(SlidingWindow, length, length),
        st.builds(SlidingWindow, st.integers(0, 9)),
        st.builds(FirstKeys, length),
        st.just(FirstKeys(rng.integers(0, n_k + 1, leading))),
        st.builds(Chunks, st.integers(1, n_k + 2)),
        st.just(Documents(np.sort(ids, axis=-1))),
        st.just(Documents(ids)),
    )

    def combined(inner):
        pair = st.tuples(inner, inner)
        return st.one_of(
            pair.map(lambda x: x[0] & x[1]),
            pair.map(lambda x: x[0] | x[1]),
            inner.map(lambda x: ~x),
        )

    return draw_one(st.recursive(st.one_of(leaves), combined, max_leaves=4))


LEADS = (
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((2, 3), (2, 1), (2, 1)),  # groups that share their keys
    ((3,), (), (1,)),
    ((2, 3), (1, 3), (3,)),
)


@st.composite
def cases(draw_one):
    """Draw shapes of a few queries and of several tiles, a rule and a bias."""
    n_q = draw_one(st.sampled_from((1, 2, 3, 31, 97, 211)))
    n_k = draw_one(st.sampled_from((1, 37, 127, 193, 401)))
    d_k, d_v = (draw_one(st.sampled_from((1, 3, 17))) for _ in range(2))
    leads = draw_one(st.sampled_from(LEADS))
    lead = np.broadcast_shapes(*leads)
    rule = draw_one(rules(n_k, draw_one(st.sampled_from(((), lead[-1:], lead)))))
    rng = np.random.default_rng(draw_one(st.integers(0, 2**32 - 1)))
    ends = ((n_q, d_k), (n_k, d_k), (n_k, d_v))
    shapes = (*((*own, *end) for own, end in zip(leads, ends, strict=True)), (*lead, n_q, d_v))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    bias = draw_one(st.sampled_from((None, (n_q, n_k), (n_k,))))
    return arrays, rule, None if bias is None else rng.standard_normal(bias).astype(np.float32)


@settings(max_examples=examples(60), deadline=None)
@given(case=cases())
def test_every_rule(case):
    """Output, log_total and gradients, by panels and by the loops for few queries."""
    (query, key, value, grad), rule, bias = case
    n_q, n_k = query.shape[-2], key.shape[-2]
    mask = rule.dense(n_q, n_k)
    wanted = exact(query, key, value, mask, bias, 0.3)
    for lanes in WAYS:
        arguments = (query, key, value, rule.intervals(n_q, n_k), bias, 0.3, False)
        for few in (False, True):
            for got, right in zip(
                panels.forward(TILES[lanes], arguments, few=few), wanted, strict=True
            ):
                np.testing.assert_allclose(got, right, rtol=3e-6, atol=3e-6)
    leaves = [torch.as_tensor(x).double().requires_grad_() for x in (query, key, value)]
    wide = None if bias is None else torch.as_tensor(bias).double()
    output = attnbook.attention(*leaves, torch.as_tensor(mask), bias=wide, scale=0.3)
    output.backward(torch.as_tensor(grad).double())
    found = attnbook.attention_vjp(
        query, key, value, grad, rule, bias=bias, scale=0.3, impl="packed"
    )
    for got, leaf in zip(found, leaves, strict=True):
        right = leaf.grad.numpy()
        assert got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=2e-5 * (1 + np.abs(right).max()))


def some(n_q, n_k, d=5, leading=()):
    rng = np.random.default_rng(3)
    return [rng.standard_normal((*leading, n, d)).astype(np.float32) for n in (n_q, n_k, n_k)]


def test_tensors_of_bfloat16_and_autograd():
    query, key, value = (torch.as_tensor(x) for x in some(131, 150, 8))
    seen = torch.as_tensor(WINDOW.dense(131, 150))
    halves = [x.bfloat16() for x in (query, key, value)]
    got = attnbook.attention(*halves, mask=WINDOW, impl="packed")
    right = attnbook.attention(*(x.double() for x in halves), mask=seen)
    assert (got.double() - right).abs().max() < 2**-8 * value.abs().max()
    gradients = []
    for dtype, mask, impl in ((torch.float32, WINDOW, "packed"), (torch.float64, seen, "naive")):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (query, key, value)]
        attnbook.attention(*leaves, mask=mask, impl=impl).square().sum().backward()
        gradients.append([x.grad.double() for x in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# What is visited


@numba.njit
def _walk(work, head, first, rows, most):
    """Return the tiles that a panel meets: key, keys, and how far all rows see all."""
    tiles, key, keys = [], 0, 0
    while key + keys < work.n_k:
        key, keys, sure = next_seen(work, head, first, rows, key + keys, work.n_k, most)
        if keys == 0:
            break
        tiles.append((key, keys, sure))
    return tiles


@numba.njit
def _hidden(work, head, first, rows, key, keys):
    scores = np.zeros((keys, rows), np.float32)
    hide_unseen(work, head, first, rows, key, keys, scores)
    return scores, all_seen(work, head, first, rows, key, keys)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), n_q=st.integers(1, 40), n_k=st.integers(1, 150))
def test_the_tiles_of_a_panel(data, n_q, n_k):
    """They hold all that a row sees, begin and end with such a key, and tell what is whole."""
    rule = data.draw(rules(n_k, ()))
    query, key, value = some(n_q, n_k, leading=(2,))
    work = arrange(query, key[0], value[0], rule.intervals(n_q, n_k), None, 1.0, False).work
    first = data.draw(st.integers(0, 2 * n_q - 1))  # of the rows of two groups
    rows, most = data.draw(st.integers(1, 2 * n_q - first)), data.draw(st.integers(1, 64))
    seen = np.tile(rule.dense(n_q, n_k), (2, 1))[first : first + rows]
    left, before = seen.copy(), 0
    for start, n, sure in _walk(work, 0, first, rows, most):
        stop = start + n
        assert before <= start < stop <= start + most
        assert seen[:, start].any()
        assert seen[:, stop - 1].any()
        assert seen[:, start:sure].all()
        assert (sure >= stop) == seen[:, start:stop].all()
        scores, whole = _hidden(work, 0, first, rows, start, n)
        np.testing.assert_array_equal(scores.T == 0, seen[:, start:stop])
        assert whole == (sure >= stop)
        left[:, start:stop] = False
        before = stop
    assert not left.any()


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), n_q=st.integers(1, 40), n_k=st.integers(1, 60))
def test_runs_are_the_tiles_that_are_seen(data, n_q, n_k):
    rule = data.draw(rules(n_k, (2,)) | rules(n_k, ()))
    queries, keys = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    seen = rule.intervals(n_q, n_k)
    runs = runs_of(seen, queries, keys)
    kinds = np.swapaxes(
        seen.tiles(queries, keys).reshape(-1, -(-n_q // queries), runs.n_tiles), 1, 2
    )
    kinds = kinds.reshape(-1, kinds.shape[-1])
    found = np.zeros(kinds.shape, np.int64)
    assert len(runs.offsets) == len(kinds) + 1
    for tile in range(len(kinds)):
        for run in range(runs.offsets[tile], runs.offsets[tile + 1]):
            found[tile, runs.starts[run] : runs.stops[run]] += 1
    np.testing.assert_array_equal(found, kinds > 0)
    # as few runs as there can be
    edges = np.diff(found, axis=1, prepend=0) == 1
    assert len(runs.starts) == len(runs.stops) == edges.sum()


def test_what_no_row_of_a_panel_sees_is_not_read():
    """A weight of 0 times NaN would be NaN: so these tiles are skipped, not hidden."""
    rule = FirstKeys(3) | WINDOW
    for n_q, few in ((2, True), (2, False), (16, False)):  # the keys are one chunk
        query, key, value = some(n_q, 1999)
        unread = ~rule.dense(n_q, 1999).any(axis=0)
        value[unread] = key[unread] = math.nan
        arguments = (query, key, value, rule.intervals(n_q, 1999), None, 0.3, False)
        mask = rule.dense(n_q, 1999)[:, ~unread]
        wanted = exact(query, key[~unread], value[~unread], mask, None, 0.3)
        for got, right in zip(packed.forward(*arguments, few=few), wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=3e-6, atol=3e-6)


def test_tiles_that_are_not_seen_add_nothing_to_gradients():
    rule = Documents.of_lengths([QUERIES, 2 * QUERIES, KEYS])
    query, key, value = some(4 * QUERIES, 4 * QUERIES)
    value[:QUERIES] = key[:QUERIES] = query[:QUERIES] = math.nan
    found = attnbook.attention_vjp(query, key, value, np.ones_like(query), rule, impl="packed")
    for got in found:
        assert np.isnan(got[:QUERIES]).any()
        assert np.isfinite(got[QUERIES:]).all()


def test_the_work_of_a_window_grows_with_its_width_alone():
    n, width = 20_000, 32
    query, key, value = some(n, n, 1)
    visited, tiles = [], []
    for left in (100, 1000):
        seen = (Causal() & SlidingWindow(left)).intervals(n, n)
        work = arrange(query, key, value, seen, None, 1.0, False).work
        found = [_walk(work, 0, first, width, 128) for first in range(0, n, width)]
        visited.append(sum(keys for panel in found for _, keys, _ in panel) * width)
        tiles.append(int((lambda x: (x.stops - x.starts).sum())(runs_of(seen, QUERIES, KEYS))))
        scores = (seen.stops - seen.starts).sum()
        assert visited[-1] <= scores * (left + width) / left
        assert tiles[-1] * QUERIES * KEYS <= scores * (1 + 2 * QUERIES / left)


@pytest.mark.parametrize("backward", [False, True])
def test_no_matrix_is_made(backward):
    n = 20_000
    query, key, value = some(n, n, 4)
    tracemalloc.start()
    rule = Causal() & SlidingWindow(left=50)
    if backward:
        attnbook.attention_vjp(query, key, value, query, rule, impl="packed")
    else:
        attnbook.attention(query, key, value, rule, impl="packed")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * n / 8  # a bit for each score


# Threads


def test_the_threads_change_no_bit(monkeypatch):
    lengths = [500, 20, 300, 7, 170]
    rule = Documents.of_lengths(lengths) & Causal()
    n = sum(lengths)
    query, key, value = some(n, n, leading=(3,))
    found = set()
    for n_cores in (1, 3, 3):
        monkeypatch.setattr("attnbook.arrays.threads._cores", lambda n=n_cores: n)
        got = [attnbook.attention(query, key[0], value[0], rule, impl="packed")]
        got += attnbook.attention_vjp(query, key, value, query, rule, impl="packed")
        found.add(tuple(x.tobytes() for x in got))
    assert len(found) == 1


@pytest.mark.parametrize("n_chunks", [1, 3])
def test_the_longest_go_first(n_chunks):
    """Of three texts with two heads each, that share their keys."""
    rule = FirstKeys([5, 50, 20]) | SlidingWindow(9)
    n_q, n_k, width = 37, 71, 16
    query, key, value = some(n_q, n_k, leading=(3, 2))
    seen = Intervals.with_axes(rule.intervals(n_q, n_k), 1)
    work = arrange(query, key[:, :1], value[:, :1], seen, None, 1.0, False).work
    order = longest_first(work, width, n_chunks)
    dense = np.repeat(rule.dense(n_q, n_k), 2, axis=0).reshape(3, 2 * n_q, n_k)
    bounds = n_k * np.arange(n_chunks + 1) // n_chunks
    counts = np.array(
        [
            [
                [head[i : i + width, a:b].sum() for a, b in itertools.pairwise(bounds)]
                for i in range(0, 2 * n_q, width)
            ]
            for head in dense
        ]
    )
    assert sorted(order) == list(range(counts.size))
    found = counts.ravel()[order].reshape(3, -1)
    assert np.all(np.diff(found, axis=1) <= 0)
    assert list(order.reshape(3, -1)[:, 0] // counts[0].size) == [1, 2, 0]
    assert sequences(work).tolist() == [[0, 0], [1, 1], [2, 2]]


def test_how_many_tiles_a_piece_sees():
    rule = Documents.of_lengths([4, 8]) | FirstKeys([0, 1])
    query, key, value = some(12, 12, leading=(2,))
    seen = rule.intervals(12, 12)
    work = arrange(query, key, value, seen, None, 1.0, False).work
    pieces = seen_in_pieces(work, runs_of(seen, 2, 4), [(0, 1), (1, 3)], [(0, 2), (2, 6)])
    assert pieces.tolist() == [[[2, 0], [0, 8]], [[2, 4], [0, 8]]]
