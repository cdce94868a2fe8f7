"""The empty package: nothing of its functions is left, and its tests are those of attnbook."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from attnbook.course import stubs

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = '''\
"""A module."""

from attnbook.arrays.weights import ArrayTree

LIMIT = 3


def plain(x, y=1):
    # how it is done
    return _inner(x) + y


@decorated
def with_words(
    x: float,
) -> float:
    """Return x."""
    y = x
    return y


def _inner(x):
    return x


def _used(x):
    return x


class Weights(ArrayTree):
    def twice(self):
        return _used(2)


class Other:
    """Another."""

    size = 1

    def method(self):
        """Do it."""
        return self._hidden()

    def _hidden(self):
        return 1


def last_of(x):
    return x
'''
EMPTY = '''\
"""A module."""

from attnbook.arrays.weights import ArrayTree

LIMIT = 3


def plain(x, y=1):
    raise NotImplementedError("chapter masking")


@decorated
def with_words(
    x: float,
) -> float:
    """Return x."""
    raise NotImplementedError("chapter masking")


def _used(x):
    return x


class Weights(ArrayTree):
    def twice(self):
        return _used(2)


class Other:
    """Another."""

    size = 1

    def method(self):
        """Do it."""
        raise NotImplementedError("chapter masking")


def last_of(x):
    raise NotImplementedError("chapter masking")
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    stubs.write(ROOT, folder)
    return folder


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_module_is_emptied():
    assert stubs.emptied(SOURCE, "masking") == EMPTY


def test_no_function_has_a_body(package):
    seen = 0
    for chapter, rooms in stubs.CHAPTERS.items():
        for room in rooms:
            for path in (package / "attnbook" / room).rglob("*.py"):
                for node in ast.parse(path.read_text("utf8")).body:
                    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                        last = node.body[1:] if ast.get_docstring(node) else node.body
                        stub = f"raise NotImplementedError('chapter {chapter}')"
                        assert list(map(ast.unparse, last)) == [stub], node.name
                        seen += 1
    assert seen > 80


def test_it_is_imported_and_says_which_chapter_is_missing(package):
    code = "import numpy as np, attnbook; print(attnbook.__file__); attnbook.softmax(np.ones(3))"
    done = run(package, "-c", code)
    assert done.stdout.startswith(str(package))
    assert done.stderr.strip().endswith("NotImplementedError: chapter single_head")
    names = {path.name for path in (package / "attnbook").iterdir()}
    assert not names & {"check", "nn", "models", "training", "course"}
    assert {path.name for path in (package / "attnbook/kernels").glob("*.py")} == {
        *("__init__.py", "backends.py", "running_softmax.py")
    }


def test_the_readme_names_tests_that_there_are(package):
    text = (package / "README.md").read_text("utf8")
    named = re.findall(r"tests/\w+", text)
    assert {"tests/single_head", "tests/multi_head", "tests/masking"} < set(named)
    assert all((package / name).is_dir() for name in named)


def test_the_tests_of_a_room_pass_when_it_is_filled_in(package, tmp_path):
    folder = tmp_path / "filled"
    shutil.copytree(package, folder)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    tests = ("tests/multi_head/test_multi_head.py", "-k", "split_and_merge and numpy")
    heads = "attnbook/multi_head/heads.py"
    (folder / heads).write_text((ROOT / heads).read_text("utf8"), "utf8")
    done = run(folder, *words, *tests)
    assert done.returncode == 0, done.stdout
