"""Batches: every example once an epoch, the same at the same step, padded and masked rightly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import Batches, pad, reversal, windows

examples = st.lists(
    st.tuples(st.lists(st.integers(3, 9), min_size=1, max_size=7), st.lists(st.integers(3, 9))),
    min_size=1,
    max_size=23,
)


def cases(function):
    """Run `function` with examples, a batch size and a pool."""
    return given(examples, st.integers(1, 23), st.sampled_from((1, 2, 3, 8)))(function)


def batches_of(pairs, size, pool, **more):
    sources, targets = zip(*pairs, strict=True)
    return Batches(sources, targets, min(size, len(pairs)), 0, pool=pool, **more)


def unpadded(batch):
    """Return the pairs in `batch`, its padding left out by the lengths."""
    rows = zip(batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True)
    return [(tuple(s[:n_s].tolist()), tuple(t[:n_t].tolist())) for s, n_s, t, n_t in rows]


def same(first, second):
    names = ("source", "target", "source_lengths", "target_lengths")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


@cases
def test_every_example_is_in_an_epoch_once(pairs, size, pool):
    batches, size = batches_of(pairs, size, pool), min(size, len(pairs))
    assert len(batches) == (len(pairs) + size - 1) // size
    expected = sorted((tuple(source), (1, *target, 2)) for source, target in pairs)
    for epoch in (0, 1, 5):
        every = [batches(epoch * len(batches) + i) for i in range(len(batches))]
        assert sorted(pair for batch in every for pair in unpadded(batch)) == expected
        sizes = [len(batch) for batch in every]
        assert max(sizes) <= size
        assert max(sizes) - min(sizes) <= 1


@cases
def test_rows_are_padded_at_the_end_and_masked(pairs, size, pool):
    batch = batches_of(pairs, size, pool, pad=17)(0)
    for x, lengths in (
        (batch.source, batch.source_lengths),
        (batch.target, batch.target_lengths),
    ):
        assert x.dtype == lengths.dtype == np.int64
        assert x.shape == (len(batch), max(lengths))
        for row, n in zip(x, lengths, strict=True):
            assert (row[n:] == 17).all()
            assert (row[:n] != 17).all()
    np.testing.assert_array_equal(batch.source_mask[:, 0, 0], batch.source != 17)
    assert batch.source_mask.shape == (len(batch), 1, 1, batch.source.shape[1])
    assert batch.source_mask.dtype == batch.label_mask.dtype == bool
    np.testing.assert_array_equal(batch.label_mask, batch.labels != 17)
    np.testing.assert_array_equal(batch.inputs, batch.target[:, :-1])
    np.testing.assert_array_equal(batch.labels, batch.target[:, 1:])
    assert (batch.inputs[:, 0] == 1).all()
    for labels, mask in zip(batch.labels, batch.label_mask, strict=True):
        assert labels[mask][-1] == 2


@cases
def test_a_step_alone_decides(pairs, size, pool):
    first, second = batches_of(pairs, size, pool), batches_of(pairs, size, pool)
    steps = [0, 3 * len(first), 1, 7, 3 * len(first) + 1, 0]
    for step in steps:
        assert same(first(step), batches_of(pairs, size, pool)(step))
    for step in reversed(steps):
        assert same(first(step), second(step))


def test_epochs_and_seeds_have_orders_of_their_own():
    data = reversal(0, 50, n_symbols=97)
    orders = set()
    for seed in (0, 1, 2):  # seed and epoch are not added: all are different
        batches = Batches(*data, 5, seed)
        for epoch in (0, 1, 2):
            steps = range(epoch * 10, epoch * 10 + 10)
            orders.add(tuple(pair for step in steps for pair in unpadded(batches(step))))
    assert len(orders) == 9
    assert len({frozenset(order) for order in orders}) == 1


def test_near_lengths_are_together():
    sources, targets = reversal(0, 1600, length=(1, 40))

    def padding_share(pool):
        batches = Batches(sources, targets, 20, 0, pool=pool)
        every = [batches(step) for step in range(len(batches))]
        return 1 - sum(b.source_lengths.sum() for b in every) / sum(b.source.size for b in every)

    shares = [padding_share(pool) for pool in (1, 2, 8, 80)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4
    assert shares[2] < 0.1
    assert shares[3] < 0.02


def test_a_pool_of_everything_is_sorted_by_source_then_target():
    rng = np.random.default_rng(0)
    sources = [[3] * n for n in rng.integers(1, 5, size=60)]
    targets = [[3] * n for n in rng.integers(0, 9, size=60)]
    batches = Batches(sources, targets, 5, pool=12)
    spans = []
    for step in range(12):
        batch = batches(step)
        lengths = list(zip(batch.source_lengths, batch.target_lengths, strict=True))
        assert lengths == sorted(lengths)
        spans.append((lengths[0], lengths[-1]))
    assert spans != sorted(spans)  # the batches themselves come in any order
    spans.sort()
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(11))


def test_equal_lengths_are_mixed():
    sources, targets = reversal(0, 400, length=5)
    batches = Batches(sources, targets, 20)
    index = {tuple(source): i for i, source in enumerate(sources)}
    places = [index[tuple(source)] for step in range(20) for source in batches(step).source]
    assert abs(np.corrcoef(places, np.arange(400))[0, 1]) < 0.15


@given(st.integers(1, 11), st.integers(1, 11))
def test_shards_cover_the_batch(n, world):
    if world > n:
        world, n = n, world
    batch = Batches(*reversal(0, n, n_symbols=97, length=(1, 9)), n)(0)
    shards = [batch.shard(rank, world) for rank in range(world)]
    found = sorted(example for shard in shards for example in unpadded(shard))
    assert found == sorted(unpadded(batch))
    assert {shard.source.shape[1] for shard in shards} == {batch.source.shape[1]}
    assert {shard.target.shape[1] for shard in shards} == {batch.target.shape[1]}
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert sum(shard.label_mask.sum() for shard in shards) == batch.label_mask.sum()


def test_language_model_of_windows():
    rows = windows(np.arange(1000) % 31, 12)
    batches = Batches(None, rows, 8, start=None, stop=None)
    assert np.shares_memory(batches._targets, rows)
    batch = batches(2)
    assert batch.source is batch.source_lengths is batch.source_mask is None
    assert batch.target.shape == (8, 13)
    assert batch.label_mask.all()
    np.testing.assert_array_equal(batch.labels, (batch.inputs + 1) % 31)
    assert batch.shard(1, 3).source is None
    seen = np.concatenate([batches(step).target for step in range(len(batches))])
    assert sorted(map(tuple, seen)) == sorted(map(tuple, rows))


def test_language_model_of_sentences():
    batch = Batches(None, [[5, 6], [], [7, 8, 9]], 3)(0)
    assert sorted(batch.target.tolist()) == [[1, 2, 0, 0, 0], [1, 5, 6, 2, 0], [1, 7, 8, 9, 2]]
    assert sorted(batch.target_lengths) == [2, 4, 5]


def test_lengths_and_not_ids_make_the_mask():
    batch = Batches([[0, 0], [0]], [[0], [0, 0]], 2, start=None, stop=9)(0)
    assert sorted(batch.source_mask[:, 0, 0].tolist()) == [[True, False], [True, True]]
    assert sorted(batch.label_mask.tolist()) == [[True, False], [True, True]]


def test_batch_is_fresh_and_frozen():
    sources, targets = reversal(0, 5)
    before = [source.copy() for source in sources]
    batches = Batches(sources, targets, 5)
    batch = batches(0)
    batch.source[:] = batch.target[:] = 99
    assert all(map(np.array_equal, sources, before))
    assert batches(0).source.max() < 99
    with pytest.raises(AttributeError):
        batch.source = None


@given(st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=5), st.sampled_from((0, 11)))
def test_pad(rows, with_id):
    filled, lengths = pad(rows, pad=with_id)
    width = max(map(len, rows), default=0)
    assert filled.dtype == lengths.dtype == np.int64
    assert filled.shape == (len(rows), width)
    assert lengths.tolist() == [len(row) for row in rows]
    assert filled.tolist() == [row + [with_id] * (width - len(row)) for row in rows]


@pytest.mark.parametrize(
    ("start", "stop", "row"), [(7, 8, [7, 1, 2, 8]), (None, 8, [1, 2, 8]), (0, None, [0, 1, 2])]
)
def test_start_and_stop_may_be_other_ids_or_absent(start, stop, row):
    assert Batches(None, [[1, 2]], 1, start=start, stop=stop)(0).target.tolist() == [row]
