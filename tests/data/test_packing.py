"""Texts packed into rows: nothing is lost, nothing is cut that fits, and little is padding."""

import itertools
import math

import numpy as np
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

from attnbook import data
from attnbook.data import PackedBatches
from attnbook.data.packing import best_fit


def texts_of(batch):
    """Return the texts of all rows, and what stands in front of and behind each label."""
    texts, pairs = [], []
    for row, numbers, length in zip(
        batch.target, batch.target_documents, batch.target_lengths, strict=True
    ):
        for number in np.unique(numbers[:length]):
            texts.append(tuple(row[:length][numbers[:length] == number].tolist()))
    for inputs, labels, counts in zip(batch.inputs, batch.labels, batch.label_mask, strict=True):
        pairs += zip(inputs[counts].tolist(), labels[counts].tolist(), strict=True)
    return texts, pairs


@given(
    st.lists(st.lists(st.integers(3, 9), min_size=2, max_size=20), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_every_token_is_there_once(texts, length, batch_size, epoch):
    n_rows = len(PackedBatches(texts, 1, length, start=None, stop=None))
    batch_size = min(batch_size, n_rows)
    batches = PackedBatches(texts, batch_size, length, seed=5, start=None, stop=None)
    assert len(batches) == math.ceil(n_rows / batch_size)
    found = [batches(epoch * len(batches) + i) for i in range(len(batches))]
    pieces = [piece for batch in found for piece in texts_of(batch)[0]]
    want = [
        tuple(text[i : i + length + 1]) for text in texts for i in range(0, len(text) - 1, length)
    ]
    assert sorted(pieces) == sorted(want)
    pairs = [pair for batch in found for pair in texts_of(batch)[1]]
    assert sorted(pairs) == sorted(pair for text in texts for pair in itertools.pairwise(text))
    padding = sum(batch.target.size - batch.target_lengths.sum() for batch in found)
    total = sum(batch.target.size for batch in found)
    assert abs(batches.padding - padding / total) < 1e-12
    for batch in found:
        assert batch.target.shape[1] == length + 1
        assert batch.documents.is_whole
        rows = len(batch)
        assert n_rows // len(batches) <= rows <= math.ceil(n_rows / len(batches))
        shards = [batch.shard(i, rows) for i in range(rows)]
        stacked = np.concatenate([shard.target_documents for shard in shards])
        np.testing.assert_array_equal(stacked, batch.target_documents)


@given(st.lists(st.integers(1, 10), max_size=40), st.integers(10, 25))
def test_best_fit(lengths, room):
    """Each text goes into the fullest row with room for it, by a loop over all rows."""
    rows = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        free = [room - sum(lengths[j] for j in row) for row in rows]
        fits = [f for f in free if f >= lengths[i]]
        if not fits:
            rows.append([])
            free.append(room)
            fits = [room]
        rows[free.index(min(fits))].append(i)
    assert best_fit(lengths, room) == rows


def test_order_depends_on_seed_and_epoch_alone():
    texts = [np.full(n, 3 + n) for n in range(2, 30)]
    one, again, other = (PackedBatches(texts, 2, 40, seed=s) for s in (0, 0, 1))
    n = len(one)
    orders = [[b(i).target.tolist() for i in range(n)] for b in (one, other)]
    assert orders[0] == [again(i).target.tolist() for i in reversed(range(n))][::-1]
    assert orders[0] != orders[1]
    later = [one(n + i).target.tolist() for i in range(n)]
    assert later != orders[0]
    assert sorted(itertools.chain(*later)) == sorted(itertools.chain(*orders[0]))


def test_little_is_padding():
    rng = np.random.default_rng(0)
    texts = [np.full(n, 3) for n in rng.integers(10, 200, size=500)]
    assert PackedBatches(texts, 8, 512).padding < 0.01


def test_start_and_stop():
    batch = PackedBatches([[7, 8], [9]], 1, 7)(0)
    np.testing.assert_array_equal(batch.target, [[1, 7, 8, 2, 1, 9, 2, 0]])
    np.testing.assert_array_equal(batch.target_documents, [[0, 0, 0, 0, 1, 1, 1, 2]])
    np.testing.assert_array_equal(batch.label_mask, [[1, 1, 1, 0, 1, 1, 0]])
    np.testing.assert_array_equal(batch.documents.positions, [[0, 1, 2, 3, 0, 1, 2]])
    assert batch.source is None
    assert batch.source_mask is None
    assert data.Batches(None, [[7, 8]], 1)(0).documents is None


def batch(documents):
    return data.Batch(None, np.zeros((1, 3), int), None, [3], documents)


ERRORS = """
PackedBatches([], 1, 4)
    ValueError: targets must hold at least 1 sequence, got none
PackedBatches([[3, 4], [3]], 1, 4, start=None, stop=None)
    ValueError: targets must hold at least 2 ids each, so that there is one to predict, got 1 in
    targets[1]
PackedBatches([[3], []], 1, 4, stop=None)
    ValueError: targets must hold at least 1 ids each, so that there is one to predict, got 0 in
    targets[1]
PackedBatches([[3, 4], [5, 6]], 2, 10)
    ValueError: batch_size must be at most the rows, 1, got 2
PackedBatches([[3, 4]], 0, 10)
    ValueError: batch_size must be at least 1, got 0
PackedBatches([[3, 4]], 1, 0)
    ValueError: length must be at least 1, got 0
PackedBatches([[3, -4]], 1, 4)
    ValueError: targets[0] must be at least 0, got -4
PackedBatches([[3, 0.5]], 1, 4)
    TypeError: targets[0] must be ints, got float64
PackedBatches(3, 1, 4)
    TypeError: targets must be a sequence of sequences of ints, got int
batch(np.zeros((1, 2), int))
    ValueError: target_documents must have the shape of target, (1, 3), got (1, 2)
batch(np.full((1, 3), -1))
    ValueError: target_documents must be at least 0, got -1
"""
test_error = error_test(ERRORS, globals())
