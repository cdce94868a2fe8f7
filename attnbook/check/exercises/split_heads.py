"""Splits of the features into heads and joins of heads, right and wrong; the check of a split."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, sized
from attnbook.check.engine.text import Text


@documented
def split_heads(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the split of the features into heads.

    Runs `f` on sizes that are all different primes, on a square, on one token, one head and heads
    of width one, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, n_heads)``, by position, on an array (n, h·d) and an int. It returns one
        array (h, n, d), in which head i holds the columns i·d to (i + 1)·d - 1. It may be written
        only for one sequence, without leading axes, or only for batches.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_split(x, n_heads):
    ...     n, d_model = x.shape
    ...     return x.reshape(n_heads, n, d_model // n_heads)
    >>> check.split_heads(my_split).mistake
    'bare reshape'
    """
    return run(SPLIT_HEADS, f, time_limit)


def heads_of(x, n_heads):
    """Return (..., h, n, d)."""
    return np.swapaxes(not_swapped(x, n_heads), -2, -3)


def joined(heads):
    """Return (..., n, h·d)."""
    *leading, h, n, d = heads.shape
    return np.swapaxes(heads, -2, -3).reshape(*leading, n, h * d)


# Wrong ways to split: each takes (..., n, h·d) and the number of heads.


def not_swapped(x, n_heads):
    *leading, n, width = x.shape
    return x.reshape(*leading, n, n_heads, width // n_heads)


def bare_reshape(x, n_heads):
    *leading, n, width = x.shape
    return x.reshape(*leading, n_heads, n, width // n_heads)


def interleaved(x, n_heads):
    *leading, n, width = x.shape
    return np.moveaxis(x.reshape(*leading, n, width // n_heads, n_heads), -1, -3)


def swapped_from_the_front(x, n_heads):
    return np.swapaxes(not_swapped(x, n_heads), 0, 1)


def overlapping(x, n_heads):
    d = x.shape[-1] // n_heads
    return np.stack([x[..., i : i + d] for i in range(n_heads)], axis=-3)


def column_by_column(x, n_heads):
    """Return x reshaped in the order of Fortran, in the sequences of a batch too."""
    *leading, n, width = x.shape
    first = np.moveaxis(x, (-2, -1), (0, 1))
    cut = np.reshape(first, (n_heads, n, width // n_heads, *leading), order="F")
    return np.moveaxis(cut, (0, 1, 2), (-3, -2, -1))


def along_the_sequence(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-2), axis=-3)


# Wrong ways to join: each takes (..., h, n, d).


def bare_join(heads):
    *leading, h, n, d = heads.shape
    return heads.reshape(*leading, n, h * d)


def interleaved_join(heads):
    *leading, h, n, d = heads.shape
    return np.moveaxis(heads, -3, -1).reshape(*leading, n, d * h)


def reversed_heads(heads):
    return np.flip(heads, axis=-3)


def _from_steps(s, x, n_heads):
    return s.order(s.arrange(s.cut(x, s.count(x, n_heads))))


TEXT = Text(globals())


def numbers_are_kept(case: Case, values: Values, again: Callable) -> str | None:
    before, after = (np.sort(x, axis=None) for x in (case.arrays["x"], values[0]))
    if before.shape == after.shape and np.allclose(before, after):
        return None
    return "A split only moves numbers; here some are changed, lost or there twice."


def _cases(*sizes: tuple[int, ...], dtype: str = "float64") -> tuple[Case, ...]:
    """Return a case for each of (..., n, h, d), with numbers that tell their places."""
    cases = []
    for *leading, n, h, d in sizes:
        count = int(np.prod([*leading, n, h, d]))
        x = np.arange(1, count + 1, dtype=dtype).reshape(*leading, n, h * d)
        cases.append(Case({"x": x, "n_heads": h}))
    return tuple(cases)


# a square; primes; as many tokens as heads; one token; one head; heads of width one
_SIZES = sized(
    *((4, 2, 2), (3, 2, 5), (5, 3, 2), (3, 3, 2), (2, 2, 2), (1, 2, 3), (5, 1, 3), (2, 3, 1))
)

SPLIT_HEADS = Check(
    name="split_heads",
    parameters=("x", "n_heads"),
    results={"heads": "(..., h, n, d)"},
    reference=attnbook.split_heads,
    compute=_from_steps,
    steps=TEXT.steps,
    stages=(
        Stage(_cases(*_SIZES)),
        Stage(_cases(*_SIZES[:2], dtype="float32")),
        Stage(_cases((2, 3, 2, 5), (4, 4, 2, 2), (2, 2, 2, 2)), may_raise="a batch (leading axes)"),
    ),
    mistakes=TEXT.mistakes,
    properties=(numbers_are_kept,),
)
