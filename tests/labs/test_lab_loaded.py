"""The models in the page, in Chromium: what a reader types is read as the package reads it."""

import numpy as np
import pytest
from cases import recorded
from figures import lab_data, labs
from test_lab_encoder import PIECES, as_stored, random_weights
from test_lab_pages import WIDE, Figure
from visits import SITE

from attnbook import decoding
from attnbook.models import writer
from attnbook.models.bert_encoder import bert

pytestmark = pytest.mark.site

LOAD = "Load the writer"


def press(figure, label):
    figure.box.get_by_role("button", name=label).click()
    figure.changed_by(lambda: None)  # which waits until nothing more follows


def without_the_weights_the_record_stays(figure):
    figure.tab.route("**/writer.bin", lambda route: route.abort())
    press(figure, LOAD)
    assert figure.says().startswith("The writer could not be loaded.")
    assert figure.changed_by(lambda: figure.box.get_by_label("HAMLET").check(force=True))
    figure.tab.unroute("**/writer.bin")


def test_the_writer_goes_on_from_words_of_the_reader(browser, server):
    figure = Figure(browser, server, "decoding", WIDE)
    without_the_weights_the_record_stays(figure)
    press(figure, LOAD)
    assert figure.says().startswith("After “Good my” the writer gives “lord” 76")
    figure.box.get_by_label("Your own beginning").fill("JULIET: O Romeo, what")
    figure.box.get_by_label("Top-k").fill("0")  # the likeliest alone
    press(figure, "Write a line")
    found = figure.box.locator("text.mono.strong:visible").all_text_contents()
    model = writer()
    tokenizer = model.tokenizer
    ids = [tokenizer.stop, *tokenizer.encode("JULIET:\nO Romeo, what").tolist()]
    greedy = decoding.greedy_decode(
        model.weights, prompt=np.array([ids]), max_length=len(found), stop=tokenizer.stop
    )
    pieces = [tokenizer.decode([token]) for token in greedy.tokens[0].tolist()]
    assert [piece.replace("\n", "↵").strip() for piece in pieces] == found
    assert found[-1].startswith("↵")
    figure.tab.close()


def test_a_sentence_of_the_reader_has_the_heads_of_the_package(browser, server):
    figure = Figure(browser, server, "heads", WIDE)
    press(figure, LOAD)
    words = "Good night, good night! parting is such sweet sorrow"
    figure.box.get_by_label("Your own sentence").fill(words)
    figure.changed_by(figure.part("head-3-1").click)
    figure.changed_by(figure.part("token-6").click)
    chips = figure.box.locator('[data-part^="token-"]:visible').all()
    labels = [chip.get_attribute("aria-label").rpartition(": ") for chip in chips]
    model = writer()
    assert [label[0] for label in labels] == [piece.strip() for piece in model.tokens(words)]
    shares = [float(label[2].strip("< %\xa0")) / 100 for label in labels]
    np.testing.assert_allclose(shares, model.attention(words)[3, 1, 6], atol=6e-3)
    figure.tab.close()


def test_a_line_of_the_reader_has_the_guesses_of_the_package(browser, server):
    figure = Figure(browser, server, "guesses", WIDE)
    press(figure, LOAD)
    words = "To-morrow, and well-"
    figure.box.get_by_label("Your own sentence").fill(words)
    figure.changed_by(figure.part("token-1").click)  # the first hyphen
    texts = figure.box.locator("svg:visible text").all_text_contents()
    shown = texts[texts.index("What comes next") :]
    model = writer()
    logits = model.logits(words)[1].astype(float)
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    for i in np.argsort(-p)[:3]:
        assert shown[shown.index(model.tokenizer.decode([i])) + 1] == f"{100 * p[i]:.2g}\xa0%"
    figure.tab.close()


@pytest.mark.weekly
def test_a_sentence_encoder_of_the_site_reads_a_sentence(browser, server, monkeypatch):
    """As ATTNBOOK_LABS_ENCODER=1 builds the site, with a small encoder of random numbers."""
    weights = random_weights(0)
    page = (SITE / "book" / "multi_head.html").read_text("utf8")
    usual = labs.lab_named("heads").box()
    assert usual in page
    sizes = {"writer": 1, "encoder": 1}
    record = lab_data.as_module(lab_data.heads_record() | {"megabytes": sizes})
    monkeypatch.setattr(lab_data, "made", lambda name: record)
    answers = {
        "multi_head.html": page.replace(usual, labs.Lab("heads").box()),
        "heads_record.js": record,
        "encoder.bin": lab_data.encoder_file(weights, PIECES.tokens),
    }
    figure = Figure(browser, server, "heads", WIDE, answers)
    figure.box.get_by_label("The sentence encoder").check(force=True)
    press(figure, "Load the encoder")
    figure.box.get_by_label("Your own sentence").fill("To be, the being")
    figure.changed_by(figure.part("head-1-1").click)
    figure.changed_by(figure.part("token-3").click)
    assert figure.part("head-2-1").count()
    assert not figure.part("head-3-0").count()
    chips = figure.box.locator('[data-part^="token-"]:visible').all()
    labels = [chip.get_attribute("aria-label").rpartition(": ") for chip in chips]
    ids = PIECES.encode("To be, the being")
    assert [label[0] for label in labels] == [PIECES.tokens[i] for i in ids]
    shares = [float(label[2].strip("< %\xa0")) / 100 for label in labels]
    _, expected = recorded(bert, ids, as_stored(weights))
    np.testing.assert_allclose(shares, expected[1][1, 3], atol=6e-3)
    figure.tab.close()
