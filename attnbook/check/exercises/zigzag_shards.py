"""The zigzag shards of a sequence in steps, and the ways to get each wrong."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import as_floats, signed_as
from attnbook.check.engine.steps import Case, Check, Stage
from attnbook.check.engine.text import Text


@documented
def zigzag_shards(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check which places of a sequence each process holds in the zigzag order.

    Runs `f` on one to five processes, and on runs of one to three tokens.

    Parameters
    ----------
    f : callable
        Called as ``f(n, p)``, by position, on two ints; n is a multiple of 2p. It returns the
        places 0 to n - 1 of each process, a list of p lists or an array (p, n / p): those of run r
        of 2p runs, then those of the r-th run from the end.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_shards(n, p):
    ...     return np.split(np.arange(n), p)
    >>> check.zigzag_shards(my_shards).mistake
    'contiguous'
    """
    return run(ZIGZAG_SHARDS, f, time_limit)


NO_PLACE = -1
"""What fills the lists of processes that hold fewer places than another."""


def shards(s: Any, n, p):
    """Return the places of each process by the steps `s`."""
    runs = s.runs(n, p)
    pairs = [s.pair(runs[s.early(r, p)], runs[s.late(r, p)]) for r in range(p)]
    return np.asarray(s.all([np.concatenate(pair) for pair in pairs], n, p), float)


def beyond(places, run):
    """Return the places with those of the late run one run later, also where there is none."""
    return places + run * (np.arange(len(places)) >= run)


def within(places, n):
    return np.where(places < n, places, NO_PLACE)


def _adapt(function: Callable) -> Callable:
    """Return `function` with lists, or an array of ints, as an array of floats."""

    def adapted(*given):
        found = function(*given)
        if isinstance(found, (list, tuple)) and all(np.ndim(x) == 1 for x in found):
            found = list(zip(*itertools.zip_longest(*found, fillvalue=NO_PLACE), strict=True))
        return as_floats(found)

    return signed_as(function, adapted)


TEXT = Text(globals())

ZIGZAG_SHARDS = Check(
    name="zigzag_shards",
    parameters=("n", "p"),
    results={"places": "(p, n / p)"},
    compute=shards,
    steps=TEXT.steps,
    stages=(
        Stage(tuple(Case({"n": n, "p": p}) for n, p in ((8, 2), (12, 2), (12, 3), (24, 4)))),
        Stage(tuple(Case({"n": n, "p": p}) for n, p in ((2, 1), (6, 1), (10, 5), (18, 3)))),
    ),
    mistakes=TEXT.mistakes,
    adapt=_adapt,
)
