"""Reads the text of a check: its steps, and its mistakes with the sentence of each below it.

::

    [steps]
    use scores
    mix(weights, value) = weights @ value

    [variants]
    divide = powers / total

    [mistakes]
    weights returned: mix = weights
        You return the weights, not the output.
    scale by another number: factor = n * d_k**-0.5 for n in 2, 0.5 | factor = 1
        You scale the scores by something else.

A step has parameters, or none if it is a value; ``compute(x)``, without a right side, says what the
parameters of a whole computation are called. A way to make a mistake changes steps; `;` stands
between the changes of one way, `|` between ways, and a line that goes on begins with `|`. What has
no left side is a way that a function of the module returns, and ``told by f`` stands first where
the object that came back tells the mistake, if f(object) is true. ``use scores`` takes over the
steps of another text, its variants unless there are own ones, and what its expressions may name;
``from scores import hide`` takes a name alone. A name in brackets behind that of a mistake,
``[whose]``, says that it is a convention, which is right there. In a table ``[as in merging]`` a
mistake needs no sentence: it is that of the same name there.
"""

import ast
import builtins
import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.steps import Mistake, Way

BASE = {**vars(builtins), "np": np, "math": math, "itertools": itertools, "attnbook": attnbook}
"""What every expression may name beside its module."""

_functions: dict[tuple, Callable[..., Any]] = {}
_made: dict[Callable[..., Any], list[tuple[dict[str, Any], Any]]] = {}
"""What was compiled: expressions that read alike and mean the same are one object, in all texts."""

_OF = "You follow another convention, that of {}: "
_STEP = re.compile(r"(\w+)(?:\(([^)]*)\))?(?: = (.+?))?(?:  #.*)?")
_CHANGE = re.compile(r"((?:\w+ = )+)(.+)")


class Text:
    """The text beside a module, ``X.txt`` for ``X.py``; `names` are the module's globals."""

    def __init__(self, names: dict[str, Any]):
        self.path = Path(names["__file__"]).with_suffix(".txt")
        self.names = {**BASE, **names}
        self.parameters: dict[str, str | None] = {}
        self.steps: dict[str, Any] = {}
        self.variants: tuple[Way, ...] = ()
        self.tables: dict[str, tuple[Mistake, ...]] = {}
        sections: dict[str, list[tuple[int, str]]] = {}
        lines: list[tuple[int, str]] = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("["):
                lines = sections.setdefault(line.strip("[]"), [])
            elif line.strip() and not line.startswith("#"):
                lines.append((number, line))
        for name, found in sections.items():
            self._section(name, found)

    def __getitem__(self, table: str) -> tuple[Mistake, ...]:
        return self.tables[table]

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return self.tables["mistakes"]

    @property
    def sentences(self) -> dict[str, str]:
        """What is said of the mistakes, by name."""
        return {m.name: m.message for table in self.tables.values() for m in table}

    def _section(self, name: str, lines: list[tuple[int, str]]) -> None:
        if name == "steps":
            for number, line in lines:
                self._step(number, line.strip())
        elif name == "variants":
            self.variants = tuple(w for number, line in lines for w in self._ways(number, line))
        else:
            others = _module(name[6:])["TEXT"].sentences if name.startswith("as in ") else {}
            self.tables[name] = tuple(self._mistakes(lines, others))

    def _step(self, number: int, line: str) -> None:
        """Take a step, or what a line `use` or `from` takes over."""
        try:
            if line.startswith("use "):
                self._use(line[4:])
                return
            if line.startswith("from "):
                module, _, names = line[5:].partition(" import ")
                found = _module(module)
                self.names |= {name: found[name] for name in names.split(", ")}
                return
        except (ImportError, KeyError) as error:
            raise self._error(number, f"{line!r} must name what there is: {error}") from None
        step = _STEP.fullmatch(line)
        if not step:
            form = "name(parameters) = expression"
            raise self._error(number, f"a step must read {form}, got {line!r}")
        name, parameters, right = step.groups()
        self.parameters[name] = parameters
        if right:
            self.steps[name] = self._compiled(number, name, right)

    def _use(self, module: str) -> None:
        """Take over the steps and the names of another text."""
        used = _module(module)
        text = used["TEXT"]
        self.names = {**used, **text.names, **self.names}
        self.parameters |= text.parameters
        self.steps |= text.steps
        self.variants += text.variants

    def _mistakes(self, lines: list[tuple[int, str]], others: dict[str, str]) -> Iterator[Mistake]:
        blocks: list[tuple[str, list[tuple[int, str]], list[str]]] = []
        for number, line in lines:
            if line[0] != " ":
                name, colon, ways = f"{line} ".partition(": ")
                if not colon:
                    raise self._error(number, f"a mistake must read name: ways, got {line!r}")
                blocks.append((name, [(number, ways.strip())], []))
            elif not blocks:
                raise self._error(number, f"a sentence must follow its mistake, got {line!r}")
            elif line.strip().startswith("| "):
                blocks[-1][1].append((number, line.strip()[2:]))
            else:
                blocks[-1][2].append(line.strip())
        for heading, texts, sentence in blocks:
            name, _, whose = heading.partition(" [")
            if not sentence and name not in others:
                raise self._error(texts[0][0], f"{name!r} must have a sentence below it")
            told_by = None
            if texts[0][1].startswith("told by "):
                told_by = self._value(texts[0][0], texts.pop(0)[1][8:])
            found = (way for at, ways in texts if ways for way in self._ways(at, ways))
            message = _OF.format(whose[:-1]) * bool(whose) + (" ".join(sentence) or others[name])
            yield Mistake(name, message, tuple(found), told_by, bool(whose))

    def _ways(self, number: int, text: str) -> Iterator[Way]:
        """Yield the ways of one line."""
        for one in _split(text, " | "):
            changes, *loops = _split(one, " for ")
            for values in self._loops(number, loops):
                parts = [self._part(number, change, values) for change in _split(changes, "; ")]
                if len(parts) == 1 and not isinstance(parts[0], dict):
                    yield from parts[0]
                else:
                    yield {step: new for part in parts for step, new in part.items()}

    def _loops(self, number: int, loops: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{}]
        for loop in loops:
            name, _, values = loop.partition(" in ")
            given = self._value(number, f"({values},)")
            if len(given) == 1 and isinstance(given[0], (tuple, list, range)):
                (given,) = given
            found = [{**before, name: value} for before in found for value in given]
        return found

    def _part(self, number: int, text: str, values: dict[str, Any]) -> Any:
        change = _CHANGE.fullmatch(text)
        if not change:
            return self._value(number, text, values)
        steps = change[1].split(" = ")[:-1]
        for step in steps:
            if step not in self.parameters:
                known = ", ".join(self.parameters)
                raise self._error(number, f"{step} is no step; the steps are {known}")
        return {step: self._compiled(number, step, change[2], values) for step in steps}

    def _compiled(
        self, number: int, step: str, right: str, values: dict[str, Any] | None = None
    ) -> Any:
        """Return the step, or its value: one object for one text and one value of its loops."""
        parameters, values = self.parameters[step], values or {}
        function = "" if parameters is None else f"lambda {parameters}: "
        make = self._function(number, f"{function}({right})", *values)
        known = _made.setdefault(make, [])
        for before, made in known:
            if all(before[name] is value for name, value in values.items()):
                return made
        known.append((values, make(*values.values())))
        return known[-1][1]

    def _value(self, number: int, text: str, values: dict[str, Any] | None = None) -> Any:
        """Return what an expression gives where its loops have these values."""
        values = values or {}
        return self._function(number, text, *values)(*values.values())

    def _function(self, number: int, text: str, *loops: str) -> Callable[..., Any]:
        """Return the expression as a function of what its loops count."""
        around = f"lambda {', '.join(loops)}: ({text})"
        try:
            tree = ast.parse(around, str(self.path), "eval")
        except SyntaxError as error:
            message = f"{text!r} must be an expression: {error.msg}"
            raise self._error(number, message) from None
        named = sorted(_free(tree))
        unknown = ", ".join(name for name in named if name not in self.names)
        if unknown:
            raise self._error(number, f"no name {unknown} is known in {text!r}")
        key = (around, *(id(self.names[name]) for name in named))
        if key not in _functions:
            code = compile(ast.increment_lineno(tree, number - 1), str(self.path), "eval")
            _functions[key] = eval(code, self.names)
        return _functions[key]

    def _error(self, number: int, message: str) -> ValueError:
        return ValueError(f"{self.path.name}, line {number}: {message}")


def _module(name: str) -> dict[str, Any]:
    """Return the names of a module, for one of the checks by its last name."""
    folders = [path.parent.name for path in Path(__file__).parents[1].glob(f"*/{name}.py")]
    full = f"attnbook.check.{folders[0]}.{name}" if folders else name
    return vars(importlib.import_module(full))


def _free(tree: ast.AST) -> set[str]:
    """Return the names that an expression takes from outside."""
    nodes = [*ast.walk(tree)]
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - bound


def _split(text: str, by: str) -> list[str]:
    """Return the parts between `by`, but where it stands within brackets or in a text."""
    parts, depth, begin, quote, i = [], 0, 0, "", 0
    while i < len(text):
        letter = text[i]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif not depth and text.startswith(by, i):
            parts.append(text[begin:i])
            begin = i = i + len(by)
            continue
        i += 1
    return [*parts, text[begin:]]
