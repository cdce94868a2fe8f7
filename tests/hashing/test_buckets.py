"""Sorted buckets against a dict of lists, in every array library."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnbook.hashing.buckets import Buckets, sort_buckets

SIGNATURES = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
EDGES = [2**63 - 1, -(2**63), 0, -1, 2**63 - 1, -(2**63)]


def as_dict(signatures):
    """The rows of each signature, by hand."""
    rows = {}
    for row, signature in enumerate(signatures):
        rows.setdefault(signature, []).append(row)
    return rows


@given(signatures=st.lists(SIGNATURES, max_size=23), queries=st.lists(SIGNATURES, max_size=7))
@example(signatures=EDGES, queries=EDGES)
@example(signatures=[], queries=[0, 5])
@example(signatures=[4] * 11, queries=[4, 3, 5])
@example(signatures=[4, 5], queries=[])
def test_buckets_are_those_of_a_dict(library, signatures, queries):
    expected = as_dict(signatures)
    given_array = library.array(np.array(signatures, dtype=np.int64))
    buckets = sort_buckets(given_array)
    for x in (buckets.signatures, buckets.starts, buckets.order):
        assert library.same_kind(x, given_array)
    distinct = library.numpy(buckets.signatures).tolist()
    starts, order = library.numpy(buckets.starts), library.numpy(buckets.order)
    assert distinct == sorted(expected)
    assert starts.shape == (len(expected) + 1,)
    for i, signature in enumerate(distinct):
        assert order[starts[i] : starts[i + 1]].tolist() == expected[signature]
    found_starts, counts = buckets.find(library.array(np.array(queries, dtype=np.int64)))
    assert library.same_kind(found_starts, given_array)
    assert library.same_kind(counts, given_array)
    found_starts, counts = library.numpy(found_starts), library.numpy(counts)
    assert found_starts.shape == counts.shape == (len(queries),)
    for query, start, count in zip(queries, found_starts, counts, strict=True):
        assert order[start : start + count].tolist() == expected.get(query, [])
        assert count or start == 0


def test_one_bucket_of_all_rows_is_no_slower_than_many():
    buckets = sort_buckets(np.zeros(300_007, dtype=np.int64))
    assert buckets.starts.tolist() == [0, 300_007]
    assert np.array_equal(buckets.order, np.arange(300_007))


def test_buckets_cannot_be_changed():
    buckets = sort_buckets(np.array([1, 2]))
    with pytest.raises(AttributeError):
        buckets.order = buckets.starts
    assert isinstance(buckets, Buckets)


@pytest.mark.parametrize(
    ("signatures", "error", "message"),
    [
        ([1], TypeError, "must be an array of NumPy, CuPy, PyTorch or another .*got list"),
        (np.zeros(2), TypeError, "must have dtype int64, got float64"),
        (np.zeros(2, dtype=np.int32), TypeError, "must have dtype int64, got int32"),
        (np.zeros(2, dtype=bool), TypeError, "must have dtype int64, got bool"),
        (np.zeros((2, 3), dtype=np.int64), ValueError, r"must have shape \(n,\), got \(2, 3\)"),
        (np.array(1), ValueError, r"must have shape \(n,\), got \(\)"),
    ],
    ids=["list", "float64", "int32", "bool", "matrix", "scalar"],
)
def test_signatures_are_int64_of_one_axis(signatures, error, message):
    with pytest.raises(error, match=f"signatures {message}"):
        sort_buckets(signatures)
    with pytest.raises(error, match=f"signatures {message}"):
        sort_buckets(np.array([1])).find(signatures)


def test_queries_are_of_the_library_of_the_buckets():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"same library as the buckets \(numpy\), got torch"):
        sort_buckets(np.array([1])).find(torch.tensor([1]))
