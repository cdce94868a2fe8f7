"""The gated feed-forward network in steps: two branches, their product, and the way back."""

from collections.abc import Callable
from typing import Any

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.feed_forward import (
    network_check,
)


@documented
def gated_feed_forward(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gated feed-forward network of a layer, (silu(x W_gate) · (x W_1)) W_2.

    Runs `f` on a square, on different sizes, on one token, in float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W_gate, W_1, W_2)``, by position, on (n, d_model), (d_model, d_ff) twice
        and (d_ff, d_model), or as ``f(x, weights)`` with `attnbook.GatedFeedForwardWeights` if it
        takes two arguments. It returns an array (n, d_model). It may be written only for one
        sequence, without leading axes, or only for batches.

    Examples
    --------
    >>> from attnbook import check, silu
    >>> def my_network(x, W_gate, W_1, W_2):
    ...     return ((x @ W_gate) * silu(x @ W_1)) @ W_2
    >>> check.gated_feed_forward(my_network).mistake
    'activation on the wrong branch'
    """
    return run(GATED_FEED_FORWARD, f, time_limit)


def gated(steps: Any, x, W_gate, W_1, W_2):
    """Compute the gated feed-forward network from its steps."""
    W_gate, W_1, W_2 = steps.matrices(W_gate, W_1, W_2)
    entered = steps.enter(x)
    hidden = steps.combine(steps.open(entered @ W_gate), steps.pass_on(entered @ W_1))
    return steps.leave(steps.back(hidden, W_2), x)


TEXT = Text(globals())


def _case(n: int, d_model: int, d_ff: int, *leading: int, dtype: str = "float64") -> Case:
    drawn = {
        "x": draw(27, *leading, n, d_model),
        "W_gate": draw(28, d_model, d_ff),
        "W_1": draw(29, d_model, d_ff),
        "W_2": draw(33, d_ff, d_model),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


GATED_FEED_FORWARD = network_check(
    "gated_feed_forward",
    attnbook.GatedFeedForwardWeights,
    _case,
    compute=gated,
    steps=TEXT.steps,
    mistakes=TEXT.mistakes,
)
