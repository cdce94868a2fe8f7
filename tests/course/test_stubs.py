"""The empty package: nothing of its functions is left, and its tests are those of attnbook."""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from course import stubs

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
    raise NotImplementedError("plain is not written yet: chapter masking")


@decorated
def with_words(
    x: float,
) -> float:
    """Return x."""
    raise NotImplementedError("with_words is not written yet: chapter masking")


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
        raise NotImplementedError("method is not written yet: chapter masking")


def last_of(x):
    raise NotImplementedError("last_of is not written yet: chapter masking")
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    stubs.write(ROOT, folder)
    return folder


def run(folder, *words, path=None):
    """Run Python in a folder; its pytest loads no plugins, as in a student's environment."""
    own = {"PYTHONPATH": str(path or folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command, environment = [sys.executable, *words], {**os.environ, **own}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_no_other_folder_is_deleted(tmp_path):
    folder = tmp_path / "package"
    for name in ("pyproject.toml", "mine.py"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text('name = "attnbook"\nversion = "0.1.0"\n')
        with pytest.raises(FileExistsError, match="package must be an empty package or not there"):
            stubs.write(ROOT, folder)
        assert (folder / name).exists()
        shutil.rmtree(folder)
    (tmp_path / "tests").mkdir()
    with pytest.raises(FileNotFoundError, match="root must be the repository of attnbook, got"):
        stubs.write(tmp_path, folder)
    folder.mkdir()
    stubs.write(ROOT, folder)
    (folder / "old").write_text("")
    stubs.write(ROOT, folder)
    assert (folder / "README.md").exists()
    assert not (folder / "old").exists()


def test_a_module_is_emptied():
    assert stubs.emptied(SOURCE, "masking") == EMPTY


def written(package, chapter):
    """Return the files that a reader of a chapter writes."""
    places = [package / "attnbook" / name for name in stubs.CHAPTERS[chapter]]
    files = [file for place in places for file in (sorted(place.rglob("*.py")) or [place])]
    return [f for f in files if f.relative_to(package / "attnbook").as_posix() not in stubs.GIVEN]


def test_no_function_has_a_body(package):
    seen = 0
    for chapter in stubs.CHAPTERS:
        for path in written(package, chapter):
            tree = ast.parse(path.read_text("utf8"))
            classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
            called = {c.id for node in classes for c in ast.walk(node) if isinstance(c, ast.Name)}
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name not in called:
                    last = node.body[1:] if ast.get_docstring(node) else node.body
                    says = f"{node.name} is not written yet: chapter {chapter}"
                    stub = f"raise NotImplementedError({says!r})"
                    assert list(map(ast.unparse, last)) == [stub], node.name
                    seen += 1
    assert seen > 150


def test_it_is_imported_and_says_which_chapter_is_missing(package):
    code = "import numpy as np, attnbook; print(attnbook.__file__); "
    code += "import attnbook.decoding, attnbook.hashing, attnbook.sketch; "
    code += "import attnbook.training.backpropagation, attnbook.training.schedules; "
    done = run(package, "-c", code + "attnbook.softmax(np.ones(3))")
    assert done.stdout.startswith(str(package))
    assert done.stderr.strip().endswith(
        "NotImplementedError: softmax is not written yet: chapter single_head"
    )
    names = {path.name for path in (package / "attnbook").iterdir()}
    assert not names & {"check", "nn", "models", "data", "course"}
    rungs = {path.name for path in (package / "attnbook/kernels").glob("*.py")}
    assert rungs == {
        *("__init__.py", "backends.py", "running_softmax.py", "score_tiles.py"),
        *("naive.py", "in_place.py", "tiled.py", "autograd.py", "verification.py"),
        *("recorder.py", "paging.py"),
    }


def test_classes_that_hold_weights_are_given(package):
    """They check what is put into them, before the first function is written."""
    code = "import numpy as np, attnbook as ab; x = np.ones((2, 2)); "
    done = run(package, "-c", code + "ab.MultiHeadWeights(x, x, np.ones((3, 3)), n_heads=3)")
    assert done.stderr.strip().splitlines()[-1].startswith("ValueError: ")


def test_untouched_tests_name_what_is_to_be_written(package):
    done = run(package, "-m", "pytest", "-p", "no:cacheprovider", "tests/single_head")
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    reason = r"^E +NotImplementedError: \w+ is not written yet: chapter single_head$"
    assert re.search(reason, done.stdout, re.M)
    assert "requirements.txt" in (package / "README.md").read_text("utf8")


def test_one_environment_has_both_packages(package, tmp_path):
    """The finished one is installed; inside the folder the student's own comes first."""
    code = "import attnbook; print(attnbook.__file__)"
    for folder, found in ((package, package), (tmp_path, ROOT)):
        done = run(folder, "-c", code, path=ROOT)  # as if attnbook were installed
        assert done.stdout.startswith(str(found))
    test = package / "tests/test_where.py"
    test.write_text(
        f"{code}\n\n\ndef test_it():\n    assert attnbook.__file__.startswith({str(package)!r})"
    )
    done = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test), path=ROOT)
    test.unlink()
    assert done.returncode == 0, done.stdout


def test_what_all_tests_share_is_there(package):
    assert all((package / "tests" / f"{name}.py").is_file() for name in stubs.BESIDE)


def test_nothing_of_the_site_and_of_browsers_is_there(package):
    texts = [path.read_text("utf8").lower() for path in (package / "tests").rglob("*.py")]
    assert not any(word in text for text in texts for word in ("chromium", "import visits"))
    assert not (package / "tests/visits.py").exists()


def test_the_readme_names_tests_that_there_are(package):
    text = (package / "README.md").read_text("utf8")
    named = re.findall(r"tests/\w+", text)
    assert {"tests/single_head", "tests/multi_head", "tests/masking"} < set(named)
    assert all((package / name).is_dir() for name in named)


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "--maxfail=0")
FEW = (
    "single_head/test_softmax.py::test_strided_arrays_and_foreign_byte_order",
    "multi_head/test_multi_head.py::test_vmap",
    "masking/test_conventions.py::test_to_sdpa_means_the_same_to_torch",
    "normalization/test_normalization.py::test_rms_norm_is_layer_norm_of_rows_whose_mean_is_0",
    "training/test_cross_entropy.py::test_what_the_mask_leaves_out_may_be_anything",
    "training/test_schedules.py::test_inverse_square_root_is_that_of_the_paper",
    "decoding/test_sampling.py::test_a_sequence_draws_the_same_whatever_its_neighbours",
    "single_head/test_softmax.py::test_repr_and_identity",  # of the running softmax
    "hashing/test_buckets.py::test_buckets_cannot_be_changed",
    "sketch/test_estimators.py::test_scores_have_the_shape_of_the_candidates",
    "sketch/test_sketch_function.py::test_gradients_flow_through_the_scores",
)
"""A short test of each chapter."""


def fill(package, folder, chapters):
    """Copy the empty package, with the book's own code in the place of these chapters."""
    shutil.copytree(package, folder)
    for chapter in chapters:
        for path in written(folder, chapter):
            name = path.relative_to(folder)
            path.write_text((ROOT / name).read_text("utf8"), "utf8")


def counts(done):
    """Return how many tests passed, and how many did not."""
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return found.get("passed", 0), found.get("failed", 0) + found.get("error", 0)


def test_the_short_tests_are_there(package):
    for place in FEW:
        file, name = place.split("::")
        assert f"def {name}(" in (package / "tests" / file).read_text("utf8")


@pytest.mark.weekly
def test_a_test_of_each_chapter_passes_when_it_is_filled_in(package, tmp_path):
    chosen = [f"tests/{place}" for place in FEW]
    fill(package, tmp_path / "filled", stubs.CHAPTERS)
    done = run(tmp_path / "filled", *PYTEST, *chosen)
    passed, failed = counts(done)
    assert passed >= len(FEW), done.stdout
    assert failed == 0, done.stdout
    done = run(package, *PYTEST, *chosen[:-2])  # without those of `sketch` that cannot be read yet
    passed, failed = counts(done)
    assert passed == 0, done.stdout
    assert failed >= len(FEW) - 2, done.stdout


@pytest.mark.weekly
@pytest.mark.parametrize("chapter", stubs.CHAPTERS)
def test_all_tests_of_a_chapter(chapter, package, tmp_path):
    """They pass when all chapters are filled in, and not when this one alone is empty."""
    files = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    places = stubs.tests_of(chapter, files)
    fill(package, tmp_path / "whole", stubs.CHAPTERS)
    passed, failed = counts(run(tmp_path / "whole", *PYTEST, *places))
    assert passed > 5
    assert failed == 0
    fill(package, tmp_path / "without", set(stubs.CHAPTERS) - {chapter})
    passed_without, failed = counts(run(tmp_path / "without", *PYTEST, *places))
    assert failed
    assert passed_without < passed / 2
