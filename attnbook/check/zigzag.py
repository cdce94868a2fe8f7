"""The zigzag shards of a sequence in steps, and the ways to get each wrong."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import as_floats, signed_as
from attnbook.check.steps import Case, Check, Stage, each


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


def _late(r, p):
    return 2 * p - 1 - r


STEPS: dict[str, Callable] = {
    "runs": lambda n, p: np.arange(n).reshape(2 * p, -1),
    "early": lambda r, p: r,
    "late": _late,
    "pair": lambda early, late: (early, late),
    "all": lambda shards, n, p: shards,
}


def shards(s: Any, n, p):
    """Return the places of each process by the steps `s`."""
    runs = s.runs(n, p)
    pairs = [s.pair(runs[s.early(r, p)], runs[s.late(r, p)]) for r in range(p)]
    return np.asarray(s.all([np.concatenate(pair) for pair in pairs], n, p), float)


def _equal_runs(n, p):
    return np.arange(n).reshape(p, -1)


def _dealt(n, p, r):
    return np.arange(n).reshape(-1, 2 * p)[:, [r, 2 * p - 1 - r]].ravel()


def _beyond(places, run):
    """Return the places with those of the late run one run later, also where there is none."""
    return places + run * (np.arange(len(places)) >= run)


def _within(places, n):
    return np.where(places < n, places, NO_PLACE)


def _in_pairs(places):
    return places.reshape(2, -1).T.ravel()


def _adapt(function: Callable) -> Callable:
    """Return `function` with lists, or an array of ints, as an array of floats."""

    def adapted(*given):
        found = function(*given)
        if isinstance(found, (list, tuple)) and all(np.ndim(x) == 1 for x in found):
            found = list(zip(*itertools.zip_longest(*found, fillvalue=NO_PLACE), strict=True))
        return as_floats(found)

    return signed_as(function, adapted)


ZIGZAG_SHARDS = Check(
    name="zigzag_shards",
    parameters=("n", "p"),
    results={"places": "(p, n / p)"},
    compute=shards,
    steps=STEPS,
    stages=(
        Stage(tuple(Case({"n": n, "p": p}) for n, p in ((8, 2), (12, 2), (12, 3), (24, 4)))),
        Stage(tuple(Case({"n": n, "p": p}) for n, p in ((2, 1), (6, 1), (10, 5), (18, 3)))),
    ),
    mistakes=mistakes(
        """
        contiguous: You give each process one run of n/p neighbours. The process with the last run
            has nearly all of the work. Cut 2p runs and give each process two.
        neighbouring runs: You give process r the runs 2r and 2r + 1, or r and r + 1, which are
            neighbours. The
            second of the two comes from the other end.
        striped: You give process r the places r, r + p, r + 2p …: that is the striped order.
            Balanced too, but not the zigzag, in which neighbours stay together.
        same direction: You pair run r with run p + r. The second run goes backwards: process 0
            has the last one.
        early run alone: You return one of the two runs, once or twice. Each process has both.
        late run first: You put the late run in front. The places of a process rise.
        late run reversed: You turn a run round, or both of them. The runs are taken in turned
            order; the tokens in a run are not.
        one too far: Your late run is one beside the right one. Counted from 0, the r-th of 2p runs
            from the end has the number 2p − 1 − r.
        last run for all: You give every process the last run. Process r has the r-th from the end.
        runs of single tokens: You deal out single tokens there and back. A run has n / 2p
            neighbours.
        runs interleaved: You mix the tokens of the two runs. Those of the early run come first.
        run numbers: You return the numbers of the runs. Return the places that lie in them.
        places from 1: You count the places from 1. The first of n has the number 0.
        ranks reversed: You give the shards in the reverse order of the processes.
        runs of half the length: You cut 4p runs and return a half of the places.
        counted from the middle: Your second run is p − 1 − r, as if there were p runs. There are
            2p: the r-th from the end has the number 2p − 1 − r.
        """,
        {
            "contiguous": each(
                "all",
                lambda x, n, p: _equal_runs(n, p),
                lambda x, n, p: [a[:: (-1) ** r] for r, a in enumerate(_equal_runs(n, p))],
            ),
            "neighbouring runs": (
                {"early": lambda r, p: 2 * r, "late": lambda r, p: 2 * r + 1},
                {"late": lambda r, p: r + 1},
            ),
            "striped": each("all", lambda x, n, p: np.arange(n).reshape(-1, p).T),
            "same direction": each("late", lambda r, p: p + r),
            "early run alone": each(
                "pair",
                *(lambda a, b: (a,), lambda a, b: (b,), lambda a, b: (a, a), lambda a, b: (b, b)),
            ),
            "counted from the middle": (
                {"late": lambda r, p: p - 1 - r},
                {
                    "all": lambda x, n, p: np.concatenate(
                        [_equal_runs(n, p), _equal_runs(n, p)[::-1]], axis=1
                    )
                },
            ),
            "late run first": each("all", lambda x, n, p: [np.roll(a, len(a) // 2) for a in x]),
            "late run reversed": each(
                "pair",
                lambda a, b: (a, b[::-1]),
                lambda a, b: (a[::-1], b),
                lambda a, b: (a[::-1], b[::-1]),
                lambda a, b: (b[::-1], a[::-1]),
            ),
            "one too far": each(
                "late", lambda r, p: (2 * p - r) % (2 * p), lambda r, p: 2 * p - 2 - r
            )
            + each(
                "all",
                lambda x, n, p: [_beyond(a, n // (2 * p)) for a in x],
                lambda x, n, p: [_within(_beyond(a, n // (2 * p)), n) for a in x],
            ),
            "last run for all": each("late", lambda r, p: 2 * p - 1),
            "runs of single tokens": each(
                "all",
                lambda x, n, p: [_dealt(n, p, r) for r in range(p)],
                lambda x, n, p: [
                    [*range(r, n, 2 * p), *range(_late(r, p), n, 2 * p)] for r in range(p)
                ],
            ),
            "runs interleaved": each("all", lambda x, n, p: [_in_pairs(a) for a in x]),
            "run numbers": each("runs", lambda n, p: np.arange(2 * p)[:, np.newaxis]),
            "places from 1": each("all", lambda x, n, p: np.asarray(x) + 1),
            "ranks reversed": each("all", lambda x, n, p: x[::-1]),
            "runs of half the length": each(
                "runs", lambda n, p: np.arange(n // (4 * p) * 4 * p).reshape(4 * p, -1)
            ),
        },
    ),
    adapt=_adapt,
)
