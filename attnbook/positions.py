r"""Positions: telling attention, which has no sense of order, where each token stands.

Every feature pair i turns by its own angle a position, :math:`\omega_i = \text{base}^{-2i/d}`:
added to the tokens as sines and cosines, or applied to queries and keys as a rotation.
"""

from typing import Annotated, Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_bool, check_float, check_int, check_number
from attnbook.arrays.array import Array, accumulation_dtype, array_namespace

__all__ = ["learned", "rotary", "sinusoidal"]


def sinusoidal(
    n: int,
    d_model: int,
    *,
    start: int = 0,
    interleaved: bool = False,
    base: float = 10000.0,
    like: Array | None = None,
) -> Annotated[Array, "n d_model"]:
    r"""Return the sines and cosines of `n` positions, one row a position.

    .. math:: PE(p) = [\sin p\omega_0, \dots, \sin p\omega_{d/2-1}, \;
                       \cos p\omega_0, \dots, \cos p\omega_{d/2-1}],
              \qquad \omega_i = \text{base}^{-2i/d}

    Parameters
    ----------
    n : int
        Number of positions, at least 0: start, start + 1, …, start + n - 1.
    d_model : int
        Width d, even and at least 2.
    start : int
        The first position, at least 0. With n tokens in a cache the next one stands at n.
    interleaved : bool
        Put sine and cosine of each pair side by side, sin, cos, sin, cos, …, as Vaswani et al.
        wrote it; by default all sines stand before all cosines.
    base : float
        Above 0. The wavelengths grow from 2π to nearly 2π·base.
    like : array, optional
        The table gets its library, device and dtype; NumPy's float64 without it.

    Returns
    -------
    array, shape (n, d_model)

    Raises
    ------
    TypeError, ValueError
        If a number is not as above, or `like` is not an array of a real floating dtype.

    Notes
    -----
    PE(p)·PE(q) depends on p - q alone, and PE(p + k) is a fixed rotation of PE(p). The two
    layouts are permutations of each other (claim 18).
    Computed by NumPy in float64, rounded once and copied to its device. Cost: O(n d_model).

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
    check_bool("interleaved", interleaved)
    n, d_model = check_int("n", n), check_int("d_model", d_model)
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model must be even and at least 2, got {d_model}")
    start, base = check_int("start", start), _check_base(base)
    check_bool("interleaved", interleaved)
    if like is not None:
        check_float("like", like)
    return sinusoidal_of(n, d_model, start, interleaved, like, base)


def learned(
    table: Annotated[Array, "N d_model"], n: int, *, start: int = 0
) -> Annotated[Array, "n d_model"]:
    """Return the rows of `n` positions from a table that is learned like any other matrix.

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
        A view where the library can.

    Raises
    ------
    TypeError, ValueError
        If `table` is not such an array, a number is not an int of at least 0, or start + n
        positions are more than the table has.

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


def rotary(
    x: Annotated[Array, "... n d"],
    *,
    start: int = 0,
    interleaved: bool = False,
    base: float = 10000.0,
) -> Annotated[Array, "... n d"]:
    r"""Rotate every pair of features by its position's angle: rotary position embedding.

    .. math:: \begin{pmatrix} y_a \\ y_b \end{pmatrix} =
              \begin{pmatrix} \cos p\omega_i & -\sin p\omega_i \\
                              \sin p\omega_i & \cos p\omega_i \end{pmatrix}
              \begin{pmatrix} x_a \\ x_b \end{pmatrix}

    for the row at position p and its pair i of features a and b.

    Parameters
    ----------
    x : array, shape (..., n, d), real floating dtype
        Queries or keys of one head or of many, with even d. Values are not rotated.
    start : int
        Position of the first row, at least 0.
    interleaved : bool
        Pair feature 2i with 2i + 1; by default pair i with i + d/2.
    base : float
        Above 0.

    Returns
    -------
    array, shape (..., n, d)
        Of the dtype of `x`; half precision is rotated in float32.

    Raises
    ------
    TypeError, ValueError
        If `x` is not such an array, or a number is not as above.

    Notes
    -----
    Lengths stay, and the score of a rotated query and a rotated key depends on the difference of
    their positions, not on the positions. `interleaved=True` is the layout of Su et al.; layers
    with ``rotate=True`` have the default, halves and base 10000.
    Cost: O(n d) a head. The angles are computed by NumPy in float64, and copied, at every call.

    References
    ----------
    Su et al. (2021), "RoFormer"; chapter `transformer`.

    Examples
    --------
    >>> rotary(np.array([[1.0, 0.0], [1.0, 0.0]])).round(3)
    array([[1.   , 0.   ],
           [0.54 , 0.841]])
    """
    check_float("x", x)
    if x.ndim < 2 or x.shape[-1] < 2 or x.shape[-1] % 2:
        raise ValueError(f"x must have shape (..., n, d) with even d >= 2, got {tuple(x.shape)}")
    check_bool("interleaved", interleaved)
    return rotary_of(x, check_int("start", start), interleaved, _check_base(base))


def _check_base(base):
    if check_number("base", base) == 0:
        raise ValueError("base must be above 0, got 0")
    return float(base)


def _placed(table: np.ndarray, like: Array) -> Any:
    """Return `table` with the library, device and dtype of `like`."""
    device = array_api_compat.device(like)
    return array_namespace(like).asarray(table, dtype=like.dtype, device=device)


# The mathematics. These may rely on checked arguments.


def _angles(n, d, start, base):
    """Return p·ω_i in float64, shape (n, d/2): float32 has no digits left for a late position."""
    frequencies = base ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    return np.arange(start, start + n, dtype=np.float64)[:, np.newaxis] * frequencies


def sinusoidal_of(n, d, start, interleaved, like, base=10000.0):
    angles = _angles(n, d, start, base)
    sines, cosines = np.sin(angles), np.cos(angles)
    if interleaved:
        table = np.stack([sines, cosines], axis=-1).reshape(n, d)
    else:
        table = np.concatenate([sines, cosines], axis=-1)
    return table if like is None else _placed(table, like)


def rotary_of(x, start=0, interleaved=False, base=10000.0):
    xp = array_namespace(x)
    wide = accumulation_dtype(xp, x.dtype)
    y = xp.astype(x, wide, copy=False)
    angles = _angles(x.shape[-2], x.shape[-1], start, base)
    cosines, sines = (_placed(f(angles), y) for f in (np.cos, np.sin))
    half = x.shape[-1] // 2
    a, b = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :half], y[..., half:])
    rotated = [a * cosines - b * sines, a * sines + b * cosines]
    if interleaved:
        y = xp.reshape(xp.stack(rotated, axis=-1), x.shape)
    else:
        y = xp.concat(rotated, axis=-1)
    return xp.astype(y, x.dtype, copy=False)
