"""Assignments as notebooks for nbgrader: the source, from which nbgrader makes the release.

Solutions stand between nbgrader's marks, hidden cases too. A hidden case calls the checks with a
seed that follows from the secret and that `python -m attnbook grade` does not use, since nbgrader's
pages for students show it. Blanks are guarded against there, and once more in a hidden part of the
visible check.
"""

import ast
import json
import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.assignments import ALLOWED, assertions, task
from course.blanks import blanks
from course.borrowed import first_line
from course.exercises import Exercise
from course.files import CELL
from course.hidden import redrawn, reseeded, seed_of
from course.installing import first_cell
from course.judge import Solved, solved
from course.sizes import resized

SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
GUARD = "from course.blanks import guarded\n"
HELPERS = "Write the helpers of an answer into its cell, because each cell is graded by itself."
STUB = {"python": "...  # your code"}
CONFIG = f'''"""Settings of nbgrader for this course."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "attnbook"
c.ClearSolutions.code_stub = {STUB}
c.Execute.timeout = 120
'''


def write(exercises: Iterable[Exercise], secret: str, folder: Path, requirement: str) -> Path:
    """Write the source of a chapter's assignment into a course folder of nbgrader.

    `requirement` is what the first cell installs where the package is missing.
    """
    exercises = list(exercises)
    chapter = exercises[0].chapter
    path = folder / "source" / chapter / f"{chapter}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    book = notebook(exercises, secret)
    book["cells"].insert(1, _cell("code", first_cell(requirement), "install", locked=True))
    text = json.dumps(book, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf8")
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf8")
    return path


def release(chapters: Iterable[str], folder: Path) -> list[str]:
    """Let nbgrader make the releases of chapters, and return what it says of those that fail.

    Raises
    ------
    ImportError
        If nbgrader is not installed.
    """
    try:
        from nbgrader.apps import NbGraderAPI
        from traitlets.config import Config
    except ImportError as error:
        text = "the release of notebooks needs nbgrader: pip install nbgrader"
        raise ImportError(text) from error
    # nbgrader calls a program that is installed beside it
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    config = Config()
    config.CourseDirectory.root = str(folder.resolve())
    config.ClearSolutions.code_stub = STUB
    api = NbGraderAPI(config=config)
    made = {chapter: api.generate_assignment(chapter) for chapter in chapters}
    return [f"{name}: {told['error']}" for name, told in made.items() if not told["success"]]


def notebook(exercises: list[Exercise], secret: str) -> dict[str, Any]:
    """Return the source notebook of a chapter, as nbformat has it."""
    words = ["Run the cells in order.", HELPERS, *ALLOWED]
    title = f"# Assignment: {exercises[0].chapter}\n\n{' '.join(words)}"
    cells = [_cell("markdown", title, "title")]
    for exercise in exercises:
        cells += _cells(exercise, secret)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cells(exercise: Exercise, secret: str) -> list[dict[str, Any]]:
    name, points = exercise.label, exercise.points
    found = [_cell("markdown", f"#{task(exercise)}", f"task-{name}", locked=True)]
    if not exercise.is_checked:
        text = "Your answer, in words and code."
        return [*found, _cell("markdown", text, f"{CELL}{name}", points, solution=True)]
    if exercise.given:
        found.append(_cell("code", exercise.given, f"given-{name}", locked=True))
    found.append(_cell("code", marked(exercise), f"{CELL}{name}", solution=True))
    if exercise.check:
        found.append(_cell("code", exercise.check, f"check-{name}", locked=True))
    seen = points // 2
    solution = solved(exercise, 0)
    shown = assertions(exercise, solution.found)
    again = assertions(guarding(exercise, solution), solution.found) if seen else shown
    if again != shown:
        shown += ["", *_hidden(["def guarded_check():"], again, "guarded_check()")]
    found.append(_cell("code", "\n".join(shown), f"visible-{name}", seen, locked=True))
    hidden = hidden_test(exercise, secret)
    found.append(_cell("code", hidden, f"hidden-{name}", points - seen, locked=True))
    return found


def marked(exercise: Exercise) -> str:
    """Return the answer with nbgrader's marks around what the release leaves out.

    The heads of functions that are handed in stay; names of other things stand before.
    """
    lines: list[str] = []
    kept: list[str] = []
    functions = set()
    source = exercise.answer.splitlines()
    for node in ast.parse(exercise.answer).body:
        first = first_line(node)
        text = source[first : node.end_lineno]
        is_handed_in = isinstance(node, ast.FunctionDef) and node.name in exercise.names
        if not is_handed_in or node.body[0].lineno == node.lineno:  # type: ignore[attr-defined]
            kept += ["", *text] if kept else text
            continue
        functions.add(node.name)  # type: ignore[attr-defined]
        head = node.body[0].lineno - 1 - first  # type: ignore[attr-defined]
        marks = (f"    {mark}" for mark in SOLUTION)
        lines += [*_region(kept), *text[:head], next(marks), *text[head:], next(marks), "", ""]
        kept = []
    names = [f"{name} = ..." for name in exercise.names if name not in functions]
    return "\n".join([*names, *lines, *_region(kept)]).rstrip()


def _region(lines: list[str]) -> list[str]:
    return [SOLUTION[0], *lines, SOLUTION[1], "", ""] if lines else []


def hidden_test(exercise: Exercise, secret: str) -> str:
    """Return the cell of the hidden cases."""
    seed = seed_of(secret, "nbgrader", exercise.label)  # its pages for students show it
    solution = solved(exercise, seed)
    exercise = guarding(resized(exercise, seed), solution)
    code = [reseeded(exercise.check, seed, redrawn(exercise))] if exercise.check else []
    code += assertions(exercise, solution.found, "hidden_check")
    if not exercise.calls:
        code[1:] = reseeded(exercise.block, seed).splitlines()
    ours = any("check." in call for call in exercise.calls)
    head = [
        *["from course.hidden import checks\n"] * ours,
        f"def hidden_cases({f'hidden_check=checks({seed})' if ours else ''}):",
    ]
    return "\n".join(["# hidden cases", *_hidden(head, code, "hidden_cases()")])


def _hidden(head: list[str], body: list[str], call: str) -> list[str]:
    guard = [GUARD] * any("guarded(" in line for line in body)
    code = textwrap.indent("\n".join([*guard, *body]), "    ")
    return [HIDDEN[0], *head, code, "", call, HIDDEN[1]]


def guarding(exercise: Exercise, solution: Solved) -> Exercise:
    """Return an exercise whose own checks are given answers with infinity in the place of blanks.

    Those of the package say themselves what a blank is.
    """
    usual = {**solution.usual, **{name: blanks(x) for name, x in solution.numbers.items()}}
    guarded = {
        name: ast.parse(f"guarded({name}, *{sorted(found)})".replace(", *[]", ""), mode="eval").body
        for name, found in usual.items()
    }

    class Guarding(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return guarded.get(node.id, node)

    def changed(code: str) -> str:
        return ast.unparse(Guarding().visit(ast.parse(code)))

    calls = [call if call.startswith("check.") else changed(call) for call in exercise.calls]
    return replace(exercise, calls=calls, block=exercise.block and changed(exercise.block))


def _cell(
    kind: str,
    source: str,
    name: str,
    points: int = 0,
    *,
    solution: bool = False,
    locked: bool = False,
) -> dict[str, Any]:
    about = {
        "schema_version": 3,
        "grade_id": name,
        "grade": bool(points),
        "solution": solution,
        "locked": locked or not solution,
        "task": False,
    }
    if points:
        about["points"] = points
    cell: dict[str, Any] = {"cell_type": kind, "id": name[:64], "source": source}
    cell["metadata"] = {"nbgrader": about}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell
