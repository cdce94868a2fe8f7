r"""Softmax and its logarithm.

.. math:: \operatorname{softmax}(x)_i = e^{x_i - m} \Big/ \sum_j e^{x_j - m}, \qquad m = \max_j x_j

Subtracting the maximum changes nothing (claim 1) and keeps every exponent at or below zero, so
nothing overflows. A slice that is −∞ everywhere has nothing to choose from: its weights are zero.
"""

from typing import Annotated, Any

from attnbook.arrays.arguments import check_axis, check_float
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.empty_rows import or_one, shift
from attnbook.kernels.naive import softmax_of


def softmax(x: Annotated[Array, "..."], axis: int = -1) -> Annotated[Array, "..."]:
    r"""Turn scores into non-negative weights that sum to one along `axis`.

    .. math:: \operatorname{softmax}(x)_i = e^{x_i} \Big/ \sum_j e^{x_j}

    Parameters
    ----------
    x : array, shape (..., n, ...), real floating dtype
        Scores. −∞ is allowed and gets weight zero.
    axis : int
        The axis along which the weights sum to one.

    Returns
    -------
    array
        Weights with the shape, dtype, library and device of `x`. float16 and bfloat16 are computed
        in float32 and rounded once at the end.

    Raises
    ------
    TypeError
        If `x` is not an array of real floating dtype, or `axis` is not an int.
    ValueError
        If `x` has no such axis.

    Notes
    -----
    A slice that holds only −∞ gives zeros, not NaN. An empty axis gives an empty result. NaN or +∞
    in a slice makes that whole slice NaN and leaves the others unchanged.
    Cost: O(n) time and memory per slice. The book proves it as claim 1.

    Examples
    --------
    >>> import numpy as np
    >>> softmax(np.log(np.array([1.0, 2.0, 5.0])))
    array([0.125, 0.25 , 0.625])
    """
    return _in_wide_dtype(softmax_of, x, axis)


def log_softmax(x: Annotated[Array, "..."], axis: int = -1) -> Annotated[Array, "..."]:
    r"""Return the logarithm of the softmax along `axis`, without ever taking log of a rounded zero.

    .. math:: \log\operatorname{softmax}(x)_i = x_i - m - \log \sum_j e^{x_j - m}

    Parameters
    ----------
    x : array, shape (..., n, ...), real floating dtype
        Scores. −∞ is allowed and stays −∞.
    axis : int
        The axis along which the exponentials of the result sum to one.

    Returns
    -------
    array
        Log-weights with the shape, dtype, library and device of `x`.

    Raises
    ------
    TypeError
        If `x` is not an array of real floating dtype, or `axis` is not an int.
    ValueError
        If `x` has no such axis.

    Notes
    -----
    A slice that holds only −∞ stays −∞ (the logarithm of its zero weights). NaN and +∞ have the
    same effect as in `softmax`.
    Cost: O(n) time and memory per slice.

    Examples
    --------
    >>> import numpy as np
    >>> log_softmax(np.array([0.0, -1000.0]))
    array([    0., -1000.])
    """
    return _in_wide_dtype(log_softmax_of, x, axis)


def _in_wide_dtype(function: Any, x: Array, axis: int) -> Array:
    check_float("x", x)
    axis = check_axis(axis, x.ndim)
    y = function(to_accumulate(x), axis)
    return array_namespace(x).astype(y, x.dtype, copy=False)


def log_softmax_of(x: Array, axis: int) -> Array:
    xp = array_namespace(x)
    shifted = x - shift(x, axis)
    total = xp.sum(xp.exp(shifted), axis=axis, keepdims=True)
    return shifted - xp.log(or_one(total))
