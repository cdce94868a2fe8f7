r"""Activations: the non-linearity between two matrices, number by number.

.. math:: \operatorname{relu}(x) = \max(x, 0), \qquad \operatorname{gelu}(x) = x\,\Phi(x), \qquad
          \operatorname{silu}(x) = x\,\sigma(x)
"""

import math
from typing import Annotated

from attnbook.arrays.arguments import check_float
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.erf import erf

# The mathematics, of checked arrays.


def relu_of(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.where(x <= 0, xp.zeros_like(x), x)  # maximum would have the gradient 1/2 at 0


def gelu_of(x: Array) -> Array:
    xp = array_namespace(x)
    wide = x if x.dtype in (xp.float32, xp.float64) else to_accumulate(x)
    y = wide * (0.5 * (1 + erf(wide / math.sqrt(2))))
    return xp.astype(y, x.dtype, copy=False)


def gelu_tanh_of(x: Array) -> Array:
    xp = array_namespace(x)
    wide = x if x.dtype in (xp.float32, xp.float64) else to_accumulate(x)
    inner = wide * (math.sqrt(2 / math.pi) * (1 + 0.044715 * wide * wide))
    return xp.astype(wide * (0.5 * (1 + xp.tanh(inner))), x.dtype, copy=False)


def silu_of(x: Array) -> Array:
    xp = array_namespace(x)
    wide = x if x.dtype in (xp.float32, xp.float64) else to_accumulate(x)
    half = 0.5 * wide
    y = half + half * xp.tanh(half)  # exp(-x) would overflow
    return xp.astype(y, x.dtype, copy=False)


ACTIVATIONS = {"relu": relu_of, "gelu": gelu_of, "gelu_tanh": gelu_tanh_of, "silu": silu_of}
"""The names that ``activation=`` takes, and what each computes."""


# The functions, which check what they are given.


def relu(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    """Return max(x, 0), elementwise.

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        NaN stays NaN. The gradient at 0 is 0.

    Raises
    ------
    TypeError
        If `x` is not an array of a real floating dtype.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    check_float("x", x)
    return relu_of(x)


def gelu(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    r"""Return x·Φ(x), elementwise, where Φ is the normal distribution function.

    .. math:: \operatorname{gelu}(x) = \tfrac12\, x \bigl(1 + \operatorname{erf}(x/\sqrt2)\bigr)

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        Half precision is computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If `x` is not an array of a real floating dtype.

    Notes
    -----
    This is the exact form, which is PyTorch's default; `gelu_tanh` is the approximation. NumPy has
    no erf, so there it is computed by rational functions, which are exact to the last or the
    second-to-last bit.

    References
    ----------
    Hendrycks and Gimpel (2016), "Gaussian error linear units".

    Examples
    --------
    >>> import numpy as np
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    check_float("x", x)
    return gelu_of(x)


def gelu_tanh(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    r"""Return the approximation of `gelu` by a hyperbolic tangent, elementwise.

    .. math:: \operatorname{gelu}(x) \approx \tfrac12\, x \Bigl(1 +
              \tanh\bigl(\sqrt{2/\pi}\,(x + 0.044715\, x^3)\bigr)\Bigr)

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        Half precision is computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If `x` is not an array of a real floating dtype.

    Notes
    -----
    It differs from `gelu` by less than 0.0005. GPT-2 was trained with it, so its weights need it.
    ``torch.nn.functional.gelu(x, approximate="tanh")`` is the same function.

    References
    ----------
    Hendrycks and Gimpel (2016), "Gaussian error linear units".

    Examples
    --------
    >>> import numpy as np
    >>> gelu_tanh(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1588,  0.    ,  0.8412])
    """
    check_float("x", x)
    return gelu_tanh_of(x)


def silu(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    r"""Return x·σ(x), elementwise, where σ is the logistic function; also called swish.

    .. math:: \operatorname{silu}(x) = \frac{x}{1 + e^{-x}}

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        Half precision is computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If `x` is not an array of a real floating dtype.

    Notes
    -----
    Computed as x (1 + tanh(x/2)) / 2, which cannot overflow. ``torch.nn.functional.silu`` is the
    same function.

    References
    ----------
    Hendrycks and Gimpel (2016), "Gaussian error linear units"; Ramachandran, Zoph and Le (2017),
    "Searching for activation functions".

    Examples
    --------
    >>> import numpy as np
    >>> silu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    check_float("x", x)
    return silu_of(x)
