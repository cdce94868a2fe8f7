"""The backward pass on the Tensor Cores: the weights made again, a tile at a time.

The forward pass left log Σ exp(score) of every row, so a weight is one exponential of its score.
With M = (G ⊙ O)·1, one number a row, and W the weights, the gradient of the scores is
W ⊙ (GVᵀ − M). One kernel walks over the queries of a tile of keys and sums the gradients of key
and value; another walks over the keys of a tile of queries and sums the gradient of the query.
That makes the scores twice, seven products in the place of five, and no two programs ever add to
one number: every sum has one fixed order, so the same call gives the same bits. One kernel for all
three would add to a query's gradient from every tile of keys, in whatever order they end. Compiled
for sm_90 by Triton 3.7, a thread of the two kernels runs 18.3 instructions a score for rows of 64
numbers, and of the one 13.5, which besides adds 4,096 numbers to memory for every tile. For rows of
128 it is 20.1 against 18.7, but all 255 registers are full and 116 instructions move others to
memory and back; in tiles of half as many queries, where they fit, it is 24.8.

The gradient of the scores is rounded to the dtype of the arrays before the products that take it,
as in FlashAttention-2. In float16 it is infinite beyond 65,504, which a large loss scale reaches.

Dao (2023), "FlashAttention-2: faster attention with better parallelism and work partitioning".
"""

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.forward import (
    HIDDEN,
    LOG2E,
    factor,
    power,
    product,
    row_of_list,
    rows_of,
    scores_of,
    store_rows,
    tile_at,
    tile_of,
    tiles_of_keys,
    zeros,
)
from attnbook.kernels.triton_kernels.operands import aligned, launch, rows_of_array
from attnbook.kernels.triton_kernels.tiles import head_at, head_of

NEVER = tl.constexpr(float("inf"))  # exp2(x − ∞) = 0
MOST_QUERIES = tl.constexpr(128)  # of a tile
WIDEST_SUM_SINGLE = 128
"""Wider rows of float32 leave no registers to sum over the heads that share a head of keys.

Then each head of queries has gradients of its own, which the caller sums.
"""


@triton.jit
def spaced(n_q):
    """Return how far the rows of `rows_kernel` of two heads are apart: whole tiles, no end."""
    return tl.cdiv(n_q, MOST_QUERIES) * MOST_QUERIES


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k"])
def rows_kernel(
    grad_output,
    strides,
    output,
    log_total,
    of_rows,
    A,
    B,
    G,
    n_q,
    n_k,
    d_v,
    D_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    """Store for each query the shift of its scores, log Σ exp(score), and its mean M.

    Rows past the end get a shift that makes their weights 0.
    """
    shifts, means = of_rows
    n_tiles = spaced(n_q) // BLOCK_Q
    place = tl.program_id(0) // n_tiles
    rows = tl.program_id(0) % n_tiles * BLOCK_Q + tl.arange(0, BLOCK_Q)
    own_places = place.to(tl.int64) * spaced(n_q) + rows
    columns = tl.arange(0, D_V)[None, :]
    places = place.to(tl.int64) * n_q + rows
    inside = (rows < n_q)[:, None] & (columns < d_v)
    head = head_at(place, B, G)
    own = head_of(grad_output, strides, head) + rows.to(tl.int64)[:, None] * strides[3] + columns
    grad = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(output + places[:, None] * d_v + columns, mask=inside, other=0.0)
    tl.store(means + own_places, tl.sum(grad * out.to(tl.float32), 1))
    log = tl.load(log_total + places, mask=rows < n_q, other=HIDDEN)
    if output.dtype.element_ty != tl.float32:
        log = log * LOG2E  # the unit of scores in half precision
    tl.store(shifts + own_places, tl.where(log == HIDDEN, NEVER, log))


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k"])
def key_kernel(
    queries,
    keys,
    values,
    grads,  # of the output
    x,
    A,
    B,
    G,
    n_q,
    n_k,
    lists,  # of tiles to visit, if there is a mask, and their strides
    of_rows,  # shifts and means, of rows_kernel
    grad_key,
    grad_value,
    KIND: tl.constexpr,
    SHARED: tl.constexpr,  # how many heads of queries share one of keys
):
    """Sum the gradients of one tile of keys and values over all queries that see it.

    Tiles of scores lie as (BLOCK_K, BLOCK_Q), so that weights and their gradients are left
    factors of the products that follow and stay in registers.
    """
    sizes = A, B, G, n_q, n_k
    shifts, means = of_rows
    n_tiles = tl.cdiv(n_k, KIND.BLOCK_K)
    tile = tl.program_id(0) % n_tiles  # the first keys are seen most: start there
    place = tl.program_id(0) // n_tiles
    key_head = head_at(place, B, G // SHARED)
    a, b, g = key_head
    key_start = tile * KIND.BLOCK_K
    columns = key_start + tl.arange(0, KIND.BLOCK_K)
    key = tile_of(keys, key_head, key_start, KIND.BLOCK_K, KIND.D_K)
    value = tile_of(values, key_head, key_start, KIND.BLOCK_K, KIND.D_V)
    of_key, of_value = zeros(KIND.BLOCK_K, KIND.D_K), zeros(KIND.BLOCK_K, KIND.D_V)
    for member in range(SHARED):  # of the heads of queries that share this one
        head = a, b, g + member
        first_place = ((a * B + b) * G + g + member).to(tl.int64) * spaced(n_q)
        tiles = row_of_list(lists, head, tile, KIND)
        part, whole, part_end, whole_end = tiles_of_queries(tiles, tile, sizes, KIND)
        for MASKED in tl.static_range(0 if KIND.APART else 1, 2):
            for i in tl.range(part if MASKED else whole, part_end if MASKED else whole_end):
                start = tile_at(i, tiles + 2, KIND.MASK) * KIND.BLOCK_Q
                rows = start + tl.arange(0, KIND.BLOCK_Q)
                query_tile = tile_of(queries, head, start, KIND.BLOCK_Q, KIND.D_K)
                grad = tile_of(grads, head, start, KIND.BLOCK_Q, KIND.D_V)
                seen = rows_of(rows[None, :], x, sizes, head, KIND, HELD=False)
                other = factor(query_tile, queries, head, start, KIND.PRECISION)
                own = factor(key, keys, key_head, key_start, KIND.PRECISION)
                products = product(own, other.T, KIND.PRECISION)
                scores = scores_of(
                    products, columns[:, None], x, n_k, seen, MASKED, KIND, HELD=False
                )
                shift = tl.load(shifts + first_place + rows)
                weights = power(scores - shift[None, :], key.dtype)  # (BLOCK_K, BLOCK_Q)
                other = factor(grad, grads, head, start, KIND.PRECISION)
                of_value = product(weights.to(grad.dtype), other, KIND.PRECISION, of_value)
                other = factor(grad, grads, head, start, KIND.PRECISION)
                own = factor(value, values, key_head, key_start, KIND.PRECISION)
                of_weights = product(own, other.T, KIND.PRECISION)
                mean = tl.load(means + first_place + rows)
                of_scores = weights * (of_weights - mean[None, :])
                other = factor(query_tile, queries, head, start, KIND.PRECISION)
                of_key = product(of_scores.to(other.dtype), other, KIND.PRECISION, of_key)
    places = place.to(tl.int64) * n_k + columns
    store_rows(grad_key, places, of_key * x.scale, columns < n_k, x.d_k)
    store_rows(grad_value, places, of_value, columns < n_k, x.d_v)


@triton.jit
def tiles_of_queries(tiles, tile, sizes, KIND: tl.constexpr):
    """Return which tiles of queries see a tile of keys: from, from, to, to; in part, as a whole.

    Keys past the end need no masking here: what they add to lies past the end too.
    """
    _, _, _, n_q, n_k = sizes
    n_tiles = tl.cdiv(n_q, KIND.BLOCK_Q)
    # The last tile may reach past the end. It needs no masking, but is walked apart: in one loop
    # alone the compiler would let each product wait for the one before.
    part, whole, part_end, whole_end = n_q // KIND.BLOCK_Q, 0, n_tiles, n_q // KIND.BLOCK_Q
    if KIND.MASK:
        whole_end, part_end = tl.load(tiles), tl.load(tiles + 1)
        part = whole_end
    elif KIND.CAUSAL:
        first = tile * KIND.BLOCK_K - (n_k - n_q)  # the first query that sees the first key
        part = tl.minimum(tl.maximum(first, 0) // KIND.BLOCK_Q, n_tiles)
        last = tl.maximum(first + KIND.BLOCK_K - 1, 0)
        whole = tl.minimum(tl.cdiv(last, KIND.BLOCK_Q), n_tiles)
        part_end, whole_end = whole, n_tiles
    if not KIND.APART:
        part, part_end = tl.minimum(part, whole), tl.maximum(part_end, whole_end)
    return part, whole, part_end, whole_end


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k"])
def query_kernel(
    queries,
    keys,
    values,
    grads,
    x,
    A,
    B,
    G,
    n_q,
    n_k,
    lists,
    of_rows,
    grad_query,
    KIND: tl.constexpr,
):
    """Sum the gradient of one tile of queries over all keys that it sees."""
    sizes = A, B, G, n_q, n_k
    shifts, means = of_rows
    n_tiles = tl.cdiv(n_q, KIND.BLOCK_Q)
    place = tl.program_id(0) // n_tiles
    tile = n_tiles - 1 - tl.program_id(0) % n_tiles  # the last queries see most keys: start there
    head = head_at(place, B, G)
    rows = tile * KIND.BLOCK_Q + tl.arange(0, KIND.BLOCK_Q)
    seen = rows_of(rows[:, None], x, sizes, head, KIND)
    places = place.to(tl.int64) * n_q + rows
    own_places = place.to(tl.int64) * spaced(n_q) + rows
    shift, mean = tl.load(shifts + own_places), tl.load(means + own_places)
    query_start = tile * KIND.BLOCK_Q
    query_tile = tile_of(queries, head, query_start, KIND.BLOCK_Q, KIND.D_K)
    grad = tile_of(grads, head, query_start, KIND.BLOCK_Q, KIND.D_V)
    tiles = row_of_list(lists, head, tile, KIND)
    whole, end = tiles_of_keys(tiles, tile, sizes, KIND)
    of_query = zeros(KIND.BLOCK_Q, KIND.D_K)
    for MASKED in tl.static_range(0 if KIND.APART else 1, 2):
        for i in tl.range(whole if MASKED else 0, end if MASKED else whole):
            start = tile_at(i, tiles + 2, KIND.MASK) * KIND.BLOCK_K
            columns = start + tl.arange(0, KIND.BLOCK_K)
            key_tile = tile_of(keys, head, start, KIND.BLOCK_K, KIND.D_K)
            value_tile = tile_of(values, head, start, KIND.BLOCK_K, KIND.D_V)
            other = factor(key_tile, keys, head, start, KIND.PRECISION)
            again = query_start + i * tl.program_id(1)  # the same row, as the compiler cannot know
            own = factor(query_tile, queries, head, again, KIND.PRECISION)
            products = product(own, other.T, KIND.PRECISION)
            scores = scores_of(products, columns[None, :], x, n_k, seen, MASKED, KIND)
            weights = power(scores - shift[:, None], query_tile.dtype)  # (BLOCK_Q, BLOCK_K)
            other = factor(value_tile, values, head, start, KIND.PRECISION)
            own = factor(grad, grads, head, again, KIND.PRECISION)
            of_weights = product(own, other.T, KIND.PRECISION)
            of_scores = weights * (of_weights - mean[:, None])
            other = factor(key_tile, keys, head, start, KIND.PRECISION)
            of_query = product(of_scores.to(other.dtype), other, KIND.PRECISION, of_query)
    store_rows(grad_query, places, of_query * x.scale, rows < n_q, x.d_k)


def backward(x, output, log_total, grad_output, key_tile=None, query_tile=None):
    """Return the gradients of query, key and value of `Operands` none of whose sizes is 0.

    Those that the caller must sum over heads are float32.
    """
    key_tile = key_tile or tiling.tile_for(x, "keys")
    query_tile = query_tile or tiling.tile_for(x, "queries")
    call, dtype, device = x.call, x.query.dtype, x.query.device
    grad_output = aligned(grad_output.detach().reshape(*x.sizes[:4], x.d_v))  # (A, B, G, n_q, d_v)
    spaced_rows = tiling.cdiv(x.n_q, MOST_QUERIES.value) * MOST_QUERIES.value
    of_rows = x.query.new_empty((2, x.heads * spaced_rows), dtype=torch.float32).unbind()
    results = (output.contiguous(), log_total.contiguous())
    arguments = (grad_output, grad_output.stride(), *results, of_rows, *x.sizes, x.d_v)
    by_query = x.heads * tiling.cdiv(x.n_q, query_tile.block_q)
    launch(
        *(rows_kernel, x.heads * spaced_rows // query_tile.block_q, device, *arguments),
        *(tiling.padded(x.d_v), query_tile.block_q),
    )

    n_shared, leading = x.n_shared, x.key_leading
    if dtype == torch.float32 and max(x.d_k, x.d_v) > WIDEST_SUM_SINGLE:
        n_shared, leading = 1, x.leading
    grad_key = x.gradient_of(1, x.d_k, leading)
    grad_value = x.gradient_of(2, x.d_v, leading)
    kind, options = tiling.options(x, key_tile)
    lists = tiling.tiles_to_visit(x, key_tile, of_keys=True)
    arguments = (*_rows(x, grad_output, kind), call, *x.sizes, lists, of_rows, grad_key, grad_value)
    by_key = x.heads // n_shared * tiling.cdiv(x.n_k, key_tile.block_k)
    launch(key_kernel, by_key, device, *arguments, kind, n_shared, **options)

    grad_query = x.gradient_of(0, x.d_k, x.leading)
    kind, options = tiling.options(x, query_tile)
    lists = tiling.tiles_to_visit(x, query_tile)
    arguments = (*_rows(x, grad_output, kind), call, *x.sizes, lists, of_rows, grad_query)
    launch(query_kernel, by_query, device, *arguments, kind, **options)
    return grad_query, grad_key, grad_value


def _rows(x, grad_output, kind):
    """Return where tiles of queries, keys, values and of the gradient of the output come from."""
    return *x.rows(kind), rows_of_array(grad_output, kind.BLOCK_Q, kind.D_V)
