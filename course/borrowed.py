"""Which of attnbook's own tests run in a package that has only some of its files."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attnbook"


def chosen(tests: Path, places: list[str], files: set[str]) -> dict[str, str]:
    """Return the files of tests in these places, without what asks for other files of the package.

    A test function that asks for one is cut out. A file whose other statements do, or which imports
    a helper that is not there, is left out, and so are the tests that want its fixtures.
    """
    found = {
        path: path.read_text("utf8")
        for place in places
        for path in (sorted((tests / place).rglob("*.py")) or [tests / place])
    }
    helpers = {path.stem for path in tests.rglob("*.py")}
    gone: set[str] = set()
    while True:
        lacking = (helpers - {path.stem for path in found}) | gone
        kept = {path: cut(text, files, lacking) for path, text in found.items()}
        for path, text in kept.items():
            if not text and path.name == "conftest.py":
                parts = [node for node, *_ in parts_of(found[path])]
                gone |= {node.name for node in parts if isinstance(node, ast.FunctionDef)}
        kept = {path: text for path, text in kept.items() if text}
        if kept == found:
            return {f"tests/{path.relative_to(tests)}": text for path, text in kept.items()}
        found = kept


def cut(text: str, files: set[str], lacking: set[str]) -> str:
    """Return a file of tests without those that want what is not there; empty if all of it does."""
    lines = text.splitlines(keepends=True)
    for node, first, asked, wanted in reversed(parts_of(text)):
        if asked <= files and not wanted & lacking:
            continue
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            return ""
        del lines[first : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines)).rstrip() + "\n"


@functools.cache
def parts_of(text: str) -> list[tuple[ast.stmt, int, set[str], set[str]]]:
    """Return the statements of a file, each with its first line and with what it wants."""
    lines, found = text.splitlines(keepends=True), []
    for node in ast.parse(text).body:
        first = first_line(node)
        own = "".join(lines[first : node.end_lineno])
        found.append((node, first, asks_for(own, node), wanted_by(node)))
    return found


def first_line(node: ast.stmt) -> int:
    """Return the line on which a statement or its first decorator begins, counted from 0."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1


def wanted_by(node: ast.stmt) -> set[str]:
    """Return the modules that a statement imports, and the fixtures that a test takes."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            found |= {alias.name.split(".")[0] for alias in part.names}
        elif isinstance(part, ast.ImportFrom):
            found.add((part.module or "").split(".")[0])
        elif isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
            found |= {argument.arg for argument in part.args.args}
    return found


def asks_for(text: str, tree: ast.AST) -> set[str]:
    """Return the files of the package that a statement imports or speaks of."""
    spoken = set(re.findall(r"\battnbook(?:\.\w+)+", text))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attnbook":
            spoken |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {file for name in spoken if (file := file_of(name))}


@functools.cache
def file_of(name: str) -> str:
    """Return the file of the package in which a dotted name begins; empty for the face."""
    path = PACKAGE
    for part in name.split(".")[1:]:
        inner = path / part if (path / part).is_dir() else path / f"{part}.py"
        if path.suffix or not inner.exists():
            break
        path = inner
    if path == PACKAGE:
        return ""
    path = path / "__init__.py" if path.is_dir() else path
    return f"attnbook/{path.relative_to(PACKAGE).as_posix()}"
