"""Heads: the maps are those that the two models of the package have."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook.models import heads, recorded_sentences, writer

RECORDED = (1, 0, 2)  # the sentences of the encoder in the order of the figure


@pytest.fixture(scope="module")
def lab():
    return lab_named("heads")


def expected_of(kind, sentence, tokens):
    """Return the tokens and the attention weights (layers, h, n, n) of the package."""
    if kind == "encoder":
        recorded = recorded_sentences()
        return list(recorded.tokens[RECORDED[sentence]]), recorded.attention[RECORDED[sentence]]
    model = writer()
    text = "".join(tokens)
    return model.tokens(text), model.attention(text)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_head_looks(seed, lab):
    random = np.random.default_rng(seed)
    kind = ("writer", "encoder")[seed % 2]
    layer, head = int(random.integers(6)), int(random.integers((6, 12)[seed % 2]))
    sentence, token = int(random.integers(3)), int(random.integers(16))
    state = fits(lab, model=kind, sentence=sentence, layer=layer, head=head, token=token)
    found = lab.numbers(**state)
    tokens, A = expected_of(kind, sentence, found["tokens"])
    assert found["tokens"] == tokens
    token = min(token, len(tokens) - 1)
    np.testing.assert_allclose(found["row"], A[layer, head, token], atol=1e-3)
    most = A[layer, head, token, found["most"][0][0]]
    assert most > A[layer, head, token].max() - 2e-3
    ids = np.arange(len(tokens))
    jobs = {
        "before": heads.previous_token(ids),
        "itself": np.eye(len(ids), dtype=bool),
        "first": heads.first_token(ids),
    }
    for job, places in jobs.items():
        score = heads.head_scores(A[layer, head], places)
        np.testing.assert_allclose(found["scores"][job], score, atol=1e-3)


@pytest.mark.parametrize("kind", ["writer", "encoder"])
def test_all_maps(kind, lab):
    found = lab.numbers(model=kind)
    _, A = expected_of(kind, 0, found["tokens"])
    assert (len(found["A"]), len(found["A"][0])) == A.shape[:2]
    for layer, rows in zip(A, found["A"], strict=True):
        for head, shares in zip(layer, rows, strict=True):
            for i, row in enumerate(shares):
                np.testing.assert_allclose(np.divide(row, 1000), head[i, : len(row)], atol=6e-4)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_short_and_long_sentences(n, lab):
    A = [[[[1000 // (i + 1)] * (i + 1) for i in range(n)]] * 6] * 6
    tokens = [" incomprehensible", "\n", "a"] * n
    place = {"of": "", "model": "writer", "tokens": tokens[:n], "A": A}
    fits(lab, sentence=None, place=place, token=min(n, 4))


def test_parts_lead_to_heads_and_tokens(lab):
    act = "(state, part, event) => lab.act({ ...lab.start, ...state }, part, event) ?? null"
    press, right, up = (
        {"kind": "press"},
        {"kind": "key", "key": "ArrowRight"},
        {"kind": "key", "key": "ArrowUp"},
    )
    assert lab.call(act, {}, "head-3-4", press) == {"layer": 3, "head": 4, "held": "head"}
    assert lab.call(act, {}, "head-3-5", right) == {"layer": 3, "head": 5, "held": "head"}
    assert lab.call(act, {"model": "encoder"}, "head-3-5", right)["head"] == 6
    assert lab.call(act, {}, "head-3-4", up) == {"layer": 2, "head": 4, "held": "head"}
    assert lab.call(act, {}, "token-2", {"kind": "enter"}) == {"token": 2, "held": "token"}
    assert lab.call(act, {}, "token-0", up) == {"token": 0, "held": "token"}
    assert lab.call(act, {}, "token-0", {"kind": "key", "key": "x"}) is None
    assert lab.call(act, {}, "row-4", {"kind": "leave"}) is None


def test_a_model_with_fewer_heads_opens_one_that_it_has(lab):
    call = "(model, state) => lab.controls[0].change(model, state)"
    assert lab.call(call, "writer", {"sentence": 1, "head": 9}) == {"sentence": 1, "head": 5}
    assert lab.call(call, "encoder", {"sentence": None, "head": 3}) == {"sentence": 0, "head": 3}
