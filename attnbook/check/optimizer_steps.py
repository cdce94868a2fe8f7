"""A step of AdamW in steps of its own, the ways to get each wrong, and the check of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Way, draw, each


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
    "power": lambda g, new, old: g * g,  # beside the running mean, new and old
    "seen": lambda new, old: new,
    "count": lambda t: t,
    "fair": lambda mean, beta, t: mean / (1 - beta**t),
    "fair_square": lambda square, beta, t: square / (1 - beta**t),
    "divide": lambda mean, square: mean / (np.sqrt(square) + 1e-8),
    "direction": lambda direction, g, square: direction,
    "decayed": lambda W, lr, decay: W - lr * decay * W,
    "move": lambda W, lr, direction: W - lr * direction,
    "finish": lambda new, W, lr, decay: new,
    "keep_mean": lambda new, old: new,
    "keep_square": lambda new, old: new,
    "results": lambda W, mean, square, fair, fair_square: (W, mean, square),
}


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


def _corrections(wrong: Callable) -> tuple[Way, ...]:
    """Return the ways that correct both means by `wrong`, or one of them."""
    return {"fair": wrong, "fair_square": wrong}, {"fair": wrong}, {"fair_square": wrong}


def _averages(wrong: Callable) -> tuple[Way, ...]:
    """Return the ways that average both numbers by `wrong`, or one of them."""
    right = STEPS["average"]
    return each(
        "average",
        wrong,
        lambda old, x, b: (wrong if b == STEPS["beta1"] else right)(old, x, b),
        lambda old, x, b: (wrong if b == STEPS["beta2"] else right)(old, x, b),
    )


_MISTAKES = mistakes(
    """
    means not corrected [BERT]: you use the running means as they are. They began at 0, so after t
        steps they are too small by the factors 1 − β₁ᵗ and 1 − β₂ᵗ. Here they are divided by these,
        as Adam does.
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
    square of the mean: You square the running mean, the new or the old one. The second mean is that
        of g².
    no root: You divide by the mean of the squares. Divide by its root, which has the unit of the
        gradient.
    no division: You never divide by the size of the gradient. That is descent with momentum.
    no mean of the gradient: You move by g itself, divided by its size. The running mean of g takes
        its place.
    plain descent: You move by −lr · g and leave the means out.
    root without epsilon: You divide by the root alone, so where every gradient was 0 that is 0/0.
        Add ε to the root before you divide. It may also be a matter of brackets: in m / √s + ε the
        ε is added to the quotient, and in m / (√s + ε) to the root.
    epsilon under the root: You add ε under the root. Here it is added to the root.
    epsilon of another library [BERT (1e-6) and Keras (1e-7)]: your ε is not 1e-8, which is asked
        for here and is that of PyTorch.
    another epsilon: Your ε is not 1e-8, or it is a floor of the root. It is added to every root.
    decay forgotten: You leave out the weight decay.
    decay in the gradient [Adam, as in torch.optim.Adam]: you add decay · W to the gradient, which
        is an L2 penalty, so the decay is divided by the size of the gradient as well. AdamW takes
        lr · decay · W off beside the step.
    decay twice: You add decay · W to the gradient and take lr · decay · W off as well. AdamW has
        the second alone.
    decay without the rate [the AdamW paper]: you take off decay · W, which a schedule multiplies
        there, and the learning rate does not. Here it is lr · decay · W, as in PyTorch.
    decay after the step: You let the new W decay. The old one decays, before the step.
    decay added: You add lr · decay · W, so the weights grow.
    betas exchanged: You use β₂ for the mean of g and β₁ for that of its square.
    shares exchanged: You keep 1 − β of the old mean. It keeps β, and the new value gets 1 − β.
    β₂ of another model [PyTorch (0.999) or GPT-3 (0.95)]: your β₂ is not the 0.98 that is asked for
        here, which is that of the original Transformer.
    another beta: Your β₁ or β₂ is not the one asked for: 0.9 and 0.98.
    means summed: You add the new value to a mean without the factor 1 − β.
    sign: You add the step. The gradient points uphill: subtract.
    rate forgotten: You leave out the learning rate.
    results in another order: Return W, then the mean of g, then the mean of its square.
    corrected by βt: You multiply β by t. The factor is 1 − βᵗ, with a power.
    corrected by the other β: You correct a running mean by the β of the other one: β₁ belongs to
        the mean of g, β₂ to that of g².
    root corrected: You take the root of the mean of the squares and divide the root by 1 − β₂ᵗ.
        Divide the mean by it, then take the root.
    another correction: You correct the running means, or one of them, in another way. Divide each
        by 1 − βᵗ.
    means not updated: You return the running means, or one of them, as they came. The next step
        goes on from the new ones.
    one size for all: You sum or average the squares over the array, so all its numbers are divided
        by one size. Each number has a mean of its own.
    root kept: You return the root of the mean of the squares. The next step goes on from the mean
        itself.
    put together otherwise: You put the two means together in another way: a quotient turned round,
        another root or a square. The direction is the mean of g over the root of the mean of g².
    multiplied by the root: You multiply by the root of the mean of the squares. Divide.
    sign of the gradient: You move by the sign alone, of g or of its mean.
    epsilon above the line: You add ε to the mean of g. It is added to the root, which may be 0.
    epsilon before the correction [TensorFlow and Keras]: you add ε to the root of the running mean,
        and correct it afterwards. Here it is added to the root of the corrected mean.
    another decay: You take off something else than lr · decay · W for the decay.
    shares of two means: You keep β₁ of an old mean and give the new value 1 − β₂, or the reverse.
        The two shares of a mean come from one β.
    old mean kept whole: You add to a mean without the factor β in front of it, so it forgets
        nothing and grows without end.
    weights not moved: You return W as it came, or only its decay: the step is not taken.
    step for the weights: What you return as W is the step or its direction. Take the step off W.
    another step: You multiply by the learning rate twice, divide by it, or multiply the step by W.
        Take off the learning rate times the direction.
    """,
    {
        "means not corrected": {"fair": lambda m, b, t: m, "fair_square": lambda m, b, t: m},
        "one mean not corrected": each("fair", lambda m, b, t: m)
        + each("fair_square", lambda m, b, t: m),
        "corrected by βt": _corrections(lambda m, b, t: m / (1 - b * t)),
        "corrected by the other β": (
            {"fair": lambda m, b, t: m / (1 - STEPS["beta2"] ** t)},
            {"fair_square": lambda m, b, t: m / (1 - STEPS["beta1"] ** t)},
            {
                "fair": lambda m, b, t: m / (1 - STEPS["beta2"] ** t),
                "fair_square": lambda m, b, t: m / (1 - STEPS["beta1"] ** t),
            },
        ),
        "root corrected": each("fair_square", lambda m, b, t: m / (1 - b**t) ** 2),
        "corrected by multiplying": _corrections(lambda m, b, t: m * (1 - b**t)),
        "corrected by 1 − β": _corrections(lambda m, b, t: m / (1 - b)),
        "another correction": _corrections(lambda m, b, t: m / (1 - b ** (t + 1)))[1:]
        + _corrections(lambda m, b, t: m / (1 - b ** (t - 1)))[1:]
        + tuple(
            way
            for wrong in (
                lambda m, b, t: m / (1 + b**t),
                lambda m, b, t: m / b**t,
                lambda m, b, t: m - b**t,
                lambda m, b, t: m / t,
                lambda m, b, t: m * t,
                lambda m, b, t: m / (1 - b) ** t,
            )
            for way in _corrections(wrong)
        ),
        "step counted from 0": each("count", lambda t: t - 1),
        "step counted from 2": each("count", lambda t: t + 1),
        "means not updated": (
            {"keep_mean": lambda new, old: old, "keep_square": lambda new, old: old},
            *each("keep_mean", lambda new, old: old),
            *each("keep_square", lambda new, old: old),
        ),
        "corrected means kept": each(
            "results",
            lambda W, m, s, fair, fair_s: (W, fair, fair_s),
            lambda W, m, s, fair, fair_s: (W, fair, s),
            lambda W, m, s, fair, fair_s: (W, m, fair_s),
        ),
        "means of the step before": each("seen", lambda new, old: old),
        "gradient not squared": each("power", lambda g, new, old: g, lambda g, new, old: np.abs(g)),
        "square of the mean": (
            {
                "power": lambda g, new, old: g,
                "fair_square": lambda m, b, t: (m / (1 - b**t)) ** 2,
            },
            *each("power", lambda g, new, old: new**2, lambda g, new, old: old**2),
        ),
        "one size for all": (
            *each(
                "power",
                lambda g, new, old: 0 * g + np.sum(g * g),
                lambda g, new, old: 0 * g + np.mean(g * g),
            ),
            *each(
                "divide",
                lambda m, s: m / (np.sqrt(np.sum(s)) + 1e-8),
                lambda m, s: m / (np.sqrt(np.mean(s)) + 1e-8),
            ),
        ),
        "root kept": each("keep_square", lambda new, old: np.sqrt(new)),
        "put together otherwise": each(
            "divide",
            lambda m, s: np.sqrt(s) / (m + 1e-8),
            lambda m, s: s / (m + 1e-8),
            lambda m, s: m / (s**2 + 1e-8),
            lambda m, s: np.sqrt(np.abs(m)) / (np.sqrt(s) + 1e-8),
            lambda m, s: m - np.sqrt(s),
            lambda m, s: m + np.sqrt(s),
        ),
        "no root": each("divide", lambda m, s: m / (s + 1e-8)),
        "multiplied by the root": each("divide", lambda m, s: m * (np.sqrt(s) + 1e-8)),
        "no division": each("divide", lambda m, s: m),
        "no mean of the gradient": (
            {"beta1": 0.0, "fair": lambda m, b, t: m},
            {
                "fair": lambda m, b, t: m,
                "average": lambda old, x, b: x if b < 0.95 else b * old + (1 - b) * x,
            },
            {"direction": lambda direction, g, square: g / (np.sqrt(square) + 1e-8)},
        ),
        "plain descent": (
            {
                "average": lambda old, x, b: x,
                "fair": lambda m, b, t: m,
                "divide": lambda m, s: m,
            },
            *each("direction", lambda direction, g, square: g),
            {
                "direction": lambda direction, g, square: g,
                "keep_mean": lambda new, old: old,
                "keep_square": lambda new, old: old,
            },
        ),
        "sign of the gradient": each("direction", lambda direction, g, square: np.sign(g))
        + each("divide", lambda m, s: np.sign(m)),
        "epsilon above the line": each("divide", lambda m, s: (m + 1e-8) / np.sqrt(s)),
        "epsilon before the correction": {
            "fair_square": lambda m, b, t: (np.sqrt(m) + 1e-8) ** 2 / (1 - b**t),
            "divide": lambda m, s: m / np.sqrt(s),
        },
        "root without epsilon": each("divide", lambda m, s: m / np.sqrt(s)),
        "epsilon of another library": each(
            "divide",
            lambda m, s: m / (np.sqrt(s) + 1e-6),
            lambda m, s: m / (np.sqrt(s) + 1e-7),
        ),
        "epsilon under the root": each("divide", lambda m, s: m / np.sqrt(s + 1e-8)),
        "another epsilon": each(
            "divide",
            lambda m, s: m / (np.sqrt(s) + 1e-5),
            lambda m, s: m / (np.sqrt(s) + 1e-10),
            lambda m, s: m / np.maximum(np.sqrt(s), 1e-8),
        ),
        "decay forgotten": each("decayed", lambda W, lr, decay: W),
        "decay in the gradient": {
            "gradient": lambda g, W, decay: g + decay * W,
            "decayed": lambda W, lr, decay: W,
        },
        "decay twice": each("gradient", lambda g, W, decay: g + decay * W),
        "decay without the rate": each("decayed", lambda W, lr, decay: W - decay * W),
        "decay after the step": {
            "decayed": lambda W, lr, decay: W,
            "finish": lambda new, W, lr, decay: new - lr * decay * new,
        },
        "another decay": each(
            "decayed",
            lambda W, lr, decay: W - lr * decay,
            lambda W, lr, decay: W - lr**2 * decay * W,
            lambda W, lr, decay: W * decay,
            lambda W, lr, decay: W - lr * W,
            lambda W, lr, decay: W - lr * decay * W**2,
        ),
        "decay added": each("decayed", lambda W, lr, decay: W + lr * decay * W),
        "betas exchanged": {"beta1": 0.98, "beta2": 0.9},
        "shares exchanged": _averages(lambda old, x, b: (1 - b) * old + b * x),
        "shares of two means": _averages(lambda old, x, b: b * old + (b - 0.88) * x),
        "β₂ of another model": each("beta2", 0.999, 0.95),
        "another beta": each("beta2", 0.99, 0.9)
        + each("beta1", 0.95, 0.8, 0.98, 0.99)
        + _averages(lambda old, x, b: (1.88 - b) * old + (b - 0.88) * x),
        "means summed": _averages(lambda old, x, b: b * old + x),
        "old mean kept whole": _averages(lambda old, x, b: old + (1 - b) * x)
        + _averages(lambda old, x, b: old + x),
        "weights not moved": each("finish", lambda new, W, *_: W) + each("move", lambda W, *_: W),
        "step for the weights": each(
            "move", lambda W, lr, u: -lr * u, lambda W, lr, u: lr * u, lambda W, lr, u: u
        )
        + tuple(
            {
                "decayed": STEPS["decayed"],
                "move": STEPS["move"],
                "finish": lambda new, W, *_, sign=sign: sign * (new - W),
            }
            for sign in (1, -1)
        ),
        "another step": each(
            "move",
            lambda W, lr, u: W - lr * lr * u,
            lambda W, lr, u: W - u / lr,
            lambda W, lr, u: W - lr * W * u,
        ),
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
        Stage(  # in a first step many a mistake is one: its direction is the sign of g
            (
                *(_case(40, 1, 0.1, 0.0), _case(44, 1, 0.5, 0.3)),
                *(_case(48, 2, 0.3, 0.2), _case(52, 7, 0.1, 0.5), _case(56, 1000, 0.2, 0.0)),
                *(_case(60, 1, 0.1, 0.1, of_zero=True), _case(64, 3, 0.2, 0.3, of_zero=True)),
            )
        ),
    ),
    mistakes=_MISTAKES,
)
