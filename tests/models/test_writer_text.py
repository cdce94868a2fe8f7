"""What the shipped writer writes looks like a play: speakers, lines, and words that are words."""

import re

import numpy as np
import pytest
from cases import WEEKLY, every_day

from attnbook.data import plays
from attnbook.decoding import sample
from attnbook.models import writer

WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
SPEAKER = re.compile(r"[A-Z][A-Z' &,-]*:")
TEXTS, LENGTH = 8, 200 if WEEKLY else 100


@pytest.fixture(scope="module")
def known():
    """Return the words of all plays, those that the writer never saw among them."""
    return set(WORD.findall("".join(plays().texts.values()).lower()))


@pytest.fixture(scope="module", params=every_day([0.8], [0.5, 0.8, 1.0]))
def written(request):
    """Return a temperature and texts from a fixed seed, as `write` makes them, but side by side."""
    model = writer()
    start = np.full((TEXTS, 1), model.tokenizer.stop)
    options = {"prompt": start, "max_length": LENGTH, "temperature": request.param}
    tokens = sample(model.weights, rng=0, **options).tokens
    return request.param, [model.tokenizer.decode(row) for row in tokens]


def test_its_words_are_words(written, known):
    temperature, texts = written
    # the last word of a text may be half a word
    words = [word for text in texts for word in WORD.findall(text.lower())[:-1]]
    assert len(words) > TEXTS * LENGTH / 4
    share = sum(word in known for word in words) / len(words)
    assert share >= {0.5: 0.98, 0.8: 0.95, 1.0: 0.92}[temperature]


def test_it_has_speakers_and_lines(written):
    _, texts = written
    speeches = [speech for text in texts for speech in text.split("\n\n")[:-1]]
    assert len(speeches) >= TEXTS
    named = [speech.split("\n") for speech in speeches if SPEAKER.match(speech)]
    assert len(named) >= 0.9 * len(speeches)
    lines = [line for speech in named for line in speech[1:]]
    assert len(lines) >= 1.2 * len(named)
    assert np.quantile([len(line) for line in lines], 0.95) < 70  # as in the plays


def test_it_does_not_say_the_same_over_and_over(written):
    _, texts = written
    lines = [line for text in texts for line in text.split("\n") if len(line) > 20]
    assert len(set(lines)) >= 0.95 * len(lines)


def test_it_does_not_copy_the_plays(written):
    _, texts = written
    everything = "".join(plays().texts.values())
    lines = [line for text in texts for line in text.split("\n") if len(line) > 30]
    assert sum(f"\n{line}\n" in everything for line in lines) <= 0.05 * len(lines)
