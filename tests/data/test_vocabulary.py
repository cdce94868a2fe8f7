"""Characters to ids and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbook.data import Vocabulary

texts = st.text(st.sampled_from("aàbB 7.\n-"), max_size=11)


@given(texts)
def test_decode_undoes_encode(text):
    vocabulary = Vocabulary("Bà7.\n- ab")
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int64
    assert ids.shape == (len(text),)
    assert [vocabulary.characters[i - 3] for i in ids] == list(text)
    assert vocabulary.decode(ids) == text


def test_ids_begin_behind_pad_start_and_stop():
    vocabulary = Vocabulary("xyz")
    assert (vocabulary.pad, vocabulary.start, vocabulary.stop) == (0, 1, 2)
    assert vocabulary.encode("zyx").tolist() == [5, 4, 3]
    assert len(vocabulary) == 6
    assert len(Vocabulary("")) == 3


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([1, 3, 0, 4], "ab"),
        ([3, 2, 4, 2], "a"),
        ([2], ""),
        ((4, 4), "bb"),
        (np.array([5, 3], dtype=np.uint8), "ca"),
    ],
)
def test_decode_ends_at_the_first_stop_and_skips_start_and_pad(ids, text):
    assert Vocabulary("abc").decode(ids) == text


def test_of_takes_each_character_once_in_order():
    assert Vocabulary.of(["b é", "Ba", ""]) == Vocabulary(" Babé")
    assert Vocabulary.of("cab") == Vocabulary("abc")
    assert Vocabulary.of([]) == Vocabulary("")


@given(st.sets(st.characters(), max_size=7))
def test_stored_and_read_again(characters):
    vocabulary = Vocabulary.of(characters)
    read = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert read == vocabulary
    np.testing.assert_array_equal(
        read.encode(vocabulary.characters), np.arange(len(characters)) + 3
    )


def test_is_frozen():
    with pytest.raises(AttributeError):
        Vocabulary("ab").characters = "c"
