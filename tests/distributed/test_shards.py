"""Which tokens each process holds, and what a causal mask leaves of a shard of scores."""

import numpy as np
import pytest
import torch
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

import attnbook.distributed
from attnbook.distributed import shard_sequence, unshard_sequence
from attnbook.distributed.shards import LAYOUTS, seen


@pytest.mark.parametrize(
    ("layout", "shards"),
    [
        ("contiguous", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        ("striped", [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        ("zigzag", [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]),
    ],
)
def test_the_tokens_of_each_shard(library, layout, shards):
    found = shard_sequence(library.array(np.arange(12)), 3, layout, axis=0)
    assert [library.numpy(x).tolist() for x in found] == shards
    again = unshard_sequence(found, layout, axis=0)
    assert library.numpy(again).tolist() == list(range(12))


@given(
    p=st.integers(1, 5),
    m=st.integers(0, 3),
    layout=st.sampled_from(LAYOUTS),
    axis=st.sampled_from([0, 1, 2, -1, -2, -3]),
)
def test_shards_put_together_are_the_sequence(p, m, layout, axis):
    shape = [2, 3, 4]
    shape[axis] = 2 * p * m
    x = np.arange(np.prod(shape)).reshape(shape)
    shards = shard_sequence(x, p, layout, axis)
    assert len({part.shape for part in shards}) == 1
    np.testing.assert_array_equal(unshard_sequence(shards, layout, axis), x)


@given(p=st.integers(1, 5), m=st.integers(1, 4), layout=st.sampled_from(LAYOUTS))
def test_what_is_seen_of_a_shard_is_what_a_causal_mask_leaves(p, m, layout):
    n = 2 * m
    places = shard_sequence(np.arange(n * p), p, layout, axis=0)
    for rank in range(p):
        for source in range(p):
            wanted = places[source] <= places[rank][:, None]
            found, part = np.zeros((n, n), bool), seen(layout, True, rank, source, n)
            if part is not None:
                block = found[part.rows, part.columns]
                assert block.shape[0] == block.shape[1] or not part.is_causal
                block[:] = np.tril(np.ones(block.shape, bool)) if part.is_causal else True
            np.testing.assert_array_equal(found, wanted)
            assert seen(layout, False, rank, source, n)[2] is False


def test_zigzag_shards_have_the_same_work_in_every_step():
    for p in (2, 3, 8):
        for step in range(p):
            work = []
            for rank in range(p):
                part = seen("zigzag", True, rank, (rank - step) % p, 12)
                rows, columns = (len(range(12)[s]) for s in part[:2])
                work.append(rows * (rows + 1) // 2 if part.is_causal else rows * columns)
            assert set(work) == ({12 * 13 // 2} if step == 0 else {12 * 6})


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    error_rows(
        """
shard_sequence([1, 2], 2)
    TypeError: x must be an array of NumPy, CuPy, PyTorch or another Array API library, got list
shard_sequence(x, 5)
    ValueError: x must have a multiple of 10 tokens for 5 zigzag shards, got 12
shard_sequence(x, 5, "striped")
    ValueError: x must have a multiple of 5 tokens for 5 striped shards, got 12
shard_sequence(x, 0)
    ValueError: n_shards must be at least 1, got 0
shard_sequence(x, 2.0)
    TypeError: n_shards must be an int, got float
shard_sequence(x, 2, "snake")
    ValueError: layout must be one of contiguous, striped, zigzag, got 'snake'
shard_sequence(x, 2, axis=2)
    ValueError: axis must be from -2 to 1, got 2
unshard_sequence(x)
    TypeError: shards must be a list of arrays, got ndarray
unshard_sequence([])
    ValueError: shards must hold at least 1 array, got none
unshard_sequence([x, x[:3]])
    ValueError: shards[1] must have the shape (12, 2) of shards[0], got (3, 2)
unshard_sequence([x, 3])
    TypeError: shards[1] must be an array of NumPy, CuPy, PyTorch or another Array API library,
    got int
unshard_sequence([x, torch.zeros(12, 2)])
    TypeError: shards[1] must be an array of the same library as shards[0] (numpy), got torch
unshard_sequence([x, np.zeros((12, 2), int)])
    TypeError: shards[1] must have the dtype of shards[0] (float64), got int64
unshard_sequence([x[:3], x[:3]])
    ValueError: shards must have an even number of tokens for zigzag shards, got 3
unshard_sequence([x, x], "snake")
    ValueError: layout must be one of contiguous, striped, zigzag, got 'snake'
"""
    ),
)
def test_errors(call, kind, message):
    names = {**vars(attnbook.distributed), "x": np.zeros((12, 2)), "torch": torch, "np": np}
    assert_raises(call, kind, message, names)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match=r"'attnbook\.distributed' has no attribute 'star'"):
        attnbook.distributed.star
