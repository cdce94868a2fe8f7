"""The Markov source against sums over all sequences, and against what it draws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import Markov, markov

sources = st.builds(
    lambda seed, n, order, weight: markov(seed, n, order=order, concentration=weight),
    st.integers(0, 50),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((0.5, 1.0, 5.0)),
)


def probability(source, symbols):
    """Return the probability of `symbols`, at least k of them, as a product."""
    k = source.order
    result = float(source.stationary[tuple(symbols[:k])])
    for t in range(k, len(symbols)):
        result *= float(source.transitions[tuple(symbols[t - k : t + 1])])
    return result


def entropy(source, n):
    """Return the entropy of n symbols in a row, by the sum over all of them."""
    every = itertools.product(range(source.n_symbols), repeat=n)
    return -sum(p * math.log(p) for symbols in every if (p := probability(source, symbols)) > 0)


@given(sources)
def test_stationary_distribution_stays(source):
    v, k = source.n_symbols, source.order
    assert source.transitions.shape == (v,) * (k + 1)
    assert source.stationary.shape == (v,) * k
    assert source.stationary.sum() == pytest.approx(1)
    np.testing.assert_allclose(source.transitions.sum(axis=-1), 1)
    for state in np.ndindex(source.stationary.shape):
        arrives = sum(
            source.stationary[(a, *state[:-1])] * source.transitions[(a, *state)] for a in range(v)
        )
        assert arrives == pytest.approx(source.stationary[state], abs=1e-12)


@given(sources)
def test_entropy_rate_is_what_one_more_symbol_adds(source):
    k = source.order
    added = entropy(source, k + 1) - entropy(source, k)
    assert source.entropy_rate() == pytest.approx(added, abs=1e-12)


@given(sources)
def test_conditional_is_a_ratio_of_sums_over_all_sequences(source):
    n = source.order + 2
    every = list(itertools.product(range(source.n_symbols), repeat=n))
    chance = {}
    for symbols in every:
        for length in range(n + 1):
            head = symbols[:length]
            chance[head] = chance.get(head, 0.0) + probability(source, symbols)
    got = source.conditional(every)
    assert got.shape == (len(every), n, source.n_symbols)
    for symbols, rows in zip(every, got, strict=True):
        for t in range(n - 1):
            head = symbols[: t + 1]
            for c in range(source.n_symbols):
                expected = chance[(*head, c)] / chance[head]
                assert rows[t, c] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_long_run_frequencies(order):
    source = markov(7, 3, order=order)
    drawn = source.sample(1, 2000, 101)
    assert drawn.shape == (2000, 101)
    assert drawn.dtype == np.int64
    joint = source.stationary[..., np.newaxis] * source.transitions
    for stretch in (drawn, drawn[:, : order + 1]):  # the beginnings are no exception
        counts = np.zeros(joint.shape)
        blocks = np.lib.stride_tricks.sliding_window_view(stretch, order + 1, axis=1)
        np.add.at(counts, tuple(blocks.reshape(-1, order + 1).T), 1)
        tolerance = 4 / math.sqrt(len(blocks.reshape(-1, order + 1)) / 4)
        np.testing.assert_allclose(counts / counts.sum(), joint, atol=tolerance)


def test_known_cases():
    source = Markov(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(source.stationary, [0.5, 0.25, 0.25])
    assert source.entropy_rate() == pytest.approx(0.5 * math.log(2))
    assert (source.n_symbols, source.order) == (3, 1)
    one = markov(0, 1, order=2)
    assert one.entropy_rate() == 0
    assert one.sample(0, 2, 3).tolist() == [[0, 0, 0]] * 2
    T = np.zeros((2, 2, 2))
    T[..., 0] = 1.0  # from the second symbol on, 0 alone: a beginning of 1 1 never occurs
    np.testing.assert_array_equal(Markov(T).conditional([1, 1]), [[0, 0], [1, 0]])


def test_impossible_symbols_are_never_drawn():
    ring = np.roll(np.eye(5), 1, axis=1)
    drawn = Markov(ring).sample(0, 50, 20)
    assert ((drawn[:, 1:] - drawn[:, :-1]) % 5 == 1).all()
    assert set(drawn[:, 0]) == set(range(5))
    assert Markov(ring).entropy_rate() == 0


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("n", "length"), [(0, 5), (4, 0), (4, 1), (4, 2)])
def test_short_samples(order, n, length):
    source = markov(0, 3, order=order)
    drawn = source.sample(0, n, length)
    assert drawn.shape == (n, length)
    assert source.conditional(drawn).shape == (n, length, 3)


def test_conditional_of_no_batch_and_of_many_axes():
    source = markov(0, 3, order=2)
    ids = source.sample(1, 10, 7).reshape(2, 5, 7)
    got = source.conditional(ids)
    assert got.shape == (2, 5, 7, 3)
    np.testing.assert_array_equal(source.conditional(ids[1, 3].tolist()), got[1, 3])


def test_seeds_and_what_is_kept():
    first, again, other = markov(0, 3), markov(0, 3, order=1, concentration=1.0), markov(1, 3)
    np.testing.assert_array_equal(first.transitions, again.transitions)
    assert not np.array_equal(first.transitions, other.transitions)
    np.testing.assert_array_equal(first.sample(5, 2, 9), again.sample(5, 2, 9))
    assert not np.array_equal(first.sample(5, 2, 9), first.sample(6, 2, 9))
    assert first == first != again  # not by their arrays, which have no single truth
    with pytest.raises(AttributeError):
        first.transitions = None
    T = np.array([[0.5, 0.5], [0.1, 0.9]])
    source = Markov(T)
    T[:] = 7
    assert source.transitions.max() == 0.9


def test_concentration():
    rates = [markov(0, 11, concentration=c).entropy_rate() for c in (0.1, 1, 10, 1000)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(math.log(11), abs=0.01)
