"""Answers written as programs, of which each wrong answer replaces some lines."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Program:
    """A function by its text: the parameters, then lines `name = expression`, the last returned.

    Expressions see `names` and, as `xp`, the library of the first argument. What a table writes in
    place of lines stands for … in `form`; an expression alone takes the place of the last line.
    """

    names: dict[str, Any]
    text: str
    form: str = "…"

    @property
    def lines(self) -> str:
        return "\n" + self.text.strip().partition("\n")[2] + "\n"

    def taking(self, option: str, form: str = "…") -> "Program":
        """Return the program with a further parameter."""
        parameters = self.text.strip().partition("\n")[0]
        return replace(self, text=f"{parameters}, {option}{self.lines}", form=form)

    def but(self, changes: str = "") -> Callable:
        """Return the function, with some lines replaced: `name = expression; name = expression`."""
        parameters, *rest = filter(None, self.text.split("\n"))
        lines = dict(line.split(" = ", 1) for line in rest)
        last = [*lines][-1]
        for change in filter(None, changes.split("; ")):
            name, _, new = (
                change.partition(" = ") if re.match(r"\w+ = ", change) else (last, 0, change)
            )
            assert name in lines, change
            lines[name] = new
        first = parameters.split(",")[0]
        library = f"xp = array_namespace({first}) if hasattr({first}, 'shape') else None"
        body = [library, *(f"{name} = {line}" for name, line in lines.items()), f"return {last}"]
        found: dict[str, Any] = {}
        exec("\n    ".join([f"def answer({parameters}):", *body]), self.names, found)
        return found["answer"]

    def wrong(self, table: str) -> dict[str, Callable]:
        """Return the answers of a table that has a mistake in each line, and what it replaces.

            no scale: s = q @ k.mT
            softmax over the query axis: w = sm(s, 0)
                w = sm(s, -2)

        An indented line is a further answer with the same mistake, named with a number at the end.
        One that is indented twice goes on in the line above.
        """
        return {name: self.but(self.form.replace("…", changes)) for name, changes in entries(table)}


def entries(table: str, separator: str = ": ") -> list[tuple[str, str]]:
    """Return the name and the text of each entry of a table."""
    found: list[tuple[str, str]] = []
    mistake, counts = "", Counter[str]()
    for line in filter(None, re.sub(r"\n {8}", " ", table).split("\n")):
        changes = line.strip()
        if not line.startswith(" "):
            mistake, changes = line.split(separator, 1)
        counts[mistake] += 1
        number = f" {counts[mistake]}" if counts[mistake] > 1 else ""
        found.append((mistake + number, changes))
    return found
