"""Rung 1, *naive*: the formula as it is written, all scores at once.

Each step makes a new array of n_q × n_k numbers a head, which travels to memory and back.
Agrees with `attnbook.attention` with ``impl="reference"``. Any library, any device.
"""

from attnbook.arrays.array import array_namespace
from attnbook.kernels.score_tiles import scores_of, widen


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return the output; about four arrays of all scores at once."""
    xp = array_namespace(query)
    q, k, v, bias = widen(query, key, value, bias)
    everything = slice(0, q.shape[-2]), slice(0, k.shape[-2])
    scores = scores_of(q, k, mask, bias, scale, is_causal, *everything)  # (..., n_q, n_k)
    if scores.shape[-1] == 0:  # the maximum of no keys does not exist
        return xp.astype(xp.matmul(scores, v), query.dtype, copy=False)
    maximum = xp.max(scores, axis=-1, keepdims=True)
    # a row that sees no key
    maximum = xp.where(maximum == -xp.inf, xp.zeros_like(maximum), maximum)
    weights = xp.exp(scores - maximum)
    total = xp.sum(weights, axis=-1, keepdims=True)
    weights = weights / xp.where(total == 0, xp.ones_like(total), total)
    return xp.astype(xp.matmul(weights, v), query.dtype, copy=False)  # (..., n_q, d_v)
