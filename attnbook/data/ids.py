"""Checks of ids, of texts and of sequences."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.arrays.lengths import lengths_of

LARGEST_ID = 2**63 - 1
"""The largest number that an array of ids can hold."""


def ids_of(name: str, x: Any, ndim: int | None = 1) -> np.ndarray:
    """Return `x` as an int64 NumPy array of ids of at least 0 with `ndim` axes, or raise."""
    array = lengths_of(name, x)  # ids and lengths alike are ints of at least 0
    if ndim is not None and array.ndim != ndim:
        axes = "1 axis" if ndim == 1 else f"{ndim} axes"
        raise ValueError(f"{name} must have {axes}, got shape {array.shape}")
    return array


def ids_before(stop: int, ids: Any, known: int, what: str) -> np.ndarray:
    """Return the ids that stand before the first `stop`, or raise unless all are below `known`."""
    numbers = ids_of("ids", ids)
    if (most := numbers.max(initial=0)) >= known:
        raise ValueError(f"ids must be below {what}, {known}, got {most}")
    stops = np.flatnonzero(numbers == stop)
    return numbers[: stops[0]] if stops.size else numbers


def check_id(name: str, number: int) -> int:
    """Return `number` as an int that an array of ids can hold, or raise."""
    return check_int(name, number, at_most=LARGEST_ID)


def iterator(name: str, items: Iterable[Any], kind: str) -> Iterator[Any]:
    """Return an iterator over `items`, or raise TypeError unless they are several things."""
    try:
        return iter(items)
    except TypeError:
        got = type(items).__name__
        raise TypeError(f"{name} must be a sequence of {kind}, got {got}") from None


def check_text(name: str, text: str) -> None:
    """Raise unless `text` is a str that UTF-8 can hold."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be of characters that UTF-8 can hold, got the surrogate "
            f"{text[error.start]!r} at {error.start}"
        ) from None


def texts_of(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield each of `texts`, or raise unless they are several str that UTF-8 can hold."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a sequence of str, got the str {texts[:60]!r}")
    for i, text in enumerate(iterator(name, texts, "str")):
        check_text(f"{name}[{i}]", text)
        yield text
