"""Mask constructors, and a function that draws a mask."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import LARGEST, check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.attention_arguments import check_boolean
from attnbook.arrays.lengths import first_keys, home, lengths_of, placed

UNLIMITED = 2**128
"""Any window that a caller may mean by *everything*, such as `sys.maxsize`, is below this."""


def causal(
    n_q: int, n_k: int | None = None, *, like: Array | None = None
) -> Annotated[Array, "n_q n_k"]:
    """Let each query see the key at its own position and the keys before it: j ≤ i + n_k - n_q.

    Parameters
    ----------
    n_q, n_k : int
        Numbers of queries and of keys, at least 0; n_k is n_q by default.
    like : array, optional
        The mask gets the library and the device of this array; by default it is a NumPy array.

    Returns
    -------
    boolean array, shape (n_q, n_k)
        The last query is aligned with the last key. If n_k < n_q, the first n_q - n_k rows are
        fully masked.

    Raises
    ------
    TypeError, ValueError
        If a number is not an int of at least 0, or `like` is not an array.

    Examples
    --------
    >>> causal(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    own, keys = _places(n_q, n_k, like)
    return keys <= own


def sliding_window(
    n_q: int, n_k: int | None = None, *, left: int, right: int = 0, like: Array | None = None
) -> Annotated[Array, "n_q n_k"]:
    """Let each query see the keys from `left` before its own position to `right` after it.

    Parameters
    ----------
    n_q, n_k, like
        As in `causal`.
    left, right : int
        How many positions to each side, at least 0.

    Returns
    -------
    boolean array, shape (n_q, n_k)

    Raises
    ------
    TypeError, ValueError
        As in `causal`, and likewise for `left` and `right`.

    References
    ----------
    Beltagy et al. (2020), "Longformer". The names are those of flash-attention's `window_size`;
    however, its −1 for *unlimited* is not accepted here.

    Examples
    --------
    >>> sliding_window(4, left=1).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    left, right = (
        min(check_int(name, n, at_most=UNLIMITED), LARGEST)  # no two places are further apart
        for name, n in (("left", left), ("right", right))
    )
    own, keys = _places(n_q, n_k, like)
    return (keys >= own - left) & (keys <= own + right)


def prefix(
    n_q: int,
    n_k: int | None = None,
    *,
    length: int | Sequence[int] | Annotated[Array, "..."],
    like: Array | None = None,
) -> Annotated[Array, "... n_q n_k"]:
    """Let every query see the first `length` keys, and after them be causal: the prefix mask.

    Parameters
    ----------
    n_q, n_k, like
        As in `causal`.
    length : int, or ints of shape (...,)
        Length of the prefix, or one length per sequence, from 0 to n_k.

    Returns
    -------
    boolean array, shape (..., n_q, n_k)

    Raises
    ------
    TypeError, ValueError
        As in `causal` and `padding`.

    References
    ----------
    Raffel et al. (2020), "Exploring the limits of transfer learning", section 3.2.1.

    Examples
    --------
    >>> prefix(4, length=2).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    n_k = n_q if n_k is None else n_k
    mask = causal(n_q, n_k, like=like)
    return mask | first_keys("length", length, n_k, like=mask)


def strided(
    n_q: int, n_k: int | None = None, *, stride: int, like: Array | None = None
) -> Annotated[Array, "n_q n_k"]:
    """Let each query see the keys whose distance is a multiple of `stride`, on both sides.

    Parameters
    ----------
    n_q, n_k, like
        As in `causal`.
    stride : int
        At least 1.

    Returns
    -------
    boolean array, shape (n_q, n_k)
        ``strided(…) & causal(n)`` is the mask of one kind of head in a sparse transformer;
        ``sliding_window`` is that of the other kind.

    Raises
    ------
    TypeError, ValueError
        As in `causal`, and likewise for `stride`.

    References
    ----------
    Child et al. (2019), "Generating long sequences with sparse transformers".

    Examples
    --------
    >>> strided(4, stride=2).astype(int)
    array([[1, 0, 1, 0],
           [0, 1, 0, 1],
           [1, 0, 1, 0],
           [0, 1, 0, 1]])
    """
    stride = check_int("stride", stride, at_least=1)
    own, keys = _places(n_q, n_k, like)
    return own % stride == keys % stride


def block_diagonal(
    lengths: Sequence[int] | Annotated[Array, "documents"],
    key_lengths: Sequence[int] | Annotated[Array, "documents"] | None = None,
    *,
    like: Array | None = None,
) -> Annotated[Array, "n_q n_k"]:
    """Let each query see the keys of its own document if documents are packed end to end.

    Parameters
    ----------
    lengths : ints of shape (documents,)
        How many queries each document has, in order; n_q is their sum.
    key_lengths : ints of shape (documents,), optional
        How many keys each document has, by default as many as queries; n_k is their sum.
    like
        As in `causal`.

    Returns
    -------
    boolean array, shape (n_q, n_k)
        If queries and keys are the same tokens, ``block_diagonal(…) & causal(n)`` lets a language
        model read each document as a text of its own.

    Raises
    ------
    TypeError, ValueError
        If the lengths are not ints of at least 0 with one axis, or the two lists differ in length.

    Examples
    --------
    >>> block_diagonal([1, 3]).astype(int)
    array([[1, 0, 0, 0],
           [0, 1, 1, 1],
           [0, 1, 1, 1],
           [0, 1, 1, 1]])
    """
    queries = lengths_of("lengths", lengths)
    keys = queries if key_lengths is None else lengths_of("key_lengths", key_lengths)
    for name, counts in (("lengths", queries), ("key_lengths", keys)):
        if counts.ndim != 1:
            raise ValueError(f"{name} must have shape (documents,), got {counts.shape}")
    if len(keys) != len(queries):
        raise ValueError(f"key_lengths must have {len(queries)} entries, got {len(keys)}")
    document = np.arange(len(queries))
    # counts of the size of an address: 32 bits in a browser
    of_query, of_key = (np.repeat(document, n.astype(np.intp)) for n in (queries, keys))
    return placed(of_query[:, np.newaxis] == of_key, like)


def padding(
    lengths: int | Sequence[int] | Annotated[Array, "..."], n: int, *, like: Array | None = None
) -> Annotated[Array, "... 1 n"]:
    """Let every query see the first `lengths` of `n` keys, because the rest is padding.

    Parameters
    ----------
    lengths : int, or ints of shape (...,)
        How many keys of each sequence are real, from 0 to `n`.
    n : int
        Number of keys, padding included.
    like : array, optional
        As in `causal`. By default, the mask gets the library and device of `lengths` if `lengths`
        is an array.

    Returns
    -------
    boolean array, shape (..., 1, n)
        The mask hides the same keys from all queries. `multi_head_attention` needs an axis for the
        heads, too, so pass it lengths of shape (batch, 1) to get a mask of shape (batch, 1, 1, n).

    Raises
    ------
    TypeError, ValueError
        If a length is not an int from 0 to `n`, or `n` is not an int of at least 0.

    Examples
    --------
    >>> padding([3, 1], 4).astype(int)
    array([[[1, 1, 1, 0]],
    <BLANKLINE>
           [[1, 0, 0, 0]]])
    """
    return first_keys("lengths", lengths, check_int("n", n), like)


def draw(
    mask: Array,
    *,
    ax: Any = None,
    title: str = "",
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
) -> Any:
    """Draw a mask with two axes: a cell is filled if the query of its row may see its key.

    Parameters
    ----------
    mask : boolean array, shape (n_q, n_k), **True = may attend**
    ax, title, query_labels, key_labels
        As in `attnbook.plots.heatmap`.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If `mask` is not a boolean array.
    ValueError
        If the mask does not have 2 axes, or a list of labels has the wrong length.
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> ax = draw(causal(3), title="causal")
    >>> ax.get_title()
    'causal'
    >>> ax.figure.clear()
    """
    check_boolean(mask)
    if mask.ndim != 2:
        raise ValueError(f"mask must have shape (n_q, n_k), got {tuple(mask.shape)}")
    from attnbook import plots

    ax = plots.heatmap(
        array_namespace(mask).astype(mask, array_namespace(mask).uint8),
        ax=ax,
        title=title,
        query_labels=query_labels,
        key_labels=key_labels,
        limit=1.3,  # one step lighter than the darkest colour
    )
    n_q, n_k = mask.shape
    lines = {"colors": plots.GRID, "linewidth": 0.7}
    ax.vlines(np.arange(n_k + 1) - 0.5, -0.5, n_q - 0.5, **lines)
    ax.hlines(np.arange(n_q + 1) - 0.5, -0.5, n_k - 0.5, **lines)
    return ax


def _places(n_q, n_k, like):
    """Return the places of the queries as a column and of the keys as a row."""
    n_q = check_int("n_q", n_q)
    n_k = n_q if n_k is None else check_int("n_k", n_k)
    xp, device = home(like)
    own = xp.arange(n_q, device=device) + (n_k - n_q)  # the last beside the last key
    keys = xp.arange(n_k, device=device)
    return xp.expand_dims(own, axis=1), xp.expand_dims(keys, axis=0)
