"""Sequences and their reversal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import reversal, reversal_attention


@given(
    st.integers(0, 5),
    st.sampled_from((0, 1, 7, 13)),
    st.tuples(st.integers(1, 5), st.integers(0, 5)),
    st.sampled_from((1, 3, 11)),
)
def test_targets_are_sources_back_to_front(seed, n_pairs, bounds, n_symbols):
    least, most = bounds[0], sum(bounds)
    sources, targets = reversal(seed, n_pairs, length=(least, most), n_symbols=n_symbols)
    assert len(sources) == len(targets) == n_pairs
    for source, target in zip(sources, targets, strict=True):
        assert source.tolist() == list(reversed(target.tolist()))
        assert least <= len(source) <= most
        assert source.dtype == target.dtype == np.int64
        assert all(3 <= symbol < 3 + n_symbols for symbol in source)


def test_all_symbols_and_lengths_are_equally_likely():
    sources, _ = reversal(0, 4000, length=(2, 5), n_symbols=7)
    lengths = np.bincount([len(source) for source in sources])
    assert lengths[:2].tolist() == [0, 0]
    np.testing.assert_allclose(lengths[2:] / 4000, 1 / 4, atol=0.03)
    symbols = np.bincount(np.concatenate(sources))
    np.testing.assert_allclose(symbols[3:] / symbols.sum(), 1 / 7, atol=0.02)


def test_seed_decides_and_a_generator_goes_on():
    first, again, other = (reversal(seed, 5)[0] for seed in (3, 3, 4))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))
    rng = np.random.default_rng(3)
    assert all(map(np.array_equal, reversal(rng, 5)[0], first))
    assert not all(map(np.array_equal, reversal(rng, 5)[0], first))


def test_one_length():
    assert {len(source) for source in reversal(0, 11, length=4)[0]} == {4}


def test_a_target_may_be_changed():
    (source,), (target,) = reversal(0, 1, length=3)
    before = source.tolist()
    target[:] = 0
    assert source.tolist() == before


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_ideal_attention_turns_a_sequence_round(n):
    A = reversal_attention(n)
    assert A.shape == (n, n)
    x = np.random.default_rng(n).normal(size=(n, 3))
    np.testing.assert_array_equal(A @ x, np.array([x[n - 1 - i] for i in range(n)]).reshape(n, 3))
    A[:] = 7  # not read-only
