"""Positions that are added to the tokens: a table of sines and cosines, or one that is learned."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_bool, check_float, check_int, check_positive
from attnbook.arrays.array import Array
from attnbook.positions.angles import cosines_and_sines, frequencies, placed

# The mathematics, of checked arguments.


def sinusoidal_of(
    n: int, d: int, start: int, interleaved: bool, like: Any, base: float = 10000.0
) -> Any:
    cosines, sines = cosines_and_sines(start, n, frequencies(d, base))
    if interleaved:
        table = np.stack([sines, cosines], axis=-1).reshape(n, d)
    else:
        table = np.concatenate([sines, cosines], axis=-1)
    return table if like is None else placed(table, like)


# The functions, which check what they are given.


def sinusoidal(
    n: int,
    d_model: int,
    *,
    start: int = 0,
    interleaved: bool = False,
    base: float = 10000.0,
    like: Array | None = None,
) -> Annotated[Array, "n d_model"]:
    r"""Return the sines and cosines of `n` positions, one row per position.

    .. math:: PE(i) = [\sin i\omega_0, \dots, \sin i\omega_{d/2-1}, \;
                       \cos i\omega_0, \dots, \cos i\omega_{d/2-1}],
              \qquad \omega_l = \text{base}^{-2l/d}

    Parameters
    ----------
    n : int
        Number of positions, at least 0: start, start + 1, …, start + n - 1.
    d_model : int
        Width d, even and at least 2.
    start : int
        The first position, at least 0. For example, if a cache holds n tokens, the position of the
        next one is n.
    interleaved : bool
        If True, the sine and the cosine of each pair are side by side, sin, cos, sin, cos, …, as
        Vaswani et al. wrote it; by default, all sines come before all cosines.
    base : float
        Above 0. The wavelengths grow from 2π to nearly 2π·base.
    like : array, optional
        The table gets the library, device and dtype of this array; by default NumPy's float64.

    Returns
    -------
    array, shape (n, d_model)

    Raises
    ------
    TypeError, ValueError
        If a number is not as above, or `like` is not an array of a real floating dtype.

    Notes
    -----
    PE(i)·PE(j) depends only on i - j, and PE(i + k) is a fixed rotation of PE(i). The two layouts
    are permutations of each other (claim 18).
    NumPy computes the table in float64; it is rounded once and copied to the device.
    Cost: O(n d_model).

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.5; chapter `transformer`.

    Examples
    --------
    >>> sinusoidal(3, 2).round(3)
    array([[ 0.   ,  1.   ],
           [ 0.841,  0.54 ],
           [ 0.909, -0.416]])
    """
    n, d_model = check_int("n", n), check_int("d_model", d_model)
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model must be even and at least 2, got {d_model}")
    start, base = check_int("start", start), check_positive("base", base)
    check_bool("interleaved", interleaved)
    if like is not None:
        check_float("like", like)
    return sinusoidal_of(n, d_model, start, interleaved, like, base)


def learned(
    table: Annotated[Array, "N d_model"], n: int, *, start: int = 0
) -> Annotated[Array, "n d_model"]:
    """Return the rows for `n` positions from a table that is learned like any other matrix.

    Parameters
    ----------
    table : array, shape (N, d_model), real floating dtype
    n : int
        Number of positions, at least 0.
    start : int
        The first position, at least 0.

    Returns
    -------
    array, shape (n, d_model)
        A view if the library supports views.

    Raises
    ------
    TypeError, ValueError
        If `table` is not such an array, a number is not an int of at least 0, or the table has
        fewer than start + n positions.

    References
    ----------
    Gehring et al. (2017), "Convolutional sequence to sequence learning"; chapter `transformer`.

    Examples
    --------
    >>> learned(np.eye(4), 2, start=1)
    array([[0., 1., 0., 0.],
           [0., 0., 1., 0.]])
    """
    check_float("table", table)
    if table.ndim != 2:
        raise ValueError(f"table must have shape (N, d_model), got {tuple(table.shape)}")
    end = check_int("start", start) + check_int("n", n)
    if end > table.shape[0]:
        raise ValueError(
            f"start + n must be at most the {table.shape[0]} positions of the table, got {end}"
        )
    return table[start:end, :]
