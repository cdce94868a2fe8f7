"""Rung 3, *tiled*: a tile of scores at a time, so that no matrix of all scores ever exists.

An online softmax remembers all that the output needs of the keys read so far, so a tile can be
used and forgotten. The backward pass computes each tile of weights again instead of keeping it. The
heads take turns, so each head reuses memory that is still in the processor's cache.
Agrees with `attnbook.attention` with ``impl="reference"``. Any library, any device; O(n) memory.
"""

from typing import Any

from array_api_compat import device

from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.empty_rows import finite, or_one
from attnbook.kernels.naive import widen
from attnbook.kernels.running_softmax import merge_of, read_of
from attnbook.kernels.score_tiles import head_by_head, tile_scores, tiles, visited

ROWS, COLUMNS = 512, 1024  # 2 MiB of scores in float32


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> Array:
    """Return the output; besides it, a call holds only a few tiles of scores."""
    return forward(query, key, value, mask, bias, scale, is_causal)[0]


def forward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> tuple[Array, Array]:
    """Return the output, and the maximum and the log total of each row, (..., n_q, 2).

    Their sum is the logsumexp, log Σ exp(score). The two stay apart, because in float32 a maximum
    of 10,000 leaves no digits for the logarithm of a total of 2.
    """

    def of_head(
        q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None
    ) -> tuple[Array, ...]:
        return forward_of_head(q, k, v, mask, bias, scale, is_causal)

    q, k, v, bias = widen(query, key, value, bias)
    shapes = (q.shape[-2], v.shape[-1]), (q.shape[-2], 2)
    output, log_total = head_by_head(of_head, shapes, q, k, v, mask, bias)
    return array_namespace(query).astype(output, query.dtype, copy=False), log_total


def forward_of_head(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
) -> tuple[Array, Array]:
    """Return the output (n_q, d_v), and maximum and log total (n_q, 2), of one head."""
    xp = array_namespace(q)
    n_q, n_k = q.shape[0], k.shape[0]
    outputs, log_totals = [], []
    seen_by = visited(mask, is_causal, n_q, n_k, ROWS, COLUMNS)
    for i, rows in enumerate(tiles(n_q, ROWS) or [slice(0, 0)]):
        state = None
        for _, columns, to_hide in seen_by(i):
            scores = tile_scores(q, k, to_hide, bias, scale, is_causal, rows, columns)
            part = read_of(scores, v[columns, :])
            state = part if state is None else merge_of(state, part)
        if state is None:  # no key is there, or all come later
            state = read_of(q[rows, :0], v[:0, :])
        total = or_one(state.total)
        outputs.append(state.weighted / total)
        log_totals.append(xp.concat([state.maximum, xp.log(total)], axis=-1))
    return xp.concat(outputs, axis=0), xp.concat(log_totals, axis=0)


def backward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    output: Array,
    log_total: Array,
    grad_output: Array,
) -> tuple[Array, ...]:
    """Return the gradients of query, key and value, with the leading axes of the output.

    Half precision is widened to float32, which is rounded when they have been summed over heads.
    """

    def of_head(
        q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, *after: Array
    ) -> tuple[Array, ...]:
        return backward_of_head(q, k, v, mask, bias, scale, is_causal, *after)

    q, k, v, bias, o, g = widen(query, key, value, bias, output, grad_output)
    shapes = [x.shape[-2:] for x in (q, k, v)]
    return head_by_head(of_head, shapes, q, k, v, mask, bias, o, log_total, g)


def backward_of_head(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    output: Array,
    log_total: Array,
    grad_output: Array,
) -> tuple[Array, Array, Array]:
    """Return the gradients of one head.

    With the weights of a tile A = exp(S − maximum − log_total): the mean a · g over *all* keys,
    which the derivative of the softmax needs, is the row sum of output ⊙ grad_output.
    """
    xp = array_namespace(q)
    n_q, n_k = q.shape[0], k.shape[0]
    mean = xp.sum(output * grad_output, axis=-1, keepdims=True)  # (n_q, 1)
    maximum, log_total = finite(log_total[:, :1]), log_total[:, 1:]
    rows_of, columns_of = tiles(n_q, ROWS), tiles(n_k, COLUMNS)
    grad_query = [0] * len(rows_of)
    grad_key, grad_value = [0] * len(columns_of), [0] * len(columns_of)
    seen_by = visited(mask, is_causal, n_q, n_k, ROWS, COLUMNS)
    for i, rows in enumerate(rows_of):
        for j, columns, to_hide in seen_by(i):
            scores = tile_scores(q, k, to_hide, bias, scale, is_causal, rows, columns)
            weights = xp.exp(scores - maximum[rows, :] - log_total[rows, :])
            of_rows = grad_output[rows, :]
            grad_weights = xp.matmul(of_rows, xp.matrix_transpose(v[columns, :]))
            grad_scores = weights * (grad_weights - mean[rows, :]) * scale
            grad_query[i] = grad_query[i] + xp.matmul(grad_scores, k[columns, :])
            grad_key[j] = grad_key[j] + xp.matmul(xp.matrix_transpose(grad_scores), q[rows, :])
            grad_value[j] = grad_value[j] + xp.matmul(xp.matrix_transpose(weights), of_rows)
    return (
        _joined(grad_query, rows_of, q),
        _joined(grad_key, columns_of, k),
        _joined(grad_value, columns_of, v),
    )


def _joined(parts: list[Any], where: list[slice], like: Array) -> Array:
    xp = array_namespace(like)
    options = {"dtype": like.dtype, "device": device(like)}
    whole = [
        # 0: a tile that no query may see
        xp.zeros((at.stop - at.start, like.shape[-1]), **options) if isinstance(part, int) else part
        for part, at in zip(parts, where, strict=True)
    ]
    return xp.concat(whole, axis=0) if whole else xp.zeros_like(like)
