"""A learning rate with warm-up and cosine in steps, and the ways to get it wrong."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signed_as
from attnbook.check.steps import Case, Check, Stage, Values, each


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
    "rising": lambda t, warmup, steps: t / warmup,
    "begins": lambda t, warmup: t > warmup,
    "part": lambda t, steps, warmup: (t - warmup) / (steps - warmup),
    "falling": lambda part: (1 + math.cos(math.pi * part)) / 2,
    "scale": lambda share, peak: peak * share,
}


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


def _line(at):
    t, _, warmup = at
    return t / warmup


def _late(at):
    t, steps, warmup = at
    return (t - warmup) / (steps - warmup)


def _part_from_0(t, steps, warmup):
    return (t - 1 - warmup) / (steps - warmup)


def _cosine(part):
    return (1 + math.cos(math.pi * part)) / 2


def _but_where_told(share, peak):
    """Multiply by the peak, but not a share that says so."""
    return share[0] if isinstance(share, tuple) else peak * share


_MISTAKES = mistakes(
    """
    updates counted from 0 [Transformers, torchtune and llama2.c]: you put `step` where the
        number of the update belongs, so the first update has the rate 0 and moves nothing. Here
        update number t is step + 1, and the last update is the one with the rate 0.
    cosine counted from 0 [llm.c]: your warm-up is right, and your cosine counts the updates from 0,
        so it begins one update late and the last update still has a rate. Here t is step + 1 in the
        cosine too.
    warm-up over one update more [nanoGPT]: you divide by warmup + 1 in the warm-up, and your cosine
        counts the updates from 0. Here update t = step + 1 has the rate peak · t/warmup up to t =
        warmup, and the cosine goes on from t.
    line times cosine [the UvA tutorials]: your cosine runs over the whole run, and in the warm-up
        you multiply it by the line. Here only the line counts up to t = warmup, and the cosine
        begins after it.
    warm-up counted from 0: In the warm-up you put `step` where the number of the update belongs, so
        the first update has the rate 0 and moves nothing. Update number t is step + 1.
    cosine over the whole run: Your cosine begins at step 0, not at the end of the warm-up, so the
        rate jumps there. Its part of the way is (t − warmup)/(steps − warmup).
    cosine too long: Your cosine begins at the end of the warm-up and takes `steps` more, so the
        run ends before the rate is 0. It has steps − warmup updates.
    one off in a length: You divide by one update more or less than there are. The warm-up has
        `warmup` of them, the cosine steps − warmup.
    no warm-up: The rate is at its peak from the first update on, or the warm-up is part of the
        cosine. It rises along t/warmup.
    no fall: The rate stays at its peak after the warm-up.
    digits cut off: You divide with //, which cuts off the digits. Divide with /.
    fall along a line [BERT]: your rate falls along a line. Here it falls along half a cosine.
    inverse square root [the original Transformer]: your rate falls as 1/√t. Here it falls along
        half a cosine.
    least rate [nanoGPT, minGPT and litgpt]: your rate ends at a share of its peak, such as a tenth.
        Here it ends at 0.
    cosine upside down: The rate rises again from 0: your cosine has the other sign. 1 + cos falls.
    quarter of a cosine: You use cos from 0 to π/2, which falls slowly at first and fast at the end.
        Half a cosine, from 0 to π, moved up and halved, is slow at both ends.
    whole cosine: Your cosine goes through a whole turn, or is squared, and the rate is at its peak
        again at the end. Half a turn, π, is the way from peak to 0.
    cosine not moved up: Your rate becomes negative. The cosine runs from 1 to −1: add 1, and halve.
    cosine not halved: 1 + cos is 2 at its beginning, so the rate jumps to twice the peak. Halve it.
    degrees for radians: math.cos takes radians: half a turn is π.
    sine for the cosine: You take the sine.
    peak forgotten: You return the share of the peak, in all updates or in those of the warm-up or
        of the cosine. Multiply by it.
    warm-up along a curve: Your warm-up is no line: its rate is peak · t/warmup.
    updates counted from 2: You use step + 2, in the warm-up or everywhere. Update number t is step
        + 1.
    both at once: You join the line and the cosine in one update, as their product or the smaller of
        the two. Up to t = warmup the line counts alone, and afterwards the cosine alone.
    another part of the way: You take the cosine of another part of the way than
        (t − warmup)/(steps − warmup), which goes from 0 at the end of the warm-up to 1.
    warm-up falls: Your rate falls during the warm-up. It rises along t/warmup.
    another slope: Your warm-up is a line that does not reach the peak in update `warmup`: you
        divide by something else than `warmup`, or not at all. Its rate is peak · t/warmup.
    nothing in the warm-up: Your rate is 0 in the warm-up. It rises along t/warmup.
    branches exchanged: You take the cosine up to t = warmup and the line afterwards. Turn the
        comparison round.
    nothing after the warm-up: Your rate is 0 after the warm-up. It falls along half a cosine.
    π forgotten: You take the cosine of the part of the way itself. Half a turn is π: multiply by
        it first.
    cosine begins late: Your line goes on beyond t = warmup, so the rate rises above the peak.
    1 not halved: You halve the cosine alone, so the rate runs from 1.5 to 0.5 times the peak. Halve
        the sum, (1 + cos)/2.
    another curve: After the warm-up your rate is another function of the part of the way: a power,
        an exponential, or the size of a cosine. It is (1 + cos(π · part))/2.
    another use of the peak: You divide by the peak, add it, or multiply by it twice. The rate is a
        share between 0 and 1, times the peak.
    rate scaled: Your rate is twice or half the right one in every update.
    """,
    {
        "updates counted from 0": (
            {"number": lambda step: step},
            {"number": lambda step: step, "begins": lambda t, w: t >= w},
        ),
        "cosine counted from 0": each("part", _part_from_0),
        "warm-up over one update more": {
            "rising": lambda t, w, steps: t / (w + 1),
            "part": _part_from_0,
        },
        "line times cosine": tuple(
            {
                "number": number,
                "begins": lambda t, w: True,
                "part": lambda t, steps, w: (t, steps, w),
                "falling": lambda at: min(_line(at), 1) * _cosine(at[0] / at[1]),
            }
            for number in (lambda step: step, lambda step: step + 1)
        ),
        "warm-up counted from 0": each(
            "rising",
            lambda t, w, steps: (t - 1) / w,
            lambda t, w, steps: (t - 1) / max(w - 1, 1),
        ),
        "updates counted from 2": each("number", lambda step: step + 2)
        + each("rising", lambda t, w, steps: (t + 1) / w),
        "both at once": tuple(
            {
                "begins": lambda t, w: True,
                "part": lambda t, steps, w: (t, steps, w),
                "falling": join,
            }
            for join in (
                lambda at: _line(at) * _cosine(at[0] / at[1]),
                lambda at: _line(at) * _cosine(max(_late(at), 0)),
                lambda at: min(_line(at), _cosine(at[0] / at[1])),
            )
        ),
        "cosine over the whole run": each("part", lambda t, steps, w: t / steps),
        "cosine too long": each("part", lambda t, steps, w: (t - w) / steps),
        "one off in a length": (
            *each(
                "rising",
                lambda t, w, steps: t / (w + 1),
                lambda t, w, steps: t / max(w - 1, 1),
            ),
            {"part": lambda t, steps, w: (t - w) / max(steps - w - 1, 1)},
            {"part": lambda t, steps, w: (t - w) / (steps - w + 1)},
        ),
        "another part of the way": each(
            "part",
            lambda t, steps, w: t / (steps - w),
            lambda t, steps, w: (t - w) / (steps + w),
            lambda t, steps, w: (t - w) / w,
            lambda t, steps, w: (steps - w) / (t - w),
            lambda t, steps, w: (t + w) / steps,
        ),
        "no warm-up": (
            {"rising": lambda t, w, steps: 1.0},
            {"begins": lambda t, w: True, "part": lambda t, steps, w: t / steps},
            {"begins": lambda t, w: True},
        ),
        "warm-up falls": each(
            "rising",
            lambda t, w, steps: 1 - t / w,
            lambda t, w, steps: 1 - (t - 1) / w,
            lambda t, w, steps: w / t,
        ),
        "another slope": each(
            "rising",
            lambda t, w, steps: t,
            lambda t, w, steps: t - 1,
            lambda t, w, steps: t / steps,
            lambda t, w, steps: t * w,
            lambda t, w, steps: t / (2 * w),
        ),
        "nothing in the warm-up": each("rising", lambda t, w, steps: 0.0),
        "branches exchanged": each("begins", lambda t, w: t <= w, lambda t, w: t < w),
        "no fall": each("falling", lambda part: 1.0),
        "digits cut off": (
            {"rising": lambda t, w, steps: t // w},
            {"part": lambda t, steps, w: (t - w) // (steps - w)},
        ),
        "nothing after the warm-up": each("falling", lambda part: 0.0),
        "fall along a line": each("falling", lambda part: 1 - part),
        "inverse square root": (
            {"part": lambda t, steps, w: w / t, "falling": math.sqrt},
            {"part": lambda t, steps, w: t, "falling": lambda t: 1 / math.sqrt(t)},
        ),
        "least rate": tuple(
            way
            for least in (0.1, 0.01, 0.05, 0.2)
            for way in (
                {"scale": lambda share, peak, e=least: peak * (e + (1 - e) * share)},
                {"scale": lambda share, peak, e=least: peak * max(share, e)},
                {"falling": lambda part, e=least: e + (1 - e) * _cosine(part)},
                {"falling": lambda part, e=least: max(e, _cosine(part))},
            )
        ),
        "cosine upside down": each("falling", lambda part: (1 - math.cos(math.pi * part)) / 2),
        "quarter of a cosine": each(
            "falling",
            lambda part: math.cos(math.pi * part / 2),
            lambda part: _cosine(part / 2),
        ),
        "whole cosine": each("falling", lambda part: (1 + math.cos(2 * math.pi * part)) / 2),
        "cosine not moved up": each(
            "falling",
            lambda part: math.cos(math.pi * part),
            lambda part: math.cos(math.pi * part) / 2,
            lambda part: (math.cos(math.pi * part) - 1) / 2,
            lambda part: -_cosine(part),
        ),
        "cosine not halved": each("falling", lambda part: 1 + math.cos(math.pi * part)),
        "degrees for radians": each("falling", lambda part: (1 + math.cos(180 * part)) / 2),
        "π forgotten": each("falling", lambda part: (1 + math.cos(part)) / 2, math.cos),
        "cosine begins late": each("begins", lambda t, w: t > w + 1, lambda t, w: t > 2 * w),
        "1 not halved": each("falling", lambda part: 1 + math.cos(math.pi * part) / 2),
        "sine for the cosine": each(
            "falling",
            lambda part: math.sin(math.pi * part / 2),
            lambda part: (1 + math.sin(math.pi * part)) / 2,
            lambda part: math.sin(math.pi * part),
        ),
        "another curve": each(
            "falling",
            lambda part: (1 - part) ** 2,
            lambda part: math.sqrt(1 - part),
            lambda part: 1 - part**2,
            lambda part: math.exp(-part),
            lambda part: part,
            lambda part: abs(math.cos(math.pi * part)),
            lambda part: max(math.cos(math.pi * part), 0),
            lambda part: _cosine(part) ** 2,
        ),
        "another use of the peak": each(
            "scale",
            lambda share, peak: share / peak,
            lambda share, peak: share + peak,
            lambda share, peak: share * peak**2,
        ),
        "rate scaled": each(
            "scale", lambda share, peak: 2 * peak * share, lambda share, peak: peak * share / 2
        ),
        "peak forgotten": (
            {"scale": lambda share, peak: share},
            {"rising": lambda t, w, steps: (t / w, True), "scale": _but_where_told},
            {
                "falling": lambda part: ((1 + math.cos(math.pi * part)) / 2, True),
                "scale": _but_where_told,
            },
        ),
        "warm-up along a curve": each(
            "rising",
            lambda t, w, steps: (t / w) ** 2,
            lambda t, w, steps: (t / w) ** 0.5,
            lambda t, w, steps: (1 - math.cos(math.pi * t / w)) / 2,
            lambda t, w, steps: math.exp(t / w - 1),
            lambda t, w, steps: math.sin(math.pi * t / (2 * w)),
        ),
    },
)


def one_part_is_right(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether the rates of the warm-up are right, or those of the cosine."""
    given = {name: x for name, x in case.arguments.items() if name != "step"}
    steps, warmup = given["steps"], given["warmup"]
    parts = {"in the warm-up": (0, warmup), "in the cosine": (warmup, steps)}
    for name, (first, end) in parts.items():
        places = [{"step": step} for step in {first, (first + end) // 2, end - 1}]
        wanted = [rate(SimpleNamespace(**STEPS), **at, **given) for at in places]
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
    steps=STEPS,
    stages=(
        _cases(100, 10, 0.3, 0, 3, 9, 10, 40, 77, 99),
        _cases(37, 5, 3e-3, 0, 4, 5, 20, 36),
        _cases(11, 1, 2.0, 0, 1, 5, 10),
    ),
    mistakes=_MISTAKES,
    properties=(one_part_is_right,),
    adapt=_adapt,
)
