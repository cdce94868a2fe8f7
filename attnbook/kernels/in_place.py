"""Rung 2, *in place*: all scores at once, in one array that each step overwrites.

Nothing is computed sooner; but no step asks for new memory, and the division waits until the
weights have become an output, which has d_v columns instead of n_k.
Agrees with `attnbook.attention` with ``impl="reference"``. NumPy alone: arrays of PyTorch would
lose their gradients, and the standard does not promise writing in place.
"""

import numpy as np

from attnbook.kernels.naive import widen
from attnbook.kernels.score_tiles import tile_of


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None,
    bias: np.ndarray | None,
    scale: float,
    is_causal: bool,
) -> np.ndarray:
    """Return the output; one array of all scores, and two more bytes a score for masks."""
    q, k, v, bias = widen(query, key, value, bias)
    n_q, n_k = q.shape[-2], k.shape[-2]
    scores = np.matmul(q * q.dtype.type(scale), np.matrix_transpose(k))  # (..., n_q, n_k)
    hide(scores, mask, bias, is_causal, slice(0, n_q), slice(0, n_k), n_k - n_q)
    total = exponentials(scores)[1]
    output = np.matmul(scores, v)  # (..., n_q, d_v)
    output /= np.where(total == 0, 1, total)
    return output.astype(query.dtype, copy=False)


def hide(
    scores: np.ndarray,
    mask: np.ndarray | None,
    bias: np.ndarray | None,
    is_causal: bool,
    rows: slice,
    columns: slice,
    offset: int,
) -> None:
    """Add the bias to the scores of a tile and write −∞ where a query may not attend."""
    if bias is not None:
        scores += tile_of(bias, rows, columns)
    if mask is not None:
        np.copyto(scores, -np.inf, where=~tile_of(mask, rows, columns))
    if is_causal:
        own = np.arange(rows.start + offset, rows.stop + offset)
        np.copyto(scores, -np.inf, where=np.arange(columns.start, columns.stop) > own[:, None])


def exponentials(
    scores: np.ndarray, before: np.ndarray | float = -np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Overwrite scores s by exp(s − m), and return the maxima m and the sums, (..., n_q, 1).

    m is at least `before`; where it would be −∞, 0 is subtracted instead.
    """
    maximum = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    maximum = np.maximum(maximum, before)
    scores -= np.where(maximum == -np.inf, 0, maximum)
    np.exp(scores, out=scores)
    return maximum, np.sum(scores, axis=-1, keepdims=True)
