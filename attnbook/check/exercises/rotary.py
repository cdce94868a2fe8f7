"""Rotary positions in steps: the angles, the pairs of features, their rotation, and the order."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook import positions
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, either, run
from attnbook.check.engine.signatures import with_options
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.positional_encoding import ANGLE_MISTAKES, angles


@documented
def rotary(f: Callable, *, interleaved: bool | None = None, time_limit: float = 10.0) -> Report:
    """Check a rotation of queries or keys by their positions.

    Runs `f` on several sizes, including a single position and a single pair of features, in float64
    and float32, on batches of heads, and from a later position on if it takes `start`.

    Parameters
    ----------
    f : callable
        Called as ``f(x)`` on (n, d), d even, and as ``f(x, start=…)`` if it takes an argument named
        `start` or `offset`. It returns an array of the shape of `x`. It may be written for one
        head, without leading axes.
    interleaved : bool, optional
        True requires pairs of the features 2l and 2l + 1, and False requires pairs of l and
        l + d/2. By default, both are right, and a remark says which one it is.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_rotation(x):
    ...     n, d = x.shape
    ...     angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    ...     a, b = x[:, : d // 2], x[:, d // 2 :]
    ...     c, s = np.cos(angles), np.sin(angles)
    ...     return np.concatenate([a * c + b * s, b * c - a * s], axis=-1)
    >>> check.rotary(my_rotation).mistake
    'rotated backwards'
    """
    if interleaved is None:
        return either(_EITHER, f, time_limit)
    return run(INTERLEAVED if interleaved else HALVES, f, time_limit)


def _adapt(function: Callable) -> Callable:
    return with_options(function, ("x",), {"start": (0, ("offset",))})


# The two layouts: taking the pairs apart, and putting them together again.


def halves(x):
    return np.split(x, 2, axis=-1)


def evens_and_odds(x):
    return x[..., 0::2], x[..., 1::2]


def side_by_side(a, b):
    return np.concatenate([a, b], axis=-1)


def alternating(a, b):
    return np.stack([a, b], axis=-1).reshape(*a.shape[:-1], -1)


def _rotated(steps: Any, x, start=0):
    n, d = x.shape[-2:]
    p = np.asarray(steps.places(steps.start(start), n))[:, np.newaxis]
    turned = angles(steps, p, d, np.arange(d // 2))
    pairs = steps.rotate(*steps.split(x), steps.cosines(turned), steps.sines(turned))
    return steps.leave(steps.join(*pairs), x, turned)


def _text(split: Callable, join: Callable, other: tuple) -> Text:
    """Return the text for one layout, whose mistakes may take it for the other."""

    def partly(x, begin, end):
        """Rotate the features from one quarter to another as if there were no others."""
        first, last = (x.shape[-1] * n // 8 * 2 for n in (begin, end))
        if first == last:
            return x
        rotated = positions.rotary(x[..., first:last], interleaved=join is alternating)
        return np.concatenate([x[..., :first], rotated, x[..., last:]], axis=-1)

    def by_table_of_the_other(x, angles):
        """Multiply by a table of the other layout, as `rotate_half` does."""
        c, s = (other[1](f(angles), f(angles)) for f in (np.cos, np.sin))
        a, b = split(x)
        return x * c + join(-b, a) * s

    names = {"split": split, "join": join, "other": other}
    changes = {"partly": partly, "by_table_of_the_other": by_table_of_the_other}
    return Text({**globals(), **names, **changes})


def lengths_stay(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every row has the length that it had."""
    before, after = (np.sum(x.astype(float) ** 2, axis=-1) for x in (case.arrays["x"], values[0]))
    if before.shape != after.shape or np.allclose(before, after, rtol=1e-3):
        return None
    return "A rotation changes no length; in yours a row gets longer or shorter."


def _case(*shape: int, dtype: str = "float64", **options: int) -> Case:
    return Case({"x": draw(36, *shape).astype(dtype)}, options)


def _check(name: str, own: tuple[Callable, Callable], other: tuple[Callable, Callable]) -> Check:
    text, is_interleaved = _text(*own, other), own[1] is alternating
    return Check(
        name=name,
        parameters=("x",),
        results={"output": "x.shape"},
        reference=lambda x, start=0: positions.rotary(x, start=start, interleaved=is_interleaved),
        compute=_rotated,
        steps={**text.steps, "split": own[0], "join": own[1]},
        stages=(
            Stage(tuple(_case(*shape) for shape in ((6, 6), (1, 2), (3, 4), (5, 14), (97, 10)))),
            Stage((_case(5, 6, dtype="float32"),)),
            Stage((_case(2, 3, 6), _case(2, 3, 5, 4)), may_raise="a batch (leading axes)"),
            Stage((_case(3, 6, start=5), _case(1, 4, start=11)), option="start"),
        ),
        mistakes=(text["layouts"][is_interleaved], *text.mistakes, *ANGLE_MISTAKES),
        properties=(lengths_stay,),
        options=("start",),
        adapt=_adapt,
    )


_OF_HALVES, _OF_PAIRS = (halves, side_by_side), (evens_and_odds, alternating)
HALVES = _check("rotary", _OF_HALVES, _OF_PAIRS)
INTERLEAVED = _check("rotary, interleaved", _OF_PAIRS, _OF_HALVES)

_EITHER = {
    f"your layout is {layout}": replace(check, name=HALVES.name, mistakes=check.mistakes[1:])
    for layout, check in {
        "that of halves, features i and i + d/2.": HALVES,
        "interleaved, features 2l and 2l + 1.": INTERLEAVED,
    }.items()
}
