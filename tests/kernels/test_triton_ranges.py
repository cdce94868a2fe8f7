"""The lists of tiles that the Triton kernels visit under a rule, made on the host."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_rules import calls

from attnbook.kernels.triton_kernels.ranges import lists_of, on_device
from attnbook.masking import Causal, Chunks, FirstKeys, SlidingWindow

CPU = torch.device("cpu")


def expected_lists(seen, block_q, block_k, of_keys):
    """Return lists of one head by the definition, from the dense mask."""
    n_q, n_k = seen.shape
    kinds = np.zeros((-(-n_q // block_q), -(-n_k // block_k)), int)
    for i, j in np.ndindex(kinds.shape):
        tile = seen[i * block_q : (i + 1) * block_q, j * block_k : (j + 1) * block_k]
        kinds[i, j] = 2 if tile.all() and (j + 1) * block_k <= n_k else int(tile.any())
    rows = []
    for row in kinds.T if of_keys else kinds:
        whole, some = np.flatnonzero(row == 2), np.flatnonzero(row == 1)
        rows.append([len(whole), len(whole) + len(some), *whole, *some])
    return rows


@settings(deadline=None)
@given(calls(), st.sampled_from([(16, 16), (16, 32), (32, 4), (1, 5)]), st.booleans())
def test_lists_are_those_of_the_dense_mask(call, blocks, of_keys):
    rule, _, _, n_q, n_k, _ = call
    seen = rule.dense(n_q, n_k).reshape(-1, n_q, n_k)
    lists = lists_of(rule.intervals(n_q, n_k), *blocks, CPU, of_keys=of_keys).tolist()
    widest = 0
    for own, of_head in zip(lists, seen, strict=True):
        rows = [row[: 2 + row[1]] for row in own]
        assert rows == expected_lists(of_head, *blocks, of_keys)
        widest = max(widest, *(row[1] for row in rows))
    assert len(lists[0][0]) == 2 + widest


@settings(deadline=None)
@given(calls())
def test_lists_of_all_queries_of_a_group(call):
    rule, _, _, n_q, n_k, _ = call
    intervals = rule.intervals(n_q, n_k)
    heads = intervals.shape[-3] if intervals.ndim > 2 else 1
    seen = rule.dense(n_q, n_k).reshape(-1, heads * n_q, n_k)
    lists = lists_of(intervals, n_q, 16, CPU, heads=heads).tolist()
    for (own,), of_group in zip(lists, seen, strict=True):
        assert [own[: 2 + own[1]]] == expected_lists(of_group, heads * n_q, 16, False)


@pytest.mark.parametrize(
    "rule",
    [SlidingWindow(255) & Causal(), FirstKeys(64) | SlidingWindow(255), Chunks(512)],
    ids=str,
)
def test_no_array_of_all_scores(rule):
    """Of 65,536 tokens a mask has 4 GiB; ranges, lists and what they are made of take 16 MiB."""
    n = 2**16
    tracemalloc.start()
    try:
        intervals = rule.intervals(n, n)
        ranges = on_device(intervals, CPU)
        lists = [lists_of(intervals, 128, 64, CPU, of_keys=way) for way in (False, True)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**24
    assert ranges.shape[-1] in (2, 4)
    assert lists[0].shape[-1] <= 2 + 12
    assert lists[0] is lists_of(intervals, 128, 64, CPU)  # made once
    assert ranges is on_device(intervals, CPU)


def test_ranges_are_padded_to_a_power_of_two():
    rule = ~(FirstKeys(2) | (Chunks(4) & ~SlidingWindow(1)))
    intervals = rule.intervals(12, 12)
    m = intervals.starts.shape[-1]
    ranges = on_device(intervals, CPU)
    assert ranges.shape[-1] == 2 * 2 ** int(np.ceil(np.log2(m)))
    seen = np.zeros((12, 12), bool)
    for i, row in enumerate(ranges.tolist()):
        for start, stop in zip(row[::2], row[1::2], strict=True):
            seen[i, start:stop] = True
    assert (seen == rule.dense(12, 12)).all()
