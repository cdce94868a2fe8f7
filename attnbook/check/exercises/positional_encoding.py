"""The sines and cosines of positions in steps: frequencies, angles, and the layout of the table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook import positions
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, either, run
from attnbook.check.engine.steps import Case, Check, Mistake, Stage, Values, only
from attnbook.check.engine.text import Text


@documented
def positional_encoding(
    f: Callable, *, interleaved: bool | None = None, time_limit: float = 10.0
) -> Report:
    """Check a table of sines and cosines of positions.

    Runs `f` on several sizes, including a single position and a single pair of features.

    Parameters
    ----------
    f : callable
        Called as ``f(n, d_model)``, by position, on two ints, of which d_model is even. It returns
        an array (n, d_model) of floats, of any library.
    interleaved : bool, optional
        True requires sin, cos, sin, cos, …, as Vaswani et al. wrote it, and False requires all
        sines before all cosines. By default, both are right, and a remark says which one it is.

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


def halves(sines, cosines):
    return np.concatenate([sines, cosines], axis=-1)


def alternating(sines, cosines):
    return np.stack([sines, cosines], axis=-1).reshape(len(sines), -1)


def angles(steps: Any, p, d, *index):
    exponent = steps.exponent(steps.index(*index), d)
    return steps.angle(p, steps.frequency(steps.base, exponent))


def _table(steps: Any, n, d_model):
    p, pairs = np.asarray(steps.places(n))[:, np.newaxis], np.arange(d_model // 2)
    waves = []
    for of_cosine, wave in ((0, steps.first), (1, steps.second)):
        features = (
            2 * pairs + of_cosine if steps.join is alternating else pairs + of_cosine * len(pairs)
        )
        waves.append(wave(angles(steps, p, d_model, pairs, features, of_cosine)))
    return steps.leave(steps.join(*waves))


def float16(x):
    return np.asarray(x, dtype=np.float16).astype(float)


def bfloat16(x):
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(float)


TEXT = Text(globals())

ANGLE_MISTAKES = only(
    TEXT.mistakes,
    *("another base", "exponent halved", "exponent doubled", "frequencies to the very end"),
    *(
        "divided by the width less one",
        "angle inverted",
        "one frequency for all",
        "frequencies in reverse",
        "pairs from 1",
    ),
    *("exponent not divided by d", "pairs that share a frequency", "exponent without brackets"),
    "angles in half precision",
)
"""What goes wrong with the angles of a rotation as well."""


def pairs_lie_on_circles(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the squares of every row sum to d_model/2."""
    squares = np.sum(values[0] ** 2, axis=-1)
    d_model = case.arguments["d_model"]
    if values[0].shape[-1] != d_model or np.allclose(squares, d_model / 2, atol=1e-3):
        return None
    return "sin² + cos² = 1 in each pair, so the squares of every row sum to d_model/2, not here."


_SIZES = ((6, 6), (1, 2), (3, 4), (5, 14), (2, 4), (97, 10), (4, 6))
"""n and d_model: at 97 the slow frequencies have moved too."""


def _check(name: str, join: Callable, other: Mistake) -> Check:
    return Check(
        name=name,
        parameters=("n", "d_model"),
        results={"table": "(n, d_model)"},
        reference=lambda n, d: positions.sinusoidal(n, d, interleaved=join is alternating),
        compute=_table,
        steps={**TEXT.steps, "join": join},
        stages=(Stage(tuple(Case({"n": n, "d_model": d}) for n, d in _SIZES)),),
        mistakes=(other, *TEXT.mistakes),
        properties=(pairs_lie_on_circles,),
    )


HALVES = _check("positional_encoding", halves, TEXT["layouts"][0])
INTERLEAVED = _check("positional_encoding, interleaved", alternating, TEXT["layouts"][1])

_EITHER = {
    f"your layout is {layout}": replace(check, name=HALVES.name, mistakes=TEXT.mistakes)
    for layout, check in {
        "that of halves, all sines and then all cosines.": HALVES,
        "interleaved, sin, cos, sin, cos, …": INTERLEAVED,
    }.items()
}
