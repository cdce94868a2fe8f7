"""The plans of `book/course`: what they name is there, and their minutes and numbers are right."""

import contextlib
import functools
import io
import re
from html import unescape

import pytest
from test_book import BOOK, NOTEBOOKS
from visits import SITE

from attnbook import check
from course.exercises import read as read_exercises

COURSE = BOOK / "course"
SPOKEN = {
    "45 minutes": 45,
    "an hour": 60,
    "an hour and a quarter": 75,
    "an hour and a half": 90,
    "two hours": 120,
}
MINUTES = re.compile(r"\{ref\}`(exercise-[\w-]+)` \((\d+)\)")
EXERCISE = re.compile(
    r"\{exercise(?:-start)?\} [^\n]*\n:label: (\S+)\n(.*?)\n(?:```|\{exercise-end)", re.S
)
LINK = r"\[([^\]]+)\]\(\.\./(\w+)\.ipynb#[\w-]+\)"
READING = re.compile(rf"\{{doc\}}`\.\./(\w+)`(?: from {LINK})?(?: up to {LINK})? \((\d+)\)")
LONGEST = {"Board": 45, "Session": 90, "Home": 90}
SYLLABI = {"two": 2, "six": 6, "semester": 14}


@functools.cache
def source(name):
    return NOTEBOOKS[name].read_text("utf8")


@functools.cache
def exercises():
    """Return the text and the minutes of each exercise, by its label."""
    texts = [found for name in NOTEBOOKS for found in EXERCISE.findall(source(name))]
    minutes = {label: re.search(r"(\d+) minutes", text) for label, text in texts}
    return {label: (text, int(minutes[label][1])) for label, text in texts}


def stated(name):
    """Return the minutes that a chapter names for its reading."""
    spoken = re.search(r"Reading\b[^.]*? takes (?:about )?(.+?), the exercises", source(name))[1]
    return SPOKEN[spoken]


def wrong_reading(name, start, stop, minutes):
    """Return what is wrong with the minutes for the sections from `start` to the one before `stop`.

    Those of a whole chapter are what the chapter says, and those of a part are fewer.
    """
    lost = {start, stop} - {"", *re.findall(r"^## (.*)$", source(name), re.M)}
    if lost:
        return f"{name} has no section {', '.join(lost)}"
    whole, is_part = stated(name), bool(start or stop)
    is_right = 0 < minutes < whole if is_part else minutes == whole
    return "" if is_right else f"{name} takes {'fewer than ' * is_part}{whole} minutes"


def weeks(text):
    """Return the parts of each week or evening: what stands behind *Read*, *Board* and so on."""
    found = re.findall(
        r"^##+ (?:Week|Evening) \d+: ([^\n]*)\n(.*?)(?=^##|^\(|\Z)", text, re.M | re.S
    )
    return [
        (title, dict(re.findall(r"^- \*\*(\w+):?\*\*:? (.*)$", body, re.M)))
        for title, body in found
    ]


def minutes_of(line):
    """Return what the exercises of a line take together, of a choice the longest."""
    each = [int(minutes) for _, minutes in MINUTES.findall(line)]
    return max(each) if ": at most " in line else sum(each)


def read_minutes(line):
    return sum(int(found[-1]) for found in READING.findall(line))


def syllabi():
    text = (COURSE / "syllabi.md").read_text("utf8")
    parts = re.split(r"^\(syllabus-(\w+)\)=$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def plans():
    return {**syllabi(), "evenings": (COURSE / "self_study.md").read_text("utf8")}


def rows(text):
    """Return the rows of the first table, without its head."""
    lines = re.findall(r"^\| (.*) \|$", text, re.M)
    return [line.split(" | ") for line in lines]


def wrong_minutes(text):
    """Return what a plan says that its chapters do not."""
    for title, parts in weeks(text):
        for name, start, inside, stop, till, minutes in READING.findall(parts["Read"]):
            if {inside, till} - {"", name}:
                yield f"{title}: a link of {name} leads elsewhere"
            if wrong := wrong_reading(name, start, stop, int(minutes)):
                yield f"{title}: {wrong}"
        for kind, line in parts.items():
            for label, minutes in MINUTES.findall(line):
                if int(minutes) != exercises()[label][1]:
                    yield f"{title}: {label} takes {exercises()[label][1]} minutes"
            said = re.search(r": (?:at most )?(\d+) minutes", line)
            if kind in {*LONGEST, "Exercises"} and int(said[1]) != minutes_of(line):
                yield f"{title}: {kind} takes {minutes_of(line)} minutes"


@pytest.mark.parametrize("plan", [*SYLLABI, "evenings"])
def test_minutes_are_those_of_the_chapters(plan):
    assert list(wrong_minutes(plans()[plan])) == []


def test_a_wrong_minute_is_noticed():
    text = syllabi()["two"]
    for right, wrong in (
        ("single_head` (60)", "single_head` (61)"),
        ("#why-it-is-so) (40)", "#why-it-is-so) (90)"),
        ("[Why it is so](../multi_head", "[Why](../multi_head"),
        ("exercise-weights` (20)", "exercise-weights` (21)"),
        ("exercise-head` (15)", "exercise-head` (1)"),
    ):
        assert right in text
        assert list(wrong_minutes(text.replace(right, wrong)))
    assert list(wrong_minutes(re.sub(r": \d+ minutes", ": 1 minutes", text)))


@pytest.mark.parametrize(("plan", "n_weeks"), SYLLABI.items())
def test_the_table_of_a_syllabus(plan, n_weeks):
    text = plans()[plan]
    expected = [
        [read_minutes(parts["Read"]), *(minutes_of(parts[kind]) for kind in LONGEST)]
        for _, parts in weeks(text)
    ]
    assert len(expected) == n_weeks
    found = [[int(cell) for cell in row[2:]] for row in rows(text)[1:] if row[0] != "---"]
    expected.append([sum(column) for column in zip(*expected, strict=True)])
    assert found == [[*row, row[0] + row[-1]] for row in expected]
    for row in expected[:-1]:
        assert all(have <= most for have, most in zip(row[1:], LONGEST.values(), strict=True))


def test_the_table_of_the_evenings():
    text = plans()["evenings"]
    expected = [
        (read_minutes(parts["Read"]), minutes_of(parts["Exercises"])) for _, parts in weeks(text)
    ]
    assert len(expected) == 10
    found = [[int(cell) for cell in row[2:]] for row in rows(text)[1:] if row[0] != "---"]
    assert found == [[read, do, read + do] for read, do in expected]
    assert all(90 <= read + do <= 125 for read, do in expected)


@pytest.mark.parametrize("plan", [*SYLLABI, "evenings"])
def test_each_exercise_is_given_once_and_each_check_belongs_to_one(plan):
    given = re.findall(r"\{ref\}`(exercise-[\w-]+)` \(\d+\)", plans()[plan])
    assert len(given) == len(set(given))
    for _, parts in weeks(plans()[plan]):
        for line in parts.values():
            texts = [exercises()[label][0] for label in re.findall(r"`(exercise-[\w-]+)`", line)]
            for name in re.findall(r"`check\.(\w+)`", line):
                assert callable(getattr(check, name))
                assert any(f"check.{name}" in text for text in texts), name


@pytest.mark.site
@pytest.mark.parametrize("page", ["syllabi", "self_study", "project_kernel", "project_writer"])
def test_an_exercise_is_named_as_its_chapter_names_it(page):
    """By number and title, and the name leads there."""
    named = {
        f"../{chapter}.html#exercise-{one.label}": f"Exercise {one.number} {one.title}"
        for chapter, asked in read_exercises(SITE.parent / "exercises").items()
        for one in asked
    }
    html = (SITE / f"book/course/{page}.html").read_text("utf8")
    links = re.findall(r'<a [^>]*href="([^"]+#exercise-[\w-]+)"[^>]*>(.*?)</a>', html)
    wanted = re.findall(r"\{ref\}`exercise-", (COURSE / f"{page}.md").read_text("utf8"))
    assert len(links) == len(wanted) > 0
    for address, name in links:
        assert unescape(re.sub("<[^>]+>", "", name)) == named[address]


# Answers whose code is run: those of the diagnostic, and of the questions of `test_exam.py`

NUMBER = r"-?\d+(?:\.\d+)?"


def answers(path=COURSE / "diagnostic.md"):
    """Return the answer of each question: what it says, its code, and what stands behind it."""
    folded = re.findall(r"^:::\{dropdown\} Answer\n(.*?)^:::$", path.read_text("utf8"), re.M | re.S)
    parts = [re.split(r"^```(?:python)?\n", answer, flags=re.M) for answer in folded]
    return [(said, code, then) for said, code, then in parts]


def numbers(text):
    """Return the numbers of a text; those with commas between the digits, too."""
    text = re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3}\b)", "", text).replace("−", "-")
    return {float(x) for x in re.findall(NUMBER, text)}


def printed_by(code):
    """Run code, and return what it prints, which must be what its comments say."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)$", code, re.M)
    return printed.getvalue()


def test_there_are_ten_questions_and_each_says_what_to_do_when_it_was_hard():
    text = (COURSE / "diagnostic.md").read_text("utf8")
    assert re.findall(r"^## (\d+)\. ", text, re.M) == [str(n + 1) for n in range(10)]
    assert len(answers()) == 10
    for _, _, then in answers():
        assert "**If it was hard:**" in then
        assert re.search(LINK + r"|\{(ref|doc)\}", then)


@pytest.mark.parametrize("number", range(1, 11))
def test_the_numbers_of_an_answer_are_computed(number):
    """The code prints what its comments say, and the sentences before it name these numbers."""
    said, code, _ = answers()[number - 1]
    printed = printed_by(code)
    if number != 8:  # its question asks for what is printed
        assert numbers(printed) <= numbers(said)
