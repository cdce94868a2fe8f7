"""The rooms of the package: each imports rooms below it alone, and no name hides a module."""

import ast
import functools
import graphlib
import importlib
import pathlib
import pkgutil
import re

import pytest

import attnbook

ROOT = pathlib.Path(attnbook.__file__).parent
FLOORS = (
    {"arrays"},
    {"compilers", "normalization", "positions"},
    {"kernels", "plots"},
    {"single_head", "masking"},
    {"multi_head", "hashing"},
    {"linear_attention"},
    {"transformers", "sketch"},
    {"data", "decoding", "distributed"},
    {"training"},
    {"models"},
    {"nn", "check"},
)
"""A room imports rooms of the floors below its own. The face, `attnbook` itself, stands above."""

FACES = {"__init__", "__main__"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def statements(path: pathlib.Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the statements of a file that import something."""
    found = ast.walk(tree_of(path))
    return [node for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]


@functools.cache
def imports(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return the modules of the package that a file imports, each with the name taken from it."""
    found = []
    for node in statements(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attnbook":
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                is_module = (ROOT.parent / module.replace(".", "/")).with_suffix(".py").exists()
                is_module |= (ROOT.parent / module.replace(".", "/")).is_dir()
                found.append((module if is_module else node.module, alias.name))
        elif isinstance(node, ast.Import):
            found += [(a.name, "") for a in node.names if a.name.split(".")[0] == "attnbook"]
    return found


FILES = {path: path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}


def test_every_room_has_a_floor():
    assert set(FILES.values()) - FACES == set().union(*FLOORS)


@pytest.mark.parametrize("room", sorted(set(FILES.values()) - FACES))
def test_a_room_imports_rooms_below_it_alone(room):
    below = set()
    for floor in FLOORS:
        if room in floor:
            break
        below |= floor
    for path in (path for path, own in FILES.items() if own == room):
        for module, _ in imports(path):
            other = room_of(module)
            if other == "" and room in ("check", "data"):
                continue  # they stand above all that the face shows
            assert other in below | {room}, f"{path.relative_to(ROOT)} imports {module}"


def test_the_package_imports_nothing_that_only_the_repository_has():
    beside = {path.name for path in ROOT.parent.iterdir() if path.is_dir()} - {ROOT.name}
    found = set()
    for path in FILES:
        for node in statements(path):
            names = [alias.name for alias in node.names]
            modules = names if isinstance(node, ast.Import) else [node.module or ""]
            tops = {module.partition(".")[0] for module in modules}
            found |= {(path.name, top) for top in tops & beside}
    assert found == {("__main__.py", "course")}  # it says where to run what needs the repository


def test_no_private_name_crosses_rooms():
    for path, room in FILES.items():
        for module, name in imports(path):
            if room_of(module) != room:
                parts = [*module.split("."), name]
                assert not any(part.startswith("_") for part in parts), (path.name, module, name)


def test_no_private_attribute_crosses_rooms():
    used, own = {}, {}
    for path, room in FILES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                is_set = isinstance(node.ctx, ast.Store)
                (own if is_set else used).setdefault(room, set()).add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.setdefault(room, set()).add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.setdefault(room, set()).add(node.id)
    for room, names in used.items():
        elsewhere = set().union(*(own[other] for other in own if other != room))
        crossing = {n for n in names & elsewhere - own.get(room, set()) if not n.startswith("__")}
        assert crossing == set(), f"{room} uses {crossing} of another room"


def test_no_chapter_uses_a_private_name():
    private = re.compile(
        r"^.*(?:from attnbook\S* import .*\b_|\b(?:ab|attnbook)[.\w]*\._)[a-z].*$", re.M
    )
    pages = (ROOT.parent / "book").glob("*.md")
    assert {p.name: found for p in pages if (found := private.findall(p.read_text("utf8")))} == {}


def test_no_module_imports_itself_by_a_circle():
    graph = {}
    for path in FILES:
        own = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        graph[own.removesuffix(".__init__")] = {
            module for module, _ in imports(path) if module != "attnbook"
        }
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_public_name_hides_a_module():
    for info in pkgutil.walk_packages(attnbook.__path__, "attnbook.", onerror=lambda name: None):
        parent, _, name = info.name.rpartition(".")
        package = importlib.import_module(parent)
        if name in getattr(package, "__all__", ()):
            assert getattr(package, name) is importlib.import_module(info.name), info.name
