"""Greedy decoding, sampling, beam search and streaming, with the cache and without."""

import itertools
import math
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from cases import DTYPES, NOT_AN_ARRAY, SCORES, ArrayLibrary, need
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook as ab
from attnbook import check, decoding
from attnbook.arrays.arguments import array_namespace
from attnbook.decoding import incremental as reader

both = pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
NUMPY = ArrayLibrary("numpy")
POSITIONS = ("sinusoidal", "interleaved", "learned", "rotary", "none")


def model(seed=0, known=7, *, encoder=True, positions="sinusoidal", n_positions=None, **options):
    """Return weights with every number random, biases too, so that no step resembles another."""
    if positions == "learned" and n_positions is None:
        n_positions = 19
    weights = ab.TransformerWeights.init(
        *(seed, known, 11 if encoder else None),
        **{"d_model": 8, "n_heads": 2, "d_ff": 13, "n_layers": 2, "tied": False} | options,
        n_encoder_layers=1 if encoder else 0,
        positions=positions,
        n_positions=n_positions,
    )
    rng = np.random.default_rng(seed)
    arrays = weights.arrays().items()
    return weights.with_arrays({name: x + rng.normal(0, 0.4, x.shape) for name, x in arrays})


# What must come out: one sequence at a time, in float64 loops over the whole transformer.


class Alone:
    """The model's log p of the next token of one sequence, by reading all of it each time."""

    def __init__(self, weights, source=None):
        self.weights, self.source, self.known = weights, source, {}

    def __call__(self, prefix):
        key = tuple(map(int, prefix))
        if key not in self.known:
            logits = ab.transformer(self.source, np.array(key), self.weights)[-1]
            total = math.log(math.fsum(math.exp(x) for x in logits))
            self.known[key] = [x - total for x in logits]
        return self.known[key]


def greedy_loop(log_p, prompt, max_length, stop):
    return sampling_loop(log_p, prompt, max_length, stop, iter([0.0] * max_length), top_k=1)


def sampling_loop(log_p, prompt, max_length, stop, u, temperature=1.0, top_k=None, top_p=None):
    """Return tokens and their log p; `u` is an iterator of numbers in [0, 1)."""
    tokens, gains = [], []
    while len(tokens) < max_length and not (tokens and tokens[-1] in stop):
        row = log_p([*prompt, *tokens])
        order = sorted(range(len(row)), key=lambda v: (-row[v], v))[:top_k]
        shares = {v: math.exp((row[v] - row[order[0]]) / temperature) for v in order}
        total, kept = 0.0, []
        for v in order:
            kept.append(v)
            total += shares[v] / sum(shares.values())
            if top_p is not None and top_p < 1 and total >= top_p:
                break
        left = next(u) * sum(shares[v] for v in kept)
        for v in kept:
            left -= shares[v]
            if left < 0:
                break
        tokens.append(v)
        gains.append(row[v])
    return tokens, gains


def score(gains, alpha):
    return math.fsum(gains) / ((5 + len(gains)) / 6) ** alpha


def beam_loop(log_p, prompt, max_length, stop, n_beams, alpha):
    """Return the beams as tokens: log p, best first, and whether ties left no choice of them."""
    beams, is_certain = [([], [])], True

    def ended(tokens):
        return len(tokens) == max_length or (tokens and tokens[-1] in stop)

    while not all(ended(tokens) for tokens, _ in beams):
        grown = []
        for tokens, gains in beams:
            if ended(tokens):
                grown.append((tokens, gains))
                continue
            row = log_p([*prompt, *tokens])
            grown += [([*tokens, v], [*gains, row[v]]) for v in range(len(row))]
        grown.sort(key=lambda beam: -score(beam[1], alpha))
        beams, dropped = grown[:n_beams], grown[n_beams : n_beams + 1]
        for _, gains in dropped:
            is_certain &= score(beams[-1][1], alpha) - score(gains, alpha) > 1e-9
    return {tuple(tokens): gains for tokens, gains in beams}, is_certain


def all_sequences(log_p, prompt, max_length, stop, n_known, alpha):
    """Return every sequence that can be decoded with its score, best first."""
    found = []
    for n in range(1, max_length + 1):
        for tokens in itertools.product(range(n_known), repeat=n):
            early = any(v in stop for v in tokens[:-1])
            if early or (n < max_length and tokens[-1] not in stop):
                continue
            gains = [log_p([*prompt, *tokens[:i]])[v] for i, v in enumerate(tokens)]
            found.append((score(gains, alpha), list(tokens)))
    return sorted(found, key=lambda pair: -pair[0])


# Cases of every kind.


@dataclass(frozen=True)
class DecodingCase:
    weights: ab.TransformerWeights
    source: np.ndarray | None
    source_lengths: list[int] | None
    prompt: np.ndarray
    prompt_lengths: list[int]
    max_length: int
    stop: tuple[int, ...]

    def options(self, library, **others):
        """Return (weights, source) and the options in a library."""
        source = None if self.source is None else library.array(self.source)
        return (library.place(self.weights), source), {
            "prompt": library.array(self.prompt),
            "prompt_lengths": self.prompt_lengths,
            "source_lengths": self.source_lengths,
            "max_length": self.max_length,
            "stop": self.stop,
            "pad": 5,
            **others,
        }

    def alone(self):
        """Yield the model, prompt, length and stop tokens of each sequence by itself."""
        for b, n in enumerate(self.prompt_lengths):
            source = None
            if self.source is not None:
                source = self.source[b, : self.source_lengths[b]]  # the padding is cut off
            log_p = Alone(self.weights, source)
            yield log_p, self.prompt[b, :n].tolist(), self.max_length, self.stop


@st.composite
def cases(draw):
    encoder, seed = draw(st.booleans()), draw(st.integers(0, 2**32 - 1))
    weights = model(
        seed,
        encoder=encoder,
        positions=draw(st.sampled_from(POSITIONS)),
        norm=draw(st.sampled_from(("pre", "post"))),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        n_kv_heads=draw(st.sampled_from((1, 2))),
        n_layers=draw(st.sampled_from((0, 1, 2))),
        activation=draw(st.sampled_from(("relu", "gelu"))),
    )
    rng = np.random.default_rng(seed)
    batch, n_p, n_s = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 3), (1, 2, 5), (0, 1, 4)))
    return DecodingCase(
        weights,
        rng.integers(11, size=(batch, n_s)) if encoder else None,
        rng.integers(n_s + 1, size=batch).tolist() if encoder else None,
        rng.integers(7, size=(batch, n_p)),
        rng.integers(1, n_p + 1, size=batch).tolist(),
        draw(st.sampled_from((1, 2, 3, 6))),
        draw(st.sampled_from(((), (2,), (2, 3, 6)))),
    )


def agrees(library, result, expected, pad=5):
    """Assert that tokens, lengths and log p of each sequence are those expected."""
    tokens, lengths, gains, scores = (
        library.numpy(getattr(result, name))
        for name in ("tokens", "lengths", "log_probabilities", "scores")
    )
    assert lengths.tolist() == [len(row) for row, _ in expected]
    longest = max(lengths)
    assert tokens.shape == gains.shape == (len(expected), longest)
    for row, (sequence, log_p) in enumerate(expected):
        fill = longest - len(sequence)
        assert tokens[row].tolist() == sequence + [pad] * fill
        np.testing.assert_allclose(gains[row], log_p + [0.0] * fill, atol=1e-10)
        assert scores[row] == pytest.approx(math.fsum(log_p), abs=1e-10)


@both
@settings(max_examples=20)
@given(cases())
def test_greedy_agrees_with_the_loop(library, cache, case):
    arguments, options = case.options(library, cache=cache)
    result = decoding.greedy_decode(*arguments, **options)
    agrees(library, result, [greedy_loop(*sequence) for sequence in case.alone()])
    like = arguments[0].target_embedding
    assert library.same_kind(result.log_probabilities, like)
    assert library.same_kind(result.scores, like)
    assert library.same_kind(result.tokens, options["prompt"])


@both
@settings(max_examples=20)
@given(
    cases(),
    st.sampled_from((0.3, 1.0, 4.0)),
    st.sampled_from((None, 1, 3, 7, 100)),
    st.sampled_from((None, 1e-9, 0.5, 0.9, 1.0)),
)
def test_sampling_agrees_with_the_loop(library, cache, case, temperature, top_k, top_p):
    cuts = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    arguments, options = case.options(library, cache=cache)
    result = decoding.sample(*arguments, rng=3, **cuts, **options)
    children = np.random.default_rng(3).spawn(len(case.prompt))
    expected = [
        sampling_loop(*sequence, iter(child.random(6)), **cuts)
        for sequence, child in zip(case.alone(), children, strict=True)
    ]
    agrees(library, result, expected)


@both
@settings(max_examples=15)
@given(cases(), st.sampled_from((1, 2, 3, 11)), st.sampled_from((0.0, 0.6, 2.0)))
def test_beam_search_agrees_with_the_loop(library, cache, case, n_beams, alpha):
    """Of beams whose scores are equal but for rounding, any may be kept, in any order."""
    arguments, options = case.options(library, cache=cache)
    result = decoding.beam_search(*arguments, n_beams=n_beams, length_penalty=alpha, **options)
    found = [
        library.numpy(getattr(result, name))
        for name in ("tokens", "lengths", "scores", "log_probabilities")
    ]
    for sequence, tokens, lengths, scores, gains in zip(case.alone(), *found, strict=True):
        beams, is_certain = beam_loop(*sequence, n_beams, alpha)
        rows = [tuple(row[:n].tolist()) for row, n in zip(tokens, lengths, strict=True)]
        n = len(beams)
        assert tokens.shape[1] == gains.shape[1] == found[1].max()
        assert len(set(rows[:n])) == n
        if is_certain:
            assert set(rows[:n]) == set(beams)
            expected = [score(log_p, alpha) for log_p in beams.values()]
            np.testing.assert_allclose(scores[:n], expected, atol=1e-10)
        log_p, prompt, *_ = sequence
        for i, row in enumerate(rows[:n]):
            own = [log_p([*prompt, *row[:j]])[v] for j, v in enumerate(row)]
            fill = tokens.shape[1] - len(row)
            assert tokens[i].tolist() == [*row] + [5] * fill
            np.testing.assert_allclose(gains[i], own + [0.0] * fill, atol=1e-10)
            assert scores[i] == pytest.approx(score(own, alpha))
        assert (scores[n:] == -np.inf).all()
        assert (lengths[n:] == 0).all()
        assert (tokens[n:] == 5).all()


# Beam search.


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_enough_beams_find_the_best_of_all_sequences(seed, alpha):
    weights = model(seed, known=3)
    source = np.random.default_rng(seed).integers(11, size=(2, 5))
    options = {"prompt": 1, "max_length": 4, "stop": 2, "length_penalty": alpha}
    result = decoding.beam_search(weights, source, n_beams=50, **options)
    for b in range(2):
        expected = all_sequences(Alone(weights, source[b]), [1], 4, (2,), 3, alpha)
        n = len(expected)
        assert n == 2 + 4 + 8 * 3 + 1  # those that end after 1, 2, 3 and 4 tokens
        np.testing.assert_allclose(result.scores[b, :n], [s for s, _ in expected], atol=1e-12)
        pairs = zip(result.tokens[b, :n], result.lengths[b, :n], strict=True)
        assert {tuple(row[:m]) for row, m in pairs} == {tuple(row) for _, row in expected}
        assert (result.scores[b, n:] == -np.inf).all()
        assert (result.lengths[b, n:] == 0).all()
        assert (result.tokens[b, n:] == 0).all()


def chain(p, positions="none"):
    """Return a language model whose next token depends on the last alone, with table p."""
    n = len(p)
    with np.errstate(divide="ignore"):
        output = np.log(np.asarray(p, dtype=np.float64))
    return ab.TransformerWeights(
        ab.DecoderWeights(()),
        target_embedding=np.eye(n),
        output=np.where(np.isfinite(output), output, -1e9),
        positions=positions,
        scale_embeddings=False,
    )


TRAP = np.array([[0.0, 0.5, 0.4, 0.1], [0.4, 0.3, 0.3, 0.0], [0.0, 0.9, 0.1, 0.0], [0, 0, 0, 1]])
"""Token 1 is the best first step from 0, and 2, 1 the best two steps: 0.36 against 0.2."""


@both
def test_beam_search_finds_what_greedy_misses(library, cache):
    weights = library.place(chain(TRAP))
    options = {"prompt": 0, "max_length": 2, "cache": cache}
    greedy = decoding.greedy_decode(weights, **options)
    assert library.numpy(greedy.tokens).tolist() == [[1, 0]]
    best = decoding.beam_search(weights, n_beams=2, **options)
    assert library.numpy(best.tokens).tolist() == [[[2, 1], [1, 0]]]
    np.testing.assert_allclose(np.exp(library.numpy(best.scores)), [[0.36, 0.2]], atol=1e-12)


@settings(max_examples=20)
@given(cases(), st.sampled_from((0.0, 1.0)))
def test_one_beam_is_greedy(case, alpha):
    (weights, source), options = case.options(NUMPY)
    greedy = decoding.greedy_decode(weights, source, **options)
    beam = decoding.beam_search(weights, source, n_beams=1, length_penalty=alpha, **options)
    np.testing.assert_array_equal(beam.tokens[:, 0], greedy.tokens)
    np.testing.assert_array_equal(beam.lengths[:, 0], greedy.lengths)
    np.testing.assert_allclose(beam.log_probabilities[:, 0], greedy.log_probabilities, atol=1e-12)


def test_the_length_penalty_decides_between_short_and_long():
    # 0 ends at once with p = 0.3 or goes on to a tail of near certainty with 0.25
    p = np.array([[0.0, 0.25, 0.45, 0.3], [0, 0.99, 0, 0.01], [0.5, 0, 0.5, 0], [0, 0, 0, 1.0]])
    options = {"prompt": 0, "max_length": 6, "stop": 3, "n_beams": 60}
    short = decoding.beam_search(chain(p), **options)
    assert short.tokens[0, 0, :1].tolist() == [3]
    assert short.lengths[0, 0] == 1
    assert short.scores[0, 0] == pytest.approx(math.log(0.3))
    long = decoding.beam_search(chain(p), length_penalty=1.0, **options)
    assert long.tokens[0, 0].tolist() == [1] * 6
    assert long.scores[0, 0] == pytest.approx((math.log(0.25) + 5 * math.log(0.99)) / (11 / 6))


def test_equal_scores_keep_the_order_of_the_vocabulary(library):
    weights = library.place(chain(np.full((4, 4), 0.25)))
    result = decoding.beam_search(weights, prompt=0, max_length=2, n_beams=6)
    found = library.numpy(result.tokens)[0].tolist()
    assert found == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]]
    greedy = decoding.greedy_decode(weights, prompt=3, max_length=3)
    assert library.numpy(greedy.tokens).tolist() == [[0, 0, 0]]


# Sampling.


def drawn(log_p, n=1, seed=0, **cuts):
    """Return `n` draws for each row of log p."""
    choose = decoding.sampler(seed, **cuts)
    log_p = np.atleast_2d(log_p)
    made = np.zeros(len(log_p), dtype=int)
    return np.stack([choose(log_p, made + i) for i in range(n)])


@pytest.mark.parametrize(
    ("cuts", "q"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, np.array([1, 16, 4, 9]) / 30),
        ({"temperature": 1e9}, [0.25] * 4),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.75}, [0, 4 / 9, 2 / 9, 3 / 9]),
        # of the two that top_k leaves, the first has 4/7 already
        ({"top_k": 2, "top_p": 0.55}, [0, 1, 0, 0]),
        # 16/30 is more than a half, 0.4 is not
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0]),
    ],
)
def test_draws_have_their_frequencies(cuts, q):
    n = 4_000
    rows = np.tile(np.log([0.1, 0.4, 0.2, 0.3]), (n, 1))
    counts = np.bincount(drawn(rows, **cuts)[0], minlength=4)
    expected = n * np.asarray(q)
    assert (counts[expected == 0] == 0).all()
    seen = expected > 0
    chi_square = np.sum((counts[seen] - expected[seen]) ** 2 / expected[seen])
    assert chi_square < 16.3  # 3 degrees of freedom, one in a thousand


class Fixed(np.random.Generator):
    """A generator that draws one number again and again."""

    def __init__(self, u):
        super().__init__(np.random.PCG64(0))
        self.u = u

    def random(self):
        return self.u

    def spawn(self, n):
        return [self] * n


def test_each_token_has_a_piece_without_its_end(library):
    log_p = library.array(np.log(np.full((1, 4), 0.25)))
    for u, token in ((0.0, 0), (0.24, 0), (0.25, 1), (0.5, 2), (0.74, 2), (0.75, 3)):
        found = decoding.sampler(Fixed(u))(log_p, np.zeros(1, dtype=int))
        assert library.numpy(found).tolist() == [token]


def test_top_k_of_equals_keeps_the_first(library):
    log_p = library.array(np.log(np.full((500, 5), 0.2)))
    found = library.numpy(decoding.sampler(0, top_k=3)(log_p, np.zeros(500, dtype=int)))
    assert set(found.tolist()) == {0, 1, 2}


def test_top_p_keeps_what_just_reaches_its_number_and_the_best():
    # powers of 2: their sums are exact, elsewhere rounding decides
    p = np.log([0.5, 0.25, 0.125, 0.125])
    assert set(drawn(p, 200, top_p=0.5)[:, 0].tolist()) == {0}
    assert set(drawn(p, 200, top_p=0.75)[:, 0].tolist()) == {0, 1}
    assert set(drawn(p, 200, top_p=0.76)[:, 0].tolist()) == {0, 1, 2}
    assert set(drawn(p, 200, top_p=1)[:, 0].tolist()) == {0, 1, 2, 3}
    assert set(drawn(p, 200, top_p=1e-300)[:, 0].tolist()) == {0}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_temperatures_and_uniform_numbers(library, dtype):
    rows = library.array(np.log(np.tile([0.1, 0.45, 0.45], (400, 1))), dtype)
    made = np.zeros(400, dtype=int)
    cold = library.numpy(decoding.sampler(0, temperature=1e-320)(rows, made))
    assert set(cold.tolist()) == {1, 2}  # equal ones stay equal
    banned = library.array(np.array([[-np.inf, 0.0, -np.inf]]), dtype)
    for temperature in (1e-320, 1.0, 1e300):
        choose = decoding.sampler(0, temperature=temperature)
        assert library.numpy(choose(banned, np.zeros(1, dtype=int))).tolist() == [1]

    # float32 rounds this u up to 1
    last = library.array(np.log(np.array([[0.25, 0.5, 0.25]])), dtype)
    assert library.numpy(
        decoding.sampler(Fixed(1 - 2**-53))(last, np.zeros(1, dtype=int))
    ).tolist() == [2]
    banned = library.array(np.array([[-np.inf, -0.1, -2.0]]), dtype)
    assert library.numpy(
        decoding.sampler(Fixed(1 - 2**-53))(banned, np.zeros(1, dtype=int))
    ).tolist() == [2]


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


# Streaming.


def test_stream_yields_each_step_as_it_is_made(library, monkeypatch):
    read = counted(monkeypatch)
    weights, prompt = library.place(model(0, encoder=False)), library.array(np.array([[3, 1, 4]]))
    steps = decoding.stream(weights, prompt=prompt, max_length=4)
    assert read == []
    whole = library.numpy(decoding.greedy_decode(weights, prompt=prompt, max_length=4).tokens)
    read.clear()
    for i, step in enumerate(steps):
        assert read == [3] + [1] * i  # nothing is computed ahead
        assert tuple(step.tokens.shape) == (1,)
        assert library.numpy(step.tokens)[0] == whole[0, i]
        assert library.numpy(step.made).tolist() == [True]
    assert i == 3


def test_stream_says_who_made_a_token():
    p = np.array([[0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [1.0, 0, 0, 0]])
    prompt = np.array([[0, 2, 2], [3, 0, 1], [1, 0, 0]])
    steps = list(
        decoding.stream(
            chain(p), prompt=prompt, prompt_lengths=[1, 3, 1], max_length=4, stop=3, pad=0
        )
    )
    assert [s.tokens.tolist() for s in steps] == [[1, 0, 2], [2, 1, 3], [3, 2, 0], [0, 3, 0]]
    made = [[True, False, True], [True, False, True], [True, True, False], [False, True, False]]
    assert [s.made.tolist() for s in steps] == made
    assert all((s.log_probabilities == 0).all() for s in steps)
    whole = decoding.greedy_decode(
        chain(p), prompt=prompt, prompt_lengths=[1, 3, 1], max_length=4, stop=3, pad=1
    )
    assert whole.tokens.tolist() == [[1, 2, 3], [2, 3, 1], [2, 3, 1]]


def test_choose_sees_the_probabilities_and_how_many_were_made(library):
    seen = []

    def choose(log_p, made):
        seen.append(made.tolist())
        total = np.exp(library.numpy(log_p)).sum(axis=-1)
        np.testing.assert_allclose(total, [1.0, 1.0])
        return library.array(np.array([len(seen), 6]), "int32")

    weights = library.place(model(0, encoder=False))
    prompt = library.array(np.array([[3, 1, 4], [1, 0, 0]]))
    options = {"prompt": prompt, "prompt_lengths": [3, 1], "max_length": 2}
    steps = list(decoding.stream(weights, choose=choose, **options))
    assert seen == [[0, 0], [0, 1], [0, 2], [1, 3]]
    found = [library.numpy(step.tokens).tolist() for step in steps]
    assert found == [[1, 6], [4, 6], [3, 0], [4, 0]]
    assert library.same_kind(steps[0].tokens, prompt)


@settings(max_examples=20)
@given(cases())
def test_the_cache_changes_no_probability(case):
    (weights, source), options = case.options(NUMPY)
    seen = {True: [], False: []}
    for cache, rows in seen.items():

        def choose(log_p, made, rows=rows):
            rows.append(log_p)
            return log_p.argmax(axis=-1)

        list(decoding.stream(weights, source, choose=choose, cache=cache, **options))
    np.testing.assert_allclose(seen[True], seen[False], atol=1e-11)


# What is read, and how often.


def counted(monkeypatch):
    """Return a list to which each pass of the decoder adds its number of tokens."""
    read, original = [], reader.decode

    def counting(target, *arguments, **options):
        read.append(target.shape[-1])
        return original(target, *arguments, **options)

    monkeypatch.setattr(reader, "decode", counting)
    return read


@pytest.mark.parametrize("search", ["greedy_decode", "beam_search"])
def test_with_the_cache_each_token_is_read_once(monkeypatch, search):
    read = counted(monkeypatch)
    more = {"n_beams": 2} if search == "beam_search" else {}
    decode = getattr(decoding, search)
    prompt, weights = np.ones((2, 5), dtype=int), model(0, encoder=False)
    decode(weights, prompt=prompt, max_length=4, **more)
    assert read == [5, 1, 1, 1]
    read.clear()
    decode(weights, prompt=prompt, max_length=4, cache=False, **more)
    assert read == [5, 6, 7, 8]
    read.clear()  # the prompts have two tokens in common
    decode(weights, prompt=prompt, prompt_lengths=[2, 5], max_length=1, **more)
    assert read == [2, 1, 1, 1]


@both
def test_logits_are_made_of_the_last_token_alone(monkeypatch, cache):
    shapes, original = [], reader.decode

    def shaped(*arguments, **options):
        logits, others = original(*arguments, **options)
        shapes.append(logits.shape)
        return logits, others

    monkeypatch.setattr(reader, "decode", shaped)
    weights, prompt = model(0, encoder=False), np.ones((2, 5), dtype=int)
    options = {"prompt": prompt, "max_length": 3, "cache": cache}
    decoding.greedy_decode(weights, **options)
    decoding.beam_search(weights, n_beams=4, **options)
    one, beams = (2, 1, 7), (2, 4, 1, 7)
    assert shapes == [one] * 3 + [(2, 1, 1, 7)] + [beams] * 2


def test_the_source_is_read_once(monkeypatch):
    calls = []
    for name in ("encode", "memory_keys_and_values"):
        original = getattr(reader, name)

        def counting(*arguments, name=name, original=original, **options):
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(reader, name, counting)
    decoding.greedy_decode(model(0), np.ones((2, 5), dtype=int), prompt=1, max_length=4)
    assert calls == ["encode", "memory_keys_and_values"]


@pytest.mark.parametrize("search", ["greedy_decode", "beam_search"])
def test_decoding_ends_when_all_have_ended(monkeypatch, search):
    read = counted(monkeypatch)
    more = {"n_beams": 1} if search == "beam_search" else {}
    p = np.array([[0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [0, 0, 0, 1.0]])
    options = {"prompt": np.array([[0], [1]]), "stop": np.array([3]), "max_length": 100}
    result = getattr(decoding, search)(chain(p), **options, **more)
    assert result.lengths.ravel().tolist() == [3, 2]
    assert result.tokens.reshape(2, 3).tolist() == [[1, 2, 3], [2, 3, 0]]
    assert read == [1, 1, 1]


def test_a_search_ends_when_only_places_are_left_that_no_sequence_takes(monkeypatch):
    read = counted(monkeypatch)
    nothing = np.array([-np.inf, -np.inf, -np.inf, 0.0])
    weights = replace(chain(TRAP), b_out=nothing)
    result = decoding.beam_search(weights, prompt=0, max_length=100, stop=3, n_beams=3, pad=2)
    assert read == [1]
    assert result.lengths.tolist() == [[1, 0, 0]]
    assert result.tokens.tolist() == [[[3], [2], [2]]]
    assert result.scores[0, 1:].tolist() == [-np.inf, -np.inf]


def test_decoding_stops_at_the_first_of_several_stop_tokens():
    p = np.array([[0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [1.0, 0, 0, 0]])
    for stop, n in ((None, 7), ((), 7), (3, 3), ([3, 2], 2), (np.int64(1), 1), ({0}, 4)):
        result = decoding.greedy_decode(chain(p), prompt=0, max_length=7, stop=stop)
        assert result.lengths.tolist() == [n]
    # a stop token in the prompt is no end
    result = decoding.greedy_decode(chain(p), prompt=np.array([[3, 0]]), max_length=7, stop=3)
    assert result.tokens.tolist() == [[1, 2, 3]]


def test_stop_tokens_may_be_an_array(library):
    weights = model(0, encoder=False)
    options = {"prompt": np.array([[1], [2], [3]]), "max_length": 9}
    for stop in (2, [2, 6]):
        expected = decoding.greedy_decode(weights, stop=stop, **options)
        found = decoding.greedy_decode(weights, stop=library.array(np.array(stop)), **options)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert min(expected.lengths) < 9


def test_learned_positions_up_to_the_last():
    weights = model(0, encoder=False, positions="learned", n_positions=6)
    for cache in (True, False):
        result = decoding.greedy_decode(weights, prompt=1, max_length=6, cache=cache)
        assert result.lengths.tolist() == [6]


# Masks, dtypes, PyTorch.


@both
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1, 1, 4), (1, 1, 1, 4), (3, 2, 1, 4), (4, 4)])
def test_a_mask_of_the_source(library, cache, shape):
    weights, rng = model(0), np.random.default_rng(0)
    mask, source = rng.random(shape) < 0.6, rng.integers(11, size=(3, 4))
    options = {"prompt": 1, "max_length": 5, "cache": cache, "source_mask": library.array(mask)}
    arguments = (library.place(weights), library.array(source))
    result = decoding.greedy_decode(*arguments, **options)
    target = np.concatenate([np.ones((3, 1), dtype=int), library.numpy(result.tokens)], axis=1)
    logits = ab.transformer(source, target[:, :-1], weights, source_mask=mask)
    np.testing.assert_array_equal(library.numpy(result.tokens), logits.argmax(axis=-1))
    beam = decoding.beam_search(*arguments, n_beams=1, **options)
    np.testing.assert_array_equal(library.numpy(beam.tokens)[:, 0], library.numpy(result.tokens))
    best = decoding.beam_search(*arguments, n_beams=3, **options)
    rows = library.numpy(best.tokens)  # the scores are those of reading it at once
    for i in range(3):
        target = np.concatenate([np.ones((3, 1), dtype=int), rows[:, i]], axis=1)
        logits = ab.transformer(source, target[:, :-1], weights, source_mask=mask)
        gains = np.take_along_axis(ab.log_softmax(logits), rows[:, i, :, None], axis=-1)
        expected = gains.sum(axis=(1, 2))
        np.testing.assert_allclose(library.numpy(best.scores)[:, i], expected, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(library, dtype):
    need(library, dtype)
    weights = library.place(model(0), dtype)
    source = library.array(np.array([[3, 1, 4], [1, 5, 9]]), "int32")
    prompt = library.array(np.ones((2, 2)), "int8")
    options = {"prompt": prompt, "max_length": 5, "stop": 2}
    results = [decoding.greedy_decode(weights, source, **options, cache=c) for c in (True, False)]
    results += [decoding.sample(weights, source, rng=0, top_p=0.9, top_k=4, **options)]
    results += [decoding.beam_search(weights, source, n_beams=2, length_penalty=1, **options)]
    wide = "float64" if dtype == "float64" else "float32"
    for result in results:
        assert str(result.tokens.dtype).endswith("int64")
        assert str(result.lengths.dtype).endswith("int64")
        assert str(result.log_probabilities.dtype).endswith(wide)
        assert str(result.scores.dtype).endswith(wide)
        assert np.isfinite(library.numpy(result.scores)).all()


def test_pytorch_records_no_graph_and_keeps_its_mode():
    weights = model(0, encoder=False).to("torch")
    weights = weights._map(lambda name, x: x.clone().requires_grad_())
    options = {"prompt": torch.tensor([[1, 2]]), "max_length": 3}
    for step in decoding.stream(weights, **options):
        assert torch.is_grad_enabled()
        assert not step.log_probabilities.requires_grad
    result = decoding.beam_search(weights, n_beams=2, **options)
    assert not result.scores.requires_grad
    assert not decoding.sample(weights, rng=0, **options).scores.requires_grad


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_model_that_is_decoded_does_not_see_the_future(positions, norm):
    weights = model(0, encoder=False, positions=positions, norm=norm)
    report = check.no_future_leak(
        lambda x: ab.transformer(None, x, weights), np.array([[1, 2, 3, 4, 5, 6]])
    )
    assert report.passed


# Errors.

SOURCE = np.array([[3, 1, 4], [1, 5, 9]])
GOOD = {"prompt": 1, "max_length": 3}
ALONE = {"encoder": False}
PROMPT = np.array([[1, 2], [3, 4]])
READ = {"prompt": PROMPT}


UNKNOWN = "prompt must be from 0 to 6"
SHAPE = "prompt must have shape "
WRONG_VALUES = (
    ({}, None, {}, "source must be an array for the encoder, got None"),
    (ALONE, SOURCE, {}, "source must be None, since the weights have no encoder"),
    ({}, SOURCE[0], {}, "source must have shape (batch, n_s) with batch >= 1, got (3,)"),
    ({}, SOURCE[:0], {}, "source must have shape (batch, n_s) with batch >= 1, got (0, 3)"),
    ({}, SOURCE + 2, {}, "source must be from 0 to 10 to be known to source_embedding, got 11"),
    ({}, SOURCE, {"source_lengths": [3, 4]}, "source_lengths must be from 0 to 3, got 4"),
    ({}, SOURCE, {"source_lengths": [3]}, "source_lengths must have shape (2,), got (1,)"),
    ({}, SOURCE, {"source_lengths": [3, -1]}, "source_lengths must be at least 0, got -1"),
    (ALONE, None, {"source_lengths": [3]}, "source_lengths must be None, since there is no source"),
    (
        *({}, SOURCE, {"source_lengths": [3, 1], "source_mask": np.ones((1, 3), dtype=bool)}),
        "source_lengths must be None where source_mask is given",
    ),
    (
        *({}, SOURCE, {"source_mask": np.ones((1, 4), dtype=bool)}),
        f"source_mask {SCORES}(2, 2, 3, 3), got (1, 4)",
    ),
    (
        *(ALONE, None, {"source_mask": np.ones((1, 3), dtype=bool)}),
        "source_mask must be None, since the weights have no encoder",
    ),
    ({}, SOURCE, {"prompt": 7}, f"{UNKNOWN}, a known token, got 7"),
    ({}, SOURCE, {"prompt": -1}, "prompt must be at least 0, got -1"),
    ({}, SOURCE, {"prompt": PROMPT + 3}, f"{UNKNOWN} to be known to target_embedding, got 7"),
    ({}, SOURCE, {"prompt": PROMPT[:1]}, f"{SHAPE}(2, n_p), n_p >= 1, got (1, 2)"),
    ({}, SOURCE, {"prompt": PROMPT[:, :0]}, f"{SHAPE}(2, n_p), n_p >= 1, got (2, 0)"),
    (
        *(ALONE, None, {"prompt": PROMPT[:0]}),
        f"{SHAPE}(batch, n_p) with batch >= 1, n_p >= 1, got (0, 2)",
    ),
    (
        *(ALONE, None, {"prompt": PROMPT[0]}),
        f"{SHAPE}(batch, n_p) with batch >= 1, n_p >= 1, got (2,)",
    ),
    (ALONE, None, READ | {"prompt_lengths": [0, 2]}, "prompt_lengths must be from 1 to 2, got 0"),
    (ALONE, None, READ | {"prompt_lengths": [1, 3]}, "prompt_lengths must be from 1 to 2, got 3"),
    (
        *(ALONE, None, READ | {"prompt_lengths": [[1, 2]]}),
        "prompt_lengths must have shape (2,), got (1, 2)",
    ),
    ({}, SOURCE, {"max_length": 0}, "max_length must be at least 1, got 0"),
    (
        *({"positions": "learned", "n_positions": 6}, SOURCE, READ | {"max_length": 6}),
        "max_length must be at most 5 after a prompt of 2 tokens with 6 learned positions, got 6",
    ),
    (
        *(ALONE | {"positions": "learned", "n_positions": 1}, None, READ),
        "prompt must have at most 1 tokens, as many as learned positions, got 2",
    ),
    ({}, SOURCE, {"stop": 7}, "stop must be from 0 to 6, a known token, got 7"),
    ({}, SOURCE, {"stop": [2, -1]}, "stop must be at least 0, got -1"),
    ({}, SOURCE, {"pad": 7}, "pad must be from 0 to 6, a known token, got 7"),
)
WRONG_TYPES = (
    ({}, [[1]], {}, f"source {NOT_AN_ARRAY}list"),
    ({}, SOURCE * 1.0, {}, "source must be an array of integers, got float64"),
    ({}, SOURCE, {"prompt": True}, "prompt must be an int, got bool"),
    ({}, SOURCE, {"prompt": [[1]]}, f"prompt {NOT_AN_ARRAY}list"),
    ({}, SOURCE, {"prompt": PROMPT * 1.0}, "prompt must be an array of integers, got float64"),
    (
        *(ALONE, None, {"prompt": torch.tensor(PROMPT)}),
        "prompt must be an array of the same library as target_embedding (numpy), got torch",
    ),
    (
        *(ALONE, None, READ | {"prompt_lengths": [1.0, 2.0]}),
        "prompt_lengths must be ints, got float64",
    ),
    ({}, SOURCE, {"max_length": 3.0}, "max_length must be an int, got float"),
    ({}, SOURCE, {"stop": "2"}, "stop must be an int, got str"),
    ({}, SOURCE, {"stop": 2.0}, "stop must be an int, got float"),
    ({}, SOURCE, {"stop": np.array([2.0])}, "stop must be an int, got float"),
    ({}, SOURCE, {"stop": torch.tensor([[2]])}, "stop must be an int, got list"),
    ({}, SOURCE, {"cache": 1}, "cache must be a bool, got int"),
)


@pytest.mark.parametrize(
    ("kind", "source", "options", "message", "error"),
    [(*case, ValueError) for case in WRONG_VALUES] + [(*case, TypeError) for case in WRONG_TYPES],
)
def test_errors_of_every_strategy(kind, source, options, message, error):
    weights = model(0, **kind)
    for decode, more in (
        (decoding.greedy_decode, {}),
        (decoding.sample, {"rng": 0}),
        (decoding.stream, {}),  # at the call, before the first step is asked for
        (decoding.beam_search, {"n_beams": 2}),
    ):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            decode(weights, source, **GOOD | options, **more)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            *({"temperature": 0}, ValueError),
            "temperature must be above 0, got 0; greedy_decode takes the most likely token",
        ),
        ({"temperature": -1.0}, ValueError, "temperature must be finite and at least 0, got -1.0"),
        (
            *({"temperature": math.inf}, ValueError),
            "temperature must be finite and at least 0, got inf",
        ),
        ({"temperature": "1"}, TypeError, "temperature must be a real number, got str"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 2.0}, TypeError, "top_k must be an int, got float"),
        ({"top_p": 0}, ValueError, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.1}, ValueError, "top_p must be above 0 and at most 1, got 1.1"),
        ({"top_p": math.nan}, ValueError, "top_p must be finite and at least 0, got nan"),
        ({"rng": None}, TypeError, "rng must be a numpy.random.Generator or an int, got NoneType"),
        ({"rng": -1}, ValueError, "rng must be at least 0 if it is a seed, got -1"),
    ],
)
def test_errors_of_sampling(options, error, message):
    options = {"rng": 0} | options
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        decoding.sampler(**options)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        decoding.sample(model(0), SOURCE, **GOOD, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_beams": 0}, ValueError, "n_beams must be at least 1, got 0"),
        ({"n_beams": 2.0}, TypeError, "n_beams must be an int, got float"),
        (
            *({"length_penalty": -0.5}, ValueError),
            "length_penalty must be finite and at least 0, got -0.5",
        ),
        ({"length_penalty": None}, TypeError, "length_penalty must be a real number, got NoneType"),
    ],
)
def test_errors_of_beam_search(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        decoding.beam_search(model(0), SOURCE, **GOOD, **{"n_beams": 2} | options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_length_penalty_that_overflows(dtype):
    weights = model(0).to(dtype=dtype)
    options = {"prompt": 1, "max_length": 40, "n_beams": 2}
    bound = math.log(np.finfo(dtype).max) / math.log(45 / 6)
    result = decoding.beam_search(weights, SOURCE, length_penalty=0.999 * bound, **options)
    assert (result.scores < 0).all()
    for alpha in (1.001 * bound, 1e308):
        message = (
            "length_penalty must leave ((5 + 40) / 6)^length_penalty, the penalty of max_length, "
            f"finite in {dtype}, got {alpha}"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            decoding.beam_search(weights, SOURCE, length_penalty=alpha, **options)


def test_errors_name_the_function_that_was_called():
    for name, more in (("sample", {"rng": 0}), ("stream", {}), ("beam_search", {"n_beams": 2})):
        decode = getattr(decoding, name)
        message = rf"^{name}\(\) missing a required (keyword-only )?argument: 'prompt'$"
        with pytest.raises(TypeError, match=message):
            decode(model(0), SOURCE, max_length=3, **more)
        with pytest.raises(
            TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'k'$"
        ):
            decode(model(0), SOURCE, k=3, **GOOD, **more)


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        (
            *(np.array([1, 7]), ValueError),
            "choose(…) must be from 0 to 6 to be known to log_probabilities, got 7",
        ),
        (np.array([1.0, 2.0]), TypeError, "choose(…) must be an array of integers, got float64"),
        (np.array([1]), ValueError, "choose must return an array of shape (2,), got (1,)"),
        ([1, 2], TypeError, f"choose(…) {NOT_AN_ARRAY}list"),
    ],
)
def test_errors_of_choose(chosen, error, message):
    steps = decoding.stream(model(0), SOURCE, **GOOD, choose=lambda log_p, made: chosen)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        next(steps)
    with pytest.raises(TypeError, match=r"^choose must be callable, got int$"):
        decoding.stream(model(0), SOURCE, **GOOD, choose=1)


def test_weights_that_cannot_decode():
    weights = model(0)
    with pytest.raises(
        TypeError, match=r"^weights must be TransformerWeights, got DecoderWeights$"
    ):
        decoding.greedy_decode(weights.decoder, SOURCE, **GOOD)
    features = ab.TransformerWeights(weights.decoder, weights.encoder)
    message = "weights must have a target_embedding to decode tokens, got None"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decoding.greedy_decode(features, SOURCE, **GOOD)


@both
def test_logits_that_are_no_numbers(library, cache):
    table = np.eye(4)
    table[1, 2] = np.nan  # token 1 comes first, and is read second
    damaged = replace(chain(TRAP), target_embedding=table)
    endless = replace(chain(TRAP), b_out=np.array([0.0, np.inf, 0.0, 0.0]))
    for weights, n in ((damaged, 2), (endless, 1)):
        arguments = (library.place(weights),)
        options = {"prompt": 0, "max_length": 5, "cache": cache}
        message = (
            "weights must give finite logits to the best token, got NaN or infinity after "
            f"{n} tokens"
        )
        for decode, more in ((decoding.greedy_decode, {}), (decoding.beam_search, {"n_beams": 2})):
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                decode(*arguments, **options, **more)


@both
def test_logits_after_the_end_do_not_matter(library, cache):
    # 2, the pad, has NaN logits: the first sequence ends at once and then reads it
    table = np.eye(4)
    table[2, 2] = np.nan
    p = np.array([[0, 1.0, 0, 0], [0, 0, 0, 1.0], [0, 0, 0, 1.0], [1.0, 0, 0, 0]])
    weights = library.place(replace(chain(p), target_embedding=table))
    prompt = library.array(np.array([[1], [3]]))
    options = {"prompt": prompt, "max_length": 5, "stop": 3, "pad": 2, "cache": cache}
    expected = [[3, 2, 2], [0, 1, 3]]
    for decode, more in (
        (decoding.greedy_decode, {}),
        (decoding.sample, {"rng": 0}),
        (decoding.beam_search, {"n_beams": 1}),
    ):
        result = decode(weights, **options, **more)
        assert library.numpy(result.tokens).reshape(2, 3).tolist() == expected
        assert np.isfinite(library.numpy(result.scores)).all()

    seen = []

    def choose(log_p, made):
        seen.append(library.numpy(log_p)[0])
        return array_namespace(log_p).argmax(log_p, axis=-1)

    list(decoding.stream(weights, choose=choose, **options))
    np.testing.assert_allclose(seen[1:], [[math.log(1 / 4)] * 4] * 2)

    # where 2 never comes, the fourth of four beams is none and reads it all the same
    weights = replace(chain(p), target_embedding=table, b_out=np.array([0.0, 0.0, -np.inf, 0.0]))
    options = {"prompt": 0, "max_length": 2, "n_beams": 4, "cache": cache}
    result = decoding.beam_search(library.place(weights), **options)
    assert library.numpy(result.tokens)[0, 0].tolist() == [1, 3]


@pytest.mark.parametrize("row", [[-np.inf] * 3, [0.0, np.nan, 0.0], [np.inf, 0.0, 0.0]])
def test_a_draw_where_no_token_is_possible(library, row):
    log_p = library.array(np.array([[-1.0, -np.inf, -1.0], row]))
    message = (
        "log_probabilities must be finite for the best token of each row, got NaN or infinity: "
        "no token is possible"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decoding.sampler(0)(log_p, np.zeros(2, dtype=int))


def test_tokens_may_be_banned_by_minus_infinity(library):
    weights = replace(chain(TRAP), b_out=np.array([0.0, -np.inf, 0.0, -np.inf]))
    weights = library.place(weights)
    options = {"prompt": 0, "max_length": 3}
    for result in (
        decoding.greedy_decode(weights, **options),
        decoding.sample(weights, rng=0, temperature=5.0, **options),
        decoding.beam_search(weights, n_beams=4, **options),
    ):
        assert set(library.numpy(result.tokens).ravel().tolist()) <= {0, 2}
