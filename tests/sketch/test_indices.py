"""Every index of signatures against a dict of lists, before and after every merge."""

import functools
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sketch_gpu import GPUS, opened
from slow_sketch import buckets

from attnbook.hashing.robin_hood import (
    displacement_limit,
    home_slot,
    slots_for,
)
from attnbook.sketch import bucket_index, bucket_tables, sorted_index
from attnbook.sketch import index as index_module
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.bucket_tables import LOAD_FACTOR, LOW, bits_for, scrambled, unscrambled
from attnbook.sketch.index import MOST_ROWS, check_rows
from attnbook.sketch.sorted_index import SortedIndex

INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Kind:
    """An index, and the ways to and from its arrays."""

    make: Any
    to: Any = np.asarray
    host: Any = np.asarray


@pytest.fixture(scope="module", params=["sorted", "numba", *GPUS])
def kind(request):
    name = request.param
    if name == "sorted":
        yield Kind(SortedIndex)
    elif name == "numba":
        pytest.importorskip("numba")
        yield Kind(lambda n_tables: BucketIndex(n_tables, seed=7))
    else:
        from attnbook.sketch.cuda_index import CudaIndex

        with opened(name) as gpu:
            yield Kind(CudaIndex, gpu.to, gpu.host)


class Model:
    """What an index does, by a dict of its rows."""

    def __init__(self):
        self.rows, self.n_rows = {}, 0

    def add(self, signatures):
        for signature in np.asarray(signatures).tolist():
            self.rows[self.n_rows] = signature
            self.n_rows += 1
        return list(range(self.n_rows - len(signatures), self.n_rows))

    def remove(self, rows):
        for row in np.asarray(rows).tolist():
            del self.rows[row]

    def lookup(self, signatures):
        return buckets(signatures, self.rows, self.rows)


def as_lists(rows, found):
    """What a look-up found, without the padding, which is 0 and behind the rows."""
    assert rows.shape == found.shape
    assert not np.any(rows[~found])
    assert np.array_equal(found, np.sort(found, axis=-1)[..., ::-1])
    assert rows.shape[-1] == np.max(np.sum(found, axis=-1), initial=0)  # as wide as it must be
    return [
        [r[f].tolist() for r, f in zip(*query, strict=True)]
        for query in zip(rows, found, strict=True)
    ]


def check_same(kind, index, model, queries):
    """Check everything that an index says against the model."""
    assert index.n == len(model.rows)
    if model.n_rows or not isinstance(index, SortedIndex):
        live, stored = (kind.host(x) for x in (index.live(), index.signatures()))
        assert live.dtype == stored.dtype == np.int64
        assert live.tolist() == list(model.rows)
        assert stored.tolist() == list(model.rows.values())
        for t in range(index.n_tables):
            sizes = np.unique([row[t] for row in model.rows.values()], return_counts=True)[1]
            assert sorted(kind.host(index.bucket_sizes(t)).tolist()) == sorted(sizes.tolist())
    expected = model.lookup(queries)
    rows, found = (kind.host(x) for x in index.lookup(kind.to(queries)))
    assert rows.dtype == np.int64
    assert as_lists(rows, found) == expected
    counts = kind.host(index.counts(kind.to(queries)))
    assert counts.dtype == np.int64
    assert counts.tolist() == [[len(bucket) for bucket in query] for query in expected]


OPERATION = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 9)),
    st.tuples(st.just("add"), st.integers(0, 60)),
    st.tuples(st.just("remove"), st.floats(0, 0.5)),
    st.tuples(st.just("merge"), st.none()),
)


def change(kind, index, model, operation, amount, rng):
    """Do the same with an index and with the model."""
    if operation == "add":
        signatures = rng.integers(-4, 4, size=(amount, index.n_tables))
        rows = kind.host(index.add(kind.to(signatures)))
        assert rows.dtype == np.int64
        assert rows.tolist() == model.add(signatures)
    elif operation == "remove":
        rows = rng.permutation(np.array(list(model.rows), dtype=np.int64))
        rows = rows[: int(amount * len(rows))]
        index.remove(kind.to(rows))
        model.remove(rows)
    else:
        index.merge()


@pytest.mark.parametrize("merged_from", [0, 20, 1024])
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operations=st.lists(OPERATION, max_size=9),
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    seed=st.integers(0, 99),
)
def test_any_sequence_of_changes_matches_a_dict(kind, merged_from, operations, shape, seed):
    """The shape is the number of tables, or it and how many buckets of each a query asks for."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bucket_index, sorted_index):
            patch.setattr(module, "MERGED_FROM", merged_from)
        rng = np.random.default_rng(seed)
        index, model = kind.make(shape[0]), Model()
        queries = rng.integers(-4, 4, size=(5, *shape))
        queries = queries[..., :1] if index.one_probe and len(shape) == 2 else queries
        for operation, amount in operations:
            change(kind, index, model, operation, amount, rng)
            check_same(kind, index, model, queries)


def test_a_sorted_index_takes_every_library(library):
    kind = Kind(SortedIndex, library.array, lambda x: library.numpy(x))
    rng, index, model = np.random.default_rng(4), SortedIndex(2), Model()
    queries = rng.integers(-4, 4, size=(7, 2))
    for operation, amount in [("add", 0), ("add", 20), ("add", 11), ("remove", 0.2), ("merge", 0)]:
        change(kind, index, model, operation, amount, rng)
        check_same(kind, index, model, queries)
    before = index.memory_bytes
    change(kind, index, model, "add", 31, rng)
    assert index.memory_bytes > before
    for result in (index.live(), index.signatures(), index.lookup(library.array(queries))[0]):
        assert library.same_kind(result, library.array(queries))
    index.remove(index.live())
    model.remove(list(model.rows))
    check_same(kind, index, model, queries)


def test_signatures_of_any_size_and_sign(kind):
    extremes = np.array([0, -1, INT64.max, INT64.min, 256, 2**62, -(2**31)])
    signatures = np.stack([extremes, extremes[::-1]], axis=1)
    index, model = kind.make(2), Model()
    for _ in range(3):
        index.add(kind.to(signatures))
        model.add(signatures)
        check_same(kind, index, model, signatures)
        index.merge()


def test_a_window_that_slides_keeps_the_index_small(kind):
    rng = np.random.default_rng(2)
    index, model, memory = kind.make(2), Model(), []
    for step in range(60):
        signatures = rng.integers(0, 40, size=(101, 2))
        rows = kind.host(index.add(kind.to(signatures)))
        model.add(signatures)
        if step >= 5:
            old = np.arange(101 * (step - 5), 101 * (step - 4))
            index.remove(old)
            model.remove(old)
        assert index.n == min(step + 1, 5) * 101
        memory.append(index.memory_bytes)
        if step % 13 == 0:
            check_same(kind, index, model, signatures[:3])
    assert rows[-1] == 60 * 101 - 1  # numbers are not given twice
    if not hasattr(index, "stored"):  # on a GPU all signatures stay
        assert max(memory[30:]) <= 1.5 * max(memory[:30])


def test_empty_indices_and_empty_batches(kind):
    index, nothing = kind.make(3), np.zeros((0, 3), dtype=np.int64)
    queries = np.arange(6).reshape(2, 3)
    check_same(kind, index, Model(), queries)
    assert index.add(kind.to(nothing)).shape == (0,)
    index.remove(np.zeros(0, dtype=np.int64))
    index.merge()
    check_same(kind, index, Model(), queries)
    index.add(kind.to(queries))
    rows, found = index.lookup(kind.to(nothing))
    assert rows.shape == found.shape == (0, 3, 0)
    for _ in range(2):
        index.remove(index.live())
        check_same(kind, index, Model(), queries)
        index.merge()
    assert kind.host(index.add(kind.to(queries))).tolist() == [2, 3]


def test_all_rows_in_one_bucket(kind):
    n, index = 5_021, kind.make(2)
    index.add(kind.to(np.full((n, 2), 9)))
    for _ in range(3):
        index.add(kind.to(np.full((1, 2), 9)))
    rows, found = (kind.host(x) for x in index.lookup(kind.to(np.full((1, 2), 9))))
    assert rows.tolist() == [[list(range(n + 3))] * 2]
    assert found.all()
    index.remove(np.arange(5))
    found = index.lookup(kind.to(np.array([[9, 8]])))
    assert kind.host(found[0]).tolist() == [[list(range(5, n + 3)), [0] * (n - 2)]]
    assert kind.host(index.bucket_sizes(1)).tolist() == [n - 2]


def test_rows_to_remove_may_be_a_list_or_of_any_library(kind, library):
    index = kind.make(1)
    index.add(kind.to(np.arange(9)[:, np.newaxis]))
    for rows in ([8, 2], [], np.array([0], dtype=np.uint64)):
        index.remove(rows)
    index.remove(library.array(np.array([4])))
    index.remove(library.array(np.array([1], dtype=np.int32)))
    live = index.live()
    assert kind.host(live).tolist() == [3, 5, 6, 7]
    live[...] = 0
    assert kind.host(index.live()).tolist() == [3, 5, 6, 7]


def test_signatures_belong_to_the_caller(kind):
    signatures = kind.to(np.arange(6).reshape(3, 2))
    index, asked = kind.make(2), kind.to(np.array([[0, 1], [99, 99]]))
    for counts in ([[1, 1], [0, 0]], [[2, 2], [0, 0]]):
        index.add(signatures)
        kept = signatures + 0
        signatures[...] = 99
        assert kind.host(index.counts(asked)).tolist() == counts
        index.merge()
        assert kind.host(index.counts(asked)).tolist() == counts
        signatures = kept


def test_signatures_may_be_read_only_or_strided(kind):
    signatures = np.arange(24).reshape(3, 8)[:, ::2].astype(np.int64)[::-1]
    for given_ in (signatures, np.asfortranarray(signatures)):
        given_.flags.writeable = False
        index = kind.make(4)
        index.add(kind.to(given_))
        rows = kind.host(index.lookup(kind.to(given_))[0])
        assert rows.tolist() == [[[i]] * 4 for i in range(3)]


def test_one_more_row_does_not_sort_the_others(monkeypatch):
    sizes, sort = [], sorted_index.buckets_of

    def counted(signatures):
        sizes.append(len(signatures))
        return sort(signatures)

    monkeypatch.setattr(sorted_index, "buckets_of", counted)
    index, query = SortedIndex(2), np.zeros((1, 2), dtype=np.int64)
    rng = np.random.default_rng(0)
    for n, expected in ((8001, [8001] * 2), (1, [1] * 2), (1, [2] * 2), (1999, [10002] * 2)):
        index.add(rng.integers(9, size=(n, 2)))
        index.lookup(query)
        index.lookup(query)
        assert sizes == expected
        sizes.clear()
    index.add(query)
    index.remove([3, 9000])
    assert 10_002 in index.lookup(query)[0]
    assert sizes == [1, 1]


def test_removed_rows_leave_the_tables(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(bucket_index, "MERGED_FROM", 20)
    index = BucketIndex(2)
    index.add(np.arange(200).reshape(100, 2))
    stands = []
    for rows in (np.arange(20), np.arange(20, 25), np.array([99])):
        index.remove(rows)
        stands.append((index.flat()["entries"].shape[1], index.flat()["n_dead"]))
    assert stands == [(100, 20), (100, 25), (74, 0)]
    index.remove([50])
    index.merge()
    assert index.flat()["entries"].shape == (2, 73)
    assert index.flat()["rows"].tolist() == [row for row in range(25, 99) if row != 50]


# The arrays beneath


SALT = 0x1234567_89ABCDEF


def check_tables(given_, salt, made):
    """Compare with a dictionary: each cell has its rows, in the order of their entries."""
    starts, entries = made
    n, n_tables = given_.shape
    bits = bits_for(n)
    assert n <= 2**bits <= max(2, 2 * n)
    assert (starts.shape, starts.dtype) == ((n_tables, 2**bits + 1), np.int32)
    assert (entries.shape, entries.dtype) == ((n_tables, n), np.int64)
    for t in range(n_tables):
        cells = {}
        for row, signature in enumerate(given_[:, t].tolist()):
            whole = scramble(signature, salt)
            rest = whole % 2 ** (64 - bits) - (2 ** (64 - bits) if whole >> (63 - bits) & 1 else 0)
            cells.setdefault(whole >> (64 - bits), []).append((rest, row))
        at = 0
        for cell in range(2**bits):
            assert starts[t, cell] == at
            for rest, row in sorted(cells.get(cell, [])):
                assert entries[t, at] == rest * 2**bits + row
                at += 1
        assert starts[t, -1] == at == n


def scramble(x, salt):
    """SplitMix64's finalizer in Python's integers."""
    x = (x ^ salt) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@given(st.lists(st.integers(int(INT64.min), int(INT64.max)), max_size=9), st.integers(-9, 9))
def test_scrambling_can_be_undone(values, salt):
    x = np.array(values, dtype=np.int64)
    mixed = scrambled(x, salt)
    assert [int(m) % 2**64 for m in mixed] == [scramble(value, salt) for value in values]
    assert unscrambled(mixed, salt).tolist() == values


@pytest.fixture(params=[None, 3])
def build(request):
    """The build of tables, as it chooses its threads and by three of them."""
    pytest.importorskip("numba")
    from attnbook.sketch.numba_build import build_tables

    return functools.partial(build_tables, n_threads=request.param)


@pytest.mark.parametrize("n_different", [1, 61, 10**4])
def test_tables_of_many_rows_are_those_of_a_dictionary(build, n_different):
    rng = np.random.default_rng(5)
    drawn = rng.integers(INT64.min, INT64.max, size=n_different)
    signatures = rng.choice(drawn, size=(5003, 2))
    check_tables(signatures, SALT, build(signatures, SALT))


@pytest.mark.parametrize("n_different", [70, 10**6])
def test_tables_stand_signatures_that_crowd(build, n_different):
    """All of them are in one cell, or in two: their first bits are the same."""
    rng = np.random.default_rng(6)
    crowded = rng.integers(0, n_different, size=(1009, 1)) + 2**40
    signatures = unscrambled(crowded, SALT)
    signatures[::7] = unscrambled(crowded[::7] | -(2**62), SALT)
    check_tables(signatures, SALT, build(signatures, SALT))
    index, model = BucketIndex(1), Model()
    signatures = unscrambled(crowded, index.flat()["salt"])
    index.add(signatures)
    model.add(signatures)
    check_same(Kind(None), index, model, signatures[:20])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(-5, 5))
def test_tables_of_any_signatures(build, values, salt):
    signatures = np.array([values, values[::-1]], dtype=np.int64).T
    check_tables(signatures, salt, build(signatures, salt))


def test_signatures_in_any_memory_order_give_the_same_tables(build):
    signatures = np.random.default_rng(8).integers(0, 500, size=(997, 3))
    wide = np.zeros((997, 6), dtype=np.int64)
    wide[:, ::2] = signatures
    fixed = signatures.copy()
    fixed.flags.writeable = False
    expected = build(signatures, SALT)
    for other in (np.asfortranarray(signatures), wide[:, ::2], fixed):
        for a, b in zip(build(other, SALT), expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_different", [0, 1, 6, 20, 10**6])
@pytest.mark.parametrize("n_removed", [0, 31])
def test_a_gpu_sorts_all_tables_at_once(gpu, n_different, n_removed):
    rng = np.random.default_rng(3)
    n, n_tables = (503 if n_different else 0), 3
    signatures = rng.integers(-n_different, n_different + 1, size=(n, n_tables))
    index = gpu.index(signatures, seed=3)
    removed = rng.permutation(n)[:n_removed]
    index.remove(removed)
    tables = index.tables
    starts, entries = gpu.host(tables.starts), gpu.host(tables.entries).tolist()
    expected = sorted(
        [scramble(signature, tables.salt + t * 0x9E3779B97F4A7C15), t * 2**31 + row]
        for row in range(n)
        if row not in removed
        for t, signature in enumerate(signatures[row].tolist())
    )
    assert entries == expected
    assert tables.bits >= 1
    if expected:
        assert len(expected) / 2 < 2**tables.bits <= max(2, len(expected))
    cells = [scrambled >> (64 - tables.bits) for scrambled, _ in expected]
    assert starts.tolist() == np.searchsorted(cells, range(2**tables.bits + 1)).tolist()


def test_equal_bits_of_two_tables_are_told_apart_on_a_gpu(gpu):
    """The salts of two tables may send different signatures to the same bits."""
    index = gpu.index(np.zeros((0, 2)))
    salts = [index.tables.salt, (index.tables.salt + 0x9E3779B97F4A7C15) % 2**64]
    apart = (salts[0] ^ salts[1]) - 2**64 * (salts[0] ^ salts[1] >= 2**63)
    signatures = np.array([[5, 7], [6, 5 ^ apart], [5, 5 ^ apart], [5, 9]])
    index.add(gpu.to(signatures, np.int64))
    bits = gpu.host(index.tables.entries)[:, 0]
    assert np.unique(bits, return_counts=True)[1].max() == 5  # 3 of a table and 2 of the other
    model = Model()
    model.add(signatures)
    check_same(Kind(None, gpu.to, gpu.host), index, model, signatures)


def test_flat_arrays_are_as_written():
    pytest.importorskip("numba")
    signatures = np.random.default_rng(8).integers(-30, 30, size=(1_500, 2))
    index = BucketIndex(2, seed=3)
    index.add(signatures[:1_400])
    index.add(signatures[1_400:])
    index.remove(np.array([4, 1_450]))
    flat = types.SimpleNamespace(**index.flat())
    assert (flat.side_first, flat.n_side, flat.n_dead, flat.n_rows) == (1_400, 100, 2, 1_500)
    assert np.flatnonzero(~flat.alive[:1_500]).tolist() == [4, 1_450]
    check_tables(signatures[:1_400], flat.salt, (flat.starts, flat.entries))
    assert (len(flat.rows), flat.bits) == (0, 11)
    for t in range(2):
        chains = flat.side_slots[t][flat.side_slots[t][:, 2] >= 0]
        assert sorted(chains[:, 0]) == sorted(set(signatures[1_400:, t].tolist()))
        for key, value, _ in chains.tolist():
            links, link = [], value >> 31
            while link >= 0:
                links.append(link)
                link = int(flat.side_next[t, link])
            assert links == np.flatnonzero(signatures[1_400:, t] == key).tolist()
            assert value & LOW == links[-1]


def test_streamed_signatures_chosen_to_crowd_get_a_fresh_hash():
    pytest.importorskip("numba")
    index = BucketIndex(1)
    mixer, n_slots = index.flat()["mixer"], slots_for(700, LOAD_FACTOR)
    candidates = np.arange(1400 * n_slots)
    same_home = home_slot(candidates, mixer, n_slots) == n_slots // 2
    signatures = candidates[same_home][:700, np.newaxis]
    farthest = 0
    for signature in signatures:
        index.add(signature[np.newaxis])
        farthest = max(farthest, index.flat()["side_slots"][:, :, 2].max())
    assert farthest <= displacement_limit(slots_for(1400, 0.75), LOAD_FACTOR)
    assert not np.array_equal(index.flat()["mixer"], mixer)
    for _ in range(2):
        assert (index.counts(signatures) == 1).all()
        index.merge()


def test_signatures_that_crowd_into_a_cell_are_told_apart_on_a_gpu(gpu):
    n = 151
    index = gpu.index(np.zeros((0, 1)))
    one_cell = np.arange(n)[:, None] + 2**40  # the same first bits
    signatures = unscrambled(one_cell, index.tables.salt)
    index.add(gpu.to(np.repeat(signatures, 2, axis=0)))
    assert np.diff(gpu.host(index.tables.starts)).max() == 2 * n
    rows, found = (gpu.host(x) for x in index.lookup(gpu.to(signatures)))
    np.testing.assert_array_equal(rows[:, 0, :], np.arange(2 * n).reshape(n, 2))
    assert found.all()
    assert not gpu.host(index.counts(gpu.to(signatures + 1))).any()


def test_memory_on_a_gpu_is_counted(gpu):
    signatures = np.random.default_rng(0).permutation(503 * 2).reshape(503, 2)
    empty, index = gpu.index(signatures[:0]), gpu.index(signatures)
    for each in (empty, index):
        each.merge()
    more = 503 * (2 * 8 + 1 + 2 * 16) + 8 * (2**9 - 2)  # with a directory of 2⁹ cells
    assert index.memory_bytes == empty.memory_bytes + more


# What is refused


def test_an_index_that_is_full_stays_as_it_was(monkeypatch):
    pytest.importorskip("numba")
    assert np.iinfo(np.int32).max == MOST_ROWS == LOW  # a chain packs two such numbers
    check_rows(MOST_ROWS)
    with pytest.raises(ValueError, match=r"at most 2\*\*31 - 1 rows in all, got 2147483648"):
        check_rows(MOST_ROWS + 1)
    monkeypatch.setattr(index_module, "MOST_ROWS", 5)
    index, first = BucketIndex(1), np.array([[1], [2], [1]])
    index.add(first)
    with pytest.raises(ValueError, match="rows in all, got 6"):
        index.add(first)
    assert index.add(first[:2]).tolist() == [3, 4]


WRONG_SIGNATURES = [
    *((np.full((1, 2), x), TypeError, "must have dtype int64, got float64") for x in (0.0, np.nan)),
    (np.zeros((0, 2)), TypeError, "must have dtype int64, got float64"),
    (np.zeros((1, 2), dtype=np.int32), TypeError, "must have dtype int64, got int32"),
    (np.zeros((1, 3), dtype=np.int64), ValueError, r"must have shape \(n, 2\), got \(1, 3\)"),
    (np.zeros(2, dtype=np.int64), ValueError, r"must have shape \(n, 2\), got \(2,\)"),
]
ROWS = "must be in the index, each named once, got "
WRONG_ROWS = [
    ([1.0], TypeError, "must be ints, got float64"),
    *(([x], TypeError, "must be ints, got float64") for x in (np.nan, np.inf, -np.inf)),
    (np.full(3, np.nan, np.float16), TypeError, "must be ints, got float16"),
    (np.array([None]), TypeError, "must be ints, got object"),
    (np.array(["NaT"], "datetime64[D]"), TypeError, "must be ints, got datetime64"),
    (np.array([True]), TypeError, "must be ints, got bool"),
    (1, ValueError, r"must have shape \(m,\), got \(\)"),
    ([[1], [2, 3]], ValueError, "must be ints in rows of one length, got others"),
    (np.array([[1]]), ValueError, r"must have shape \(m,\), got \(1, 1\)"),
    (np.array([2, 9]), ValueError, ROWS + "9"),
    (np.array([-1]), ValueError, "must be at least 0, got -1"),
    (np.array([2, 1, 2]), ValueError, ROWS + "2"),
    (np.array([0, 1]), ValueError, ROWS + "0"),
    (np.array([2**64 - 1], dtype=np.uint64), ValueError, r"must be at most 2\*\*63 - 1"),
    (np.array([2**63 - 1], dtype=np.uint64), ValueError, ROWS + str(2**63 - 1)),
]


def test_an_index_refuses_what_does_not_fit_and_stays_as_it_was(kind):
    index, model, good = kind.make(2), Model(), np.arange(8).reshape(4, 2)
    with pytest.raises(ValueError, match=ROWS + "0"):
        index.remove([0])
    index.add(kind.to(good))
    model.add(good)
    index.remove(np.array([0], dtype=np.uint8))
    model.remove([0])
    for call in (index.add, index.lookup, index.counts):
        with pytest.raises(TypeError, match=r"signatures must be an? .*array.*, got list"):
            call([[1, 2]])
        for signatures, error, message in WRONG_SIGNATURES:
            with pytest.raises(error, match=f"signatures {message}"):
                call(kind.to(signatures))
    for _ in range(2):
        for rows, error, message in WRONG_ROWS:
            with pytest.raises(error, match=f"rows {message}"):
                index.remove(rows)
        check_same(kind, index, model, good)
        index.merge()
    with pytest.raises(ValueError, match="ids must be in the index, each named once, got 7"):
        index.remove([7], name="ids")
    if index.one_probe:
        with pytest.raises(ValueError, match="must be of one bucket a table on a GPU, got 3"):
            index.lookup(kind.to(np.zeros((7, 2, 3), dtype=np.int64)))
    for t, message in ((2, "t must be below the number of tables, 2, got 2"), (-1, "t must be at")):
        with pytest.raises(ValueError, match=message):
            index.bucket_sizes(t)
    for n_tables in (0, -2, 1.5, "2", True, 2**31 - 1):
        with pytest.raises((TypeError, ValueError), match="n_tables must be "):
            kind.make(n_tables)


def test_arrays_of_another_library_are_refused():
    torch = pytest.importorskip("torch")
    pytest.importorskip("numba")
    for index, message in (
        (BucketIndex(1), "signatures must be a NumPy array, got an array"),
        (SortedIndex(1), r"same library as the index \(numpy\), got torch"),
    ):
        index.add(np.array([[1]]))
        for call in (index.add, index.lookup, index.counts):
            with pytest.raises(TypeError, match=message):
                call(torch.tensor([[1]]))
    for call in (SortedIndex(1).live, SortedIndex(1).signatures):
        with pytest.raises(ValueError, match="the index must have had rows, got one that is new"):
            call()


def test_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    bucket_tables.functions.cache_clear()
    with pytest.raises(ImportError, match="Numba: pip install numba"):
        BucketIndex(2)
