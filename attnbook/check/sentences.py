"""Tables of mistakes, written as one text of their sentences and the ways to make them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbook.check.steps import Case, Mistake, Values, Way


def sentences(text: str) -> dict[str, str]:
    """Return the paragraphs of `text` by name.

    Each begins with its name and a colon; its further lines are indented more than the first.
    """
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    found: dict[str, str] = {}
    for line in lines:
        if line[margin : margin + 1].strip():
            name, _, begins = line.strip().partition(": ")
            found[name] = begins
        elif line.strip():
            found[name] += f" {line.strip()}"
    return found


def mistakes(
    text: str,
    ways: Mapping[str, Way | tuple[Way, ...]],
    told_by: Mapping[str, Callable[[Any], bool]] | None = None,
) -> tuple[Mistake, ...]:
    """Return a mistake for each paragraph of `text`, in this order, with its way or ways."""
    told_by = told_by or {}
    messages = sentences(text)
    unknown = {*ways, *told_by} - set(messages)
    if unknown:
        raise ValueError(f"no sentence for {', '.join(sorted(unknown))}")
    never = Mistake("", "").told_by
    return tuple(
        Mistake(name, message, way if isinstance(way, tuple) else (way,), told_by.get(name, never))
        for name, message in messages.items()
        for way in [ways.get(name, ())]
    )


def moved(
    change: Callable[[dict[str, Any]], dict[str, Any]],
    right: Callable[[np.ndarray, np.ndarray], Any],
    sentence: str,
) -> Callable[..., str | None]:
    """Return the property that ``right(result, other)`` holds if `change` replaces arguments."""

    def holds(case: Case, values: Values, again: Callable) -> str | None:
        others = again(**change(case.arguments))
        fits = others and others[0].shape == values[0].shape
        return sentence if fits and not np.all(right(values[0], others[0])) else None

    return holds
