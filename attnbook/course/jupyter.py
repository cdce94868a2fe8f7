"""Code as Jupyter runs it, turned into code that Python reads."""

import ast
import re
import warnings

UNREADABLE = SyntaxError, ValueError, RecursionError, MemoryError
"""What Python raises where it cannot read a program, or a sum of a thousand terms is too deep."""

CELL_MAGIC = re.compile(r"\A((?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*)%%(\S+)[^\n]*")
"""The first line of a cell that begins with ``%%time``, and what may stand above it."""

LINE_MAGIC = re.compile(r"get_ipython\(\)\.run_line_magic\('(?:time|prun)', (.+)\)$", re.M)
"""What IPython makes of ``%time x = f()``: of these magics, too, the statement itself is run."""

OTHER_LANGUAGES = {
    *("!", "sx", "system", "bash", "sh", "cmd", "script", "perl", "ruby", "pypy", "python2"),
    *("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"),
}
"""Magics of a cell whose text is no Python; whatever else stands below one is run."""

SHOWS = re.compile(r"^\s*(?:[\w, ]+=\s*)?[%!].*|^.*\?\s*$", re.M)
"""A line that IPython reads and Python does not."""


def as_python(code: str) -> str:
    """Return code in which IPython's syntax is transformed as IPython transforms it.

    Code that Python reads stays as it is. Of a cell below ``%%time`` or another magic of a whole
    cell, the cell is what remains, so that it runs; lines keep their numbers.

    Raises
    ------
    ImportError
        If the code has IPython's syntax, and IPython is not installed.
    """
    code = below_magic(code)
    shows = SHOWS.search(code)
    if is_python(code) or (shows is None and not code[:1].isspace() and ">>>" not in code):
        return code
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError as error:
        line = (shows[0] if shows else code).strip().partition("\n")[0][:80]
        text = f"`{line}` is IPython's syntax, and IPython is not installed where this is graded"
        raise ImportError(text) from error
    try:
        changed = TransformerManager().transform_cell(code)
        return LINE_MAGIC.sub(lambda magic: ast.literal_eval(magic[1]), changed)
    except (*UNREADABLE, RuntimeError):  # it gives up where there are hundreds of magics
        return code


def below_magic(code: str) -> str:
    """Return what Python runs of a cell: what stands below its magics, if that is Python."""
    while magic := CELL_MAGIC.match(code):
        if magic[2] in OTHER_LANGUAGES:
            return ""
        code = magic[1] + code[magic.end() :]
    return code


def only_defines(code: str) -> bool:
    """Return whether a cell imports and defines functions, and does nothing else but magics."""
    try:
        body = ast.parse(SHOWS.sub("", below_magic(code))).body
    except UNREADABLE:
        return False
    return all(isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)) for node in body)


def imports_of(code: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the statements of a cell that import, beside any others."""
    try:
        body = ast.parse(SHOWS.sub("", below_magic(code))).body
    except UNREADABLE:
        return []
    return [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]


def with_imports(code: str, others: list[ast.Import | ast.ImportFrom]) -> str:
    """Return code below those imports of other cells that bind what it reads and nowhere binds."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except UNREADABLE:
        return code
    names = [node for node in nodes if isinstance(node, ast.Name)]
    wanted = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    wanted -= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    inside = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    wanted -= {name for node in inside for name in _bound(node)}
    above = {ast.unparse(node): None for node in others if wanted.intersection(_bound(node))}
    return "\n".join([*above, code])


def _bound(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]


def is_python(code: str) -> bool:
    """Return whether Python can read this."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is odd in a literal
            ast.parse(code)
    except UNREADABLE:
        return False
    return True
