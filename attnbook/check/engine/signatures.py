"""Signatures of readers' functions, and the options that they take."""

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def signature_of(function: Callable) -> inspect.Signature | None:
    """Return the signature by which `function` is called, None if it does not tell."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(function, torch.nn.Module):
            return inspect.signature(function.forward)  # a module is called through it
        return inspect.signature(function)
    except Exception:  # some functions written in C do not tell, and an object may do anything
        return None


def binds(signature: inspect.Signature, count: int) -> bool:
    """Tell whether a function of this signature can be called with `count` by position."""
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def bare(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature without defaults and annotations, to be shown."""
    return inspect.Signature(
        [p.replace(default=p.empty, annotation=p.empty) for p in signature.parameters.values()]
    )


def named_options(signature: inspect.Signature, options: tuple[str, ...]) -> frozenset[str]:
    """Return which of `options` can be passed by name; ``**options`` takes a mask."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name for name, p in signature.parameters.items() if p.kind in by_name}
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        named.add("mask")
    return frozenset(named & set(options))


def of_arrays(function: Callable, kind: Callable, count: int) -> Callable:
    """Return `function` of `count` arrays, also if it takes x and a `kind` that holds the rest."""
    signature = signature_of(function)
    if signature is None or binds(signature, count) or not binds(signature, 2):
        return function
    return lambda x, *arrays: function(x, kind(*arrays))


def with_options(
    function: Callable, parameters: tuple[str, ...], options: dict[str, tuple[Any, tuple[str, ...]]]
) -> Callable:
    """Return `function` with its options by name.

    `options` gives for each its value where a case has none, and its other names. A value that is
    not None is always passed on. A function that wants some of them by position gets them so.
    """
    signature = signature_of(function)
    if signature is None:
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

    return signed(adapted, parameters, names)


def signed_as(function: Callable, adapted: Callable) -> Callable:
    """Let `adapted` tell the signature of `function`; return `function` if that tells none."""
    signature = signature_of(function)
    if signature is None:
        return function
    adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def signed(function: Callable, parameters: Iterable[str], options: Iterable[str]) -> Callable:
    """Let `function` tell that it takes these by position and those by name."""
    positional, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, positional) for name in parameters]
        + [inspect.Parameter(name, keyword, default=None) for name in options]
    )
    return function


def as_floats(x: Any) -> Any:
    """Return a list, or an array of integers of any library, as an array of floats of NumPy."""
    whole = "int" in str(getattr(x, "dtype", ""))
    return np.asarray(x, dtype=np.float64) if whole or isinstance(x, (list, tuple)) else x
