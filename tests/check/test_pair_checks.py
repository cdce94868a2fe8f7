"""The checks of byte pairs: lists that are changed, and what no mistake explains."""

import pytest
from pair_answers import right_encode, right_merge

from attnbook import check


def test_a_list_that_is_changed_is_found():
    def in_place(ids, pair, new):
        ids[:] = right_merge(ids, pair, new)
        return ids

    report = check.merge_pair(in_place)
    assert report.mistake == "changes ids"
    assert "the caller's list is no longer what it was" in report.message

    def without_first(word, merges):
        ids = right_encode(word, merges)
        del merges[:1]
        return ids

    assert check.encode_byte_pairs(without_first).mistake == "changes merges"


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        (
            "merge_pair",
            lambda ids, pair, new: [*right_merge(ids, pair, new), 1],
            "With (5, 7) written for each 12, your ids must be [5, 7, 5, 7, 5, 7, 9, 5, 7] again; ",
        ),
        (
            "learn_byte_pairs",
            lambda words, n_merges: [(1, 2)],
            "Your pair 0, (1, 2), occurs 0 times there, and (108, 111) 4 times.",
        ),
        (
            "encode_byte_pairs",
            lambda word, merges: [*right_encode(word, merges), 33],
            "Your tokens spell b'bcd!'; the word is b'bcd'.",
        ),
        (
            "encode_byte_pairs",
            lambda word, merges: [*right_encode(word, merges), 999],
            "The ids must be from 0 to 262; one of yours is 999.",
        ),
    ],
)
def test_what_no_mistake_explains_is_described(name, answer, said):
    report = getattr(check, name)(answer)
    assert report.mistake is None
    assert said in report.message, report.message
