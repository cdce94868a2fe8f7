"""Decoding under a rule: each step sees what the rule shows of the text so far."""

from dataclasses import replace

import numpy as np
import pytest
from decoding_models import model
from error_table import error_test
from test_window_cache import with_windows

import attnbook as ab
from attnbook.decoding import (
    HybridCache,
    KVCache,
    PagedCache,
    QuantizedCache,
    WindowCache,
    beam_search,
    greedy_decode,
    sample,
    speculative_sample,
    stream,
)
from attnbook.linear_attention.layers import LinearAttentionWeights
from attnbook.masking import Causal, Chunks, Documents, FirstKeys, SlidingWindow

IDS = np.repeat([0, 1, 2], [3, 8, 60])
RULES = {
    "sinks and window": FirstKeys(1) | SlidingWindow(left=2),
    "chunks": Chunks(4),
    "documents": Documents(IDS) | FirstKeys(2),
    "of each sequence": Documents(np.stack([IDS, IDS[::-1]])) | SlidingWindow(left=1),
    "what comes first": ~FirstKeys([1, 0]) | SlidingWindow(left=0),
}
PROMPT = np.array([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])


def loop(weights, rule, prompt, n):
    """Return n greedy tokens of each sequence by reading all of it, with the dense mask."""
    prompt = np.asarray(prompt)
    for _ in range(n):
        m = prompt.shape[1]
        mask = rule.dense(m)
        mask = mask[:, None] if mask.ndim == 3 else mask
        logits = ab.transformer(None, prompt, weights, target_mask=mask)
        prompt = np.concatenate([prompt, logits[:, -1:].argmax(axis=-1)], axis=1)
    return prompt[:, -n:]


@pytest.mark.parametrize("impl", ["reference", "tiled"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("name", RULES)
def test_greedy(library, name, positions, impl):
    weights, rule = model(encoder=False, positions=positions), RULES[name]
    want = loop(weights, rule, PROMPT, 9)
    assert (want != loop(weights, Causal(), PROMPT, 9)).any()  # or the rule hides nothing
    given = {"prompt": library.array(PROMPT), "max_length": 9, "target_mask": rule, "impl": impl}
    for cache in (True, False):
        got = greedy_decode(library.place(weights), **given, cache=cache)
        np.testing.assert_array_equal(library.numpy(got.tokens), want)


@pytest.mark.parametrize("name", RULES)
def test_ragged_prompts(name):
    weights, rule = model(encoder=False), RULES[name]
    lengths = [2, 5]
    got = greedy_decode(
        weights, prompt=PROMPT, prompt_lengths=lengths, max_length=6, target_mask=rule
    )
    for i, n in enumerate(lengths):
        want = loop(weights, rule, np.stack([PROMPT[i, :n]] * 2), 6)[i]  # rules of two sequences
        np.testing.assert_array_equal(got.tokens[i], want)


@pytest.mark.parametrize("name", RULES)
def test_a_cache_goes_on(name):
    weights, cache = model(encoder=False), KVCache()
    given = {"target_mask": RULES[name], "cache": cache}
    first = greedy_decode(weights, prompt=PROMPT, max_length=4, **given)
    then = greedy_decode(weights, prompt=first.tokens[:, -1:], max_length=5, **given)
    both = np.concatenate([first.tokens, then.tokens], axis=1)
    np.testing.assert_array_equal(both, loop(weights, RULES[name], PROMPT, 9))


@pytest.mark.parametrize("impl", ["reference", "packed"])
@pytest.mark.parametrize("make", [lambda: PagedCache(4), QuantizedCache], ids=["pages", "bits"])
@pytest.mark.parametrize("name", RULES)
def test_a_cache_in_pages_or_in_codes(name, make, impl):
    if impl == "packed":
        pytest.importorskip("numba", reason="numba is not installed")
    weights = model(encoder=False, n_kv_heads=1).to(dtype="float32")
    want = loop(weights, RULES[name], PROMPT, 9)
    given = {"prompt": PROMPT, "max_length": 9, "target_mask": RULES[name], "impl": impl}
    np.testing.assert_array_equal(greedy_decode(weights, cache=make(), **given).tokens, want)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_cache_that_forgets(name, sinks):
    weights = with_windows([3, None, 1], positions="rotary", sinks=sinks)
    prompt = np.random.default_rng(0).integers(7, size=(2, 40))
    rule = RULES[name] if "each" in name else RULES[name] & Documents(np.arange(240) // 90)
    if "each" in name:
        prompt = prompt[:, :20]
    n = 45 if "each" in name else 110
    given = {"prompt": prompt, "max_length": n, "target_mask": rule}
    if name == "documents":
        given["target_mask"] = rule = Chunks(16) | FirstKeys(2)
    want = greedy_decode(weights, **given, cache=False)
    got = greedy_decode(weights, **given, cache=WindowCache(weights))
    np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_every_way_of_decoding(name, cache):
    weights, rule = model(encoder=False), RULES[name]
    given = {"prompt": PROMPT, "max_length": 7, "target_mask": rule, "cache": cache}
    want = loop(weights, rule, PROMPT, 7)
    beams = beam_search(weights, n_beams=1, **given)
    np.testing.assert_array_equal(beams.tokens[:, 0], want)
    np.testing.assert_array_equal(sample(weights, rng=0, top_k=1, **given).tokens, want)
    steps = [step.tokens for step in stream(weights, **given)]
    np.testing.assert_array_equal(np.stack(steps, axis=1), want)
    draft = model(1, encoder=False)
    for small in (weights, draft):
        got = speculative_sample(weights, small, rng=0, temperature=0, **given)
        np.testing.assert_array_equal(got.tokens, want)
    many = [beam_search(weights, n_beams=3, **given | {"cache": c}) for c in (True, False)]
    np.testing.assert_array_equal(many[0].tokens, many[1].tokens)
    best = many[0]
    for b in range(2):  # the model's own log p of the best beam
        ids = np.concatenate([PROMPT[b], best.tokens[b, 0]])[None].repeat(2, axis=0)
        mask = rule.dense(ids.shape[1])
        mask = mask[:, None] if mask.ndim == 3 else mask
        log_p = ab.log_softmax(ab.transformer(None, ids, weights, target_mask=mask))[b]
        gains = np.take_along_axis(log_p[4:-1], best.tokens[b, 0][:, None], axis=1)
        np.testing.assert_allclose(gains.sum(), best.scores[b, 0], atol=1e-9)


@pytest.mark.parametrize("leading", [False, True])
def test_a_rule_of_the_source(leading):
    weights, source = model(), np.array([[3, 1, 4, 1], [2, 6, 5, 3]])
    lengths = [2, 3] if leading else 2
    rule = FirstKeys(lengths)
    given = {"prompt": 1, "max_length": 5}
    padding = {"source_lengths": lengths if leading else [2, 2]}
    for decode in (greedy_decode, beam_search):
        more = {} if decode is greedy_decode else {"n_beams": 2}
        want = decode(weights, source, **given, **more, **padding)
        got = decode(weights, source, **given, **more, source_mask=rule)
        np.testing.assert_array_equal(got.tokens, want.tokens)


def decoded(rule, n=5, weights=None, **options):
    weights = model(encoder=False) if weights is None else weights
    return greedy_decode(weights, prompt=PROMPT, max_length=n, target_mask=rule, **options)


def with_state():
    weights = model(encoder=False)
    first, second = weights.decoder.layers
    layers = (first, replace(second, self_attention=LinearAttentionWeights.init(0, 8, 2)))
    return replace(weights, decoder=replace(weights.decoder, layers=layers))


ERRORS = """
decoded(np.ones((5, 5), bool))
    TypeError: target_mask must be a masking.Rule, because the target grows, got ndarray
decoded(FirstKeys([1, 2, 3]))
    ValueError: target_mask must have leading axes that broadcast to (2,), got (3,)
decoded(FirstKeys([[1, 2]]))
    ValueError: target_mask must have leading axes that broadcast to (2,), got (1, 2)
decoded(Documents([0] * 8))
    ValueError: there must be at most as many keys as ids, 8, got 9
decoded(Causal(), weights=with_state())
    ValueError: target_mask must be None, since layer 1 keeps a state
decoded(Chunks(4), cache=HybridCache())
    ValueError: target_mask must be None for a HybridCache, which itself chooses the keys to read,
    got Chunks(4)
"""
test_error = error_test(ERRORS, globals() | {"HybridCache": HybridCache})


def test_documents_for_just_enough_tokens():
    assert decoded(Documents([0] * 9)).tokens.shape == (2, 5)
