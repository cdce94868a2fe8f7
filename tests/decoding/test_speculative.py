"""Speculative decoding draws what the large model says, whatever the draft says."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import examples
from decoding_models import RING, Alone, cases, chain, model
from error_table import assert_raises, error_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook as ab
from attnbook import decoding

STOP = 3
ROUGH = np.random.default_rng(1).dirichlet([1.0] * 4, size=4)  # what a bad draft says


def exact(log_p, prompt, n, processors=(), stop=STOP):
    """Return the probability of every sequence of at most n tokens, by enumeration."""
    found = {}
    for tokens in itertools.chain(
        *(itertools.product(range(4), repeat=m) for m in range(1, n + 1))
    ):
        if stop in tokens[:-1] or (len(tokens) < n and tokens[-1] != stop):
            continue
        total = 1.0
        for i, token in enumerate(tokens):
            row = np.array([log_p([*prompt, *tokens[:i]])])
            prefix = decoding.Prefix(np.array(prompt), np.array(tokens[:i], dtype=int))
            for process in processors:
                row = process(row, [prefix])
            total *= ab.softmax(row)[0, token]
        found[tokens] = total
    assert math.isclose(sum(found.values()), 1)
    return found


def is_as_expected(found, expected):
    """Assert that the sequences found have their probabilities: one failure in a thousand."""
    n, counts = len(found), Counter(found)
    assert all(expected[tokens] > 0 for tokens in counts)
    often = [tokens for tokens, p in expected.items() if n * p >= 5]
    seen = np.array([counts[tokens] for tokens in often])
    wanted = n * np.array([expected[tokens] for tokens in often])
    rest = n - wanted.sum()  # all that are rare, as one
    chi_square = np.sum((seen - wanted) ** 2 / wanted) + (n - seen.sum() - rest) ** 2 / (rest + 1)
    free, normal = len(often), 3.09
    bound = free * (1 - 2 / (9 * free) + normal * math.sqrt(2 / (9 * free))) ** 3  # Wilson-Hilferty
    assert chi_square < bound


def sequences(result):
    pairs = zip(result.tokens.tolist(), result.lengths.tolist(), strict=True)
    return [tuple(row[:n]) for row, n in pairs]


SETTINGS = {
    "as they are": ({}, []),
    "temperature": ({"temperature": 0.6}, [decoding.temperature(0.6)]),
    "top-k": ({"top_k": 2}, [decoding.top_k(2)]),
    "all": (
        {"repetition_penalty": 1.5, "temperature": 1.4, "top_p": 0.9, "min_p": 0.05},
        [
            *(decoding.repetition_penalty(1.5), decoding.temperature(1.4)),
            *(decoding.top_p(0.9), decoding.min_p(0.05)),
        ],
    ),
}


@pytest.mark.parametrize(
    ("name", "lookahead"), [*((name, 2) for name in SETTINGS), ("as they are", 1), ("all", 4)]
)
def test_the_joint_distribution_is_that_of_the_model(name, lookahead):
    """A batch in lockstep: three tokens, each of which depends on all before it."""
    options, processors = SETTINGS[name]
    weights, draft = (model(seed, 4, encoder=False) for seed in (3, 8))
    expected = exact(Alone(weights), [1, 2], 3, processors)
    asked = {"prompt": np.array([[1, 2]] * 3000), "max_length": 3, "stop": STOP}
    found = decoding.speculative_sample(
        weights, draft, rng=4, lookahead=lookahead, **asked, **options
    )
    is_as_expected(sequences(found), expected)


def test_one_sequence_has_the_distribution_of_the_model():
    """Alone, nothing waits for others: the rounds end by its own rejections."""
    weights, draft = chain(ROUGH), chain(np.roll(ROUGH, 1, axis=0))
    expected = exact(Alone(weights), [0], 3)
    rng, asked = np.random.default_rng(5), {"prompt": 0, "max_length": 3, "stop": STOP}
    found = [
        decoding.speculative_sample(weights, draft, rng=rng, lookahead=3, **asked)
        for _ in range(500)
    ]
    is_as_expected([sequences(one)[0] for one in found], expected)


def test_the_chi_square_test_can_fail():
    """A draft whose tokens were all kept, as if p were q, would be seen."""
    weights, draft = chain(ROUGH), chain(np.roll(ROUGH, 1, axis=0))
    asked = {"prompt": np.zeros((3000, 1), int), "max_length": 3, "stop": STOP}
    found = decoding.sample(draft, rng=0, **asked)
    with pytest.raises(AssertionError):
        is_as_expected(sequences(found), exact(Alone(weights), [0], 3))


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_is_accepted_as_often_as_the_distributions_overlap(seed):
    p, q = np.random.default_rng(seed).dirichlet([1.0] * 4, size=2)
    alpha, n = np.minimum(p, q).sum(), 4000
    asked = {"prompt": np.zeros((n, 1), int), "max_length": 3, "lookahead": 1}
    found = decoding.speculative_sample(chain([p] * 4), chain([q] * 4), rng=seed, **asked)
    assert (found.drafted == 1).all()  # one after the first, none where one token is left
    assert abs(found.accepted.mean() - alpha) < 4 * math.sqrt(alpha * (1 - alpha) / n)


@pytest.mark.parametrize(("lookahead", "temperature"), [(1, 1.0), (3, 0), (3, 1.0), (30, 1.0)])
def test_a_model_accepts_all_of_itself(library, lookahead, temperature):
    weights = library.place(model(0, encoder=False))
    prompt = library.array(np.array([[3, 1, 4], [1, 5, 2]]))
    asked = {"prompt": prompt, "max_length": 14, "temperature": temperature}
    found = decoding.speculative_sample(weights, weights, rng=0, lookahead=lookahead, **asked)
    assert found.passes == 1 + math.ceil(13 / (lookahead + 1))
    accepted, drafted = library.numpy(found.accepted), library.numpy(found.drafted)
    assert accepted.tolist() == drafted.tolist() == [14 - found.passes] * 2


ZEROS = (0, 0.0, np.float32(0), np.int64(0), Fraction(0))


@settings(max_examples=examples(20))
@given(
    *(cases(), st.booleans(), st.integers(0, 99)),
    *(st.sampled_from((1, 2, 5)), st.sampled_from(ZEROS)),
)
def test_at_temperature_0_it_is_greedy(library, case, cache, seed, lookahead, zero):
    (weights, source), asked = case.options(library, cache=cache)
    asked["prompt_lengths"] = None
    rng = np.random.default_rng(seed)
    near = {
        name: x + library.array(rng.normal(0, 0.2, tuple(x.shape)))
        for name, x in weights.arrays().items()
    }
    draft = weights.with_arrays(near)
    expected = decoding.greedy_decode(weights, source, **asked)
    asked |= {"rng": 0, "temperature": zero, "lookahead": lookahead}
    found = decoding.speculative_sample(weights, draft, source, **asked)
    for name in ("tokens", "lengths"):
        got, wanted = getattr(found, name), getattr(expected, name)
        assert library.same_kind(got, wanted)
        np.testing.assert_array_equal(library.numpy(got), library.numpy(wanted))
    for name in ("log_probabilities", "scores"):
        got, wanted = (library.numpy(getattr(x, name)) for x in (found, expected))
        np.testing.assert_allclose(got, wanted, atol=1e-10)
    assert library.same_kind(found.accepted, found.lengths)
    assert library.same_kind(found.drafted, found.lengths)


def test_a_ring_is_guessed_by_itself_and_by_no_other():
    asked = {"prompt": 0, "max_length": 9, "rng": 0, "lookahead": 2}
    for draft, accepted, passes in ((RING, 5, 4), (np.roll(RING, 1, axis=0), 0, 9)):
        for temperature in (0, 1.0):
            found = decoding.speculative_sample(
                chain(RING), chain(draft), temperature=temperature, **asked
            )
            assert found.tokens[0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1]
            assert (found.accepted.tolist(), found.passes) == ([accepted], passes)


def test_the_large_model_reads_a_block_in_one_pass_and_the_cache_keeps_what_was_kept():
    weights, cache = model(0, encoder=False), decoding.KVCache()
    asked = {"prompt": np.array([[3, 1, 4]]), "max_length": 12}
    steps = decoding.speculative_stream(
        weights, model(1, encoder=False), rng=3, lookahead=4, cache=cache, **asked
    )
    tokens, drafted, block = [3, 1, 4], 0, None
    for i, step in enumerate(steps):
        if step.n_read:
            block = len(tokens) - 1 if i else 0
            left = 12 - i
            assert step.n_read == (min(4, left - 1) + 1 if i else 3)
            assert step.n_drafted == (step.n_read - 1 if i else 0)
        assert len(cache) == (block + (5 if i else 3) if left > 4 or not i else block + left)
        tokens.append(int(step.tokens[0]))
        drafted += bool(step.drafted[0])
    assert len(cache) == len(tokens) - 1  # the last token is not read
    expected = ab.transformer(None, np.array(tokens), weights)
    fresh = decoding.KVCache()
    decoding.greedy_decode(weights, prompt=np.array([tokens[:-1]]), max_length=1, cache=fresh)
    np.testing.assert_allclose(cache.keys(1), fresh.keys(1), atol=1e-12)
    assert expected.shape[0] == len(tokens)
    assert drafted > 0


def test_prompts_of_a_batch_end_each_by_itself():
    options = {"prompt": np.array([[0], [2], [3]]), "max_length": 6, "stop": 3, "pad": 1}
    found = decoding.speculative_sample(chain(RING), chain(RING), rng=0, lookahead=4, **options)
    assert found.tokens.tolist() == [[1, 2, 3, 1], [3, 1, 1, 1], [0, 1, 2, 3]]
    assert found.lengths.tolist() == [3, 1, 4]
    assert found.drafted.tolist() == [3, 0, 3]  # the draft ends with its stops
    assert found.accepted.tolist() == [2, 0, 3]


def test_what_is_read_after_the_end_does_not_matter():
    table = np.eye(4)
    table[2, 2] = np.nan  # 2 follows the stop alone, in what the draft guesses and in the pad
    p = np.array([[0, 1.0, 0, 0], [0, 0, 0, 1.0], [0, 0, 0, 1.0], [0, 0, 1.0, 0]])
    weights = replace(chain(p), target_embedding=table)
    options = {"prompt": np.array([[0], [1]]), "max_length": 6, "stop": 3, "pad": 2}
    for temperature in (0, 1.0):
        found = decoding.speculative_sample(
            weights, weights, rng=0, lookahead=3, temperature=temperature, **options
        )
        assert found.tokens.tolist() == [[1, 3], [3, 2]]
        assert np.isfinite(found.scores).all()
    with pytest.raises(ValueError, match=r"finite .* best token"):
        decoding.speculative_sample(weights, weights, rng=0, prompt=2, max_length=3)
    # what the draft guesses after the stop of one sequence is read with the guesses for the other
    table = np.diag([1.0, 1.0, 1.0, np.nan, 1.0])
    weights = replace(chain(np.eye(5)[[1, 3, 2, 2, 0]]), target_embedding=table)
    options["prompt"] = np.array([[0], [4]])
    found = decoding.speculative_sample(weights, weights, rng=0, lookahead=3, **options)
    assert found.tokens.tolist() == [[1, 3, 2], [0, 1, 3]]
    assert np.isfinite(found.scores).all()


def test_a_seed_repeats_and_a_generator_goes_on():
    weights, draft = model(0, encoder=False), model(1, encoder=False)
    rng, asked = np.random.default_rng(0), {"prompt": np.full((5, 1), 1), "max_length": 7}
    one, two = (
        decoding.speculative_sample(weights, draft, rng=rng, **asked).tokens for _ in range(2)
    )
    assert (one != two).any()
    again = decoding.speculative_sample(weights, draft, rng=0, **asked).tokens
    np.testing.assert_array_equal(again, one)


ALONE, SMALL, BOTH = (model(0, encoder=False), model(1, encoder=False), model(2))
NAMES = {"np": np, "torch": torch, "ALONE": ALONE, "SMALL": SMALL, "BOTH": BOTH, "ab": ab}
NAMES |= {"LARGER": model(0, 9, encoder=False)}
ERRORS = r"""
decode(lookahead=0)
    ValueError: lookahead must be at least 1, got 0
decode(lookahead=2.0)
    TypeError: lookahead must be an int, got float
decode(rng=None)
    TypeError: rng must be a numpy.random.Generator or an int, got NoneType
decode(temperature=-1)
    ValueError: temperature must be finite and at least 0, got -1.0
decode(temperature=False)
    TypeError: temperature must be a real number, got bool
decode(temperature="0")
    TypeError: temperature must be a real number, got str
decode(top_p=2.0)
    ValueError: top_p must be above 0 and at most 1, got 2.0
decode(SMALL.decoder)
    TypeError: draft must be TransformerWeights, got DecoderWeights
decode(LARGER)
    ValueError: draft must have 7 tokens to match weights, got 9
decode(ab.TransformerWeights(SMALL.decoder))
    ValueError: draft must have 7 tokens to match weights, got no embedding
decode(BOTH)
    ValueError: draft must have an encoder if weights have one, and none if they do not
decode(prompt=np.ones((2, 3), int), prompt_lengths=[3, 2])
    ValueError: prompt_lengths must be the same for all sequences, got 2 and 3: NAME reads no ragged
    prompts
decode(SMALL.to("torch"))
    TypeError: prompt must be an array of the same library as target_embedding (torch), got numpy
decode(k=3)
    TypeError: NAME() got an unexpected keyword argument 'k'
decode(max_length=0)
    ValueError: max_length must be at least 1, got 0
"""


@pytest.mark.parametrize("name", ["speculative_sample", "speculative_stream"])
@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_speculative_decoding_refuses(name, call, kind, message):
    def decode(draft=SMALL, **options):
        asked = {"rng": 0, "prompt": np.array([[1]]), "max_length": 3} | options
        return getattr(decoding, name)(ALONE, draft, **asked)

    assert_raises(call, kind, message.replace("NAME", name), NAMES | {"decode": decode})
