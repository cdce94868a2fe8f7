"""The check of sines and cosines of positions, in either layout."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attnbook import positions
from attnbook.check._either import either
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values
from attnbook.check._report import Report


def positional_encoding(
    f: Callable, *, interleaved: bool | None = None, time_limit: float = 10.0
) -> Report:
    """Check a table of sines and cosines of positions.

    Runs `f` on a square, on one position, on one pair of features and on sizes that are all
    different, down to wavelengths of 10000.

    Parameters
    ----------
    f : callable
        Called as ``f(n, d_model)``, by position, on two ints, of which d_model is even. It returns
        an array (n, d_model) of floats, of any library.
    interleaved : bool, optional
        True asks for sin, cos, sin, cos, …, as Vaswani et al. wrote it, and False for all sines
        before all cosines. Unless given, both are right and a remark says which it is.
    time_limit : float
        Seconds for all calls together, in each layout.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_positions(n, d_model):
    ...     i = np.arange(d_model // 2)
    ...     angles = np.arange(n)[:, None] / 10000 ** (i / d_model)
    ...     return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    >>> check.positional_encoding(my_positions).mistake
    'exponent halved'
    """
    if interleaved is None:
        return either(_EITHER, f, time_limit)
    return run(INTERLEAVED if interleaved else HALVES, f, time_limit)


def _frequencies(d_model):
    return 10000.0 ** (-2 * np.arange(d_model // 2) / d_model)


def _halves(sines, cosines):
    return np.concatenate([sines, cosines], axis=-1)


def _pairs(sines, cosines):
    return np.stack([sines, cosines], axis=-1).reshape(len(sines), -1)


def _table(angle: Callable, first: Callable = np.sin, second: Callable = np.cos) -> Callable:
    """Return what gives the table with `angle(p, i, d)` in the place of p·10000^(−2i/d)."""

    def model(n, d_model, join):
        p, i = np.arange(n)[:, np.newaxis], np.arange(d_model // 2)
        angles = angle(p, i, d_model)
        return join(first(angles), second(angles))

    return model


def _right_angle(p, i, d):
    return p * 10000.0 ** (-2 * i / d)


def _with_base(base: float) -> Callable:
    return _table(lambda p, i, d: p * base ** (-2 * i / d))


def _each_feature_its_own(n, d_model, join):
    """Give feature j the exponent 2j/d, or j/d, so that a sine and its cosine differ."""
    return _by_feature(n, d_model, join, 2)


def _by_feature(n, d_model, join, factor):
    p, j = np.arange(n)[:, np.newaxis], np.arange(d_model)
    angles = p * 10000.0 ** (-factor * j / d_model)
    if join is _halves:
        half = d_model // 2
        return np.concatenate([np.sin(angles[:, :half]), np.cos(angles[:, half:])], axis=-1)
    return np.where(j % 2 == 0, np.sin(angles), np.cos(angles))


_right = _table(_right_angle)

_MISTAKES: tuple[tuple[str, str, tuple[Callable, ...]], ...] = (
    (
        "sin and cos swapped",
        "Your cosines stand where the sines should, and the sines where the cosines should. The "
        "sine comes first: at position 0 it is 0, and the cosine is 1.",
        (_table(_right_angle, np.cos, np.sin),),
    ),
    (
        "sines alone",
        "You take the sine of everything. Without the cosine a position cannot be turned into "
        "another by a rotation: each frequency needs both.",
        (_table(_right_angle, np.sin, np.sin),),
    ),
    (
        "cosines alone",
        "You take the cosine of everything. The cosine of p and of −p are the same: each frequency "
        "needs a sine too.",
        (_table(_right_angle, np.cos, np.cos),),
    ),
    (
        "another base",
        "Your wavelengths grow to another length: the base is 10000.",
        tuple(map(_with_base, (10.0, 1000.0, 1e5, 5e5, 1e6))),
    ),
    (
        "exponent halved",
        "Your exponent is i/d where i counts the pairs, so it ends at 1/2. There are d/2 pairs and "
        "pair i has the exponent 2i/d, which ends just below 1.",
        (_table(lambda p, i, d: p * 10000.0 ** (-i / d)),),
    ),
    (
        "exponent doubled",
        "Your exponent is 4i/d: an index that already runs over 0, 2, 4, … is doubled again. Pair "
        "i has the exponent 2i/d.",
        (_table(lambda p, i, d: p * 10000.0 ** (-4 * i / d)),),
    ),
    (
        "sine and cosine of different frequencies",
        "Each feature has a frequency of its own. A sine and its cosine belong together and have "
        "the same: compute d/2 frequencies and use each twice.",
        (_each_feature_its_own, partial(_by_feature, factor=1)),
    ),
    (
        "frequencies to the very end",
        "You spread the d/2 exponents from 0 to 1 with both ends, i/(d/2 − 1). The formula has "
        "2i/d, which never reaches 1.",
        (
            _table(lambda p, i, d: p * 10000.0 ** (-i / max(d // 2 - 1, 1))),
            _table(lambda p, i, d: p * np.geomspace(1, 1e-4, d // 2)),
        ),
    ),
    (
        "angle inverted",
        "You multiply the position by 10000^(2i/d) where you should divide: the angles become "
        "huge, and their sines look like noise. The wavelengths grow with i, so the frequencies "
        "fall.",
        (_table(lambda p, i, d: p * 10000.0 ** (2 * i / d)),),
    ),
    (
        "product for a power",
        "You divide the position by 10000 · 2i/d. The 2i/d is an exponent: the frequencies fall "
        "geometrically.",
        (_table(lambda p, i, d: p / (10000.0 * 2 * i / d)),),
    ),
    (
        "logarithm of base 10",
        "You take exp of −2i/d · log10(10000). The inverse of exp is the natural logarithm.",
        (_table(lambda p, i, d: p * np.exp(-2 * i / d * 4)),),
    ),
    (
        "one frequency for all",
        "All your features have the same frequency: the exponent does not depend on i, or i is 0.",
        (
            _table(lambda p, i, d: p + 0.0 * i),
            _table(lambda p, i, d: p / 10000.0 + 0.0 * i),
        ),
    ),
    (
        "positions from 1",
        "Your positions start at 1. The first position is 0, and its row is all sin 0 = 0 and "
        "cos 0 = 1.",
        (_table(lambda p, i, d: _right_angle(p + 1, i, d)),),
    ),
    (
        "pairs from 1",
        "You count the pairs from 1, so the fastest frequency, 1, is missing. Start at i = 0.",
        (_table(lambda p, i, d: _right_angle(p, i + 1, d)),),
    ),
    (
        "turns for radians",
        "Your angles are multiplied by 2π. The formula has the sine of p/10000^(2i/d) itself.",
        (_table(lambda p, i, d: 2 * math.pi * _right_angle(p, i, d)),),
    ),
    (
        "degrees for radians",
        "You turn the angles into radians as if they were degrees. They are radians already.",
        (_table(lambda p, i, d: np.deg2rad(_right_angle(p, i, d))),),
    ),
    (
        "transposed",
        "Your table has a row for each feature. It is added to the tokens, (n, d_model), so it has "
        "a row for each position.",
        (lambda n, d_model, join: _right(n, d_model, join).T,),
    ),
    (
        "axis too many",
        "Your table has an axis for the batch. Without it, as (n, d_model), it broadcasts over any "
        "batch.",
        (
            lambda n, d_model, join: _right(n, d_model, join)[np.newaxis],
            lambda n, d_model, join: _right(n, d_model, join)[:, np.newaxis],
        ),
    ),
)

_LAYOUTS = {
    "interleaved": (
        "Your sines and cosines alternate. All sines come first here, then all cosines: [sin | "
        "cos]. Both layouts are in use, and a model must be run with the one that it was trained "
        "with."
    ),
    "halves": (
        "All your sines come first, then all cosines. They alternate here: sin, cos, sin, cos, … "
        "Both layouts are in use, and a model must be run with the one that it was trained with."
    ),
}


def pairs_lie_on_circles(case: Case, values: Values, again: Callable) -> str | None:
    squares = np.sum(values[0] ** 2, axis=-1)
    d_model = case.arguments["d_model"]
    if values[0].shape[-1] != d_model or np.allclose(squares, d_model / 2, atol=1e-3):
        return None
    return (
        "sin² + cos² = 1 in each pair, so the squares of every row sum to d_model/2; here they do "
        "not."
    )


_SIZES = ((6, 6), (1, 2), (3, 4), (5, 14), (2, 4), (97, 10), (4, 6))
"""n and d_model: at 97 the slow frequencies have moved too."""


def _check(name: str, join: Callable) -> Check:
    other = _halves if join is _pairs else _pairs
    which = "halves" if join is _pairs else "interleaved"
    return Check(
        name=name,
        parameters=("n", "d_model"),
        results={"table": "(n, d_model)"},
        reference=lambda n, d: positions.sinusoidal(n, d, interleaved=join is _pairs),
        stages=(Stage(tuple(Case({"n": n, "d_model": d}) for n, d in _SIZES)),),
        mistakes=(
            Mistake(which, _LAYOUTS[which], (partial(_right, join=other),)),
            *(
                Mistake(name, message, tuple(partial(model, join=join) for model in models))
                for name, message, models in _MISTAKES
            ),
        ),
        properties=(pairs_lie_on_circles,),
        options=(),
        remarked_options=(),
    )


HALVES = _check("positional_encoding", _halves)
INTERLEAVED = _check("positional_encoding, interleaved", _pairs)

_EITHER = {
    remark: replace(check, name=HALVES.name, mistakes=check.mistakes[1:])
    for remark, check in {
        "your layout is that of halves, all sines and then all cosines.": HALVES,
        "your layout is interleaved, sin, cos, sin, cos, …": INTERLEAVED,
    }.items()
}
