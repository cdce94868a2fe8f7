"""Quantising the rows of a matrix in steps, and the ways to get it wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def quantize_rows(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check asymmetric quantisation with a step for each row, there and back.

    Runs `f` on rows of very different sizes, on rows far away from 0, on 2, 3, 4 and 8 bits, on
    rows of equal numbers, on a single number per row, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(x, bits)``, by position, on (n, d) and an int. Each row has its own minimum z
        and step s = (max − min)/(2^bits − 1). Its codes are round((x − z)/s), and `f` returns the
        numbers z + s · code, (n, d), that they stand for. A row of equal numbers returns as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_round_trip(x, bits):
    ...     low, high = x.min(), x.max()
    ...     step = (high - low) / (2**bits - 1)
    ...     return low + step * np.round((x - low) / step)
    >>> check.quantize_rows(my_round_trip).mistake
    'one step for all'
    """
    return run(QUANTIZE_ROWS, f, time_limit)


def wrapped(codes):
    """Return codes from 0 to 255 as int8 has them."""
    return (codes + 128) % 256 - 128


def symmetric(x, bits):
    top = np.max(np.abs(x), axis=-1, keepdims=True)
    step = top / (2 ** (bits - 1) - 1)
    return np.round(x / np.where(step == 0, 1, step)) * step


def integer_zero(x, bits):
    """Return what a zero point that is a code gives."""
    low, high = np.min(x, axis=-1, keepdims=True), np.max(x, axis=-1, keepdims=True)
    step = (high - low) / (2**bits - 1)
    step = np.where(step == 0, 1, step)
    zero = np.round(-low / step)
    return (np.clip(np.round(x / step) + zero, 0, 2**bits - 1) - zero) * step


def through_zero(x, bits):
    """Return what a range gives that is widened to hold 0."""
    low, high = np.min(x, axis=-1, keepdims=True), np.max(x, axis=-1, keepdims=True)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    step = (high - low) / (2**bits - 1)
    step = np.where(step == 0, 1, step)
    zero = np.round(-low / step)
    return (np.clip(np.round(x / step) + zero, 0, 2**bits - 1) - zero) * step


def _there_and_back(s: Any, x, bits):
    low, high = s.low(x), s.high(x)
    step = s.step(low, high, s.levels(bits))
    codes = s.limit(s.round(s.code(x, low, s.safe(step))), bits)
    return s.back(codes, low, step) + 0 * x


def errors_are_below_half_a_step(case: Case, values: Values, again: Callable) -> str | None:
    """Say how large the largest error is in steps, or how many different numbers a row has."""
    x, bits = case.arrays["x"].astype(float), case.arguments["bits"]
    if values[0].shape != x.shape:
        return None
    most = max(len({*row}) for row in values[0].tolist())
    if most > 2**bits:
        return f"A row of yours has {most} different numbers, but {bits} bits have {2**bits} codes."
    steps = np.ptp(x, axis=-1, keepdims=True) / (2**bits - 1)
    errors = np.max(np.abs(values[0] - x) / np.where(steps == 0, 1, steps))
    if errors > 0.501:
        return (
            f"The largest error is {errors:.3g} steps of its row; it must be at most half a step."
        )
    return None


def _case(n: int, d: int, bits: int, dtype: str = "float64", shift: float = 0.0) -> Case:
    scale = np.array([0.1, 1.0, 30.0, 4.0, 0.5, 2.0, 7.0, 1.0])[:n, np.newaxis]
    return Case({"x": (scale * (draw(88, n, d) + shift)).astype(dtype), "bits": bits})


def _constant(d: int) -> Case:
    rows = np.array([[2.5], [-1.25], [0.0]]) + np.zeros((3, d))
    mixed = np.concatenate([rows, 3 * draw(89, 2, d)])
    return Case({"x": mixed, "bits": 4}, about=", with rows of equal numbers")


TEXT = Text(globals())

QUANTIZE_ROWS = Check(
    name="quantize_rows",
    parameters=("x", "bits"),
    results={"numbers": "(n, d)"},
    compute=_there_and_back,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                *(_case(3, 5, bits) for bits in (4, 2, 8, 3)),
                *(_case(5, 5, 4), _case(4, 7, 4, shift=6.0), _case(4, 7, 8, shift=-6.0)),
                _case(2, 70, 4),
            )
        ),
        Stage((_constant(5), _constant(1))),
        Stage((_case(3, 5, 4, dtype="float32"), _case(4, 7, 2, dtype="float32", shift=6.0))),
    ),
    mistakes=TEXT.mistakes,
    variants=TEXT.variants,
    properties=(errors_are_below_half_a_step,),
)
