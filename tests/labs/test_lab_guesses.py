"""Guesses: the writer's next tokens are those of the package, beside its heads."""

import numpy as np
import pytest
from figures import SEEDS, fits, lab_named

from attnbook.models import writer


@pytest.fixture(scope="module")
def lab():
    return lab_named("guesses")


@pytest.fixture(scope="module")
def model():
    return writer()


def chances_after(model, text):
    """Return the probability of each next token, in float64."""
    logits = model.logits(text)[-1].astype(float)
    e = np.exp(logits - logits.max())
    return e / e.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_next_and_where_a_head_looks(seed, lab, model):
    random = np.random.default_rng(seed)
    layer, head, sentence = (int(random.integers(n)) for n in (6, 6, 4))
    state = {"sentence": sentence, "layer": layer, "head": head, "token": int(random.integers(22))}
    found = lab.numbers(**fits(lab, **state))
    read = found["tokens"][: found["token"] + 1]
    p = chances_after(model, "".join(read))
    np.testing.assert_allclose(
        [one["p"] for one in found["guesses"]], np.sort(p)[:-9:-1], atol=1e-5
    )
    A = model.attention("".join(found["tokens"]))[layer, head, found["token"]]
    np.testing.assert_allclose(found["row"], A, atol=1e-3)


def test_the_line_of_the_chapter(lab):
    found = lab.numbers()
    assert "".join(found["tokens"]) == "To-morrow, and to-"
    assert [one["label"] for one in found["guesses"]][:3] == ["morrow", "day", "night"]
    words = lab.call("state => lab.says(state, lab.numbers(state))", lab.start)
    assert "“morrow” with 69" in words


@pytest.mark.parametrize("n", [1, 2, 22])
def test_short_and_long_sentences(n, lab):
    A = [[[[1000 // (i + 1)] * (i + 1) for i in range(n)]] * 6] * 6
    tokens = ([" incomprehensible", "\n", "a"] * n)[:n]
    following = [[[" incomprehensible", 999.0], ["\n", 0.1], ["", 0.0]]] * n
    place = {"of": "", "model": "writer", "tokens": tokens, "pieces": tokens, "A": A}
    fits(lab, sentence=None, place=place | {"next": following}, token=min(n, 4))
