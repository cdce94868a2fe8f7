"""Submissions: folders of notebooks and programs, read without running anything of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from attnbook.course.exercises import Exercise

LARGEST = 4 * 2**20
"""Bytes of the largest file that is read."""

CELL = "answer-"
"""What the name of a cell for an answer begins with in a notebook for nbgrader."""


@dataclass(frozen=True)
class Submission:
    """What one student has handed in: the code of each answer by the label of its exercise."""

    student: str
    answers: dict[str, str] = field(default_factory=dict)


def read(folder: Path, exercises: Iterable[Exercise]) -> list[Submission]:
    """Return the submissions in the folders of a folder, one of each student.

    An answer is a file with the name of its exercise, such as ``weights.py``, or a cell of a
    notebook whose nbgrader name is ``answer-weights``. Links are not followed, and what cannot be
    read is not handed in.
    """
    known = list(exercises)
    students = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    return [Submission(student.name, _answers(student, known)) for student in students]


def _answers(folder: Path, exercises: list[Exercise]) -> dict[str, str]:
    by_file = {exercise.module: exercise.label for exercise in exercises}
    labels = set(by_file.values())
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".py", ".ipynb") or any(
            p.is_symlink() for p in _upwards(path, folder)
        ):
            continue
        if not path.is_file() or path.stat().st_size > LARGEST:
            continue
        text = path.read_text("utf8", errors="replace")
        if path.suffix == ".py" and path.stem in by_file:
            found[by_file[path.stem]] = text
        elif path.suffix == ".ipynb":
            found |= {label: code for label, code in _cells(text).items() if label in labels}
    return found


def _upwards(path: Path, top: Path) -> list[Path]:
    return [path, *(parent for parent in path.parents if top in parent.parents)]


def _cells(text: str) -> dict[str, str]:
    """Return the answers in the text of a notebook."""
    found = {}
    try:
        for cell in json.loads(text)["cells"]:
            name = str(cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", ""))
            if name.startswith(CELL):
                found[name.removeprefix(CELL)] = "".join(cell["source"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return found
