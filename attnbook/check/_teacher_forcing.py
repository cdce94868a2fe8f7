"""The check of teacher forcing: what the decoder reads, and what it is to predict."""

from collections.abc import Callable

import numpy as np

from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values
from attnbook.check._report import Report


def teacher_forcing(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check how a target is cut into what the decoder reads and what it is to predict.

    Runs `f` on targets of several lengths, down to start and stop alone, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(target)``, by position, on integers (n,), the first of which is the start
        token and the last the stop token. It returns two arrays (n - 1,), (decoder_input, labels):
        the label at each place is the token after the one that is read there. It may be written for
        one sequence, without leading axes, or for batches alone.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import check
    >>> check.teacher_forcing(lambda target: (target[:-1], target[:-1])).mistake
    'no shift'
    """
    return run(TEACHER_FORCING, f, time_limit)


def _reference(target):
    return target[..., :-1], target[..., 1:]


def labels_follow(case: Case, values: Values, again: Callable) -> str | None:
    read, labels = values
    if read.shape == labels.shape and np.array_equal(read[..., 1:], labels[..., :-1]):
        return None
    return "Each label is what the decoder reads one place later; here it is not."


_MISTAKES = (
    Mistake(
        "no shift",
        "The decoder reads at each place the very token that it is to predict there: the target is "
        "not shifted. Training would look perfect and teach it to copy. Read target[:-1], and "
        "predict target[1:].",
        (
            lambda target: (target, target),
            lambda target: (target[..., :-1], target[..., :-1]),
            lambda target: (target[..., 1:], target[..., 1:]),
            lambda target: (target[..., 1:-1], target[..., 1:-1]),
        ),
    ),
    Mistake(
        "shifted the wrong way",
        "Your shift goes the wrong way: the decoder reads a token and is to predict the one before "
        "it. Read target[:-1], and predict target[1:], and return them in this order.",
        (lambda target: (target[..., 1:], target[..., :-1]),),
    ),
    Mistake(
        "stop read by the decoder",
        "The decoder reads the whole target, with its stop token. Nothing follows the stop, so "
        "there is no label for it: leave the last token out of what is read.",
        (lambda target: (target, target[..., 1:]),),
    ),
    Mistake(
        "start among the labels",
        "Your labels begin with the start token. It is given, never predicted: the first label is "
        "the token after it.",
        (
            lambda target: (target[..., :-1], target),
            lambda target: (target[..., 1:-1], target[..., :-1]),
        ),
    ),
    Mistake(
        "start not read",
        "What the decoder reads begins after the start token, so nothing is left to predict the "
        "first token from. Read target[:-1].",
        (
            lambda target: (target[..., 1:-1], target[..., 1:]),
            lambda target: (target[..., 1:-1], target[..., 2:]),
        ),
    ),
    Mistake(
        "stop not predicted",
        "Your labels end before the stop token, so the model never learns where to end.",
        (
            lambda target: (target[..., :-1], target[..., 1:-1]),
            lambda target: (target[..., :-2], target[..., 1:-1]),
        ),
    ),
    Mistake(
        "shifted by two",
        "Your labels lie two places ahead, so one token in between is never seen. One place.",
        (lambda target: (target[..., :-2], target[..., 2:]),),
    ),
    Mistake(
        "rolled",
        "You roll the target, so the token that falls off at one end comes back at the other. Cut "
        "instead: target[:-1] and target[1:].",
        (
            lambda target: (target, np.roll(target, -1, axis=-1)),
            lambda target: (np.roll(target, 1, axis=-1), target),
            lambda target: (np.roll(target, 1, axis=-1)[..., :-1], target[..., :-1]),
        ),
    ),
    Mistake(
        "halves of the target",
        "You cut the target in the middle, into what is read and what is to be predicted. Both "
        "hold nearly all of it, one place apart.",
        (
            lambda target: tuple(np.split(target, [target.shape[-1] // 2], axis=-1)),
            lambda target: tuple(np.split(target, [(target.shape[-1] + 1) // 2], axis=-1)),
        ),
    ),
    Mistake(
        "alternate tokens",
        "You read every other token and predict those between. Every token but the last is read, "
        "and every token but the first is predicted.",
        (lambda target: (target[..., ::2], target[..., 1::2]),),
    ),
    Mistake(
        "shifted along the batch",
        "On a batch you leave out the last and the first sequence instead of the last and the "
        "first token. Count the axis from the end: target[..., :-1].",
        (lambda target: (target[:-1], target[1:]),),
    ),
)

_LONG = np.array([1, 5, 3, 7, 4, 6, 2])
_BATCH = np.array([[1, 5, 3, 4, 2], [1, 4, 6, 5, 2], [1, 3, 7, 6, 2]])

TEACHER_FORCING = Check(
    name="teacher_forcing",
    parameters=("target",),
    results={"decoder_input": "(..., n − 1)", "labels": "(..., n − 1)"},
    reference=_reference,
    stages=(
        Stage(tuple(Case({"target": target}) for target in (_LONG, _BATCH[0], _LONG[[0, 2, 6]]))),
        Stage((Case({"target": _LONG[[0, 6]]}),)),
        Stage((Case({"target": _BATCH}),), beyond="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(labels_follow,),
    options=(),
    remarked_options=(),
    kind="integral",
    sequences=("target",),
    sequence_axes=1,
)
