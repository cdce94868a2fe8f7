"""The empty package: attnbook with stubs in the place of its functions, for a student to fill in.

A student who fills in a room passes the tests of that room, which are those of attnbook itself.
What the functions stand on is given: the checks of arguments, the classes that hold weights, and
how an implementation is chosen. The rest of the package, whose code would give the functions away,
is not there.
"""

import ast
import re
import shutil
from pathlib import Path

from course import borrowed
from course.borrowed import first_line

CHAPTERS = {
    "single_head": ("single_head", "kernels/naive.py"),
    "multi_head": ("multi_head",),
    "masking": ("masking",),
    "transformer": ("normalization", "positions", "transformers"),
    "backpropagation": ("training/backpropagation", "training/loss.py"),
    "training": ("training/optimizers.py", "training/schedules.py"),
    "decoding": ("decoding",),
    "fast_attention": (
        "kernels/running_softmax.py",
        "kernels/in_place.py",
        "kernels/score_tiles.py",
        "kernels/tiled.py",
        "kernels/paging.py",
    ),
    "hashing": ("hashing",),
    "estimators": ("sketch/estimators.py", "sketch/tails.py"),
    "sketch": ("sketch/reference_query.py", "sketch/functional.py"),
}
"""What a reader of each chapter writes: rooms, and files of a room that several chapters fill."""

TESTS = {
    "single_head": ("single_head",),
    "backpropagation": (
        "training/test_backpropagation.py",
        "training/test_backpropagation_of_heads.py",
        "training/test_cross_entropy.py",
    ),
    "training": ("training/test_optimizers.py", "training/test_schedules.py"),
    "fast_attention": ("kernels/test_kernels.py",),
    "estimators": ("sketch/test_estimators.py", "sketch/test_tails.py"),
    "sketch": (
        "sketch/test_sketch_function.py",
        "sketch/test_sketch_attention.py",
        "sketch/test_probes.py",
    ),
}
"""The tests of chapters that write files of a room; those of the others are their rooms'."""

GIVEN = (
    *("arrays", "compilers", "linear_attention", "plots.py"),
    *(
        "kernels/__init__.py",
        "kernels/backends.py",
        "kernels/recorder.py",
        "kernels/autograd.py",
        "kernels/verification.py",
    ),
    *("training/__init__.py", "training/settings.py", "training/structure.py"),
    *("hashing/__init__.py", "hashing/projections.py", "hashing/numba_signatures.py"),
    *("hashing/given_hash.py", "hashing/table_plan.py", "sketch"),
)
"""What is there from the start, but for what a chapter writes."""

LEFT_OUT = re.compile(r"cuda|triton|numba_chunks|test_state_file")
"""Names of files for machines that the chapters here do not need, and of a test of old files."""

BESIDE = ("cases", "conftest", "oracle", "error_table", "cupy_on_cpu")
"""Modules that the tests of the rooms share."""

OWN = 'name = "attnbook"\nversion = "0.0.1"\n'
"""What tells a folder with an empty package, which may be deleted."""

PROJECT = f"""\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
{OWN}\
requires-python = ">=3.11"
dependencies = ["numpy>=2.0", "array-api-compat>=1.12"]

[tool.pytest.ini_options]
addopts = "--exitfirst --tb=short"
testpaths = ["tests"]
pythonpath = ["."]
filterwarnings = ["error"]
markers = ["gpu: needs a CUDA device"]
"""

REQUIREMENTS = """\
numpy>=2.0
array-api-compat>=1.12
pytest>=9.1
hypothesis>=6.100
array-api-strict>=2.3
torch>=2.5
mpmath>=1.3
transformers>=4.50
numba>=0.61
matplotlib>=3.9
"""


def write(root: Path, folder: Path) -> list[Path]:
    """Write the empty package of the repository `root` into `folder`; return what it holds.

    Raises
    ------
    FileNotFoundError
        If `root` is not the repository.
    FileExistsError
        If `folder` holds anything else than an empty package.
    """
    package, tests = root / "attnbook", root / "tests"
    if not is_repository(root):
        raise FileNotFoundError(f"root must be the repository of attnbook, got {root}")
    if folder.exists() and any(folder.iterdir()) and not _is_own(folder):
        raise FileExistsError(f"{folder} must be an empty package or not there, got other files")
    texts = {"pyproject.toml": PROJECT}  # written first: it says what the folder is
    texts["requirements.txt"] = REQUIREMENTS
    for given in GIVEN:
        for path in _files(package / given):
            texts[f"attnbook/{path.relative_to(package)}"] = path.read_text("utf8")
    for chapter, written in CHAPTERS.items():
        for path in (path for name in written for path in _files(package / name)):
            name = f"attnbook/{path.relative_to(package)}"
            if path.relative_to(package).as_posix() not in GIVEN:
                texts[name] = emptied(path.read_text("utf8"), chapter)
    rungs = texts["attnbook/kernels/__init__.py"]
    texts["attnbook/kernels/__init__.py"] = re.sub(
        r'    Kernel\("(\w+)",.*\n',
        lambda rung: rung[0] if f"attnbook/kernels/{rung[1]}.py" in texts else "",
        rungs,
    )
    texts["attnbook/__init__.py"] = face((package / "__init__.py").read_text("utf8"), {*texts})
    rooms = sorted({name.split("/")[0] for written in CHAPTERS.values() for name in written})
    found = borrowed.chosen(tests, [*rooms, *(f"{name}.py" for name in BESIDE)], {*texts})
    texts |= {name: text for name, text in found.items() if not LEFT_OUT.search(name)}
    texts["README.md"] = _readme({*texts})
    if folder.exists():
        shutil.rmtree(folder)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf8")
    return [folder / name for name in texts]


def is_repository(root: Path) -> bool:
    """Return whether a folder has the package and its tests."""
    is_there = ((root / "tests" / f"{name}.py").is_file() for name in BESIDE)
    return (root / "attnbook/arrays").is_dir() and all(is_there)


def _is_own(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    return project.is_file() and OWN in project.read_text("utf8", errors="replace")


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.rglob("*.py")) if not LEFT_OUT.search(file.name)]


def emptied(source: str, chapter: str) -> str:
    """Return a module whose functions raise NotImplementedError and name their chapter.

    Signatures and docstrings stay, and classes that hold weights. Functions with a leading
    underscore are left out, but for those that such a class calls.
    """
    tree, lines = ast.parse(source), source.splitlines()
    given: list[ast.stmt] = [node for node in tree.body if _holds_weights(node)]
    called = {part.id for node in given for part in ast.walk(node) if isinstance(part, ast.Name)}
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    given += [node for node in functions if node.name in called]

    def written(node: ast.stmt) -> list[str]:
        if isinstance(node, ast.FunctionDef) and node not in given:
            is_public = not node.name.startswith("_") or node.name.startswith("__")
            return _stub(node, lines, chapter) if is_public else []
        if isinstance(node, ast.ClassDef) and node not in given:
            return between(node.body, first_line(node))
        return lines[first_line(node) : node.end_lineno]

    def between(body: list[ast.stmt], at: int) -> list[str]:
        """Return the lines from `at` to the end of the last statement, functions as stubs."""
        kept: list[str] = []
        for node in body:
            kept += [*lines[at : first_line(node)], *written(node)]
            at = node.end_lineno or node.lineno
        return kept

    text = "\n".join(between(tree.body, 0)) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text).rstrip() + "\n"


def _holds_weights(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        name.endswith("Weights") for name in (node.name, *map(ast.unparse, node.bases))
    )


def _stub(node: ast.FunctionDef, lines: list[str], chapter: str) -> list[str]:
    first, body = first_line(node), node.body[0]
    margin = " " * (node.col_offset + 4)
    ends = f'{margin}raise NotImplementedError("{node.name} is not written yet: chapter {chapter}")'
    if ast.get_docstring(node) is not None:
        return [*lines[first : body.end_lineno], ends]
    head = lines[first : body.lineno - 1]
    while not head[-1].strip() or head[-1].lstrip().startswith("#"):  # it may say how it is done
        head.pop()
    return [*head, ends]


def face(source: str, files: set[str]) -> str:
    """Return the `__init__` of the package, which shows what is in these files alone."""
    tree = ast.parse(source)
    shown: list[str] = []
    imports = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            base = (node.module or "").replace(".", "/")
            names = [
                alias
                for alias in node.names
                if f"{base}.py" in files
                or (f"{base}/__init__.py" in files and base != "attnbook")
                or f"{base}/{alias.name}/__init__.py" in files
            ]
            if names:
                imports.append(ast.unparse(ast.ImportFrom(node.module, names, 0)))
                shown += [alias.asname or alias.name for alias in names]
    listed = "".join(f'    "{name}",\n' for name in sorted(shown))
    words = '"""Attention from a dot product upwards: the package that you write."""'
    return "\n".join([words, "", *imports, "", f"__all__ = [\n{listed}]", ""])


def tests_of(chapter: str, files: set[str]) -> list[str]:
    """Return the places of a chapter's tests that are among `files`."""
    places = (f"tests/{name}" for name in TESTS.get(chapter, CHAPTERS[chapter]))
    return [place for place in places if any(file.startswith(place) for file in files)]


def _readme(files: set[str]) -> str:
    rows = []
    for chapter, written in CHAPTERS.items():
        places = ", ".join(f"`attnbook/{name}`" for name in written)
        rows.append(f"| {chapter} | {places} | `pytest {' '.join(tests_of(chapter, files))}` |")
    return "\n".join(
        [
            "# attnbook, written by you",
            "",
            "Each function has its signature and its docstring, but raises NotImplementedError.",
            "Write the function when you have read its chapter, and run the tests of the chapter,",
            "which are those of attnbook itself. The tests stop at the first failure, which names",
            "the function that you have not written yet; `pytest --maxfail=0 PATH` runs all tests",
            "of a path. `attnbook/arrays` is given: it checks arguments and moves arrays. A",
            "function whose name ends in `_of` is the formula without these checks.",
            "",
            "    pip install -r requirements.txt",
            "",
            "Do not install this folder. Inside it, `pytest` and `python` find your own package.",
            "Everywhere else, the same environment finds the attnbook that the assignments use.",
            "",
            "| chapter | you write | its tests |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
