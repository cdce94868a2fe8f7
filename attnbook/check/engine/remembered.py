"""A few numbers of what many computations give on one case, kept for the next answer."""

import functools
from array import array
from collections.abc import Sequence

import numpy as np

from attnbook.check.engine.calls import Attempt
from attnbook.check.engine.steps import Case, Check, Values, tolerances

RESULTS = 3
"""Of how many results a digest keeps the first and the last number, beside the shapes of all."""

WIDTH = 1 + 2 * RESULTS
MOST = 64
"""How many tables are kept, each of at most 2 MB."""


@functools.lru_cache(maxsize=MOST)
def digests_of(check: Check, first: Case, others: frozenset[Case]) -> array:
    """Return the table of these cases, of which the first is the one that is computed."""
    return array("d")


def digest(values: Values | None) -> array:
    """Return shapes and a few numbers in a row; without values one that is near nothing."""
    if values is None:
        return array("d", [np.nan] * WIDTH)
    row = [float(hash(tuple(np.shape(x) for x in values)) % 2**53)]
    for x in map(np.asarray, values[:RESULTS]):
        row += [float(x.flat[0]), float(x.flat[-1])] if x.size else [0.0, 0.0]
    return array("d", row + [0] * (WIDTH - len(row)))


def near(attempt: Attempt, digests: Sequence[float]) -> np.ndarray:
    """Tell of each digest whether the values of an attempt may be those that it was made of."""
    table = np.array(digests).reshape(-1, WIDTH)
    got = np.array(digest(attempt.values))
    bounds = np.zeros((2, WIDTH))
    for i, x in enumerate(attempt.values[:RESULTS]):
        bounds[:, 1 + 2 * i : 3 + 2 * i] = np.reshape(tolerances(x, attempt.case), (2, 1))
    with np.errstate(all="ignore"):
        close = np.abs(got - table) <= bounds[1] + bounds[0] * np.abs(table)
    close |= (got == table) | (np.isnan(got) & np.isnan(table))
    return (got[0] == table[:, 0]) & close.all(axis=1)
