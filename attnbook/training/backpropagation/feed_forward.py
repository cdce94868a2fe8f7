"""Forwards through the feed-forward network, and backwards by the same steps in reverse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from attnbook.arrays.array import Array
from attnbook.arrays.projections import project
from attnbook.training.backpropagation.activations import ACTIVATION_VJPS
from attnbook.training.backpropagation.linear import linear_vjp
from attnbook.transformers.activations import ACTIVATIONS
from attnbook.transformers.feed_forward import FeedForwardWeights, GatedFeedForwardWeights


def feed_forward_with_vjp(
    x: Annotated[Array, "... n d_model"], weights: FeedForwardWeights | GatedFeedForwardWeights
) -> tuple[Annotated[Array, "... n d_out"], Callable[[Array], tuple[Array, Any]]]:
    """Return `feed_forward`, and a function that pulls its gradient back to x and the weights.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : FeedForwardWeights or GatedFeedForwardWeights

    Returns
    -------
    output : array, shape (..., n, d_out)
    vjp : callable
        ``vjp(grad_output)`` is (grad_x, grad_weights).

    Examples
    --------
    >>> import numpy as np
    >>> weights = FeedForwardWeights.init(0, d_model=4, d_ff=16)
    >>> output, vjp = feed_forward_with_vjp(np.ones((3, 4)), weights)
    >>> grad_x, grad_weights = vjp(np.ones((3, 4)))
    >>> grad_weights.W_1.shape
    (4, 16)
    """
    gated = isinstance(weights, GatedFeedForwardWeights)
    return (_gated if gated else _plain)(x, weights)


def _plain(x, weights):
    activate_vjp = ACTIVATION_VJPS[weights.activation]
    before = project(x, weights.W_1, weights.b_1)
    hidden = ACTIVATIONS[weights.activation](before)  # (..., n, d_ff)

    def vjp(grad_output):
        grad_hidden, W_2, b_2 = linear_vjp(hidden, weights.W_2, weights.b_2, grad_output)
        grad_before = activate_vjp(before, grad_hidden)
        grad_x, W_1, b_1 = linear_vjp(x, weights.W_1, weights.b_1, grad_before)
        return grad_x, replace(weights, W_1=W_1, b_1=b_1, W_2=W_2, b_2=b_2)

    return project(hidden, weights.W_2, weights.b_2), vjp


def _gated(x, weights):
    activate_vjp = ACTIVATION_VJPS[weights.activation]
    before = project(x, weights.W_gate, weights.b_gate)
    gate, value = ACTIVATIONS[weights.activation](before), project(x, weights.W_1, weights.b_1)
    hidden = gate * value  # (..., n, d_ff)

    def vjp(grad_output):
        grad_hidden, W_2, b_2 = linear_vjp(hidden, weights.W_2, weights.b_2, grad_output)
        grad_before = activate_vjp(before, grad_hidden * value)
        from_gate, W_gate, b_gate = linear_vjp(x, weights.W_gate, weights.b_gate, grad_before)
        from_value, W_1, b_1 = linear_vjp(x, weights.W_1, weights.b_1, grad_hidden * gate)
        grads = {"W_gate": W_gate, "b_gate": b_gate, "W_1": W_1, "b_1": b_1}
        return from_gate + from_value, replace(weights, **grads, W_2=W_2, b_2=b_2)

    return project(hidden, weights.W_2, weights.b_2), vjp
