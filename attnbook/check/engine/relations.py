"""What wrong results have to do with the right ones, where that is simple and always the same."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import attnbook
from attnbook.check.engine.calls import Attempt
from attnbook.check.engine.report import show
from attnbook.check.engine.steps import Case, Check, Mistake, agree

Pair = tuple[np.ndarray, np.ndarray, Case]
"""What was returned, what is right, and for which input."""

RIGHT = "the right one"

Kinds = Callable[[Check, list[Pair]], Iterator[tuple[str, str]]]

_OF_NUMBERS: dict[str, Callable] = {
    "1 less the right one": lambda x: 1 - x,
    "1 divided by the right one": lambda x: 1 / x,
    "the absolute value of the right one": np.abs,
    "the square of the right one": np.square,
    "the root of the right one": np.sqrt,
    "the exponential of the right one": np.exp,
    "the logarithm of the right one": np.log,
    "the right one with 0 in the place of negative numbers": lambda x: np.maximum(x, 0),
    "the right one, rounded": np.round,
    "the right one, rounded to two decimals": partial(np.round, decimals=2),
    "the hyperbolic tangent of the right one": np.tanh,
    "a softmax of the right one": attnbook.softmax,
    "the right one, its rows divided by their sums": lambda x: x / np.sum(x, -1, keepdims=True),
    "the right one, its rows divided by their lengths": lambda x: (
        x / np.linalg.norm(x, axis=-1, keepdims=True)
    ),
    "the right one, its rows with mean 0 and variance 1": attnbook.layer_norm,
    "the right one, its rows with the mean square 1": attnbook.rms_norm,
}
_WITH_INPUT: dict[str, Callable] = {
    "the right one plus `{}`": lambda y, x: y + x,
    "the right one less `{}`": lambda y, x: y - x,
    "`{}` less the right one": lambda y, x: x - y,
    "the right one times `{}`": lambda y, x: y * x,
    "the right one divided by `{}`": lambda y, x: y / x,
}


def _along(axis: int) -> dict[str, Callable]:
    """Return what loops and slices do wrong along an axis."""
    where = f"along axis −{-axis}"

    def places(change: Callable) -> Callable:
        return lambda x: np.moveaxis(change(np.moveaxis(x, axis, 0)), 0, axis)

    def cleared(place: int) -> Callable:
        return lambda x: (
            x * np.expand_dims(np.arange(len(x)) != place % len(x), tuple(range(1, x.ndim)))
        )

    changes: dict[str, Callable] = {
        "the right one in reverse order {}": lambda x: x[::-1],
        "the right one, moved on by one place {}": lambda x: np.roll(x, 1, axis=0),
        "the right one, moved back by one place {}": lambda x: np.roll(x, -1, axis=0),
        "the right one, sorted {}": lambda x: np.sort(x, axis=0),
        "the right one, added up from place to place {}": lambda x: np.cumsum(x, axis=0),
        "the same everywhere {}, which is right for the first place": lambda x: x[:1] + 0 * x,
        "the same everywhere {}, which is right for the last place": lambda x: x[-1:] + 0 * x,
        "right but for the first place {}, which holds 0": cleared(0),
        "right but for the last place {}, which holds 0": cleared(-1),
    }
    return {text.format(where): places(change) for text, change in changes.items()}


_MOVED: dict[str, Callable] = {
    "the right one with its last two axes exchanged": lambda x: np.swapaxes(x, -1, -2),
    **{name: change for axis in (-1, -2, -3) for name, change in _along(axis).items()},
}


_NAMES = {
    "everywhere": "one place for all",
    "holds 0": "one place 0",
    "reverse": "result reversed",
    "moved": "result moved by one place",
    "sorted": "result sorted",
    "added up": "result added up",
    "exchanged": "result transposed",
}
"""The short name of what has a word in its text."""


def related(
    check: Check, attempts: list[Attempt], kinds: Kinds, ones: str = RIGHT
) -> Mistake | None:
    """Return what the wrong results are of the right ones for all `attempts`, if that is known.

    `ones` says what is expected, where that is something else than what is right.
    """
    wrong = {}
    for i, name in enumerate(check.results):
        pairs = [(a.values[i], a.expected[i], a.case) for a in attempts]
        if not all(agree((got,), (right,), case) for got, right, case in pairs):
            wrong[name] = pairs
    pairs = [pair for found in wrong.values() for pair in found]
    numbers = {x for _, right, _ in pairs for x in np.round(right.astype(float), 6).flat}
    if len(numbers) < (2 if check.kind == "bool" else 3):  # too few to tell one from another
        return None
    with np.errstate(all="ignore"):
        name, holds = next(kinds(check, pairs), ("", ""))
    if not holds:
        return None
    who = "Your result" if len(check.results) == 1 else f"Your {' and your '.join(wrong)}"
    verb = "are each" if len(wrong) > 1 else "is"
    return Mistake(name, f"{who} {verb} {holds}.".replace(RIGHT, ones))


def beside(check: Check, pairs: list[Pair]) -> Iterator[tuple[str, str]]:
    """Yield what leaves the numbers of another mistake recognisable."""
    yield from relations(check, pairs, alone=False)
    yield from multiples(check, pairs)


def relations(check: Check, pairs: list[Pair], alone: bool = True) -> Iterator[tuple[str, str]]:
    """Yield name and text of what makes all wrong results of the right ones.

    What is not `alone`, but beside another mistake, is a factor or another order.
    """

    def holds(change: Callable, *names: str) -> bool:
        def of(right: np.ndarray, case: Case) -> np.ndarray:
            return change(right, *(case.arrays[name] for name in names))

        try:
            return all(agree((got,), (of(right, case),), case) for got, right, case in pairs)
        except Exception:  # there is no such axis, or no such input
            return False

    if check.kind == "bool" and holds(np.logical_not):
        yield "everything inverted", "the right one with True and False exchanged"
    one = _factor(max(pairs, key=lambda pair: np.max(np.abs(pair[1]), initial=0)))
    if check.kind == "real floating" and holds(lambda x: one * x):
        if abs(one + 1) < 1e-3:
            yield "result negated", "minus the right one"
        yield "result scaled", f"{_short(one)} times the right one"
    if alone and check.kind != "bool":
        got, right, _ = max(pairs, key=lambda pair: pair[1].size)
        constant = (got - right).flat[0] if got.shape == right.shape else 0
        if holds(lambda x: x + constant):
            yield "number added", f"the right one plus {show(constant)}"
    for text, change in _MOVED.items():
        if (alone or "everywhere" not in text) and holds(change):
            yield next(name for part, name in _NAMES.items() if part in text), text
    if alone and check.kind == "real floating":
        for text, change in _OF_NUMBERS.items():
            if holds(change):
                yield "function of the result", text
        digits = min(map(_digits, pairs))
        if digits > 1:
            rounded = "as where numbers are rounded, estimated, or computed in float16 or bfloat16"
            yield "few digits", f"the right one to {digits} digits, {rounded}"
        for name in check.parameters:
            for text, change in _WITH_INPUT.items():
                if holds(change, name):
                    yield f"{name} in the result", text.format(name)


def _digits(pair: Pair) -> int:
    """Return to how many digits of the largest number a result is right."""
    got, right, _ = pair
    if got.shape != right.shape or not np.isfinite(got).all():
        return 0
    off = np.max(np.abs(got - right), initial=0) / np.max(np.abs(right), initial=1e-30)
    return int(-np.log10(max(off, 1e-16)) + 0.5)


def multiples(check: Check, pairs: list[Pair]) -> Iterator[tuple[str, str]]:
    """Yield name and text of a factor that changes from case to case."""
    if check.kind != "real floating":
        return
    own = {_factor(pair): pair[2] for pair in pairs if len(np.unique(pair[1])) > 2}
    if len(own) > 1 and all(agree((x,), (_factor((x, y, z)) * y,), z) for x, y, z in pairs):
        least, most = min(own, key=abs), max(own, key=abs)
        yield (
            "result scaled",
            f"a multiple of the right one, by a factor that changes: {_short(least)} with "
            f"{own[least]}, and {_short(most)} with {own[most]}",
        )


def _short(factor: float) -> str:
    return f"{factor:.4g}" if abs(factor - 1) > 0.01 else f"{factor:.8g}"


def _factor(pair: Pair) -> float:
    """Return what the largest of the right numbers was multiplied by."""
    got, right, _ = pair
    if got.shape != right.shape or not right.size or right.dtype.kind != "f":
        return np.nan
    place = np.argmax(np.abs(right))
    return (got.flat[place] / right.flat[place]).item()
