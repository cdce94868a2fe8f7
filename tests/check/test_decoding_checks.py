"""The checks of decoding: wrong answers are named, right ones pass."""

import re

import numpy as np
import pytest
from decoding_answers import BEAM, RIGHT, RULE, WRONG

from attnbook import check
from attnbook.check.acceptance import SPECULATIVE_RULE
from attnbook.check.beams import BEAM_STEP
from attnbook.check.cache_step import CACHED_ATTENTION
from attnbook.check.cutting import MIN_P, TOP_P
from attnbook.check.penalty import REPETITION_PENALTY
from attnbook.check.steps import agree

CHECKS = {
    c.name: c
    for c in (TOP_P, MIN_P, REPETITION_PENALTY, SPECULATIVE_RULE, CACHED_ATTENTION, BEAM_STEP)
}
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
def test_the_steps_are_right_and_every_mistake_changes_them(name):
    checked = CHECKS[name]
    cases = [case for stage in checked.stages for case in stage.cases]
    right = checked.model({})
    for case in cases:
        assert agree(checked.expected(case), right(case), case), case
    assert len({m.message for m in checked.mistakes}) == len(checked.mistakes) >= 10
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
    report = getattr(check, name)(RIGHT[name][i], time_limit=60)
    assert report, report
    assert report.message == "agrees with the reference"
    assert report.libraries[0] == "numpy"


@pytest.mark.parametrize("name", CHECKS)
def test_functions_that_fail_in_every_way(name):
    function = getattr(check, name)

    def raises(*given):
        raise RuntimeError("so")

    with pytest.raises(TypeError, match=r"^f must be a function of \(.*\), got int$"):
        function(5)
    assert function(lambda: None).mistake == "wrong arguments"
    assert function(raises).mistake == "raises"
    assert function(lambda *given: None).mistake == "no return"
    for rubbish in ("text", {}, object(), [[object()]], np.array([True])):
        assert not function(lambda *given, rubbish=rubbish: rubbish)


def test_two_mistakes_at_once_are_named():
    report = check.speculative_rule(RULE.but("kept = p / q; instead = p"))
    assert {*report.mistakes} == {"ratio not cut off", "drawn from the model"}
    report = check.beam_step(BEAM.but("scores = log_p; out = best % n, best // n"))
    assert {*report.mistakes} == {"totals forgotten", "parents and tokens exchanged"}


def test_an_unknown_rule_is_told_by_what_comes_out():
    report = check.speculative_rule(RULE.but("kept = (p / q / 2) * 0 + 0.5"))
    assert report.mistake is None
    assert "comes out with probability" in report.message
