"""Teacher forcing in steps: what the decoder reads, and what it is to predict."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def teacher_forcing(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check how a target is split into what the decoder reads and what it must predict.

    Runs `f` on targets of several lengths, down to only start and stop, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(target)``, by position, on integers (n,), the first of which is the start
        token and the last the stop token. It returns two arrays (n - 1,), (decoder_input, labels):
        the label at each position is the token after the one that is read there. It may be written
        only for one sequence, without leading axes, or only for batches.

    Examples
    --------
    >>> from attnbook import check
    >>> check.teacher_forcing(lambda target: (target[:-1], target[:-1])).mistake
    'no shift'
    """
    return run(TEACHER_FORCING, f, time_limit)


def taken(target, start, stop, filler=None):
    """Take the places from `start` to n + `stop`; beyond the ends, fill or roll."""
    n = target.shape[-1]
    places = np.arange(start, n + stop)
    found = target[..., places % n]
    return found if filler is None else np.where(places == places % n, found, filler)


def _force(steps: Any, target):
    target = steps.order(target)
    return steps.results(steps.read(target), steps.label(target))


BEYOND_THE_ENDS = (
    *(((0, 0), (1, 1)), ((-1, -1), (0, 0)), ((-1, -2), (0, -1)), ((0, -1), (1, 1))),
    *(((0, -1), (-1, -1)), ((0, 0), (-1, -1)), ((1, 1), (0, 0)), ((-1, -1), (1, 0))),
    *(((-1, 0), (0, 1)), ((-1, -2), (1, 0))),
)
"""Where reading and the labels begin and end, with something of what lies beyond the target."""

TEXT = Text(globals())


def labels_follow(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether each label is what is read one place later."""
    read, labels = values
    if read.shape == labels.shape and np.array_equal(read[..., 1:], labels[..., :-1]):
        return None
    return "Each label is what the decoder reads one place later; here it is not."


_LONG = np.array([1, 5, 3, 7, 4, 6, 2])
_BATCH = np.array([[1, 5, 3, 4, 2], [1, 4, 6, 5, 2], [1, 3, 7, 6, 2]])

TEACHER_FORCING = Check(
    name="teacher_forcing",
    parameters=("target",),
    results={"decoder_input": "(..., n − 1)", "labels": "(..., n − 1)"},
    reference=lambda target: (target[..., :-1], target[..., 1:]),
    compute=_force,
    steps=TEXT.steps,
    stages=(
        Stage(tuple(Case({"target": target}) for target in (_LONG, _BATCH[0], _LONG[[0, 2, 6]]))),
        Stage((Case({"target": _LONG[[0, 6]]}),)),
        Stage((Case({"target": _BATCH}),), may_raise="a batch (leading axes)"),
    ),
    mistakes=TEXT.mistakes,
    properties=(labels_follow,),
    kind="integral",
)
