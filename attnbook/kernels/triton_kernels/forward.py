"""The forward pass on the Tensor Cores: a tile of queries a program, the running softmax inside.

Each program holds BLOCK_Q queries on the chip and walks over the keys, BLOCK_K at a time: a
product of matrices for the scores, the running softmax, a product with the values. The scores
never reach memory. Tiles that a mask or the causal order hides are not visited, tiles that are
visible as a whole are not masked; so the walk has two parts, and only the second one masks.

Dao (2023), "FlashAttention-2: faster attention with better parallelism and work partitioning".
"""

import torch
import triton
import triton.language as tl

from attnbook.kernels.triton_kernels import tiles as tiling
from attnbook.kernels.triton_kernels.operands import VECTOR, launch
from attnbook.kernels.triton_kernels.tiles import head_at, head_of

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
OF_VECTOR = tl.constexpr(VECTOR)
HIDDEN = tl.constexpr(float("-inf"))
ARRAY, RANGES = tl.constexpr(tiling.ARRAY), tl.constexpr(tiling.RANGES)
MOST_HELD = tl.constexpr(tiling.MOST_HELD)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def product(x, y, PRECISION: tl.constexpr, sums=None):
    """Return the matrix product x y, added to `sums`, in float32; only "tf32" rounds float32."""
    if INTERPRETED and x.dtype == tl.bfloat16:  # which the interpreter multiplies as integers
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, sums, input_precision="tf32" if PRECISION == "tf32" else "ieee")


@triton.jit
def power(x, dtype: tl.constexpr):
    """Return e^x of scores, or of differences of them, in the unit of `dtype`.

    Half precision counts scores in units of log₂, so that the power of 2, which is the instruction
    that a GPU has, needs no factor. For float32 they are not multiplied with log₂e, which would
    round them: a row of one large score must get back a weight of exactly 1 in the backward pass.
    """
    return tl.exp2(x * LOG2E) if dtype == tl.float32 else tl.exp2(x)


@triton.jit
def tile_of(rows, head, start, BLOCK: tl.constexpr, D: tl.constexpr):
    """Load a tile (BLOCK, D) of rows of one head from row `start` on; zeros outside.

    An array that the heads along an axis share has one element there.
    """
    if hasattr(rows, "pointer"):  # `Pointers`, for a GPU without TMA
        first = head_of(rows.pointer, rows.strides, head) + rows.strides[3].to(tl.int64) * start
        row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, D)[None, :]
        there = (start + row < rows.n) & (column < rows.d)
        tile = tl.load(first + (row * rows.strides[3] + column), mask=there, other=0.0)
    else:
        a, b, g = head
        a, b = tl.minimum(a, rows.shape[0] - 1), tl.minimum(b, rows.shape[1] - 1)
        g = tl.minimum(g, rows.shape[2] - 1)
        tile = rows.load([a, b, g, start, 0]).reshape(BLOCK, D)
    return tile


@triton.jit
def factor(tile, rows, head, start, PRECISION: tl.constexpr):
    """Return a tile as a factor of a product: itself, or, of "ieee", loaded once more.

    Without the Tensor Cores the factors of a product lie in registers, which do not hold a tile
    from one product to the next. Program 0 is the only one along axis 1, which the compiler does
    not know: it would see that the tile is loaded twice.
    """
    if PRECISION == "ieee":
        tile = tile_of(rows, head, start + tl.program_id(1), tile.shape[0], tile.shape[1])
    return tile


@triton.jit
def rows_of(rows, x, sizes, head, KIND: tl.constexpr, HELD: tl.constexpr = True):
    """Return the last key that the causal order shows each row, and its rows of mask and bias.

    In place of a mask, the starts and stops of a few ranges, if they are to be `HELD`.
    """
    _, _, _, n_q, n_k = sizes
    there = tl.minimum(rows, n_q - 1).to(tl.int64)  # past the end: the last one again
    mask = head_of(x.mask, x.mask_strides, head) + there * x.mask_strides[3]
    bias = head_of(x.bias, x.bias_strides, head) + there * x.bias_strides[3]
    last_seen = rows + (n_k - n_q)  # the last query stands at the last key
    if HELD and KIND.RANGES > 0 and KIND.RANGES <= MOST_HELD:
        mask = ranges_at(mask, KIND.RANGES)
    return last_seen, mask, bias


@triton.jit
def ranges_at(places, COUNT: tl.constexpr):
    """Load 1, 2 or 4 ranges of each row: pairs of the first key and the one after the last."""
    if COUNT == 1:
        ranges = ((tl.load(places), tl.load(places + 1)),)
    else:
        HALF: tl.constexpr = COUNT // 2
        ranges = ranges_at(places, HALF) + ranges_at(places + COUNT, HALF)
    return ranges


@triton.jit
def row_of_list(lists, head, tile, KIND: tl.constexpr):
    """Return where the list of one tile begins: how many whole, how many in all, which."""
    tiles, strides = lists
    return head_of(tiles, strides, head) + tile.to(tl.int64) * strides[3] if KIND.MASK else tiles


@triton.jit
def tiles_of_keys(tiles, tile, sizes, KIND: tl.constexpr):
    """Return w and e: a tile of queries sees tiles [0, w) as a whole and tiles [w, e) in part."""
    _, _, _, n_q, n_k = sizes
    whole, end = n_k // KIND.BLOCK_K, tl.cdiv(n_k, KIND.BLOCK_K)
    if KIND.MASK:
        whole, end = tl.load(tiles), tl.load(tiles + 1)
    elif KIND.CAUSAL:
        own = tile * KIND.BLOCK_Q + (n_k - n_q)  # the last key that the first row sees
        whole = tl.maximum(tl.minimum(own + 1, n_k), 0) // KIND.BLOCK_K
        end = tl.maximum(tl.minimum(own + KIND.BLOCK_Q, n_k), 0)
        end = tl.cdiv(end, KIND.BLOCK_K)
    return whole if KIND.APART else 0, end


@triton.jit
def tile_at(i, tiles, LISTED: tl.constexpr):
    """Return the i-th tile to visit: the i-th of a list, or tile i where there is none."""
    return tl.load(tiles + i) if LISTED else i


@triton.jit
def in_ranges(columns, ranges, COUNT: tl.constexpr, HELD: tl.constexpr):
    """Say which keys are in the ranges of each row: in those held, or in those that lie there."""
    if HELD and COUNT <= MOST_HELD:
        start, stop = ranges[0]
        seen = (columns >= start) & (columns < stop)
        for k in tl.static_range(1, COUNT):
            start, stop = ranges[k]
            seen = seen | ((columns >= start) & (columns < stop))
    else:
        seen = (columns >= tl.load(ranges)) & (columns < tl.load(ranges + 1))
        for k in tl.range(1, COUNT, num_stages=1):
            start, stop = tl.load(ranges + 2 * k), tl.load(ranges + 2 * k + 1)
            seen = seen | ((columns >= start) & (columns < stop))
    return seen


@triton.jit
def scores_of(
    products,
    columns,
    x,
    n_k,
    rows,
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
    HELD: tl.constexpr = True,
):
    """Return scores from the products q · k: scaled, biased, −∞ where hidden.

    A tile lies either way: `columns`, the keys, against `rows`, of `rows_of`.
    """
    last_seen, mask, bias = rows
    there = columns < tl.cdiv(n_k, OF_VECTOR) * OF_VECTOR  # to the end of the last vector
    scores = products * x.score_scale
    if KIND.BIAS:
        places = bias + columns.to(tl.int64) * KIND.BIAS_STEP
        numbers = tl.load(places, mask=there, other=0.0)
        scores += numbers.to(tl.float32) * x.bias_scale
    if MASKED:
        seen = columns <= last_seen if KIND.CAUSAL else columns < n_k
        if KIND.MASK == ARRAY:
            places = mask + columns.to(tl.int64) * KIND.MASK_STEP
            seen = seen & (tl.load(places, mask=there, other=0) != 0)
        elif KIND.MASK == RANGES:
            seen = in_ranges(columns, mask, KIND.RANGES, HELD)
        scores = tl.where(seen, scores, HIDDEN)
    return scores


@triton.jit
def attend(
    state,  # running maximum (BLOCK_Q,), sum (BLOCK_Q,) and weighted values (BLOCK_Q, D_V)
    query,  # (BLOCK_Q, D_K), on the chip
    queries,  # where tiles of queries, keys and values are loaded from
    keys,
    values,
    head,  # of which head, and where its queries start
    query_start,
    first,  # which tiles of keys: from `first` up to `end`, of a list if LISTED
    end,
    tiles,
    x,
    n_k,
    rows,  # of the queries, (BLOCK_Q, 1): see `rows_of`
    LISTED: tl.constexpr,
    MASKED: tl.constexpr,
    KIND: tl.constexpr,
):
    """Take tiles of keys into the running softmax of a tile of queries."""
    top, total, weighted = state
    for i in tl.range(first, end):
        start = tile_at(i, tiles, LISTED) * KIND.BLOCK_K
        columns = (start + tl.arange(0, KIND.BLOCK_K))[None, :]
        key = tile_of(keys, head, start, KIND.BLOCK_K, KIND.D_K)
        query = factor(query, queries, head, query_start, KIND.PRECISION)
        scores = product(query, key.T, KIND.PRECISION)  # (BLOCK_Q, BLOCK_K)
        if MASKED or KIND.BIAS:
            scores = scores_of(scores, columns, x, n_k, rows, MASKED, KIND)
            higher = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(higher == HIDDEN, 0.0, higher)  # all hidden so far: no −∞ − −∞
            weights = power(scores - shift[:, None], query.dtype)
        else:  # the scale in the same multiply-add as the shift
            higher = tl.maximum(top, tl.max(scores, 1) * x.score_scale)
            shift = tl.where(higher == HIDDEN, 0.0, higher)
            weights = power(scores * x.score_scale - shift[:, None], query.dtype)
        fade = power(top - shift, query.dtype)
        total = total * fade + tl.sum(weights, 1)
        weighted = weighted * fade[:, None]
        value = tile_of(values, head, start, KIND.BLOCK_K, KIND.D_V)
        weighted = product(weights.to(value.dtype), value, KIND.PRECISION, weighted)
        top = higher
    return top, total, weighted


@triton.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k"])
def forward_kernel(
    queries,
    keys,
    values,
    x,
    A,
    B,
    G,
    n_q,
    n_k,
    lists,  # of tiles to visit, if there is a mask, and their strides
    output,
    log_total,
    KIND: tl.constexpr,
):
    """Attend from one tile of queries of one head."""
    sizes = A, B, G, n_q, n_k
    n_tiles = tl.cdiv(n_q, KIND.BLOCK_Q)
    place = tl.program_id(0) // n_tiles
    tile = n_tiles - 1 - tl.program_id(0) % n_tiles  # the last queries see most keys: start there
    head = head_at(place, B, G)
    rows = tile * KIND.BLOCK_Q + tl.arange(0, KIND.BLOCK_Q)
    seen = rows_of(rows[:, None], x, sizes, head, KIND)
    tiles = row_of_list(lists, head, tile, KIND)
    whole, end = tiles_of_keys(tiles, tile, sizes, KIND)
    state = empty_state(KIND.BLOCK_Q, KIND.D_V)
    start = tile * KIND.BLOCK_Q
    query = tile_of(queries, head, start, KIND.BLOCK_Q, KIND.D_K)
    for MASKED in tl.static_range(0 if KIND.APART else 1, 2):
        first, last = whole if MASKED else 0, end if MASKED else whole
        state = attend(
            *(state, query, queries, keys, values, head, start, first, last, tiles + 2),
            *(x, n_k, seen, KIND.MASK, MASKED, KIND),
        )
    places = place.to(tl.int64) * n_q + rows
    finish(state, output, log_total, places, rows < n_q, x.d_v)


@triton.jit
def empty_state(BLOCK_Q: tl.constexpr, D_V: tl.constexpr):
    """Return the running softmax over no key."""
    top = tl.full((BLOCK_Q,), HIDDEN, tl.float32)
    return top, tl.zeros((BLOCK_Q,), tl.float32), zeros(BLOCK_Q, D_V)


@triton.jit
def zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a tile of zeros, of sizes that stand in a `Kind`: `tl.zeros` does not take these."""
    return tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit
def store_rows(array, places, rows, there, d):
    """Store those rows that are there, of `d` numbers, at `places` of an array."""
    columns = tl.arange(0, rows.shape[1])[None, :]
    inside = there[:, None] & (columns < d)
    tl.store(array + places[:, None] * d + columns, rows.to(array.dtype.element_ty), mask=inside)


@triton.jit
def finish(state, output, log_total, places, there, d_v):
    """Divide by the totals and store the rows at `places`; rows that saw no key are 0."""
    top, total, weighted = state
    total = tl.where(total == 0.0, 1.0, total)  # log₂ 1 = 0, and `top` is −∞
    store_rows(output, places, weighted / total[:, None], there, d_v)
    if output.dtype.element_ty != tl.float32:
        top = top * LN2  # from the unit of half precision
    tl.store(log_total + places, top + tl.log2(total) * LN2, mask=there)


def forward(x, tile=None):
    """Return the output and log Σ exp(score) of `Operands` none of whose sizes is 0."""
    tile = tile or tiling.tile_for(x, "forward")
    results = x.empty(x.n_q, x.d_v, x.query.dtype), x.empty(x.n_q, 1, torch.float32)
    kind, options = tiling.options(x, tile)
    arguments = (*x.rows(kind), x.call, *x.sizes, tiling.tiles_to_visit(x, tile), *results, kind)
    programs = x.heads * tiling.cdiv(x.n_q, tile.block_q)
    launch(forward_kernel, programs, x.query.device, *arguments, **options)
    return results
