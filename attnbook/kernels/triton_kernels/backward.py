"""The backward pass on the matrix units: the weights made again, a tile at a time.

The forward pass left log Σ exp(score) of every row, so a weight is one exponential of its score.
With M = (G ⊙ O)·1, one number a row, and W the weights, the gradient of the scores is
W ⊙ (GVᵀ − M). One kernel walks over the queries of a tile of keys and sums the gradients of key
and value; another walks over the keys of a tile of queries and sums the gradient of the query.
That makes the scores twice, and no two programs ever add to one number: every sum has one fixed
order, so the same call gives the same bits.

Dao (2023), "FlashAttention-2: faster attention with better parallelism and work partitioning".
"""

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.forward import (
    HIDDEN,
    LOG2E,
    head_of,
    heads_of,
    power,
    product,
    row_of_list,
    row_starts,
    scores_of,
    tile_at,
    tiles_of,
    tiles_of_keys,
)
from attnbook.kernels.triton_kernels.operands import launch, strides_of

NEVER = tl.constexpr(float("inf"))  # exp2(x − ∞) = 0


@triton.jit
def rows_kernel(
    grad_output,
    grad_strides,
    output,
    log_total,
    shifts,
    means,
    sizes,
    D_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """Store for each query the shift of its scores, log Σ exp(score), and its mean M."""
    _, B, G, n_q, _, _, d_v = sizes
    n_tiles = tl.cdiv(n_q, BLOCK_Q)
    head = tl.program_id(0) // n_tiles
    rows = tl.program_id(0) % n_tiles * BLOCK_Q + tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, D_V)[None, :]
    places = head.to(tl.int64) * n_q + rows
    inside = (rows < n_q)[:, None] & (columns < d_v)
    grads = head_of(grad_output, grad_strides, head // (B * G), head // G % B, head % G)
    grads += rows.to(tl.int64)[:, None] * grad_strides[3] + columns
    grad = tl.load(grads, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(output + places[:, None] * d_v + columns, mask=inside, other=0.0)
    tl.store(means + places, tl.sum(grad * out.to(tl.float32), 1), mask=rows < n_q)
    log = tl.load(log_total + places, mask=rows < n_q, other=HIDDEN)
    if output.dtype.element_ty != tl.float32:
        log = log * LOG2E  # the unit of scores in half precision
    tl.store(shifts + places, tl.where(log == HIDDEN, NEVER, log), mask=rows < n_q)


@triton.jit
def key_kernel(
    arrays,
    strides,
    grad_output,
    grad_strides,
    tiles,
    tiles_strides,
    shifts,
    means,
    grad_key,
    grad_value,
    sizes,
    scales,  # of the products q · k and of the bias, in the unit of the dtype
    plain_scale,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,  # how many heads of queries share one of keys
):
    """Sum the gradients of one tile of keys and values over all queries that see it."""
    _, B, G, _, n_k, d_k, d_v = sizes
    n_tiles = tl.cdiv(n_k, BLOCK_K)
    tile = tl.program_id(0) % n_tiles  # the first keys are seen most: start there
    head = tl.program_id(0) // n_tiles
    g_own = G // SHARED
    a, b, g = head // (B * g_own), head // g_own % B, head % g_own
    _, key, value, _, _ = heads_of(arrays, strides, a, b, g)
    keys = tiles_of(key, strides[1][3], n_k, d_k, BLOCK_K, D_K)
    values = tiles_of(value, strides[2][3], n_k, d_v, BLOCK_K, D_V)
    columns = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    key_tile = keys.load([tile * BLOCK_K, 0])  # (BLOCK_K, D_K)
    value_tile = values.load([tile * BLOCK_K, 0])  # (BLOCK_K, D_V)
    state = tl.zeros((BLOCK_K, D_K), tl.float32), tl.zeros((BLOCK_K, D_V), tl.float32)
    for member in range(SHARED):
        state = from_queries(
            state,
            key_tile,
            value_tile,
            arrays,
            strides,
            grad_output,
            grad_strides,
            tiles,
            tiles_strides,
            shifts,
            means,
            sizes,
            (a, b, g + member),
            tile,
            columns[:, None],
            scales,
            BLOCK_Q,
            BLOCK_K,
            CAUSAL,
            MASK,
            BIAS,
        )
    of_key, of_value = state
    places = head.to(tl.int64) * n_k + columns[:, None]
    k_columns, v_columns = tl.arange(0, D_K)[None, :], tl.arange(0, D_V)[None, :]
    there = columns[:, None] < n_k
    of_key = (of_key * plain_scale).to(grad_key.dtype.element_ty)
    of_value = of_value.to(grad_value.dtype.element_ty)
    tl.store(grad_key + places * d_k + k_columns, of_key, mask=there & (k_columns < d_k))
    tl.store(grad_value + places * d_v + v_columns, of_value, mask=there & (v_columns < d_v))


@triton.jit
def from_queries(
    state,
    key,
    value,
    arrays,
    strides,
    grad_output,
    grad_strides,
    tiles,
    tiles_strides,
    shifts,
    means,
    sizes,
    head,
    tile,
    columns,
    scales,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Add what the queries of one head give to the gradients of a tile of keys and values.

    Tiles of scores lie as (BLOCK_K, BLOCK_Q), so that weights and their gradients are left
    factors of the products that follow and stay in registers.
    """
    _, B, G, n_q, n_k, d_k, d_v = sizes
    a, b, g = head
    query, _, _, mask, bias = heads_of(arrays, strides, a, b, g)
    queries = tiles_of(query, strides[0][3], n_q, d_k, BLOCK_Q, key.shape[1])
    grads = head_of(grad_output, grad_strides, a, b, g)
    grads = tiles_of(grads, grad_strides[3], n_q, d_v, BLOCK_Q, value.shape[1])
    first_place = ((a * B + b) * G + g).to(tl.int64) * n_q
    tiles = row_of_list(tiles, tiles_strides, a, b, g, tile, MASK)
    part, whole, part_end, whole_end = tiles_of_queries(
        tiles, tile, n_q, n_k, BLOCK_Q, BLOCK_K, CAUSAL, MASK
    )
    of_key, of_value = state
    for MASKED in tl.static_range(2):
        for i in tl.range(part if MASKED else whole, part_end if MASKED else whole_end):
            start = tile_at(i, tiles + 2, MASK) * BLOCK_Q
            rows = start + tl.arange(0, BLOCK_Q)
            query_tile = queries.load([start, 0])  # (BLOCK_Q, D_K)
            grad = grads.load([start, 0])  # (BLOCK_Q, D_V)
            last_seen, mask_rows, bias_rows = row_starts(
                rows[None, :], n_q, n_k, mask, bias, strides, scales[1]
            )
            shift = tl.load(shifts + first_place + rows, mask=rows < n_q, other=NEVER)
            mean = tl.load(means + first_place + rows, mask=rows < n_q, other=0.0)
            scores = scores_of(
                product(key, query_tile.T),
                columns,
                n_k,
                last_seen,
                mask_rows,
                bias_rows,
                scales[0],
                MASKED,
                CAUSAL,
                MASK,
                BIAS,
            )
            weights = power(scores - shift[None, :], key.dtype)  # (BLOCK_K, BLOCK_Q)
            of_value = product(weights.to(grad.dtype), grad, of_value)
            of_weights = product(value, grad.T)
            of_scores = weights * (of_weights - mean[None, :])
            of_key = product(of_scores.to(query_tile.dtype), query_tile, of_key)
    return of_key, of_value


@triton.jit
def tiles_of_queries(tiles, tile, n_q, n_k, BLOCK_Q, BLOCK_K, CAUSAL, MASK):
    """Return which tiles of queries see a tile of keys: from, from, to, to; in part, as a whole.

    Keys past the end need no masking here: what they add to lies past the end too.
    """
    n_tiles = tl.cdiv(n_q, BLOCK_Q)
    if MASK:
        whole_end, part_end = tl.load(tiles), tl.load(tiles + 1)
        return whole_end, 0, part_end, whole_end
    if CAUSAL:
        first = tile * BLOCK_K - (n_k - n_q)  # the first query that sees the first key
        part = tl.minimum(tl.maximum(first, 0) // BLOCK_Q, n_tiles)
        whole = tl.minimum(tl.cdiv(tl.maximum(first + BLOCK_K - 1, 0), BLOCK_Q), n_tiles)
        return part, whole, whole, n_tiles
    return 0, 0, 0, n_tiles


@triton.jit
def query_kernel(
    arrays,
    strides,
    grad_output,
    grad_strides,
    tiles,
    tiles_strides,
    shifts,
    means,
    grad_query,
    sizes,
    scales,  # of the products q · k and of the bias, in the unit of the dtype
    plain_scale,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Sum the gradient of one tile of queries over all keys that it sees."""
    _, B, G, n_q, n_k, d_k, d_v = sizes
    n_tiles = tl.cdiv(n_q, BLOCK_Q)
    head = tl.program_id(0) // n_tiles
    tile = n_tiles - 1 - tl.program_id(0) % n_tiles  # the last queries see most keys: start there
    a, b, g = head // (B * G), head // G % B, head % G
    query, key, value, mask, bias = heads_of(arrays, strides, a, b, g)
    grads = head_of(grad_output, grad_strides, a, b, g)
    queries = tiles_of(query, strides[0][3], n_q, d_k, BLOCK_Q, D_K)
    grads = tiles_of(grads, grad_strides[3], n_q, d_v, BLOCK_Q, D_V)
    keys = tiles_of(key, strides[1][3], n_k, d_k, BLOCK_K, D_K)
    values = tiles_of(value, strides[2][3], n_k, d_v, BLOCK_K, D_V)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    last_seen, mask, bias = row_starts(rows[:, None], n_q, n_k, mask, bias, strides, scales[1])
    places = head.to(tl.int64) * n_q + rows
    shift = tl.load(shifts + places, mask=rows < n_q, other=NEVER)
    mean = tl.load(means + places, mask=rows < n_q, other=0.0)
    query_tile = queries.load([tile * BLOCK_Q, 0])  # (BLOCK_Q, D_K)
    grad = grads.load([tile * BLOCK_Q, 0])  # (BLOCK_Q, D_V)
    tiles = row_of_list(tiles, tiles_strides, a, b, g, tile, MASK)
    whole, end = tiles_of_keys(tiles, tile, n_q, n_k, BLOCK_Q, BLOCK_K, CAUSAL, MASK)
    of_query = tl.zeros((BLOCK_Q, D_K), tl.float32)
    for MASKED in tl.static_range(2):
        for i in tl.range(whole if MASKED else 0, end if MASKED else whole):
            start = tile_at(i, tiles + 2, MASK) * BLOCK_K
            columns = start + tl.arange(0, BLOCK_K)
            key_tile = keys.load([start, 0])  # (BLOCK_K, D_K)
            value_tile = values.load([start, 0])  # (BLOCK_K, D_V)
            scores = scores_of(
                product(query_tile, key_tile.T),
                columns[None, :],
                n_k,
                last_seen,
                mask,
                bias,
                scales[0],
                MASKED,
                CAUSAL,
                MASK,
                BIAS,
            )
            weights = power(scores - shift[:, None], query_tile.dtype)  # (BLOCK_Q, BLOCK_K)
            of_weights = product(grad, value_tile.T)
            of_scores = weights * (of_weights - mean[:, None])
            of_query = product(of_scores.to(key_tile.dtype), key_tile, of_query)
    columns = tl.arange(0, D_K)[None, :]
    tl.store(
        grad_query + places[:, None] * d_k + columns,
        (of_query * plain_scale).to(grad_query.dtype.element_ty),
        mask=(rows < n_q)[:, None] & (columns < d_k),
    )


def backward(x, output, log_total, grad_output, key_tile=None, query_tile=None):
    """Return the gradients of query, key and value of `Operands` none of whose sizes is 0."""
    key_tile = key_tile or tiling.tile_for(x, tiling.OF_KEYS, tiling.OF_KEYS_SINGLE)
    query_tile = query_tile or tiling.tile_for(x, tiling.OF_QUERIES, tiling.OF_QUERIES_SINGLE)
    grad_output = x.with_grad(grad_output)
    of_rows = (grad_output, strides_of(grad_output))
    shifts, means = (x.empty(x.n_q, 1, torch.float32) for _ in range(2))
    launch(
        rows_kernel,
        x.heads * triton.cdiv(x.n_q, query_tile.block_q),
        *of_rows,
        output.contiguous(),
        log_total.contiguous(),
        shifts,
        means,
        x.sizes,
        D_V=tiling.padded(x.d_v),
        BLOCK_Q=query_tile.block_q,
    )
    grad_query = x.empty(x.n_q, x.d_k, x.query.dtype)
    grad_key = x.empty(x.n_k, x.d_k, x.query.dtype, x.key_leading)
    grad_value = x.empty(x.n_k, x.d_v, x.query.dtype, x.key_leading)
    launch(
        key_kernel,
        x.heads // x.n_shared * triton.cdiv(x.n_k, key_tile.block_k),
        x.arrays,
        x.strides,
        *of_rows,
        *tiling.tiles_to_visit(x, key_tile, of_keys=True),
        shifts,
        means,
        grad_key,
        grad_value,
        x.sizes,
        x.scales,
        x.scale,
        **tiling.constants(x, key_tile),
        SHARED=x.n_shared,
    )
    launch(
        query_kernel,
        x.heads * triton.cdiv(x.n_q, query_tile.block_q),
        x.arrays,
        x.strides,
        *of_rows,
        *tiling.tiles_to_visit(x, query_tile),
        shifts,
        means,
        grad_query,
        x.sizes,
        x.scales,
        x.scale,
        **tiling.constants(x, query_tile),
    )
    return grad_query, grad_key, grad_value
