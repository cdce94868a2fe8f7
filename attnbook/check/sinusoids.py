"""The sines and cosines of positions in steps: frequencies, angles, and the layout of the table."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook import positions
from attnbook.check.engine import documented, either, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Mistake, Stage, Values, each, only


@documented
def positional_encoding(
    f: Callable, *, interleaved: bool | None = None, time_limit: float = 10.0
) -> Report:
    """Check a table of sines and cosines of positions.

    Runs `f` on several sizes, also on one position and on one pair of features.

    Parameters
    ----------
    f : callable
        Called as ``f(n, d_model)``, by position, on two ints, of which d_model is even. It returns
        an array (n, d_model) of floats, of any library.
    interleaved : bool, optional
        True asks for sin, cos, sin, cos, …, as Vaswani et al. wrote it, and False for all sines
        before all cosines. Unless given, both are right and a remark says which it is.

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


def _halves(sines, cosines):
    return np.concatenate([sines, cosines], axis=-1)


def _pairs(sines, cosines):
    return np.stack([sines, cosines], axis=-1).reshape(len(sines), -1)


ANGLE_STEPS: dict[str, Any] = {
    # which frequency the features have, of their pairs i, and in a table of their own numbers j
    "index": lambda i, *others: i,
    "exponent": lambda i, d: 2 * i / d,
    "base": 10000.0,
    "frequency": lambda base, exponent: base**-exponent,
    "angle": lambda p, frequency: p * frequency,
}
_STEPS: dict[str, Any] = {
    **ANGLE_STEPS,
    "places": np.arange,
    "first": np.sin,
    "second": np.cos,
    "leave": lambda table: table,
}


def angles(steps: Any, p, d, *index):
    exponent = steps.exponent(steps.index(*index), d)
    return steps.angle(p, steps.frequency(steps.base, exponent))


def _table(steps: Any, n, d_model):
    p, pairs = np.asarray(steps.places(n))[:, np.newaxis], np.arange(d_model // 2)
    waves = []
    for of_cosine, wave in ((0, steps.first), (1, steps.second)):
        features = 2 * pairs + of_cosine if steps.join is _pairs else pairs + of_cosine * len(pairs)
        waves.append(wave(angles(steps, p, d_model, pairs, features, of_cosine)))
    return steps.leave(steps.join(*waves))


def _float16(x):
    return np.asarray(x, dtype=np.float16).astype(float)


def _bfloat16(x):
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(float)


_MISTAKES = mistakes(
    """
    sin and cos swapped: Your cosines stand where the sines should, and the sines where the cosines
        should. The sine comes first: at position 0 it is 0, and the cosine is 1.
    sines alone: You take the sine of everything. Each frequency needs a sine and a cosine.
    cosines alone: You take the cosine of everything: p and −p look the same. Each frequency needs a
        sine.
    half of the table empty: Your sines, or your cosines, are all 0: they were never filled in.
    sign of a wave: A wave has the wrong sign: take sin(i·ω) and cos(i·ω) themselves.
    another wave: Your table holds another function of the angles than sine and cosine.
    another base: Your wavelengths grow to another length: the base is 10000.
    exponent halved: Your exponent is l/d where l counts the pairs, so it ends at 1/2, or your base
        is 100, which is the same. There are d/2 pairs and pair l has the exponent 2l/d, which ends
        just below 1.
    exponent doubled: Your exponent is 4l/d, as where an index that already runs over 0, 2, 4, … is
        doubled again, or your base is 10⁸, which is the same. Pair l has the exponent 2l/d.
    sine and cosine of different frequencies: Each feature has a frequency of its own. A sine and
        its cosine belong together and have the same: compute d/2 frequencies and use each twice.
    frequencies to the very end [tensor2tensor, fairseq and Flax]: your exponents are i/(d/2 − 1),
        so they end at 1, and with d = 2 that is 0/0. Here they are 2l/d, as in the paper, and never
        reach 1.
    divided by the width less one: You divide by one less than the width, 2i/(d − 1). The formula
        has 2l/d.
    angle inverted: You multiply the position by 10000^(2l/d) where you should divide: the angles
        become huge, and their sines look like noise. The frequencies fall with i.
    product for a power: You divide the position by 10000 · 2l/d. The 2l/d is an exponent.
    logarithm of base 10: You take exp of −2l/d · log10(10000). Take the natural logarithm.
    logarithm forgotten: You take exp, or a power of 2 or 10, of an exponent that belongs to 10000:
        10000^(−2l/d) is exp(−2l/d · ln 10000).
    one frequency for all: All your pairs of features have one frequency: the exponent needs i.
    angles in half precision: Your frequencies or angles are computed in float16 or bfloat16, which
        knows three digits: at a late position the angle is off by a good part of a turn. Compute
        them in float32 at least, and round the sines and cosines.
    frequencies in reverse: Your slowest frequency comes first. The fastest, 1, does.
    positions from 1: Your positions start at 1. The first is 0: sin 0 = 0 and cos 0 = 1.
    positions backwards: Your positions run backwards, or below 0. Row i belongs to position i.
    positions divided by the length: You divide the positions by the length, so the angles of a row
        depend on how many rows there are. Row i belongs to position i itself.
    pairs from 1: You count the pairs from 1, from 1/2 or from below 0, so the first frequency is
        not 1. Start at 0.
    position and pair exchanged: Your position is in the exponent. The angle is i/10000^(2l/d).
    turns for radians: You multiply the angles by 2π. Take the sine of i/10000^(2l/d) itself.
    degrees for radians: You turn the angles as if they were degrees. They are radians already.
    transposed: Your table has a row for each feature. It has one for each position, (n, d_model).
    axis too many: Your table has an axis for the batch. Without it, (n, d_model), it broadcasts.
    twice as wide: Your table has 2d columns: a frequency for each of the d features, and two waves
        of each. There are d/2 frequencies.
    one half alone: Your table has d/2 columns. Each frequency gives two, a sine and a cosine.
    waves scaled: You multiply the waves, which have size 1. It is the embedding that is scaled.
    exponent not divided by d: Your exponent is l or 2l. It is divided by the width, 2l/d.
    pairs that share a frequency: Your exponent comes from l // 2, so two pairs have one frequency,
        or one pair another. Where l counts the pairs, 0 to d/2 − 1, it is 2l/d.
    angles near 0: Your angles are as good as 0, so every row is that of position 0. Look at the
        brackets: ** is done before * and /, so that p / 10000 ** 2 * l / d is (p / 10000²) · l / d.
        The exponent is all of 2l/d: 10000 ** (2 * l / d).
    exponent without brackets: Not all of 2l/d is the exponent of 10000. ** is done before * and /,
        so that 10000 ** 2 * l / d is (10000²) · l / d. Write 10000 ** (2 * l / d), and p outside.
    a row too many: Your table has a row too many or too few: its positions are 0 to n − 1.
    """,
    {
        "sin and cos swapped": {"first": np.cos, "second": np.sin},
        "sines alone": each("second", np.sin),
        "cosines alone": each("first", np.cos),
        "half of the table empty": ({"second": np.zeros_like}, {"first": np.zeros_like}),
        "sign of a wave": (
            {"first": lambda a: -np.sin(a)},
            {"second": lambda a: -np.cos(a)},
            {"leave": np.negative},
        ),
        "another wave": (
            {"first": np.positive, "second": np.positive},
            {"second": np.tan},
            *each("first", np.tan, np.tanh),
        ),
        "another base": each("base", 1000.0, 1e5, 10.0, 5e5, 1e6, math.e, 2.0, 1024.0, 5000.0, 2e4),
        "exponent halved": each("exponent", lambda i, d: i / d),
        "exponent doubled": each("exponent", lambda i, d: 4 * i / d),
        "exponent not divided by d": each("exponent", lambda i, d: 2.0 * i, lambda i, d: 1.0 * i),
        "pairs that share a frequency": each("index", lambda i, *others: i // 2),
        "sine and cosine of different frequencies": each(
            "index",
            lambda i, j, c: j,
            lambda i, j, c: j / 2,
            lambda i, j, c: i + c,
            lambda i, j, c: i + c / 2,
        ),
        "frequencies to the very end": each(
            "exponent",
            lambda i, d: i / max(d // 2 - 1, 1),
            lambda i, d: i / np.float64(d // 2 - 1),
            lambda i, d: np.where(d > 2, i / max(d // 2 - 1, 1), np.nan),
        ),
        "divided by the width less one": each("exponent", lambda i, d: 2 * i / max(d - 1, 1)),
        "angle inverted": each("frequency", lambda b, e: b**e),
        "product for a power": each("frequency", lambda b, e: 1 / (b * e), lambda b, e: b * e),
        "angles near 0": each("frequency", lambda b, e: b**-2.0 * e / 2, lambda b, e: 0 * e),
        "exponent without brackets": (
            {"frequency": lambda b, e: 1 / (b**2.0 * e / 2)},
            {"exponent": lambda i, d: 2 * i + np.log(d) / np.log(10000.0)},
            {"frequency": lambda b, e: e, "angle": lambda p, e: (p / 10000.0) ** e},
            {"frequency": lambda b, e: e / b},
        ),
        "logarithm of base 10": each(
            "frequency", lambda b, e: np.exp(-e * np.log10(b)), lambda b, e: np.exp(-e * np.log2(b))
        ),
        "logarithm forgotten": each("frequency", lambda b, e: np.exp(-e)),
        "one frequency for all": each("exponent", lambda i, d: 0.0 * i, lambda i, d: 0.0 * i + 1),
        "angles in half precision": tuple(
            {step: lambda a, b, of=of, low=low: low(of(a, b))}
            for step, of in (("frequency", lambda b, e: b**-e), ("angle", np.multiply))
            for low in (_float16, _bfloat16)
        )
        + each(
            "angle",
            lambda p, w: _float16(p * _float16(w)),
            lambda p, w: _bfloat16(p * _bfloat16(w)),
        ),
        "frequencies in reverse": each(
            "index", lambda i, *others: i[::-1], lambda i, *others: len(i) - i
        ),
        "positions from 1": each("places", lambda n: np.arange(1, n + 1)),
        "positions backwards": each(
            "places", lambda n: np.arange(n)[::-1], lambda n: -np.arange(n)
        ),
        "positions divided by the length": each(
            "places", lambda n: np.arange(n) / n, lambda n: np.arange(n) / max(n - 1, 1)
        ),
        "pairs from 1": each(
            "index", *(lambda i, *others, by=by: i + by for by in (1, 0.5, -0.5, -1))
        ),
        "a row too many": each(
            "places",
            lambda n: np.arange(n + 1),
            lambda n: np.arange(n - 1),
            lambda n: np.arange(1, n),
        ),
        "position and pair exchanged": {
            "frequency": lambda b, e: e,
            "angle": lambda p, e: (e / 2) * 10000.0 ** (-2.0 * p),
        },
        "turns for radians": each(
            "angle", lambda p, w: 2 * math.pi * p * w, lambda p, w: math.pi * p * w
        ),
        "degrees for radians": each(
            "angle", lambda p, w: np.deg2rad(p * w), lambda p, w: np.rad2deg(p * w)
        ),
        "transposed": each("leave", np.transpose),
        "axis too many": each("leave", lambda E: E[np.newaxis], lambda E: E[:, np.newaxis]),
        "twice as wide": each(
            "index",
            lambda i, j, c: np.arange(2 * len(i)) / 2,
            lambda i, j, c: np.arange(2 * len(i)),
        ),
        "one half alone": each(
            "join", lambda sines, cosines: sines, lambda sines, cosines: cosines, np.add
        ),
        "waves scaled": each(
            "leave",
            lambda E: E * math.sqrt(E.shape[-1]),
            lambda E: E / math.sqrt(E.shape[-1]),
            lambda E: E * 0.5,
            lambda E: E * 2.0,
        ),
    },
)

ANGLE_MISTAKES = only(
    _MISTAKES,
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


_LAYOUTS = mistakes(
    """
    interleaved [the original paper]: your sines and cosines alternate. Here all sines come first,
        then all cosines, [sin | cos]. Run a model with the layout that it was trained with.
    halves [tensor2tensor and fairseq]: all your sines come first, then all cosines. Here they
        alternate, sin, cos, sin, cos, … Run a model with the layout that it was trained with.
    """,
    {"interleaved": each("join", _pairs), "halves": each("join", _halves)},
)


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
        reference=lambda n, d: positions.sinusoidal(n, d, interleaved=join is _pairs),
        compute=_table,
        steps={**_STEPS, "join": join},
        stages=(Stage(tuple(Case({"n": n, "d_model": d}) for n, d in _SIZES)),),
        mistakes=(other, *_MISTAKES),
        properties=(pairs_lie_on_circles,),
    )


HALVES = _check("positional_encoding", _halves, _LAYOUTS[0])
INTERLEAVED = _check("positional_encoding, interleaved", _pairs, _LAYOUTS[1])

_EITHER = {
    f"your layout is {layout}": replace(check, name=HALVES.name, mistakes=_MISTAKES)
    for layout, check in {
        "that of halves, all sines and then all cosines.": HALVES,
        "interleaved, sin, cos, sin, cos, …": INTERLEAVED,
    }.items()
}
