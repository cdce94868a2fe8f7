"""Submissions: folders of notebooks and programs, read without running anything of them."""

import json
import os
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
    found: dict[str, dict[str, str]] = {exercise.label: {} for exercise in exercises}
    for path in _files(folder):
        name = _in_words(path.relative_to(folder))
        try:
            text = path.read_text("utf-8-sig", errors="replace")
        except OSError:
            continue
        cells = _cells(text) if path.suffix == ".ipynb" else {}
        for exercise in exercises:
            cell = f"{CELL}{exercise.label}"
            if path.name == f"{exercise.module}.py":
                found[exercise.label][name] = text
            elif cell in cells:
                found[exercise.label][name] = cells[cell]
            elif f"{TASK}{exercise.label}" in cells:
                submission.lacking[exercise.label] = f"The cell `{cell}` is not in {name}."
    for exercise in exercises:
        given = found[exercise.label]
        own = {name: text for name, text in given.items() if not is_untouched(exercise, text)}
        if given:
            first = next(iter(own or given))
            submission.answers[exercise.label] = given[first]
            others = ", ".join(name for name in own if own[name] != given[first])
            if others:
                submission.doubts.append(f"{exercise.label} of {first} is graded, not of {others}")
    return submission


def _in_words(path: Path) -> str:
    """Return a path as text that can be written, also where the system has it in no UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf8", "replace")


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


def _cells(text: str) -> dict[str, str]:
    """Return the cells of a notebook that nbgrader names, by their names."""
    found = {}
    try:
        for cell in json.loads(text)["cells"]:
            name = str(cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", ""))
            found[name] = "".join(cell["source"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found
