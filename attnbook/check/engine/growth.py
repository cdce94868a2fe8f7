"""Inputs of other sizes, which show what a function keeps from one call to the next."""

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.arrays.weights import Weights
from attnbook.check.engine.steps import Case, Check

DRAWS = 3
"""How often other numbers are drawn, so that no wrong result hangs on the numbers."""


def grown(check: Check) -> Iterator[tuple[Case, list[Case], list[Case]]]:
    """Yield a case of the first stage, the same with one size doubled, and a third.

    The third has the proportions of the second, and sizes that the first two do not have. Of the
    second and third there are several with other numbers.
    """
    case = max(check.stages[0].cases, key=lambda case: len(_sizes(case)))
    plain = (np.ndarray, int, Weights)
    if not all(isinstance(x, plain) for x in case.input.values()):
        return
    sizes = _sizes(case)
    for size in sorted(sizes) if len(sizes) > 1 else ():
        longer = _times(2, case, {size})
        anew = _times(3, longer, {2 * n if n == size else n for n in sizes})
        if _is_taken(check, longer) and _is_taken(check, anew):
            yield case, _draws(longer), _draws(anew)


def _sizes(case: Case) -> set[int]:
    """Return the sizes that may change, which are not those of weights."""
    inputs = case.arguments.values()
    fixed = [x for given in inputs if isinstance(given, Weights) for x in given.arrays().values()]
    free = {n for x in case.arrays.values() for n in x.shape}
    if not case.has_library:
        free = {x for x in inputs if isinstance(x, int)}
    return {n for n in free if n > 1} - {n for x in fixed for n in x.shape}


def _times(factor: int, case: Case, sizes: Set[int]) -> Case:
    def longer(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return factor * x if not case.has_library and x in sizes else x
        for axis, n in enumerate(x.shape):
            if n in sizes:
                x = np.take(x, np.arange(factor * n) % n, axis=axis)
        return x

    return replace(case, arguments={name: longer(x) for name, x in case.arguments.items()})


def _draws(case: Case) -> list[Case]:
    return [_redrawn(case, seed) for seed in range(DRAWS)]


def _redrawn(case: Case, seed: int) -> Case:
    """Return a case whose floats are a little larger or smaller, so that none occurs twice."""
    rng = np.random.default_rng(seed)

    def drawn(x: Any) -> Any:
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            return x
        return (x * rng.uniform(0.8, 1.2, x.shape)).astype(x.dtype)

    return replace(case, arguments={name: drawn(x) for name, x in case.arguments.items()})


def _is_taken(check: Check, case: Case) -> bool:
    try:
        check.expected(case)
    except Exception:  # such sizes do not fit together
        return False
    return True
