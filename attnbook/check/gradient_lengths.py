"""Clipping in steps: the length of a gradient over all its arrays, and what shortens it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


@documented
def clip_gradients(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the clipping of a gradient by its length over two arrays together.

    Runs `f` on gradients that are longer and shorter than allowed, on arrays of different sizes,
    and on gradients of 0.

    Parameters
    ----------
    f : callable
        Called as ``f(first, second, longest)``, by position, on two arrays of floats, which
        together are the gradient, and a float above 0. It returns both arrays: as they are if
        their common length, the root of the sum of all squares, is at most `longest`, else
        multiplied by one number so that it is `longest`.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_clip(first, second, longest):
    ...     return first.clip(-longest, longest), second.clip(-longest, longest)
    >>> check.clip_gradients(my_clip).mistake
    'each number cut'
    """
    return run(CLIP_GRADIENTS, f, time_limit)


def _length(*arrays):
    return np.sqrt(sum(np.sum(x * x) for x in arrays))


def _lengths(x, axis):
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=True))


def _joined(*arrays):
    return np.concatenate([x.ravel() for x in arrays])


STEPS: dict[str, Any] = {
    "lengths": lambda first, second: (_length(first, second),) * 2,
    "factor": lambda length, longest: longest / length if length > longest else 1.0,
    "shorten": lambda x, factor, longest: x * factor,
}


def clip(s: Any, first, second, longest):
    """Return both arrays as the steps `s` clip them."""
    lengths = s.lengths(first, second)
    return tuple(
        s.shorten(x, s.factor(length, longest), longest)
        for x, length in zip((first, second), lengths, strict=True)
    )


_MISTAKES = mistakes(
    """
    each array by itself: You clip each array by its own length, or compare that with `longest`,
        which turns the gradient: the arrays keep their directions, and the step as a whole points
        elsewhere. Take one length over all arrays.
    each number cut: You cut the numbers one by one, at ±longest or at another bound. That turns the
        gradient. Multiply all of it by one factor.
    always scaled: You give every gradient the length `longest`, short ones too. Near a minimum the
        gradient is short, and should be.
    never scaled: You change nothing. A gradient longer than `longest` is multiplied by longest
        divided by its length.
    condition reversed: You lengthen what is short and leave what is too long. Turn the comparison
        round.
    squares compared: You compare the sum of the squares with `longest`. Compare its root.
    root forgotten: You take the sum of the squares for the length. The length is its root.
    squares forgotten: Your length is a sum or a mean of absolute values, or of the numbers
        themselves. It is the root of the sum of squares.
    mean for the sum: You take the root of means of the squares, or a standard deviation, so a large
        model is hardly ever clipped. Take the sum.
    largest for the length: You take the largest number for the length.
    lengths added: You add the lengths of the arrays. Add their squares, and take the root at the
        end.
    one array counted: You measure one array and scale both. The length is that of both together.
    one array clipped: You multiply one of the arrays. Both are shortened by the same factor.
    factor upside down: You multiply by length divided by longest, so long gradients get longer.
    divided by the length: You divide by the length and forget to multiply by `longest`.
    set to zero: You throw away a gradient that is too long. Shorten it.
    each row by itself: You clip each row, or each column, by its own length. That turns the
        gradient. Take one length over all arrays.
    lengths joined otherwise: You take the longer, the shorter, the mean or the product of the two
        lengths, or the root of their sum. Add their squares, and take the root at the end.
    length forgotten: You multiply or divide by `longest` alone. The factor is longest divided by
        the length.
    difference for the quotient: You take the difference of length and longest. Divide one by the
        other, and multiply the gradient by that.
    another power of the factor: You multiply by the root or by the square of longest divided by the
        length. Multiply by that itself.
    1 added to the length: You divide by the length plus 1, so a long gradient ends shorter than
        `longest`.
    length of 0: A gradient of 0 has the length 0, and you divide by it. Compare first, and divide
        where the length is more than `longest`.
    """,
    {
        "each array by itself": (
            {"lengths": lambda a, b: (_length(a), _length(b))},
            {"lengths": lambda a, b: (2**0.5 * _length(a), 2**0.5 * _length(b))},
            {
                "lengths": lambda a, b: tuple((_length(x), _length(a, b)) for x in (a, b)),
                "factor": lambda own, c: c / own[0] if own[1] > c else 1.0,
            },
            {
                "lengths": lambda a, b: tuple((_length(x), _length(a, b)) for x in (a, b)),
                "factor": lambda own, c: c / own[1] if own[0] > c else 1.0,
            },
        ),
        "each row by itself": each(
            "shorten",
            *(
                lambda x, factor, c, axis=axis: x * np.minimum(1, c / (_lengths(x, axis) + 1e-12))
                for axis in (-1, 0)
            ),
        ),
        "each number cut": each(
            "shorten",
            lambda x, factor, c: np.clip(x, -c, c),
            lambda x, factor, c: np.minimum(x, c),
            lambda x, factor, c: np.clip(x, 0, c),
            lambda x, factor, c: np.clip(x, -1, 1),
        ),
        "always scaled": each(
            "factor",
            lambda length, c: c / length,
            lambda length, c: c / (length + 1e-6),
            lambda length, c: c / max(length, 1e-12),
        ),
        "never scaled": each("factor", lambda length, c: 1.0),
        "condition reversed": each(
            "factor", lambda length, c: c / max(length, 1e-12) if length < c else 1.0
        ),
        "squares compared": each(
            "factor", lambda length, c: c / length if length * length > c else 1.0
        ),
        "root forgotten": each("lengths", lambda a, b: (_length(a, b) ** 2,) * 2),
        "squares forgotten": each(
            "lengths",
            lambda a, b: (np.sum(np.abs(a)) + np.sum(np.abs(b)),) * 2,
            lambda a, b: (abs(np.sum(a) + np.sum(b)),) * 2,
            lambda a, b: (np.mean(np.abs(_joined(a, b))),) * 2,
        ),
        "mean for the sum": each(
            "lengths",
            lambda a, b: (_length(a, b) / np.sqrt(a.size + b.size),) * 2,
            lambda a, b: (np.sqrt(np.mean(a * a) + np.mean(b * b)),) * 2,
            lambda a, b: (np.std(_joined(a, b)),) * 2,
        ),
        "largest for the length": each(
            "lengths",
            lambda a, b: (np.max(np.abs(_joined(a, b))),) * 2,
            lambda a, b: (np.max(_joined(a, b)),) * 2,
        ),
        "lengths added": each("lengths", lambda a, b: (_length(a) + _length(b),) * 2),
        "lengths joined otherwise": each(
            "lengths",
            *(
                lambda a, b, join=join: (join(_length(a), _length(b)),) * 2
                for join in (
                    max,
                    min,
                    lambda m, n: (m + n) / 2,
                    lambda m, n: m * n,
                    lambda m, n: np.sqrt(m + n),
                )
            ),
        ),
        "one array counted": each(
            "lengths", lambda a, b: (_length(a),) * 2, lambda a, b: (_length(b),) * 2
        ),
        "one array clipped": each(
            "lengths", lambda a, b: (_length(a, b), 0.0), lambda a, b: (0.0, _length(a, b))
        ),
        "factor upside down": each(
            "factor", lambda length, c: length / c if length > c else 1.0, lambda n, c: n / c
        ),
        "divided by the length": each("factor", lambda n, c: 1 / n if n > c else 1.0)
        + each("factor", lambda n, c: 1 / max(n, 1e-12)),
        "length forgotten": each(
            "factor",
            lambda n, c: c if n > c else 1.0,
            lambda n, c: 1 / c if n > c else 1.0,
            lambda n, c: c,
        ),
        "difference for the quotient": (
            {"factor": lambda n, c: n - c if n > c else 0.0, "shorten": lambda x, k, c: x - k},
            *each(
                "factor",
                lambda n, c: c - n if n > c else 1.0,
                lambda n, c: 1 - c / n if n > c else 1.0,
                lambda n, c: n - c if n > c else 1.0,
            ),
        ),
        "another power of the factor": each(
            "factor",
            lambda n, c: math.sqrt(c / n) if n > c else 1.0,
            lambda n, c: (c / n) ** 2 if n > c else 1.0,
        ),
        "1 added to the length": each(
            "factor",
            lambda n, c: c / (n + 1) if n > c else 1.0,
            lambda n, c: c / (n + 1),
            lambda n, c: min(1.0, c / (n + 1)),
        ),
        "length of 0": each("factor", lambda n, c: min(1.0, c / n) if n else np.nan),
        "set to zero": each("factor", lambda length, c: 0.0 if length > c else 1.0),
    },
)


def is_a_multiple(case: Case, values: Values, again: Callable) -> str | None:
    """Say by what the gradient is multiplied, or that it is turned."""
    given, got = _joined(*case.arrays.values()), _joined(*values)
    if got.shape != given.shape or not np.any(given):
        return None
    factor = given @ got / (given @ given)
    if not np.allclose(got, factor * given, rtol=1e-4, atol=1e-6):
        return "Your result is no multiple of the gradient, so it points elsewhere."
    right = STEPS["factor"](_length(given), case.arguments["longest"])
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
    steps=STEPS,
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
    mistakes=_MISTAKES,
    properties=(is_a_multiple,),
)
