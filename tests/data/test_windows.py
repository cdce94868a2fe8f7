"""The parts of a text and its windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import Vocabulary, split_paragraphs, text, windows

paragraphs = st.lists(st.text("ab \n", min_size=1, max_size=7), min_size=2, max_size=7)


@given(paragraphs, st.floats(0.01, 0.99))
def test_split_is_the_cut_between_paragraphs_that_comes_nearest(parts, held_out):
    whole = "\n\n".join(parts)
    # as str.split does, an empty line is found from the left, two newlines at a time
    cuts, place = [], whole.find("\n\n")
    while place >= 0:
        cuts.append(place + 2)
        place = whole.find("\n\n", place + 2)
    cuts = [cut for cut in cuts if cut < len(whole)]
    if not cuts:
        return
    first, second = split_paragraphs(whole, held_out)
    assert first + second == whole
    assert len(first) == min(cuts, key=lambda cut: abs(cut - (1 - held_out) * len(whole)))


def test_split_of_the_real_text_shares_no_paragraph():
    pytest.importorskip("pydoc_data.topics", reason="no pydoc_data here")
    whole = text()
    first, second = split_paragraphs(whole)
    assert first + second == whole
    assert len(second) / len(whole) == pytest.approx(0.1, abs=0.01)
    assert not set(first.split("\n\n")[:-1]) & set(second.rstrip("\n").split("\n\n"))


@given(st.integers(1, 7), st.integers(1, 5), st.integers(0, 19))
def test_windows_are_stretches_of_the_text(length, stride, more):
    ids = np.random.default_rng(more).integers(0, 11, size=length + 1 + more)
    got = windows(ids, length, stride=stride)
    starts = [i for i in range(0, len(ids), stride) if i + length < len(ids)]
    assert got.dtype == np.int64
    assert got.tolist() == [[ids[i + j] for j in range(length + 1)] for i in starts]


def test_windows_copy_nothing():
    ids = np.arange(10**6)
    got = windows(ids, 10**5)
    assert np.shares_memory(got, ids)
    assert not got.flags.writeable


def test_text_to_windows_and_back():
    pytest.importorskip("pydoc_data.topics", reason="no pydoc_data here")
    whole = text()
    vocabulary = Vocabulary.of(whole)
    assert len(vocabulary) <= 96 + 3
    rows = windows(vocabulary.encode(whole), 610, stride=610)
    assert "".join(vocabulary.decode(row[:-1]) for row in rows) == whole[: 610 * len(rows)]
