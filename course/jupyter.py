"""Code as Jupyter runs it, turned into code that Python reads."""

import ast
import contextlib
import re
import warnings

UNREADABLE = SyntaxError, ValueError, RecursionError, MemoryError
"""What Python raises where it cannot read a program, or a sum of a thousand terms is too deep."""

CELL_MAGIC = re.compile(r"\A((?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*)%%(\S+)[^\n]*")
"""The first line of a cell that begins with ``%%time``, and what may stand above it."""

CALL = re.compile(r"get_ipython\(\)\.run_(?:line|cell)_magic\((.+)\)[ \t]*$", re.M)
"""What IPython, or Jupyter where it exports a program, makes of a magic."""

TIMES = {"time", "prun"}
"""Magics of a line that run the statement behind them."""

OTHER_LANGUAGES = {
    *("!", "sx", "system", "bash", "sh", "cmd", "script", "perl", "ruby", "pypy", "python2"),
    *("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG"),
}
"""Magics of a cell whose text is no Python; whatever else stands below one is run."""

SHOWS = re.compile(
    r"^[ \t]*+(?:[\w, ]++=[ \t]*+)?[%!?].*|^[^?\n]*+(?:\?[^?\n]*+)*?\?[ \t]*+$", re.M
)
"""A line that IPython reads and Python does not."""

MOST_MAGICS = 20
"""Magics of a whole cell that stand above one another."""

MOST = 2 * 10**5
"""Of letters times such lines, since IPython reads all that is there again for each of them."""


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
    shows = SHOWS.findall(code)
    is_meant = shows or code[:1].isspace() or ">>>" in code
    if is_meant and len(shows) * len(code) < MOST and not is_python(code):
        try:
            from IPython.core.inputtransformer2 import TransformerManager
        except ImportError as error:
            text = "IPython is not installed where this is graded"
            if shows:
                text = f"`{shows[0].strip()[:80]}` is IPython's syntax, and {text}"
            raise ImportError(text) from error
        with contextlib.suppress(*UNREADABLE, RuntimeError):  # it gives up after 500 magics
            code = TransformerManager().transform_cell(code)
    return CALL.sub(_run_of, code)


def _run_of(call: re.Match[str]) -> str:
    """Return the statements that a magic runs, or the call of the magic as it stands."""
    try:
        name, first, *rest = ast.literal_eval(f"({call[1]})")
        if rest:
            return "" if name in OTHER_LANGUAGES else str(rest[0])
        return str(first) if name in TIMES else call[0]
    except (*UNREADABLE, TypeError):
        return call[0]


def below_magic(code: str) -> str:
    """Return what Python runs of a cell: what stands below its magics, if that is Python."""
    for _ in range(MOST_MAGICS):
        magic = CELL_MAGIC.match(code)
        if not magic:
            break
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
