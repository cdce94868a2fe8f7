"""A step of AdamW in steps of its own, the ways to get each wrong, and the check of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, draw, each


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


STEPS: dict[str, Any] = {
    "gradient": lambda g, W, decay: g,
    "beta1": 0.9,
    "beta2": 0.98,
    "average": lambda old, x, beta: beta * old + (1 - beta) * x,
    "power": np.square,
    "seen": lambda new, old: new,
    "count": lambda t: t,
    "fair": lambda mean, beta, t: mean / (1 - beta**t),
    "fair_square": lambda square, beta, t: square / (1 - beta**t),
    "divide": lambda mean, square: mean / (np.sqrt(square) + 1e-8),
    "decayed": lambda W, lr, decay: W - lr * decay * W,
    "move": lambda W, lr, direction: W - lr * direction,
    "finish": lambda new, W, lr, decay: new,
    "results": lambda W, mean, square, fair, fair_square: (W, mean, square),
}


def step(s: Any, W, g, mean, square, t, lr, decay):
    """Return what a step with the steps `s` returns."""
    g, t = s.gradient(g, W, decay), s.count(t)
    new_mean = s.average(mean, g, s.beta1)
    new_square = s.average(square, s.power(g), s.beta2)
    fair = s.fair(s.seen(new_mean, mean), s.beta1, t)
    fair_square = s.fair_square(s.seen(new_square, square), s.beta2, t)
    moved = s.move(s.decayed(W, lr, decay), lr, s.divide(fair, fair_square))
    return s.results(s.finish(moved, W, lr, decay), new_mean, new_square, fair, fair_square)


_MISTAKES = mistakes(
    """
    means not corrected: You use the running means as they are. They began at 0, so after t steps
        they are too small by the factors 1 − β₁ᵗ and 1 − β₂ᵗ: divide by these.
    one mean not corrected: You correct one of the two running means. Both began at 0.
    corrected by multiplying: You multiply by 1 − βᵗ. The means are too small by it: divide.
    corrected by 1 − β: You divide by 1 − β in each step. The factor is 1 − βᵗ with the number t of
        the step.
    step counted from 0: You use t − 1. The first step has t = 1; with 0 the correction divides by
        0.
    step counted from 2: You use t + 1. The first step has t = 1.
    corrected means kept: You return the means after their correction. What the next step goes on
        from are the running means themselves.
    means of the step before: You move by the means as they were before this gradient. Update them
        first.
    gradient not squared: The second mean is that of g, not of g². Its root is no size.
    square of the mean: You square the running mean. The second mean is that of the squares.
    no root: You divide by the mean of the squares. Divide by its root, which has the unit of the
        gradient.
    no division: You never divide by the size of the gradient. That is descent with momentum.
    no mean of the gradient: You move by g itself, divided by its size. The running mean of g takes
        its place.
    plain descent: You move by −lr · g and leave the means out.
    epsilon forgotten: You divide by the root alone. Where every gradient was 0 that is 0/0.
    epsilon under the root: You add ε under the root. Here it is added to the root.
    another epsilon: Your ε is not 1e-8.
    decay forgotten: You leave out the weight decay.
    decay in the gradient: You add decay · W to the gradient, so the decay is divided by the size of
        the gradient as well. That is Adam with an L2 penalty. AdamW takes lr · decay · W off beside
        the step.
    decay without the rate: You take off decay · W. It is lr · decay · W.
    decay after the step: You let the new W decay. The old one decays, before the step.
    decay added: You add lr · decay · W, so the weights grow.
    betas exchanged: You use β₂ for the mean of g and β₁ for that of its square.
    shares exchanged: You keep 1 − β of the old mean. It keeps β, and the new value gets 1 − β.
    another beta: Your β₁ or β₂ is not the one asked for: 0.9 and 0.98.
    means summed: You add g to the mean without the factor 1 − β.
    sign: You add the step. The gradient points uphill: subtract.
    rate forgotten: You leave out the learning rate.
    results in another order: Return W, then the mean of g, then the mean of its square.
    """,
    {
        "means not corrected": {"fair": lambda m, b, t: m, "fair_square": lambda m, b, t: m},
        "one mean not corrected": each("fair", lambda m, b, t: m)
        + each("fair_square", lambda m, b, t: m),
        "corrected by multiplying": {
            "fair": lambda m, b, t: m * (1 - b**t),
            "fair_square": lambda m, b, t: m * (1 - b**t),
        },
        "corrected by 1 − β": {
            "fair": lambda m, b, t: m / (1 - b),
            "fair_square": lambda m, b, t: m / (1 - b),
        },
        "step counted from 0": each("count", lambda t: t - 1),
        "step counted from 2": each("count", lambda t: t + 1),
        "corrected means kept": each("results", lambda W, m, s, fair, fair_s: (W, fair, fair_s)),
        "means of the step before": each("seen", lambda new, old: old),
        "gradient not squared": each("power", lambda g: g, np.abs),
        "square of the mean": {
            "power": lambda g: g,
            "fair_square": lambda m, b, t: (m / (1 - b**t)) ** 2,
        },
        "no root": each("divide", lambda m, s: m / (s + 1e-8)),
        "no division": each("divide", lambda m, s: m),
        "no mean of the gradient": (
            {"beta1": 0.0, "fair": lambda m, b, t: m},
            {
                "fair": lambda m, b, t: m,
                "average": lambda old, x, b: x if b < 0.95 else b * old + (1 - b) * x,
            },
        ),
        "plain descent": {
            "average": lambda old, x, b: x,
            "fair": lambda m, b, t: m,
            "divide": lambda m, s: m,
        },
        "epsilon forgotten": each("divide", lambda m, s: m / np.sqrt(s)),
        "epsilon under the root": each("divide", lambda m, s: m / np.sqrt(s + 1e-8)),
        "another epsilon": each(
            "divide",
            lambda m, s: m / (np.sqrt(s) + 1e-6),
            lambda m, s: m / (np.sqrt(s) + 1e-5),
        ),
        "decay forgotten": each("decayed", lambda W, lr, decay: W),
        "decay in the gradient": {
            "gradient": lambda g, W, decay: g + decay * W,
            "decayed": lambda W, lr, decay: W,
        },
        "decay without the rate": each("decayed", lambda W, lr, decay: W - decay * W),
        "decay after the step": {
            "decayed": lambda W, lr, decay: W,
            "finish": lambda new, W, lr, decay: new - lr * decay * new,
        },
        "decay added": each("decayed", lambda W, lr, decay: W + lr * decay * W),
        "betas exchanged": {"beta1": 0.98, "beta2": 0.9},
        "shares exchanged": each("average", lambda old, x, b: (1 - b) * old + b * x),
        "another beta": each("beta2", 0.999, 0.99, 0.95) + each("beta1", 0.95, 0.8),
        "means summed": each("average", lambda old, x, b: b * old + x),
        "sign": each("move", lambda W, lr, u: W + lr * u),
        "rate forgotten": each("move", lambda W, lr, u: W - u),
        "results in another order": each(
            "results",
            lambda W, m, s, fair, fair_s: (W, s, m),
            lambda W, m, s, fair, fair_s: (m, s, W),
        ),
    },
)


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
    steps=STEPS,
    stages=(
        Stage((_case(40, 1, 0.1, 0.0), _case(44, 1, 0.5, 0.3))),
        Stage((_case(48, 2, 0.3, 0.2), _case(52, 7, 0.1, 0.5), _case(56, 1000, 0.2, 0.0))),
        Stage((_case(60, 1, 0.1, 0.1, of_zero=True), _case(64, 3, 0.2, 0.3, of_zero=True))),
    ),
    mistakes=_MISTAKES,
)
