"""What a check is made of, and how numbers are compared."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Values = tuple[np.ndarray, ...]

TOLERANCES = {2: (1e-2, 1e-2), 4: (1e-4, 1e-5), 8: (1e-5, 1e-6)}
"""Relative and absolute tolerance by the bytes of a number.

Wide enough for a cast to float32 on the way and for finite differences; no mistake is so small.
"""


@dataclass(frozen=True)
class Case:
    """One input: arrays by position, options by name."""

    arrays: dict[str, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(x.size for x in self.arrays.values())

    @property
    def dtype(self) -> str:
        return next(iter(self.arrays.values())).dtype.name

    @property
    def is_square(self) -> bool:
        return len({size for x in self.arrays.values() for size in x.shape}) == 1

    def __str__(self) -> str:
        shown = [f"{name} {x.shape}" for name, x in self.arrays.items()]
        for name, x in self.options.items():
            shown.append(f"{name} {x.shape}" if isinstance(x, np.ndarray) else f"{name} = {x}")
        return f"{', '.join(shown)} of {self.dtype}"


@dataclass(frozen=True)
class Stage:
    """Cases that belong together.

    With `option` the stage runs only if the function takes an argument of that name. With
    `beyond`, which completes "on … it raises", they lie beyond what is asked of a function for
    matrices: whatever goes wrong there is only remarked upon. `errors` names the mistake that an
    error of plain Python shows in this stage.
    """

    cases: tuple[Case, ...]
    option: str = ""
    beyond: str = ""
    errors: dict[type[BaseException], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mistake:
    """A classic wrong answer: its name, what a teacher says about it, and how to compute it."""

    name: str
    message: str
    models: tuple[Callable[..., Any], ...]


@dataclass(frozen=True)
class Check:
    """Everything that the engine needs to know to check one kind of function.

    `results` maps the name of each returned array to its shape in letters. A property looks at
    ``(case, values, again)``, where ``again(**arrays)`` calls the function once more with some
    arrays replaced and returns its values (none if it raises); it returns a sentence if it does
    not hold. Of `options`, those in `remarked_options` are remarked upon if they are missing.
    """

    name: str
    parameters: tuple[str, ...]
    results: dict[str, str]
    reference: Callable[..., Any]
    stages: tuple[Stage, ...]
    mistakes: tuple[Mistake, ...]
    properties: tuple[Callable[..., str | None], ...]
    options: tuple[str, ...]
    remarked_options: tuple[str, ...]
    adapt: Callable[[Callable], Callable] = lambda function: function

    def expected(self, case: Case) -> Values:
        wide = (x.astype(np.float64) for x in case.arrays.values())
        with np.errstate(all="ignore"):
            return as_tuple(self.reference(*wide, **case.options))


def as_tuple(values: Any) -> Values:
    return values if isinstance(values, tuple) else (values,)


def agree(got: Values, expected: Values, case: Case) -> bool:
    """Tell whether shapes and numbers agree, to the lower of the two precisions."""
    return len(got) == len(expected) and all(
        g.shape == e.shape and bool(np.all(close(g, e, case)))
        for g, e in zip(got, expected, strict=True)
    )


def close(got: np.ndarray, expected: np.ndarray, case: Case) -> np.ndarray:
    rtol, atol = TOLERANCES[min(got.dtype.itemsize, np.dtype(case.dtype).itemsize)]
    with np.errstate(all="ignore"):
        return np.isclose(got.astype(float), expected.astype(float), rtol, atol, equal_nan=True)


def difference(check: Check, case: Case, got: Values, expected: Values) -> str:
    """Say where `got` first differs from `expected`: in shape, else in a number."""
    for (label, letters), g, e in zip(check.results.items(), got, expected, strict=True):
        if g.shape != e.shape:
            return f"With {case}: {label} must have shape {letters} = {e.shape}, got {g.shape}."
        off = np.argwhere(~close(g, e, case))
        if len(off):
            index = tuple(off[0].tolist())
            place = ", ".join(map(str, index))
            return f"With {case}: {label}[{place}] is {_distinct(g[index], e[index])}."
    return ""


def _distinct(got: float, expected: float) -> str:
    short, long = (f"{got:.{digits}g}, expected {expected:.{digits}g}" for digits in (4, 17))
    return long if f"{got:.4g}" == f"{expected:.4g}" else short


@functools.cache
def draw(seed: int, *shape: int) -> np.ndarray:
    """Return the same normal numbers for the same seed and shape, always."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)
