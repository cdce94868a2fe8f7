"""Heads: pieces of every row of a sequence, set side by side or apart."""

from typing import Annotated

import array_api_compat

from attnbook.arrays.arguments import check_array, check_int
from attnbook.arrays.array import Array, array_namespace

# The mathematics, of checked arrays.


def split_heads_of(x: Array, n_heads: int) -> Array:
    xp = array_namespace(x)
    *leading, n, d_model = x.shape
    cut = xp.reshape(x, (*leading, n, n_heads, d_model // n_heads))
    # tuples, since PyTorch's vmap knows no moveaxis of single axes
    return xp.moveaxis(cut, (-2,), (-3,))  # (..., h, n, d)


def merge_heads_of(x: Array) -> Array:
    xp = array_namespace(x)
    *leading, h, n, d = x.shape
    return xp.reshape(xp.moveaxis(x, (-3,), (-2,)), (*leading, n, h * d))


def repeat_heads(key: Array, value: Array, n_heads: int) -> tuple[Array, Array]:
    """Give head i of `n_heads` the key head and the value head of its group."""
    xp = array_namespace(key)
    group = n_heads // key.shape[-3]
    mine = xp.arange(n_heads, device=array_api_compat.device(key)) // group  # 0 0 1 1 …
    # repeat would do, but is another function in PyTorch
    return xp.take(key, mine, axis=-3), xp.take(value, mine, axis=-3)


# The functions, which check what they are given.


def split_heads(
    x: Annotated[Array, "... n d_model"], n_heads: int
) -> Annotated[Array, "... h n d"]:
    """Split every row of `x` into `n_heads` heads: (..., n, h·d) to (..., h, n, d).

    Head i gets the columns i·d to (i + 1)·d - 1 of every row.

    Parameters
    ----------
    x : array, shape (..., n, d_model), of any dtype
    n_heads : int
        Number of heads h, at least 1; it must divide d_model.

    Returns
    -------
    array, shape (..., h, n, d_model / h)

    Raises
    ------
    TypeError
        If `x` is not an array or `n_heads` is not an int.
    ValueError
        If `x` has fewer than 2 axes, or `n_heads` is below 1 or does not divide d_model.

    Notes
    -----
    A bare reshape to (..., h, n, d) has the right shape but the wrong numbers, because it splits
    the rows of the sequence into groups and not each row into heads (claim 10).
    Cost: none where the library can return a view, otherwise a copy of `x`.

    References
    ----------
    Chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> split_heads(np.arange(8).reshape(2, 4), 2)
    array([[[0, 1],
            [4, 5]],
    <BLANKLINE>
           [[2, 3],
            [6, 7]]])
    """
    check_array("x", x)
    n_heads = check_int("n_heads", n_heads, at_least=1)
    if x.ndim < 2 or x.shape[-1] % n_heads:
        raise ValueError(
            f"x must have shape (..., n, d_model) with d_model divisible by n_heads = {n_heads}, "
            f"got {tuple(x.shape)}"
        )
    return split_heads_of(x, n_heads)


def merge_heads(x: Annotated[Array, "... h n d"]) -> Annotated[Array, "... n d_model"]:
    """Concatenate the heads again: (..., h, n, d) to (..., n, h·d).

    Parameters
    ----------
    x : array, shape (..., h, n, d), of any dtype

    Returns
    -------
    array, shape (..., n, h·d)
        Row i holds row i of head 0, then that of head 1, and so on. The function is the inverse of
        `split_heads`.

    Raises
    ------
    TypeError
        If `x` is not an array.
    ValueError
        If `x` has fewer than 3 axes.

    Notes
    -----
    Cost: a copy of `x`.

    References
    ----------
    Chapter `multi_head`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8).reshape(2, 4)
    >>> merge_heads(split_heads(x, 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    check_array("x", x)
    if x.ndim < 3:
        raise ValueError(f"x must have shape (..., h, n, d), got {tuple(x.shape)}")
    return merge_heads_of(x)
