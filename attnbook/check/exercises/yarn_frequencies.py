"""The frequencies of YaRN in steps: the ramp between two pairs, and the ways to get it wrong."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def yarn_frequencies(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the rotary frequencies of YaRN, and the attention factor.

    Runs `f` on several widths, bases, factors and lengths, those of DeepSeek-V3 and gpt-oss among
    them, and on a factor of 1.

    Parameters
    ----------
    f : callable
        Called as ``f(width, base, factor, n_positions, beta_fast, beta_slow)``, by position, on
        plain numbers, of which width and n_positions are ints. Pair l has the frequency
        ω = base^(−2l/width). The pair that makes β rotations within n_positions positions has the
        index width · ln(n_positions/(2πβ)) / (2 ln base), which is not rounded. Up to the index of
        beta_fast ω stays, from that of beta_slow on it is ω/factor, and between the two, the share
        of ω/factor rises linearly with l. `f` returns the frequencies (width/2,), and the attention
        factor 0.1 ln(factor) + 1.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_yarn(width, base, factor, n_positions, beta_fast, beta_slow):
    ...     l = np.arange(width // 2)
    ...     omega = base ** (-2 * l / width)
    ...     fast, slow = (
    ...         width * math.log(n_positions / (2 * math.pi * beta)) / (2 * math.log(base))
    ...         for beta in (beta_fast, beta_slow)
    ...     )
    ...     ramp = np.clip((l - fast) / (slow - fast), 0, 1)
    ...     return ramp * omega + (1 - ramp) * omega / factor, 0.1 * math.log(factor) + 1
    >>> check.yarn_frequencies(my_yarn).mistake
    'ramp inverted'
    """
    return run(YARN_FREQUENCIES, f, time_limit)


def linear(pair, first, last):
    return np.clip((pair - first) / (last - first), 0, 1)


def _yarn(s: Any, width, base, factor, n_positions, beta_fast, beta_slow):
    pairs = np.arange(width // 2)
    omega = s.base(base) ** -s.exponent(pairs, width)
    n = s.length(n_positions, factor)
    turns = n * omega / (2 * math.pi)
    first, last = (s.place(beta, width, base, n) for beta in (beta_fast, beta_slow))
    ramp = s.ramp(pairs, *s.bounds(first, last), turns, beta_fast, beta_slow)
    found = s.leave(s.mix(omega, ramp, factor), s.attention(factor))
    return tuple(np.asarray(x, dtype=float) for x in found)


def _adapt(function: Callable) -> Callable:
    """Return `function` with plain numbers as arrays."""

    def adapted(*given):
        found = function(*given)
        if not isinstance(found, (tuple, list)):
            return found
        return tuple(np.asarray(x, float) if isinstance(x, (int, float)) else x for x in found)

    return signed_as(function, adapted)


def frequencies_lie_between(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether a frequency lies outside ω/factor and ω, or which end is wrong."""
    given, found = case.arguments, values[0]
    omega = given["base"] ** (-2 * np.arange(given["width"] // 2) / given["width"])
    if found.shape != omega.shape:
        return None
    if not np.allclose(found[0], 1, atol=1e-4):
        return "Pair 0 makes the most rotations, so its frequency must stay 1."
    if not np.allclose(found[-1] * given["factor"], omega[-1], rtol=1e-3):
        return "The last pair is the slowest, so its frequency must be divided by the factor."
    if np.any((found > omega * 1.001) | (found < omega / given["factor"] * 0.999)):
        return "Every frequency must lie between ω/factor and ω."
    return None


def _case(
    width: int, base: float, factor: float, n: int, fast: float = 32.0, slow: float = 1.0
) -> Case:
    names = ("width", "base", "factor", "n_positions", "beta_fast", "beta_slow")
    return Case(dict(zip(names, (width, base, factor, n, fast, slow), strict=True)))


TEXT = Text(globals())

YARN_FREQUENCIES = Check(
    name="yarn_frequencies",
    parameters=("width", "base", "factor", "n_positions", "beta_fast", "beta_slow"),
    results={"frequencies": "(width / 2,)", "factor": "()"},
    compute=_yarn,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                _case(64, 10000.0, 40.0, 4096),
                _case(64, 150000.0, 32.0, 4096),
                _case(32, 10000.0, 4.0, 2048, 16.0, 2.0),
                _case(16, 500.0, 8.0, 512, 20.0, 0.5),
                _case(128, 1e6, 2.5, 32768),
            )
        ),
        Stage((_case(32, 10000.0, 1.0, 2048),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(frequencies_lie_between,),
    adapt=_adapt,
)
