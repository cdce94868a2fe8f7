"""A step of AdamW in steps of its own, the ways to get each wrong, and the check of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text


@documented
def adamw_step(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check one step of AdamW, for one array.

    Runs `f` on first steps and on later ones, on gradients of many sizes and of 0, with and
    without weight decay.

    Parameters
    ----------
    f : callable
        Called as ``f(W, g, mean, square, t, lr, decay)``, by position: four arrays of one shape,
        the number t of the step, which is 1 in the first, and two floats. It returns three arrays:
        the new W and the new running means of g and of its square, as they are before they are
        divided by 1 − βᵗ. β₁ is 0.9, β₂ is 0.98 and ε is 1e-8.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_step(W, g, mean, square, t, lr, decay):
    ...     mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g**2
    ...     return W - lr * decay * W - lr * mean / (square**0.5 + 1e-8), mean, square
    >>> check.adamw_step(my_step).mistake
    'means not corrected'
    """
    return run(ADAMW_STEP, f, time_limit)


def step(s: Any, W, g, mean, square, t, lr, decay):
    """Return what a step with the steps `s` returns."""
    g, t = s.gradient(g, W, decay), s.count(t)
    new_mean = s.average(mean, g, s.beta1)
    new_square = s.average(square, s.power(g, new_mean, mean), s.beta2)
    fair = s.fair(s.seen(new_mean, mean), s.beta1, t)
    fair_square = s.fair_square(s.seen(new_square, square), s.beta2, t)
    direction = s.direction(s.divide(fair, fair_square), g, fair_square)
    moved = s.finish(s.move(s.decayed(W, lr, decay), lr, direction), W, lr, decay)
    kept = s.keep_mean(new_mean, mean), s.keep_square(new_square, square)
    return s.results(moved, *kept, fair, fair_square)


def average(old, x, beta):
    return beta * old + (1 - beta) * x


OTHER_CORRECTIONS = (
    lambda mean, beta, t: mean / (1 + beta**t),
    lambda mean, beta, t: mean / beta**t,
    lambda mean, beta, t: mean - beta**t,
    lambda mean, beta, t: mean / t,
    lambda mean, beta, t: mean * t,
    lambda mean, beta, t: mean / (1 - beta) ** t,
)

TEXT = Text(globals())


def _case(seed: int, t: int, lr: float, decay: float, *, of_zero: bool = False) -> Case:
    sizes = np.array([1e-4, 0.03, 1.0, 7.0, 200.0])
    W, g, mean = draw(seed, 3, 5), draw(seed + 1, 3, 5) * sizes, draw(seed + 2, 3, 5) * sizes
    square = (draw(seed + 3, 3, 5) ** 2 + 0.1) * sizes**2
    if t == 1:
        mean, square = 0 * mean, 0 * square
    if of_zero:
        g, mean, square = (x * (sizes != 1.0) for x in (g, mean, square))
    names = ("W", "g", "mean", "square", "t", "lr", "decay")
    return Case(dict(zip(names, (W, g, mean, square, t, lr, decay), strict=True)))


ADAMW_STEP = Check(
    name="adamw_step",
    parameters=("W", "g", "mean", "square", "t", "lr", "decay"),
    results={"W": "of W", "mean": "of W", "square": "of W"},
    compute=step,
    steps=TEXT.steps,
    stages=(
        Stage(  # in a first step many a mistake is one: its direction is the sign of g
            (
                *(_case(40, 1, 0.1, 0.0), _case(44, 1, 0.5, 0.3)),
                *(_case(48, 2, 0.3, 0.2), _case(52, 7, 0.1, 0.5), _case(56, 1000, 0.2, 0.0)),
                *(_case(60, 1, 0.1, 0.1, of_zero=True), _case(64, 3, 0.2, 0.3, of_zero=True)),
            )
        ),
    ),
    mistakes=TEXT.mistakes,
)
