"""The commands ``python -m attnbook course`` and ``python -m attnbook grade``."""

import argparse
import importlib.util
import os
import re
import secrets
import sys
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from course import (
    assignments,
    exercises,
    grading,
    installing,
    judge,
    notebooks,
    results,
    stubs,
    submissions,
    variants,
)
from course.borrowed import ROOT
from course.limits import hide_memory
from course.parents import parents
from course.session import Limits
from course.submissions import Submission

OUT = Path("_build/course")
GRADES = Path("_build/grades")
SECRET = Path("_build/course-secret.txt")
"""Not in the folder of the course, from which releases are copied."""

LEAST_MEGABYTES = 1024
"""With less of them a right answer gets no points where its process loads Triton."""


def main(arguments: list[str]) -> int:
    """Run one of both commands and return the exit status, 1 if a file is not there."""
    parser = argparse.ArgumentParser(prog="python -m attnbook")
    commands = parser.add_subparsers(dest="command", required=True)
    words = "Make assignments from the exercises of the book."
    course = commands.add_parser("course", description=words)
    grade = commands.add_parser("grade", description="Grade what students have handed in.")
    for each in (course, grade):
        words = f"the folder that make book writes; default: {exercises.WRITTEN}"
        each.add_argument("--exercises", type=Path, default=exercises.WRITTEN, help=words)
        words = f"the file of the secret; default: {SECRET}; grade reads - from the standard input"
        each.add_argument("--secret", type=Path, default=SECRET, help=words)
        each.add_argument(
            "--chapter", action="append", help="a chapter, may be repeated; default: all"
        )
        words = "a file with one name per line: course makes variants for them, and grade compares "
        words += "the folders with them; default in grade: the folders of variants"
        each.add_argument("--students", type=Path, help=words)
    course.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    course.add_argument("--verify", action="store_true", help="also grade every solution")
    course.set_defaults(run=make)
    grade.add_argument("submissions", type=Path, help="a folder with a folder for each student")
    grade.add_argument("--variants", action="store_true", help="grade only the variants")
    grade.add_argument("--out", type=Path, default=GRADES, help=f"default: {GRADES}")
    grade.add_argument(
        "--workers", type=_at_least(1), help="students at a time; default: all processors"
    )
    grade.add_argument(
        "--seconds", type=_at_least(1), default=Limits.seconds, help="most for one exercise"
    )
    grade.add_argument(
        "--megabytes", type=_at_least(LEAST_MEGABYTES), default=Limits.megabytes, help="of memory"
    )
    grade.set_defaults(run=mark)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.run(chosen)
    except OSError as error:
        print(f"python -m attnbook {chosen.command}: {error}", file=sys.stderr)
        return 1


def make(chosen: argparse.Namespace) -> int:
    """Make the course and return the exit status."""
    found = _chapters(chosen)
    every = [exercise for asked in found.values() for exercise in asked]
    students = _students(chosen.students) if chosen.students else []
    secret, requirement = secret_of(chosen.secret), installing.read(chosen.exercises)
    for chapter, asked in found.items():
        assignments.write(
            asked, chosen.out / "release" / chapter, chosen.out / "solutions" / chapter
        )
        source = notebooks.write(asked, secret, chosen.out / "nbgrader", requirement)
        for folder in (chosen.out / "release" / chapter, source.parent):
            installing.put(chosen.exercises, folder)
        by_hand = sum(not exercise.is_checked for exercise in asked)
        print(f"{chapter}: {len(asked)} exercises, {by_hand} graded by a person", flush=True)
    variants.write(students, secret, chosen.out / "variants", every)
    if stubs.is_repository(ROOT):
        stubs.write(ROOT, chosen.out / "package")
    kept = f"{chosen.out / 'solutions'}, {chosen.out / 'nbgrader/source'} and {chosen.secret}"
    print(f"Students get {chosen.out / 'release'}, the folder package beside it, and what nbgrader")
    print("releases. Each student gets only the student's own folder of variants.")
    print(f"Keep {kept} to yourself.", flush=True)
    if chosen.verify and verify(every, secret):
        return 1
    if importlib.util.find_spec("nbgrader") is None:
        print("To make the release of the notebooks: pip install nbgrader, and run this again.")
        return 0
    failed = notebooks.release(list(found), chosen.out / "nbgrader")
    print(*failed, sep="\n", file=sys.stderr, end="")
    return 1 if failed else 0


def verify(asked: list[exercises.Exercise], secret: str) -> int:
    """Grade the solutions of exercises that are checked; return how many do not get all points."""
    failed = 0
    with parents() as start:
        for exercise in (one for one in asked if one.is_checked):
            answer = assignments.program(exercise, exercise.answer)
            found = judge.mark(exercise, answer, secret, start, Limits(60, 4096))
            if found.share < 1:
                print(f"{exercise.chapter}, {exercise.label}: {found.message}", file=sys.stderr)
                failed += 1
    return failed


def mark(chosen: argparse.Namespace) -> int:
    """Mark submissions and return the exit status."""
    hide_memory()
    piped = str(chosen.secret) == "-"
    secret = _stripped(sys.stdin.readline() if piped else chosen.secret.read_text("utf8"))
    of_book = [exercise for asked in _chapters(chosen).values() for exercise in asked]
    asked = variants.of("", secret, of_book) if chosen.variants else of_book
    handed_in = submissions.read(chosen.submissions, asked)
    if not handed_in:
        raise FileNotFoundError(f"there is no folder of a student in {chosen.submissions}")
    for name in submissions.loose(chosen.submissions):
        print(f"{name} is not read, because it is in no student's folder.")
    if chosen.students or chosen.variants:
        handed_in = _listed(handed_in, _list(chosen))
    for one in handed_in:
        for doubt in (*one.doubts, *one.unread):
            print(f"{one.student}: {doubt}", flush=True)
    limits, own = Limits(chosen.seconds, chosen.megabytes), chosen.variants
    marks = grading.grade(
        handed_in, of_book, secret, limits=limits, workers=chosen.workers, own=own
    )
    done = []

    def told() -> Iterator[grading.Result]:
        for result in marks:
            yield result
            done.append(result)
            print(f"{len(done)} of {len(handed_in)}: {result.student}", flush=True)

    try:
        results.write(told(), asked, chosen.out)
    except BrokenProcessPool:
        words = f"A process of the grader was killed. {len(done)} of {len(handed_in)} are graded."
        print(words, "Is there enough memory for so many --workers?", file=sys.stderr)
        return 1
    print(f"The table is {chosen.out / 'grades.csv'}")
    kept = {limit for result in done for one in result.marks.values() for limit in one.kept}
    print(f"Limits in force: {', '.join(sorted(kept)) or 'none'}")
    return 0


def _chapters(chosen: argparse.Namespace) -> dict[str, list[exercises.Exercise]]:
    found = exercises.read(chosen.exercises)
    unknown = set(chosen.chapter or ()) - set(found)
    if unknown:
        raise SystemExit(f"--chapter must be of {', '.join(found)}, got {', '.join(unknown)}")
    return {name: asked for name, asked in found.items() if name in (chosen.chapter or found)}


def secret_of(path: Path) -> str:
    """Return the secret in a file, which is made where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16) + "\n")
    return _stripped(path.read_text("utf8"))


def _stripped(secret: str) -> str:
    if not secret.strip():
        raise SystemExit("--secret must have at least one character, got none")
    return secret.strip()


def _students(path: Path) -> list[str]:
    names = (line.strip() for line in path.read_text("utf-8-sig").splitlines())
    try:
        return variants.check_students(filter(None, names))
    except ValueError as error:
        raise SystemExit(f"--students: {error}") from None


def _list(chosen: argparse.Namespace) -> list[str]:
    """Return the names of the students in the list, or of those that have variants."""
    if chosen.students:
        return _students(chosen.students)
    made = OUT / "variants"
    if not made.is_dir():
        raise SystemExit(f"--variants needs --students, because there is no folder {made}")
    return sorted(path.name for path in made.iterdir() if path.is_dir())


def _listed(handed_in: list[Submission], students: list[str]) -> list[Submission]:
    """Return submissions under the names of a list, and name the students who have none.

    Raises
    ------
    SystemExit
        If a folder has no name of the list: its student's own tasks would be others.
    """
    known = {_plain(name): name for name in students}
    near = {re.sub(r"[\W_]+", "", _plain(name).casefold()): name for name in students}
    strangers = []
    for one in handed_in:
        if _plain(one.student) not in known:
            found = near.get(re.sub(r"[\W_]+", "", _plain(one.student).casefold()))
            strangers.append(one.student + (f" (is it {found}?)" if found else ""))
    if strangers:
        raise SystemExit(
            f"nothing is graded, because the list of students does not name {', '.join(strangers)}:"
            " rename these folders as in the list, or complete the list"
        )
    there = {_plain(one.student) for one in handed_in}
    missing = [name for name in students if _plain(name) not in there]
    if missing:
        print(f"These students have handed in nothing: {', '.join(missing)}.", flush=True)
    return [replace(one, student=known[_plain(one.student)]) for one in handed_in]


def _plain(name: str) -> str:
    """Return a name in which an accented letter is one letter, as some systems do not write it."""
    return unicodedata.normalize("NFC", name)


def _at_least(least: int) -> Callable[[str], int]:
    """Return a reader of an option that is a whole number."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number
