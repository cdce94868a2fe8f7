"""Backwards through a normalisation: what was divided out has no gradient."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.normalization.layer_norm import LayerNormWeights
from attnbook.normalization.rms_norm import RMSNormWeights
from attnbook.training.backpropagation.linear import rows_of


def layer_norm_vjp(
    x: Annotated[Array, "... d_model"],
    weights: LayerNormWeights,
    grad_output: Annotated[Array, "... d_model"],
) -> tuple[Array, LayerNormWeights]:
    r"""Pull the gradient G of `layer_norm` back to x, the gain and the bias.

    With the normalised row ν = (x - μ) / ρ, ρ² = σ² + ε, and its gradient ψ = γ ⊙ G,

    .. math:: \frac{\partial\mathcal L}{\partial x} = \frac1\rho \bigl(\psi
              - \operatorname{mean}(\psi) - \nu \operatorname{mean}(\psi \odot \nu)\bigr), \qquad
              \frac{\partial\mathcal L}{\partial\gamma} = \sum_i G_i \odot \nu_i, \qquad
              \frac{\partial\mathcal L}{\partial b} = \sum_i G_i.

    Parameters
    ----------
    x : array, shape (..., d_model)
    weights : LayerNormWeights
    grad_output : array G, shape (..., d_model)

    Returns
    -------
    grad_x : array of the shape of `x`
        With ε = 0 it is orthogonal to x, because a longer row gives the same result.
    grad_weights : LayerNormWeights
        The gradients in the fields of gain and bias; None where `weights` has None.

    Notes
    -----
    Cost: O(d_model) per row.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 3.0, 2.0]])
    >>> grad_x, _ = layer_norm_vjp(x, LayerNormWeights(epsilon=0), 5 * x)
    >>> bool(np.all(abs(grad_x) < 1e-12))
    True
    """
    xp, wide, grads = array_namespace(x), to_accumulate(x), to_accumulate(grad_output)
    centred = wide - _mean(wide)
    rho = xp.sqrt(_mean(centred * centred) + weights.epsilon)
    nu = centred / rho
    psi = grads if weights.gain is None else grads * to_accumulate(weights.gain)
    grad_x = (psi - _mean(psi) - nu * _mean(psi * nu)) / rho
    grad_gain = None if weights.gain is None else _summed(grads * nu, x)
    grad_bias = None if weights.bias is None else _summed(grads, x)
    return xp.astype(grad_x, x.dtype, copy=False), replace(weights, gain=grad_gain, bias=grad_bias)


def rms_norm_vjp(
    x: Annotated[Array, "... d_model"],
    weights: RMSNormWeights,
    grad_output: Annotated[Array, "... d_model"],
) -> tuple[Array, RMSNormWeights]:
    r"""Pull the gradient G of `rms_norm` back to x and the gain.

    With the normalised row ν = x / ρ, ρ² = mean(x ⊙ x) + ε, and its gradient ψ = γ ⊙ G,

    .. math:: \frac{\partial\mathcal L}{\partial x} = \frac1\rho \bigl(\psi
              - \nu \operatorname{mean}(\psi \odot \nu)\bigr), \qquad
              \frac{\partial\mathcal L}{\partial\gamma} = \sum_i G_i \odot \nu_i.

    Parameters
    ----------
    x : array, shape (..., d_model)
    weights : RMSNormWeights
    grad_output : array G, shape (..., d_model)

    Returns
    -------
    grad_x : array of the shape of `x`
    grad_weights : RMSNormWeights
        The gradient in the field of the gain; None if `weights` has no gain.

    Notes
    -----
    Cost: O(d_model) per row.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[3.0, 4.0]])
    >>> grad_x, _ = rms_norm_vjp(x, RMSNormWeights(epsilon=0), 5 * x)
    >>> bool(np.all(abs(grad_x) < 1e-12))
    True
    """
    xp, wide, grads = array_namespace(x), to_accumulate(x), to_accumulate(grad_output)
    rho = xp.sqrt(_mean(wide * wide) + weights.epsilon)
    nu = wide / rho
    psi = grads if weights.gain is None else grads * to_accumulate(weights.gain)
    grad_x = (psi - nu * _mean(psi * nu)) / rho
    grad_gain = None if weights.gain is None else _summed(grads * nu, x)
    return xp.astype(grad_x, x.dtype, copy=False), replace(weights, gain=grad_gain)


NORMALIZATION_VJPS: dict[type, Callable[..., tuple[Array, Any]]] = {
    LayerNormWeights: layer_norm_vjp,
    RMSNormWeights: rms_norm_vjp,
}
"""The function of each class of weights."""


def _mean(x):
    return array_namespace(x).mean(x, axis=-1, keepdims=True)


def _summed(rows, like):
    """Return the sum over all rows of all sequences, of the dtype of `like`."""
    xp = array_namespace(rows)
    return xp.astype(xp.sum(rows_of(rows), axis=0), like.dtype, copy=False)
