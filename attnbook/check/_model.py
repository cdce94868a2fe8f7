"""What a check is made of, and how numbers are compared."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnbook.arrays.weights import Weights

Values = tuple[np.ndarray, ...]

TOLERANCES = {2: (1e-2, 1e-2), 4: (1e-4, 1e-5), 8: (1e-5, 1e-6)}
"""Relative and absolute tolerance by the bytes of a number.

Wide enough for a cast to float32 on the way and for finite differences; no mistake is so small.
"""


@dataclass(frozen=True)
class Case:
    """One input: arguments by position, arrays, weights and ints, and options by name.

    An object with a method `to` is given in each library, as arrays are. `about` ends the
    description of the case.
    """

    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    about: str = ""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in self.arguments.items() if isinstance(x, np.ndarray)}

    @property
    def has_library(self) -> bool:
        """Whether something in it lives in an array library."""
        return any(hasattr(x, "to") for x in self.arguments.values()) or bool(self.arrays)

    @property
    def size(self) -> int:
        arguments = self.arguments.values()
        ints = (x for x in arguments if isinstance(x, int))
        return sum(x.size for x in self.arrays.values()) + sum(ints)

    @property
    def dtype(self) -> str:
        """That of the first array of floats, else of the first array; empty without one."""
        found = sorted((x.dtype for x in self.arrays.values()), key=lambda dtype: dtype.kind != "f")
        return found[0].name if found else ""

    @property
    def is_square(self) -> bool:
        return len({size for x in self.arrays.values() for size in x.shape}) == 1

    def __str__(self) -> str:
        given = {**self.arguments, **self.options}
        shown = ", ".join(_shown(name, x) for name, x in given.items())
        return shown + (f" of {self.dtype}" if self.dtype else "") + self.about


def _shown(name: str, x: Any) -> str:
    if isinstance(x, np.ndarray):
        return f"{name} {x.shape}"
    return name if hasattr(x, "to") else f"{name} = {x}"


@dataclass(frozen=True)
class Stage:
    """Cases that belong together.

    With `option` the stage runs only if the function takes an argument of that name. With
    `beyond`, which completes "on … it raises", they lie beyond what is asked of a function for
    matrices: whatever goes wrong there is only remarked upon. With `may_raise`, which completes the
    same words, an error is remarked upon and a wrong result is wrong. With `within` the stage runs
    only if the stage of that `beyond` or `may_raise` went well. `errors` names the mistake that an
    error of plain Python shows in this stage.
    """

    cases: tuple[Case, ...]
    option: str = ""
    beyond: str = ""
    may_raise: str = ""
    within: str = ""
    errors: dict[type[BaseException], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mistake:
    """A classic wrong answer: its name, what a teacher says about it, and how to compute it.

    What is no result of the right type at all is recognised by `told_by`, which is given the object
    that was returned, or the NumPy array of a wrong dtype.
    """

    name: str
    message: str
    models: tuple[Callable[..., Any], ...]
    told_by: Callable[[Any], bool] = lambda returned: False


@dataclass(frozen=True)
class Check:
    """Everything that the engine needs to know to check one kind of function.

    Of `parameters`, which are passed by position, one that is also an option may be missing.
    `kind` is what the results hold, "real floating" numbers, "integral" ones or "bool". A function
    that takes batches alone is handed each of the `sequences`, which have `sequence_axes` axes,
    with a leading axis of length 1. With `any_length` the shape of a result is part of the answer.

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
    kind: str = "real floating"
    sequences: tuple[str, ...] = ()
    sequence_axes: int = 2
    any_length: bool = False

    def expected(self, case: Case) -> Values:
        with np.errstate(all="ignore"):
            return as_tuple(self.reference(*map(_widen, case.arguments.values()), **case.options))


def _widen(x: Any) -> Any:
    if isinstance(x, Weights):
        return x.with_arrays({name: _widen(array) for name, array in x.arrays().items()})
    is_float = isinstance(x, np.ndarray) and x.dtype.kind == "f"
    return x.astype(np.float64, copy=False) if is_float else x


def as_tuple(values: Any) -> Values:
    return values if isinstance(values, tuple) else (values,)


def agree(got: Values, expected: Values, case: Case) -> bool:
    """Tell whether shapes and numbers agree, to the lower of the two precisions."""
    return len(got) == len(expected) and all(
        g.shape == e.shape and bool(np.all(close(g, e, case)))
        for g, e in zip(got, expected, strict=True)
    )


def close(got: np.ndarray, expected: np.ndarray, case: Case) -> np.ndarray:
    if got.dtype.kind != "f":
        return got == expected
    bound = np.dtype(case.dtype or np.float64)
    rtol, atol = TOLERANCES[min(got.dtype.itemsize, bound.itemsize)]
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
            place = f"[{', '.join(map(str, index))}]" if index else ""
            return f"With {case}: {label}{place} is {_distinct(g[index], e[index])}."
    return ""


def _distinct(got: float, expected: float) -> str:
    if isinstance(expected, (np.bool, np.integer)):
        return f"{got}, expected {expected}"
    short, long = (f"{got:.{digits}g}, expected {expected:.{digits}g}" for digits in (4, 17))
    return long if f"{got:.4g}" == f"{expected:.4g}" else short


@functools.cache
def draw(seed: int, *shape: int) -> np.ndarray:
    """Return the same normal numbers for the same seed and shape, always."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)
