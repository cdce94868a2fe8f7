"""Embedding: from token ids to rows of features."""

import math
from typing import Annotated

from attnbook.arrays.arguments import check_bool, check_float, check_ids
from attnbook.arrays.array import Array, array_namespace

# The mathematics, of checked arrays.


def embed_of(ids: Array, table: Array, scale: bool) -> Array:
    xp = array_namespace(table)
    ids = xp.astype(ids, xp.int64, copy=False)
    flat = xp.take(table, xp.reshape(ids, (-1,)), axis=0)
    rows = xp.reshape(flat, (*ids.shape, table.shape[1]))
    return rows * math.sqrt(table.shape[1]) if scale else rows


# The function, which checks what it is given.


def embed(
    ids: Annotated[Array, "... n"], table: Annotated[Array, "V d_model"], *, scale: bool = True
) -> Annotated[Array, "... n d_model"]:
    r"""Return the row of `table` for each token, times √d_model.

    .. math:: x_i = \sqrt{d_{\text{model}}}\; E_{t_i}

    Parameters
    ----------
    ids : integer array t, shape (..., n)
        Token ids from 0 to V - 1.
    table : array E, shape (V, d_model), real floating dtype
    scale : bool
        Whether to multiply by √d_model, as Vaswani et al. do.

    Returns
    -------
    array, shape (..., n, d_model)
        Has the dtype of `table`.

    Raises
    ------
    TypeError
        If `ids` are not integers, `table` does not have a real floating dtype, their libraries
        differ, or `scale` is not a bool.
    ValueError
        If an id is below 0 or not below V, `ids` has no axis, `table` does not have two axes, or
        their devices differ.

    Notes
    -----
    The result is the same as that of a one-hot row times E, but the zeros are never multiplied.
    The function checks the values of the ids, so it waits for a GPU to finish; inside
    ``torch.compile`` it does not check them.
    Cost: O(n d_model).

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.4; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> embed(np.array([2, 0]), np.eye(4))
    array([[0., 0., 2., 0.],
           [2., 0., 0., 0.]])
    """
    check_float("table", table)
    if table.ndim != 2:
        raise ValueError(f"table must have shape (V, d_model), got {tuple(table.shape)}")
    check_ids("ids", ids, table.shape[0], "table", table)
    check_bool("scale", scale)
    return embed_of(ids, table, scale)
