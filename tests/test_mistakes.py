"""The notes on common mistakes: each exercise whose check has a table shows one."""

import functools
import html
import json
import re

import pytest
from cases import load
from test_book import BOOK, NOTEBOOKS, ROOT

from attnbook import check

MISTAKES = load(BOOK / "_ext" / "mistakes.py")
TABLES = MISTAKES.tables()
SOLUTION = re.compile(r"\{solution-start\} (\S+)\n(.*?)\{solution-end\}", re.S)
CELL = re.compile(
    r"^```\{code-cell\} ipython3\n(?:---\n.*?^---\n)?(?::[^\n]*\n)*(.*?)^```$", re.M | re.S
)
PAGES = ROOT / "_build/html/book"


def handed_in():
    """Return chapter, exercise, check and solution where a function is checked by its name."""
    found = []
    for chapter, path in NOTEBOOKS.items():
        for label, body in SOLUTION.findall(path.read_text("utf8")):
            code = "\n\n".join(CELL.findall(body))
            for name, what in re.findall(r"\bcheck\.(\w+)\(\s*(\w+)[,)]", code):
                if re.search(rf"^(def|class) {what}\b", code, re.M):
                    found.append((chapter, label, name, code))
                    break
    return found


CHECKED = handed_in()


@functools.cache
def notes():
    """Return the mistakes that each exercise shows, by its label, as the pages of the site do."""
    found = {}
    for chapter in NOTEBOOKS:
        before = []
        for _, label, name, code in (row for row in CHECKED if row[0] == chapter):
            found[label] = MISTAKES.noted(TABLES[name], code, before)
            before += [mistake.name for mistake in (*TABLES[name], *found[label])]
    return found


def test_every_check_has_a_table_but_those_of_properties():
    without = set(check.__all__) - set(TABLES) - {"CheckFailed", "Report"}
    assert without == set()
    assert {name for _, _, name, _ in CHECKED} <= set(TABLES)


@pytest.mark.parametrize(("chapter", "label", "name", "code"), CHECKED, ids=[r[1] for r in CHECKED])
def test_a_note_is_in_the_words_of_the_check(chapter, label, name, code):
    assert MISTAKES.called(code) == name
    note = notes()[label]
    assert 3 <= len(note) <= 5
    messages = {mistake.name: MISTAKES.said(mistake) for mistake in TABLES[name]}
    for mistake in note:
        done = MISTAKES.done(mistake)
        assert messages[mistake.name].startswith(done[:-1])
        assert 5 < len(done) < 220
        lines = [line.strip() for line in code.splitlines() if len(line.strip()) > 5]
        assert not any(line in done for line in lines)


def test_two_exercises_with_one_check_show_different_notes():
    found = notes()
    shown = [
        {mistake.name for mistake in found[f"exercise-distributed-{name}"]}
        for name in ("direction", "queries")
    ]
    assert all(shown)
    assert not shown[0] & shown[1]


def test_a_sentence_with_a_formula_of_the_solution_is_left_out():
    solution = "def f(x):\n    return g(x) / (1 + x)\n\n\ncheck.softmax(f)"
    parts = MISTAKES.formulas(solution)
    assert MISTAKES.quotes("You write g(x)/(1 + x).", parts)
    assert not MISTAKES.quotes("You divide twice.", parts)
    table = tuple(MISTAKES.Mistake(n, f"{n} {s}. Do it.") for n, s in ("ab", "cd"))
    assert MISTAKES.noted(table, solution) == list(table)
    told = (MISTAKES.Mistake("a", "You write g(x) / (1 + x). No."), *table)
    assert MISTAKES.noted(told, solution) == list(table)


def test_an_answer_that_is_not_handed_in_by_name_has_no_note():
    assert MISTAKES.called("check.softmax(lambda x: x)") == ""
    assert MISTAKES.called("check.softmax(other)") == ""


@pytest.mark.site
@pytest.mark.parametrize("chapter", sorted({row[0] for row in CHECKED}))
def test_the_page_shows_the_notes_before_the_solutions(chapter):
    text = (PAGES / f"{chapter}.html").read_text("utf8")
    folds = re.findall(r'<details class="[^"]*common-mistakes[^"]*">(.*?)</details>', text, re.S)
    own = [(label, notes()[label]) for name, label, *_ in CHECKED if name == chapter]
    assert len(folds) == len(own)
    for fold, (label, note) in zip(folds, own, strict=True):
        words = html.unescape(re.sub(r"<[^>]+>", "", fold))
        assert all(MISTAKES.done(mistake).replace("`", "") in words for mistake in note)
        solution = text.index(f'id="{label.replace("exercise", "solution", 1)}"')
        assert text.index(fold) < solution
    hints = json.loads((ROOT / f"_build/exercises/{chapter}.json").read_text("utf8"))["exercises"]
    shown = [MISTAKES.done(mistake) for _, note in own for mistake in note]
    assert not any(line in hint for e in hints for hint in e["hints"] for line in shown)


@pytest.mark.site
def test_the_page_for_instructors_has_every_sentence():
    text = (PAGES / "course/mistakes.html").read_text("utf8")
    folds = re.findall(r'<details class="[^"]*common-mistakes', text)
    assert len(folds) == len({name for _, _, name, _ in CHECKED})
    assert ">1.1 Weights with a mask<" in text
    words = html.unescape(re.sub(r"<[^>]+>", "", text))
    for chapter, label, name, _ in CHECKED:
        assert f"../{chapter}.html#{label}" in text
        for mistake in TABLES[name]:
            assert f"{mistake.name}: {MISTAKES.said(mistake)}".replace("`", "") in words
