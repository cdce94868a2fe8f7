"""The gradients of a linear map in steps: one collects over the tokens, the other does not."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.shared.scores import transposed


@documented
def linear_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of a linear map, x W, with respect to x and W.

    Runs `f` on a square, on different sizes, on one token, in float64 and float32, and on batches,
    which must be right, too.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W, grad_output)``, by position, on (..., n, d), (d, d_out) and
        (..., n, d_out), where grad_output is ∂L/∂(x W). It returns two arrays, (grad_x, grad_W).

    Examples
    --------
    >>> from attnbook import check
    >>> def mean_gradients(x, W, G):
    ...     grad_W = x.reshape(-1, x.shape[-1]).T @ G.reshape(-1, G.shape[-1])
    ...     return G @ W.T, grad_W / x.shape[-2]
    >>> check.linear_vjp(mean_gradients).mistake
    'averaged over the tokens'
    """
    return run(LINEAR_VJP, f, time_limit)


def rows(x):
    """Return the rows of `x`, whatever axes stand before them, as one matrix."""
    return x.reshape(-1, x.shape[-1])


def linear_gradients(s: Any, x, W, grad_output):
    """Return the gradients of x and W from their steps."""
    g = s.incoming(grad_output)
    grad_x, grad_W = s.back(g, W, x), s.collect(s.enter(x, W), g)
    return s.results((s.grad_x(grad_x, x), s.grad_W(grad_W, x, W)))


def _same(x):
    return x


PRODUCTS: tuple[Callable, ...] = tuple(
    lambda a, b, first=first, second=second: first(a) @ second(b)
    for first in (_same, transposed)
    for second in (_same, transposed)
) + tuple(
    lambda a, b, first=first, second=second: first(b) @ second(a)
    for first in (_same, transposed)
    for second in (_same, transposed)
)
"""The products of two matrices, each as it is or transposed: a b, a bᵀ, aᵀ b, aᵀ bᵀ, b a, …"""

TEXT = Text(globals())


def _case(n: int, d: int, d_out: int, *leading: int, dtype: str = "float64") -> Case:
    drawn = {
        "x": draw(41, *leading, n, d),
        "W": draw(42, d, d_out),
        "grad_output": draw(43, *leading, n, d_out),
    }
    return Case({name: x.astype(dtype) for name, x in drawn.items()})


def products_agree(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether ⟨x, grad_x⟩ = ⟨W, grad_W⟩ = ⟨x W, grad_output⟩."""
    x, W, g = case.arrays.values()
    wanted = np.sum((x @ W) * g)
    for name, given, grad in zip(("x", "W"), (x, W), values, strict=True):
        if grad.shape == given.shape and not np.allclose(np.sum(given * grad), wanted):
            return (
                f"The sum of {name} · grad_{name} must be that of (x W) · grad_output; it is not."
            )
    return None


LINEAR_VJP = Check(
    name="linear_vjp",
    parameters=("x", "W", "grad_output"),
    results={"grad_x": "(..., n, d)", "grad_W": "(d, d_out)"},
    compute=linear_gradients,
    steps=TEXT.steps,
    stages=(
        Stage((_case(3, 3, 3), _case(2, 5, 11), _case(7, 3, 2), _case(1, 5, 3))),
        Stage((_case(2, 5, 11, dtype="float32"),)),
        Stage((_case(2, 5, 11, 3), _case(3, 3, 3, 3))),
    ),
    mistakes=TEXT.mistakes,
    properties=(products_agree,),
    legible=True,
)
