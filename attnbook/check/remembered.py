"""A few numbers of what many computations give on one case, kept for the next answer."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from attnbook.check.calls import Attempt
from attnbook.check.steps import Case, Check, Values, tolerances

RESULTS = 3
"""Of how many results a digest keeps the first and the last number, beside the shapes of all."""

WIDTH = 1 + 2 * RESULTS
MOST = 64
"""How many tables are kept, each of at most 2 MB."""


class Digests:
    """Tables of digests by check and cases: those that were asked for last.

    Checks and cases are known again as the same objects, which a table keeps alive.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], tuple[Check, list[Case], array]] = OrderedDict()

    def of(self, check: Check, cases: list[Case]) -> array:
        """Return the table of these cases, of which the first is the one that is computed."""
        key = (id(check), id(cases[0]), *sorted(map(id, cases[1:])))
        table = self._kept.setdefault(key, (check, cases, array("d")))[-1]
        self._kept.move_to_end(key)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return table


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
