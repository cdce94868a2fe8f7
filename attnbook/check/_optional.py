"""Options that a reader's function takes under another name, or by position."""

import inspect
from collections.abc import Callable
from typing import Any

from attnbook.check._calls import binds, signature_of


def with_options(
    function: Callable, parameters: tuple[str, ...], options: dict[str, tuple[Any, tuple[str, ...]]]
) -> Callable:
    """Return `function` with its options by name.

    `options` gives for each its value where a case has none, and its other names. A value that is
    not None is always passed on. A function that wants some of them by position gets them so.
    """
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return function
    count = len(parameters)
    if binds(signature, count):
        names = {
            option: name
            for option, (_, others) in options.items()
            for name in (option, *others)
            if name in list(signature.parameters)[count:]
        }
    else:
        wanted = (n for n in range(1, len(options) + 1) if binds(signature, count + n))
        names = dict.fromkeys(list(options)[: next(wanted, 0)], "")
    if not names:
        return function

    def adapted(*given, **chosen):
        chosen = {name: options[name][0] for name in names} | chosen
        if not all(names.values()):
            return function(*given, *(chosen[name] for name in names))
        named = {names[name]: x for name, x in chosen.items() if x is not None}
        return function(*given, **named)

    adapted.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in parameters]
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=options[name][0])
            for name in names
        ]
    )
    return adapted
