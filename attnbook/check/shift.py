"""Teacher forcing in steps: what the decoder reads, and what it is to predict."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, each


@documented
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

    Examples
    --------
    >>> from attnbook import check
    >>> check.teacher_forcing(lambda target: (target[:-1], target[:-1])).mistake
    'no shift'
    """
    return run(TEACHER_FORCING, f, time_limit)


def _cut(start: int, stop: int, filler: int | None = None) -> Callable:
    """Take the places from `start` to n + `stop`; beyond the ends, fill or roll."""

    def cut(target):
        n = target.shape[-1]
        places = np.arange(start, n + stop)
        taken = target[..., places % n]
        return taken if filler is None else np.where(places == places % n, taken, filler)

    return cut


_STEPS: dict[str, Callable] = {
    "order": lambda target: target,
    "read": _cut(0, -1),
    "label": _cut(1, 0),
    "results": lambda read, labels: (read, labels),
}


def _force(steps: Any, target):
    target = steps.order(target)
    return steps.results(steps.read(target), steps.label(target))


def _both(*cuts: tuple[tuple[int, int], tuple[int, int]], filler: int | None = None):
    """Return the ways that replace both cuts."""
    return tuple(
        {"read": _cut(*read, filler), "label": _cut(*label, filler)} for read, label in cuts
    )


_BEYOND_THE_ENDS = (
    *(((0, 0), (1, 1)), ((-1, -1), (0, 0)), ((-1, -2), (0, -1)), ((0, -1), (1, 1))),
    *(((0, -1), (-1, -1)), ((0, 0), (-1, -1)), ((1, 1), (0, 0)), ((-1, -1), (1, 0))),
    *(((-1, 0), (0, 1)), ((-1, -2), (1, 0))),
)

_MISTAKES = mistakes(
    """
    no shift: The decoder reads at each place the very token that it is to predict there: the target
        is not shifted, so it learns to copy. Read target[:-1], and predict target[1:].
    shifted the wrong way: Your decoder reads a token and is to predict the one before it. Read
        target[:-1], and predict target[1:], and return them in this order.
    stop read by the decoder: The decoder reads the whole target, with its stop token. Nothing
        follows the stop, so there is no label for it: leave the last token out of what is read.
    start among the labels: Your labels begin with the start token, which is never predicted.
    start not read: The start token is not read, so nothing predicts the first token. Read
        target[:-1].
    start replaced: The decoder reads another token in the place of the start. The target begins
        with its start token: read target[:-1].
    stop not predicted: Your labels lack the stop token, so the model never learns to end.
    shifted by two: Your labels lie two places ahead of what is read. Shift by one.
    too little read: You leave out the last two tokens. Only the stop is not read: target[:-1].
    rolled: You roll the target, so the token that falls off at one end comes back at the other. Cut
        instead: target[:-1] and target[1:].
    padded: You shift the target and fill the gap with another token, so both have the length of the
        target. Nothing is to be filled: each loses one token, target[:-1] and target[1:].
    halves of the target: You cut the target in the middle. Both parts hold nearly all of it, one
        place apart.
    alternate tokens: You read every other token and predict those between. Every token but the last
        is read, and every token but the first is predicted.
    last token alone: You predict one token. Every token but the first is a label.
    backwards: You turn the target round. The tokens keep their order.
    shifted along the batch: On a batch you leave out the last and the first sequence instead of the
        last and the first token. Count the axis from the end: target[..., :-1].
    label replaced: You put another token or a filler in the place of the first or the last label.
        The first label is the token after the start, and the last one is the stop token.
    one token read: The decoder reads one token at every place. Read target[:-1].
    """,
    {
        "no shift": _both(
            *((cut, cut) for cut in ((0, 0), (0, -1), (1, 0), (1, -1))),
            *(((0, 0), (0, -1)), ((1, 0), (1, -1))),
        ),
        "shifted the wrong way": (
            {"results": lambda read, labels: (labels, read)},
            *_both(((1, 0), (0, 0))),
        ),
        "stop read by the decoder": each("read", _cut(0, 0)),
        "start among the labels": ({"label": _cut(0, 0)}, *_both(((1, -1), (0, -1)))),
        "start not read": (
            {"read": _cut(1, -1)},
            *_both(((1, -1), (2, 0)), ((1, 0), (2, 0))),
        ),
        "start replaced": tuple(
            {"read": lambda t, x=x: np.concatenate([0 * t[..., :1] + x, t[..., 1:-1]], axis=-1)}
            for x in (0, -100, -1, 2)
        ),
        "label replaced": (
            *(
                {"label": lambda t, x=x: np.concatenate([t[..., 1:-1], 0 * t[..., :1] + x], -1)}
                for x in (-100, 0, -1)
            ),
            *(
                {"label": lambda t, x=x: np.concatenate([0 * t[..., :1] + x, t[..., 2:]], -1)}
                for x in (-100, 0, -1)
            ),
            *each(
                "label",
                lambda t: np.concatenate([t[..., 1:-1], t[..., :1]], axis=-1),
                lambda t: np.concatenate([t[..., 1:-1], t[..., -2:-1]], axis=-1),
            ),
        ),
        "one token read": each(
            "read", lambda t: 0 * t[..., :-1] + t[..., :1], lambda t: 0 * t[..., :-1]
        ),
        "stop not predicted": ({"label": _cut(1, -1)}, *_both(((0, -2), (1, -1)))),
        "shifted by two": ({"label": _cut(2, 0)}, *_both(((0, -2), (2, 0)))),
        "too little read": each("read", _cut(0, -2)),
        "rolled": _both(*_BEYOND_THE_ENDS),
        "padded": tuple(
            way for filler in (0, -100, 1, 2, -1) for way in _both(*_BEYOND_THE_ENDS, filler=filler)
        ),
        "halves of the target": tuple(
            {
                "read": lambda t, up=up: t[..., : (t.shape[-1] + up) // 2],
                "label": lambda t, up=up: t[..., (t.shape[-1] + up) // 2 :],
            }
            for up in (0, 1)
        ),
        "alternate tokens": {"read": lambda t: t[..., ::2], "label": lambda t: t[..., 1::2]},
        "last token alone": each(
            "label", lambda t: t[..., -1:], lambda t: t[..., -1], lambda t: t[..., 1]
        ),
        "backwards": (
            {"order": lambda t: t[..., ::-1]},
            *each("label", lambda t: t[..., :0:-1], lambda t: t[..., -2::-1]),
            {"read": lambda t: t[..., -2::-1]},
        ),
        "shifted along the batch": {"read": lambda t: t[:-1], "label": lambda t: t[1:]},
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
        Stage((Case({"target": _BATCH}),), may_raise="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(labels_follow,),
    kind="integral",
)
