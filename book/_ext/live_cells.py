"""Read the cells of a chapter: which can run without PyTorch, and the stub of an exercise."""

import ast
import builtins
import re
from collections.abc import Iterable

ABSENT = {
    "torch": "PyTorch",
    "attnbook.nn": "PyTorch",
    "cupy": "CuPy",
    "numba": "Numba",
    "triton": "Triton",
    "safetensors": "safetensors",
    "tqdm": "tqdm",
    "subprocess": "other processes",
}
"""What a browser has not, and how a reader calls it."""

GIVEN = {*dir(builtins), "display", "__name__"}


def imported(tree: ast.AST) -> set[str]:
    """Return the packages that a cell imports, those of a chapter's room included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.partition(".")[0] for name in found} | found


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a cell leaves behind, those inside its functions too."""
    names = {node.id for node in ast.walk(tree) if _is_name(node, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def read(tree: ast.Module) -> set[str]:
    """Return the names that a cell needs from cells before it."""
    used = {node.id for node in ast.walk(tree) if _is_name(node, ast.Load)}
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return used - bound(tree) - arguments - GIVEN


def missing(source: str, known: Iterable[str]) -> str:
    """Return what a cell needs and a browser has not, or nothing if the cell runs there.

    Before it ran cells that left the names `known`.
    """
    tree = ast.parse(source)
    needs = imported(tree) | read(tree)
    found = dict.fromkeys(words for name, words in ABSENT.items() if name in needs)
    if found:
        return " and ".join(found)
    return "" if read(tree) <= set(known) else "a cell above that does not run there either"


def runs_here(source: str, known: Iterable[str]) -> bool:
    """Tell whether a cell runs in a browser after cells that left the names `known`."""
    return not missing(source, known)


def _is_name(node: ast.AST, context: type) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def stub(solution: str, words: list[str], blocks: list[str]) -> str | None:
    """Return the empty answer of an exercise, or None if there is nothing to write or to check.

    Parameters
    ----------
    solution : str
        The code of its solution.
    words : list of str
        What its text has in code letters, such as ``my_softmax(s)`` and
        ``check.softmax(my_softmax)``.
    blocks : list of str
        The blocks of code in its text, which check the answer.
    """
    own = _own_checks(solution, words)
    text = " ".join([*words, *blocks, *map(ast.unparse, own)])
    known = heads(solution)
    parts = [head for name, head in known.items() if _mentions(text, name)]
    numbers = [arg.id for call in own for arg in call.args if _is_name(arg, ast.Load)]
    numbers = [name for name in dict.fromkeys(numbers) if name not in known]
    if numbers:
        parts.append("\n".join(f"{name} = ..." for name in numbers))
    checks = list(dict.fromkeys(word for word in words if _is_check(word)))
    if not checks and not blocks:
        checks = [
            ast.unparse(node)
            for node in ast.parse(solution).body
            if isinstance(node, ast.Expr) and _is_check(ast.unparse(node))
        ]
    last = -1 if own else len(checks) - 1
    checks = [check if i == last else f"display({check})" for i, check in enumerate(checks)]
    checks += [f"print({ast.unparse(call)})" for call in own]
    if not parts and not checks and not blocks:
        return None
    parts = parts or ["# your answer"]
    return "\n\n\n".join([*parts, "\n".join([*map(str.strip, blocks), *checks])]).rstrip()


def _own_checks(solution: str, words: list[str]) -> list[ast.Call]:
    """Return the calls of functions `check_…` of the chapter, which must not show the answer.

    Their arguments are those that the text names; else a name stays, and a value is left open.
    """
    found = {}
    for call in (node for text in [*words, solution] for node in _calls(text)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name.startswith("check_") and call.args:
            call.args = [arg if _is_name(arg, ast.Load) else ast.Constant(...) for arg in call.args]
            found.setdefault(name, call)
    asked = {call.func.id for call in _calls(solution) if isinstance(call.func, ast.Name)}
    return [call for name, call in found.items() if name in asked]


def _calls(text: str) -> list[ast.Call]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return []


def heads(solution: str) -> dict[str, str]:
    """Return the functions and classes of a solution by name, without what they do."""
    body = ast.parse(solution).body
    return {n.name: _head(n) for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){name}\b", text) is not None


def _is_check(word: str) -> bool:
    try:
        call = ast.parse(word, mode="eval").body
    except SyntaxError:
        return False
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and _is_name(call.func.value, ast.Load)
        and call.func.value.id == "check"
        and bool(call.args)
    )


def _head(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a function without what it does, a class with its methods."""
    if isinstance(node, ast.FunctionDef):
        return f"def {node.name}({ast.unparse(node.args)}):\n    ..."
    bases = ", ".join(map(ast.unparse, node.bases))
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    methods = [_head(part) for part in node.body if isinstance(part, ast.FunctionDef)]
    body = "\n\n".join(methods) or "..."
    return head + "\n" + "\n".join(f"    {line}" if line else "" for line in body.splitlines())
