"""Submissions: folders of notebooks and programs, read without running anything of them."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from attnbook.course.exercises import Exercise
from attnbook.course.judge import is_untouched

LARGEST = 4 * 2**20
"""Bytes of the largest file that is read."""

CELL = "answer-"
"""What the name of a cell for an answer begins with in a notebook for nbgrader."""

TASK = "task-"
"""What the name of a cell with a task begins with there."""

UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What moves a cursor, and what Python has in the place of bytes that are no text."""


@dataclass(frozen=True)
class Submission:
    """What one student has handed in.

    Attributes
    ----------
    student : str
    answers : dict
        The code of each answer by the label of its exercise.
    lacking : dict
        What to tell the student of an answer that is not there, where there is more to say than
        that.
    doubts : list of str
        What to tell the teacher: which of several answers was taken.
    """

    student: str
    answers: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def read(folder: Path, exercises: Iterable[Exercise]) -> list[Submission]:
    """Return the submissions in the folders of a folder, one of each student.

    An answer is a file with the name of its exercise, such as ``weights.py``, or a cell of a
    notebook whose nbgrader name is ``answer-weights``. Of several the first is taken that is not
    as the student was given it, from the top of the student's folder down. Links are not
    followed, hidden folders and installed packages are passed over, and what cannot be read is not
    handed in.
    """
    known = list(exercises)
    folders = (p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    students = sorted(p for p in folders if not p.name.startswith("."))
    return [_submission(student, known) for student in students]


def _submission(folder: Path, exercises: list[Exercise]) -> Submission:
    submission = Submission(_in_words(Path(folder.name)))
    found: dict[str, list[tuple[str, str]]] = {exercise.label: [] for exercise in exercises}
    for path in _files(folder):
        name = _in_words(path.relative_to(folder))
        try:
            text = path.read_text("utf-8-sig", errors="replace")
        except OSError:
            continue
        cells = _cells(text) if path.suffix == ".ipynb" else {}
        for exercise in exercises:
            cell = f"{CELL}{exercise.label}"
            given = [text] if path.name == f"{exercise.module}.py" else cells.get(cell, [])
            found[exercise.label] += ((name, code) for code in given)
            if not given and f"{TASK}{exercise.label}" in cells:
                submission.lacking[exercise.label] = f"The cell `{cell}` is not in {name}."
    for exercise in exercises:
        every = found[exercise.label]
        own = [(name, code) for name, code in every if not is_untouched(exercise, code)]
        if every:
            first, answer = (own or every)[0]
            submission.answers[exercise.label] = answer
            others = ", ".join(
                name if name != first else f"another cell of {name}"
                for name, code in own
                if code != answer
            )
            if others:
                submission.doubts.append(f"{exercise.label} of {first} is graded, not of {others}")
    return submission


def _in_words(path: Path) -> str:
    """Return a path as text that can be written and printed, whatever the system has in it."""
    return UNPRINTED.sub("\N{REPLACEMENT CHARACTER}", path.as_posix())


def _files(folder: Path) -> list[Path]:
    """Return the programs and notebooks in a student's folder, the highest first."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_foreign(Path(place, name))]
        found += (Path(place, name) for name in files if name.endswith((".py", ".ipynb")))
    found = [path for path in found if os.path.isfile(path) and not os.path.islink(path)]
    found = [path for path in found if os.path.getsize(path) <= LARGEST]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _is_foreign(folder: Path) -> bool:
    """Return whether a folder is hidden or holds packages that a student has installed."""
    is_installed = folder.name == "site-packages" or os.path.exists(folder / "pyvenv.cfg")
    return folder.name.startswith(".") or is_installed


def _cells(text: str) -> dict[str, list[str]]:
    """Return the cells of a notebook by nbgrader's names; whoever copies one copies its name."""
    found: dict[str, list[str]] = {}
    try:
        for cell in json.loads(text)["cells"]:
            name = str(cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", ""))
            if name:
                found.setdefault(name, []).append("".join(cell["source"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found
