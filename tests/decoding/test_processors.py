"""Logits processors: those of Hugging Face, and what every strategy makes of one."""

import itertools

import numpy as np
import pytest
import torch
from cases import NOT_AN_ARRAY
from decoding_models import RING, TRAP, Alone, chain, model
from error_table import assert_raises, error_rows
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab
from attnbook import decoding
from attnbook.decoding import Prefix

NOTHING = np.array([], dtype=int)
KINDS = {
    "temperature": ("TemperatureLogitsWarper", st.sampled_from((0.1, 0.7, 1.0, 3.0))),
    "top_k": ("TopKLogitsWarper", st.sampled_from((1, 2, 5, 13, 40))),
    "top_p": ("TopPLogitsWarper", st.sampled_from((0.01, 0.3, 0.75, 0.99))),
    "min_p": ("MinPLogitsWarper", st.sampled_from((0.0, 0.02, 0.3, 1.0))),
    "repetition_penalty": (
        "RepetitionPenaltyLogitsProcessor",
        st.sampled_from((0.5, 1.0, 1.3, 5.0)),
    ),
}


@pytest.fixture(scope="module")
def theirs():
    """The processors of Hugging Face, whose import takes a second."""
    return pytest.importorskip(
        "transformers.generation.logits_process", reason="transformers is not installed"
    )


@pytest.mark.parametrize("name", KINDS)
@given(st.data(), st.integers(0, 2**32 - 1), st.booleans())
def test_a_processor_is_that_of_hugging_face(library, theirs, name, data, seed, logits):
    """On log p, as in its beam search, and on logits, as where it samples."""
    kind, numbers = KINDS[name]
    number, rng = data.draw(numbers), np.random.default_rng(seed)
    scores = rng.normal(0, 2, size=(3, 13))  # no two are equal
    scores = scores if logits else ab.log_softmax(scores)
    prompt, made = rng.integers(13, size=(3, 4)), rng.integers(13, size=(3, 2))
    ids = torch.from_numpy(np.concatenate([prompt, made], axis=1))
    expected = getattr(theirs, kind)(number)(ids, torch.from_numpy(scores.copy())).numpy()
    prefixes = [Prefix(*pair) for pair in zip(prompt, made, strict=True)]
    given_scores = library.array(scores)
    got = getattr(decoding, name)(number)(given_scores, prefixes)
    assert library.same_kind(got, given_scores)
    np.testing.assert_allclose(library.numpy(got), expected, rtol=1e-12)


def test_the_order_is_that_of_hugging_face(library, theirs):
    """Each sees what the one before leaves; the draws of one u after the other show it."""
    rng, options = np.random.default_rng(0), {"temperature": 1.3, "top_k": 7, "top_p": 0.8}
    scores = ab.log_softmax(rng.normal(0, 2, size=(1, 13)))
    ids, expected = np.array([[6, 1, 2]]), torch.from_numpy(scores.copy())
    for warper in (
        theirs.RepetitionPenaltyLogitsProcessor(1.4),
        theirs.TemperatureLogitsWarper(1.3),
        theirs.TopKLogitsWarper(7),
        theirs.TopPLogitsWarper(0.8),
        theirs.MinPLogitsWarper(0.2),
    ):
        expected = warper(torch.from_numpy(ids), expected)
    p = torch.softmax(expected, dim=-1).numpy()[0]
    choose = decoding.sampler(5, **options, min_p=0.2, repetition_penalty=1.4)
    u, order = np.random.default_rng(5).spawn(1)[0].random(40), np.argsort(-p, kind="stable")
    for i in range(40):  # the token on whose piece of [0, 1) each u falls
        prefix = [Prefix(np.array([6, 1]), np.array([2] * i, dtype=int))]
        if i == 0:  # the penalty needs the 2
            choose(library.array(scores), prefix)
            continue
        token = library.numpy(choose(library.array(scores), prefix))[0]
        assert token == order[np.count_nonzero(np.cumsum(p[order]) <= u[i])]
    assert 2 <= np.count_nonzero(p) <= 6


def test_of_equal_tokens_the_first_stay(library):
    equal = library.array(np.log(np.full((2, 5), 0.2)))
    for process, n in ((decoding.top_k(3), 3), (decoding.top_p(0.5), 3), (decoding.min_p(1), 5)):
        kept = library.numpy(process(equal, [])) > -np.inf
        assert kept.tolist() == [[True] * n + [False] * (5 - n)] * 2


@pytest.mark.parametrize(("p", "n"), [(0.5, 1), (0.75, 2), (0.76, 3), (1, 4), (1e-300, 1)])
def test_top_p_keeps_what_just_reaches_its_number_and_the_best(p, n):
    # powers of 2: their sums are exact, elsewhere rounding decides
    log_p = np.log([[0.5, 0.25, 0.125, 0.125]])
    kept = decoding.top_p(p)(log_p, []) > -np.inf
    assert kept.tolist() == [[True] * n + [False] * (4 - n)]


def test_what_is_banned_stays_banned(library):
    row = library.array(np.array([[-np.inf, -1.0, -np.inf, -0.5]]))
    prefix = [Prefix(np.array([0, 1]), NOTHING)]
    for process in (
        *(decoding.temperature(1e-320), decoding.temperature(1e300), decoding.top_k(3)),
        *(decoding.top_p(0.999), decoding.min_p(0.0), decoding.repetition_penalty(9.0)),
    ):
        found = library.numpy(process(row, prefix))[0]
        assert (found[[0, 2]] == -np.inf).all()
        assert (found[[1, 3]] > -np.inf).all()


# What the strategies make of them.


def ban(*tokens):
    def process(log_p, prefixes):
        banned = np.isin(np.arange(log_p.shape[-1]), tokens)
        keep = np.where(banned, -np.inf, 0.0)
        return log_p + type(log_p)(keep) if isinstance(log_p, torch.Tensor) else log_p + keep

    return process


WAYS = {
    "greedy_decode": {},
    "sample": {"rng": 0, "temperature": 2.0},
    "beam_search": {"n_beams": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", [True, False])
def test_every_strategy_applies_them(way, cache):
    weights = chain(np.full((5, 5), 0.2) + np.diag([0.3] * 5))
    asked = {"prompt": np.array([[0], [2]]), "max_length": 9, "cache": cache} | WAYS[way]
    found = getattr(decoding, way)(weights, processors=[ban(0, 2), ban(3)], **asked)
    assert set(found.tokens.ravel().tolist()) == ({1, 4} if way != "greedy_decode" else {1})
    steps = decoding.stream(
        weights, processors=[ban(0, 1, 2, 3)], prompt=1, max_length=3, cache=cache
    )
    assert [step.tokens.tolist() for step in steps] == [[4], [4], [4]]


@pytest.mark.parametrize("way", ["greedy_decode", "sample"])
def test_the_probabilities_are_those_of_the_model(way):
    weights = model(0, encoder=False)
    found = getattr(decoding, way)(
        *(weights,),
        **{"prompt": 1, "max_length": 8, "processors": [ban(2, 3)]} | WAYS[way],
    )
    log_p, prefix = Alone(weights), [1]
    for token, gain in zip(found.tokens[0].tolist(), found.log_probabilities[0], strict=True):
        assert gain == pytest.approx(log_p(prefix)[token], abs=1e-12)
        prefix.append(token)


def test_they_come_before_those_of_the_sampler():
    """Of the two that top_k keeps, none is banned."""
    weights = chain(np.array([[0.4, 0.3, 0.2, 0.1]] * 4))
    found = decoding.sample(weights, prompt=0, max_length=200, rng=0, top_k=2, processors=[ban(0)])
    assert set(found.tokens[0].tolist()) == {1, 2}


@pytest.mark.parametrize("way", [*WAYS, "stream"])
def test_they_see_prompt_and_tokens_of_each_sequence(library, way):
    seen = []

    def watch(log_p, prefixes):
        rows = [(prefix.prompt.tolist(), prefix.made.tolist()) for prefix in prefixes]
        assert log_p.shape == (len(rows), 4)
        seen.append(rows)
        return log_p

    prompt = library.array(np.array([[0, 2, 2], [3, 0, 1], [2, 0, 0]]))
    asked = {"prompt": prompt, "prompt_lengths": [1, 3, 1], "max_length": 3, "stop": 3}
    asked |= WAYS.get(way, {}) | ({"n_beams": 1} if way == "beam_search" else {})
    asked |= {"top_k": 1} if way == "sample" else {}
    found = getattr(decoding, way)(library.place(chain(RING)), processors=(watch,), **asked)
    list(found) if way == "stream" else None
    for step, made in enumerate(([], [], [2], [2, 3])):  # of the second, after its prompt
        assert seen[step][1] == ([3, 0, 1], made[: max(step - 2, 0)] if step < 3 else [2])
    assert [rows[0] for rows in seen][:3] == [([0], []), ([0], [1]), ([0], [1, 2])]
    assert [rows[2] for rows in seen][:2] == [([2], []), ([2], [3])]


@pytest.mark.parametrize("way", WAYS)
def test_what_has_ended_or_reads_its_prompt_needs_no_token(way):
    steps = itertools.count(1)

    def process(log_p, prefixes):
        log_p, read = log_p.copy(), next(steps)
        for row, prefix in zip(log_p, prefixes, strict=True):
            if len(prefix.prompt) > read or prefix.made.tolist()[-1:] == [3]:
                row[:] = -np.inf
        return log_p

    asked = {"prompt": np.array([[0, 2, 2], [3, 0, 1], [2, 0, 0]]), "prompt_lengths": [1, 3, 1]}
    asked |= {"max_length": 4, "stop": 3} | WAYS[way]
    asked |= {"n_beams": 1} if way == "beam_search" else {}
    found, without = (
        getattr(decoding, way)(chain(RING), processors=processors, **asked)
        for processors in ((process,), ())
    )
    np.testing.assert_array_equal(found.tokens, without.tokens)
    assert next(steps) == 5


def test_beams_rank_by_what_the_processors_leave():
    """Without token 1 the greedy way is closed, and the score of 2 is halved in the logarithm."""

    def process(log_p, prefixes):
        assert log_p.shape[0] == len(prefixes)
        log_p = log_p.copy()
        for row, prefix in zip(log_p, prefixes, strict=True):
            if len(prefix.made) == 0:
                row[1] = -np.inf
                row[2] *= 0.5
        return log_p

    asked = {"prompt": 0, "max_length": 2, "n_beams": 2, "processors": [process]}
    found = decoding.beam_search(chain(TRAP), **asked)
    assert found.tokens[0].tolist() == [[2, 1], [3, 3]]
    np.testing.assert_allclose(
        found.scores[0], [0.5 * np.log(0.4) + np.log(0.9), np.log(0.1)], atol=1e-12
    )
    np.testing.assert_allclose(np.exp(found.log_probabilities[0, 0]), [0.4, 0.9])


ERRORS = rf"""
decoding.min_p(1.5)
    ValueError: min_p must be from 0 to 1, got 1.5
decoding.min_p(-0.5)
    ValueError: min_p must be finite and at least 0, got -0.5
decoding.min_p("0.5")
    TypeError: min_p must be a real number, got str
decoding.repetition_penalty(0)
    ValueError: repetition_penalty must be above 0, got 0.0
decoding.repetition_penalty(None)
    TypeError: repetition_penalty must be a real number, got NoneType
decode(processors=ban(0))
    TypeError: processors must be a sequence of callables, got function
decode(processors=1)
    TypeError: processors must be a sequence of callables, got int
decode(processors=np.array(None))
    TypeError: processors must be a sequence of callables, got ndarray
decode(processors=nested)
    TypeError: processors must be a sequence of callables, got Tensor
decode(processors=[lambda log_p, prefixes: nested])
    TypeError: what a processor returns must be dense, got a nested array
decode(processors=[ban(0), 1])
    TypeError: processors[1] must be callable, got int
decode(processors=[lambda log_p, prefixes: log_p[:, :2]])
    ValueError: a processor must return an array of shape ({{rows}}, 4), got ({{rows}}, 2)
decode(processors=[lambda log_p, prefixes: [0.0]])
    TypeError: what a processor returns {NOT_AN_ARRAY}list
decode(processors=[lambda log_p, prefixes: log_p > 0])
    TypeError: what a processor returns must have a real floating dtype, got bool
decode(processors=[ban(0, 1, 2, 3)])
    ValueError: processors must leave a token possible in each row, got no finite best one
decode(processors=[lambda log_p, prefixes: log_p * np.nan])
    ValueError: processors must leave a token possible in each row, got no finite best one
"""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_processors_refuse(call, kind, message):
    for way, more in WAYS.items():

        def decode(way=way, more=more, **options):
            asked = {"prompt": 0, "max_length": 3} | more | options
            return getattr(decoding, way)(chain(RING), **asked)

        rows = 3 if way == "beam_search" else 1
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
        names = {"decode": decode, "decoding": decoding, "ban": ban, "np": np, "nested": nested}
        assert_raises(call, kind, message.format(rows=rows), names)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", [*KINDS, "sampler"])
def test_scores_that_are_no_array_of_numbers_are_refused_by_name(name, layout):
    process = getattr(decoding, name)(1)
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout)
    kind = "nested" if layout is torch.strided else "jagged"
    prefixes = [Prefix(np.array([0]), NOTHING)]
    with pytest.raises(TypeError, match=f"log_p must be dense, got a {kind} array"):
        process(nested, prefixes)
    with pytest.raises(TypeError, match=f"log_p {NOT_AN_ARRAY}list"):
        process([[0.0, -1.0]], prefixes)
