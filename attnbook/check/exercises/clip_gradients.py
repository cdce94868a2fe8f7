"""Clipping in steps: the length of a gradient over all its arrays, and what shortens it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def clip_gradients(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the clipping of a gradient by its norm over two arrays together.

    Runs `f` on gradients that are longer and shorter than allowed, on arrays of different sizes,
    and on gradients of 0.

    Parameters
    ----------
    f : callable
        Called as ``f(first, second, longest)``, by position, on two arrays of floats, which
        together are the gradient, and a float above 0. It returns both arrays. If their common
        norm, the root of the sum of all squares, is at most `longest`, they are unchanged;
        otherwise both are multiplied by the same number, so that the norm becomes `longest`.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_clip(first, second, longest):
    ...     return first.clip(-longest, longest), second.clip(-longest, longest)
    >>> check.clip_gradients(my_clip).mistake
    'each number cut'
    """
    return run(CLIP_GRADIENTS, f, time_limit)


def norm(*arrays):
    return np.sqrt(sum(np.sum(x * x) for x in arrays))


def joined(*arrays):
    return np.concatenate([x.ravel() for x in arrays])


def clip(s: Any, first, second, longest):
    """Return both arrays as the steps `s` clip them."""
    lengths = s.lengths(first, second)
    return tuple(
        s.shorten(x, s.factor(length, longest), longest)
        for x, length in zip((first, second), lengths, strict=True)
    )


TEXT = Text(globals())


def is_a_multiple(case: Case, values: Values, again: Callable) -> str | None:
    """Say by what the gradient is multiplied, or that it is turned."""
    given, got = joined(*case.arrays.values()), joined(*values)
    if got.shape != given.shape or not np.any(given):
        return None
    factor = given @ got / (given @ given)
    if not np.allclose(got, factor * given, rtol=1e-4, atol=1e-6):
        return "Your result is no multiple of the gradient, so it points elsewhere."
    right = TEXT.steps["factor"](norm(given), case.arguments["longest"])
    return f"You multiply the gradient by {factor:.4g}, where {right:.4g} is right."


def _case(seed: int, longest: float, *sizes: float) -> Case:
    first, second = draw(seed, 3, 5), draw(seed + 1, 7)
    arrays = (x * size for x, size in zip((first, second), sizes, strict=True))
    return Case(dict(zip(("first", "second"), arrays, strict=True)) | {"longest": longest})


CLIP_GRADIENTS = Check(
    name="clip_gradients",
    parameters=("first", "second", "longest"),
    results={"first": "of first", "second": "of second"},
    compute=clip,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                *(_case(70, 1.0, 3, 2), _case(72, 0.5, 0.1, 5), _case(74, 2.0, 9, 0.01)),
                _case(76, 2.0, 0.1, 0.1),
            )
        ),
        Stage((_case(78, 5.0, 0.9, 1.1),)),
        Stage(
            (_case(80, 1.0, 0, 0), _case(82, 1.0, 0, 3)),
            errors={ZeroDivisionError: "length of 0"},
        ),
    ),
    mistakes=TEXT.mistakes,
    properties=(is_a_multiple,),
)
