"""Greedy decoding, sampling, beam search and streaming, with the cache and without."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import DTYPES, examples, need
from decoding_models import (
    RING,
    TRAP,
    Alone,
    DecodingCase,
    beam_loop,
    cases,
    chain,
    model,
    sampling_loop,
    score,
)
from error_table import assert_raises, error_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbook as ab
from attnbook import decoding
from attnbook.arrays.array import array_namespace
from attnbook.decoding import incremental

both = pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])


def fields(library, result):
    """Return the arrays of a result in NumPy."""
    names = ("tokens", "lengths", "log_probabilities", "scores")
    return [library.numpy(getattr(result, name)) for name in names]


def agrees(library, result, expected, pad=5):
    """Assert that tokens, lengths and log p of each sequence are those expected."""
    tokens, lengths, gains, scores = fields(library, result)
    assert lengths.tolist() == [len(row) for row, _ in expected]
    longest = max(lengths)
    assert tokens.shape == gains.shape == (len(expected), longest)
    for row, (sequence, log_p) in enumerate(expected):
        fill = longest - len(sequence)
        assert tokens[row].tolist() == sequence + [pad] * fill
        np.testing.assert_allclose(gains[row], log_p + [0.0] * fill, atol=1e-10)
        assert scores[row] == pytest.approx(math.fsum(log_p), abs=1e-10)


@settings(max_examples=examples(30))
@given(
    cases(),
    st.booleans(),
    st.sampled_from((0.3, 1.0, 4.0)),
    st.sampled_from((None, 1, 3, 7, 100)),
    st.sampled_from((None, 1e-9, 0.5, 0.9, 1.0)),
)
def test_greedy_and_sampling_agree_with_the_loop(library, case, cache, temperature, top_k, top_p):
    arguments, options = case.options(library, cache=cache)
    result = decoding.greedy_decode(*arguments, **options)
    agrees(library, result, [sampling_loop(*alone, top_k=1) for alone in case.alone()])
    like = arguments[0].target_embedding
    assert library.same_kind(result.log_probabilities, like)
    assert library.same_kind(result.scores, like)
    assert library.same_kind(result.tokens, options["prompt"])
    cuts = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    result = decoding.sample(*arguments, rng=3, **cuts, **options)
    children = np.random.default_rng(3).spawn(len(case.prompt))
    expected = [
        sampling_loop(*alone, child.random(6).tolist(), **cuts)
        for alone, child in zip(case.alone(), children, strict=True)
    ]
    agrees(library, result, expected)


@settings(max_examples=examples(20))
@given(cases(), st.booleans(), st.sampled_from((1, 2, 5)), st.sampled_from((0.0, 0.6, 2.0)))
def test_beam_search_agrees_with_the_loop(library, case, cache, n_beams, alpha):
    """Of beams whose scores are equal but for rounding, any may be kept, in any order."""
    arguments, options = case.options(library, cache=cache)
    result = decoding.beam_search(*arguments, n_beams=n_beams, length_penalty=alpha, **options)
    found = fields(library, result)
    for sequence, tokens, lengths, gains, scores in zip(case.alone(), *found, strict=True):
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


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_enough_beams_find_the_best_of_all_sequences(alpha):
    weights, source = model(1, known=3), np.random.default_rng(1).integers(11, size=(2, 5))
    options = {"prompt": 1, "max_length": 4, "stop": 2, "length_penalty": alpha}
    result = decoding.beam_search(weights, source, n_beams=50, **options)
    for b in range(2):
        log_p, found = Alone(weights, source[b]), {}
        for n in (1, 2, 3, 4):
            for tokens in itertools.product(range(3), repeat=n):
                if 2 not in tokens[:-1] and (n == 4 or tokens[-1] == 2):
                    gains = [log_p([1, *tokens[:i]])[v] for i, v in enumerate(tokens)]
                    found[tokens] = score(gains, alpha)
        n = len(found)
        assert n == 1 + 2 + 4 + 8 * 3
        expected = sorted(found.values(), reverse=True)
        np.testing.assert_allclose(result.scores[b, :n], expected, atol=1e-12)
        pairs = zip(result.tokens[b, :n], result.lengths[b, :n], strict=True)
        assert {tuple(row[:m].tolist()) for row, m in pairs} == set(found)
        assert (result.scores[b, n:] == -np.inf).all()


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


# Streaming.


def test_stream_yields_each_step_as_it_is_made(library):
    seen, cache = [], decoding.KVCache()

    def choose(log_p, prefixes):
        seen.append([len(prefix.made) for prefix in prefixes])
        return array_namespace(log_p).argmax(log_p, axis=-1)

    weights, prompt = library.place(model(0, encoder=False)), library.array(np.array([[3, 1, 4]]))
    options = {"prompt": prompt, "max_length": 4}
    whole = library.numpy(decoding.greedy_decode(weights, **options).tokens)
    for i, step in enumerate(decoding.stream(weights, choose=choose, cache=cache, **options)):
        assert seen == [[j] for j in range(i + 1)]  # nothing is computed ahead
        assert len(cache) == 3 + i
        assert tuple(step.tokens.shape) == (1,)
        assert library.numpy(step.tokens)[0] == whole[0, i]
        assert library.numpy(step.made).tolist() == [True]
    assert i == 3


def test_stream_says_who_made_a_token():
    prompt = np.array([[0, 2, 2], [3, 0, 1], [1, 0, 0]])
    options = {"prompt": prompt, "prompt_lengths": [1, 3, 1], "max_length": 4, "stop": 3}
    steps = list(decoding.stream(chain(RING), pad=0, **options))
    assert [s.tokens.tolist() for s in steps] == [[1, 0, 2], [2, 1, 3], [3, 2, 0], [0, 3, 0]]
    made = [[True, False, True], [True, False, True], [True, True, False], [False, True, False]]
    assert [s.made.tolist() for s in steps] == made
    assert all((s.log_probabilities == 0).all() for s in steps)
    whole = decoding.greedy_decode(chain(RING), pad=1, **options)
    assert whole.tokens.tolist() == [[1, 2, 3], [2, 3, 1], [2, 3, 1]]


def test_choose_sees_the_probabilities_and_how_many_were_made(library):
    seen = []

    def choose(log_p, prefixes):
        seen.append([len(prefix.made) for prefix in prefixes])
        total = np.exp(library.numpy(log_p)).sum(axis=-1)
        np.testing.assert_allclose(total, [1.0, 1.0])
        return library.array(np.array([len(seen), 6]), "int32")

    weights = library.place(model(0, encoder=False))
    prompt = library.array(np.array([[3, 1, 4], [1, 0, 0]]))
    options = {"prompt": prompt, "prompt_lengths": [3, 1], "max_length": 2}
    steps = list(decoding.stream(weights, choose=choose, **options))
    assert seen == [[0, 0], [0, 1], [0, 2], [1, 2]]  # one that has ended makes no more
    found = [library.numpy(step.tokens).tolist() for step in steps]
    assert found == [[1, 6], [4, 6], [3, 0], [4, 0]]
    assert library.same_kind(steps[0].tokens, prompt)


# What is read, and how often.


@pytest.mark.parametrize(
    ("cache", "options", "read"),
    [
        (True, {"max_length": 4}, [5, 1, 1, 1]),
        (False, {"max_length": 4}, [5, 6, 7, 8]),
        (True, {"max_length": 1, "prompt_lengths": [2, 5]}, [2, 1, 1, 1]),
        (False, {"max_length": 1, "prompt_lengths": [2, 5]}, [2, 3, 4, 5]),
    ],
)
def test_with_the_cache_each_token_is_read_once(monkeypatch, cache, options, read):
    sizes, decode = [], incremental.decode

    def counting(target, *arguments, **others):
        logits = decode(target, *arguments, **others)
        assert logits.shape[-2:] == (1, 7)  # they are made of the last token alone
        sizes.append(target.shape[-1])
        return logits

    monkeypatch.setattr(incremental, "decode", counting)
    options |= {"prompt": np.ones((2, 5), dtype=int), "cache": cache}
    steps = decoding.stream(model(0, encoder=False), **options)
    assert [step.n_read for step in steps] == sizes == read
    decoding.beam_search(model(0, encoder=False), n_beams=2, **options)
    assert sizes == read * 2


@pytest.mark.parametrize("decode", [decoding.greedy_decode, decoding.beam_search])
def test_decoding_ends_when_all_have_ended(monkeypatch, decode):
    more, cache = {"n_beams": 1} if decode is decoding.beam_search else {}, decoding.KVCache()
    p = np.array([[0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0], [0, 0, 0, 1.0]])
    options = {"prompt": np.array([[0], [1]]), "stop": np.array([3]), "max_length": 10**9}
    result = decode(chain(p), cache=cache, **options, **more)
    assert result.lengths.ravel().tolist() == [3, 2]
    assert result.tokens.reshape(2, 3).tolist() == [[1, 2, 3], [2, 3, 0]]


def test_a_search_ends_when_only_places_are_left_that_no_sequence_takes():
    nothing = np.array([-np.inf, -np.inf, -np.inf, 0.0])
    weights = replace(chain(TRAP), b_out=nothing)
    result = decoding.beam_search(weights, prompt=0, max_length=10**9, stop=3, n_beams=3, pad=2)
    assert result.lengths.tolist() == [[1, 0, 0]]
    assert result.tokens.tolist() == [[[3], [2], [2]]]
    assert result.scores[0, 1:].tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize(
    ("stop", "n"),
    [(None, 7), ((), 7), (3, 3), ([3, 2], 2), (np.int64(1), 1), ({0}, 4), (np.array([3, 2]), 2)],
)
def test_decoding_stops_at_the_first_of_several_stop_tokens(library, stop, n):
    stop = library.array(stop) if isinstance(stop, np.ndarray) else stop
    weights, options = library.place(chain(RING)), {"max_length": 7, "stop": stop}
    result = decoding.greedy_decode(weights, prompt=0, **options)
    assert library.numpy(result.lengths).tolist() == [n]
    # a stop token in the prompt is no end
    prompt = library.array(np.array([[3, 0]]))
    result = decoding.greedy_decode(weights, prompt=prompt, **options)
    assert library.numpy(result.tokens).tolist() == [[1, 2, 3, 0, 1, 2, 3][:n]]


def test_learned_positions_up_to_the_last():
    weights = model(0, encoder=False, positions="learned", n_positions=6)
    for cache in (True, False):
        result = decoding.greedy_decode(weights, prompt=1, max_length=6, cache=cache)
        assert result.lengths.tolist() == [6]
        full = np.zeros((1, 6), dtype=int)
        result = decoding.greedy_decode(weights, prompt=full, max_length=1, cache=cache)
        assert result.lengths.tolist() == [1]


TABLE = np.random.default_rng(3).normal(size=(8, 2))
PIECES = {
    "halves": ab.positions.Rotary(),
    "neighbours": ab.positions.Rotary(base=100.0, interleaved=True),
    "ALiBi": ab.positions.Alibi(),
    "buckets": ab.positions.RelativeBias(TABLE, bidirectional=False, max_distance=6),
    "buckets on both sides": ab.positions.RelativeBias(TABLE, max_distance=6),
}


@pytest.mark.parametrize("name", [*PIECES, "rotary", "learned", "sinusoidal"])
def test_a_batch_of_ragged_prompts_is_one_by_one(library, name):
    kind = "none" if name in PIECES else name
    weights = model(4, encoder=False, positions=kind)
    if name in PIECES:
        weights = replace(weights, decoder=replace(weights.decoder, positions=PIECES[name]))
    prompt, lengths = np.random.default_rng(0).integers(7, size=(3, 5)), [5, 1, 3]
    case = DecodingCase(weights, None, None, prompt, lengths, max_length=5, stop=(2,))
    arguments, options = case.options(library)
    expected = [sampling_loop(*alone, top_k=1) for alone in case.alone()]
    for cache in (True, False):
        found = decoding.greedy_decode(*arguments, **options, cache=cache)
        agrees(library, found, expected)


# Masks, dtypes, PyTorch.


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1, 1, 4), (1, 1, 1, 4), (3, 2, 1, 4), (4, 4)])
def test_a_mask_of_the_source(library, shape):
    weights, rng = model(0), np.random.default_rng(0)
    mask, source = rng.random(shape) < 0.6, rng.integers(11, size=(3, 4))
    options = {"prompt": 1, "max_length": 4, "source_mask": library.array(mask)}
    arguments = (library.place(weights), library.array(source))
    result = decoding.greedy_decode(*arguments, **options)
    target = np.concatenate([np.ones((3, 1), dtype=int), library.numpy(result.tokens)], axis=1)
    logits = ab.transformer(source, target[:, :-1], weights, source_mask=mask)
    np.testing.assert_array_equal(library.numpy(result.tokens), logits.argmax(axis=-1))
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


def test_each_token_is_read_once_by_default():
    read = []

    def attend(query, key, value, *others):
        read.append(query.shape[-2])
        return ab.attention(query, key, value)

    weights = model(0, encoder=False, n_layers=1)
    options = {"prompt": np.array([[1, 2]]), "max_length": 4, "impl": attend}
    for name, more in STRATEGIES.items():
        result = getattr(decoding, name)(weights, **more, **options)
        assert name != "stream" or len(list(result)) == 4
        assert read == [2, 1, 1, 1]
        read.clear()


def test_greedy_decoding_stays_on_its_device():
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    weights = model(0).to("array_api_strict", device=device)
    source = strict.asarray(np.array([[3, 1, 4]]), device=device)
    found = decoding.greedy_decode(weights, source, prompt=1, max_length=3)
    assert {x.device for x in vars(found).values()} == {device}


# Errors.

SOURCE, PROMPT = np.array([[3, 1, 4], [1, 5, 9]]), np.array([[1, 2], [3, 4]])
BOTH, ALONE = model(0), model(0, encoder=False)
SHORT = model(0, positions="learned", n_positions=6)
NAMES = {"np": np, "torch": torch, "SOURCE": SOURCE, "PROMPT": PROMPT, "BOTH": BOTH}
NAMES |= {"ALONE": ALONE, "SHORT": SHORT, "ab": ab}
STRATEGIES = {
    "greedy_decode": {},
    "sample": {"rng": 0},
    "stream": {},  # at the call, before the first step is asked for
    "beam_search": {"n_beams": 2},
}
ERRORS = r"""
decode(None)
    ValueError: source must be an array for the encoder, got None
decode(SOURCE, ALONE)
    ValueError: source must be None, since the weights have no encoder
decode(SOURCE[0])
    ValueError: source must have shape (batch, n_s) with batch >= 1, got (3,)
decode(SOURCE[:0])
    ValueError: source must have shape (batch, n_s) with batch >= 1, got (0, 3)
decode(SOURCE + 2)
    ValueError: source must be from 0 to 10 to be known to source_embedding, got 11
decode([[1]])
    TypeError: source must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
decode(SOURCE * 1.0)
    TypeError: source must be an array of integers, got float64
decode(source_lengths=[3, 4])
    ValueError: source_lengths must be from 0 to 3, got 4
decode(source_lengths=[3])
    ValueError: source_lengths must have shape (2,), got (1,)
decode(source_lengths=[3, -1])
    ValueError: source_lengths must be at least 0, got -1
decode(None, ALONE, source_lengths=[3])
    ValueError: source_lengths must be None, since there is no source
decode(source_lengths=[3, 1], source_mask=np.ones((1, 3), dtype=bool))
    ValueError: source_lengths must be None where source_mask is given
decode(source_mask=np.ones((1, 4), dtype=bool))
    ValueError: source_mask must broadcast to the shape of the scores (..., n_q, n_k) =
    (2, 2, 3, 3), got (1, 4)
decode(None, ALONE, source_mask=np.ones((1, 3), dtype=bool))
    ValueError: source_mask must be None, since the weights have no encoder
decode(prompt=7)
    ValueError: prompt must be from 0 to 6, a known token, got 7
decode(prompt=-1)
    ValueError: prompt must be at least 0, got -1
decode(prompt=True)
    TypeError: prompt must be an int, got bool
decode(prompt=[[1]])
    TypeError: prompt must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
decode(prompt=PROMPT + 3)
    ValueError: prompt must be from 0 to 6 to be known to target_embedding, got 7
decode(prompt=PROMPT * 1.0)
    TypeError: prompt must be an array of integers, got float64
decode(None, ALONE, prompt=torch.tensor(PROMPT))
    TypeError: prompt must be an array of the same library as target_embedding (numpy), got torch
decode(prompt=PROMPT[:1])
    ValueError: prompt must have shape (2, n_p), n_p >= 1, got (1, 2)
decode(prompt=PROMPT[:, :0])
    ValueError: prompt must have shape (2, n_p), n_p >= 1, got (2, 0)
decode(None, ALONE, prompt=PROMPT[:0])
    ValueError: prompt must have shape (batch, n_p) with batch >= 1, n_p >= 1, got (0, 2)
decode(None, ALONE, prompt=PROMPT, prompt_lengths=[0, 2])
    ValueError: prompt_lengths must be from 1 to 2, got 0
decode(None, ALONE, prompt=PROMPT, prompt_lengths=[1, 3])
    ValueError: prompt_lengths must be from 1 to 2, got 3
decode(None, ALONE, prompt=PROMPT, prompt_lengths=[[1, 2]])
    ValueError: prompt_lengths must have shape (2,), got (1, 2)
decode(None, ALONE, prompt=PROMPT, prompt_lengths=[1.0, 2.0])
    TypeError: prompt_lengths must be ints, got float64
decode(max_length=0)
    ValueError: max_length must be at least 1, got 0
decode(max_length=3.0)
    TypeError: max_length must be an int, got float
decode(SOURCE, SHORT, prompt=PROMPT, max_length=6)
    ValueError: max_length must be at most 5 after a prompt of 2 tokens with 6 free learned
    positions, got 6
decode(SOURCE, SHORT, prompt=np.ones((2, 7), int))
    ValueError: prompt must have at most 6 tokens, as many as learned positions are free, got 7
decode(stop=7)
    ValueError: stop must be from 0 to 6, a known token, got 7
decode(stop=[2, -1])
    ValueError: stop must be at least 0, got -1
decode(stop="2")
    TypeError: stop must be an int, got str
decode(stop=np.array(["2"]))
    TypeError: stop must be an int, got str
decode(stop=torch.tensor([[2]]))
    TypeError: stop must be an int, got list
decode(pad=7)
    ValueError: pad must be from 0 to 6, a known token, got 7
decode(cache=1)
    TypeError: cache must be a bool, got int
decode(SOURCE, BOTH.decoder)
    TypeError: weights must be TransformerWeights, got DecoderWeights
decode(SOURCE, ab.TransformerWeights(BOTH.decoder, BOTH.encoder))
    ValueError: weights must have a target_embedding to decode tokens, got None
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_every_strategy_refuses(call, kind, message):
    for name, more in STRATEGIES.items():

        def decode(source=SOURCE, weights=BOTH, name=name, more=more, **options):
            options = {"prompt": 1, "max_length": 3} | more | options
            return getattr(decoding, name)(weights, source, **options)

        assert_raises(call, kind, message, NAMES | {"decode": decode})


SEARCHED = r"""
search(n_beams=0)
    ValueError: n_beams must be at least 1, got 0
search(n_beams=2.0)
    TypeError: n_beams must be an int, got float
search(length_penalty=-0.5)
    ValueError: length_penalty must be finite and at least 0, got -0.5
search(length_penalty=None)
    TypeError: length_penalty must be a real number, got NoneType
search(length_penalty=1e308)
    ValueError: length_penalty must leave ((5 + 3) / 6)^length_penalty, the penalty of max_length,
    finite in float64, got 1e+308
stream(choose=1)
    TypeError: choose must be callable, got int
next(stream(choose=lambda log_p, prefixes: np.array([1, 7])))
    ValueError: choose(…) must be from 0 to 6 to be known to log_probabilities, got 7
next(stream(choose=lambda log_p, prefixes: log_p[:, 0]))
    TypeError: choose(…) must be an array of integers, got float64
next(stream(choose=lambda log_p, prefixes: np.array([1])))
    ValueError: choose must return an array of shape (2,), got (1,)
next(stream(choose=lambda log_p, prefixes: [1, 2]))
    TypeError: choose(…) must be an array of NumPy, CuPy, PyTorch or another Array API library, got
    list
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(SEARCHED))
def test_beams_and_streams_refuse(call, kind, message):
    def search(**options):
        options = {"prompt": 1, "max_length": 3, "n_beams": 2} | options
        return decoding.beam_search(BOTH, SOURCE, **options)

    stream = functools.partial(decoding.stream, BOTH, SOURCE, prompt=1, max_length=3)
    assert_raises(call, kind, message, {"search": search, "stream": stream, "np": np})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_length_penalty_that_overflows(dtype):
    weights, options = BOTH.to(dtype=dtype), {"prompt": 1, "max_length": 40, "n_beams": 2}
    bound = math.log(np.finfo(dtype).max) / math.log(45 / 6)
    result = decoding.beam_search(weights, SOURCE, length_penalty=0.999 * bound, **options)
    assert (result.scores < 0).all()
    with pytest.raises(ValueError, match=f"the penalty of max_length, finite in {dtype}, got"):
        decoding.beam_search(weights, SOURCE, length_penalty=1.001 * bound, **options)


def test_errors_name_the_function_that_was_called():
    for name in ("sample", "stream", "beam_search"):
        decode = functools.partial(getattr(decoding, name), BOTH, SOURCE, **STRATEGIES[name])
        message = rf"^{name}\(\) missing a required (keyword-only )?argument: 'prompt'$"
        with pytest.raises(TypeError, match=message):
            decode(max_length=3)
        message = rf"^{name}\(\) got an unexpected keyword argument 'k'$"
        with pytest.raises(TypeError, match=message):
            decode(prompt=1, max_length=3, k=3)


@both
def test_logits_that_are_no_numbers(library, cache):
    table = np.eye(4)
    table[1, 2] = np.nan  # token 1 comes first, and is read second
    damaged = replace(chain(TRAP), target_embedding=table)
    endless = replace(chain(TRAP), b_out=np.array([0.0, np.inf, 0.0, 0.0]))
    for weights, n in ((damaged, 2), (endless, 1)):
        arguments = (library.place(weights),)
        options = {"prompt": 0, "max_length": 5, "cache": cache}
        message = f"to the best token, got NaN or infinity after {n} tokens"
        for decode, more in ((decoding.greedy_decode, {}), (decoding.beam_search, {"n_beams": 2})):
            with pytest.raises(ValueError, match=f"^weights must give finite logits {message}$"):
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

    def choose(log_p, prefixes):
        seen.append(library.numpy(log_p)[0])
        return array_namespace(log_p).argmax(log_p, axis=-1)

    list(decoding.stream(weights, choose=choose, **options))
    np.testing.assert_allclose(seen[1:], [[math.log(1 / 4)] * 4] * 2)

    # where 2 never comes, the fourth of four beams is none and reads it all the same
    weights = replace(chain(p), target_embedding=table, b_out=np.array([0.0, 0.0, -np.inf, 0.0]))
    options = {"prompt": 0, "max_length": 2, "n_beams": 4, "cache": cache}
    result = decoding.beam_search(library.place(weights), **options)
    assert library.numpy(result.tokens)[0, 0].tolist() == [1, 3]


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
