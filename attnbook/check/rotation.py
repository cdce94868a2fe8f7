"""Rotary positions in steps: the angles, the pairs of features, their rotation, and the order."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook import positions
from attnbook.check.engine import documented, either, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import with_options
from attnbook.check.sinusoids import ANGLE_MISTAKES, ANGLE_STEPS, angles
from attnbook.check.steps import Case, Check, Mistake, Stage, Values, draw, each


@documented
def rotary(f: Callable, *, interleaved: bool | None = None, time_limit: float = 10.0) -> Report:
    """Check a rotation of queries or keys by their positions.

    Runs `f` on several sizes, also on one position and on one pair of features, in float64 and
    float32, on batches of heads, and from a later position on if it takes `start`.

    Parameters
    ----------
    f : callable
        Called as ``f(x)`` on (n, d), d even, and as ``f(x, start=…)`` if it takes an argument named
        `start` or `offset`. It returns an array of the shape of `x`. It may be written for one
        head, without leading axes.
    interleaved : bool, optional
        True asks for the pairs of features 2l and 2l + 1, and False for those of l and l + d/2.
        Unless given, both are right and a remark says which it is.

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


def _halves(x):
    return np.split(x, 2, axis=-1)


def _evens_and_odds(x):
    return x[..., 0::2], x[..., 1::2]


def _side_by_side(a, b):
    return np.concatenate([a, b], axis=-1)


def _alternating(a, b):
    return np.stack([a, b], axis=-1).reshape(*a.shape[:-1], -1)


_STEPS: dict[str, Any] = {
    "start": lambda start: start,
    "places": lambda start, n: start + np.arange(n),
    **ANGLE_STEPS,
    "cosines": np.cos,
    "sines": np.sin,
    "rotate": lambda a, b, c, s: (a * c - b * s, a * s + b * c),
    "leave": lambda y, x, angles: y,
}


def _counted(frequencies):
    return np.arange(len(frequencies))


def _rotated(steps: Any, x, start=0):
    n, d = x.shape[-2:]
    p = np.asarray(steps.places(steps.start(start), n))[:, np.newaxis]
    turned = angles(steps, p, d, np.arange(d // 2))
    pairs = steps.rotate(*steps.split(x), steps.cosines(turned), steps.sines(turned))
    return steps.leave(steps.join(*pairs), x, turned)


def _mistakes(split: Callable, join: Callable, other: tuple[Callable, Callable]) -> tuple:
    """Return the mistakes of one layout, and with them what takes it for the other."""

    def partly(begin, end):
        """Rotate the features from one quarter to another as if there were no others."""

        def leave(y, x, angles):
            first, last = (x.shape[-1] * n // 8 * 2 for n in (begin, end))
            if first == last:
                return x
            rotated = positions.rotary(x[..., first:last], interleaved=join is _alternating)
            return np.concatenate([x[..., :first], rotated, x[..., last:]], axis=-1)

        return leave

    def table_of_the_other(y, x, angles):
        """Multiply by a table of the other layout, as `rotate_half` does."""
        c, s = (other[1](f(angles), f(angles)) for f in (np.cos, np.sin))
        a, b = split(x)
        return x * c + join(-b, a) * s

    return mistakes(
        """
        rotated backwards: You rotate by −i·ω: the signs in front of the sines are exchanged. The
            pair (a, b) becomes (a cos − b sin, a sin + b cos).
        sign in one row: In one of the two rows a sign is wrong, so a pair is mirrored or squeezed,
            not rotated. The pair (a, b) becomes (a cos − b sin, a sin + b cos).
        sines and cosines exchanged: Your sines stand where the cosines should: at position 0 a pair
            must stay as it is, and cos 0 is 1.
        half of a pair kept: You change the first number of a pair and keep the second, or the
            reverse. A rotation changes both.
        changed number used again: You put the new a in the place of the old before b is computed.
            Both rows need the old a and b.
        cosines alone: You multiply by the cosines and leave the sines out.
        sines alone: You multiply by the sines and leave the cosines out.
        added, not rotated: You add sines and cosines to x. They are the entries of a rotation that
            multiplies each pair.
        put together in another order: You take the pairs apart in one layout and put them together
            in the other.
        table of the other layout: Your cosines and sines are repeated in the order of the other
            layout, so a feature turns by the angle of another pair.
        members of a pair exchanged: The two numbers of each pair come back in reverse order.
        positions from 1: Your positions start at 1. The first is 0, and is not rotated.
        positions backwards: Your positions run backwards. Row i turns by i·ω.
        positions divided by the length: You divide the positions by the length, so the angle of a
            row depends on how many rows there are. Row i turns by i·ω.
        one position for all: You rotate every row by the same angles.
        angles doubled: You rotate twice, or by twice the angle, i·ω.
        product for a power: You divide the position by 10000 · 2l/d. The 2l/d is an exponent.
        turns for radians: You multiply the angles by 2π, or take them for degrees. They are
            radians: cos(i·ω) itself.
        start ignored: Your function takes `start` and begins at position 0 all the same. With n
            tokens in a cache the next one stands at n.
        start taken wrong: Your positions do not begin at `start`: you subtract it, double it or
            move it by one. They are start, start + 1, …
        first features rotated [GPT-J, GPT-NeoX and Phi]: you rotate the first features of a head,
            a half or a quarter, and leave the others. Here each pair is rotated, by i/10000^(2l/d).
        base of long contexts [Llama 3 (500,000) and Qwen 2 (1,000,000)]: your base is not 10000, as
            it is here and in the paper.
        part of the features rotated: You rotate some of the features, and the others hardly or not
            at all. Each pair is rotated, by i/10000^(2l/d).
        angles halved: You rotate by half the angle, i·ω.
        """,
        {
            "rotated backwards": each("rotate", lambda a, b, c, s: (a * c + b * s, b * c - a * s)),
            "sign in one row": each(
                "rotate",
                lambda a, b, c, s: (a * c + b * s, a * s + b * c),
                lambda a, b, c, s: (a * c - b * s, b * c - a * s),
                lambda a, b, c, s: (a * c - b * s, a * s - b * c),
                lambda a, b, c, s: (a * c + b * s, a * s - b * c),
                lambda a, b, c, s: (a * c - b * s, -a * s - b * c),
                lambda a, b, c, s: (b * s - a * c, a * s + b * c),
            ),
            "sines and cosines exchanged": (
                {"cosines": np.sin, "sines": np.cos},
                {"sines": np.cos},
                {"cosines": np.sin},
                *each(
                    "rotate",
                    lambda a, b, c, s: (a * c - b * s, a * c + b * s),
                    lambda a, b, c, s: (a * s - b * c, a * s + b * c),
                ),
            ),
            "half of a pair kept": each(
                "rotate",
                lambda a, b, c, s: (a * c - b * s, b),
                lambda a, b, c, s: (a, a * s + b * c),
            ),
            "changed number used again": each(
                "rotate", lambda a, b, c, s: (a * c - b * s, (a * c - b * s) * s + b * c)
            ),
            "cosines alone": each("rotate", lambda a, b, c, s: (a * c, b * c)),
            "sines alone": each("rotate", lambda a, b, c, s: (-b * s, a * s)),
            "first features rotated": each("leave", partly(0, 2), partly(0, 1)),
            "base of long contexts": each("base", 5e5, 1e6),
            "part of the features rotated": (
                *each("leave", partly(2, 4)),
                *each(
                    "angle",
                    lambda p, w: p * w * (_counted(w) < (len(w) + 1) // 2),
                    lambda p, w: p * w * (_counted(w) < len(w) // 2),
                    lambda p, w: p * w * (_counted(w) >= len(w) // 2),
                    lambda p, w: p * w * (_counted(w) < len(w) - 1),
                    lambda p, w: p * w * (_counted(w) > 0),
                    lambda p, w: p * w * (_counted(w) == 0),
                ),
            ),
            "added, not rotated": each(
                "leave",
                lambda y, x, t: x + _side_by_side(np.sin(t), np.cos(t)),
                lambda y, x, t: x + _alternating(np.sin(t), np.cos(t)),
            ),
            "put together in another order": ({"join": other[1]}, {"split": other[0]}),
            "table of the other layout": each("leave", table_of_the_other),
            "members of a pair exchanged": each("join", lambda a, b: join(b, a)),
            "positions from 1": each("places", lambda start, n: start + np.arange(1, n + 1)),
            "positions backwards": each("places", lambda start, n: start + np.arange(n)[::-1]),
            "positions divided by the length": each(
                "places",
                lambda start, n: (start + np.arange(n)) / n,
                lambda start, n: (start + np.arange(n)) / max(n - 1, 1),
            ),
            "one position for all": each(
                "places", lambda start, n: np.full(n, n), lambda start, n: np.full(n, n - 1)
            ),
            "angles doubled": each("angle", lambda p, w: 2 * p * w),
            "angles halved": each("angle", lambda p, w: p * w / 2),
            "product for a power": each(
                "frequency", lambda b, e: 1 / np.where(e == 0, 1, b * e), lambda b, e: b * e
            ),
            "turns for radians": each(
                "angle",
                lambda p, w: 2 * math.pi * p * w,
                lambda p, w: np.deg2rad(p * w),
                lambda p, w: np.rad2deg(p * w),
            ),
            "start ignored": each("start", lambda start: 0),
            "start taken wrong": each(
                "start",
                lambda start: -start,
                lambda start: 2 * start,
                lambda start: start + (start > 0),
                lambda start: max(start - 1, 0),
            ),
        },
    )


_LAYOUTS = mistakes(
    """
    interleaved [RoFormer, GPT-J and Meta's Llama]: you rotate the pairs of features 2l and 2l + 1.
        Here a pair is l and l + d/2, from the two halves of a row. Run a model with the
        layout that it was trained with.
    halves [GPT-NeoX and Transformers]: you rotate the pairs of features l and l + d/2. Here a pair
        stands side by side, 2l and 2l + 1. Run a model with the layout that it was trained with.
    """,
    {
        "interleaved": {"split": _evens_and_odds, "join": _alternating},
        "halves": {"split": _halves, "join": _side_by_side},
    },
)


def lengths_stay(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every row has the length that it had."""
    before, after = (np.sum(x.astype(float) ** 2, axis=-1) for x in (case.arrays["x"], values[0]))
    if before.shape != after.shape or np.allclose(before, after, rtol=1e-3):
        return None
    return "A rotation changes no length; in yours a row gets longer or shorter."


def _case(*shape: int, dtype: str = "float64", **options: int) -> Case:
    return Case({"x": draw(36, *shape).astype(dtype)}, options)


def _check(name: str, own: tuple, other: tuple, wrong: Mistake) -> Check:
    is_interleaved = own[1] is _alternating
    return Check(
        name=name,
        parameters=("x",),
        results={"output": "x.shape"},
        reference=lambda x, start=0: positions.rotary(x, start=start, interleaved=is_interleaved),
        compute=_rotated,
        steps={**_STEPS, "split": own[0], "join": own[1]},
        stages=(
            Stage(tuple(_case(*shape) for shape in ((6, 6), (1, 2), (3, 4), (5, 14), (97, 10)))),
            Stage((_case(5, 6, dtype="float32"),)),
            Stage((_case(2, 3, 6), _case(2, 3, 5, 4)), may_raise="a batch (leading axes)"),
            Stage((_case(3, 6, start=5), _case(1, 4, start=11)), option="start"),
        ),
        mistakes=(wrong, *_mistakes(own[0], own[1], other), *ANGLE_MISTAKES),
        properties=(lengths_stay,),
        options=("start",),
        adapt=_adapt,
    )


_OF_HALVES, _OF_PAIRS = (_halves, _side_by_side), (_evens_and_odds, _alternating)
HALVES = _check("rotary", _OF_HALVES, _OF_PAIRS, _LAYOUTS[0])
INTERLEAVED = _check("rotary, interleaved", _OF_PAIRS, _OF_HALVES, _LAYOUTS[1])

_EITHER = {
    f"your layout is {layout}": replace(check, name=HALVES.name, mistakes=check.mistakes[1:])
    for layout, check in {
        "that of halves, features i and i + d/2.": HALVES,
        "interleaved, features 2l and 2l + 1.": INTERLEAVED,
    }.items()
}
