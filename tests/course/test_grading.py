"""Grading: right and wrong answers get what they deserve, and hostile ones get nothing."""

import concurrent.futures
import contextlib
import csv
import dataclasses
import html
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import types
from fractions import Fraction

import numpy as np
import pupils
import pytest
import torch
from cases import every_day
from samples import (
    BLANKS,
    ESSAY,
    EXERCISES,
    HOSTILE,
    NEAR,
    NEEDS_LOCK,
    PENCIL,
    SHARES,
    SQUARES,
    WEIGHTS,
    WRITTEN,
    of_a_program,
    sample,
)

import attnbook
from attnbook.__main__ import main
from attnbook.check.engine import sandbox
from course import (
    assignments,
    blanks,
    command,
    exercises,
    grading,
    hidden,
    judge,
    limits,
    notebooks,
    results,
    session,
    submissions,
    variants,
    wire,
)
from course import parents as parents_module
from course.parents import parents
from course.session import Limits, Session, functions_of

QUICK = Limits(seconds=5, megabytes=1024)
SHORT = Limits(seconds=1, megabytes=1024)
PACKAGE = str(pathlib.Path(attnbook.__file__).parent)


@pytest.fixture(scope="module")
def start():
    with parents() as start:
        yield start


@pytest.fixture(scope="module")
def marked(start):
    """Return the mark of an answer to an exercise."""
    return lambda exercise, source, limits=QUICK: judge.mark(exercise, source, "s", start, limits)


@pytest.mark.parametrize("forks", [True, False])
def test_one_answer_does_not_change_what_the_next_one_finds(forks, monkeypatch):
    """Also where no process is forked; what is given runs once for all that are."""
    monkeypatch.setattr(parents_module, "FORKS", forks)
    given = "import attnbook as ab\nimport numpy as np\ntold = []\n"
    exercise = dataclasses.replace(TREE, given=given)
    changes = f"told.append(1)\nab.MultiHeadWeights = np.array = None\n{TREE.answer}"
    looks = f"assert told == [] and np.array and ab.MultiHeadWeights\n{TREE.answer}"
    with parents() as own:
        seen = set()
        for source, share in ((changes, 0), (looks, 1), ("import os\nos._exit(3)", 0), (looks, 1)):
            assert judge.mark(exercise, source, "s", own, QUICK).share == share
            seen.add(own.parent.process.pid)
        assert len(seen) == (1 if forks else 4)


def test_a_parent_that_is_gone_is_started_anew(start, marked):
    assert marked(PENCIL, PENCIL.answer).share == 1
    start.parent.process.kill()
    start.parent.process.wait()
    assert marked(PENCIL, PENCIL.answer).share == 1


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone forks for each answer")
def test_a_parent_that_does_not_answer_is_started_anew(start, marked, monkeypatch):
    assert marked(PENCIL, PENCIL.answer).share == 1
    stopped, within = start.parent, parents_module._within
    monkeypatch.setattr(
        parents_module, "_within", lambda s: within(0.2 if start.parent is stopped else s)
    )
    with Session(PENCIL, PENCIL.answer, QUICK, start) as session:
        assert session.answers()["half"] == 0.5
        os.kill(stopped.process.pid, signal.SIGSTOP)  # also where the answer is at its end
    assert stopped.process.returncode is not None
    assert marked(PENCIL, PENCIL.answer).share == 1
    stopped = start.parent
    os.kill(stopped.process.pid, signal.SIGSTOP)
    assert marked(PENCIL, PENCIL.answer).share == 1
    assert start.parent is not stopped


def test_what_cannot_be_made_ready_is_said(marked):
    broken = dataclasses.replace(
        TREE, given="import sys\nimport attnbook as ab\nassert 'worker' not in sys.modules"
    )
    assert marked(broken, TREE.answer).mistakes == ("not started",)


def test_an_untouched_file_is_nothing_handed_in(marked):
    for source in (assignments.program(TREE, TREE.stub), "'words'\nimport attnbook as ab"):
        assert marked(TREE, source).mistakes == ("nothing handed in",)


@pytest.fixture(scope="module")
def locked(start):
    """Whether this system refuses files and system calls to a process."""
    with Session(PENCIL, PENCIL.answer, QUICK, start) as session:
        session.answers()
        return {"files", "system calls"} <= set(session.kept)


@of_a_program
@pytest.mark.parametrize("secret", ["one", "two"])
def test_the_solution_gets_all_points(exercise, secret, start):
    program = f"{exercise.given}\n\n{exercise.answer}"
    mark = judge.mark(exercise, program, secret, start, QUICK)
    assert (mark.share, mark.mistakes, mark.message) == (1.0, (), "Right.")


@of_a_program
def test_a_stub_gets_none(exercise, marked):
    for source in (None, "", exercise.stub):
        mark = marked(exercise, source)
        assert (mark.share, mark.mistakes) == (0.0, ("nothing handed in",))
        says = {None: "there is no `", "": "the file is empty."}
        says = says.get(source, "this is only what you were given.")
        assert mark.message.startswith("You have handed in nothing: ")
        assert says in mark.message
    mark = marked(exercise, f"# mine\n{exercise.stub}")
    assert mark.share == 0


def test_a_mistake_is_named(marked):
    wrong = WEIGHTS.answer.replace(" / math.sqrt(query.shape[-1])", "")
    mark = marked(WEIGHTS, wrong)
    assert (mark.share, mark.mistakes) == (0.0, ("no scale",))
    assert "Divide the scores by √d_k" in mark.message


def test_parts_count(marked):
    mark = marked(SQUARES, "def squares(x):\n    return x + x")
    assert mark.share == pytest.approx(2 / 3), mark
    assert mark.mistakes == ("partly wrong",)
    assert mark.message == "The answer has 3 parts. In their order, these are right: 2, 3."
    mark = marked(PENCIL, "half = 0.5\npair = [2, 1]")
    assert mark.share == 0.5


def test_a_part_that_shows_how_another_way_fails_earns_nothing():
    assert hidden.share_of([[True, False]], [[True, False]]) == 1
    assert hidden.share_of([[False, False]], [[True, False]]) == 0
    assert hidden.share_of({"a": False, "b": np.False_}, {"a": True, "b": np.False_}) == 0
    assert hidden.share_of([False, True], [True, True]) == 0.5


def test_what_only_broadcasts_to_the_right_numbers_earns_nothing():
    for found in (2.0, [2.0], [[2.0, 2.0]], [[2.0], 2.0]):
        assert hidden.share_of([found], [np.array([2.0, 2.0])]) == 0
    assert hidden.share_of([[2.0, 2.0]], [np.array([2.0, 2.0])]) == 1


def test_half_of_the_points_for_ordinary_numbers(marked):
    """Of a check of the package: where its first stage, ordinary numbers, is right."""
    later = WEIGHTS.answer.replace("np.where(total == 0, 1, total)", "total")
    mark = marked(WEIGHTS, later)
    assert (mark.share, mark.mistakes) == (0.5, ("empty row NaN",)), mark
    for wrong in ("return query @ key.swapaxes(-1, -2)", "return np.full((3, 3), 1 / 3)"):
        source = f"def my_weights(query, key, mask=None):\n    {wrong}"
        assert marked(WEIGHTS, source).share == 0


@pytest.mark.parametrize("blank", BLANKS)
def test_a_blank_is_wrong_where_the_solution_has_a_number(blank, marked):
    assert marked(NEAR, NEAR.answer).share == 1
    fake = f"def means(x):\n    return {blank}\nrows = means"
    assert marked(NEAR, fake).share == 0
    assert marked(NEAR, f"{NEAR.answer}\ndef means(x):\n    return {blank}").share == 0.5


def test_a_blank_is_right_where_the_solution_has_one(marked):
    exercise = dataclasses.replace(
        NEAR,
        names=["rows"],
        calls=["check_rows(rows)"],
        check="import numpy as np\ndef check_rows(rows):\n"
        "    return [np.isnan(rows(0)), len(rows(1)) == 0]",
        answer="def rows(i):\n    return np.zeros(0) if i else np.nan",
    )
    assert marked(exercise, exercise.answer).share == 1


def test_what_stands_in_the_place_of_blanks():
    kept = {"a": [1, 2.0, "x", None], "b": ()}
    assert blanks.blanks(kept) == {"None", "no number"}
    assert blanks.filled(kept, {"None", "no number"}) == kept
    assert blanks.filled((float("nan"), [], {}), set()) == (np.inf, np.inf, {})
    assert blanks.filled(np.array([1, np.nan]), set()).tolist() == [1, np.inf]
    assert blanks.filled([np.nan], {"NaN"})[0] is np.nan
    assert blanks.wrong([True, False]).tolist() == [False, True]
    assert blanks.wrong(3) == np.inf
    for number in (Fraction(1, 2), 10**30, np.float32(2), torch.tensor(2.0, requires_grad=True)):
        assert blanks.guarded(number) is number
    named = blanks.guarded(lambda: np.unique_counts([1, 1, 2]))()
    assert named.counts.tolist() == [2, 1]
    assert blanks.guarded(torch.tensor([1, np.nan])).tolist() == [1, np.inf]
    assert blanks.guarded("half") == blanks.guarded(None) == np.inf


def test_what_is_no_function_is_said(marked):
    mark = marked(NEAR, f"{NEAR.answer}\nmeans = 3")
    assert mark.share == 0.5
    assert "`means` must be a function, got int." in mark.message


def test_infinity_in_the_place_of_what_is_missing_gives_no_point(marked):
    exercise = dataclasses.replace(
        NEAR,
        names=["bound", "rest"],
        calls=["check_both(bound, rest)"],
        check="def check_both(bound, rest):\n    return [bound(1) >= 1, rest == 1]",
        answer="def bound(x):\n    return x\nrest = 1",
    )
    assert marked(exercise, exercise.answer).share == 1
    mark = marked(exercise, "rest = 1")
    assert mark.share == 0
    assert mark.message.startswith("`bound` is missing.")


THREE = sample(
    "three",
    names=["one", "row", "two"],
    calls=["check_three(one, row, two)"],
    check="""\
import numpy as np


def check_three(one, row, two):
    return [abs(one / 1 - 1) < 0.1, np.allclose(row, [1, 2]), not abs(two - 2) > 0.1]""",
    stub="one = ...\nrow = ...\ntwo = ...",
    answer="one = 1\nrow = [1, 2]\ntwo = 2",
)


@pytest.mark.parametrize(
    ("wrong", "note"),
    [
        ("two = ...", "`two` has no value."),
        ("two = None", "`two` has no value."),
        ("del two", "`two` has no value."),
        ("two = '2'", "`two` must be numbers, got str."),
        ("two = {1}", "`two` must be numbers, got set."),
        ("two = float('nan')", "`two` contains NaN."),
        ("row = [1, [2]]", "`row` must be numbers, got list."),
        ("row = [1, 2, 3]", "`row` does not fit: operands could not be broadcast"),
        ("row = []", "`row` contains no number."),
    ],
)
def test_a_part_that_is_left_takes_its_own_points_alone(wrong, note, marked):
    mark = marked(THREE, f"{THREE.answer}\n{wrong}")
    assert mark.share == pytest.approx(2 / 3)
    assert mark.message.startswith(note)
    right = "1, 3" if "row" in wrong else "1, 2"
    assert mark.message.endswith(
        f"The answer has 3 parts. In their order, these are right: {right}."
    )


PAIR = sample(
    "pair",
    names=["twice", "low"],
    calls=["check_pair(twice, low)"],
    check="""\
import numpy as np


def check_pair(twice, low):
    return {
        "twice": np.allclose(twice(np.arange(3)), [0, 2, 4]),
        "shape": np.shape(low(np.ones(3))) == (3,),
        "low": not np.any(low(np.ones(3)) > 1),
    }""",
    given="import numpy as np",
    answer="def twice(x):\n    return 2 * x\n\n\ndef low(x):\n    return x / 2",
)
"""Two functions, and one call of a check for both."""


@pytest.mark.parametrize(
    ("left", "note"),
    [
        ("del low", "`low` is missing."),
        ("def low(x):\n    ...", "`low` returns None."),
        ("def low(x):\n    return x / 0 * 0", "`low` returns NaN."),
    ],
)
def test_a_function_that_is_left_takes_its_own_points_alone(left, note, marked):
    """The others get theirs, in one call of a check and in several."""
    mark = marked(PAIR, f"{PAIR.answer}\n{left}")
    assert mark.share == pytest.approx(2 / 3 if "NaN" in note else 1 / 3), mark
    assert mark.message.startswith(note)
    for exercise, name in ((NEAR, "means"), (NEAR, "rows")):
        mark = marked(exercise, f"{NEAR.answer}\n{left.replace('low', name)}")
        assert mark.share == 0.5, mark
        assert mark.message.startswith(note.replace("low", name))


def test_a_call_that_cannot_be_made_takes_its_own_points_alone(marked):
    exercise = dataclasses.replace(
        WEIGHTS,
        names=["my_weights", "one"],
        calls=[*WEIGHTS.calls, "check_one(one)"],
        check="from attnbook import check\ndef check_one(one):\n    return [one(2) == 1]",
        answer=f"{WEIGHTS.answer}\ndef one(x):\n    return 1",
    )
    assert marked(exercise, exercise.answer).message == "Right."
    mark = marked(exercise, "def one(x):\n    return 1")
    assert (mark.share, mark.mistakes) == (0.5, ("not handed in", "raises"))
    assert mark.message.startswith("`my_weights` is missing. The check stops with TypeError")
    mark = marked(exercise, f"{WEIGHTS.answer}\ndef one(x):\n    return y")
    assert (mark.share, mark.mistakes) == (0.5, ("raises",))
    place = "at line 10 of one: `return y`"
    assert mark.message == f"Your submission raises NameError: name 'y' is not defined, {place}."
    both = "def one(x):\n    return y\nmy_weights = None"
    assert marked(exercise, both).mistakes == ("raises",)


def test_blanks_are_usual_of_each_function_for_itself(marked):
    """What one of them returns rightly is no excuse for another one."""
    exercise = dataclasses.replace(
        NEAR,
        names=["means", "gap"],
        calls=["check_near(means)", "check_gap(gap)"],
        check=NEAR.check + "\ndef check_gap(gap):\n    return [np.isnan(gap())]",
        answer=f"{NEAR.answer}\ndef gap():\n    return np.nan",
    )
    assert marked(exercise, exercise.answer).share == 1
    fake = f"{exercise.answer}\ndef means(x):\n    return np.full(4, np.nan)"
    assert marked(exercise, fake).share == 0.5


def test_a_number_beside_a_function_may_be_absent(marked):
    exercise = sample(
        "beside",
        names=["twice", "one"],
        calls=["check_beside(twice, one)"],
        check="def check_beside(twice, one):\n"
        "    return ['right' if twice(2) == 4 else 'wrong', 'right' if one == 1 else 'wrong']",
        answer="def twice(x):\n    return 2 * x\none = 1",
    )
    for rest in ("", "one = ..."):
        mark = marked(exercise, f"def twice(x):\n    return 2 * x\n{rest}")
        assert mark.share == 0.5
        assert mark.message == (
            "`one` has no value. The answer has 2 parts. In their order, these are right: 1."
        )
    mark = marked(exercise, "one = 1")
    assert (mark.share, mark.mistakes) == (0.5, ("not handed in",))
    assert mark.message == (
        "`twice` is missing. The answer has 2 parts. In their order, these are right: 2."
    )
    assert marked(exercise, "two = 1").message == "Your submission has no `twice`, `one`."


@pytest.mark.parametrize("left", ["", "three = ...", "three = 3.0"])
def test_an_answer_without_which_the_check_cannot_go_on_is_named(left, marked):
    exercise = sample(
        "sizes",
        names=["two", "three"],
        calls=["check_sizes(two, three)"],
        check="def check_sizes(two, three):\n    return [[0] * two == [0, 0], len([0] * three)]",
        answer="two = 2\nthree = 3",
    )
    mark = marked(exercise, f"two = 2\n{left}")
    assert (mark.share, mark.mistakes) == (0, ("raises",))
    wanted = "does not fit: can't multiply" if "3.0" in left else "has no value. The check cannot"
    assert mark.message.startswith(f"`three` {wanted}")


@pytest.mark.parametrize(
    ("arguments", "call", "lost"),
    [
        ("query, key, mask=None", "query, key, mask", ""),
        ("query, key, *, mask=None", "query, key, mask", ""),
        ("q, k, mask=None", "q, k, mask", ""),
        ("q, k, **options", "q, k, **options", ""),
        ("query, key, mask=None, out=1", "query, key, mask", ""),
        ("query, key", "query, key", "`my_weights` must take `mask`, as the stub does"),
        ("q, k", "q, k", "`my_weights` must take `mask`, as the stub does"),
        ("query, key, m=None", "query, key, m", "Note: `mask` was not checked"),
    ],
)
def test_an_argument_of_the_stub_that_is_missing_costs_points(arguments, call, lost, marked):
    source = WEIGHTS.answer.replace("my_weights", "right")
    mark = marked(WEIGHTS, f"{source}\ndef my_weights({arguments}):\n    return right({call})")
    assert (mark.share, mark.mistakes) == ((0.5, ("missing argument",)) if lost else (1, ())), mark
    assert lost in mark.message
    assert lost or mark.message == "Right."


def test_an_argument_that_no_check_passes_is_missed_too(marked):
    for stub, answer in (
        ("def squares(x, out=3):\n    ...", "def squares(x):\n    return x * x"),
        (
            "class squares:\n    def __init__(self, x, out=3):\n        ...",
            "class squares(np.ndarray):\n    def __new__(cls, x):\n        return x * x",
        ),
    ):
        exercise = dataclasses.replace(SQUARES, stub=stub)
        mark = marked(exercise, answer)
        assert (mark.share, mark.mistakes) == (0.5, ("missing argument",)), mark
        assert mark.message.startswith("`squares` must take `out`, as the stub does, so you")
        assert marked(exercise, answer.replace("x)", "x, out=3)")).share == 1


LONG = {
    "statements": "1;" * 2**21,
    "brackets": "[" * 2**22,
    "a sum": "1+" * 2**21 + "1",
    "names": "a." * 2**21 + "a",
    "a number": "x = " + "9" * 2**22,
    "a text": "x = '" + "a" * 2**22 + "'",
    "lines": "\n" * 2**22,
}


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_an_answer_that_is_too_long_is_not_parsed(source, marked):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert not judge.is_untouched(WEIGHTS, source)
    mark = marked(WEIGHTS, source)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (mark.share, mark.mistakes) == (0, ("too long",))
    assert f"has {len(source):,} characters, but at most {judge.LONGEST:,} are read" in mark.message
    assert after.ru_utime - before.ru_utime < 5  # 80 for the first where it is parsed
    assert after.ru_maxrss - before.ru_maxrss < 200 * 1024  # 3 GB there


def test_what_is_not_too_long_takes_little_to_parse(marked):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF)
    for long in LONG.values():
        assert marked(WEIGHTS, f"{long[: judge.LONGEST - 4]}\n1").share == 0
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 200 * 1024


def test_an_answer_that_cannot_be_marked_stops_no_other(monkeypatch):
    def marks(exercise, answer, *given):
        if answer == "b":
            raise MemoryError("too much")
        return judge.Mark(exercise.label, 1.0, (), "Right.")

    monkeypatch.setattr(grading, "mark", marks)
    monkeypatch.setattr(grading, "_parents", [None])
    first, bad, last = grading._mark(SQUARES, ["a", "b", "c"], "s", QUICK)
    assert (first.share, bad.share, last.share) == (1, 0, 1)
    assert bad.mistakes == ("not marked",)
    assert "failed on this answer: MemoryError: too much." in bad.message


@pytest.mark.parametrize(
    "line",
    [
        "'a'.encode('cp1252')",
        "'a'.encode('utf-16')",
        "b'a'.decode('latin-1')",
        "__import__('os.path', globals(), locals(), fromlist=('join',), level=0).join",
        "__import__(name='json', fromlist=['loads']).loads",
    ],
)
def test_python_imports_as_it_does_elsewhere(line, marked):
    mark = marked(SQUARES, f"def squares(x):\n    {line}\n    return x * x")
    assert mark.share == 1, mark


def test_an_assertion_of_a_check_says_what_is_wrong(marked):
    check = SQUARES.check.replace(
        "    return", "    assert len(y) == 3, 'Three, please.'\n    return"
    )
    exercise = dataclasses.replace(SQUARES, check=check)
    assert marked(exercise, SQUARES.answer).share == 1
    mark = marked(exercise, "def squares(x):\n    return x[:2]")
    assert (mark.share, mark.mistakes, mark.message) == (0, ("wrong",), "Three, please.")
    mark = marked(exercise, "def squares(x):\n    assert False, 'mine'")
    assert mark.mistakes == ("raises",)
    assert "AssertionError: mine, at line 2" in mark.message


RAISES = {
    "NameError: name 'y' is not defined": "return y",
    "ValueError: no": "raise ValueError('no')",
    "PermissionError: [Errno 1] Operation not permitted": "import time; time.sleep(1)",
    "KeyError: 'a\\nb'": "return {}['a\\nb']",
    "RuntimeError: first": "raise RuntimeError('first\\nsecond')",
    "ZeroDivisionError: division by zero": "return 1 / 0",
    "StopIteration: 3": "raise StopIteration(3)",
    "LookupError: 1": "error = LookupError(1); error.add_note('mine'); raise error",
    "Mine: own": "raise type('Mine', (Exception,), {})('own')",
    "SystemExit: 4": "raise SystemExit(4)",
}


@pytest.mark.parametrize("words", RAISES)
@pytest.mark.parametrize("exercise", [WEIGHTS, SQUARES, SHARES], ids=lambda e: e.label)
def test_type_text_and_line_of_an_error_are_shown(words, exercise, marked, locked):
    """Whether a check of the package, one of a chapter or an assertion calls the function."""
    if "Permission" in words and not locked:
        pytest.skip("this system has no seccomp for a process")
    (name,) = exercise.names
    raises = RAISES[words]
    mark = marked(exercise, f"def {name}(*given, **options):\n    {raises}")
    assert mark.share == 0
    line = raises if len(raises) < 80 else raises[:79]
    assert f"{words}, at line 2 of {name}: `{line}" in mark.message, mark.message
    assert judge.THEIRS not in mark.message
    assert f".{words}" not in mark.message


def test_an_error_that_notes_were_added_to_is_told_by_its_own_words():
    error = ValueError("why")
    error.add_note("a note")
    assert sandbox.error_text(error) == "ValueError: why"


def test_nobody_is_told_of_the_judges_own_classes(marked):
    for returned in ("...", "{1}"):
        mark = marked(SQUARES, f"def squares(x):\n    return {returned}")
        assert mark.share == 0
        assert "Remote" not in mark.message


FAKES = ("None", "[]", "np.zeros((0, 1, 1))", "np.nan", "np.full((1, 1), np.nan)", "...")
FAKED = ("merge", "additive", "mask-pencil", "estimators-pencil", "sketch-pay", "estimators-two")


@pytest.mark.site
def test_what_is_no_answer_gets_nothing(start):
    found = [e for chapter in exercises.read(WRITTEN).values() for e in chapter]
    found += variants.of("ada", "s") + variants.of("bob", "s")
    for exercise in every_day([e for e in found if e.label in FAKED], found):
        if exercise.is_checked and functions_of(exercise.uses) is not None:
            for fake in FAKES:
                lines = (
                    f"def {name}(*given, **options):\n    return {fake}"
                    if f"def {name}(" in exercise.answer
                    else f"{name} = {fake}"
                    for name in exercise.names
                )
                source = "\n".join(["import numpy as np", *lines])
                mark = judge.mark(exercise, source, "s", start, QUICK)
                assert mark.share == 0, (exercise.label, fake, mark)


def test_a_failed_assertion_is_wrong(marked):
    mark = marked(SHARES, "def shares(s):\n    return s")
    assert (mark.share, mark.mistakes) == (0.0, ("wrong",))


def test_numbers_of_the_visible_check_are_no_answer(marked):
    seen = np.random.default_rng(3).normal(size=5)
    source = (
        f"seen = np.array({seen.tolist()})\n"
        "def squares(x):\n"
        "    return x * x if np.array_equal(x, seen) or len(x) != 5 else 0 * x"
    )
    space = {"np": np}
    exec(source, space)
    assert hidden.outcome(SQUARES, space, 0) == [[True, True, True]]
    mark = marked(SQUARES, source)
    assert mark.share == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_gets_nothing(name, marked, locked, tmp_path):
    if name in NEEDS_LOCK and not locked:
        pytest.skip("this system has no Landlock and no seccomp for a process")
    (tmp_path / "kept").write_text("kept")
    mistake, source = HOSTILE[name]
    source = source.format(package=PACKAGE, home=str(tmp_path))
    limits = SHORT if mistake == "hangs" else QUICK
    mark = marked(WEIGHTS, source, limits)
    assert mark.share == 0
    assert mistake == "wrong" or mark.mistakes == (mistake,), mark
    assert (tmp_path / "kept").read_text() == "kept"
    assert os.access(tmp_path / "kept", os.R_OK)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_it_prints_is_not_seen(marked, capfd):
    source = f"print('loud')\nimport sys; sys.stderr.write('loud')\n{WEIGHTS.answer}"
    assert marked(WEIGHTS, source).share == 1
    assert capfd.readouterr() == ("", "")


def test_checks_are_silent_where_it_is_graded(marked):
    checked = "from attnbook import check\ncheck.attention_weights(my_weights).require()"
    source = f"{WEIGHTS.answer}\n{checked}"
    assert marked(WEIGHTS, source).share == 1


def test_a_function_of_the_package_runs_outside(marked):
    source = "import attnbook as ab\ndef shares(s):\n    assert ab.softmax.__module__ != 'attnbook'"
    for result, share in (("ab.softmax(2 * s)", 1), ("ab.softmax(np.ones(2_000_000))", 0)):
        assert marked(SHARES, f"{source}\n    return {result}").share == share


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone can be asked")
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("ab.masking.causal(40_000)", "Unable to allocate"),
        ("ab.attention(*3 * [np.ones((30_000, 1))])", "Unable to allocate"),
        ("np.ones((10**7, 1))", "MemoryError: Unable to allocate"),
    ],
)
def test_an_answer_cannot_fill_the_memory_of_the_judge(result, words, marked):
    exercise = dataclasses.replace(SHARES, uses=["attention", "masking", "masking.causal"])
    exercise = dataclasses.replace(
        exercise,
        block="assert np.allclose(shares(np.ones(200)), np.ones(200))",
        answer="def shares(s):\n    return s",
    )
    source = f"import attnbook as ab\nimport numpy as np\ndef shares(s):\n    return {result}"
    mark = marked(exercise, source, Limits(seconds=10, megabytes=512))
    assert mark.share == 0
    assert words in mark.message


def test_a_bound_of_memory_ends():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limits.bounded(512), limits.bounded(4096):
        pass
    assert resource.getrlimit(resource.RLIMIT_AS) == before


FIRST_PRODUCT = """
import numpy as np
from course import grading, limits
grading._begin(".")
with limits.bounded(8):
    np.ones((300, 300)) @ np.ones((300, 300))
print("done")
"""


def test_the_first_product_does_not_end_the_judge():
    """OpenBLAS takes its memory then, and ends the process where it gets none."""
    environment = {**os.environ, **parents_module.FEW_THREADS}
    words = [sys.executable, "-c", FIRST_PRODUCT]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


def test_what_an_exercise_uses():
    assert functions_of([]) == {}
    found = functions_of(["softmax", "masking", "masking.causal"])
    assert found == {"softmax": attnbook.softmax, "masking.causal": attnbook.masking.causal}
    assert functions_of(["models.writer"]) is None
    assert functions_of(["MultiHeadWeights.init"]) is None


def test_an_exercise_may_use_objects_of_the_package(marked):
    exercise = sample(
        "object",
        names=["heads"],
        calls=["check_heads(heads)"],
        check="def check_heads(heads):\n    return heads(4)",
        given="import attnbook as ab",
        answer="def heads(n):\n    return ab.MultiHeadWeights.init(0, 8, n).n_heads",
        uses=["MultiHeadWeights", "MultiHeadWeights.init"],
    )
    assert marked(exercise, exercise.answer).share == 1
    other = "def heads(n):\n    return ab.attention.__name__"
    assert marked(exercise, other).share == 0


TREE = sample(
    "tree",
    names=["heads"],
    calls=["check_heads(heads)"],
    check="""\
import numpy as np
import attnbook as ab


def check_heads(heads):
    weights, random = ab.MultiHeadWeights.init(0, 8, 2), np.random.default_rng(3)
    found = heads(weights, np.random.default_rng(3))
    same = np.array_equal(found.W_Q, weights.W_Q)
    return [found.n_heads == 2, same, not np.any(found.W_O), found.scale == random.random()]""",
    given="import attnbook as ab",
    answer="""\
def heads(weights, random):
    changed = weights.with_arrays(weights.arrays() | {"W_O": 0 * weights.W_O})
    return ab.MultiHeadWeights(**changed.arrays(), n_heads=2, scale=random.random())""",
    uses=["MultiHeadWeights"],
)


def test_weights_and_generators_travel(marked):
    assert marked(TREE, TREE.answer).share == 1
    fake = "class Fake:\n    n_heads = 2\ndef heads(weights, random):\n    return Fake()"
    assert marked(TREE, fake).share == 0


def test_what_no_class_of_the_package_takes_is_refused():
    for about in (
        {"class": "Popen", "fields": {}},
        {"class": "masking", "fields": {}},
        {"class": "MultiHeadWeights", "fields": {"W_Q": 1}},
        {"class": "Generator", "fields": {"state": 1}},
        {"class": "softmax", "fields": {}},
    ):
        with pytest.raises((ValueError, TypeError)):
            wire.put_together(about, attnbook)


def test_hidden_cases_follow_from_the_secret():
    seeds = {hidden.seed_of(secret, label) for secret in "ab" for label in ("x", "y")}
    assert len(seeds) == 4
    assert hidden.seed_of("a", "x") in seeds
    usual, other = hidden.checks(0), hidden.checks(7)
    assert usual is attnbook.check is hidden.checks(0)
    assert other is not usual
    assert usual.attention  # which loads its steps
    cases = [module.engine.steps.draw(2, 3, 5) for module in (usual, other, hidden.checks(7))]
    assert not np.array_equal(cases[0], cases[1])
    assert np.array_equal(cases[1], cases[2])


def test_hidden_cases_of_the_package_have_other_sizes():
    all_checks = [hidden.checks(seed) for seed in (0, 7, 8)]
    assert all(check.attention for check in all_checks)  # which loads its cases
    usual, *others = (check.shared.attention_cases.SIZES for check in all_checks)
    assert usual[:2] == ((3, 3, 3, 3), (2, 5, 3, 7))
    for other in others:
        assert other != usual
        for before, after in zip(usual, other, strict=True):
            assert len(set(zip(before, after, strict=True))) == len(set(before)) == len(set(after))
            assert [n == 1 for n in before] == [n == 1 for n in after]
    assert others[0] != others[1]


@pytest.mark.parametrize("seed", [7, 8])
def test_mistakes_have_their_names_in_hidden_cases(seed):
    check = hidden.checks(seed)
    for wrong, name in (
        ("query @ key.mT", "no scale"),
        ("query @ key.mT / query.shape[-1]", "scale by d_k"),
    ):
        code = f"lambda query, key, value: attnbook.softmax({wrong}) @ value"
        found = check.attention(eval(code, {"attnbook": attnbook})).mistakes
        assert found == (name,)
    assert check.attention(attnbook.attention).passed
    assert check.softmax(attnbook.softmax).passed
    assert check.split_heads(attnbook.split_heads).passed
    assert check.softmax(lambda x: np.exp(x) / np.exp(x).sum(axis=0)).mistakes


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2**70,
        1.5,
        float("inf"),
        "é",
        [1, (2, 3)],
        {"a": [1.0]},
        np.arange(6).reshape(2, 3),
    ],
)
def test_messages_arrive(value):
    text = wire.pack(value, None)
    lengths = wire.HEAD.unpack(text[: wire.HEAD.size])
    body = text[wire.HEAD.size :]
    found = wire.unpack(body[: lengths[0]], body[lengths[0] :], None)
    assert type(found) is type(value)
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value


@pytest.mark.parametrize(
    ("text", "blob"),
    [
        (b"nonsense", b""),
        (b'{"array": ["<f8", [3], false]}', b"12345678"),
        (b'{"array": ["O", [1], false]}', b"12345678"),
        (b'{"array": ["<f8", [-1], false]}', b""),
        (b'{"array": ["<f8", [1000000000000, 1000000000000], false]}', b""),
        (b'{"other": 1}', b""),
        (b"[" * 100_000, b""),
        (b'{"int": "x"}', b""),
    ],
)
def test_what_is_no_message_is_refused(text, blob):
    with pytest.raises(wire.Ended):
        wire.unpack(text, blob, None)


def test_a_class_is_graded(tmp_path):
    given = tmp_path / "in"
    right = {e.module: f"{e.given}\n\n{e.answer}" for e in EXERCISES[:4]}
    half_right = right | {"squares": "def squares(x):\n    return x + x"}
    pupils.write_programs(given / "ada", right)
    pupils.write_programs(given / "=bob", half_right)
    pupils.write_programs(given / "eve", {"weights": "import os\nos._exit(0)"})
    pencil = ["pair = [1, 2]\n", "half = 0.5"]
    book = given / "flo" / "sample" / "sample.ipynb"
    pupils.write_notebook(book, {"squares": SQUARES.answer, "pencil": pencil})
    (given / "flo" / "broken.ipynb").write_text("{")
    (given / "flo" / "weights.py").symlink_to(given / "ada" / "weights.py")
    handed_in = submissions.read(given, EXERCISES)
    done = list(grading.grade(handed_in, EXERCISES, "s", limits=QUICK, workers=2))
    results.write(done, EXERCISES, tmp_path / "out")
    rows = list(csv.reader((tmp_path / "out/grades.csv").read_text().splitlines()))
    assert rows[0] == ["student", "weights", "squares", "pencil", "shares", "total", "of"]
    assert rows[1:] == [
        ["'=bob", "4.0", "1.3", "1.0", "4.0", "10.3", "11"],
        ["ada", "4.0", "2.0", "1.0", "4.0", "11.0", "11"],
        ["eve", "0.0", "0.0", "0.0", "0.0", "0.0", "11"],
        ["flo", "0.0", "2.0", "1.0", "0.0", "3.0", "11"],
    ]
    told = json.loads((tmp_path / "out/students/ada.json").read_text())
    assert told["score"] == 11
    assert [test["max_score"] for test in told["tests"]] == [4, 2, 1, 4]
    page = (tmp_path / "out/students/eve.html").read_text()
    assert "Your submission ends the program." in page
    assert "<td>1</td><td>exits</td>" in (tmp_path / "out/class.html").read_text()
    assert ESSAY.label not in rows[0]


def read_one(folder):
    """Return what the one student in a folder has handed in."""
    (found,) = submissions.read(folder, EXERCISES)
    return found


def test_a_mark_of_the_byte_order_is_no_part_of_an_answer(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/squares.py").write_text(SQUARES.answer, "utf-8-sig")
    assert read_one(tmp_path).answers == {"squares": SQUARES.answer}


def test_installed_packages_and_hidden_folders_hold_no_answer(tmp_path):
    pupils.write_programs(tmp_path / "ada/a", {"squares": SQUARES.answer})
    pupils.write_programs(tmp_path / "ada/.old", {"squares": "old"})
    pupils.write_programs(tmp_path / ".git", {"squares": "of no student"})
    pupils.write_programs(tmp_path / "ada/env/bin", {"squares": "of an environment"})
    (tmp_path / "ada/env/pyvenv.cfg").touch()
    pupils.write_programs(tmp_path / "ada/lib/site-packages/numbers", {"squares": "of a package"})
    assert read_one(tmp_path) == submissions.Submission("ada", {"squares": SQUARES.answer})


def test_an_answer_goes_before_an_untouched_file(tmp_path):
    pupils.write_programs(tmp_path / "ada", {"squares": SQUARES.stub, "pencil": PENCIL.stub})
    pupils.write_notebook(tmp_path / "ada/work/book.ipynb", {"squares": SQUARES.answer})
    found = read_one(tmp_path)
    assert found.answers == {"squares": SQUARES.answer, "pencil": PENCIL.stub}
    assert found.doubts == []


def test_of_two_answers_the_highest_is_graded_and_the_teacher_is_told(tmp_path):
    pupils.write_programs(tmp_path / "ada/b", {"squares": SQUARES.answer})
    pupils.write_programs(tmp_path / "ada/a/old", {"squares": "x = 1"})
    pupils.write_programs(tmp_path / "ada/c", {"squares": SQUARES.answer})
    found = read_one(tmp_path)
    assert found.answers == {"squares": SQUARES.answer}
    assert found.doubts == ["squares in b/squares.py is graded, not that in a/old/squares.py"]


def test_of_a_cell_and_its_copies_the_first_with_an_answer_is_graded(tmp_path):
    for student, codes in (("ada", "s12"), ("bob", "1s"), ("eve", "1")):
        cells = [
            {
                "source": SQUARES.stub if code == "s" else f"x = {code}",
                "metadata": {"nbgrader": {"grade_id": "answer-squares"}},
            }
            for code in codes
        ]
        (tmp_path / student).mkdir()
        book = {"cells": [*cells, {"cell_type": "raw"}]}  # a cell that nobody asks for
        (tmp_path / student / "book.ipynb").write_text(json.dumps(book))
    found = submissions.read(tmp_path, EXERCISES)
    assert [one.answers for one in found] == 3 * [{"squares": "x = 1"}]
    doubt = "squares in book.ipynb is graded, not that in another cell of book.ipynb"
    assert [one.doubts for one in found] == [[doubt], [], []]


def test_a_name_of_a_file_does_nothing_to_a_terminal(tmp_path):
    pupils.write_programs(tmp_path / "ada", {"squares": "x = 1"})
    pupils.write_programs(tmp_path / "ada/\n\x1b[2J\x9b", {"squares": "x = 2"})
    (doubt,) = read_one(tmp_path).doubts
    assert doubt.isprintable()


def test_a_cell_that_is_not_in_the_notebook_is_named(tmp_path):
    book = notebooks.notebook([SQUARES, PENCIL], "s")
    book["cells"] = [c for c in book["cells"] if c["id"] != "answer-squares"]
    for student in ("ada", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "book.ipynb").write_text(json.dumps(book))
    (tmp_path / "bob/squares.py").write_text(SQUARES.answer)
    handed_in = submissions.read(tmp_path, EXERCISES)
    result, other = grading.grade(handed_in, EXERCISES, "s", limits=QUICK, workers=1)
    assert other.marks["squares"].message == "Right."
    mark = result.marks["squares"]
    assert (mark.share, mark.mistakes) == (0, ("nothing handed in",))
    assert mark.message == "The cell `answer-squares` is not in book.ipynb."
    assert result.marks["pencil"].share == 1
    assert result.marks["shares"].message == "You have handed in nothing: there is no `shares.py`."


STRANGE = (
    *("Ada", "ada", "a:b", "a_b", "Константинопольский Александр_1234567_assignsubmission_file_"),
    *("Я" * 120 + "1", "Я" * 120 + "2", "x" * 199, "\n", "<i>", "..."),
)
"""Names of folders that are hard on files."""


def test_each_student_has_files_whatever_the_name(tmp_path):
    mark = judge.Mark("squares", 1.0, (), "Right.")
    done = [grading.Result(student, {"squares": mark}) for student in (*STRANGE, "a/b", "Ada")]
    results.write(done, [SQUARES], tmp_path)
    titles, names = zip(
        *(
            (re.search("<h1>(.*)</h1>", page.read_text("utf8"), re.S)[1], page.stem)
            for page in (tmp_path / "students").glob("*.html")
        ),
        strict=True,
    )
    assert sorted(titles) == sorted(html.escape(result.student) for result in done)
    assert STRANGE[4] in names
    assert len({name.lower() for name in names}) == len(done)
    assert len([*(tmp_path / "students").glob("*.json")]) == len(done)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text here")
def test_a_name_that_is_no_text_is_read(tmp_path):
    for name in (b"J\xf6rg", b"J\xf6rn"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        pathlib.Path(os.fsdecode(folder), "squares.py").write_text(SQUARES.answer)
    found = submissions.read(tmp_path, [SQUARES])
    assert [one.student for one in found] == [
        "J\N{REPLACEMENT CHARACTER}rg",
        "J\N{REPLACEMENT CHARACTER}rn",
    ]
    assert all(one.answers == {"squares": SQUARES.answer} for one in found)


class InPlace:
    """Does at once what a pool of processes is asked for, and tells of it."""

    asked: list = []  # noqa: RUF012

    def __init__(self, workers, context, begin, given):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, exercise, answers, *given):
        self.asked.append((exercise.label, list(answers), os.environ["OMP_NUM_THREADS"]))
        future = concurrent.futures.Future()
        future.set_result([judge.Mark(exercise.label, len(a or ""), (), "") for a in answers])
        return future


def test_answers_that_agree_run_once(monkeypatch):
    monkeypatch.setattr(grading, "ProcessPoolExecutor", InPlace)
    monkeypatch.setattr(grading, "AT_ONCE", 3)
    monkeypatch.setattr(InPlace, "asked", [])
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    texts = ["a", "bb", "a", "bb", "ccc", "a", None]
    handed_in = [
        submissions.Submission(str(i), {} if text is None else {"squares": text})
        for i, text in enumerate(texts)
    ]
    done = list(grading.grade(handed_in, [SQUARES, ESSAY], "s"))
    assert InPlace.asked == [
        ("squares", ["a", "bb"], "1"),
        ("squares", ["ccc"], "1"),
        ("squares", [None], "1"),
    ]
    assert [result.student for result in done] == list("0123456")
    assert [result.marks["squares"].share for result in done] == [1, 2, 1, 2, 3, 1, 0]
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_to_import_the_checks_is_no_computing_time(monkeypatch):
    """So that an answer that never ends has the time that the solution allows, and no more."""
    now = [0.0]

    def imported(exercise, seed):
        now[0] += 7.0
        return hidden.checks_of(exercise, seed)

    monkeypatch.setattr(judge.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(judge, "checks_of", imported)
    assert judge.solved.__wrapped__(WEIGHTS, 5)[1] == 0
    assert now == [7.0]


GIVEN = sample("given", given="import math\nx = [\n    1,\n]", names=["y"], answer="y = 2")


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("{given}\ny = 2", "\n\n\n\ny = 2"),
        ("'words'\n\n{given}\n\ny = 2\n", "\n\n\n\n\n\n\ny = 2\n"),
        ("{given}  # mine\ny = 2", "\n\n\n\ny = 2"),
        ("import math\r\nx = [1,]\r\ny = 2", "\n\ny = 2"),
    ],
)
def test_what_is_given_does_not_run_twice(source, left):
    assert judge.without_given(GIVEN, source.format(given=GIVEN.given)) == left


@pytest.mark.parametrize(
    "source",
    [
        "",
        "y = 2",
        "import math",
        "import math\nx = [2]\ny = 2",
        "y = 2\nimport math\nx = [1]",
        "import math\nx = [1]; y = 2",
        "import math\rx = [1]\ry = 2",
        "def (",
        "import math\nx = [1]\n\0",
        f"y = {'y + ' * 2000}y",  # too deep to be compared
    ],
)
def test_an_answer_that_begins_otherwise_stays_as_it_is(source):
    assert judge.without_given(GIVEN, source) == source
    assert judge.is_untouched(GIVEN, source) == (source in ("", "import math"))


def test_what_a_check_stands_on_is_made_once_and_kept_from_answers(monkeypatch):
    made = []
    monkeypatch.setattr(hidden, "made", made, raising=False)
    check = (
        "from course.hidden import made\nmade.append(1)\nbase = 2\n"
        "def check_it(f):\n    global seen\n    seen = globals().get('seen', 0) + 1\n"
        "    return [f(base) == 3, seen]"
    )
    exercise = sample("once", names=["f"], calls=["check_it(f)"], check=check, answer="")
    for _ in range(3):
        assert hidden.outcome(exercise, {"f": lambda x: x + 1, "base": 2}, 4) == [[True, 1]]
        assert hidden.outcome(exercise, {"f": lambda x: x}, 4) == [[False, 1]]
    assert len(made) == 1
    drawing = dataclasses.replace(
        exercise,
        check="import numpy as np\nrng = np.random.default_rng(3)\n"
        "def check_it(f):\n    return rng.random()",
    )
    first, again = (hidden.outcome(drawing, {"f": len}, 4) for _ in range(2))
    assert first == again


def test_what_a_check_prints_is_compared(marked):
    exercise = sample(
        "printed",
        names=["f"],
        calls=["check_it(f)"],
        check="def check_it(f):\n    print('f(2) is', f(2))",
        answer="def f(x):\n    return x + 1",
        stub="def f(x):\n    ...",
    )
    assert marked(exercise, exercise.answer).share == 1
    wrong = marked(exercise, "def f(x):\n    return x")
    assert (wrong.share, wrong.message) == (0, "f(2) is 2")
    right = judge.solved(exercise, 0).found
    lines = "\n".join(assignments.assertions(exercise, right))
    for f, holds in ((lambda x: x + 1, True), (lambda x: x, False)):
        space = {"f": f}
        exec(exercise.check, space)
        with contextlib.nullcontext() if holds else pytest.raises(AssertionError):
            exec(lines, space)


STEPS_DOWN = """
import os, sys
sys.path.insert(0, sys.argv[1])
import limits
closed, open_ = sys.argv[2:]
assert limits.step_down([open_, closed + "/kept"]) == []
assert os.getresuid() == os.getresgid() == (0, 0, 0)
assert limits.step_down([open_, "/nowhere"]) == ["another user"]
assert 0 not in (*os.getresuid(), *os.getresgid(), *os.getgroups())
assert limits.step_down([open_]) == []
try:
    os.listdir(closed)
except PermissionError:
    print(os.listdir(open_))
"""


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.geteuid() != 0, reason="root alone can")
def test_where_root_grades_another_user_runs_the_answer():
    course = str(pathlib.Path(session.__file__).parent)
    with tempfile.TemporaryDirectory() as closed, tempfile.TemporaryDirectory() as open_:
        os.chmod(open_, 0o755)
        pathlib.Path(closed, "kept").write_text("kept")
        pathlib.Path(open_, "seen").write_text("seen")
        command = [sys.executable, "-c", STEPS_DOWN, course, closed, open_]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['seen']\n"


HIDDEN = """
import ctypes
from course.limits import hide_memory
ask = ctypes.CDLL(None).prctl
before = ask(3, 0, 0, 0, 0)
hide_memory()
print(before, ask(3, 0, 0, 0, 0))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone shows memory so")
def test_the_memory_of_the_judge_is_hidden():
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True)
    assert done.stdout == "1 0\n", done.stderr


@pytest.fixture
def graded_by(monkeypatch, tmp_path):
    """Return the exit status of the command for a class of one where this function grades."""

    def run(grade):
        monkeypatch.setattr(command.grading, "grade", grade)
        monkeypatch.setattr(command.exercises, "read", lambda folder: {"sample": [SQUARES]})
        (tmp_path / "in/ada").mkdir(parents=True, exist_ok=True)
        given = ["grade", str(tmp_path / "in"), "--secret", "-", "--out", str(tmp_path / "out")]
        return main(given)

    return run


def test_the_secret_may_come_through_a_pipe(monkeypatch, graded_by):
    told = []

    def grade(submissions, exercises, secret, **options):
        told.append(secret)
        return iter(())

    monkeypatch.setattr(command, "hide_memory", lambda: told.append("hidden"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("of pipes\n"))
    assert graded_by(grade) == 0
    assert told == ["hidden", "of pipes"]
    with pytest.raises(SystemExit, match="--secret must have at least one character, got none"):
        graded_by(grade)  # the pipe is at its end


def test_marks_are_kept_where_a_process_of_the_grader_ends(
    monkeypatch, graded_by, tmp_path, capsys
):
    def grade(*given, **options):
        yield grading.Result("ada", {"squares": judge.Mark("squares", 1.0, (), "Right.")})
        assert (tmp_path / "out/students/ada.json").exists()
        raise concurrent.futures.process.BrokenProcessPool

    monkeypatch.setattr(command, "hide_memory", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("of pipes\n"))
    assert graded_by(grade) == 1
    assert (tmp_path / "out/grades.csv").read_text() == "student,squares,total,of\nada,2.0,2.0,2\n"
    assert "A process of the grader was killed. 1 of 1 are graded." in capsys.readouterr().err


def test_names_do_no_harm_in_a_page():
    mark = judge.Mark("weights", 0.0, ("<b>",), "<script>", ())
    result = grading.Result("<i>", {"weights": mark})
    for text in (results.page(result, [WEIGHTS]), results.report([result], [WEIGHTS])):
        assert not {"<i>", "<b>", "<script>"} & set(text.replace(">", "> ").split(" "))


@pytest.fixture
def looked(monkeypatch):
    """Return a clock, which looks every quarter of a second at what a worker does until then."""
    told = types.SimpleNamespace(now=0.0, used=5.0, in_line={})
    module = types.SimpleNamespace(monotonic=lambda: told.now)
    monkeypatch.setattr(parents_module, "time", module)
    monkeypatch.setattr(session.Clock, "_used", lambda clock: told.used)
    monkeypatch.setattr(session, "seconds_in_line", lambda process: dict(told.in_line))
    told.clock = session.Clock(process=0)

    def look(does=lambda now: None):
        """Look until it is idle, and return the seconds."""
        first = told.now
        while True:
            told.now += 0.25
            does(told.now)
            if told.clock.is_idle():
                return told.now - first

    told.look = look
    return told


def test_a_worker_waits_by_many_looks_and_not_because_the_machine_stood_still(looked):
    looked.now += 3600  # nobody ran for an hour
    assert not looked.clock.is_idle()
    assert looked.look() == session.IDLE_SECONDS - parents_module.LONGEST_LOOK


@pytest.mark.parametrize("share", [0.025, 0.2, 0.5])
def test_a_worker_that_computes_a_little_between_its_waits_is_ended(looked, share):
    """It may wait for so many seconds in all, however it spreads them."""

    def computes(now):
        looked.used = 5 + share * now

    assert looked.look(computes) == pytest.approx(session.IDLE_SECONDS / (1 - share), abs=0.25)


@pytest.mark.parametrize("threads", [1, 9])
def test_a_worker_that_stands_in_line_for_a_processor_does_not_wait(looked, threads):
    def stands(now):  # then it sleeps
        looked.in_line = {str(i): min(now, 35.0) for i in range(threads)}

    assert looked.look(stands) == 35 + session.IDLE_SECONDS


def test_no_worker_waits_for_ever(looked):
    def stands(now):
        looked.in_line = {"1": now}

    assert looked.look(stands) == session.LONGEST_WAIT + 0.25


@pytest.mark.parametrize("seconds", [0.2, 0.3])
def test_an_answer_that_waits_between_its_calls_is_ended(seconds, marked, monkeypatch):
    monkeypatch.setattr(session, "IDLE_SECONDS", 2.0)
    source = (
        "import threading\nimport attnbook as ab\ndef shares(s):\n    while True:\n"
        f"        threading.Event().wait({seconds})\n        ab.softmax(s)"
    )
    assert marked(SHARES, source, Limits(seconds=30)).mistakes == ("waits",)


def test_a_check_that_takes_long_between_its_calls_is_no_waiting(marked, monkeypatch):
    passed = types.SimpleNamespace(now=0.0)
    passed.monotonic = lambda: passed.now
    monkeypatch.setattr(parents_module, "time", passed)
    check = """\
from course import parents

def check_squares(squares):
    for _ in range(99):
        parents.time.now += 5
        squares(2)
    return [True]"""
    exercise = dataclasses.replace(SQUARES, check=check)
    assert marked(exercise, SQUARES.answer).message == "Right."


def test_a_clock_leaves_out_what_passes_while_the_worker_has_nothing_to_do(looked):
    for _ in range(1000):
        looked.now += 5
        looked.clock.resume()
        looked.now += session.IDLE_SECONDS / 2000
        assert not looked.clock.is_idle()
