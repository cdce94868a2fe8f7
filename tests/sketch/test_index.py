"""Both indexes against a dict of lists, before and after every merge."""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbook.hashing.robin_hood import displacement_limit, draw_mixer, home_slot, slots_for
from attnbook.sketch import bucket_index as index_module
from attnbook.sketch import bucket_tables as _build
from attnbook.sketch.bucket_index import BucketIndex
from attnbook.sketch.bucket_tables import LOW
from attnbook.sketch.index import MOST_ROWS, check_rows
from attnbook.sketch.sorted_index import SortedIndex

MAKERS = {
    "sorted": SortedIndex,
    "reference": lambda n_tables: BucketIndex(n_tables, seed=7),
    "numba": lambda n_tables: BucketIndex(n_tables, seed=7, impl="numba"),
}


class Model:
    """What an index does, by a dict of its rows."""

    def __init__(self):
        self.rows, self.n_rows = {}, 0

    def add(self, signatures):
        for signature in signatures.tolist():
            self.rows[self.n_rows] = signature
            self.n_rows += 1
        return list(range(self.n_rows - len(signatures), self.n_rows))

    def lookup(self, signatures, max_bucket=None):
        return [
            [
                [row for row in self.rows if self.rows[row][t] == signature][:max_bucket]
                for t, signature in enumerate(query)
            ]
            for query in signatures.tolist()
        ]


@pytest.fixture(params=list(MAKERS), scope="module")
def make(request):
    if request.param == "numba":
        pytest.importorskip("numba")
    return MAKERS[request.param]


def as_lists(rows, found):
    """What a look-up found, without the padding, which is 0 and behind the rows."""
    assert rows.shape == found.shape
    assert not np.any(rows[~found])
    assert np.array_equal(found, np.sort(found, axis=-1)[..., ::-1])
    # as wide as it must be
    assert rows.shape[-1] == np.max(np.sum(found, axis=-1), initial=0)
    return [
        [r[f].tolist() for r, f in zip(*query, strict=True)]
        for query in zip(rows, found, strict=True)
    ]


def check_same(index, model, queries):
    """Check everything that an index says against the model."""
    assert index.n == len(model.rows)
    if model.n_rows or isinstance(index, BucketIndex):
        assert index.live().dtype == np.int64
        assert index.live().tolist() == list(model.rows)
        stored = index.signatures()
        assert stored.dtype == np.int64
        assert stored.tolist() == list(model.rows.values())
    for max_bucket in (None, 1, 3):
        expected = model.lookup(queries, max_bucket)
        rows, found = index.lookup(queries, max_bucket)
        assert rows.dtype == np.int64
        assert as_lists(rows, found) == expected
        counts = index.counts(queries, max_bucket)
        assert counts.dtype == np.int64
        assert counts.tolist() == [[len(bucket) for bucket in query] for query in expected]


OPERATION = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 9)),
    st.tuples(st.just("add"), st.integers(0, 60)),
    st.tuples(st.just("remove"), st.floats(0, 0.5)),
    st.tuples(st.just("merge"), st.none()),
)


@pytest.mark.parametrize("merged_from", [0, 20, 1024])
@settings(max_examples=25)
@given(
    operations=st.lists(OPERATION, max_size=9), n_tables=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_any_sequence_of_changes_matches_a_dict(make, merged_from, operations, n_tables, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "MERGED_FROM", merged_from)
        rng = np.random.default_rng(seed)
        index, model = make(n_tables), Model()
        queries = rng.integers(-4, 4, size=(5, n_tables))
        for operation, amount in operations:
            if operation == "add":
                signatures = rng.integers(-4, 4, size=(amount, n_tables))
                rows = index.add(signatures)
                assert rows.dtype == np.int64
                assert rows.tolist() == model.add(signatures)
            elif operation == "remove":
                rows = np.array(list(model.rows), dtype=np.int64)
                rows = rng.permutation(rows)[: int(amount * len(rows))]
                index.remove(rows)
                for row in rows.tolist():
                    del model.rows[row]
            else:
                index.merge()
            check_same(index, model, queries)


def test_signatures_of_any_size_and_sign(make):
    extremes = np.array([0, -1, 2**63 - 1, -(2**63), 256, 2**62, -(2**31)])
    signatures = np.stack([extremes, extremes[::-1]], axis=1)
    index, model = make(2), Model()
    for _ in range(3):
        index.add(signatures)
        model.add(signatures)
        check_same(index, model, signatures)
        index.merge()
        check_same(index, model, signatures)


def test_streamed_rows_are_found_at_once_and_after_every_merge(make):
    rng = np.random.default_rng(1)
    signatures = rng.integers(0, 500, size=(6_007, 3))
    index, whole, start = make(3), SortedIndex(3), 0
    whole.add(signatures)
    sizes = [1, 2, 1, 30, 1_100, 7, 900, 100, 1, 2_500, 300, 61, 400, 603, 1]
    assert sum(sizes) == len(signatures)
    for size in sizes:
        rows = index.add(signatures[start : start + size])
        start += size
        assert rows.tolist() == list(range(start - size, start))
        assert index.counts(signatures[start - 1 : start]).min() >= 1
        assert index.n == start
    for got, expected in zip(index.lookup(signatures), whole.lookup(signatures), strict=True):
        assert np.array_equal(got, expected)
    for t in range(3):
        expected = np.unique(signatures[:, t], return_counts=True)[1]
        assert np.array_equal(index.bucket_sizes(t), expected)


def test_a_window_that_slides_keeps_the_index_small(make):
    rng = np.random.default_rng(2)
    index, model = make(2), Model()
    memory = []
    for step in range(60):
        signatures = rng.integers(0, 40, size=(101, 2))
        rows = index.add(signatures)
        model.add(signatures)
        if step >= 5:
            old = np.arange(101 * (step - 5), 101 * (step - 4))
            index.remove(old)
            for row in old.tolist():
                del model.rows[row]
        assert index.n == min(step + 1, 5) * 101
        memory.append(index.memory_bytes)
        if step % 13 == 0:
            check_same(index, model, signatures[:3])
    assert rows[-1] == 60 * 101 - 1  # numbers are not given twice
    assert max(memory[30:]) <= 1.5 * max(memory[:30])


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_removed_rows_leave_the_tables(monkeypatch, impl):
    if impl == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(index_module, "MERGED_FROM", 20)
    index = BucketIndex(2, impl=impl)
    index.add(np.arange(200).reshape(100, 2))
    stands = []
    for rows in (np.arange(20), np.arange(20, 25), np.array([99])):
        index.remove(rows)
        stands.append((index.flat()["order"].shape[1], index.flat()["n_dead"]))
    assert stands == [(100, 20), (100, 25), (74, 0)]
    index.remove([50])
    index.merge()
    assert index.flat()["order"].shape == (2, 73)
    assert index.lookup(np.array([[196, 197]]))[0].tolist() == [[[98], [98]]]


def test_empty_indexes_and_empty_batches(make):
    index, nothing = make(3), np.zeros((0, 3), dtype=np.int64)
    queries = np.arange(6).reshape(2, 3)
    check_same(index, Model(), queries)
    assert index.add(nothing).shape == (0,)
    index.remove(np.zeros(0, dtype=np.int64))
    index.merge()
    check_same(index, Model(), queries)
    index.add(queries)
    rows, found = index.lookup(nothing)
    assert rows.shape == found.shape == (0, 3, 0)
    index.remove(np.array([1, 0]))
    check_same(index, Model(), queries)
    index.merge()
    check_same(index, Model(), queries)
    assert index.add(queries).tolist() == [2, 3]


def test_all_rows_in_one_bucket(make):
    n = 50_021
    index = make(2)
    index.add(np.full((n, 2), 9))
    for _ in range(3):
        index.add(np.full((1, 2), 9))
    rows, found = index.lookup(np.full((1, 2), 9))
    assert rows.tolist() == [[list(range(n + 3))] * 2]
    assert found.all()
    index.remove(np.arange(5))
    rows, found = index.lookup(np.array([[9, 8]]), max_bucket=3)
    assert rows.tolist() == [[[5, 6, 7], [0, 0, 0]]]
    assert found.tolist() == [[[True] * 3, [False] * 3]]
    assert index.bucket_sizes(1).tolist() == [n - 2]


def test_rows_to_remove_may_be_a_list_or_of_any_library(make, library):
    index = make(1)
    index.add(np.arange(9)[:, np.newaxis])
    index.remove([8, 2])
    index.remove([])
    index.remove(library.array(np.array([0, 4])))
    index.remove(library.array(np.array([1], dtype=np.int32)))
    assert index.live().tolist() == [3, 5, 6, 7]
    live = index.live()
    live[...] = 0
    assert index.live().tolist() == [3, 5, 6, 7]


def test_a_new_sorted_index_is_of_no_library():
    index = SortedIndex(1)
    for call in (index.live, index.signatures, lambda: index.bucket_sizes(0)):
        with pytest.raises(ValueError, match="the index must have had rows, got one that is new"):
            call()


def test_a_bucket_is_cut_after_removed_rows_are_left_out(make):
    index = make(1)
    index.add(np.zeros((4, 1), dtype=np.int64))
    index.merge()
    index.add(np.zeros((4, 1), dtype=np.int64))
    index.remove(np.array([0, 2, 4]))
    for _ in range(2):
        assert index.lookup(np.array([[0]]), max_bucket=3)[0].tolist() == [[[1, 3, 5]]]
        assert index.counts(np.array([[0]]), max_bucket=9).tolist() == [[5]]
        index.merge()


def test_signatures_belong_to_the_caller(make):
    signatures = np.arange(6).reshape(3, 2)
    index = make(2)
    index.add(signatures)
    signatures[...] = 99
    assert index.counts(np.array([[0, 1], [99, 99]])).tolist() == [[1, 1], [0, 0]]
    signatures[...] = np.arange(6).reshape(3, 2)
    index.add(signatures)
    signatures[...] = 99
    assert index.counts(np.array([[0, 1]])).tolist() == [[2, 2]]
    index.merge()
    assert index.counts(np.array([[0, 1], [99, 99]])).tolist() == [[2, 2], [0, 0]]


def test_signatures_may_be_read_only_or_strided(make):
    signatures = np.arange(24).reshape(3, 8)[:, ::2].astype(np.int64)[::-1]
    signatures.flags.writeable = False
    index = make(4)
    index.add(signatures)
    assert index.lookup(signatures)[0].tolist() == [[[i]] * 4 for i in range(3)]


def test_sorted_index_in_every_library(library):
    rng = np.random.default_rng(4)
    signatures, queries = rng.integers(-3, 3, size=(31, 2)), rng.integers(-4, 4, size=(7, 2))
    index, model = SortedIndex(2), Model()
    assert index.lookup(library.array(queries))[0].shape == (7, 2, 0)
    for part in (signatures[:0], signatures[:20], signatures[20:], signatures[:0]):
        rows = index.add(library.array(part))
        assert library.same_kind(rows, library.array(part))
        model.add(part)
    gone = [3, 30, 0, 17]
    index.remove(library.array(np.zeros(0, dtype=np.int64)))
    index.remove(library.array(np.array(gone)))
    for row in gone:
        del model.rows[row]
    for max_bucket in (None, 2):
        rows, found = index.lookup(library.array(queries), max_bucket)
        assert library.same_kind(rows, library.array(queries))
        got = as_lists(library.numpy(rows), library.numpy(found))
        assert got == model.lookup(queries, max_bucket)
        counts = index.counts(library.array(queries), max_bucket)
        assert library.same_kind(counts, rows)
        assert library.numpy(counts).tolist() == [[len(b) for b in query] for query in got]
    sizes = library.numpy(index.bucket_sizes(0))
    assert (
        sizes.tolist()
        == np.unique(np.delete(signatures, gone, axis=0)[:, 0], return_counts=1)[1].tolist()
    )
    assert index.lookup(library.array(queries[:0]))[0].shape == (0, 2, 0)
    before = index.memory_bytes
    index.add(library.array(signatures))
    assert index.memory_bytes > before
    index.remove(library.array(np.array([1])))
    with pytest.raises(ValueError, match="rows must be in the index, each named once, got 1"):
        index.remove(library.array(np.array([2, 1])))
    assert index.n == 31 + 31 - 5
    left = [row for row in range(62) if row not in (1, *gone)]
    index.remove(library.array(np.array(left)))
    assert index.n == 0
    assert index.lookup(library.array(queries))[0].shape == (7, 2, 0)
    assert library.numpy(index.bucket_sizes(1)).shape == (0,)


# The arrays beneath


@given(n=st.integers(0, 40), spread=st.sampled_from([1, 3, 50, 2**62]), seed=st.integers(0, 10**6))
def test_a_table_is_filled_by_sorting_as_by_inserting(n, spread, seed):
    rng = np.random.default_rng(seed)
    mixer = draw_mixer(rng)
    if spread < 2**62:  # homes close together, here at the end of the slots
        mixer = (
            mixer % (spread << 40)
            + ((2**62 - (spread << 41)) & ~(2**50 - 1)) * (np.arange(8) == 0)[:, np.newaxis]
        )
        mixer &= 2**62 - 1
    keys = np.unique(rng.integers(-(2**63), 2**63 - 1, size=n))
    slots = _build.filled_slots(keys, keys + 1, mixer)
    assert len(slots) == slots_for(len(keys), _build.LOAD_FACTOR)
    stored = {}
    for place, (key, value, displacement) in enumerate(slots.tolist()):
        if displacement == -1:
            assert key == value == 0
            continue
        stored[key] = value
        assert (int(home_slot(key, mixer, len(slots))) + displacement) % len(slots) == place
        assert slots[place - 1, 2] >= displacement - 1
    assert stored == {key: key + 1 for key in keys.tolist()}


@pytest.mark.parametrize("home", [0, 0.5, 0.999])
def test_a_filled_table_runs_over_its_end(home):
    keys = np.arange(30)
    mixer = np.zeros((8, 256), dtype=np.int64)
    mixer[0] = int(home * 2**62)
    slots = _build.filled_slots(keys, keys, mixer)
    assert len(slots) == 40
    first = int(home * 40)
    expected = np.full(40, -1)
    expected[(first + keys) % 40] = keys
    assert np.array_equal(slots[:, 2], expected)
    assert np.array_equal(slots[slots[:, 2] >= 0, 0], np.sort((first + keys) % 40 - first) % 40)


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_flat_arrays_are_as_written(impl):
    if impl == "numba":
        pytest.importorskip("numba")
    rng = np.random.default_rng(8)
    signatures = rng.integers(-30, 30, size=(1_500, 2))
    index = BucketIndex(2, impl=impl, seed=3)
    index.add(signatures[:1_400])
    index.add(signatures[1_400:])
    index.remove(np.array([4, 1_450]))
    flat = types.SimpleNamespace(**index.flat())
    assert (flat.side_first, flat.n_side, flat.n_dead, flat.n_rows) == (1_400, 100, 2, 1_500)
    assert flat.order.dtype == np.int32
    assert flat.order.flags.c_contiguous
    assert flat.slots.shape == (flat.slot_starts[-1], 3)
    assert np.flatnonzero(~flat.alive[:1_500]).tolist() == [4, 1_450]
    for t in range(2):
        table = flat.slots[flat.slot_starts[t] : flat.slot_starts[t + 1]]
        table = table[table[:, 2] >= 0]
        assert sorted(table[:, 0]) == sorted(set(signatures[:1_400, t].tolist()))
        for key, value, _ in table.tolist():
            run = flat.order[t, value >> 31 : (value >> 31) + (value & (2**31 - 1))]
            assert run.tolist() == np.flatnonzero(signatures[:1_400, t] == key).tolist()
        chains = flat.side_slots[t][flat.side_slots[t][:, 2] >= 0]
        assert sorted(chains[:, 0]) == sorted(set(signatures[1_400:, t].tolist()))
        for key, value, _ in chains.tolist():
            links, link = [], value >> 31
            while link >= 0:
                links.append(link)
                link = int(flat.side_next[t, link])
            assert links == np.flatnonzero(signatures[1_400:, t] == key).tolist()
            assert value & (2**31 - 1) == links[-1]


def crowding(mixer, n_slots, count):
    """Signatures that all want one slot of `n_slots`."""
    candidates = np.arange(count * n_slots * 2)
    return candidates[home_slot(candidates, mixer, n_slots) == n_slots // 2][:count]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_signatures_chosen_to_crowd_get_a_fresh_hash(impl, streamed):
    if impl == "numba":
        pytest.importorskip("numba")
    index = BucketIndex(1, impl=impl)
    mixer = index.flat()["mixer"]
    signatures = crowding(mixer, slots_for(700, _build.LOAD_FACTOR), 700)[:, np.newaxis]
    if streamed:
        farthest = 0
        for signature in signatures:
            index.add(signature[np.newaxis])
            farthest = max(farthest, index.flat()["side_slots"][:, :, 2].max())
        assert farthest <= displacement_limit(slots_for(1400, 0.75), _build.LOAD_FACTOR)
    else:
        index.add(np.concatenate([signatures, signatures]))
    assert not np.array_equal(index.flat()["mixer"], mixer)
    for _ in range(2):
        slots = index.flat()["slots"]
        assert slots[:, 2].max() < displacement_limit(len(slots), _build.LOAD_FACTOR) / 2
        assert (index.counts(signatures) == (1 if streamed else 2)).all()
        index.merge()


# What is refused


def test_more_rows_than_int32_can_number():
    assert np.iinfo(np.int32).max == MOST_ROWS == LOW  # a map packs two such numbers
    check_rows(MOST_ROWS)
    with pytest.raises(ValueError, match=r"at most 2\*\*31 - 1 rows in all, got 2147483648"):
        check_rows(MOST_ROWS + 1)


def test_an_index_that_is_full_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(index_module, "MOST_ROWS", 5)
    index, model = BucketIndex(1), Model()
    first = np.array([[1], [2], [1]])
    index.add(first)
    model.add(first)
    with pytest.raises(ValueError, match="rows in all, got 6"):
        index.add(first)
    check_same(index, model, first)
    assert index.add(first[:2]).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("signatures", "error", "message"),
    [
        ([[1, 2]], TypeError, "must be an array of NumPy, CuPy, PyTorch or another .*, got list"),
        (np.zeros((1, 2)), TypeError, "must have dtype int64, got float64"),
        (np.zeros((1, 2), dtype=np.int32), TypeError, "must have dtype int64, got int32"),
        (np.zeros((1, 3), dtype=np.int64), ValueError, r"must have shape \(n, 2\), got \(1, 3\)"),
        (np.zeros(2, dtype=np.int64), ValueError, r"must have shape \(n, 2\), got \(2,\)"),
    ],
    ids=["list", "float64", "int32", "three-tables", "one-axis"],
)
def test_signatures_are_int64_of_every_table(make, signatures, error, message):
    index, model, good = make(2), Model(), np.array([[1, 2]])
    index.add(good)
    model.add(good)
    for call in (index.add, index.lookup, index.counts):
        with pytest.raises(error, match=f"signatures {message}"):
            call(signatures)
    check_same(index, model, good)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([1.0], TypeError, "must be ints, got float64"),
        (np.array([1.0]), TypeError, "must be ints, got float64"),
        (np.array([True]), TypeError, "must be ints, got bool"),
        (1, ValueError, r"must have shape \(m,\), got \(\)"),
        ([[1], [2, 3]], ValueError, "must be ints in rows of one length, got others"),
        (np.array([[1]]), ValueError, r"must have shape \(m,\), got \(1, 1\)"),
        (np.array([2, 9]), ValueError, "must be in the index, each named once, got 9"),
        (np.array([-1]), ValueError, "must be at least 0, got -1"),
        (np.array([2, 1, 2]), ValueError, "must be in the index, each named once, got 2"),
        (np.array([0, 1]), ValueError, "must be in the index, each named once, got 0"),
    ],
    ids=[
        "list",
        "float",
        "bool",
        "int",
        "ragged",
        "matrix",
        "unknown",
        "negative",
        "twice",
        "gone",
    ],
)
def test_rows_to_remove_must_be_there(make, rows, error, message):
    index, model, good = make(2), Model(), np.arange(8).reshape(4, 2)
    with pytest.raises((TypeError, ValueError), match="rows "):
        index.remove(rows)
    index.add(good)
    model.add(good)
    index.remove(np.array([0], dtype=np.uint8))
    del model.rows[0]
    for _ in range(2):
        with pytest.raises(error, match=f"rows {message}"):
            index.remove(rows)
        check_same(index, model, good)
        index.merge()


@pytest.mark.parametrize(
    ("max_bucket", "error", "message"),
    [
        (0, ValueError, "max_bucket must be at least 1, got 0"),
        (2.0, TypeError, "max_bucket must be an int, got float"),
        (True, TypeError, "max_bucket must be an int, got bool"),
    ],
)
def test_max_bucket_is_a_number_of_rows(make, max_bucket, error, message):
    index, queries = make(1), np.array([[1]])
    for call in (index.lookup, index.counts):
        with pytest.raises(error, match=message):
            call(queries, max_bucket=max_bucket)


def test_tables_are_numbered_from_0(make):
    index = make(2)
    index.add(np.array([[1, 2]]))
    with pytest.raises(ValueError, match="t must be below the number of tables, 2, got 2"):
        index.bucket_sizes(2)
    with pytest.raises(ValueError, match="t must be at least 0, got -1"):
        index.bucket_sizes(-1)


@pytest.mark.parametrize("n_tables", [0, -2, 1.5, "2", True])
def test_there_is_a_table(make, n_tables):
    with pytest.raises((TypeError, ValueError), match="n_tables must be "):
        make(n_tables)


def test_unknown_implementations_are_named():
    with pytest.raises(ValueError, match="impl must be one of reference, numba, got 'cupy'"):
        BucketIndex(2, impl="cupy")


def test_arrays_of_another_library_are_refused():
    torch = pytest.importorskip("torch")
    index = BucketIndex(1)
    index.add(np.array([[1]]))
    for call in (index.add, index.lookup, index.counts):
        with pytest.raises(TypeError, match="signatures must be a NumPy array, got an array"):
            call(torch.tensor([[1]]))
    index = SortedIndex(1)
    index.add(np.array([[1]]))
    for call in (index.add, index.lookup, index.counts):
        with pytest.raises(TypeError, match=r"same library as the index \(numpy\), got torch"):
            call(torch.tensor([[1]]))
