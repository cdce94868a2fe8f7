"""Attention to pages, against a loop over the tokens that the block table lists."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import HALF, close, need
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "kernels"))
from paged_cases import SIZES, drawn, looped

from attnbook.decoding import paged_attention

RUNGS = ("packed",) if importlib.util.find_spec("numba") else ()
sizes = st.tuples(
    st.sampled_from((1, 2, 5)),  # sequences
    st.sampled_from(((1, 1), (6, 2), (4, 4), (3, 1))),
    st.sampled_from((1, 2, 3)),  # queries
    st.sampled_from((1, 5, 16)),
    st.sampled_from((1, 3, 11)),
    st.sampled_from((1, 3, 16, 50)),  # tokens a page
    st.sampled_from((1, 7, 33, 100)),  # most tokens
)


def case(seed, n, heads, *rest):
    return drawn(np.random.default_rng(seed), n, *heads, *rest)


@given(sizes, st.integers(0, 999))
def test_the_reference_follows_the_block_table(library, chosen, seed):
    arrays = case(seed, *chosen)
    output = paged_attention(*map(library.array, arrays), scale=0.3)
    assert library.same_kind(output, library.array(arrays[0]))
    np.testing.assert_allclose(library.numpy(output), looped(*arrays, 0.3), rtol=1e-9, atol=1e-12)


@given(sizes, st.integers(0, 999), st.sampled_from(["numpy", "torch"]), st.sampled_from(RUNGS))
@pytest.mark.skipif(not RUNGS, reason="numba is not installed")
def test_the_compiled_loops_follow_the_block_table(chosen, seed, name, impl):
    arrays = case(seed, *chosen)
    single = [x.astype(np.float32) if x.dtype == float else x for x in arrays]
    given_ = single if name == "numpy" else [torch.from_numpy(x) for x in single]
    output = paged_attention(*given_, scale=0.3, impl=impl)
    assert output.dtype == given_[0].dtype
    np.testing.assert_allclose(output, looped(*arrays, 0.3), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("impl", ["reference", *RUNGS])
@pytest.mark.parametrize("dtype", [*HALF, "float32"])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_dtype(library, impl, dtype, sizes):
    need(library, dtype)
    if impl != "reference" and library.name not in ("numpy", "torch"):
        pytest.skip(f"{impl} takes no arrays of {library.name}")
    arrays = drawn(np.random.default_rng(1), *sizes)
    low = [library.array(x, dtype) for x in arrays[:3]]
    exact = looped(*map(library.numpy, low), *arrays[3:], 0.3)
    output = paged_attention(*low, *map(library.array, arrays[3:]), scale=0.3, impl=impl)
    assert library.same_kind(output, low[0])
    close(library.numpy(output), exact, dtype, size=4.0)


@pytest.mark.skipif(not RUNGS, reason="numba is not installed")
def test_long_sequences_are_cut_in_chunks(monkeypatch):
    from attnbook.kernels.numba_loops import pages

    rng, lengths = np.random.default_rng(0), [5003, 0, 1, 2048, 3000]
    arrays = drawn(rng, 5, 4, 2, 2, 5, 3, 16, 5003, lengths=lengths)
    single = [x.astype(np.float32) if x.dtype == float else x for x in arrays]
    output = paged_attention(*single, impl="packed")
    np.testing.assert_allclose(output, paged_attention(*arrays), rtol=1e-5, atol=1e-6)
    tasks, firsts = pages._chunks(np.asarray(lengths).tobytes(), 2)
    assert np.diff(firsts).tolist() == [4, 4, 1, 1, 1, 1, 2, 2, 2, 2]
    for head, n in enumerate(np.repeat(lengths, 2)):
        own = tasks[firsts[head] : firsts[head + 1]]
        assert (own[:, 0] == head).all()
        assert own[0, 1] == 0
        assert own[-1, 2] == n
        assert (own[1:, 1] == own[:-1, 2]).all()


@pytest.mark.skipif(not RUNGS, reason="numba is not installed")
def test_neither_the_batch_nor_the_pages_change_a_bit():
    rng = np.random.default_rng(0)
    query, keys, values, table, lengths = drawn(rng, 5, 4, 2, 1, 8, 8, 16, 3000, n_shared=0)
    single = [x.astype(np.float32) for x in (query, keys, values)]
    whole = paged_attention(*single, table, lengths, impl="packed")
    order = rng.permutation(len(keys))
    moved = [x[order] for x in single[1:]]
    new = np.where(table < 0, table, np.argsort(order)[table])
    for i in range(5):
        one = single[0][i : i + 1], *moved, new[i : i + 1], lengths[i : i + 1]
        assert np.array_equal(paged_attention(*one, impl="packed"), whole[i : i + 1])


def test_gradients_of_the_reference_are_finite():
    query, *pages, table, lengths = drawn(np.random.default_rng(3), *SIZES[0])
    pages = [np.nan_to_num(x) for x in pages]  # autograd multiplies by what is hidden, too
    leaves = [torch.tensor(x, requires_grad=True) for x in (query, *pages)]
    output = paged_attention(*leaves, torch.tensor(table), torch.tensor(lengths))
    for grad in torch.autograd.grad(output.sum(), leaves):
        assert torch.isfinite(grad).all()


def call(**changes):
    arrays = {
        "query": np.ones((2, 6, 1, 5)),
        "key_pages": np.ones((4, 3, 7, 5)),
        "value_pages": np.ones((4, 3, 7, 2)),
        "block_table": np.array([[3, 1], [2, -1]]),
        "lengths": np.array([11, 5]),
    }
    return paged_attention(**(arrays | changes))


ERRORS = """
call(impl="tiled")
    ValueError: impl must be one of reference, packed, triton, got 'tiled'
call(impl=len)
    ValueError: impl must be one of reference, packed, triton, got len
call(query=np.ones((2, 6, 5)))
    ValueError: query must have shape (b, h, n_q, d_k), got (2, 6, 5)
call(key_pages=np.ones((4, 21, 5)))
    ValueError: key_pages must have shape (pages, h_kv, size, d), got (4, 21, 5)
call(key_pages=np.ones((4, 3, 7, 4)))
    ValueError: key_pages must have shape (pages, h_kv, size, 5) to match query, got (4, 3, 7, 4)
call(value_pages=np.ones((4, 3, 8, 2)))
    ValueError: value_pages must have shape (4, 3, 7, d_v) to match key_pages, got (4, 3, 8, 2)
call(key_pages=np.ones((4, 3, 0, 5)), value_pages=np.ones((4, 3, 0, 2)))
    ValueError: key_pages must have at least 1 key per page, got size 0
call(query=np.ones((2, 5, 1, 5)))
    ValueError: query must have a multiple of 3 heads, as key_pages has, got 5
call(query=np.ones((2, 6, 1, 0)), key_pages=np.ones((4, 3, 7, 0)))
    ValueError: query must have d_k of at least 1 for the default scale 1/√d_k, got 0
call(value_pages=np.ones((4, 3, 7, 2), np.float32))
    TypeError: value_pages must have the dtype of query (float64), got float32
call(scale=-1.0)
    ValueError: scale must be finite and at least 0, got -1.0
call(block_table=np.ones((2, 2)))
    TypeError: block_table must be an array of integers, got float64
call(block_table=np.ones((3, 2), int))
    ValueError: block_table must have shape (2, most), got (3, 2)
call(lengths=np.ones((2, 1), int))
    ValueError: lengths must have shape (2,), got (2, 1)
call(lengths=np.array([11, 15]))
    ValueError: lengths must be from 0 to 14 to be known to block_table, got 15
call(lengths=np.array([11, -1]))
    ValueError: lengths must be from 0 to 14 to be known to block_table, got -1
call(block_table=np.array([[3, 1], [4, -1]]))
    ValueError: block_table must be from 0 to 3 to be known to key_pages, got 4
call(block_table=np.array([[3, -1], [2, -1]]))
    ValueError: block_table must be from 0 to 3 to be known to key_pages, got -1
call(key_pages=np.ones((0, 3, 7, 5)), value_pages=np.ones((0, 3, 7, 2)))
    ValueError: lengths must be 0 where key_pages has no pages, got more
call(impl="packed")
    TypeError: query must have dtype float16, bfloat16 or float32 for impl='packed', got float64
call(**{n: torch.ones(2, 2, 2, 2, requires_grad=True) for n in ARRAYS}, impl="packed")
    ValueError: query must need no gradient for impl='packed': detach it
"""
ARRAYS = ("query", "key_pages", "value_pages")
test_what_is_refused = error_test(ERRORS, globals())
