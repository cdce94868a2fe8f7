"""A class hands in, is graded, and its pages are what the services read."""

import csv
import json

import pupils
import pytest
from samples import PENCIL, SQUARES, WRITTEN

from course import exercises, grading, results, submissions
from course.session import Limits


def graded(tmp_path, asked, n, limits):
    """Return the rows of the table of a class of `n`."""
    pupils.hand_in(tmp_path / "in", asked, n)
    handed_in = submissions.read(tmp_path / "in", asked)
    done = list(grading.grade(handed_in, asked, "s", limits=limits, workers=2))
    results.write(done, asked, tmp_path / "out")
    for path in (tmp_path / "out/students").glob("*.json"):
        told = json.loads(path.read_text("utf8"))
        assert told["score"] == sum(test["score"] for test in told["tests"])
    rows = list(csv.reader((tmp_path / "out/grades.csv").read_text("utf8").splitlines()))
    assert len(rows) == n + 1
    return rows[1:]


def assert_deserved(rows):
    """Right answers get all points, and of the others nobody gets half of them."""
    for name, *_, total, of in rows:
        if name.split()[0] in ("right", "again"):
            assert total == f"{of}.0", name
        else:
            assert float(total) < int(of) / 2, name


@pytest.mark.weekly
def test_a_class_gets_what_it_deserves(tmp_path):
    asked = [SQUARES, PENCIL]
    assert_deserved(graded(tmp_path, asked, 6, Limits(1, 1024)))


@pytest.mark.site
@pytest.mark.weekly
@pytest.mark.parametrize("chapter", ["single_head", "masking", "hashing"])
def test_a_class_hands_in_a_whole_chapter(chapter, tmp_path):
    asked = exercises.read(WRITTEN)[chapter]
    assert_deserved(graded(tmp_path, asked, 24, Limits()))
