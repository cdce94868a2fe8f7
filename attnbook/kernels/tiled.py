"""Rung 3, *tiled*: a tile of scores at a time, so that no matrix of all scores ever exists.

`RunningSoftmax` remembers of the keys read so far all that the output needs, so a tile is used and
forgotten. The backward pass makes each tile of weights again instead of keeping it.
Agrees with `attnbook.attention` with ``impl="reference"``. Any library, any device; O(n) memory.
"""

from array_api_compat import device

from attnbook._arrays import array_namespace, broadcast_shapes
from attnbook.kernels._tiles import later, scores_of, tiles, widen
from attnbook.softmax import RunningSoftmax, _finite

ROWS, COLUMNS = 256, 384


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return the output; its tiles stay in the cache of the processor."""
    return forward(query, key, value, mask, bias, scale, is_causal)[0]


def forward(query, key, value, mask, bias, scale, is_causal):
    """Return the output and log Σ exp(score) of each row, (..., n_q, 1)."""
    xp = array_namespace(query)
    q, k, v, bias = widen(query, key, value, bias)
    n_q, n_k = q.shape[-2], k.shape[-2]
    outputs, log_totals = [], []
    for rows in tiles(n_q, ROWS) or [slice(0, 0)]:
        nothing = scores_of(q, k, None, None, scale, False, rows, slice(0, 0))
        state = RunningSoftmax.read(nothing, v[..., :0, :])
        for columns in tiles(n_k, COLUMNS):
            if is_causal and later(rows, columns, n_q, n_k):
                break
            scores = scores_of(q, k, mask, bias, scale, is_causal, rows, columns)
            state = state.merge(RunningSoftmax.read(scores, v[..., columns, :]))
        outputs.append(state.output())
        log_totals.append(state.log_total())
    output = xp.concat(outputs, axis=-2)  # (..., n_q, d_v)
    return xp.astype(output, query.dtype, copy=False), xp.concat(log_totals, axis=-2)


def backward(query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output):
    """Return the gradients of query, key and value, with the leading axes of the output.

    With the weights of a tile A = exp(S − log_total): the mean a · g over *all* keys, which the
    derivative of the softmax needs, is the row sum of output ⊙ grad_output.
    """
    xp = array_namespace(query)
    q, k, v, o, g, bias = widen(query, key, value, output, grad_output, bias)
    n_q, n_k = q.shape[-2], k.shape[-2]
    mean = xp.sum(o * g, axis=-1, keepdims=True)  # (..., n_q, 1)
    log_total = _finite(log_total)
    rows_of, columns_of = tiles(n_q, ROWS), tiles(n_k, COLUMNS)
    grad_query = [0] * len(rows_of)
    grad_key, grad_value = [0] * len(columns_of), [0] * len(columns_of)
    for i, rows in enumerate(rows_of):
        for j, columns in enumerate(columns_of):
            if is_causal and later(rows, columns, n_q, n_k):
                break
            scores = scores_of(q, k, mask, bias, scale, is_causal, rows, columns)
            weights = xp.exp(scores - log_total[..., rows, :])
            of_rows = g[..., rows, :]
            grad_weights = xp.matmul(of_rows, xp.matrix_transpose(v[..., columns, :]))
            grad_scores = weights * (grad_weights - mean[..., rows, :]) * scale
            grad_query[i] = grad_query[i] + xp.matmul(grad_scores, k[..., columns, :])
            grad_key[j] = grad_key[j] + xp.matmul(xp.matrix_transpose(grad_scores), q[..., rows, :])
            grad_value[j] = grad_value[j] + xp.matmul(xp.matrix_transpose(weights), of_rows)
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (q, k, v)))
    return tuple(
        _joined(parts, where, x, leading)
        for parts, where, x in (
            (grad_query, rows_of, query),
            (grad_key, columns_of, key),
            (grad_value, columns_of, value),
        )
    )


def _joined(parts, where, like, leading):
    xp = array_namespace(like)
    parts = [
        xp.zeros(
            (*leading, at.stop - at.start, like.shape[-1]), dtype=like.dtype, device=device(like)
        )
        if isinstance(part, int)  # a tile that no query may see
        else xp.astype(part, like.dtype, copy=False)
        for part, at in zip(parts, where, strict=True)
    ]
    return xp.concat(parts, axis=-2) if parts else xp.zeros_like(like)
