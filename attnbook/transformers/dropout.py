"""Dropout: switch numbers off at random while training."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_float, check_number, generator
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed


def dropout(
    x: Annotated[Array, "..."], rate: float, rng: "np.random.Generator | int"
) -> Annotated[Array, "..."]:
    r"""Set each number to 0 with probability `rate` and divide the others by 1 - rate.

    .. math:: y_j = \frac{m_j}{1 - p}\, x_j, \qquad P(m_j = 0) = p,

    so that the expectation of y is x. Do not call this function at inference.

    Parameters
    ----------
    x : array, any shape, real floating dtype
    rate : float
        p, at least 0 and below 1.
    rng : numpy.random.Generator or int
        The source of the random numbers. NumPy draws them for every library, so the same seed
        drops the same entries in each of them. An int is a seed and drops the same entries at
        *every* call. So if dropout is called repeatedly, as the `drop` of `encoder_layer` is, pass
        a Generator.

    Returns
    -------
    array of the shape of `x`

    Raises
    ------
    TypeError, ValueError
        If `x` is not an array of a real floating dtype, or `rate` or `rng` is not as above.

    Notes
    -----
    Cost: for each entry of `x`, one number is drawn on the CPU and copied to the device of `x`.

    References
    ----------
    Srivastava et al. (2014), "Dropout"; chapter `transformer`.

    Examples
    --------
    >>> dropout(np.ones(6), 0.5, rng=0)
    array([2., 0., 0., 0., 2., 2.])
    """
    check_float("x", x)
    rate = check_number("rate", rate)
    if rate >= 1:
        raise ValueError(f"rate must be below 1, got {rate}")
    kept = placed(generator(rng).random(tuple(x.shape)) >= rate, x)
    xp = array_namespace(x)
    return xp.where(kept, x / (1 - rate), xp.zeros_like(x))


def check_drop(drop: Any) -> None:
    """Raise TypeError unless `drop` can be called, or is None, which drops nothing."""
    if drop is not None and not callable(drop):
        raise TypeError(f"drop must be callable or None, got {type(drop).__name__}")
