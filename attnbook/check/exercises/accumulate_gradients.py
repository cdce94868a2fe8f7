"""Gradient accumulation in steps: gradients of pieces of a batch, weighed and added."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text


@documented
def accumulate_gradients(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check how the gradients of the pieces of a batch are combined into that of the batch.

    Runs `f` on one piece and on several pieces with different numbers of labels, even with none.

    Parameters
    ----------
    f : callable
        Called as ``f(gradients, counts)``, by position, on an array (pieces, d), whose rows are the
        gradients of the mean loss of each piece, and integers (pieces,): how many labels count in
        each. It returns the gradient of the mean loss over all labels that count, (d,).

    Examples
    --------
    >>> from attnbook import check
    >>> check.accumulate_gradients(lambda gradients, counts: gradients.mean(axis=0)).mistake
    'mean of the means'
    """
    return run(ACCUMULATE_GRADIENTS, f, time_limit)


def accumulate(s: Any, gradients, counts):
    """Return the gradient that the steps `s` make of those of the pieces."""
    gradients, counts = s.pieces(gradients, counts)
    weighed = s.weigh(gradients, s.weights(counts))
    return s.leave(s.divide(s.sum(weighed), s.total(counts)))


def softmax(counts):
    powers = np.exp(counts - np.max(counts))
    return powers / np.sum(powers)


TEXT = Text(globals())


def _case(seed: int, d: int, *counts: int) -> Case:
    return Case({"gradients": draw(seed, len(counts), d), "counts": np.array(counts)})


ACCUMULATE_GRADIENTS = Check(
    name="accumulate_gradients",
    parameters=("gradients", "counts"),
    results={"gradient": "(d,)"},
    compute=accumulate,
    steps=TEXT.steps,
    stages=(
        Stage((_case(90, 5, 7, 11), _case(91, 3, 13, 2, 5))),
        Stage((_case(92, 2, 40),)),
        Stage((_case(93, 5, 3, 0, 17), _case(94, 4, 0, 0, 9, 23))),
    ),
    mistakes=TEXT.mistakes,
)
