"""Backwards through a linear map, and through a table of which rows are read."""

import math
from typing import Annotated

import array_api_compat
import numpy as np

from attnbook.arrays.array import Array, array_namespace, library
from attnbook.arrays.projections import project


def linear_vjp(
    x: Annotated[Array, "... n d_in"],
    matrix: Annotated[Array, "d_in d_out"],
    bias: Annotated[Array, "d_out"] | None,
    grad_output: Annotated[Array, "... n d_out"],
) -> tuple[Array, Array, Array | None]:
    r"""Pull the gradient G of y = xW + b back to x, W and b.

    .. math:: \frac{\partial\mathcal L}{\partial x} = G W^\top, \qquad
              \frac{\partial\mathcal L}{\partial W} = x^\top G, \qquad
              \frac{\partial\mathcal L}{\partial b} = \sum_i G_i,

    where i runs over the rows of all sequences.

    Parameters
    ----------
    x : array, shape (..., n, d_in)
    matrix : array W, shape (d_in, d_out)
    bias : array b, shape (d_out,), or None
    grad_output : array G, shape (..., n, d_out)

    Returns
    -------
    grad_x, grad_matrix, grad_bias : arrays
        Have the shapes of `x`, `matrix` and `bias`; grad_bias is None if there is no bias.

    Notes
    -----
    Cost: two matrix products, each as large as that of the forward pass.

    Examples
    --------
    >>> import numpy as np
    >>> linear_vjp(np.array([[1.0, 2.0]]), np.eye(2), None, np.array([[3.0, 4.0]]))[1]
    array([[3., 4.],
           [6., 8.]])
    """
    xp = array_namespace(x)
    rows, grads = rows_of(x), rows_of(grad_output)
    grad_x = project(grad_output, xp.matrix_transpose(matrix))
    grad_matrix = xp.matmul(xp.matrix_transpose(rows), grads)  # (d_in, d_out)
    return grad_x, grad_matrix, None if bias is None else xp.sum(grads, axis=0)


def embed_vjp(
    ids: Annotated[Array, "... n"],
    table: Annotated[Array, "V d_model"],
    grad_output: Annotated[Array, "... n d_model"],
    *,
    scale: bool = True,
) -> Annotated[Array, "V d_model"]:
    r"""Pull the gradient G of `embed` back to the table, and add each row of G to the row read.

    .. math:: \frac{\partial\mathcal L}{\partial E_v} =
              \sqrt{d_{\text{model}}} \sum_{i:\, t_i = v} G_i

    Parameters
    ----------
    ids, table, scale
        As in `embed`.
    grad_output : array G, shape (..., n, d_model)

    Returns
    -------
    array of the shape of `table`
        The row of a token that does not occur is 0.

    Notes
    -----
    Cost: O(n log n + (n + V) d_model).

    Examples
    --------
    >>> import numpy as np
    >>> grads = np.array([[1.0], [2.0], [4.0]])
    >>> embed_vjp(np.array([2, 0, 2]), np.zeros((3, 1)), grads)
    array([[2.],
           [0.],
           [5.]])
    """
    factor = math.sqrt(table.shape[1]) if scale else 1.0
    return summed_by_id(ids, rows_of(grad_output), table.shape[0]) * factor


def summed_by_id(ids, rows, n):
    """Return for each of `n` ids the sum of its rows, shape (n, d), which is made in float64.

    The standard has no addition to rows by number; NumPy and PyTorch have. In other libraries the
    rows are sorted by their ids, and the sum of an id is the difference of two running sums: small
    rows beside large ones lose digits.
    """
    xp, device = array_namespace(rows), array_api_compat.device(rows)
    ids = xp.reshape(xp.astype(ids, xp.int64, copy=False), (-1,))
    wide = xp.astype(rows, xp.float64, copy=False)
    if library(rows) == "torch":
        empty = xp.zeros((n, rows.shape[1]), dtype=xp.float64, device=device)
        return xp.astype(empty.index_put((ids,), wide, accumulate=True), rows.dtype, copy=False)
    order = xp.argsort(ids, stable=True)
    wide, ids = xp.take(wide, order, axis=0), xp.take(ids, order)
    bounds = xp.searchsorted(ids, xp.arange(n + 1, device=device))
    some = bounds[1:] > bounds[:-1]  # ids that occur
    if library(rows) == "numpy":
        sums = np.zeros((n, rows.shape[1]))
        if some.any():
            sums[some] = np.add.reduceat(wide, bounds[:-1][some], axis=0)
        return sums.astype(rows.dtype, copy=False)
    totals = xp.cumulative_sum(wide, axis=0, include_initial=True)
    at_bounds = xp.take(totals, bounds, axis=0)  # (n + 1, d)
    sums = at_bounds[1:, :] - at_bounds[:-1, :]
    sums = xp.where(some[:, None], sums, xp.zeros_like(sums))  # exactly 0, also beside infinity
    return xp.astype(sums, rows.dtype, copy=False)


def rows_of(x):
    """Return the rows of all sequences below each other, shape (n, d)."""
    return array_namespace(x).reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
