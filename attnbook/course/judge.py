"""The judge: what an answer is worth, by hidden cases, and what to tell the student."""

import ast
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbook.course.exercises import Exercise
from attnbook.course.hidden import checks_of, is_report, outcome, seed_of, share_of
from attnbook.course.parents import Parents
from attnbook.course.session import USUAL, Ending, Limits, Session

PASSED = "Right."
NOTHING = "nothing handed in"
LEAST, TIMES = 3, 20
"""An answer has so many seconds of computing and so many times those of the solution, but never
more than the limit."""


@dataclass(frozen=True)
class Mark:
    """What an answer is worth, and why.

    Attributes
    ----------
    label : str
        The exercise.
    share : float
        Of the points, from 0 to 1.
    mistakes : tuple of str
        Names of the mistakes, those of the check or of what ended the submission.
    message : str
        What to tell the student.
    kept : tuple of str
        The limits that were in force.
    """

    label: str
    share: float
    mistakes: tuple[str, ...]
    message: str
    kept: tuple[str, ...] = ()


def mark(
    exercise: Exercise, source: str | None, secret: str, parents: Parents, limits: Limits = USUAL
) -> Mark:
    """Return the mark of an answer, which runs in a process of its own.

    Parameters
    ----------
    exercise : Exercise
        One that is checked.
    source : str or None
        The code of the answer, or that there is none.
    secret : str
        What the hidden cases follow from.
    parents : Parents
        What the process of the answer starts from.
    limits : Limits
        What the answer may use.
    """
    if source is None or is_untouched(exercise, source):
        return Mark(exercise.label, 0.0, (NOTHING,), "Nothing is handed in.")
    seed = seed_of(secret, exercise.label)
    right, seconds = solved(exercise, seed)
    limits = replace(limits, seconds=min(limits.seconds, math.ceil(LEAST + TIMES * seconds)))
    with Session(exercise, without_given(exercise, source), limits, parents) as session:
        try:
            found = outcome(exercise, session.answers(), seed)
        except Ending:
            found = []
        except Exception as error:
            kept = session.kept
            if not session.ending.name:
                text = f"The check ends with {type(error).__name__}: {error}."
                return Mark(exercise.label, 0.0, ("raises",), text, kept)
        ending, kept = session.ending, session.kept
    if ending.name:
        return Mark(exercise.label, 0.0, (ending.name,), ending.message, kept)
    share = share_of(found, right)
    mistakes, sentences = told(found)
    if share < 1 and not mistakes:
        mistakes = ("wrong",) if share == 0 else ("partly wrong",)
    message = " ".join(sentences) or (PASSED if share == 1 else _in_words(found))
    return Mark(exercise.label, share, () if share == 1 else mistakes, message, kept)


def is_untouched(exercise: Exercise, source: str) -> bool:
    """Return whether an answer has no statement but words and those that the student was given."""
    try:
        own = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    given = {ast.dump(node) for node in ast.parse(f"{exercise.given}\n{exercise.stub}").body}
    words = (node.value for node in own if isinstance(node, ast.Expr))
    given |= {ast.dump(ast.Expr(word)) for word in words if isinstance(word, ast.Constant)}
    return given.issuperset(map(ast.dump, own))


def without_given(exercise: Exercise, source: str) -> str:
    """Return an answer with empty lines where it begins as the file that the student was given.

    What is given has run before an answer does.
    """
    try:
        own, given = ast.parse(source).body, ast.parse(exercise.given).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    first = int(
        bool(own) and isinstance(own[0], ast.Expr) and isinstance(own[0].value, ast.Constant)
    )
    begun = own[first : first + len(given)]
    if (
        not given
        or "\r" in source.replace("\r\n", "")
        or list(map(ast.dump, begun)) != list(map(ast.dump, given))
    ):
        return source
    lines, last = source.split("\n"), begun[-1].end_lineno or 0
    rest = own[first + len(given) :]
    if rest and rest[0].lineno <= last:  # behind a semicolon
        return source
    return "\n".join([""] * last + lines[last:])


@functools.lru_cache(maxsize=256)
def solved(exercise: Exercise, seed: int) -> tuple[list[Any], float]:
    """Return what the check gives for the solution, and how many seconds of computing it takes."""
    checks_of(exercise, seed)  # to import these is no part of the computing
    before = time.thread_time()
    space: dict[str, Any] = {"__name__": "answer"}
    exec(compile(exercise.given, "<given>", "exec"), space)
    exec(compile(exercise.answer, "<answer>", "exec"), space)
    found = outcome(exercise, {name: space[name] for name in exercise.names}, seed)
    return found, time.thread_time() - before


def expected(exercise: Exercise, seed: int) -> list[Any]:
    """Return what the check gives for the solution."""
    return solved(exercise, seed)[0]


def told(found: Sequence[Any]) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of the mistakes that the results of a check hold, and their sentences."""
    mistakes: list[str] = []
    sentences: list[str] = []
    for result in found:
        if is_report(result):
            mistakes += result.mistakes or ([] if result.passed else ["unknown"])
            sentences += [] if result.passed else [result.message, result.detail]
            sentences += [f"Note: {remark}" for remark in result.remarks]
        elif isinstance(result, str):
            sentences.append(result.strip())
    return tuple(dict.fromkeys(mistakes)), [sentence for sentence in sentences if sentence]


def _in_words(found: list[Any]) -> str:
    """Say which parts of a result are right, where a check says no more than that."""
    parts = found[0] if len(found) == 1 else found
    parts = [*parts.values()] if isinstance(parts, dict) else parts
    if isinstance(parts, (list, tuple)) and len(parts) > 1:
        right = [i + 1 for i, part in enumerate(parts) if part is True or str(part) == "True"]
        listed = ", ".join(map(str, right)) or "none"
        return f"Of {len(parts)} parts, in their order, these are right: {listed}."
    return "The check says that it is wrong."
