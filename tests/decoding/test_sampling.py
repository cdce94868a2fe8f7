"""The sampler draws tokens with the frequencies that temperature, top-k and top-p say."""

import math

import numpy as np
import pytest
from cases import Fixed
from decoding_models import model
from error_table import assert_raises, error_rows

from attnbook import decoding


def after(n, rows=1):
    """Return the prefixes of sequences that have made n tokens."""
    return [decoding.Prefix(np.zeros(1, dtype=int), np.zeros(n, dtype=int))] * rows


def test_each_token_has_a_piece_without_its_end(library):
    log_p = library.array(np.log(np.full((1, 4), 0.25)))
    for u, token in ((0.0, 0), (0.24, 0), (0.25, 1), (0.5, 2), (0.74, 2), (0.75, 3)):
        assert library.numpy(decoding.sampler(Fixed(u))(log_p, after(0))).tolist() == [token]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_temperatures_and_uniform_numbers(library, dtype):
    rows = library.array(np.log(np.tile([0.1, 0.45, 0.45], (400, 1))), dtype)
    cold = decoding.sampler(0, temperature=1e-320)(rows, after(0, 400))
    assert set(library.numpy(cold).tolist()) == {1, 2}  # equal ones stay equal
    almost = Fixed(1 - 2**-53)  # float32 rounds this u up to 1
    for row, token, rng, options in (
        ([-np.inf, 0.0, -np.inf], 1, 0, {"temperature": 1e-320}),
        ([-np.inf, 0.0, -np.inf], 1, 0, {"temperature": 1e300}),
        (np.log([0.25, 0.5, 0.25]), 2, almost, {}),
        ([-np.inf, -0.1, -2.0], 2, almost, {}),
    ):
        log_p = library.array(np.array([row]), dtype)
        found = decoding.sampler(rng, **options)(log_p, after(0))
        assert library.numpy(found).tolist() == [token]


def test_a_sequence_draws_the_same_whatever_its_neighbours():
    weights = model(0, encoder=False)
    prompt = np.random.default_rng(0).integers(7, size=(3, 4))
    options = {"rng": 5, "max_length": 6, "stop": 2}
    lengths = [2, 4, 3]
    together = decoding.sample(weights, prompt=prompt, prompt_lengths=lengths, **options)
    first = decoding.sample(weights, prompt=prompt[:1, :2], **options)
    n = int(first.lengths[0])
    np.testing.assert_array_equal(together.tokens[0, :n], first.tokens[0])
    other = np.concatenate([(prompt[:2] + 1) % 7, prompt[2:]])
    changed = decoding.sample(weights, prompt=other, prompt_lengths=[4, 1, 3], **options)
    n = int(together.lengths[2])
    np.testing.assert_array_equal(changed.tokens[2, :n], together.tokens[2, :n])
    assert changed.lengths[2] == n


def test_each_stream_draws_anew_and_a_seed_repeats():
    weights = model(0, encoder=False)
    options = {"prompt": np.full((5, 1), 1), "max_length": 7}
    rng = np.random.default_rng(0)
    one, two = (decoding.sample(weights, rng=rng, **options).tokens for _ in range(2))
    assert (one != two).any()
    np.testing.assert_array_equal(decoding.sample(weights, rng=0, **options).tokens, one)
    choose = decoding.sampler(0)
    for expected in (one, two):
        steps = list(decoding.stream(weights, choose=choose, **options))
        np.testing.assert_array_equal(np.stack([s.tokens for s in steps], axis=1), expected)


ERRORS = r"""
sampler(temperature=0)
    ValueError: temperature must be above 0, got 0; greedy_decode takes the most likely token
sampler(temperature=-1.0)
    ValueError: temperature must be finite and at least 0, got -1.0
sampler(temperature=math.inf)
    ValueError: temperature must be finite and at least 0, got inf
sampler(temperature="1")
    TypeError: temperature must be a real number, got str
sampler(top_k=0)
    ValueError: top_k must be at least 1, got 0
sampler(top_k=2.0)
    TypeError: top_k must be an int, got float
sampler(top_p=0)
    ValueError: top_p must be above 0 and at most 1, got 0
sampler(top_p=1.1)
    ValueError: top_p must be above 0 and at most 1, got 1.1
sampler(top_p=math.nan)
    ValueError: top_p must be finite and at least 0, got nan
sampler(rng=None)
    TypeError: rng must be a numpy.random.Generator or an int, got NoneType
sampler(rng=-1)
    ValueError: rng must be at least 0 if it is a seed, got -1
"""


@pytest.mark.parametrize("decode", [decoding.sampler, decoding.sample])
@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_sampling_refuses(decode, call, kind, message):
    def sampler(**options):
        more = (model(0, encoder=False),) if decode is decoding.sample else ()
        given = {"prompt": 1, "max_length": 3} if more else {}
        return decode(*more, **{"rng": 0} | given | options)

    assert_raises(call, kind, message, {"sampler": sampler, "math": math})


@pytest.mark.parametrize("row", [[-np.inf] * 3, [0.0, np.nan, 0.0], [np.inf, 0.0, 0.0]])
def test_a_draw_where_no_token_is_possible(library, row):
    log_p = library.array(np.array([[-1.0, -np.inf, -1.0], row]))
    message = "^log_probabilities must be finite for the best token of each row, got NaN or inf"
    with pytest.raises(ValueError, match=message):
        decoding.sampler(0)(log_p, after(0, 2))
