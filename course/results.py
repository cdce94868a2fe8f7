"""What grading leaves behind: a table, a page for each student, and a report of the class."""

import csv
import hashlib
import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from course.assignments import heading, write_texts
from course.exercises import Exercise
from course.grading import Result

STYLE = "body{font:16px/1.5 sans-serif;max-width:45em;margin:2em auto;padding:0 1em}"
STYLE += "td,th{padding:.2em .8em;text-align:left;vertical-align:top}"

REFUSED = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
"""What some system does not take in the name of a file."""

LONGEST = 200
"""Bytes of the longest name of a student's file."""


def points_of(result: Result, exercise: Exercise) -> float:
    """Return the points of a student in an exercise, rounded to a tenth."""
    return round(exercise.points * result.marks[exercise.label].share, 1)


def points_of_all(result: Result, exercises: Sequence[Exercise]) -> float:
    """Return the points of a student in all exercises."""
    return round(sum(points_of(result, exercise) for exercise in exercises), 1)


def write(results: Iterable[Result], exercises: Iterable[Exercise], folder: Path) -> list[Path]:
    """Write a page and a ``results.json`` of each student, then ``grades.csv`` and ``class.html``.

    Each result is written as it comes, and the table of those that came also where an error ends
    them.
    """
    exercises = [e for e in exercises if e.is_checked]
    done: list[Result] = []
    taken: set[str] = set()
    written: list[Path] = []
    (folder / "students").mkdir(parents=True, exist_ok=True)  # an error here comes before the marks
    try:
        for result in results:
            done.append(result)
            place = folder / "students" / file_name(result.student, taken)
            told = json.dumps(gradescope(result, exercises), indent=1, ensure_ascii=False)
            texts = {Path(f"{place}.html"): page(result, exercises), Path(f"{place}.json"): told}
            written += write_texts(texts)
    finally:
        of_class = {"grades.csv": table(done, exercises), "class.html": report(done, exercises)}
        written += write_texts({folder / name: text for name, text in of_class.items()})
    return written


def file_name(student: str, taken: set[str]) -> str:
    """Return the name of a student's files, none of those taken, and take it."""
    plain = name = REFUSED.sub("_", student)
    while name.casefold() in taken or len(name.encode()) > LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{plain.encode()[: LONGEST - 9].decode('utf8', 'ignore')}-{digest}"
    taken.add(name.casefold())  # there are systems to which a is A
    return name


def table(results: Sequence[Result], exercises: Sequence[Exercise]) -> str:
    """Return the points of all students as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *(e.label for e in exercises), "total", "of"])
    most = sum(e.points for e in exercises)
    for result in results:
        points = [points_of(result, e) for e in exercises]
        total = points_of_all(result, exercises)
        writer.writerow([_cell(result.student), *points, total, most])
    return text.getvalue()


def _cell(text: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text


def page(result: Result, exercises: Sequence[Exercise]) -> str:
    """Return the page of a student."""
    rows = []
    for exercise in exercises:
        mark = result.marks[exercise.label]
        rows.append(
            f"<tr><th>{html.escape(heading(exercise))}</th>"
            f"<td>{points_of(result, exercise):g} of {exercise.points}</td>"
            f"<td>{html.escape(mark.message)}</td></tr>"
        )
    total = points_of_all(result, exercises)
    most = sum(e.points for e in exercises)
    head = "<tr><th>Exercise</th><th>Points</th><th>What the check says</th></tr>"
    unread = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in result.unread)
    return _page(
        result.student,
        f"<p>{total:g} of {most} points</p>{unread}<table>{head}{''.join(rows)}</table>",
    )


def report(results: Sequence[Result], exercises: Sequence[Exercise]) -> str:
    """Return the report of the class: how each exercise went, and its mistakes by name."""
    parts = [f"<p>{len(results)} submissions.</p>"]
    for exercise in exercises:
        marks = [result.marks[exercise.label] for result in results]
        counted = Counter(name for mark in marks for name in mark.mistakes)
        mean = sum(mark.share for mark in marks) / max(1, len(marks))
        listed = "".join(
            f"<tr><td>{count}</td><td>{html.escape(name)}</td></tr>"
            for name, count in counted.most_common()
        )
        parts.append(f"<h2>{html.escape(heading(exercise))}</h2><p>On average {mean:.0%}.</p>")
        parts.append(f"<table><tr><th>Times</th><th>Mistake</th></tr>{listed}</table>")
    return _page("The class", "".join(parts))


def _page(title: str, body: str) -> str:
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>{body}</html>"
    )


def gradescope(result: Result, exercises: Sequence[Exercise]) -> dict[str, Any]:
    """Return what Gradescope reads as ``results.json``."""
    tests = [
        {
            "name": heading(exercise),
            "score": points_of(result, exercise),
            "max_score": exercise.points,
            "output": result.marks[exercise.label].message,
        }
        for exercise in exercises
    ]
    told = {"output": " ".join(result.unread)} if result.unread else {}
    return {"score": points_of_all(result, exercises), **told, "tests": tests}
