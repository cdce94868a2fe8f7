"""The gradients of a linear map in steps: one collects over the tokens, the other does not."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.scores import transposed
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each


@documented
def linear_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of a linear map, x W, with respect to x and W.

    Runs `f` on a square, on different sizes, on one token, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W, grad_output)``, by position, on (n, d), (d, d_out) and (n, d_out), where
        grad_output is ∂L/∂(x W). It returns two arrays, (grad_x, grad_W). It may be written for one
        sequence, without leading axes.

    Examples
    --------
    >>> from attnbook import check
    >>> check.linear_vjp(lambda x, W, G: (G @ W.T, x.T @ G / len(x))).mistake
    'averaged over the tokens'
    """
    return run(LINEAR_VJP, f, time_limit)


def rows(x):
    """Return the rows of `x`, whatever axes stand before them, as one matrix."""
    return x.reshape(-1, x.shape[-1])


def _over_tokens(x, g):
    return rows(x).T @ rows(g)


STEPS: dict[str, Callable] = {
    "incoming": lambda g: g,
    "enter": lambda x, W: x,  # what W was multiplied by
    "back": lambda g, W, x: g @ W.T,
    "collect": _over_tokens,
    "grad_x": lambda grad, x: grad,
    "grad_W": lambda grad, x, W: grad,
    "results": lambda grads: grads,
}


def linear_gradients(s: Any, x, W, grad_output):
    """Return the gradients of x and W from their steps."""
    g = s.incoming(grad_output)
    grad_x, grad_W = s.back(g, W, x), s.collect(s.enter(x, W), g)
    return s.results((s.grad_x(grad_x, x), s.grad_W(grad_W, x, W)))


def both(function: Callable) -> Way:
    """Return the way that changes every gradient alike."""
    return {"results": lambda grads: tuple(map(function, grads))}


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

MISTAKES = mistakes(
    """
    W not transposed in grad_x: You compute grad_x with W where Wᵀ is needed. It runs only where W
        is square. Input j reaches output i by W[j, i], and the gradient goes back the same way.
    x not transposed in grad_W: You multiply x and grad_output without the transpose, or transpose
        the second. It runs only where the sizes agree. W[j, i] joins feature j of x and output i.
    another product: You multiply the right two matrices in another order, or with another one of
        them transposed. It runs only where the sizes agree. grad_x is grad_output Wᵀ, and grad_W is
        xᵀ grad_output.
    grad_W transposed: Your grad_W is the right one transposed. A gradient has the shape of what it
        belongs to: grad_W is (d, d_out), as W is.
    averaged over the tokens: You divide grad_W by the number of tokens. Every token used W, so its
        gradient is their sum. A mean, where there is one, stands in the loss and in grad_output.
    one token alone: Your grad_W is that of the first or of the last token. All tokens used W.
    tokens summed before the product: You sum x and grad_output over the tokens and multiply the
        sums. Multiply first, each token by its own gradient, then sum.
    tokens mixed in grad_x: Your grad_x sums over the tokens, or averages them. Row i of x made row
        i of the output alone, so it gets the gradient of that row alone.
    grad_x averaged: You divide grad_x by the number of tokens, or both gradients. Every row of x
        has the gradient of its own row; a mean, where there is one, stands in grad_output.
    output in the place of grad_output: You use x W where grad_output belongs.
    output in the place of x: You use x W in grad_W. W was multiplied by x: keep that from the
        forward pass.
    W in the place of x: You use W in grad_W, where x belongs. The derivative of a product by one
        factor holds the other one.
    x in the place of W: You use x in grad_x, where W belongs. The derivative of a product by one
        factor holds the other one.
    grad_output passed on: You return grad_output as grad_x. It is the gradient of the output;
        multiply it by Wᵀ.
    weights added to the gradient: You add W, or a part of it, to grad_W. Weight decay belongs to
        the optimizer.
    step taken: You return W − grad_W, the weights after a step. Return the gradient alone.
    gradients swapped: You return (grad_W, grad_x). Return them in the order of the arguments.
    divided by a width: You divide a gradient by the number of features. Nothing is averaged.
    grad_output ignored: Your gradients, or one of them, are those of the sum of all outputs.
        grad_output says how the loss depends on each output, and every gradient passes through it.
    all gradients negated: Both gradients have the wrong sign: they point where the loss falls. A
        gradient points where it grows; the minus belongs to the step of the optimizer.
    batch not summed: For a batch you return a grad_W for each sequence. They all used one W: sum
        over every axis but the last, x.reshape(-1, d).T @ grad_output.reshape(-1, d_out).
    batch averaged: For a batch you take the mean over the sequences. The gradients of one W add up.
    one factor left out: In one of the gradients you leave W or x out, as if all its numbers were 1.
        Every number of grad_output is multiplied by a number of the other factor.
    multiplied by the input: You multiply grad_x by x, or grad_W by W, number by number. The
        derivative by one factor holds the other one alone.
    order of the tokens lost: You join each row of x with that of another token in grad_W. Row i of
        x goes with row i of grad_output.
    """,
    {
        "W not transposed in grad_x": each("back", lambda g, W, x: g @ W),
        "x not transposed in grad_W": each(
            "collect", lambda x, g: x @ g, lambda x, g: x @ g.T, lambda x, g: (x @ g).T
        ),
        "another product": tuple(
            {"back": lambda g, W, x, by=by: by(g, W)} for by in (PRODUCTS[0], *PRODUCTS[2:])
        )
        + each("collect", *PRODUCTS[3:6], PRODUCTS[7]),
        "grad_W transposed": each("grad_W", lambda d, x, W: d.T),
        "averaged over the tokens": each(
            "grad_W",
            lambda d, x, W: d / x.shape[-2],
            lambda d, x, W: d / (x.shape[-2] * W.shape[-1]),
            lambda d, x, W: d / len(x),
        ),
        "one token alone": each(
            "collect",
            lambda x, g: rows(x)[:1].T @ rows(g)[:1],
            lambda x, g: rows(x)[-1:].T @ rows(g)[-1:],
        ),
        "tokens summed before the product": each(
            "collect",
            lambda x, g: np.outer(rows(x).sum(axis=0), rows(g).sum(axis=0)),
            lambda x, g: np.outer(rows(x).mean(axis=0), rows(g).sum(axis=0)),
            lambda x, g: np.outer(rows(x).mean(axis=0), rows(g).mean(axis=0)),
        ),
        "tokens mixed in grad_x": each(
            "grad_x",
            lambda d, x: d.sum(axis=-2, keepdims=True) + 0 * x,
            lambda d, x: d.mean(axis=-2, keepdims=True) + 0 * x,
            lambda d, x: d.sum(axis=-2),
            lambda d, x: d.mean(axis=-2),
        ),
        "grad_x averaged": (
            {"grad_x": lambda d, x: d / x.shape[-2]},
            {
                "grad_x": lambda d, x: d / x.shape[-2],
                "grad_W": lambda d, x, W: d / x.shape[-2],
            },
        ),
        "output in the place of grad_output": each(
            "compute", lambda x, W, g: ((x @ W) @ W.T, rows(x).T @ rows(x @ W))
        ),
        "output in the place of x": each("enter", lambda x, W: x @ W),
        "W in the place of x": each("enter", lambda x, W: W, lambda x, W: W.T),
        "x in the place of W": each(
            "back", lambda g, W, x: g @ x.T, lambda g, W, x: g @ x, lambda g, W, x: g * x
        ),
        "grad_output passed on": each("back", lambda g, W, x: g),
        "one factor left out": (
            *each("back", lambda g, W, x: 0 * x + np.sum(g, axis=-1, keepdims=True)),
            *each("collect", lambda x, g: np.tile(np.sum(rows(g), axis=0), (x.shape[-1], 1))),
        ),
        "multiplied by the input": (
            {"grad_x": lambda d, x: d * x},
            {"grad_W": lambda d, x, W: d * W},
            {"grad_x": lambda d, x: d * x, "grad_W": lambda d, x, W: d * W},
        ),
        "order of the tokens lost": each("collect", lambda x, g: rows(x)[::-1].T @ rows(g)),
        "weights added to the gradient": each("grad_W", lambda d, x, W: d + W),
        "step taken": each("grad_W", lambda d, x, W: W - d),
        "gradients swapped": each("results", lambda grads: grads[::-1]),
        "divided by a width": (
            *each("grad_W", lambda d, x, W: d / x.shape[-1], lambda d, x, W: d / W.shape[-1]),
            *each("grad_x", lambda d, x: d / x.shape[-1]),
        ),
        "grad_output ignored": (
            {"incoming": np.ones_like},
            {"collect": lambda x, g: rows(x).T @ np.ones_like(rows(g))},
            {"back": lambda g, W, x: np.ones_like(g) @ W.T},
        ),
        "all gradients negated": both(np.negative),
        "batch not summed": each("collect", lambda x, g: np.swapaxes(x, -1, -2) @ g),
        "batch averaged": each(
            "collect",
            lambda x, g: _over_tokens(x, g) * x.shape[-2] / rows(x).shape[0],
        ),
    },
)


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
    steps=STEPS,
    stages=(
        Stage((_case(3, 3, 3), _case(2, 5, 11), _case(7, 3, 2), _case(1, 5, 3))),
        Stage((_case(2, 5, 11, dtype="float32"),)),
        Stage((_case(2, 5, 11, 3), _case(3, 3, 3, 3)), may_raise="a batch (leading axes)"),
    ),
    mistakes=MISTAKES,
    properties=(products_agree,),
    legible=True,
)
