"""A learning rate with warm-up and cosine in steps, and the ways to get it wrong."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signed_as
from attnbook.check.steps import Case, Check, Stage, each


@documented
def warmup_cosine(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a learning rate that rises along a line and falls along half a cosine.

    Runs `f` on the first and last steps of the warm-up and of the run and on steps between, with
    warm-ups of several lengths, from 1 on.

    Parameters
    ----------
    f : callable
        Called as ``f(step, steps, warmup, peak)``, by position, on three ints and a float. `step`
        counts from 0 to steps - 1; the update of step 0 is the first of `steps` updates. It returns
        a number: peak · t/warmup in update t = step + 1 up to t = warmup, and afterwards
        peak · (1 + cos(π · (t - warmup)/(steps - warmup)))/2, which is 0 in the last update.

    Examples
    --------
    >>> import math
    >>> from attnbook import check
    >>> def my_rate(step, steps, warmup, peak):
    ...     if step < warmup:
    ...         return peak * step / warmup
    ...     return peak * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
    >>> check.warmup_cosine(my_rate).mistake
    'updates counted from 0'
    """
    return run(WARMUP_COSINE, f, time_limit)


STEPS: dict[str, Any] = {
    "number": lambda step: step + 1,
    "rising": lambda t, warmup: t / warmup,
    "begins": lambda t, warmup: t > warmup,
    "part": lambda t, steps, warmup: (t - warmup) / (steps - warmup),
    "falling": lambda part: (1 + math.cos(math.pi * part)) / 2,
    "scale": lambda share, peak: peak * share,
}


def rate(s: Any, step, steps, warmup, peak):
    """Return the rate by the steps `s`."""
    t = s.number(step)
    falls = s.begins(t, warmup)
    share = s.falling(s.part(t, steps, warmup)) if falls else s.rising(t, warmup)
    return np.asarray(s.scale(share, peak), dtype=float)


def _adapt(function: Callable) -> Callable:
    """Return `function` with plain numbers as arrays."""

    def adapted(*given):
        found = function(*given)
        return np.asarray(found, dtype=float) if isinstance(found, (int, float)) else found

    return signed_as(function, adapted)


def _but_where_told(share, peak):
    """Multiply by the peak, but not a share that says so."""
    return share[0] if isinstance(share, tuple) else peak * share


_MISTAKES = mistakes(
    """
    updates counted from 0: You put `step` where the number of the update belongs, in the warm-up,
        in the cosine or in both: the first update has the rate 0 and moves nothing, or the last one
        is not at 0. Update number t is step + 1.
    cosine over the whole run: Your cosine begins at step 0, not at the end of the warm-up, so the
        rate jumps there. Its part of the way is (t − warmup)/(steps − warmup).
    cosine too long: Your cosine begins at the end of the warm-up and takes `steps` more, so the
        run ends before the rate is 0. It has steps − warmup updates.
    one off in a length: You divide by one update more or less than there are. The warm-up has
        `warmup` of them, the cosine steps − warmup.
    digits cut off: You divide with //, which cuts off the digits. Divide with /.
    no warm-up: The rate is at its peak from the first update on, or the warm-up is part of the
        cosine. It rises along t/warmup.
    no fall: The rate stays at its peak after the warm-up.
    fall along a line: The rate falls along a line. It falls along half a cosine.
    inverse square root: The rate falls as 1/√t, as it did for the first transformer. It falls along
        half a cosine.
    least rate: Your rate ends at a share of its peak. It ends at 0.
    cosine upside down: The rate rises again from 0: your cosine has the other sign. 1 + cos falls.
    quarter of a cosine: You use cos from 0 to π/2, which falls slowly at first and fast at the end.
        Half a cosine, from 0 to π, moved up and halved, is slow at both ends.
    whole cosine: Your cosine goes through a whole turn and is at its peak again at the end. Half a
        turn, π, is the way from peak to 0.
    cosine not moved up: Your rate becomes negative. The cosine runs from 1 to −1: add 1, and halve.
    cosine not halved: 1 + cos is 2 at its beginning, so the rate jumps to twice the peak. Halve it.
    degrees for radians: math.cos takes radians: half a turn is π.
    sine for the cosine: You take the sine.
    peak forgotten: You return the share of the peak, in all updates or in those of the warm-up or
        of the cosine. Multiply by it.
    warm-up along a curve: Your warm-up is no line: its rate is peak · t/warmup.
    """,
    {
        "updates counted from 0": (
            {"number": lambda step: step},
            {"number": lambda step: step, "begins": lambda t, w: t >= w},
            {"rising": lambda t, w: (t - 1) / w},
            {"part": lambda t, steps, w: (t - 1 - w) / (steps - w)},
        ),
        "cosine over the whole run": each("part", lambda t, steps, w: t / steps),
        "cosine too long": each("part", lambda t, steps, w: (t - w) / steps),
        "one off in a length": (
            *each("rising", lambda t, w: t / (w + 1), lambda t, w: t / max(w - 1, 1)),
            {"part": lambda t, steps, w: (t - w) / max(steps - w - 1, 1)},
            {"part": lambda t, steps, w: (t - w) / (steps - w + 1)},
        ),
        "digits cut off": (
            {"rising": lambda t, w: t // w},
            {"part": lambda t, steps, w: (t - w) // (steps - w)},
        ),
        "no warm-up": (
            {"rising": lambda t, w: 1.0},
            {"begins": lambda t, w: True, "part": lambda t, steps, w: t / steps},
        ),
        "no fall": each("falling", lambda part: 1.0),
        "fall along a line": each("falling", lambda part: 1 - part),
        "inverse square root": (
            {"part": lambda t, steps, w: w / t, "falling": math.sqrt},
            {"part": lambda t, steps, w: t, "falling": lambda t: 1 / math.sqrt(t)},
        ),
        "least rate": each("scale", lambda share, peak: peak * (0.1 + 0.9 * share)),
        "cosine upside down": each("falling", lambda part: (1 - math.cos(math.pi * part)) / 2),
        "quarter of a cosine": each("falling", lambda part: math.cos(math.pi * part / 2)),
        "whole cosine": each("falling", lambda part: (1 + math.cos(2 * math.pi * part)) / 2),
        "cosine not moved up": each(
            "falling",
            lambda part: math.cos(math.pi * part),
            lambda part: math.cos(math.pi * part) / 2,
        ),
        "cosine not halved": each("falling", lambda part: 1 + math.cos(math.pi * part)),
        "degrees for radians": each("falling", lambda part: (1 + math.cos(180 * part)) / 2),
        "sine for the cosine": each(
            "falling",
            lambda part: (1 + math.sin(math.pi * part)) / 2,
            lambda part: math.sin(math.pi * part),
        ),
        "peak forgotten": (
            {"scale": lambda share, peak: share},
            {"rising": lambda t, w: (t / w, True), "scale": _but_where_told},
            {
                "falling": lambda part: ((1 + math.cos(math.pi * part)) / 2, True),
                "scale": _but_where_told,
            },
        ),
        "warm-up along a curve": each(
            "rising",
            lambda t, w: (t / w) ** 2,
            lambda t, w: (t / w) ** 0.5,
            lambda t, w: (1 - math.cos(math.pi * t / w)) / 2,
        ),
    },
)


def _cases(steps: int, warmup: int, peak: float, *places: int) -> Stage:
    return Stage(
        tuple(
            Case({"step": step, "steps": steps, "warmup": warmup, "peak": peak}) for step in places
        )
    )


WARMUP_COSINE = Check(
    name="warmup_cosine",
    parameters=("step", "steps", "warmup", "peak"),
    results={"rate": "()"},
    compute=rate,
    steps=STEPS,
    stages=(
        _cases(100, 10, 0.3, 0, 3, 9, 10, 40, 77, 99),
        _cases(37, 5, 3e-3, 0, 4, 5, 20, 36),
        _cases(11, 1, 2.0, 0, 1, 5, 10),
    ),
    mistakes=_MISTAKES,
    adapt=_adapt,
)
