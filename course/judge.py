"""The judge: what an answer is worth, by hidden cases, and what to tell the student."""

import ast
import functools
import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from course.blanks import blanks, filled, is_numbers, nothing, passed_on, wrong
from course.exercises import Exercise
from course.hidden import checks_of, is_report, outcome, seed_of, share_of
from course.jupyter import UNREADABLE
from course.limits import bounded
from course.parents import Parents
from course.session import THEIRS, USUAL, Ending, Limits, Session

PASSED = "Right."
NOTHING = "nothing handed in"
MISSING = "is missing"
LONGEST = 100_000
"""Letters of the longest answer that is read: Python takes a thousand bytes for a statement."""

LEAST, TIMES = 3, 20
"""An answer has so many seconds of computing and so many times those of the solution, but never
more than the limit."""

WITHOUT = 0.5
"""The most that an answer gets which does not take all arguments of the stub."""


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
    if source is None:
        text = f"You have handed in nothing: there is no `{exercise.module}.py`."
        return Mark(exercise.label, 0.0, (NOTHING,), text)
    if len(source) > LONGEST:
        text = f"Your answer has {len(source):,} characters, but at most {LONGEST:,} are read."
        return Mark(exercise.label, 0.0, ("too long",), f"{text} Hand in only the code.")
    if is_untouched(exercise, source):
        what = "this is only what you were given" if source.strip() else "the file is empty"
        return Mark(exercise.label, 0.0, (NOTHING,), f"You have handed in nothing: {what}.")
    seed = seed_of(secret, exercise.label)
    solution = solved(exercise, seed)
    most = math.ceil(LEAST + TIMES * solution.seconds)
    limits = replace(limits, seconds=min(limits.seconds, most))
    notes: dict[str, str] = {}
    with Session(exercise, without_given(exercise, source), limits, parents) as session:
        try:
            answers = session.answers(solution.numbers.keys() | solution.usual.keys())
            with bounded(limits.megabytes):  # results may broadcast to huge ones
                share, mistakes, said = weighed(exercise, answers, solution, seed, notes)
        except Ending:
            share, mistakes, said = 0.0, (), ""
        except Exception as error:
            kept = session.kept
            if not session.ending.name:
                # what the check raises of a stand-in says nothing of the answer
                stopped = bool(notes) and not is_theirs(error)
                said = "The check cannot go on." if stopped else ended(error)
                said = f"{said} {session.raised}".strip()
                return Mark(exercise.label, 0.0, ("raises",), _after(notes, said), kept)
        ending, kept = session.ending, session.kept
    if share < 1 and session.raised:
        said = f"{said} {session.raised}"
    if ending.name:
        return Mark(exercise.label, 0.0, (ending.name,), ending.message, kept)
    return Mark(exercise.label, share, mistakes, _after(notes, said), kept)


def weighed(
    exercise: Exercise,
    answers: dict[str, Any],
    solution: "Solved",
    seed: int,
    notes: dict[str, str],
) -> tuple[float, tuple[str, ...], str]:
    """Return what answers are worth, the names of their mistakes, and what to say of them.

    What is to be said of an answer by its name stands in `notes` then.
    """
    found = judged(exercise, answers, solution, seed, notes)
    share = share_of(found, solution.found)
    mistakes, sentences = told(found)
    if MISSING in notes.values():
        mistakes = ("not handed in", *mistakes)
        share = share if share < 1 else 0.0  # a check that infinity passes
    lost = lost_arguments(exercise, answers)
    for name, arguments in lost.items():
        listed = " and ".join(f"`{argument}`" for argument in arguments)
        notes[name] = f"must take {listed}, as the stub does, so you get at most half of the points"
    if lost or unchecked(found) - unchecked(solution.found):
        share, mistakes = min(share, WITHOUT), ("missing argument", *mistakes)
    if share < 1 and not mistakes:
        mistakes = ("wrong",) if share == 0 else ("partly wrong",)
    said = " ".join(sentences) or (PASSED if share == 1 else _in_words(found, solution.found))
    return share, () if share == 1 else mistakes, said


def lost_arguments(exercise: Exercise, answers: dict[str, Any]) -> dict[str, list[str]]:
    """Return the arguments of the stub that functions and classes do not take, by their names.

    One with another name in the same place is taken.
    """
    found: dict[str, list[str]] = {}
    for node in ast.parse(exercise.stub).body:
        try:
            signature = inspect.signature(answers[getattr(node, "name", "")])
        except (KeyError, TypeError, ValueError):
            continue
        given = signature.parameters.values()
        names = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = {*names, *(p.name for p in given if p.kind == p.KEYWORD_ONLY)}
        rest = {p.kind for p in given}
        lost = [
            name
            for i, name in enumerate(_arguments(node))
            if name not in named and (i >= len(names) or names[i] in _arguments(node))
        ]
        if lost and not rest & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            found[node.name] = lost  # type: ignore[attr-defined]
    return found


def _arguments(node: ast.AST) -> list[str]:
    """Return the names of the arguments of a function, or of those that make an object."""
    if isinstance(node, ast.ClassDef):
        made = [part for part in node.body if getattr(part, "name", "") == "__init__"]
        return _arguments(made[0])[1:] if made else []
    if not isinstance(node, ast.FunctionDef):
        return []
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def unchecked(found: Sequence[Any]) -> set[str]:
    """Return what reports say of arguments that a function does not take, and their check has."""
    remarks = (remark for result in found if is_report(result) for remark in result.remarks)
    return {remark for remark in remarks if "was not checked" in remark}


def is_untouched(exercise: Exercise, source: str) -> bool:
    """Return whether an answer has no statement but words and those that the student was given."""
    given = {ast.dump(node) for node in ast.parse(f"{exercise.given}\n{exercise.stub}").body}
    if len(source) > LONGEST:
        return False
    try:
        own = ast.parse(source).body
        words = (node.value for node in own if isinstance(node, ast.Expr))
        given |= {ast.dump(ast.Expr(word)) for word in words if isinstance(word, ast.Constant)}
        return given.issuperset(map(ast.dump, own))
    except UNREADABLE:
        return False


def without_given(exercise: Exercise, source: str) -> str:
    """Return an answer with empty lines where it begins as the file that the student was given.

    What is given has run before an answer does.
    """
    try:
        own, given = ast.parse(source).body, ast.parse(exercise.given).body
        first = int(
            bool(own) and isinstance(own[0], ast.Expr) and isinstance(own[0].value, ast.Constant)
        )
        begun = own[first : first + len(given)]
        is_given = list(map(ast.dump, begun)) == list(map(ast.dump, given))
    except UNREADABLE:
        return source
    if not given or not is_given or "\r" in source.replace("\r\n", ""):
        return source
    lines, last = source.split("\n"), begun[-1].end_lineno or 0
    rest = own[first + len(given) :]
    if rest and rest[0].lineno <= last:  # behind a semicolon
        return source
    return "\n".join([""] * last + lines[last:])


class Solved(NamedTuple):
    """What the check gives for the solution, and what is handed in by it.

    Attributes
    ----------
    found : list
        What the check gives.
    seconds : float
        Of computing that it takes.
    numbers : dict
        Those answers that are numbers, by name.
    usual : dict
        The blanks that those return that are functions, by name.
    """

    found: list[Any]
    seconds: float
    numbers: dict[str, Any]
    usual: dict[str, set[str]]


@functools.lru_cache(maxsize=256)
def solved(exercise: Exercise, seed: int) -> Solved:
    """Return what the check gives for the solution, and what is handed in by it."""
    checks_of(exercise, seed)  # to import these is no part of the computing
    before = time.thread_time()
    space: dict[str, Any] = {"__name__": "answer"}
    exec(compile(exercise.given, "<given>", "exec"), space)
    exec(compile(exercise.answer, "<answer>", "exec"), space)
    answers = {name: space[name] for name in exercise.names}
    numbers = {name: x for name, x in answers.items() if is_numbers(x)}
    usual: dict[str, set[str]] = {n: set() for n, x in answers.items() if inspect.isfunction(x)}

    def noted(name: str, x: Any) -> Any:
        usual[name] |= blanks(x)
        return x

    own = {name: passed_on(answers[name], functools.partial(noted, name)) for name in usual}
    found = outcome(exercise, answers, seed, {**answers, **own})
    seconds = time.thread_time() - before
    return Solved(found, seconds, numbers, usual)


def judged(
    exercise: Exercise, answers: dict[str, Any], solution: Solved, seed: int, notes: dict[str, str]
) -> list[Any]:
    """Return what the check gives for answers, and note of which it cannot be given, and why.

    In the place of these, which are missing, are no numbers or fit nowhere, it is given wrong ones,
    so that the others earn their share.
    """
    right = solution.numbers
    for name in right:
        got = answers[name]
        if not is_numbers(got):
            kind = type(got).__name__
            missing = kind in ("NoneType", "ellipsis")
            notes[name] = "has no value" if missing else f"must be numbers, got {kind}"
        elif lacks := blanks(got) - blanks(right[name]):
            notes[name] = f"contains {' and '.join(sorted(lacks))}"
    own = {name: wrong(right[name]) if name in notes else x for name, x in answers.items()}

    def without_blanks(name: str, x: Any) -> Any:
        if lacks := blanks(x) - solution.usual[name]:
            notes.setdefault(name, f"returns {' and '.join(sorted(lacks))}")
        return filled(x, solution.usual[name])

    for name in solution.usual:
        if answers[name] is None:
            notes[name] = MISSING
        elif not callable(answers[name]):
            notes[name] = f"must be a function, got {type(answers[name]).__name__}"
        given = nothing if name in notes else answers[name]
        own[name] = passed_on(given, functools.partial(without_blanks, name))
    try:
        return outcome(exercise, answers, seed, own)
    except Exception:
        if right.keys() != own.keys():  # an answer would be called with the solution's
            several = len(exercise.calls) > 1
            found = outcome(exercise, answers, seed, own, apart=True) if several else []
            if all(isinstance(result, Exception) for result in found):
                raise
            return found
    for name in [name for name in right if name not in notes]:
        try:
            outcome(exercise, {**right, name: own[name]}, seed)
        except Exception as error:
            notes[name] = f"does not fit: {error}"
            own[name] = wrong(right[name])
    return outcome(exercise, own, seed)


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
        elif isinstance(result, Exception):
            mistakes.append("raises")
            sentences.append(ended(result))
    return tuple(dict.fromkeys(mistakes)), [sentence for sentence in sentences if sentence]


def ended(error: Exception) -> str:
    """Say with which error a check ends, and whose it is."""
    said = "Your submission raises" if is_theirs(error) else "The check stops with"
    return f"{said} {type(error).__name__}: {error}."


def is_theirs(error: Exception) -> bool:
    """Return whether the submission raised this error."""
    return THEIRS in getattr(error, "__notes__", ())


def _after(notes: dict[str, str], text: str) -> str:
    return " ".join([*(f"`{name}` {note}." for name, note in notes.items()), text])


def _in_words(found: list[Any], expected: list[Any]) -> str:
    """Say which parts of a result are right, where a check says no more than that."""
    parts, wanted = _parts(found), _parts(expected)
    if len(parts) == len(wanted) > 1:
        pairs = enumerate(zip(parts, wanted, strict=True), 1)
        right = [str(i) for i, pair in pairs if share_of(*pair) == 1]
        listed = ", ".join(right) or "none"
        return f"The answer has {len(parts)} parts. In their order, these are right: {listed}."
    return "Your answer is wrong."


def _parts(found: list[Any]) -> list[Any]:
    """Return the parts of what one call gives, or what each of several gives."""
    parts = found[0] if len(found) == 1 else found
    parts = [*parts.values()] if isinstance(parts, dict) else parts
    return list(parts) if isinstance(parts, (list, tuple)) else [parts]
