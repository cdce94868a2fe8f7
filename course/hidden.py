"""Hidden cases: the check of an exercise with other numbers, and what its result is worth.

The numbers follow from a secret, which no release holds, and the label of the exercise. The checks
of the package are imported once more with another seed. In the chapter's own checks and assertions
the seeds are replaced, and the sizes that `sizes` draws.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import io
import math
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from course.exercises import Exercise
from course.sizes import resized

VARIABLE = "ATTNBOOK_CHECK_SEED"
"""What `attnbook.check` reads when it is imported."""

DRAWN = ("backprop-suspect",)
"""Exercises whose check draws what the text asks, so that another seed would ask something else."""


def seed_of(secret: str, *about: str) -> int:
    """Return the seed of some hidden cases, such as those of an exercise; never 0."""
    digest = hashlib.sha256("\0".join((secret, *about)).encode()).digest()
    return 1 + int.from_bytes(digest[:4]) % (2**31 - 1)


@functools.cache
def checks(seed: int) -> types.ModuleType:
    """Return `attnbook.check` with the numbers of another seed; 0 are those that everybody sees."""
    package = importlib.import_module("attnbook")
    usual = importlib.import_module("attnbook.check")
    if seed == 0:
        return usual
    names = [n for n in sys.modules if n == "attnbook.check" or n.startswith("attnbook.check.")]
    kept = {name: sys.modules.pop(name) for name in names}
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(seed)
    try:
        found = importlib.import_module("attnbook.check")
        for name in found.__all__:  # now, and not when one is asked for
            getattr(found, name)
        found.engine.run.present = lambda: ["numpy"]  # what a submission is given
        found.engine.sandbox.IDLE_SECONDS = math.inf  # the computing is done elsewhere
        return found
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        for name in [n for n in sys.modules if n.startswith("attnbook.check")]:
            del sys.modules[name]
        sys.modules.update(kept)
        package.check = usual  # type: ignore[attr-defined]


def checks_of(exercise: Exercise, seed: int) -> types.ModuleType | None:
    """Return the `checks` of an exercise; None if it calls none of the package: they cost time."""
    code = "".join([*exercise.calls, exercise.check, exercise.block])
    return checks(seed) if "check." in code else None


def reseeded(source: str, seed: int, functions: set[str] | None = None) -> str:
    """Return code in which generators have other seeds; of some functions alone, if they are named.

    >>> reseeded("np.random.default_rng(3)", 7) != reseeded("np.random.default_rng(4)", 7)
    True
    """
    if seed == 0:
        return source
    tree = ast.parse(source)
    for node in tree.body:
        named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name
        if functions is None or named in functions:
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and ast.unparse(part.func).endswith("default_rng"):
                    part.args = [_mixed(argument, seed) for argument in part.args]
    return ast.unparse(tree)


def _mixed(argument: ast.expr, seed: int) -> ast.expr:
    if isinstance(argument, ast.Constant) and type(argument.value) is int:
        return ast.Constant(seed_of(str(seed), str(argument.value)))
    return argument


class Printed(str):
    """What a check printed, which returns nothing."""


def outcome(
    exercise: Exercise,
    answers: Mapping[str, Any],
    seed: int,
    own: Mapping[str, Any] | None = None,
    *,
    apart: bool = False,
) -> list[Any]:
    """Return what the calls of an exercise give for these answers, by name.

    Assertions give True, or the text of the error; so does one in the only call. The chapter's own
    checks are given `own` in the place of the answers, if there are such; those of the package say
    themselves what a blank is.
    Where calls stand `apart`, one that raises gives its error.
    """
    space = ground(exercise, seed)
    if any(isinstance(value, np.random.Generator) for value in space.values()):
        space = ground.__wrapped__(exercise, seed)  # calls would draw from it
    before, printed = dict(space), io.StringIO()

    def result_of(call: str) -> Any:
        try:
            return eval(call, space, dict(answers) if call.startswith("check.") else {})
        except Exception as error:
            if not apart:
                raise
            return error

    space |= {"check": checks_of(exercise, seed), **(own or answers)}
    try:
        with contextlib.redirect_stdout(printed):
            found = [result_of(call) for call in exercise.calls]
            if not found:
                block = reseeded(resized(exercise, seed).block, seed)
                exec(compile(block, "<check>", "exec"), space)
                return [True]
    except AssertionError as error:
        if len(exercise.calls) > 1 or hasattr(error, "__notes__"):  # as an answer's errors have
            raise
        return [str(error) or "One of the assertions of the exercise fails."]
    finally:
        space.clear()
        space |= before
    if found == [None]:  # it prints what it found
        return [Printed(printed.getvalue())]
    return found


@functools.lru_cache(maxsize=16)
def ground(exercise: Exercise, seed: int) -> dict[str, Any]:
    """Return what the calls of an exercise stand on: the names that its check binds.

    A chapter's models and what it computes of them is made once for all answers.
    """
    exercise = resized(exercise, seed)
    own = redrawn(exercise)
    space: dict[str, Any] = {"__name__": "check", "display": print}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(reseeded(exercise.check, seed, own), "<check>", "exec"), space)
    return space


def redrawn(exercise: Exercise) -> set[str]:
    """Return the plain functions that the calls of an exercise call, whose seeds are replaced."""
    return {
        part.func.id
        for call in exercise.calls
        for part in ast.walk(ast.parse(call))
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        if exercise.label not in DRAWN
    }


def is_report(x: Any) -> bool:
    """Return whether this is a report of a check, and not what an answer calls one."""
    return type(x).__module__ == "attnbook.check.engine.report"


def share_of(found: Any, expected: Any) -> float:
    """Return how much of a result is that of the right answer, from 0 to 1.

    A report is right, or wrong, or half right if its check began right: on ordinary numbers, in
    several sizes. Of a list, each part counts alike, but for those that are False for the right
    answer: they only show that another way fails.
    """
    if is_report(found):
        return 1.0 if found.passed else 0.5 * found.began_right
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            return 0.0
        return share_of([*found.values()], [*expected.values()])
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return 0.0
        parts = zip(found, expected, strict=True)
        shares = [share_of(x, y) for x, y in parts if not _is_false(y)]
        return math.fsum(shares) / len(shares) if shares else 1.0
    if isinstance(expected, (bool, np.bool, str)) or expected is None:
        plain = (bool, np.bool, str, Printed, type(None))
        return float(type(found) in plain and found == expected)
    with contextlib.suppress(TypeError, ValueError):
        same = np.shape(found) == np.shape(expected)
        return float(same and bool(np.allclose(found, expected, rtol=1e-6)))
    return 0.0


def _is_false(x: Any) -> bool:
    return isinstance(x, (bool, np.bool)) and not x
