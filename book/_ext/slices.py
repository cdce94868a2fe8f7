"""Cut out of a chapter's cells the statements that some names need, and no others."""

import ast
import builtins
import functools
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

GIVEN = {*dir(builtins), "display", "__name__"}
CERTAIN = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
"""Statements after which nothing that stood before matters for the names that they bind."""


@dataclass(frozen=True)
class Statement:
    """One statement of a cell.

    Attributes
    ----------
    source : str
    node : ast.stmt
    binds, changes : frozenset of str
        The names that it binds, and those whose object it may change: by an assignment to a part
        of it, by calling one of its methods, or by drawing from it.
    reads, later : frozenset of str
        The names that it needs when it runs, and those that its functions need when they are
        called.
    """

    source: str
    node: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    later: frozenset[str]


def statements_of(sources: Iterable[str]) -> list[Statement]:
    """Return the statements of cells in order; a cell that is no plain Python has none."""
    found: list[Statement] = []
    generators: set[str] = set()
    modules: set[str] = set()
    bound: set[str] = set()  # a chapter may call something by the name of a builtin
    for source in sources:
        for cell in _cell(source):
            bound |= cell.binds
            reads = cell.reads - (GIVEN - bound)
            later = cell.later - (GIVEN - bound)
            if _is_generator(cell.node):
                generators |= cell.binds
            if isinstance(cell.node, (ast.Import, ast.ImportFrom)):
                modules |= cell.binds
            changes = (cell.changes - modules) | (reads & generators)
            found.append(Statement(cell.source, cell.node, cell.binds, changes, reads, later))
    return found


@functools.cache  # a chapter's cells are read again for each of its exercises
def _cell(source: str) -> tuple[Statement, ...]:
    """Return the statements of one cell, before what stands in others tells names apart."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic of IPython
        return ()
    found = []
    for node, text in zip(tree.body, _texts(source, tree), strict=True):
        binds, reads, later = _names(text)
        names = (binds, _changed(node), reads - _targets(node), later)
        found.append(Statement(text, node, *map(frozenset, names)))
    return tuple(found)


def _texts(source: str, tree: ast.Module) -> Iterator[str]:
    """Yield the text of each statement, with its comments and decorators."""
    lines = source.splitlines()
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        yield "\n".join(lines[first - 1 : node.end_lineno])


def _names(text: str) -> tuple[set[str], set[str], set[str]]:
    """Return the names that a statement binds, reads, and reads in its functions later."""
    table = symtable.symtable(text, "<cell>", "exec")
    binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    reads = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    later: set[str] = set()
    for child in table.get_children():
        runs_now = child.get_type() == "class" or not child.get_name().isidentifier()
        (reads if runs_now and child.get_name() != "lambda" else later).update(_free(child))
    return binds, reads, later


def _free(table: symtable.SymbolTable) -> set[str]:
    names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return names.union(*map(_free, table.get_children()))


def _changed(node: ast.stmt) -> set[str]:
    """Return the names of objects of which a statement sets a part, or calls a method."""
    found = set()
    for part in _running(node):
        stored = isinstance(part, (ast.Subscript, ast.Attribute)) and isinstance(
            part.ctx, ast.Store
        )
        called = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
        target = part if stored else part.value.func if called else None
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            target = target.value
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def _is_generator(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith("default_rng")


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that a loop or a `with` sets before its body reads them."""
    found = set()
    for part in _running(node):
        if isinstance(part, ast.For):
            found |= {x.id for x in ast.walk(part.target) if isinstance(x, ast.Name)}
        elif isinstance(part, ast.withitem) and part.optional_vars:
            found |= {x.id for x in ast.walk(part.optional_vars) if isinstance(x, ast.Name)}
    return found


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs with a statement: not what stands in a function that it defines."""
    yield node
    for part in ast.iter_child_nodes(node):
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            yield from _running(part)


def needed(statements: list[Statement], wanted: Iterable[str]) -> tuple[list[Statement], set[str]]:
    """Return the statements that `wanted` needs, in order, and the names that nothing binds."""
    ends = set(wanted)
    while True:
        names, chosen, later = set(ends), [], set()
        for statement in reversed(statements):
            if names & (statement.binds | statement.changes):
                chosen.append(_narrowed(statement, names))
                if isinstance(statement.node, CERTAIN):
                    names -= statement.binds
                names |= statement.reads
                later |= statement.later
        if later <= ends:
            return chosen[::-1], names.difference(*(s.binds for s in chosen))
        ends |= later


def _narrowed(statement: Statement, names: set[str]) -> Statement:
    """Return an import of the needed names alone; any other statement as it is."""
    node = statement.node
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return statement
    kept = [a for a in node.names if (a.asname or a.name.partition(".")[0]) in names]
    if isinstance(node, ast.Import):
        node = ast.Import(kept)
    else:
        node = ast.ImportFrom(node.module, kept, node.level)
    text = ast.unparse(node)
    binds = frozenset(_names(text)[0])
    empty: frozenset[str] = frozenset()
    return Statement(text, node, binds, empty, empty, empty)


def joined(statements: list[Statement]) -> str:
    """Return statements as a program: definitions stand apart."""
    parts: list[str] = []
    for before, statement in zip([None, *statements], statements, strict=False):
        if before is not None:
            defs = (ast.FunctionDef, ast.ClassDef)
            apart = isinstance(statement.node, defs) or isinstance(before.node, defs)
            imports = (ast.Import, ast.ImportFrom)
            ends = isinstance(before.node, imports) and not isinstance(statement.node, imports)
            parts.append("\n\n\n" if apart else "\n\n" if ends else "\n")
        parts.append(statement.source)
    return "".join(parts)


def used_of(statements: list[Statement], package: str) -> set[str]:
    """Return what the statements use of a package, such as ``attention`` or ``masking.causal``."""
    found, roots = set(), {}
    for statement in statements:
        node = statement.node
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == package:
                    inner = alias.name.partition(".")[2] if alias.asname else ""
                    roots[alias.asname or package] = inner
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            for alias in node.names:
                roots[alias.asname or alias.name] = f"{node.module}.{alias.name}".partition(".")[2]
                found.add(roots[alias.asname or alias.name])
    for statement in statements:
        for part in ast.walk(statement.node):
            path, at = [], part
            while isinstance(at, ast.Attribute):
                path.append(at.attr)
                at = at.value
            if path and isinstance(at, ast.Name) and at.id in roots:
                found.add(".".join(filter(None, [roots[at.id], *path[::-1]])))
    return found
