"""Assignments as programs: a file and its visible check for each exercise, and the solutions.

What students get, the release, is made from the text, the given code and the stub. Neither the
answer nor a hidden case is looked at while it is made.
"""

import ast
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from course.exercises import Exercise
from course.hidden import Printed
from course.installing import REQUIREMENTS
from course.judge import solved

WIDTH = 88

ALLOWED = (
    "An answer may import NumPy and everything that comes with Python, and it may use what its",
    "exercise gives. Plots, Jupyter magics and unused imports cost no points, because the grader",
    "ignores them. However, the grader cannot grade a result that needs another package, such as",
    "PyTorch or SciPy.",
)
"""What each release says of imports."""


def write(exercises: Iterable[Exercise], release: Path, solutions: Path) -> list[Path]:
    """Write a chapter's assignment into `release`, and its solutions into `solutions`."""
    exercises = list(exercises)
    texts = {release / "README.md": overview(exercises)}
    for exercise in exercises:
        if exercise.is_checked:
            texts[release / f"{exercise.module}.py"] = program(exercise, exercise.stub)
            texts[release / f"test_{exercise.module}.py"] = visible_test(exercise)
            texts[solutions / f"{exercise.module}.py"] = program(exercise, exercise.answer)
        texts[release / f"{exercise.module}.md"] = task(exercise)
        texts[solutions / f"{exercise.module}.md"] = f"{task(exercise)}\n\n{solution(exercise)}"
    return write_texts(texts)


def write_texts(texts: dict[Path, str]) -> list[Path]:
    """Write files, each with one line end behind its text, and return their paths."""
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip() + "\n", encoding="utf8")
    return list(texts)


def heading(exercise: Exercise) -> str:
    """Return number and title."""
    return f"{exercise.number} {exercise.title}".strip()


def facts(exercise: Exercise) -> str:
    """Return level, minutes and points in words."""
    points = f"{exercise.points} point{'s' * (exercise.points > 1)}"
    by_hand = "" if exercise.is_checked else ", graded by a person"
    return f"{exercise.level}, {exercise.minutes} minutes, {points}{by_hand}"


def overview(exercises: list[Exercise]) -> str:
    """Return the table of an assignment."""
    rows = [
        f"| {heading(e)} | {e.level} | {e.minutes} | {e.points} | "
        f"{f'`{e.module}.py`' if e.is_checked else f'{e.module}.md, graded by a person'} |"
        for e in exercises
    ]
    return "\n".join(
        [
            f"# {exercises[0].chapter}",
            "",
            "Write each answer into its file, below the given code. Then check your answers:",
            "",
            f"    pip install -r {REQUIREMENTS} pytest",
            "    pytest",
            "",
            "If a task mentions a cell with a check, you find this check in the test beside its",
            "file. The grader also runs your answers with different numbers.",
            "",
            *ALLOWED,
            "",
            "| exercise | level | minutes | points | file |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def task(exercise: Exercise) -> str:
    """Return what an exercise asks, and its folded hints."""
    hints = [
        f"<details><summary>Hint {i}</summary>\n\n{hint}\n\n</details>"
        for i, hint in enumerate(exercise.hints, 1)
    ]
    head = f"# {heading(exercise)}\n\n*{facts(exercise)}*"
    return "\n\n".join([head, exercise.text, *hints])


def solution(exercise: Exercise) -> str:
    """Return the words and the code of the solution."""
    code = f"```python\n{exercise.answer}\n```" if exercise.answer else ""
    return "\n\n".join(filter(None, ["## Solution", exercise.explanation, code]))


def program(exercise: Exercise, code: str) -> str:
    """Return the file of an exercise: the task, what is given, and `code`."""
    words = textwrap.fill(
        f"{heading(exercise)} ({facts(exercise)}). The task is in {exercise.module}.md.", WIDTH
    )
    parts = [f'"""{words}"""', exercise.given, code]
    return "\n\n".join(filter(None, parts))


def visible_test(exercise: Exercise) -> str:
    """Return the program that shows a student whether an answer passes the visible check."""
    head = ["from attnbook import check"] * ("check." in "".join(exercise.calls))
    code = "\n".join(line for line in exercise.check.splitlines() if line not in head)
    lines = assertions(exercise, solved(exercise, 0).found)
    # what an answer lacks is no matter of the other tests
    lines = [f"from {exercise.module} import {', '.join(exercise.names)}", "", *lines]
    body = textwrap.indent("\n".join(lines), "    ")
    skips = [f'pytest.importorskip("{name}")' for name in packages(exercise)]
    parts = [
        f'"""The visible check of {exercise.module}.py."""',
        *(["\n".join(["import pytest", "", *skips])] if skips else []),
        *head,
        code,
        f"\ndef test_{exercise.module}():\n{body}",
    ]
    return "\n\n".join(filter(None, parts))


def packages(exercise: Exercise) -> list[str]:
    """Return which packages an exercise imports beside attnbook and what that installs."""
    nodes = [*ast.walk(ast.parse(f"{exercise.given}\n{exercise.check}\n{exercise.block}"))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in names}
    return sorted(roots - {"attnbook", "numpy", "array_api_compat"} - sys.stdlib_module_names)


def assertions(exercise: Exercise, right: list[Any], check: str = "check") -> list[str]:
    """Return the statements that fail unless the calls of an exercise give what is right."""
    if not exercise.calls:
        return exercise.block.splitlines()
    lines = []
    for call, result in zip(exercise.calls, right, strict=True):
        if hasattr(result, "passed"):
            lines.append(f"{call.replace('check.', f'{check}.', 1)}.require()")
        elif isinstance(result, Printed):
            lines += ["import contextlib", "import io", ""]
            lines += ["with contextlib.redirect_stdout(io.StringIO()) as printed:", f"    {call}"]
            lines.append(f"assert printed.getvalue() == {str(result)!r}, printed.getvalue()")
        elif (text := literal(result)) is None:
            lines.append(f"print({call})")
        else:
            holds = "verdict" if text == "True" else f"verdict == {text}"
            lines += [f"verdict = {call}", f"assert {holds}, verdict"]
    return lines


def literal(x: Any) -> str | None:
    """Return a result as Python writes it, None if it is more than numbers, texts and lists."""
    if isinstance(x, (list, tuple)):
        parts = [literal(part) for part in x]
        if None in parts:
            return None
        inner = ", ".join(parts)  # type: ignore[arg-type]
        return f"[{inner}]" if isinstance(x, list) else f"({inner}{',' * (len(x) == 1)})"
    if isinstance(x, dict):
        pairs = [(literal(key), literal(part)) for key, part in x.items()]
        known = all(None not in pair for pair in pairs)
        return f"{{{', '.join(f'{key}: {part}' for key, part in pairs)}}}" if known else None
    if isinstance(x, (bool, np.bool)):
        return str(bool(x))
    return repr(x) if isinstance(x, (str, int, float)) and not isinstance(x, np.generic) else None
