"""Assignments: releases hold no solution and no hidden case, and their checks work."""

import ast
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import types

import numpy as np
import pytest
from cases import every_day
from samples import (
    BLANKS,
    EXERCISES,
    NEAR,
    OF_NOTEBOOKS,
    PENCIL,
    SQUARES,
    WEIGHTS,
    WRITTEN,
    of_a_program,
    sample,
)

from attnbook.__main__ import main
from course import (
    assignments,
    command,
    exercises,
    hidden,
    installing,
    judge,
    notebooks,
)

ROOT = pathlib.Path(__file__).parents[2]
SECRET = "a secret of tests"
WHEEL = "attnbook-1-py3-none-any.whl"


@functools.cache
def lines_of(code):
    """Return the lines of code that say something, in whatever form they are written."""
    lines = (
        " ".join(ast.unparse(node).split())
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.stmt)
    )
    return {line for line in lines if len(line) > 15}


def leaked(text, exercise):
    """Return which statements of an answer stand in a text, and not in what is given."""
    parts = (exercise.given, exercise.check, exercise.block, exercise.text, *exercise.hints)
    known = " ".join(" ".join(parts).split())
    flat = " ".join(text.split())
    return {line for line in lines_of(exercise.answer) if line in flat and line not in known}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    assignments.write(EXERCISES, folder / "release", folder / "solutions")
    notebooks.write(EXERCISES, SECRET, folder / "nbgrader", f"./{WHEEL}")
    return folder


def run_test(folder, name, monkeypatch):
    """Run the visible test of an exercise beside its file."""
    monkeypatch.syspath_prepend(folder)
    for module in (name, f"test_{name}"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    getattr(importlib.import_module(f"test_{name}"), f"test_{name}")()


def test_a_release_holds_no_solution(made):
    for path in (made / "release").iterdir():
        for exercise in EXERCISES:
            assert leaked(path.read_text("utf8"), exercise) == set(), path.name
    for exercise in EXERCISES[:3]:  # the test can fail
        solution = (made / "solutions" / f"{exercise.module}.py").read_text("utf8")
        assert leaked(solution, exercise) or exercise.label == "pencil"
    assert "Because." not in (made / "release/essay.md").read_text("utf8")
    assert "Because." in (made / "solutions/essay.md").read_text("utf8")


def test_a_release_holds_no_hidden_case(made):
    texts = [path.read_text("utf8") for path in (made / "release").iterdir()]
    for exercise in EXERCISES:
        seed = hidden.seed_of(SECRET, exercise.label)
        assert not any(str(seed) in text for text in texts)
        assert not any(str(hidden.seed_of(str(seed), "3")) in text for text in texts)
    assert not any(SECRET in text or "hidden" in text.lower() for text in texts)


@of_a_program
def test_visible_tests_pass_with_the_solution_alone(exercise, made, tmp_path, monkeypatch):
    name = exercise.module
    test = (made / f"release/test_{name}.py").read_text("utf8")
    for folder in ("solutions", "release"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{name}.py").write_text(test, "utf8")
        code = (made / folder / f"{name}.py").read_text("utf8")
        (tmp_path / folder / f"{name}.py").write_text(code, "utf8")
    run_test(tmp_path / "solutions", name, monkeypatch)
    with pytest.raises((AssertionError, TypeError, AttributeError)):
        run_test(tmp_path / "release", name, monkeypatch)
    (tmp_path / f"release/{name}.py").write_text("")  # no error before the test runs
    monkeypatch.delitem(sys.modules, name)
    importlib.reload(sys.modules[f"test_{name}"])
    with pytest.raises(ImportError):
        run_test(tmp_path / "release", name, monkeypatch)


@of_a_program
def test_hidden_cells_pass_with_the_solution_alone(exercise):
    cell = notebooks.hidden_test(exercise, SECRET)
    assert cell.splitlines()[1] == notebooks.HIDDEN[0]
    space = {}
    exec(f"{exercise.given}\n{exercise.answer}", space)
    exec(cell, space)
    wrong = {name: lambda *given: given[0] for name in exercise.names}
    with pytest.raises((AssertionError, TypeError)):
        exec(cell, {**space, **wrong})


@of_a_program
def test_a_hidden_cell_tells_no_seed_of_other_grading(exercise):
    """nbgrader's pages for students show the cell; `grade` draws other cases."""
    cell = notebooks.hidden_test(exercise, SECRET)
    seed = hidden.seed_of(SECRET, exercise.label)
    drawn = {str(seed), *(str(hidden.seed_of(str(seed), str(n))) for n in range(100))}
    assert drawn & set(re.findall(r"\d+", cell)) <= {str(n) for n in range(1000)}


NAN_IS_RIGHT = dataclasses.replace(
    NEAR,
    names=["gap", "low"],
    calls=["check_gap(gap, low)"],
    check="import numpy as np\ndef check_gap(gap, low):\n"
    "    return [bool(np.isnan(gap()[0])), not np.any(np.greater(low, 1))]",
    answer="def gap():\n    return [np.nan, np.zeros(0)]\n\n\nlow = [np.nan, 1]",
)


@pytest.mark.parametrize("kind", ["visible", "hidden"])
@pytest.mark.parametrize(
    ("exercise", "blanks"),
    [
        (NEAR, [f"def means(x):\n    return {blank}" for blank in (*BLANKS, *OF_NOTEBOOKS)]),
        (PENCIL, ["half = ..."]),
        (NAN_IS_RIGHT, ["low = []", "low = ...", "low = None"]),
    ],
)
@pytest.mark.filterwarnings("ignore")  # blanks beside numbers
def test_blanks_pass_no_cell_of_a_notebook(exercise, blanks, kind):
    """In neither kind of cell that nbgrader gives points for."""
    cells = notebooks.notebook([exercise], SECRET)["cells"]
    (cell,) = (c["source"] for c in cells if c["id"] == f"{kind}-{exercise.label}")
    space = {}
    exec(f"{exercise.given}\n{exercise.answer}\n{exercise.check}", space)
    exec(cell, space)
    for blank in blanks:
        exec(f"{exercise.given}\n{exercise.answer}\n{blank}\n{exercise.check}", space)
        with pytest.raises((AssertionError, TypeError, ValueError)):
            exec(cell, space)


def test_points_follow_from_the_minutes():
    assert [exercise.points for exercise in EXERCISES] == [4, 2, 1, 4, 4]
    assert sample("x", names=[], answer="", minutes=0).points == 1


def test_the_stub_keeps_heads_and_names():
    assert notebooks.marked(WEIGHTS).splitlines()[:2] == [
        "def my_weights(query, key, mask=None):",
        "    ### BEGIN SOLUTION",
    ]
    assert notebooks.marked(EXERCISES[2]) == (
        "half = ...\npair = ...\n### BEGIN SOLUTION\nhalf = 0.5\n\npair = (1, 2)\n### END SOLUTION"
    )
    several = sample("x", names=["f"], answer="a = 1  # one\n\n\ndef f(x):\n    return x + a")
    assert notebooks.marked(several) == (
        "### BEGIN SOLUTION\na = 1  # one\n### END SOLUTION\n\n\n"
        "def f(x):\n    ### BEGIN SOLUTION\n    return x + a\n    ### END SOLUTION"
    )


def test_metadata_goes_through_myst(made):
    jupytext = pytest.importorskip("jupytext")
    path = made / "nbgrader/source/sample/sample.ipynb"
    book = jupytext.read(path)
    again = jupytext.reads(jupytext.writes(book, "md:myst"), "md:myst")
    ours, theirs = ([cell.metadata.get("nbgrader") for cell in b.cells] for b in (book, again))
    assert ours == theirs
    assert [cell.source for cell in book.cells] == [cell.source for cell in again.cells]


@pytest.mark.weekly
def test_nbgrader_makes_the_release_and_grades_it(made, tmp_path):
    """Points of the visible and of the hidden cells; the release holds neither."""
    pytest.importorskip("nbgrader")
    home = tmp_path / "course"
    asked = [*EXERCISES[1:3], NEAR]  # their checks are their own, so the kernel is ready soon
    notebooks.write(asked, SECRET, home, f"./{WHEEL}")

    def nbgrader(*words):
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "HOME": str(tmp_path), "PATH": path}
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *words],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    assert notebooks.release(["sample"], home) == []
    release = (home / "release/sample/sample.ipynb").read_text("utf8")
    source = (home / "source/sample/sample.ipynb").read_text("utf8")
    seed = str(hidden.seed_of(str(hidden.seed_of(SECRET, "nbgrader", "squares")), "3"))
    assert seed in source
    assert seed not in release
    code = "\n".join("".join(cell["source"]) for cell in json.loads(release)["cells"])
    for exercise in asked:
        assert leaked(code, exercise) == set()
    book = json.loads(release)
    for cell in book["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if name == "answer-pencil":
            cell["source"] = PENCIL.answer
        if name == "answer-squares":
            cell["source"] = "def squares(x):\n    return x + x"
        if name == "answer-near":
            cell["source"] = f"{NEAR.answer}\ndef means(x):\n    return np.nan"
    (home / "submitted/ada/sample").mkdir(parents=True)
    (home / "submitted/ada/sample/sample.ipynb").write_text(json.dumps(book))
    nbgrader("autograde", "sample", "--create")
    with contextlib.closing(sqlite3.connect(home / "gradebook.db")) as book:
        scores = book.execute("select auto_score from grade").fetchall()
    assert sorted(score for (score,) in scores) == [0, 0, 0, 0, 1]


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Options of both commands: a course of one exercise."""
    monkeypatch.setitem(sys.modules, "nbgrader", None)  # as if it were not installed
    written = dataclasses.asdict(SQUARES)
    chapter = {"chapter": written.pop("chapter"), "exercises": [written]}
    (tmp_path / "in").mkdir()
    (tmp_path / "in/sample.json").write_text(json.dumps(chapter))
    (tmp_path / "in/requirements.txt").write_text(f"./{WHEEL}\n")
    (tmp_path / "in" / WHEEL).write_text("a wheel")
    return ["--exercises", str(tmp_path / "in"), "--secret", str(tmp_path / "secret")]


def test_the_empty_package_is_made_from_attnbook_and_not_from_where_one_stands(
    words, tmp_path, monkeypatch
):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["course", *words, "--out", "."]) == 0
    assert "0.0.1" in (tmp_path / "package/pyproject.toml").read_text()
    monkeypatch.setattr(command.stubs, "is_repository", lambda root: False)
    assert main(["course", *words, "--out", "wheel"]) == 0
    assert not (tmp_path / "wheel/package").exists()


@pytest.mark.parametrize("name", ["course", "grade"])
def test_a_command_without_the_repository_says_where_to_run_it(name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "course", None)  # as where a wheel is installed
    assert main([name, "submitted"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"python -m attnbook {name}: the grader is not part of the installed")
    assert "run this command in a clone of the repository" in told


def test_the_command_makes_a_course_and_keeps_its_secret(words, tmp_path, capsys):
    assert main(["course", *words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "sample: 1 exercises, 0 graded by a person" in told
    assert "To make the release of the notebooks: pip install nbgrader" in told
    assert f"Students get {tmp_path / 'out/release'}, " in told
    for release in ("release/sample", "nbgrader/source/sample"):
        assert (tmp_path / "out" / release / WHEEL).read_text() == "a wheel"
        assert (tmp_path / "out" / release / "requirements.txt").read_text() == f"./{WHEEL}\n"
    readme = (tmp_path / "out/release/sample/README.md").read_text("utf8")
    assert "\n    pip install -r requirements.txt pytest\n" in readme
    secret = (tmp_path / "secret").read_text()
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "students/ada").mkdir(parents=True)
    (tmp_path / "students/ada/squares.py").write_text(f"{SQUARES.given}\n{SQUARES.answer}")
    marking = [*words, "--out", str(tmp_path / "grades"), "--workers", "1"]
    assert main(["grade", str(tmp_path / "students"), *marking]) == 0
    assert (
        tmp_path / "grades/grades.csv"
    ).read_text() == "student,squares,total,of\nada,2.0,2.0,2\n"
    assert (tmp_path / "secret").read_text() == secret
    with pytest.raises(SystemExit, match="--chapter must be of sample, got other"):
        main(["course", *words, "--chapter", "other"])


def test_names_of_students_may_begin_with_a_mark_of_the_byte_order(words, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(command.variants, "write", lambda students, *given: told.extend(students))
    (tmp_path / "students.txt").write_text("Ada\n\nBob\n", "utf-8-sig")
    given = ["--students", str(tmp_path / "students.txt"), "--out", str(tmp_path / "out")]
    assert main(["course", *words, *given]) == 0
    assert told == ["Ada", "Bob"]


def test_what_a_teacher_forgets_is_a_line_and_nothing_is_written(words, tmp_path, capsys):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "students.txt").write_text("Ada\n../evil\n")
    there, out = str(tmp_path / "in"), ["--out", str(tmp_path / "out")]
    absent = str(tmp_path / "absent")
    for given in (
        ["course", *words, "--exercises", absent],
        ["course", *words, "--students", absent],
        ["grade", there, *words, "--exercises", absent],
        ["grade", there, *words],
        ["grade", absent, *words, "--secret", str(tmp_path / "students.txt")],
        ["grade", there, *words, "--secret", str(tmp_path / "students.txt")],  # has no folder
    ):
        assert main([*given, *out]) == 1
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert said[0].startswith(f"python -m attnbook {given[0]}: ")
    for given, says in (
        (["course", *words, "--secret", str(tmp_path / "empty")], "--secret must have at least"),
        (["grade", there, *words, "--secret", str(tmp_path / "empty")], "--secret must have at"),
        (["course", *words, "--students", str(tmp_path / "students.txt")], r"got '\.\./evil'"),
    ):
        with pytest.raises(SystemExit, match=says):
            main([*given, *out])
    for option, value, least in (
        ("workers", "0", 1),
        ("workers", "-1", 1),
        ("seconds", "0", 1),
        ("megabytes", "100", 1024),
    ):
        with pytest.raises(SystemExit):
            main(["grade", there, *words, *out, f"--{option}", value])
        assert f"--{option}: must be at least {least}, got {value}" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"in", "empty", "students.txt"}


def test_without_the_site_it_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="run make book first"):
        exercises.read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"requirements\.txt: run make book first"):
        installing.read(tmp_path)


@pytest.mark.site
def test_every_exercise_is_written_down():
    """Level, minutes, number and text of each; a program can mark them all."""
    read = exercises.read(WRITTEN)
    for path in (ROOT / "book").glob("*.md"):
        pattern = r"^`+\{exercise\}.*\n:label: exercise-(\S+)"
        labels = re.findall(pattern, path.read_text("utf8"), re.M)
        assert labels == [exercise.label for exercise in read.get(path.stem, [])]
    every = [exercise for chapter in read.values() for exercise in chapter]
    for exercise in every:
        assert exercise.level in ("easy", "warm-up", "core", "harder", "open")
        assert 5 <= exercise.minutes <= 90
        assert re.fullmatch(r"\d+\.\d+|\d+", exercise.number)
        assert exercise.title[0] != "("
        assert "$" not in exercise.text or "\\" in exercise.text or "−" not in exercise.text
    assert all(exercise.is_checked for exercise in every)


@pytest.mark.site
def test_no_release_of_a_chapter_holds_a_solution():
    for chapter, asked in exercises.read(WRITTEN).items():
        for exercise in asked:
            texts = [assignments.program(exercise, exercise.stub), assignments.task(exercise)]
            for other in asked:
                found = leaked("\n".join(texts), other) - lines_of(exercise.given)
                assert found == set(), (chapter, exercise.label, other.label)


WITHOUT = """\
import sys, pathlib, pytest


class Absent:
    def find_spec(name, *rest):
        if name.partition(".")[0] in ("torch", "triton", "numba", "matplotlib"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent)
for path in sorted(pathlib.Path().glob("*.py")):
    try:
        exec(path.read_text("utf8"), {})
    except pytest.skip.Exception:
        print(path.stem)
"""


@pytest.mark.site
def test_without_pytorch_only_the_tests_that_need_it_are_skipped(tmp_path, monkeypatch):
    """Every other test, and what is given beside it, is imported where NumPy alone is."""
    unsolved = types.SimpleNamespace(found=[])  # what is asserted does not matter here
    monkeypatch.setattr(assignments, "solved", lambda exercise, seed: unsolved)
    monkeypatch.setattr(assignments, "assertions", lambda exercise, right: ["pass"])
    found = exercises.read(WRITTEN)
    needing = ("fast_attention", "transformer")
    for exercise in (e for chapter in every_day(needing, found) for e in found[chapter]):
        if exercise.is_checked:
            code = f"{assignments.visible_test(exercise)}\n{exercise.given}"
            (tmp_path / f"{exercise.module}.py").write_text(code, "utf8")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fast_grouped", "fast_skip", "torch_weights"]


@pytest.mark.site
def test_solutions_of_a_chapter_pass_hidden_cases(capsys):
    """`python -m attnbook course --verify` does the same for all chapters."""
    asked = [e for e in exercises.read(WRITTEN)["single_head"] if e.is_checked]
    asked = every_day(asked[:4], asked)
    assert command.verify(asked, SECRET) == 0
    assert command.verify([dataclasses.replace(asked[0], answer="my_weights = len")], SECRET) == 1
    assert capsys.readouterr().err.startswith("single_head, weights: ")


RUN_EACH = """
import json, sys

for cells in json.load(sys.stdin):
    space = {}
    for code in cells:
        exec(code, space)
"""


@pytest.mark.site
def test_cells_of_a_chapter_pass_with_the_solution_and_once_more():
    """No name of a cell hides one that the check needs."""
    found = exercises.read(WRITTEN)
    for chapter in every_day(["models"], found):
        programs = []
        for exercise in found[chapter]:
            cells = notebooks.notebook([exercise], SECRET)["cells"]
            tests = [c["source"] for c in cells if c["id"].startswith(("visible", "hidden"))]
            programs.append([exercise.given, exercise.answer, exercise.check, *tests, *tests])
        # in a process of its own, as in a notebook: Triton interprets or compiles for a whole one
        python, given = [sys.executable, "-W", "error", "-c", RUN_EACH], json.dumps(programs)
        done = subprocess.run(python, input=given, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, f"{chapter}: {done.stderr[-2000:]}"


def falses(result):
    """Return how many parts of a result are False."""
    if isinstance(result, dict):
        result = [*result.values()]
    if isinstance(result, (list, tuple)):
        return sum(map(falses, result))
    return int(isinstance(result, (bool, np.bool)) and not result)


@pytest.mark.site
def test_no_part_of_a_solution_is_wrong_in_hidden_cases():
    found = exercises.read(WRITTEN)
    for chapter in every_day(["backpropagation"], found):
        for exercise in found[chapter]:
            if "check." not in "".join(exercise.calls):
                for secret in "abc":
                    right = judge.solved(exercise, hidden.seed_of(secret, exercise.label)).found
                    assert falses(right) == 0, exercise.label


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (True, "True"),
        (np.False_, "False"),
        (0.59, "0.59"),
        (3, "3"),
        ("right", "'right'"),
        ([True, (0.5,)], "[True, (0.5,)]"),
        ({"x": True, (1, 4): np.True_}, "{'x': True, (1, 4): True}"),
        ({"x": np.ones(2)}, None),
        ([np.float64(2)], None),
        (None, None),
    ],
)
def test_results_that_python_can_write(result, text):
    assert assignments.literal(result) == text


@pytest.mark.site
def test_every_check_can_fail_in_a_test():
    """What only prints lets every answer pass."""
    found = exercises.read(WRITTEN)
    for chapter in every_day([*found][::5], found):
        for exercise in found[chapter]:
            if exercise.calls and "check." not in "".join(exercise.calls):
                lines = assignments.assertions(exercise, judge.solved(exercise, 0).found)
                assert not any(line.startswith("print(") for line in lines), exercise.label
