"""Codes of few bits err by half a step at most, and a cache of codes decodes as a full one does."""

import itertools
import math

import numpy as np
import pytest
import torch
from cases import NOT_AN_ARRAY, need
from decoding_models import model
from error_table import error_test
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from attnbook import decoding, models
from attnbook.decoding import (
    KVCache,
    QuantizedCache,
    beam_search,
    dequantize,
    greedy_decode,
    quantize,
    sample,
    speculative_sample,
)
from attnbook.decoding.incremental import IncrementalDecoder

WIDTHS = st.sampled_from((2, 4, 8))
NUMBERS = st.floats(-1e6, 1e6).map(lambda x: x if abs(x) > 1e-6 else 0.0)


@st.composite
def grouped(draw):
    """Draw numbers, an axis of them, and a group that divides its length."""
    groups, group = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(0, 2)))]
    axis = draw(st.integers(0, len(shape)))
    shape.insert(axis, groups * group)
    return draw(npst.arrays(np.float64, tuple(shape), elements=NUMBERS)), axis, group


def loop(x, bits, axis, group):
    """Return numbers, and steps at their positions, group by group in plain Python."""
    out, steps = np.empty_like(x), np.empty_like(x)
    moved = [np.moveaxis(y, axis, -1) for y in (x, out, steps)]
    for index in np.ndindex(moved[0].shape[:-1]):
        for start in range(0, x.shape[axis], group):
            place = (*index, slice(start, start + group))
            numbers = moved[0][place].tolist()
            low, high = min(numbers), max(numbers)
            step = (high - low) / (2**bits - 1)
            moved[2][place] = step
            moved[1][place] = [
                low + step * (round((y - low) / step) if step else 0) for y in numbers
            ]
    return out, steps


@given(grouped(), WIDTHS)
def test_it_is_the_loop_and_errs_by_half_a_step_at_most(library, drawn, bits):
    x, axis, group = drawn
    q = quantize(library.array(x), bits, axis=axis, group=group)
    got = dequantize(q)
    assert library.same_kind(got, library.array(x))
    got = library.numpy(got)
    expected, steps = loop(x, bits, axis, group)
    rounding = 1e-13 * np.max(np.abs(x), initial=0)
    assert np.all(np.abs(got - x) <= steps / 2 + rounding)
    ties = np.abs(np.abs(expected - x) - steps / 2) <= rounding  # round to either side
    np.testing.assert_allclose(np.where(ties, 0, got), np.where(ties, 0, expected), atol=rounding)
    constant = steps == 0
    np.testing.assert_array_equal(got[constant], x[constant])
    n_groups = x.size // group
    assert q.nbytes == n_groups * (math.ceil(group * bits / 8) + 2 * 8)


@given(grouped(), WIDTHS)
def test_quantising_again_gives_the_same_codes(library, drawn, bits):
    x, axis, group = drawn
    once = quantize(library.array(x), bits, axis=axis, group=group)
    again = quantize(dequantize(once), bits, axis=axis, group=group)
    wide = library.numpy(once.step) > 1e-9 * np.abs(library.numpy(once.zero))
    codes = [np.where(wide, library.numpy(q.codes), 0) for q in (once, again)]
    np.testing.assert_array_equal(*codes)
    np.testing.assert_allclose(
        *(library.numpy(dequantize(q)) for q in (once, again)),
        atol=1e-12 * np.max(np.abs(x), initial=0),
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_numbers_err_by_half_of_the_step_that_is_kept(library, dtype, bits):
    need(library, dtype)
    x = library.array(np.random.default_rng(0).normal(3, 2, size=(3, 5, 8)), dtype)
    q = quantize(x, bits)
    got = dequantize(q)
    assert library.same_kind(got, x)
    assert q.step.dtype == q.zero.dtype == x.dtype
    exact, step, got = (library.numpy(y).astype(float) for y in (x, q.step, got))
    rounding = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6}[dtype] * np.abs(exact)
    assert np.all(np.abs(got - exact) <= step.reshape(3, 5, 1) / 2 + rounding)


def test_codes_by_hand(library):
    x = library.array(np.array([[0.0, 1.0, 15.0, 7.4, 7.6], [-1.0, -1.0, 14.0, 4.0, 0.0]]))
    q = quantize(x, 4)
    assert library.numpy(q.step).ravel().tolist() == [1.0, 1.0]
    assert library.numpy(q.zero).ravel().tolist() == [0.0, -1.0]
    assert library.numpy(q.codes).tolist() == [[[0x10, 0x7F, 0x08]], [[0x00, 0x5F, 0x01]]]
    assert library.numpy(dequantize(q)).tolist()[0] == [0.0, 1.0, 15.0, 7.0, 8.0]
    q = quantize(library.array(np.array([0.0, 3.0, 1.0, 2.0, 3.0])), 2)
    assert library.numpy(q.codes).tolist() == [[0b10011100, 0b11]]


# The cache.


def stepwise(cache, parts, layer=0):
    return [cache.append(layer, *part) for part in parts]


ROUNDS = st.lists(
    st.tuples(st.sampled_from((0, 1, 2, 3, 7, 61)), st.none() | st.integers(0, 90)), max_size=6
)


@given(ROUNDS, st.sampled_from((1, 3, 64)), WIDTHS, st.integers(0, 99))
def test_it_holds_every_token_within_half_a_step(library, rounds, block, bits, seed):
    rng, cache = np.random.default_rng(seed), QuantizedCache(bits, block=block)
    whole = [np.empty((2, 3, 0, d)) for d in (5, 7)]
    for m, cut in rounds:
        before = whole[0].shape[2]
        new = [rng.uniform(-1, 1, size=(2, 3, m, d)) for d in (5, 7)]
        whole = [np.concatenate(x, axis=2) for x in zip(whole, new, strict=True)]
        for layer in (0, 1):
            got = cache.append(layer, *(library.array(x) for x in new))
            for x, y, like in zip(got, whole, new, strict=True):
                assert library.same_kind(x, library.array(like))
                x = library.numpy(x)
                np.testing.assert_array_equal(x[:, :, before:], y[:, :, before:])  # as they are
                # two roundings: a block that was cut is quantised again
                assert np.max(np.abs(x - y), initial=0) <= 2 / (2**bits - 1) + 1e-12
        if cut is not None:
            cache.truncate(min(cut, whole[0].shape[2]))
            whole = [x[:, :, :cut] for x in whole]
        n = whole[0].shape[2]
        assert len(cache) == n
        for held, y in zip((cache.keys(0), cache.values(0)), whole, strict=True):
            held = library.numpy(held)
            assert held.shape == y.shape
            assert np.max(np.abs(held - y), initial=0) <= 2 / (2**bits - 1) + 1e-12


def test_keys_share_steps_by_channel_and_values_by_token(library):
    rng, cache = np.random.default_rng(0), QuantizedCache(4, block=5)
    keys, values = rng.normal(size=(3, 12, 8)), rng.normal(size=(3, 12, 6))
    cache.append(0, library.array(keys), library.array(values))
    expected = [
        loop(keys[:, :10], 4, 1, 5)[0],
        loop(values[:, :10], 4, 2, 6)[0],
    ]
    for held, x, rest in zip(
        (cache.keys(0), cache.values(0)), expected, (keys, values), strict=True
    ):
        held = library.numpy(held)
        np.testing.assert_allclose(held[:, :10], x, atol=1e-14)
        np.testing.assert_array_equal(held[:, 10:], rest[:, 10:])


def test_the_parts_in_which_tokens_come_change_nothing_that_is_held(library):
    rng = np.random.default_rng(0)
    keys, values = (library.array(rng.normal(size=(2, 23, d))) for d in (4, 6))
    caches = []
    for cuts in ((0, 23), (0, 5, 6, 16, 23), range(24)):
        cache = QuantizedCache(8, block=5)
        for a, b in itertools.pairwise(cuts):
            cache.append(0, keys[:, a:b, :], values[:, a:b, :])
        caches.append(cache)
    for cache in caches[1:]:
        for name in ("keys", "values"):
            one, other = (library.numpy(getattr(c, name)(0)) for c in (caches[0], cache))
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("bits", "n"), [(2, 128), (4, 130), (8, 191)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nbytes_counts_everything(library, bits, n, dtype):
    cache, w = QuantizedCache(bits), {"float32": 4, "float64": 8}[dtype]
    new = [library.array(np.random.default_rng(0).normal(size=(3, n, d)), dtype) for d in (6, 10)]
    for layer in (0, 1):
        cache.append(layer, *new)
    blocks = n // 64
    tokens = 64 * blocks
    of_keys = 6 * blocks * (64 * bits // 8 + 2 * w)
    of_values = tokens * (math.ceil(10 * bits / 8) + 2 * w)
    newest = 64 * (6 + 10) * w
    assert cache.nbytes == 2 * 3 * (of_keys + of_values + newest)


def test_reorder_gives_each_beam_what_its_parent_had(library):
    rng, cache = np.random.default_rng(0), QuantizedCache(8, block=4)
    new = [library.array(rng.normal(size=(2, 3, 1, 10, d))) for d in (7, 2)]
    cache.append(0, *new)
    held = [library.numpy(x) for x in (cache.keys(0), cache.values(0))]
    index = np.array([[2, 0, 2, 1], [1, 1, 0, 2]])
    cache.reorder(library.array(index))
    moved = [x[np.arange(2)[:, None], index] for x in held]
    for got, x in zip((cache.keys(0), cache.values(0)), moved, strict=True):
        np.testing.assert_array_equal(library.numpy(got), x)
    got = cache.append(0, *(library.array(x[..., :1, :]) for x in moved))
    assert tuple(got[0].shape) == (2, 4, 1, 11, 7)
    np.testing.assert_array_equal(library.numpy(got[0])[..., :10, :], moved[0])


def test_a_part_of_a_block_goes_on_as_its_codes_say(library):
    rng, cache = np.random.default_rng(0), QuantizedCache(4, block=5)
    new = [library.array(rng.normal(size=(2, 13, d))) for d in (4, 6)]
    cache.append(0, *new)
    held = [library.numpy(x) for x in (cache.keys(0), cache.values(0))]
    for n in (12, 10, 8, 3, 0):
        cache.truncate(n)
        assert len(cache) == n
        for got, x in zip((cache.keys(0), cache.values(0)), held, strict=True):
            np.testing.assert_array_equal(library.numpy(got), x[:, :n])
    cache.append(0, *new)
    assert len(cache) == 13


# Decoding.


@pytest.mark.parametrize("decode", [greedy_decode, beam_search, sample])
def test_every_way_to_decode_takes_one(library, decode):
    weights = library.place(model(0, encoder=False, n_kv_heads=1))
    more = {beam_search: {"n_beams": 3}, sample: {"rng": 0}}.get(decode, {})
    options = {"prompt": library.array(np.array([[3, 1, 2]] * 2)), "max_length": 9, **more}
    cache = QuantizedCache(8, block=2)
    got, full = (decode(weights, cache=c, **options) for c in (cache, KVCache()))
    assert len(cache) == 3 + 9 - 1
    np.testing.assert_array_equal(library.numpy(got.tokens), library.numpy(full.tokens))
    np.testing.assert_allclose(library.numpy(got.scores), library.numpy(full.scores), atol=0.1)
    assert np.max(np.abs(library.numpy(got.scores) - library.numpy(full.scores))) > 0
    unfilled = QuantizedCache(2, block=99)  # no block is ever full
    got = decode(weights, cache=unfilled, **options)
    np.testing.assert_array_equal(library.numpy(got.scores), library.numpy(full.scores))


def test_speculative_sampling_cuts_it():
    large, small = (model(seed, encoder=False) for seed in (0, 1))
    cache = QuantizedCache(8, block=3)
    how = {"prompt": np.array([[3, 1]]), "max_length": 12, "rng": 0}
    got = speculative_sample(large, small, **how, cache=cache)
    assert got.tokens.shape == (1, 12)
    assert 2 + 12 - 1 <= len(cache) <= 2 + 12


def test_the_first_pass_is_exact():
    weights = model(0, encoder=False)
    prompt = np.array([[3, 1, 2, 4, 5, 1]])
    decoders = [
        IncrementalDecoder(weights, None, None, c, "reference")
        for c in (QuantizedCache(2, block=2), KVCache())
    ]
    np.testing.assert_array_equal(*(decoder.prefill(prompt) for decoder in decoders))


@pytest.fixture(scope="module")
def writer():
    return models.writer()


LINES = ("ROMEO: But soft", "First Murderer:\n", "What a piece of work", "MACBETH.\nTo-morrow")


@pytest.mark.parametrize("line", LINES)
def test_the_writer_writes_the_same_with_bytes(writer, line):
    ids = np.array([writer.tokenizer.encode(line)])
    how = {"prompt": ids, "max_length": 100}
    cache, full = QuantizedCache(8, block=16), KVCache()
    got, expected = (greedy_decode(writer.weights, cache=c, **how) for c in (cache, full))
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    assert cache.nbytes < full.nbytes


def filled():
    cache = QuantizedCache(block=2)
    cache.append(0, np.ones((3, 2, 3, 2)), np.ones((3, 2, 3, 5)))
    return cache


ONES = np.ones((3, 4))
ERRORS = f"""
quantize([1.0], 8)
    TypeError: x {NOT_AN_ARRAY}list
quantize(np.ones(3, int), 8)
    TypeError: x must have a real floating dtype, got int64
quantize(ONES, 3)
    ValueError: bits must be 2, 4 or 8, got 3
quantize(ONES, "8")
    TypeError: bits must be an int, got str
quantize(ONES, 8, axis=2)
    ValueError: axis must be from -2 to 1, got 2
quantize(ONES, 8, group=3)
    ValueError: group must divide the length 4 of axis -1, got 3
quantize(ONES, 8, group=0)
    ValueError: group must be at least 1, got 0
quantize(np.ones((3, 0)), 8)
    ValueError: x must have at least one number along axis -1, got (3, 0)
quantize(np.array([1.0, np.nan]), 8)
    ValueError: x must be finite to be quantised, got NaN or infinity
quantize(np.array([1.0, np.inf]), 8)
    ValueError: x must be finite to be quantised, got NaN or infinity
dequantize(ONES)
    TypeError: q must be a Quantized, got ndarray
QuantizedCache(5)
    ValueError: bits must be 2, 4 or 8, got 5
QuantizedCache(8, block=0)
    ValueError: block must be at least 1, got 0
QuantizedCache(8, block=1.0)
    TypeError: block must be an int, got float
QuantizedCache(8, block=1).append(0, ONES * np.inf, ONES)
    ValueError: keys must be finite to be quantised, got NaN or infinity
QuantizedCache(8, block=1).append(0, ONES, ONES * np.nan)
    ValueError: values must be finite to be quantised, got NaN or infinity
filled().append(0, np.ones((1, 3)), np.ones((1, 5)))
    ValueError: keys must have shape (3, 2, 1, 2), got (1, 3)
filled().truncate(4)
    ValueError: n must be from 0 to 3, the tokens of the cache, got 4
filled().reorder(np.zeros((2, 1), int))
    ValueError: index must have shape (3, m), got (2, 1)
filled().keys(1)
    ValueError: layer must be below the number of layers, 1, got 1
"""

test_the_cache_refuses = error_test(ERRORS, vars(decoding) | globals() | {"torch": torch})
