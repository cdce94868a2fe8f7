"""Answers written as lines of a program, of which each wrong answer replaces some.

A table has a mistake in each line, and what is written in its place:

    no scale: s = q @ k.mT
    softmax twice: w = sm(sm(s))
        w = sm(w_0); w_0 = sm(s)

An indented line is a further answer with the same mistake, "softmax twice 2". One that is indented
twice goes on in the line above.
"""

import re
from collections.abc import Callable
from typing import Any


def written(names: dict[str, Any], parameters: str, program: str, changes: str = "") -> Callable:
    """Return the function whose lines are `name = expression`, some changed; the last is returned.

    Expressions see `names` and, as `xp`, the library of the first argument.
    """
    lines = [line.split(" = ", 1) for line in program.split("\n") if line]
    new = dict(line.split(" = ", 1) for line in changes.split("; ") if line)
    assert not new.keys() - dict(lines).keys(), changes
    body = [f"    {name} = {new.get(name, right)}" for name, right in lines]
    first = parameters.split(",")[0]
    library = f"    xp = array_namespace({first}) if hasattr({first}, 'shape') else None"
    text = "\n".join([f"def answer({parameters}):", library, *body, f"    return {lines[-1][0]}"])
    found: dict[str, Any] = {}
    exec(text, names, found)
    return found["answer"]


def table(
    names: dict[str, Any], parameters: str, program: str, mistakes: str, form: str = "…"
) -> dict[str, Callable]:
    """Return the answers of a table; each of its texts stands for … in `form`."""
    found: dict[str, Callable] = {}
    mistake = ""
    for line in filter(None, re.sub(r"\n {8}", " ", mistakes).split("\n")):
        changes = line.strip()
        if not line.startswith(" "):
            mistake, changes = line.split(": ", 1)
        number = sum(re.sub(r"(?<!base) \d+$", "", name) == mistake for name in found) + 1
        name = mistake if number == 1 else f"{mistake} {number}"
        found[name] = written(names, parameters, program, form.replace("…", changes))
    return found
