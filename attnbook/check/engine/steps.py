"""The parts of a check: cases, the steps of the right computation, and ways to get them wrong.

A check is data. `Check.compute` runs named steps; a mistake names the steps that it replaces, so
that two mistakes can be made together, and a larger computation takes over the steps and the
mistakes of a smaller one.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from attnbook.arrays.weights import Weights

Values = tuple[np.ndarray, ...]

Way = Mapping[str, Any]
"""One way to make a mistake: the steps that it replaces, by name. ``{"compute": f}`` replaces the
whole computation by ``f(*arguments, **options)`` and goes with no other way."""

WHOLE = "compute"

TOLERANCES = {2: (1e-2, 1e-2), 4: (1e-4, 1e-5), 8: (1e-5, 1e-6)}
"""Relative and absolute tolerance by the bytes of a number.

Wide enough for a cast to float32 on the way and for finite differences; no mistake is so small.
"""

LEGIBLE = 24
"""A result that is made of lists or texts is shown as a whole up to this size."""


@dataclass(frozen=True, eq=False)
class Case:
    """One input: arguments by position, arrays, weights and ints, and options by name.

    An object with a method `to` is given in each library, as arrays are. `about` ends the
    description of the case.
    """

    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    about: str = ""

    @functools.cached_property
    def input(self) -> dict[str, Any]:
        """Arguments and options together, by name."""
        return {**self.arguments, **self.options}

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in self.arguments.items() if isinstance(x, np.ndarray)}

    @functools.cached_property
    def has_library(self) -> bool:
        """Whether something in it lives in an array library."""
        return any(hasattr(x, "to") for x in self.arguments.values()) or bool(self.arrays)

    @functools.cached_property
    def wide(self) -> "Case":
        """The same in float64."""
        wide = {name: _widen(x) for name, x in self.arguments.items()}
        alike = [*map(id, wide.values())] == [*map(id, self.arguments.values())]
        return self if alike else replace(self, arguments=wide)

    @property
    def has_lists(self) -> bool:
        """Whether a list or a text is in it, in the place of an array."""
        return any(isinstance(x, (list, str)) for x in self.arguments.values())

    @property
    def size(self) -> int:
        arguments = self.arguments.values()
        ints = (x for x in arguments if isinstance(x, int))
        lists = (len(x) for x in arguments if isinstance(x, (list, str)))
        return sum(x.size for x in self.arrays.values()) + sum(ints) + sum(lists)

    @functools.cached_property
    def dtype(self) -> str:
        """That of the first array of floats, else of the first array; empty without one."""
        found = sorted((x.dtype for x in self.arrays.values()), key=lambda dtype: dtype.kind != "f")
        return found[0].name if found else ""

    @property
    def is_square(self) -> bool:
        return len({size for x in self.arrays.values() for size in x.shape}) == 1

    def __str__(self) -> str:
        shown = ", ".join(_shown(name, x) for name, x in self.input.items())
        return shown + (f" of {self.dtype}" if self.dtype else "") + self.about


def _shown(name: str, x: Any) -> str:
    if isinstance(x, np.ndarray):
        return f"{name} {x.shape}"
    return name if hasattr(x, "to") else f"{name} = {x!r}"


@dataclass(frozen=True)
class Stage:
    """Cases that belong together.

    With `option` the stage runs only if the function takes an argument of that name, or of each of
    several. With `beyond`, which completes "on … it raises", whatever goes wrong is only remarked
    upon. With `may_raise`, an error is, and a wrong result is wrong, unless the function raises on
    the first case: then it takes no such input, and what fits it in the others by chance is only
    remarked upon. With `within` it runs only if the stage of that `beyond` or `may_raise` went
    well, so that nothing fits by chance. `errors` names the mistake that an error of plain Python
    shows here.
    """

    cases: tuple[Case, ...]
    option: str = ""
    beyond: str = ""
    may_raise: str = ""
    within: str = ""
    errors: dict[type[BaseException], str] = field(default_factory=dict)

    def excuses(self, first: BaseException | None) -> bool:
        """Tell whether wrong results are remarked upon; `first` is the error of the first case."""
        return bool(self.beyond or (self.may_raise and first and not self.within))


@dataclass(frozen=True)
class Mistake:
    """A classic wrong answer: its name, what a teacher says about it, and the ways to make it.

    What is no result of the right type at all is recognised by `told_by`, which is given the object
    that was returned, or the NumPy array of a wrong dtype. A `convention` is right elsewhere, and
    its message says where.
    """

    name: str
    message: str
    ways: tuple[Way, ...] = ()
    told_by: Callable[[Any], bool] | None = None
    convention: bool = False


def renamed(mistakes: tuple[Mistake, ...], names: dict[str, tuple[str, str]]) -> tuple:
    """Return the mistakes with another name and message for some of them."""
    return tuple(
        Mistake(*names[m.name], m.ways, m.told_by) if m.name in names else m for m in mistakes
    )


def without(mistakes: tuple[Mistake, ...], *names: str) -> tuple[Mistake, ...]:
    """Return the mistakes but those of these names."""
    return tuple(m for m in mistakes if m.name not in names)


def only(mistakes: tuple[Mistake, ...], *names: str) -> tuple[Mistake, ...]:
    """Return the mistakes of these names, in the order of the table."""
    return tuple(m for m in mistakes if m.name in names)


@dataclass(frozen=True, eq=False)
class Check:
    """Everything that the engine needs to know to check one kind of function.

    Of `parameters`, which are passed by position, one that is also an option may be missing.
    `results` maps the name of each returned array to its shape in letters.
    ``compute(steps, *arguments, **options)`` gives the right results, and those of a mistake if
    some of `steps` are replaced; a `reference` gives the right ones without steps. A way of
    `variants` is not wrong: a right function may do a
    step so, and next to a mistake it changes the numbers.

    The results hold numbers of a `kind`: "real floating", "integral" or "bool". With `any_length`
    the shape of a result is part of the answer. With `legible` an input may be rounded to be shown,
    where the function is wrong on that as well.

    A property looks at ``(case, values, again)``, where ``again(**arrays)`` calls the function once
    more with some arrays replaced and returns its values (none if it raises), and returns a
    sentence if it does not hold. Of `options`, those in `remarked_options` are remarked upon if
    they are missing. `adapt` turns the reader's function into one of `parameters`.
    """

    name: str
    parameters: tuple[str, ...]
    results: dict[str, str]
    stages: tuple[Stage, ...]
    mistakes: tuple[Mistake, ...]
    reference: Callable[..., Any] | None = None
    compute: Callable[..., Any] | None = None
    steps: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[Way, ...] = ()
    properties: tuple[Callable[..., str | None], ...] = ()
    options: tuple[str, ...] = ()
    remarked_options: tuple[str, ...] = ()
    adapt: Callable[[Callable], Callable] = lambda function: function
    kind: str = "real floating"
    any_length: bool = False
    legible: bool = False

    def __post_init__(self) -> None:
        ways = [*self.variants, *(way for mistake in self.mistakes for way in mistake.ways)]
        unknown = {step for way in ways for step in way} - {*self.steps, WHOLE}
        if unknown:
            raise ValueError(f"{self.name} has no step {', '.join(sorted(unknown))}")

    @functools.cached_property
    def sequence_axes(self) -> dict[str, int]:
        """The arrays that get leading axes for a batch, and how many axes they have without."""
        one = self.stages[0].cases[0].arrays
        of_batch = [stage for stage in self.stages if stage.may_raise.startswith("a batch")]
        cases = [case for stage in of_batch for case in stage.cases]
        batches = [(name, x) for case in cases for name, x in case.arrays.items()]
        of_batches = {name for name, x in batches if name in one and x.ndim > one[name].ndim}
        return {name: x.ndim for name, x in one.items() if name in of_batches}

    @functools.cached_property
    def handed_on(self) -> dict[str, Callable[[Callable, Callable], Callable]]:
        """How two changes follow one another in the steps that return what they are given.

        Such a step returns its first argument, or all of them in a tuple.
        """
        found: dict[str, Callable[[Callable, Callable], Callable]] = {}
        functions = {k: step for k, step in self.steps.items() if isinstance(step, FunctionType)}
        for name, step in functions.items():
            arrays = [np.ones((2, 3)) for _ in range(step.__code__.co_argcount)]
            try:
                with np.errstate(all="ignore"):
                    returned = step(*arrays)
            except Exception:  # it computes
                continue
            if arrays and returned is arrays[0]:
                found[name] = lambda f, g: lambda x, *others: g(f(x, *others), *others)
            elif isinstance(returned, tuple) and [*map(id, returned)] == [*map(id, arrays)]:
                found[name] = lambda f, g: lambda *given: g(*f(*given))
        return found

    @functools.cached_property
    def told_by_type(self) -> tuple[Mistake, ...]:
        """The mistakes that what is returned tells by itself."""
        return tuple(mistake for mistake in self.mistakes if mistake.told_by)

    def expected(self, case: Case) -> Values:
        return _values(self.reference or self._computation({}), case.wide)

    def _computation(self, way: Way) -> Callable[..., Any]:
        """Return the computation in which the steps of `way` are replaced."""
        if WHOLE in way:
            return way[WHOLE]
        assert self.compute is not None
        return functools.partial(self.compute, SimpleNamespace(**{**self.steps, **way}))

    def model(self, way: Way) -> Callable[[Case], Values]:
        """Return the computation in which the steps of `way` are replaced, as one of a case."""
        return functools.partial(_values, self._computation(way))


def _values(function: Callable[..., Any], case: Case) -> Values:
    with np.errstate(all="ignore"):
        return as_tuple(function(*case.arguments.values(), **case.options))


def _widen(x: Any) -> Any:
    if isinstance(x, Weights):
        arrays = {name: _widen(array) for name, array in x.arrays().items()}
        alike = [*map(id, arrays.values())] == [*map(id, x.arrays().values())]
        return x if alike else x.with_arrays(arrays)
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
    """Compare number by number, those of integers and booleans exactly.

    This is `np.isclose` without its reading of arguments, which takes longer than all the rest.
    """
    if got.dtype.kind != "f":
        return got == expected
    rtol, atol = tolerances(got, case)
    got, expected = got.astype(float), expected.astype(float)
    with np.errstate(all="ignore"):
        near = abs(got - expected) < atol + rtol * abs(expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    return same | (near & np.isfinite(expected))


def tolerances(got: np.ndarray, case: Case) -> tuple[float, float]:
    """Return the relative and the absolute tolerance for a result of a case."""
    if got.dtype.kind != "f":
        return 0.0, 0.0
    bound = np.dtype(case.dtype or np.float64)
    return TOLERANCES[min(got.dtype.itemsize, bound.itemsize)]


def difference(check: Check, case: Case, got: Values, expected: Values) -> str:
    """Say where `got` first differs from `expected`: in shape, else in a number."""
    for (label, letters), g, e in zip(check.results.items(), got, expected, strict=True):
        if case.has_lists and max(g.size, e.size) <= LEGIBLE:
            if not np.array_equal(g, e):
                return f"With {case}: {label} are {g.tolist()}, expected {e.tolist()}."
            continue
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
    return "{}, expected {}".format(*told_apart(got, expected))


def told_apart(got: float, expected: float) -> tuple[str, str]:
    """Return two numbers as texts with as many digits as tell them apart."""
    alike = f"{got:.4g}" == f"{expected:.4g}"
    return (f"{got:.17g}", f"{expected:.17g}") if alike else (f"{got:.4g}", f"{expected:.4g}")


SEED = int(os.environ.get("ATTNBOOK_CHECK_SEED", "0"))
"""Any number but 0 gives the cases of all checks other numbers of the same kind."""


def sized(*usual: tuple[int, ...], seed: int = SEED) -> tuple[tuple[int, ...], ...]:
    """Return sizes of cases; for another seed each number but 1 becomes another, alike ones alike.

    What differs goes on to differ, so that a swapped axis shows.
    """
    if not seed:
        return usual
    rng, found = np.random.default_rng((seed, len(usual))), []
    for case in usual:
        known = sorted({*case} - {1})
        drawn = map(int, rng.choice(np.arange(2, 9), len(known), replace=False))
        others = {1: 1, **dict(zip(known, drawn, strict=True))}
        found.append(tuple(others[n] for n in case))
    return tuple(found)


@functools.cache
def draw(seed: int, *shape: int) -> np.ndarray:
    """Return the same normal numbers for the same seed and shape, always."""
    seeds = (SEED, seed, *shape) if SEED else (seed, *shape)
    return np.random.default_rng(seeds).normal(size=shape)
