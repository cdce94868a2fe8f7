"""A learning rate with warm-up and cosine in steps, and the ways to get it wrong."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def warmup_cosine(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a learning rate that rises linearly and then falls along half a cosine.

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


def rate(s: Any, step, steps, warmup, peak):
    """Return the rate by the steps `s`."""
    t = s.number(step)
    falls = s.begins(t, warmup)
    share = s.falling(s.part(t, steps, warmup)) if falls else s.rising(t, warmup, steps)
    return np.asarray(s.scale(share, peak), dtype=float)


def _adapt(function: Callable) -> Callable:
    """Return `function` with plain numbers as arrays."""

    def adapted(*given):
        found = function(*given)
        return np.asarray(found, dtype=float) if isinstance(found, (int, float)) else found

    return signed_as(function, adapted)


def cosine(part):
    return (1 + math.cos(math.pi * part)) / 2


TEXT = Text(globals())


def one_part_is_right(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the rates of the warm-up are right, or those of the cosine."""
    given = {name: x for name, x in case.arguments.items() if name != "step"}
    steps, warmup = given["steps"], given["warmup"]
    parts = {"in the warm-up": (0, warmup), "in the cosine": (warmup, steps)}
    for name, (first, end) in parts.items():
        places = [{"step": step} for step in {first, (first + end) // 2, end - 1}]
        wanted = [rate(SimpleNamespace(**TEXT.steps), **at, **given) for at in places]
        if all(
            np.allclose(again(**at)[:1], right) for at, right in zip(places, wanted, strict=True)
        ):
            return f"Your rates are right {name}, and wrong elsewhere."
    return None


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
    steps=TEXT.steps,
    stages=(
        _cases(100, 10, 0.3, 0, 3, 9, 10, 40, 77, 99),
        _cases(37, 5, 3e-3, 0, 4, 5, 20, 36),
        _cases(11, 1, 2.0, 0, 1, 5, 10),
    ),
    mistakes=TEXT.mistakes,
    properties=(one_part_is_right,),
    adapt=_adapt,
)
