"""Gradient accumulation in steps: gradients of pieces of a batch, weighed and added."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Way, draw, each


@documented
def accumulate_gradients(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check how the gradients of the pieces of a batch become that of the batch.

    Runs `f` on one piece and on several, whose numbers of labels differ, one of them without any.

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


STEPS: dict[str, Any] = {
    "pieces": lambda gradients, counts: (gradients, counts),
    "weights": lambda counts: counts,
    "weigh": lambda gradients, weights: gradients * weights[:, np.newaxis],
    "sum": lambda weighed: np.sum(weighed, axis=0),
    "total": np.sum,
    "divide": np.divide,
    "leave": lambda gradient: gradient,
}


def accumulate(s: Any, gradients, counts):
    """Return the gradient that the steps `s` make of those of the pieces."""
    gradients, counts = s.pieces(gradients, counts)
    weighed = s.weigh(gradients, s.weights(counts))
    return s.leave(s.divide(s.sum(weighed), s.total(counts)))


def _softmax(counts):
    powers = np.exp(counts - np.max(counts))
    return powers / np.sum(powers)


def _weighed_by(weights: Callable) -> Way:
    return {"weights": weights, "total": lambda counts: np.sum(weights(counts))}


def _but_the_last(counts):
    return counts * (np.arange(len(counts)) < len(counts) - 1)


def _halved(counts):
    """Return the weights of a mean that is taken of what there is and of the next piece."""
    last = len(counts) - 1
    return 0.5 ** np.minimum(last + 1 - np.arange(last + 1), last)


_MISTAKES = mistakes(
    """
    mean of the means: You take the mean of the gradients of the pieces, so a label in a piece with
        few of them counts more than one in a full piece. Weigh each piece by its number of labels,
        and divide by the number of all.
    sum of the means: You add the gradients of the pieces. Each is a mean: weigh it by its number
        of labels, and divide by the number of all.
    sum over the labels: You return the gradient of the summed loss. Divide by the number of labels.
    divided by the pieces: You weigh the pieces and divide by how many pieces there are. Divide by
        the number of labels in all pieces.
    divided by the largest: You divide by the largest count. Divide by the sum of the counts.
    divided by another number: You divide by another number than the sum of the counts: their mean,
        the first of them, one more or less, or twice as many.
    median for the mean: You return the median of the gradients. Add them, each weighed by its
        count.
    sign: Your gradient has the wrong sign. The minus belongs to the step.
    weighed upside down: You divide each gradient by its number of labels. Multiply.
    weighed by the root: You weigh by the root of the count, or by its square. The count itself is
        the weight.
    summed over the parameters: You sum over the wrong axis. The pieces are the rows.
    last piece alone: You return the gradient of the last piece. `backward` adds to what is there;
        an assignment forgets it.
    shares cut to integers: Your shares are cut to integers by //, so nearly all are 0. Divide by /.
    last piece left out: Your loop ends before the last piece, and its gradient is missing.
    first piece left out: Your loop begins with the second piece, and the gradient of the first is
        missing.
    running mean of two: You take the mean of what you have and of the next piece, so the last one
        counts half. Weigh each by its number of labels.
    counts along the parameters: You multiply by the counts without an axis, so parameter j gets the
        count of piece j. It runs only where there are as many: counts[:, None].
    not weighed: You add the gradients as they are and divide by the number of labels. Each is a
        mean: multiply it by its number of labels first.
    first piece alone: You return the gradient of the first piece.
    empty pieces counted as one: You give a piece without labels the weight 1. It has none.
    weighed by something else: You weigh by a function of the counts, such as a softmax, a logarithm
        or 1 more. The count itself is the weight.
    counts in another order: You weigh the pieces by the counts of others. Piece i has count i.
    one piece alone: You return the gradient of the piece with the most or the fewest labels.
    """,
    {
        "mean of the means": (
            {"weights": np.ones_like, "total": len},
            {"weights": lambda n: 1.0 * (n > 0), "total": np.count_nonzero},
        ),
        "sum of the means": {"weights": np.ones_like, "total": lambda n: 1},
        "sum over the labels": each("total", lambda n: 1),
        "divided by the pieces": each("total", len, np.count_nonzero),
        "divided by the largest": each("total", np.max),
        "divided by another number": each(
            "total",
            np.mean,
            lambda n: n[0],
            lambda n: np.sum(n) - 1,
            lambda n: np.sum(n) + 1,
            lambda n: 2 * np.sum(n),
            lambda n: np.sum(n) * len(n),
        ),
        "weighed by something else": (
            _weighed_by(_softmax),
            _weighed_by(np.log1p),
            _weighed_by(lambda n: n + 1),
            _weighed_by(lambda n: n - 1),
            {"total": lambda n: np.sqrt(np.sum(n * n))},
        ),
        "counts in another order": each("weights", lambda n: n[::-1], np.sort),
        "one piece alone": tuple(
            {"weights": lambda n, of=of: (np.arange(len(n)) == of(n)) * 1.0, "total": lambda n: 1}
            for of in (np.argmax, np.argmin)
        ),
        "median for the mean": {
            "weights": np.ones_like,
            "sum": lambda weighed: np.median(weighed, axis=0),
            "total": lambda n: 1,
        },
        "sign": each("leave", np.negative),
        "weighed upside down": (
            {"weights": lambda n: 1 / np.maximum(n, 1)},
            {
                "weights": lambda n: 1 / np.maximum(n, 1),
                "total": lambda n: np.sum(1 / np.maximum(n, 1)),
            },
            {"weights": lambda n: 1 / np.maximum(n, 1), "total": lambda n: 1},
            {"weights": lambda n: 1 / np.maximum(n, 1), "total": len},
        ),
        "weighed by the root": (
            *({"weights": w, "total": lambda n, w=w: np.sum(w(n))} for w in (np.sqrt, np.square)),
            *each("weights", np.sqrt, np.square),
        ),
        "summed over the parameters": each("sum", lambda weighed: np.sum(weighed, axis=1)),
        "last piece alone": (
            {"sum": lambda weighed: weighed[-1], "weights": np.ones_like, "total": lambda n: 1},
            {"sum": lambda weighed: weighed[-1]},
        ),
        "shares cut to integers": {"weights": lambda n: n // n.sum(), "total": lambda n: 1},
        "last piece left out": (
            {"weights": _but_the_last},
            {"pieces": lambda g, n: (g[:-1], n[:-1])},
        ),
        "first piece left out": (
            {"weights": lambda n: n * (np.arange(len(n)) > 0)},
            {"pieces": lambda g, n: (g[1:], n[1:])},
        ),
        "running mean of two": {"weights": _halved, "total": lambda n: 1},
        "counts along the parameters": each("weigh", np.multiply),
        "not weighed": each("weights", np.ones_like),
        "first piece alone": (
            {"sum": lambda weighed: weighed[0], "weights": np.ones_like, "total": lambda n: 1},
            {"sum": lambda weighed: weighed[0]},
        ),
        "empty pieces counted as one": (
            {
                "weights": lambda n: np.maximum(n, 1),
                "total": lambda n: np.sum(np.maximum(n, 1)),
            },
            {"weights": lambda n: np.maximum(n, 1)},
        ),
    },
)


def _case(seed: int, d: int, *counts: int) -> Case:
    return Case({"gradients": draw(seed, len(counts), d), "counts": np.array(counts)})


ACCUMULATE_GRADIENTS = Check(
    name="accumulate_gradients",
    parameters=("gradients", "counts"),
    results={"gradient": "(d,)"},
    compute=accumulate,
    steps=STEPS,
    stages=(
        Stage((_case(90, 5, 7, 11), _case(91, 3, 13, 2, 5))),
        Stage((_case(92, 2, 40),)),
        Stage((_case(93, 5, 3, 0, 17), _case(94, 4, 0, 0, 9, 23))),
    ),
    mistakes=_MISTAKES,
)
