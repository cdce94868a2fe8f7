"""The checks of byte pairs: wrong answers are named, right ones pass."""

import re

import numpy as np
import pytest
from pair_answers import ENCODE_WRONG, RIGHT, WRONG, learn_with, right_encode, right_merge

from attnbook import check
from attnbook.check.pair_encoding import ENCODE_BYTE_PAIRS
from attnbook.check.pair_learning import LEARN_BYTE_PAIRS
from attnbook.check.pair_merging import MERGE_PAIR
from attnbook.check.steps import agree

CHECKS = {c.name: c for c in (MERGE_PAIR, LEARN_BYTE_PAIRS, ENCODE_BYTE_PAIRS)}
MESSAGES = {name: {m.name: m.message for m in c.mistakes} for name, c in CHECKS.items()}


@pytest.mark.parametrize(("name", "wrong"), [(name, w) for name in WRONG for w in WRONG[name]])
def test_a_wrong_answer_is_rejected_with_its_own_sentence(name, wrong):
    report = getattr(check, name)(WRONG[name][wrong], time_limit=60)
    mistake = re.sub(r" \d$", "", wrong)
    assert not report
    assert (report.mistake, report.message) == (mistake, MESSAGES[name][mistake])
    assert re.match(r"(It was given|With) ", report.detail)
    assert report.case is not None


@pytest.mark.parametrize("name", CHECKS)
def test_every_mistake_has_an_answer(name):
    assert {re.sub(r" \d$", "", wrong) for wrong in WRONG[name]} == {*MESSAGES[name]}
    assert len({*MESSAGES[name].values()}) == len(CHECKS[name].mistakes) >= 15


@pytest.mark.parametrize("name", CHECKS)
def test_the_steps_are_right_and_every_mistake_changes_them(name):
    checked = CHECKS[name]
    cases = [case for stage in checked.stages for case in stage.cases]
    right = checked.model({})
    for case in cases:
        assert agree(checked.expected(case), right(case), case), case
    for mistake in checked.mistakes:
        for way in mistake.ways:
            model = checked.model(way)
            assert not all(same(model, case, checked.expected(case)) for case in cases), mistake


def same(model, case, expected):
    try:
        return agree(model(case), expected, case)
    except Exception:
        return False


@pytest.mark.parametrize(("name", "i"), [(n, i) for n, fs in RIGHT.items() for i in range(len(fs))])
def test_a_right_answer_in_any_style_passes(name, i):
    report = getattr(check, name)(RIGHT[name][i])
    assert report, report
    assert report.message == "agrees with the reference"
    assert report.notes == ()


@pytest.mark.parametrize("name", CHECKS)
def test_functions_that_fail_in_every_way(name):
    function = getattr(check, name)

    def raises(*given):
        raise RuntimeError("so")

    def hangs(*given):
        while True:
            pass

    with pytest.raises(TypeError, match=r"^f must be a function of \(.*\), got int$"):
        function(5)
    assert function(lambda: None).mistake == "wrong arguments"
    report = function(raises)
    assert report.mistake == "raises"
    assert report.message.startswith("Your function raises RuntimeError: so, at line ")
    assert function(hangs, time_limit=0.1).mistake == "hangs"
    assert function(lambda *given: None).mistake == "no return"
    for rubbish in ("text", {}, object(), [[object()]], [[1, 2], [1]], [0.5], np.array([True])):
        assert not function(lambda *given, rubbish=rubbish: rubbish)


def test_two_mistakes_at_once_are_named():
    report = check.learn_byte_pairs(
        learn_with(first_id=257, choose=lambda c: max(c, key=lambda pair: (c[pair], pair)))
    )
    assert {*report.mistakes} == {"ids of new tokens", "ties the other way"}
    report = check.encode_byte_pairs(lambda w, m: ENCODE_WRONG["longest token"](w, m)[::-1])
    assert {*report.mistakes} == {"longest token", "returned backwards"}


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
