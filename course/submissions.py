"""Submissions: what each student has handed in, as an answer for each exercise."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from course.exercises import Exercise
from course.files import CELL, Piece, Pieces, in_words, kind_of
from course.judge import is_untouched
from course.jupyter import as_python, below_magic, imports_of, only_defines, with_imports

TASK = "task-"
"""What the name of a cell with a task begins with in a notebook for nbgrader."""

OURS = re.compile("(answer|task|given|check|visible|hidden)-")
"""What the names of all its cells begin with."""

MOST_NAMED = 5
"""Files of other kinds that a sentence names."""

MOST_ANSWERS = 20
"""Answers of a student to one exercise that are looked at."""

OF_SYSTEMS = (
    re.compile(r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<name>.*)"),
    re.compile(r"(?P<student>[^_]+)(?:_LATE)?_(?P<id>\d+)_\d+_(?P<name>.+)"),
    re.compile(r".+_(?P<student>[^_]+)(?P<id>)_attempt_[\d-]+_(?P<name>.+)"),
)
"""How Moodle, Canvas and Blackboard name what they let a teacher download."""


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
    unread : list of str
        What to tell both: files that were not read, and why.
    """

    student: str
    answers: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read(folder: Path, exercises: Iterable[Exercise]) -> list[Submission]:
    """Return the submissions in a folder: one of each student's folder or archive.

    What Moodle, Canvas and Blackboard let a teacher download counts as well: their names of folders
    and files begin with that of the student.

    An answer is a file with the name of its exercise, such as ``weights.py``; or a cell of a
    notebook, or of a program made of cells, with the name that nbgrader or a page of the book has
    given it; or else a file or cell that binds what the exercise asks for. Of several the first is
    taken that is not as the student was given it, from the top of the student's folder down. Links
    are not followed, hidden folders and installed packages are passed over, and what cannot be read
    is named.
    """
    known = list(exercises)
    owned: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    for path, student, number, name in _owned(folder):
        owned.setdefault((student, number), []).append((path, name))
    of_name: dict[str, int] = {}
    for student, _ in owned:
        of_name[student] = of_name.get(student, 0) + 1
    return [
        _submission(
            f"{student}_{number}" if of_name[student] > 1 and number else student, paths, known
        )
        for (student, number), paths in owned.items()
    ]


def loose(folder: Path) -> list[str]:
    """Return the files that lie beside the folders of students and belong to nobody."""
    owned = {path for path, *_ in _owned(folder)}
    every = (path for path in sorted(folder.iterdir()) if path not in owned)
    return [in_words(path.name) for path in every if path.is_file() and kind_of(path.name)]


def _owned(folder: Path) -> Iterable[tuple[Path, str, str, str]]:
    """Yield each path with its student, the number of the student, and what its name is then."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        systems = OF_SYSTEMS[:1] if path.is_dir() else OF_SYSTEMS
        match = next(filter(None, (system.fullmatch(path.name) for system in systems)), None)
        if match:
            yield path, in_words(match["student"]), match["id"], match["name"]
        elif path.is_dir():
            yield path, in_words(path.name), "", ""
        elif kind_of(path.name) == ".zip":
            yield path, in_words(path.stem), "", path.name


def _submission(
    student: str, paths: list[tuple[Path, str]], exercises: list[Exercise]
) -> Submission:
    pieces = Pieces()
    for path, name in paths:
        pieces.add(path, name)
    submission = Submission(student, unread=pieces.unread)
    modules = {exercise.module for exercise in exercises}
    of_files = [(_module_of(piece, modules), piece) for piece in pieces.found]
    used: set[str] = set()
    for exercise in exercises:
        exact, near = [], []
        for module, piece in of_files:
            if piece.cell == f"{CELL}{exercise.label}" or (
                module == exercise.module and _is_named(piece, exercise)
            ):
                exact.append(piece)
            elif module == exercise.module:
                near.append(piece)
        every = _read(exercise, [*exact, *near], pieces, submission)
        if not any(is_own for *_, is_own in every):
            asked = {piece.file for piece in exact if piece.is_cell}
            free = [p for module, p in of_files if not module and p.file not in asked]
            every += _read(exercise, _defining(exercise, free), pieces, submission)
        used |= {piece.file for piece, *_ in every}
        if every:
            _choose(exercise, every, submission)
            continue
        cell, task = f"{CELL}{exercise.label}", f"{TASK}{exercise.label}"
        for name, cells in pieces.cells.items():
            if task in cells and cell not in cells:
                text = f"The cell `{cell}` is not in {name}."
                submission.lacking.setdefault(exercise.label, text)
    if len(submission.answers) < sum(exercise.is_checked for exercise in exercises):
        names = [p.file for m, p in of_files if not (m or p.is_cell or _is_test(p))]
        names = sorted({*names, *pieces.others} - used)
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        if names:
            listed = ", ".join([*names[:MOST_NAMED], *more])
            submission.unread.append(f"There is no answer to an exercise in {listed}.")
    return submission


def _read(
    exercise: Exercise, chosen: list[Piece], pieces: Pieces, submission: Submission
) -> list[tuple[Piece, str, bool]]:
    """Return pieces with their code as Python, and whether it is a student's own.

    A cell has what others without a name import in the same file.
    """
    found = []
    for piece in chosen[:MOST_ANSWERS]:
        try:
            code = as_python(piece.code)
        except ImportError as error:
            submission.unread.append(f"{piece.file} is not graded: {error}.")
            continue
        is_own = not is_untouched(exercise, code)
        if is_own and piece.is_cell:
            others = (one for one in pieces.found if one.file == piece.file and not one.cell)
            code = with_imports(code, [node for one in others for node in imports_of(one.code)])
        found.append((piece, code, is_own))
    return found


def _choose(
    exercise: Exercise, every: list[tuple[Piece, str, bool]], submission: Submission
) -> None:
    own = [(piece.file, code) for piece, code, is_own in every if is_own]
    name, answer = own[0] if own else (every[0][0].file, every[0][1])
    submission.answers[exercise.label] = answer
    others = [
        other if other != name else f"another cell of {other}"
        for other, code in own
        if code != answer
    ]
    if others:
        text = f"{exercise.label} in {name} is graded, not that in {', '.join(others)}"
        submission.doubts.append(text)


def _is_named(piece: Piece, exercise: Exercise) -> bool:
    return piece.file.rpartition("/")[2] == f"{exercise.module}.py"


def _is_test(piece: Piece) -> bool:
    return piece.file.rpartition("/")[2].casefold().startswith(("test_", "conftest"))


def _module_of(piece: Piece, modules: Collection[str]) -> str:
    """Return the exercise that the name of a program holds, as `Copy of weights (1).py` does."""
    if piece.is_cell or _is_test(piece):
        return ""
    stem = piece.file.rpartition("/")[2].casefold().partition(".py")[0]
    words = re.sub(r"[\W_]+", "_", f" {stem} ")
    return max((name for name in modules if f"_{name}_" in words), key=len, default="")


def _defining(exercise: Exercise, pieces: list[Piece]) -> list[Piece]:
    """Return programs, and what stands for one in a notebook, that define the functions asked for.

    Of a notebook these are the cells which define one of them, and those above that do no more than
    import and define. Numbers are not looked for, since their names are those of many others.
    """
    heads = [rf"^(?:def\s+{n}\s*\(|{n}\s*=\s*lambda\b)" for n in _functions(exercise)]
    found = []
    for file in dict.fromkeys(piece.file for piece in pieces if heads):
        parts = [piece for piece in pieces if piece.file == file and not OURS.match(piece.cell)]
        kept: list[str] = []
        for piece in parts if _is_all(heads, parts) else ():
            code = below_magic(piece.code)
            if not piece.is_cell or _is_any(heads, code) or only_defines(code):
                kept.append(code)
        if kept and not _is_test(parts[0]):
            found.append(Piece(file, "\n\n".join(kept)))
    return found


def _functions(exercise: Exercise) -> list[str]:
    return [name for name in exercise.names if f"def {name}(" in exercise.stub]


def _is_any(heads: list[str], code: str) -> bool:
    return any(re.search(head, code, re.MULTILINE) for head in heads)


def _is_all(heads: list[str], parts: list[Piece]) -> bool:
    code = "\n".join(piece.code for piece in parts)
    return all(re.search(head, code, re.MULTILINE) for head in heads)
