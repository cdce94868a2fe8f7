"""Backwards through an activation: the gradient times the slope, number by number."""

import math
from typing import Annotated

from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.erf import erf


def relu_vjp(x: Annotated[Array, "..."], grad_output: Annotated[Array, "..."]) -> Array:
    """Pull the gradient of `relu` back to x: it passes only where x > 0.

    Parameters
    ----------
    x, grad_output : arrays of one shape

    Returns
    -------
    array of this shape
        At 0 the gradient is 0, as in PyTorch.

    Examples
    --------
    >>> import numpy as np
    >>> relu_vjp(np.array([-1.0, 2.0]), np.array([3.0, 3.0]))
    array([0., 3.])
    """
    xp = array_namespace(x)
    return xp.where(x <= 0, xp.zeros_like(grad_output), grad_output)


def gelu_vjp(x: Annotated[Array, "..."], grad_output: Annotated[Array, "..."]) -> Array:
    r"""Pull the gradient of `gelu` back to x.

    .. math:: \frac{d}{dx}\, x\,\Phi(x) = \Phi(x) + x\,\varphi(x), \qquad
              \varphi(x) = \frac{e^{-x^2/2}}{\sqrt{2\pi}}

    Parameters
    ----------
    x, grad_output : arrays of one shape

    Returns
    -------
    array of this shape

    Examples
    --------
    >>> import numpy as np
    >>> gelu_vjp(np.array([0.0, 1.0]), np.array([1.0, 1.0])).round(4)
    array([0.5   , 1.0833])
    """
    xp = array_namespace(x)
    below = 0.5 * (1 + erf(x / math.sqrt(2)))
    density = xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad_output * (below + x * density)


def gelu_tanh_vjp(x: Annotated[Array, "..."], grad_output: Annotated[Array, "..."]) -> Array:
    r"""Pull the gradient of `gelu_tanh` back to x.

    With t = tanh(v), v = c (x + 0.044715 x³) and c = √(2/π), the derivative is

    .. math:: \tfrac12 (1 + t) + \tfrac12\, x\, (1 - t^2)\, c\, (1 + 3 \cdot 0.044715\, x^2).

    Parameters
    ----------
    x, grad_output : arrays of one shape

    Returns
    -------
    array of this shape

    Examples
    --------
    >>> import numpy as np
    >>> gelu_tanh_vjp(np.array([0.0, 1.0]), np.array([1.0, 1.0])).round(4)
    array([0.5  , 1.083])
    """
    xp = array_namespace(x)
    c, square = math.sqrt(2 / math.pi), 0.044715 * x * x
    t = xp.tanh(c * x * (1 + square))
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (c * (1 + 3 * square))
    return grad_output * slope


def silu_vjp(x: Annotated[Array, "..."], grad_output: Annotated[Array, "..."]) -> Array:
    r"""Pull the gradient of `silu` back to x.

    .. math:: \frac{d}{dx}\, x\,\sigma(x) = \sigma(x) \bigl(1 + x (1 - \sigma(x))\bigr)

    Parameters
    ----------
    x, grad_output : arrays of one shape

    Returns
    -------
    array of this shape

    Examples
    --------
    >>> import numpy as np
    >>> silu_vjp(np.array([0.0, 1.0]), np.array([1.0, 1.0])).round(4)
    array([0.5   , 0.9277])
    """
    xp = array_namespace(x)
    sigma = 0.5 * (1 + xp.tanh(0.5 * x))  # exp(-x) would overflow
    return grad_output * (sigma * (1 + x * (1 - sigma)))


ACTIVATION_VJPS = {
    "relu": relu_vjp,
    "gelu": gelu_vjp,
    "gelu_tanh": gelu_tanh_vjp,
    "silu": silu_vjp,
}
"""The function of each name that ``activation=`` takes."""
