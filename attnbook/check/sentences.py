"""Tables of mistakes, written as one text of their sentences and the ways to make them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbook.check.steps import Case, Mistake, Values, Way

_OF = "You follow another convention, that of {}: "


def sentences(text: str) -> dict[str, str]:
    """Return the paragraphs of `text` by name.

    Each begins with its name and a colon; its further lines are indented more than the first.
    """
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    found: dict[str, str] = {}
    for line in lines:
        if line[margin : margin + 1].strip():
            name, _, begins = f"{line.strip()} ".partition(": ")
            found[name] = begins.strip()
        elif line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def mistakes(
    text: str,
    ways: Mapping[str, Way | tuple[Way, ...]],
    told_by: Mapping[str, Callable[[Any], bool]] | None = None,
) -> tuple[Mistake, ...]:
    """Return a mistake for each paragraph of `text`, in this order, with its way or ways.

    A name that ends with ``[whose]`` is that of another convention, which is right there.
    """
    told_by = told_by or {}
    messages = {
        name: (_OF.format(whose[:-1]) * bool(whose) + message, bool(whose))
        for heading, message in sentences(text).items()
        for name, _, whose in [heading.partition(" [")]
    }
    unknown = {*ways, *told_by} - set(messages)
    if unknown:
        raise ValueError(f"no sentence for {', '.join(sorted(unknown))}")
    never = Mistake("", "").told_by
    return tuple(
        Mistake(
            name,
            message,
            way if isinstance(way, tuple) else (way,),
            told_by.get(name, never),
            is_convention,
        )
        for name, (message, is_convention) in messages.items()
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
