"""Masks as other libraries write them, to and from ours: boolean, **True = may attend**.

The table of all conventions is in the chapter `masking` and on the page `notation`.
"""

from collections.abc import Sequence
from typing import Annotated

import array_api_compat

from attnbook.arrays.arguments import check_choice, check_float, check_int
from attnbook.arrays.array import Array, array_namespace, broadcast_shapes
from attnbook.arrays.attention_arguments import check_boolean
from attnbook.arrays.lengths import first_keys, lengths_of

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def from_valid_lengths(
    valid_lens: Sequence[int] | Sequence[Sequence[int]] | Annotated[Array, "..."], n_k: int
) -> Annotated[Array, "..."]:
    """Return the mask for valid lengths as in *Dive into Deep Learning*, per sequence or query.

    Parameters
    ----------
    valid_lens : ints of shape (batch,) or (batch, n_q)
        For each sequence, or for each query: how many of the first keys it may see.
    n_k : int
        Number of keys.

    Returns
    -------
    boolean array, shape (batch, 1, n_k) or (batch, n_q, n_k)

    Raises
    ------
    TypeError, ValueError
        As in `masking.padding`, and if `valid_lens` does not have one or two axes.

    Examples
    --------
    >>> from_valid_lengths([2, 3], 3)[:, 0].astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    ndim = lengths_of("valid_lens", valid_lens).ndim
    if ndim not in (1, 2):
        raise ValueError(f"valid_lens must have shape (batch,) or (batch, n_q), got {ndim} axes")
    mask = first_keys("valid_lens", valid_lens, check_int("n_k", n_k), like=None)
    return mask if ndim == 1 else mask[:, :, 0, :]  # from (batch, n_q, 1, n_k)


def to_additive(mask: Array, dtype: str = "float32") -> Array:
    """Return 0 where `mask` allows and −∞ where it hides, to be added to the scores.

    Parameters
    ----------
    mask : boolean array, **True = may attend**
    dtype : str
        Name of the real floating dtype of the scores.

    Returns
    -------
    array of that dtype, with the shape, library and device of `mask`
        Most implementations of the softmax turn a row that holds only −∞ into NaN; the one of this
        package returns zeros.

    Raises
    ------
    TypeError
        If `mask` is not a boolean array.
    ValueError
        If `dtype` is not a real floating dtype of the library of `mask`.

    Examples
    --------
    >>> import numpy as np
    >>> to_additive(np.array([True, False]))
    array([  0., -inf], dtype=float32)
    """
    check_boolean(mask)
    xp = array_namespace(mask)
    floats = [name for name in _FLOATS if hasattr(xp, name)]
    check_choice("dtype", dtype, floats)
    zeros = xp.zeros(mask.shape, dtype=getattr(xp, dtype), device=array_api_compat.device(mask))
    return xp.where(mask, zeros, xp.full_like(zeros, -xp.inf))


def from_additive(mask: Array) -> Array:
    """Return the boolean mask that an additive one stands for: True where it adds nothing.

    Parameters
    ----------
    mask : array of a real floating dtype
        0 where a query may attend; −∞, or a number of at most −1000, where it may not.

    Returns
    -------
    boolean array of the same shape, library and device, **True = may attend**

    Raises
    ------
    TypeError
        If `mask` is not an array of real floating-point numbers.
    ValueError
        If it holds other numbers, such as the −100 of some models. Such an array is a bias, not a
        mask, so pass it as ``bias=``.

    Examples
    --------
    >>> import numpy as np
    >>> from_additive(np.array([0.0, -np.inf, -1e9]))
    array([ True, False, False])
    """
    check_float("mask", mask)
    xp = array_namespace(mask)
    allowed = mask == 0
    try:
        fits = bool(xp.all(allowed | (mask <= -1000)))
    except RuntimeError as error:  # PyTorch's, on the meta device
        raise ValueError(f"mask must hold numbers that can be read, got {error}") from error
    if not fits:
        raise ValueError(
            "mask must hold only 0 and numbers of at most -1000, got others; "
            "numbers that are added to the scores go in bias="
        )
    return allowed


def to_sdpa(mask: Array) -> Array:
    """Return `mask` as `torch.nn.functional.scaled_dot_product_attention` takes it.

    There, too, True means *may attend*. However, the axes of queries and of keys must both exist.

    Parameters
    ----------
    mask : boolean array, **True = may attend**

    Returns
    -------
    boolean array of the same library, with at least 2 axes

    Raises
    ------
    TypeError
        If `mask` is not a boolean array.

    Examples
    --------
    >>> import numpy as np
    >>> to_sdpa(np.array([True, False])).shape
    (1, 2)
    """
    check_boolean(mask)
    missing = max(0, 2 - mask.ndim)
    return array_namespace(mask).reshape(mask, (1,) * missing + tuple(mask.shape))


def to_mha(mask: Array, scores_shape: tuple[int, ...] | None = None) -> Array:
    """Return `mask` as `torch.nn.MultiheadAttention` takes it, **True = ignore**.

    Parameters
    ----------
    mask : boolean array, **True = may attend**
    scores_shape : tuple of int, optional
        (batch, h, n_q, n_k). If given, the mask is broadcast to this shape and its first two axes
        are merged, because `attn_mask` expects this if masks differ between sequences or heads.

    Returns
    -------
    boolean array
        ``~mask``, in shape (batch·h, n_q, n_k) if `scores_shape` is given. Without a shape,
        applying the function twice gives the mask back.

    Raises
    ------
    TypeError
        If `mask` is not a boolean array.
    ValueError
        If `scores_shape` does not have 4 entries, or `mask` does not broadcast to it.

    Examples
    --------
    >>> import numpy as np
    >>> to_mha(np.array([[True, False], [True, True]])).astype(int)
    array([[0, 1],
           [0, 0]])
    """
    check_boolean(mask)
    if scores_shape is None:
        return ~mask
    if not isinstance(scores_shape, Sequence) or len(scores_shape) != 4:
        raise ValueError(f"scores_shape must be (batch, h, n_q, n_k), got {scores_shape}")
    shape = tuple(check_int("scores_shape", n) for n in scores_shape)
    if broadcast_shapes(tuple(mask.shape), shape) != shape:
        raise ValueError(f"mask must broadcast to {shape}, got {tuple(mask.shape)}")
    xp = array_namespace(mask)
    return xp.reshape(xp.broadcast_to(~mask, shape), (shape[0] * shape[1], *shape[2:]))
