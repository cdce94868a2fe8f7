"""The gated feed-forward network in steps: two branches, their product, and the way back."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.hidden_layer import OTHER_ACTIVATIONS, network_check, relu, same, sigmoid, silu
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, draw, each


@documented
def gated_feed_forward(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gated feed-forward network of a layer, (silu(x W_gate) · (x W_1)) W_2.

    Runs `f` on a square, on different sizes, on one token, in float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, W_gate, W_1, W_2)``, by position, on (n, d_model), (d_model, d_ff) twice
        and (d_ff, d_model), or as ``f(x, weights)`` with `attnbook.GatedFeedForwardWeights` if it
        takes that many. It returns an array (n, d_model). It may be written for one sequence,
        without leading axes, or for batches alone.

    Examples
    --------
    >>> from attnbook import check, silu
    >>> def my_network(x, W_gate, W_1, W_2):
    ...     return ((x @ W_gate) * silu(x @ W_1)) @ W_2
    >>> check.gated_feed_forward(my_network).mistake
    'activation on the wrong branch'
    """
    return run(GATED_FEED_FORWARD, f, time_limit)


STEPS: dict[str, Callable] = {
    "enter": same,
    "matrices": lambda W_gate, W_1, W_2: (W_gate, W_1, W_2),
    "open": silu,
    "pass_on": same,
    "combine": np.multiply,
    "back": np.matmul,
    "leave": same,
}


def gated(steps: Any, x, W_gate, W_1, W_2):
    """Compute the gated feed-forward network from its steps."""
    W_gate, W_1, W_2 = steps.matrices(W_gate, W_1, W_2)
    entered = steps.enter(x)
    hidden = steps.combine(steps.open(entered @ W_gate), steps.pass_on(entered @ W_1))
    return steps.leave(steps.back(hidden, W_2), x)


MISTAKES = mistakes(
    """
    activation on the wrong branch: Your activation stands on x W_1, or W_gate and W_1 are
        exchanged. It stands on the gate: silu(x W_gate) · (x W_1).
    activation on both branches: You apply the activation to both branches. It stands on the gate
        alone; x W_1 passes as it is.
    activation on the product: You multiply the branches and apply the activation then. It stands on
        the gate alone, before the product.
    activation after the second matrix: Your activation stands after W_2. It stands on the gate,
        before the product.
    activation before the first matrix: Your activation is applied to x itself. It stands on x
        W_gate.
    no activation: There is no activation on your gate: you return the product of two linear maps,
        mapped back.
    sigmoid for the activation: Your gate is σ(x W_gate): the first gated unit, GLU. Here it is silu
        h · σ(h), which makes it SwiGLU.
    sigmoid turned: The gate holds σ(−h), which is 1 − σ(h), for σ(h). It is h · σ(h), silu.
    another activation: On your gate stands another function: GELU, ReLU, tanh, a softmax or a
        comparison. It is h · σ(h) here, silu.
    sign of the gate: You take the silu of −x W_gate, or minus that of x W_gate. Look at the sign.
    branches added: You add the two branches. They are multiplied, number by number.
    branches multiplied as matrices: You take a matrix product of the two branches. They are
        multiplied number by number, *, where both have the shape (n, d_ff).
    one added to the gate: You multiply by 1 + the gate. The gate itself multiplies.
    gate forgotten: You never use the gate: x W_1 W_2 alone is one linear map.
    no gate: You have no gate: silu(x W_1) W_2 is a plain feed-forward network. The other branch, x
        W_gate, takes the activation, and the two are multiplied.
    branch without a gate forgotten: You return silu(x W_gate) W_2 and never multiply by x W_1.
    gate matrix used twice: You use W_gate for both branches. The second branch has a matrix of its
        own, W_1.
    first matrix used twice: You use W_1 for both branches. The gate has a matrix of its own,
        W_gate.
    way back transposed: Your matrix back is W_gate or W_1 transposed. It is W_2, of its own.
    matrices transposed: You multiply by the transposed matrices. It runs only where they are
        square. The rows of W_gate and W_1 belong to the features of x: x @ W_gate.
    residual inside: You add x to the result. The residual connection belongs to the layer, which
        adds it once more.
    normalised inside: You normalise x or the result. The layer does that, around this network.
    hidden layer returned: You return the hidden layer, (n, d_ff). W_2 brings it back to d_model.
    branches joined otherwise: You subtract or divide one branch, or take the larger number or the
        mean of both. They are multiplied, number by number.
    branches multiplied too late: You multiply each branch by W_2, and the two results then. The
        branches are multiplied before W_2, where both have the width d_ff.
    """,
    {
        "activation on the wrong branch": each("matrices", lambda G, A, B: (A, G, B)),
        "activation on both branches": each("pass_on", silu),
        "activation on the product": {"open": same, "combine": lambda a, b: silu(a * b)},
        "activation after the second matrix": (
            {"open": same, "leave": lambda y, x: silu(y)},
            {"leave": lambda y, x: silu(y)},
        ),
        "activation before the first matrix": (
            {"enter": silu, "open": same},
            {"enter": silu},
        ),
        "no activation": each("open", same),
        "sigmoid for the activation": each("open", sigmoid),
        "sigmoid turned": each("open", lambda h: h * sigmoid(-h), lambda h: sigmoid(-h)),
        "another activation": each(
            "open",
            *(*OTHER_ACTIVATIONS, relu, np.exp, np.sin, lambda h: silu(silu(h)), np.sign),
            *(lambda h: np.where(h > 0, h, 0.01 * h), lambda h: (h > 0) * 1.0),
            lambda h: h * sigmoid(2 * h),
        ),
        "sign of the gate": each("open", lambda h: silu(-h), lambda h: -silu(h)),
        "branches added": each("combine", np.add),
        "branches joined otherwise": each(
            "combine",
            *(np.subtract, lambda a, b: b - a, np.divide, np.maximum, lambda a, b: (a + b) / 2),
        ),
        "branches multiplied too late": {
            "compute": lambda x, G, A, B: (silu(x @ G) @ B) * (x @ A @ B)
        },
        "branches multiplied as matrices": each(
            "combine",
            lambda a, b: a @ b,
            lambda a, b: a @ np.swapaxes(b, -1, -2),
            lambda a, b: (a @ np.swapaxes(b, -1, -2)) @ b,
        ),
        "one added to the gate": each("combine", lambda a, b: (1 + a) * b),
        "gate forgotten": each("combine", lambda a, b: b),
        "no gate": tuple(
            {"combine": lambda a, b: b, "pass_on": f} for f in (silu, relu, attnbook.gelu)
        ),
        "branch without a gate forgotten": each("combine", lambda a, b: a),
        "gate matrix used twice": each("matrices", lambda G, A, B: (G, G, B)),
        "first matrix used twice": each("matrices", lambda G, A, B: (A, A, B)),
        "way back transposed": each(
            "matrices", lambda G, A, B: (G, A, A.T), lambda G, A, B: (G, A, G.T)
        ),
        "matrices transposed": each(
            "matrices",
            lambda G, A, B: (G.T, A.T, B.T),
            lambda G, A, B: (G.T, A.T, B),
            lambda G, A, B: (G, A, B.T),
        ),
        "residual inside": each("leave", np.add),
        "normalised inside": (
            *each("leave", lambda y, x: attnbook.rms_norm(y), lambda y, x: attnbook.layer_norm(y)),
            *each("enter", attnbook.rms_norm, attnbook.layer_norm),
        ),
        "hidden layer returned": each("back", same),
    },
)


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
    steps=STEPS,
    mistakes=MISTAKES,
)
