"""Inputs of other sizes, which show what a function keeps from one call to the next."""

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.arrays.weights import Weights
from attnbook.check.steps import Case, Check


def grown(check: Check) -> Iterator[tuple[Case, Case, Case]]:
    """Yield cases of the first stage: one, the same with one size doubled, and a third.

    The third has the proportions of the second, and sizes that the first two do not have.
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
            yield case, longer, anew


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


def _is_taken(check: Check, case: Case) -> bool:
    try:
        check.expected(case)
    except Exception:  # such sizes do not fit together
        return False
    return True
