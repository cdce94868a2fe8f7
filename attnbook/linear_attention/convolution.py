r"""A short causal convolution: each feature mixes with its own last few values.

.. math:: y_{t} = \sum_{l=0}^{w-1} c_{l} \odot x_{t-w+1+l}
"""

from typing import Annotated

from array_api_compat import device

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace, to_accumulate


def short_convolution(
    x: Annotated[Array, "... n d"],
    filters: Annotated[Array, "width d"],
    *,
    before: Annotated[Array, "... m d"] | None = None,
) -> Annotated[Array, "... n d"]:
    r"""Mix each feature with its values at the last tokens, by a filter of its own.

    .. math:: y_{t} = \sum_{l=0}^{w-1} c_{l} \odot x_{t-w+1+l}

    The row c_{w-1} of `filters` meets the token itself. Layers of linear attention use it before
    queries, keys and values, since a state alone sees neighbours poorly.

    Parameters
    ----------
    x : array, shape (..., n, d), real floating dtype
    filters : array c, shape (w, d)
        One filter for each feature: a depthwise convolution without a bias.
    before : array, shape (..., w - 1, d), optional
        The tokens before the first, in decoding; zeros unless given.

    Returns
    -------
    array, shape (..., n, d)
        Of the dtype of `x`. No output depends on a later token.

    Raises
    ------
    TypeError
        For anything but arrays of one library and one real floating dtype.
    ValueError
        If shapes do not fit.

    Notes
    -----
    It is ``torch.nn.functional.conv1d`` with ``groups=d`` and w - 1 zeros on the left.
    Cost: O(n w d).

    References
    ----------
    Gu and Dao (2023), "Mamba"; Yang et al. (2025), "Gated delta networks".

    Examples
    --------
    >>> import numpy as np
    >>> short_convolution(np.array([[1.0], [2.0], [4.0]]), np.array([[0.5], [1.0]]))[:, 0]
    array([1. , 2.5, 5. ])
    """
    check_floats(x=x, filters=filters, **({} if before is None else {"before": before}))
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., n, d), got {tuple(x.shape)}")
    *leading, n, d = x.shape
    if filters.ndim != 2 or filters.shape[0] < 1 or filters.shape[1] != d:
        raise ValueError(f"filters must have shape (width, {d}), got {tuple(filters.shape)}")
    xp, width = array_namespace(x), filters.shape[0]
    shape = (*leading, width - 1, d)
    if before is None:
        before = xp.zeros(shape, dtype=x.dtype, device=device(x))
    if tuple(before.shape) != shape:
        raise ValueError(f"before must have shape {shape}, got {tuple(before.shape)}")
    padded, wide = to_accumulate(xp.concat([before, x], axis=-2)), to_accumulate(filters)
    y = sum(padded[..., i : i + n, :] * wide[i, :] for i in range(width))
    return xp.astype(y, x.dtype, copy=False)
