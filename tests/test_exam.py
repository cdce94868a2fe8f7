"""The bank of exam questions: answers are run, minutes and points are right."""

import functools
import re
from typing import NamedTuple

import pytest
from cases import load
from test_book import CHAPTERS
from test_syllabi import COURSE, answers, numbers, printed_by

NAMES = ("attention", "models", "search", "machines", "today")
PAGES = [COURSE / "exam" / f"{name}.md" for name in NAMES]
KINDS = {
    "By hand",
    "Find the mistake",
    "Derive",
    "Predict the output",
    "Argue with a cost",
    "Compare two designs",
    "True or false",
}
LEVELS = {"easy", "core", "harder"}
QUESTION = re.compile(
    r"^\((exam-[\w-]+)\)=\n## (\d+)\. ([^\n]+)\n\n"
    r"([A-Z][a-z ]+), (\w+), (\d+) minutes, (\d+) points; ([^\n]+)\.\n"
    r"(.*?)^:::\{dropdown\} Answer$",
    re.M | re.S,
)
READING = 10
"""Minutes of an exam to read the questions and to look the answers over."""


class Question(NamedTuple):
    label: str
    number: int
    title: str
    kind: str
    level: str
    minutes: int
    points: int
    chapters: list[str]
    text: str
    said: str
    code: str
    then: str

    @property
    def row(self):
        """Its row in the table of the bank."""
        chapters = ", ".join(f"{{doc}}`../{name}`" for name in self.chapters)
        kind = f"{self.kind.lower()}, {self.level}"
        return f"| {{ref}}`exam-{self.label}` | {kind} | {self.minutes} | {chapters} |"


@functools.cache
def bank():
    found = []
    for path in PAGES:
        asked = QUESTION.findall(path.read_text("utf8"))
        for parts, answer in zip(asked, answers(path), strict=True):
            label, number, title, kind, level, minutes, points, chapters, text = parts
            names = re.findall(r"\{doc\}`\.\./\.\./(\w+)`", chapters)
            facts = label.removeprefix("exam-"), int(number), title, kind, level
            found.append(Question(*facts, int(minutes), int(points), names, text, *answer))
    return found


question = pytest.mark.parametrize("at", bank(), ids=lambda q: q.label)


def test_the_bank_has_questions_of_all_kinds_and_chapters():
    assert [q.number for q in bank()] == [n + 1 for n in range(len(bank()))]
    assert len(bank()) > 40
    assert {q.kind for q in bank()} == KINDS
    assert {q.level for q in bank()} == LEVELS
    for chapter in CHAPTERS:
        assert sum(chapter in q.chapters for q in bank()) >= 2, chapter


@question
def test_points_follow_from_minutes_and_are_given_out(at):
    assert at.minutes == 2 * at.points
    points, wrong = at.then.split("**Often wrong:**")
    assert sum(map(int, re.findall(r"\((\d)\)", points.split("**Points:**")[1]))) == at.points
    assert len(wrong.split()) > 5


@question
def test_an_answer_is_computed(at):
    """What the code prints stands in the sentences, and what these claim stands in the code."""
    assert "assert " in at.code
    assert re.search(r"^import (numpy|torch|attnbook)|^from (torch|attnbook)", at.code, re.M)
    printed = printed_by(at.code)
    assert set(map(abs, numbers(printed))) <= set(map(abs, numbers(at.said))) or "Pred" in at.kind
    computed = {abs(x) for x in numbers(printed) | numbers(at.code) | numbers(at.text)}
    claimed = {abs(x) for x in numbers(at.said) if x % 1 or abs(x) >= 100}
    assert claimed <= computed


@question
def test_what_is_asked_of_a_program_is_what_the_answer_runs(at):
    lines = re.findall(r"^(.*)  # \?$", at.text, re.M)
    assert bool(lines) == (at.kind == "Predict the output")
    assert not lines or lines == [
        line.partition("  # ")[0] for line in at.code.splitlines() if "print(" in line
    ]


def about():
    return (COURSE / "exam.md").read_text("utf8")


def test_the_table_of_the_bank():
    rows = re.findall(r"^\| \{ref\}`exam-.*`\S* \|.*$", about().split("\n## ")[-1], re.M)
    assert rows == [q.row for q in bank()]


@pytest.mark.parametrize("name", ["A mid-term", "A final"])
def test_an_exam_takes_ninety_minutes(name):
    text = about().split(f"## {name}")[1].split("\n## ")[0]
    by_label = {q.label: q for q in bank()}
    rows = re.findall(r"^\| \{ref\}`exam-([\w-]+)` \| (\d+) \| (\d+) \|$", text, re.M)
    chosen = [by_label[label] for label, _, _ in rows]
    assert [(q.minutes, q.points) for q in chosen] == [(int(m), int(p)) for _, m, p in rows]
    minutes, points = sum(q.minutes for q in chosen), sum(q.points for q in chosen)
    assert f"| together | {minutes} | {points} |" in text
    assert minutes + READING == 90
    assert len({q.kind for q in chosen}) >= 6


def test_no_question_is_in_both_exams():
    halves = re.findall(r"## A (?:mid-term|final).*?(?=\n## )", about(), re.S)
    first, second = (set(re.findall(r"`(exam-[\w-]+)`", half)) for half in halves)
    assert len(first) > 5 < len(second)
    assert not first & second


def test_numbers_by_seed():
    (code,) = re.findall(r"^```python\n(.*?)^```$", about(), re.M | re.S)
    printed_by(code)
    exec(code.replace("default_rng(42)", "default_rng(8)"), {})


@pytest.fixture(scope="module")
def tool():
    return load(COURSE.parents[1] / "tools/exam_paper.py")


def test_a_paper_of_any_questions_has_no_answer(tool):
    """The questions stand there as the bank has them, and no line of their answers does."""
    every = [str(question.number) for question in bank()]
    paper = tool.paper(tool.chosen(every))
    lines = set(paper.splitlines())
    for asked, question in zip(tool.chosen(every), bank(), strict=True):
        assert question.text.strip() in paper
        assert asked["title"] == question.title
        asked_lines = set(question.text.splitlines())
        solution = {x for x in asked["answer"].splitlines() if len(x) > 30} - asked_lines
        assert solution
        assert solution & lines == set()
        assert solution <= set(tool.paper([asked], answers=True).splitlines())
    assert not re.search(r"\{\w+\}`|:::|dropdown|Often wrong|\*\*Points", paper)


def test_an_exam_by_its_name(tool, capsys):
    for name in ("mid-term", "final"):
        assert tool.main([name]) == 0
        out = capsys.readouterr().out
        assert "80 minutes, 40 points." in out
        assert out.count("\n## ") in (10, 11)
    assert tool.main(["31", "1"]) == 0
    out = capsys.readouterr().out
    assert out.index("## 1. Planes and tables") < out.index("## 2. Attention with a pencil")
    most = len(bank())
    for words, says in (
        ([str(most + 1)], f"from 1 to {most}, or mid-term or final, got {most + 1}"),
        (["1", "1"], "dif"),
    ):
        assert tool.main(words) == 1
        assert says in capsys.readouterr().err
