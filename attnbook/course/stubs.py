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

CHAPTERS = {
    "single_head": ("single_head",),
    "multi_head": ("multi_head",),
    "masking": ("masking",),
    "transformer": ("positions", "transformers"),
}
"""The rooms that a reader of each chapter writes."""

GIVEN = ("arrays", "plots.py", "kernels/__init__.py", "kernels/backends.py")
LATER = ("kernels/running_softmax.py",)
"""A file of a chapter that comes later, which the rooms above import."""

BESIDE = ("cases.py", "conftest.py", "oracle.py", "error_table.py")
"""What the tests of the rooms share."""

PROJECT = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "attnbook"
version = "0.0.1"
requires-python = ">=3.11"
dependencies = ["numpy>=2.0", "array-api-compat>=1.12"]

[project.optional-dependencies]
test = ["pytest>=9.1", "hypothesis>=6.100", "array-api-strict>=2.3", "torch>=2.5"]
plots = ["matplotlib>=3.9"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
filterwarnings = ["error"]
markers = ["gpu: needs a CUDA device"]
"""


def write(root: Path, folder: Path) -> list[Path]:
    """Write the empty package of the repository `root` into `folder`; return what it holds.

    Raises
    ------
    FileNotFoundError
        If `root` is not the repository.
    """
    package, tests = root / "attnbook", root / "tests"
    if not tests.is_dir():
        raise FileNotFoundError(f"there are no tests in {root}: run this in the repository")
    shutil.rmtree(folder, ignore_errors=True)
    rooms = {room: chapter for chapter, names in CHAPTERS.items() for room in names}
    texts: dict[str, str] = {}
    for given in GIVEN:
        for path in _files(package / given):
            texts[f"attnbook/{path.relative_to(package)}"] = path.read_text("utf8")
    for name, chapter in {**rooms, **dict.fromkeys(LATER, "fast_attention")}.items():
        for path in _files(package / name):
            text = emptied(path.read_text("utf8"), chapter)
            texts[f"attnbook/{path.relative_to(package)}"] = text
    texts["attnbook/__init__.py"] = face((package / "__init__.py").read_text("utf8"), {*texts})
    for name in (*rooms, *BESIDE):
        for path in _files(tests / name):
            text = path.read_text("utf8")
            if not _asks_for(text) - {*rooms, "arrays", "kernels", "plots"}:
                texts[f"tests/{path.relative_to(tests)}"] = text
    texts |= {"pyproject.toml": PROJECT, "README.md": _readme({*texts})}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf8")
    return [folder / name for name in texts]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def emptied(source: str, chapter: str) -> str:
    """Return a module whose functions raise NotImplementedError and name their chapter.

    Signatures and docstrings stay, and classes that hold weights. Functions with a leading
    underscore are left out, but for those that such a class calls.
    """
    tree, lines = ast.parse(source), source.splitlines()
    given = [node for node in tree.body if isinstance(node, ast.ClassDef) and _holds_weights(node)]
    called = {part.id for node in given for part in ast.walk(node) if isinstance(part, ast.Name)}
    kept: list[str] = []
    at = 0
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        kept += lines[at:first]
        at = node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef) and node.name not in called:
            kept += [] if node.name.startswith("_") else _stub(node, lines, chapter)
        elif isinstance(node, ast.ClassDef) and node not in given:
            kept += _class(node, lines, chapter)
        else:
            kept += lines[first:at]
    text = "\n".join([*kept, *lines[at:]]) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text).rstrip() + "\n"


def _holds_weights(node: ast.ClassDef) -> bool:
    return any("ArrayTree" in ast.unparse(base) for base in node.bases)


def _class(node: ast.ClassDef, lines: list[str], chapter: str) -> list[str]:
    """Return a class with stubs of its public methods."""
    kept: list[str] = []
    at = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    for part in node.body:
        first = min([part.lineno, *(d.lineno for d in getattr(part, "decorator_list", ()))]) - 1
        kept += lines[at:first]
        at = part.end_lineno or part.lineno
        if not isinstance(part, ast.FunctionDef):
            kept += lines[first:at]
        elif not part.name.startswith("_"):
            kept += _stub(part, lines, chapter)
    return kept


def _stub(node: ast.FunctionDef, lines: list[str], chapter: str) -> list[str]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    body = node.body[0]
    margin = " " * (node.col_offset + 4)
    ends = f'{margin}raise NotImplementedError("chapter {chapter}")'
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


def _asks_for(test: str) -> set[str]:
    """Return the rooms of the package that a file of tests speaks of."""
    rooms = {path.name.removesuffix(".py") for path in Path(__file__).parents[1].iterdir()}
    spoken = set(re.findall(r"\battnbook\.(\w+)", test))
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attnbook":
            inner = (node.module or "").split(".")[1:2]
            spoken |= {*(inner or [alias.name for alias in node.names])}
    return spoken & rooms


def _readme(files: set[str]) -> str:
    rows = []
    for chapter, rooms in CHAPTERS.items():
        written = ", ".join(f"`attnbook/{room}`" for room in rooms)
        tested = (room for room in rooms if any(f"tests/{room}/" in name for name in files))
        tests = " ".join(f"tests/{room}" for room in tested)
        rows.append(f"| {chapter} | {written} | `pytest {tests}` |")
    return "\n".join(
        [
            "# attnbook, written by you",
            "",
            "Each function has its signature and its docstring, and raises NotImplementedError.",
            "Write it when you have read its chapter, and run the tests of its room, which are",
            "those of attnbook itself. `attnbook/arrays` is given: it checks arguments and moves",
            "arrays. A function whose name ends in `_of` is the formula without these checks.",
            "",
            "    pip install -e '.[test,plots]'",
            "",
            "| chapter | you write | its tests |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
