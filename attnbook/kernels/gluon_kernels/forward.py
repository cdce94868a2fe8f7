"""The forward pass with a division of labour: one warp copies, two or three groups compute.

A program holds CONSUMERS · 64 queries. Its *producer*, one warp, tells the copy engine to bring
tiles of keys and values into a ring of STAGES stages; each *consumer*, a warpgroup of four warps,
walks over them with 64 queries of its own. As many programs are launched as there are
multiprocessors, and each takes block after block of queries, so that the copies for the next block
run while the last one is finished.

Stage p of a block holds keys of tile p and values of tile p − 1, tiles counted from the end of the
keys: the scores of a tile and the product of the tile before with its values are asked for
together, and while the second one runs, the first is made into weights. The stages of n tiles are
0 … n; stage 0 has no values, and stage n has no keys.

    producer    wait EMPTY[s]; copy keys p, values p − 1 → FULL[s]; next s
    consumer w  wait TURN[w]; ask for scores p and values p − 1; arrive TURN[w + 1]
                wait for the scores; running softmax; wait FULL[next s]
                wait for the values; arrive EMPTY[s]; fade the sums; next s

TURN makes the consumers multiply one after the other, so that one computes exponentials while
another has the matrix units. The wait for the next stage stands between the softmax and the wait
for the values because the assembler, ptxas, moves no arithmetic across it. Without it the softmax
would be moved below the second wait, and the two would not overlap.

A barrier counts phases. `wait(barrier, parity)` returns once the phase of that parity is over; of
a new barrier that is true for parity 1, so that who waits for something to be free begins with 1.

Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao (2024), "FlashAttention-3: fast and accurate attention
with asynchrony and low-precision".
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbook.kernels.gluon_kernels.blocks import (
    Sizes,
    block_of,
    rounds_of,
    tiles_of_keys,
)
from attnbook.kernels.gluon_kernels.stages import (
    Queries,
    Ring,
    Stage,
    following,
    leave,
    pass_turn,
    produce,
    take_turn,
)

LN2 = gl.constexpr(0.6931471805599453)
HIDDEN = gl.constexpr(float("-inf"))
LOWEST = gl.constexpr(-3.4028234663852886e38)  # of all float32
PRODUCER_REGISTERS = gl.constexpr(24)


@gluon.jit
def mask(products, last, CAUSAL: gl.constexpr):
    """Hide the keys of a tile after number `last`; if CAUSAL, after number `last` + r from row r.

    A thread holds two columns of every eight, so that `eights` are constants of the code, and what
    they are compared with is two numbers a row. A number for each column would fill the registers.
    """
    LAYOUT: gl.constexpr = products.type.layout
    columns = gl.arange(0, products.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    within = columns % 8
    eights = (columns - within)[None, :]
    if CAUSAL:
        rows = gl.arange(0, products.shape[0], layout=gl.SliceLayout(1, LAYOUT))
        seen = eights <= (rows + last)[:, None] - within[None, :]
    else:
        seen = eights <= (last - within)[None, :]
    return gl.where(seen, products, HIDDEN)


@gluon.jit
def soften(products, top, scale):
    """Return weights of a tile of products q · k, the new maximum, and the fade of what was before.

    A row that has seen no key has the maximum LOWEST, not −∞: no −∞ − −∞.
    """
    higher = gl.maximum(top, gl.max(products, 1) * scale)
    return gl.exp2(products * scale - higher[:, None]), higher, gl.exp2(top - higher)


@gluon.jit
def part_sums(weights):
    """Return four sums a row, (ROWS, 4): a thread adds what it holds, two numbers in eight."""
    ROWS: gl.constexpr = weights.shape[0]
    parts = weights.reshape([ROWS, weights.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(parts, 3), 1)


@gluon.jit
def keys_of(ring, at, KIND: gl.constexpr):
    """Return the keys of a stage, transposed, (D, BLOCK_K)."""
    return ring.k.index(at.slot).reshape([KIND.BLOCK_K, KIND.D]).permute((1, 0))


@gluon.jit
def values_of(ring, at, KIND: gl.constexpr):
    """Return the values of a stage, (BLOCK_K, D)."""
    return ring.v.index(at.slot).reshape([KIND.BLOCK_K, KIND.D])


@gluon.jit
def factor_of(weights, sums, ring):
    """Return weights as the left factor of their product with the values."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, sums.type.layout, 2)
    return gl.convert_layout(weights.to(ring.v.dtype), LEFT)


@gluon.jit
def attend(
    state,
    at,
    n_tiles,
    last,
    query,
    ring,
    turns,
    scale,
    nothing,
    W: gl.constexpr,
    KIND: gl.constexpr,
):
    """Take the tiles of keys but the last into the running softmax of a consumer.

    `last` is the last key that the first row sees. The tiles are counted by where they begin, down
    to 0, and whether to mask by comparing that: of the ways to write it, the compiler makes the
    shortest loop of this one.
    """
    top, total, sums, weights = state
    start = (n_tiles - 2) * KIND.BLOCK_K
    whole = last - (KIND.BLOCK_K - 1)  # tiles that begin after it are not seen as a whole
    while start >= 0:
        take_turn(turns, at, W)
        asked = warpgroup_mma(query, keys_of(ring, at, KIND), nothing, use_acc=False, is_async=True)
        summed = warpgroup_mma(weights, values_of(ring, at, KIND), sums, is_async=True)
        pass_turn(turns, W, KIND)
        products, summed = warpgroup_mma_wait(1, [asked, summed])
        if KIND.CAUSAL:  # noqa: SIM102 - this the compiler knows, and the next it does not
            if start > whole:
                products = mask(products, last - start, True)
        fresh, top, fade = soften(products, top, scale)
        PARTS: gl.constexpr = gl.SliceLayout(1, total.type.layout)
        total = total * gl.convert_layout(fade, PARTS)[:, None] + part_sums(fresh)
        after = following(at, KIND)
        mbarrier.wait(ring.full.index(after.slot), after.phase)
        sums = warpgroup_mma_wait(0, [summed])
        leave(ring, after)
        sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, sums.type.layout))[:, None]
        weights = factor_of(fresh, sums, ring)
        at = after
        start -= KIND.BLOCK_K
    return (top, total, sums, weights), at


@gluon.jit
def consume(outputs, log_total, own, ring, turns, scale, x, W: gl.constexpr, KIND: gl.constexpr):
    """Attend from ROWS queries of each block of this program."""
    ROWS: gl.constexpr = KIND.ROWS
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KIND.BLOCK_K, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KIND.D, 16])
    BY_ROW: gl.constexpr = gl.SliceLayout(1, S)
    nothing = gl.full([ROWS, KIND.BLOCK_K], 0.0, gl.float32, S)
    query = own.buffer.index(W).reshape([ROWS, KIND.D])
    at = Stage(1 if W == 0 else 0, 0, 0)
    for turn in range(rounds_of(x, KIND)):
        number, _head, row = block_of(turn, x, KIND)
        n_tiles = tiles_of_keys(row, x, KIND)
        row += ROWS * W
        last = x.n_k - 1
        if KIND.CAUSAL:  # the last query stands at the last key
            last = row + (x.n_k - x.n_q)
        mbarrier.wait(own.full.index(W), turn & 1)
        mbarrier.wait(ring.full.index(at.slot), at.phase)
        take_turn(turns, at, W)
        asked = warpgroup_mma(query, keys_of(ring, at, KIND), nothing, use_acc=False, is_async=True)
        pass_turn(turns, W, KIND)
        products = warpgroup_mma_wait(0, [asked])
        at = following(at, KIND)
        leave(ring, at)
        top = gl.full([ROWS], LOWEST, gl.float32, BY_ROW)
        products = mask(products, last - (n_tiles - 1) * KIND.BLOCK_K, KIND.CAUSAL)
        fresh, top, _fade = soften(products, top, scale)
        total = part_sums(fresh)
        sums = gl.full([ROWS, KIND.D], 0.0, gl.float32, SUMS)
        mbarrier.wait(ring.full.index(at.slot), at.phase)
        weights = factor_of(fresh, sums, ring)
        state, at = attend(
            *((top, total, sums, weights), at, n_tiles, last, query, ring, turns, scale, nothing),
            *(W, KIND),
        )
        top, total, sums, weights = state
        take_turn(turns, at, W)
        summed = warpgroup_mma(weights, values_of(ring, at, KIND), sums, is_async=True)
        pass_turn(turns, W, KIND)
        total = gl.convert_layout(gl.sum(total, 1), BY_ROW)
        logs = (top + gl.log2(total)) * LN2  # log₂ 0 = −∞ of a row that saw no key
        total = gl.where(total == 0.0, 1.0, total)
        rows = row + gl.arange(0, ROWS, layout=BY_ROW)
        gl.store(log_total + gl.cast(number, gl.int64) * x.n_q + rows, logs, mask=rows < x.n_q)
        sums = warpgroup_mma_wait(0, [summed])
        at = following(at, KIND)
        leave(ring, at)
        sums = sums * gl.convert_layout(1.0 / total, gl.SliceLayout(1, SUMS))[:, None]
        query.store(sums.to(outputs.dtype))
        fence_async_shared()
        tile = own.buffer.index(W).reshape([1, ROWS, KIND.D])
        tma.async_copy_shared_to_global(outputs, [number, row, 0], tile)
        tma.store_wait(0)
        mbarrier.arrive(own.empty.index(W), count=1)


@gluon.jit
def barriers(NUMBER: gl.constexpr):
    """Return room for barriers."""
    return gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())


@gluon.jit
def buffers(tiles, NUMBER: gl.constexpr):
    """Return room for tiles."""
    shape: gl.constexpr = [NUMBER] + tiles.block_type.shape  # noqa: RUF005 - Gluon wants a sum
    return gl.allocate_shared_memory(tiles.dtype, shape, tiles.layout)


@gluon.jit(do_not_specialize=["A", "B", "G", "n_q", "n_k", "section"])
def forward_kernel(
    queries,
    keys,
    values,
    outputs,
    log_total,
    A,
    B,
    G,
    n_q,
    n_k,
    section,
    scale,
    KIND: gl.constexpr,
):
    """Divide the work between a producer and CONSUMERS consumers."""
    sizes = Sizes(A, B, G, n_q, n_k, section)
    CONSUMERS: gl.constexpr = KIND.CONSUMERS
    STAGES: gl.constexpr = KIND.STAGES
    own = Queries(buffers(queries, CONSUMERS), barriers(CONSUMERS), barriers(CONSUMERS))
    ring = Ring(
        *(buffers(keys, STAGES), buffers(values, STAGES)),
        *(barriers(STAGES), barriers(STAGES)),
    )
    turns = barriers(CONSUMERS)
    for w in gl.static_range(CONSUMERS):
        mbarrier.init(own.full.index(w), count=1)
        mbarrier.init(own.empty.index(w), count=1)
        mbarrier.init(turns.index(w), count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(ring.full.index(s), count=1)
        mbarrier.init(ring.empty.index(s), count=CONSUMERS)
    fence_async_shared()
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (outputs, log_total, own, ring, turns, scale, sizes, 0, KIND)),
                (consume, (outputs, log_total, own, ring, turns, scale, sizes, 1, KIND)),
                (produce, (queries, keys, values, own, ring, sizes, KIND)),
            ],
            [4, 1],
            [KIND.REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (outputs, log_total, own, ring, turns, scale, sizes, 0, KIND)),
                (consume, (outputs, log_total, own, ring, turns, scale, sizes, 1, KIND)),
                (consume, (outputs, log_total, own, ring, turns, scale, sizes, 2, KIND)),
                (produce, (queries, keys, values, own, ring, sizes, KIND)),
            ],
            [4, 4, 1],
            [KIND.REGISTERS, KIND.REGISTERS, PRODUCER_REGISTERS],
        )
