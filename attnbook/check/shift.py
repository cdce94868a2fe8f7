"""Teacher forcing in steps: what the decoder reads, and what it is to predict."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, each


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
        Seconds of computing for all calls together.

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


_STEPS: dict[str, Callable] = {
    "order": lambda target: target,
    "read": lambda target: target[..., :-1],
    "label": lambda target: target[..., 1:],
    "results": lambda read, labels: (read, labels),
}


def _force(steps: Any, target):
    target = steps.order(target)
    return steps.results(steps.read(target), steps.label(target))


def _cut(start: int | None, stop: int | None = None) -> Callable:
    return lambda target: target[..., start:stop]


def _rolled(by: int, start: int | None = None, stop: int | None = None) -> Callable:
    return lambda target: np.roll(target, by, axis=-1)[..., start:stop]


def _padded(before: bool, filler: int, start: int | None = None, stop: int | None = None):
    """Return the cut with a column of `filler` before or after it."""

    def pad(target):
        column = np.full_like(target[..., :1], filler)
        cut = target[..., start:stop]
        return np.concatenate([column, cut] if before else [cut, column], axis=-1)

    return pad


def _ways(*pairs: tuple[Callable, Callable]) -> tuple[dict[str, Callable], ...]:
    return tuple({"read": read, "label": label} for read, label in pairs)


_MISTAKES = mistakes(
    """
    no shift: The decoder reads at each place the very token that it is to predict there: the target
        is not shifted. Training would look perfect and teach it to copy. Read target[:-1], and
        predict target[1:].
    shifted the wrong way: Your shift goes the wrong way: the decoder reads a token and is to
        predict the one before it. Read target[:-1], and predict target[1:], and return them in this
        order.
    stop read by the decoder: The decoder reads the whole target, with its stop token. Nothing
        follows the stop, so there is no label for it: leave the last token out of what is read.
    start among the labels: Your labels begin with the start token. It is given, never predicted:
        the first label is the token after it.
    start not read: What the decoder reads begins after the start token, so nothing is left to
        predict the first token from. Read target[:-1].
    stop not predicted: Your labels end before the stop token, so the model never learns where to
        end.
    shifted by two: Your labels lie two places ahead, so one token in between is never seen. One
        place.
    too little read: What the decoder reads ends two tokens before the end, so it is shorter than
        the labels. Only the stop token is left out: target[:-1].
    rolled: You roll the target, so the token that falls off at one end comes back at the other. Cut
        instead: target[:-1] and target[1:].
    padded: You shift the target and fill the gap with another token, so both have the length of the
        target. Nothing is to be filled: each loses one token, target[:-1] and target[1:].
    halves of the target: You cut the target in the middle, into what is read and what is to be
        predicted. Both hold nearly all of it, one place apart.
    alternate tokens: You read every other token and predict those between. Every token but the last
        is read, and every token but the first is predicted.
    last token alone: You predict the last token, or the first, alone. Every token but the first is
        a label, each at the place before its own.
    backwards: You turn the target round. The tokens keep their order.
    shifted along the batch: On a batch you leave out the last and the first sequence instead of the
        last and the first token. Count the axis from the end: target[..., :-1].
    """,
    {
        "no shift": _ways(
            *((_cut(*place), _cut(*place)) for place in ((None,), (None, -1), (1,), (1, -1)))
        ),
        "shifted the wrong way": (
            *_ways((_cut(1), _cut(None, -1))),
            {"results": lambda read, labels: (labels, read)},
        ),
        "stop read by the decoder": each("read", _cut(None)),
        "start among the labels": ({"label": _cut(None)}, *_ways((_cut(1, -1), _cut(None, -1)))),
        "start not read": (
            {"read": _cut(1, -1)},
            *_ways((_cut(1, -1), _cut(2)), (_cut(1), _cut(2))),
        ),
        "stop not predicted": ({"label": _cut(1, -1)}, *_ways((_cut(None, -2), _cut(1, -1)))),
        "shifted by two": ({"label": _cut(2)}, *_ways((_cut(None, -2), _cut(2)))),
        "too little read": each("read", _cut(None, -2)),
        "rolled": _ways(
            (_cut(None), _rolled(-1)),
            (_rolled(1), _cut(None)),
            (_rolled(1, None, -1), _cut(None, -1)),
            (_cut(None, -1), _rolled(-1)),
            (_cut(None, -1), _rolled(1, 1)),
            (_cut(None, -1), _rolled(1)),
            (_cut(None), _rolled(1)),
            (_rolled(-1), _cut(None)),
            (_rolled(1), _cut(1)),
        ),
        "padded": _ways(
            *(
                pair
                for filler in (0, -100, 1, 2, -1)
                for pair in (
                    (_cut(None), _padded(False, filler, 1)),
                    (_padded(True, filler, None, -1), _cut(None)),
                    (_padded(True, filler, None, -1), _cut(1)),
                    (_cut(None, -1), _padded(False, filler, 1)),
                    (_padded(True, filler, None), _padded(False, filler, None)),
                    (_padded(True, filler, None, -2), _cut(None, -1)),
                    (_padded(True, filler, None, -2), _cut(1)),
                )
            )
        ),
        "halves of the target": _ways(
            *(
                (
                    lambda target, up=up: target[..., : (target.shape[-1] + up) // 2],
                    lambda target, up=up: target[..., (target.shape[-1] + up) // 2 :],
                )
                for up in (0, 1)
            )
        ),
        "alternate tokens": _ways((lambda t: t[..., ::2], lambda t: t[..., 1::2])),
        "last token alone": each(
            "label",
            lambda t: t[..., -1:],
            lambda t: t[..., -1],
            lambda t: t[..., 1],
            lambda t: t[..., 1:2],
        ),
        "backwards": (
            {"order": lambda t: t[..., ::-1]},
            {"label": lambda t: t[..., :0:-1]},
            {"label": lambda t: t[..., -2::-1]},
            {"read": lambda t: t[..., -2::-1]},
        ),
        "shifted along the batch": _ways((lambda t: t[:-1], lambda t: t[1:])),
    },
)


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
    steps=_STEPS,
    stages=(
        Stage(tuple(Case({"target": target}) for target in (_LONG, _BATCH[0], _LONG[[0, 2, 6]]))),
        Stage((Case({"target": _LONG[[0, 6]]}),)),
        Stage((Case({"target": _BATCH}),), beyond="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(labels_follow,),
    kind="integral",
    sequences=("target",),
    sequence_axes=1,
)
