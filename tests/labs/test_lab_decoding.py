"""Decoding: distributions, draws and beams are those of the package."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

import attnbook as ab
from attnbook import decoding
from attnbook.decoding.sampling import chain
from attnbook.models import writer

TOP_K = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, None]


@pytest.fixture(scope="module")
def lab():
    return lab_named("decoding")


@pytest.fixture(scope="module")
def model():
    return writer()


def settings(seed):
    """Return the state of a figure and the same for the package."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(len(TOP_K)))
    temperature, top_p, min_p = (
        float(round(x, 2)) for x in random.uniform([0.1, 0.05, 0], [2, 1, 0.5])
    )
    top_p, min_p = (1.0 if seed % 3 == 0 else top_p), (0.0 if seed % 4 == 0 else min_p)
    state = {"temperature": temperature, "topK": rank, "topP": top_p, "minP": min_p}
    return state, chain(temperature, TOP_K[rank], top_p, min_p)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_drawn_from(seed, lab):
    state, processors = settings(seed)
    state = fits(lab, beginning=seed % 3, **state)
    found = lab.numbers(**state)
    log_p = np.array([found["logP"]])
    np.testing.assert_allclose(found["p"], ab.softmax(log_p)[0], rtol=1e-12)
    for process in processors:
        log_p = process(log_p, [])
    np.testing.assert_allclose(found["q"], ab.softmax(log_p)[0], rtol=1e-10)
    assert found["kept"] == np.count_nonzero(np.isfinite(log_p))
    np.testing.assert_allclose(found["mass"], np.sum(found["p"][: found["kept"]]), rtol=1e-12)


def test_equal_tokens_and_single_ones_stay(lab):
    call = "(logP, given) => modules['decoding.js'].filtered(logP, given)"
    off = {"temperature": 1, "topK": 9, "topP": 1, "minP": 0}
    half = np.log([0.5, 0.25, 0.125, 0.125]).tolist()
    for change, expected in (
        ({}, [0.5, 0.25, 0.125, 0.125]),
        ({"topK": 1}, [1, 0, 0, 0]),
        ({"topK": 3}, [4 / 7, 2 / 7, 1 / 7, 0]),
        ({"topP": 0.5}, [1, 0, 0, 0]),
        ({"topP": 0.6}, [2 / 3, 1 / 3, 0, 0]),
        ({"minP": 0.3}, [2 / 3, 1 / 3, 0, 0]),
        ({"minP": 1}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, np.array([16, 4, 1, 1]) / 22),
    ):
        np.testing.assert_allclose(lab.call(call, half, off | change), expected, atol=1e-12)


@pytest.mark.parametrize("beginning", range(3))
def test_the_record_is_what_the_writer_says(beginning, lab, model):
    found = lab.numbers(beginning=beginning)
    text = lab.call("i => modules['decoding_record.js'].record.beginnings[i].text", beginning)
    ids = [model.tokenizer.stop, *model.tokenizer.encode(text).tolist()]
    log_p = ab.log_softmax(ab.transformer(None, np.array(ids), model.weights)[-1])
    np.testing.assert_allclose(found["logP"], -np.sort(-log_p), atol=2e-3)
    assert found["pieces"] == model.tokens(text)
    for piece, p in zip(found["next"], found["p"][:12], strict=True):
        (token,) = model.tokenizer.encode(piece)
        assert abs(np.exp(log_p[token]) - p) < 2e-3


@pytest.mark.parametrize("beginning", range(3))
@pytest.mark.parametrize("n_beams", range(1, 5))
def test_beams(beginning, n_beams, lab, model):
    state = fits(lab, view="beams", beginning=beginning, beams=n_beams)
    columns = lab.numbers(**state)["columns"]
    text = lab.call("i => modules['decoding_record.js'].record.beginnings[i].text", beginning)
    ids = [model.tokenizer.stop, *model.tokenizer.encode(text).tolist()]
    for steps, column in enumerate(columns, 1):
        best = decoding.beam_search(
            model.weights,
            prompt=np.array([ids]),
            max_length=steps,
            n_beams=n_beams,
            stop=model.tokenizer.stop,
        )
        lengths = best.lengths[0]
        expected = [row[:n].tolist() for row, n in zip(best.tokens[0], lengths, strict=True)]
        assert [one["ids"] for one in column["kept"]] == expected
        scores = [one["logP"] for one in column["kept"]]
        np.testing.assert_allclose(scores, best.scores[0], atol=1e-2)
    assert len(columns) == 5
    greedy = columns[-1]["kept"][0]["greedy"]
    assert greedy or n_beams > 1


def test_a_draw_takes_the_piece_on_which_the_number_falls(lab):
    random = np.random.default_rng(0)
    call = "(q, xi) => modules['decoding.js'].drawn(q, xi)"
    for _ in range(50):
        q = -np.sort(-random.dirichlet([0.3] * 6))
        q[4:] = 0
        xi = random.uniform(0, q.sum())
        assert lab.call(call, q.tolist(), xi) == np.sum(np.cumsum(q) <= xi)
    assert lab.call(call, [0.5, 0.5 - 1e-9, 0], 1 - 1e-12) == 1
    numbers = lab.call("() => kit.range(2000).map(n => modules['decoding.js'].uniform(7, n))")
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    assert abs(np.mean(numbers) - 0.5) < 0.03


def test_beginnings_are_written_as_the_plays_have_them(lab):
    call = "text => modules['decoding.js'].asPlay(text)"
    assert lab.call(call, "KING HENRY: O, for: a muse") == "KING HENRY:\nO, for: a muse"
    assert lab.call(call, "To be: or not") == "To be: or not"


def test_a_long_text_keeps_its_height(lab):
    pieces = [" word"] * 90
    place = lab.numbers() | {"pieces": pieces, "made": 60, "read": 1, "table": {}}
    height = "s => lab.draw(s, lab.numbers(s), 340).match(/viewBox=.0 0 340 ([0-9.]+)/)[1]"
    changes = {"place": place, "made": [1] * 60, "weights": "ready"}
    assert lab.call(height, fits(lab, **changes)) == lab.call(height, lab.start)
