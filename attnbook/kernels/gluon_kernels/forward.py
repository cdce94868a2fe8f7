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

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbook.kernels.triton_kernels.operands import MAX_WIDTH

LN2 = gl.constexpr(0.6931471805599453)
HIDDEN = gl.constexpr(float("-inf"))
LOWEST = gl.constexpr(-3.4028234663852886e38)  # of all float32
PRODUCER_REGISTERS = gl.constexpr(24)


class Sizes(NamedTuple):
    """Of the arrays, (A, B, G, n, d), and how many heads are worked on at a time."""

    A: Any
    B: Any
    G: Any
    n_q: Any
    n_k: Any
    section: Any


class Kind(NamedTuple):
    """What the kernel is compiled for."""

    D: int  # width of the rows
    ROWS: int  # queries of a consumer
    BLOCK_K: int  # keys of a tile
    CONSUMERS: int
    STAGES: int
    CAUSAL: bool
    REGISTERS: int  # of a thread of a consumer


class Queries(NamedTuple):
    """A buffer for each consumer, which its output takes over, and their barriers."""

    buffer: Any
    full: Any
    empty: Any


class Ring(NamedTuple):
    """The stages: buffers for a tile of keys and one of values, and their barriers."""

    k: Any
    v: Any
    full: Any
    empty: Any


class Stage(NamedTuple):
    """A place in the ring: parity of the turn, which stage, parity of its phase."""

    turn: Any
    slot: Any
    phase: Any


@gluon.jit
def place_in(turn):
    """Return the place of this program in a round: to and fro, as early blocks see more keys."""
    program = gl.program_id(0)
    return gl.where(turn % 2 == 0, program, gl.num_programs(0) - 1 - program)


@gluon.jit
def rounds_of(x, KIND: gl.constexpr):
    """Return how many blocks of queries this program takes."""
    programs = gl.num_programs(0)
    blocks = x.A * x.B * x.G * gl.cdiv(x.n_q, KIND.CONSUMERS * KIND.ROWS)
    rounds = blocks // programs
    return gl.where(place_in(rounds) < blocks - rounds * programs, rounds + 1, rounds)


@gluon.jit
def block_of(turn, x, KIND: gl.constexpr):
    """Return the head, by number and by its three axes, and the first row of a block of queries.

    Heads are taken in sections whose keys and values fit in the cache of the device, and within a
    section those blocks come first that see most keys.
    """
    blocks = gl.cdiv(x.n_q, KIND.CONSUMERS * KIND.ROWS)
    t = turn * gl.num_programs(0) + place_in(turn)
    first = t // (x.section * blocks) * x.section
    rest = t - first * blocks
    here = gl.minimum(x.section, x.A * x.B * x.G - first)
    head = first + rest % here
    row = (blocks - 1 - rest // here) * (KIND.CONSUMERS * KIND.ROWS)
    return head, (head // (x.B * x.G), head // x.G % x.B, head % x.G), row


@gluon.jit
def tiles_of_keys(row, ROWS: gl.constexpr, x, KIND: gl.constexpr):
    """Return how many tiles of keys ROWS rows visit, at least 1, and how many they see whole."""
    whole = x.n_k
    end = x.n_k
    if KIND.CAUSAL:
        own = row + (x.n_k - x.n_q)  # the last key that the first row sees
        whole = gl.minimum(gl.maximum(own + 1, 0), x.n_k)
        end = gl.minimum(gl.maximum(own + ROWS, 0), x.n_k)
    return gl.maximum(gl.cdiv(end, KIND.BLOCK_K), 1), whole // KIND.BLOCK_K


@gluon.jit
def following(at, KIND: gl.constexpr):
    """Return the next place in the ring."""
    slot = at.slot + 1
    wraps = slot == KIND.STAGES
    return Stage(at.turn ^ 1, gl.where(wraps, 0, slot), gl.where(wraps, at.phase ^ 1, at.phase))


@gluon.jit
def bring(descriptor, head, moves, row, barrier, buffer):
    """Let the copy engine load rows of one head; `moves` is 0 along an axis that the array lacks."""
    place = [head[0] * moves[0], head[1] * moves[1], head[2] * moves[2], row, 0]
    tma.async_copy_global_to_shared(descriptor, place, barrier, buffer)


@gluon.jit
def fill(
    at,
    tile,
    head,
    moves,
    keys,
    values,
    ring,
    HAS_K: gl.constexpr,
    HAS_V: gl.constexpr,
    KIND: gl.constexpr,
):
    """Bring the keys of a tile and the values of the tile after it into a stage, once it is empty."""
    full = ring.full.index(at.slot)
    mbarrier.wait(ring.empty.index(at.slot), at.phase ^ 1)
    mbarrier.expect(full, keys.block_type.nbytes * HAS_K + values.block_type.nbytes * HAS_V)
    if HAS_K:
        bring(keys, head, moves[1], tile * KIND.BLOCK_K, full, ring.k.index(at.slot))
    if HAS_V:
        bring(values, head, moves[2], (tile + 1) * KIND.BLOCK_K, full, ring.v.index(at.slot))
    return following(at, KIND)


@gluon.jit
def produce(queries, keys, values, moves, own, ring, x, KIND: gl.constexpr):
    """Bring the queries, keys and values of all blocks of this program."""
    ROWS: gl.constexpr = KIND.ROWS
    CONSUMERS: gl.constexpr = KIND.CONSUMERS
    at = Stage(0, 0, 0)
    for turn in range(rounds_of(x, KIND)):
        number, head, row = block_of(turn, x, KIND)
        n_tiles, whole = tiles_of_keys(row, CONSUMERS * ROWS, x, KIND)
        at = fill(at, n_tiles - 1, head, moves, keys, values, ring, True, False, KIND)
        for w in gl.static_range(CONSUMERS):
            mbarrier.wait(own.empty.index(w), (turn & 1) ^ 1)
            mbarrier.expect(own.full.index(w), queries.block_type.nbytes)
            bring(
                *(queries, head, moves[0], row + ROWS * w),
                *(own.full.index(w), own.buffer.index(w)),
            )
        for p in range(1, n_tiles):
            tile = n_tiles - 1 - p
            at = fill(at, tile, head, moves, keys, values, ring, True, True, KIND)
        at = fill(at, -1, head, moves, keys, values, ring, False, True, KIND)


@gluon.jit
def take_turn(turns, at, W: gl.constexpr):
    """Wait until it is the turn of consumer W to multiply; number 0 begins."""
    mbarrier.wait(turns.index(W), at.turn)


@gluon.jit
def pass_turn(turns, W: gl.constexpr, KIND: gl.constexpr):
    """Let the next consumer multiply."""
    mbarrier.arrive(turns.index((W + 1) % KIND.CONSUMERS), count=1)


@gluon.jit
def mask(products, start, row, x, CAUSAL: gl.constexpr):
    """Hide the keys of a tile behind the last one that each row sees."""
    LAYOUT: gl.constexpr = products.type.layout
    columns = gl.arange(0, products.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    if CAUSAL:  # the last query stands at the last key
        index = gl.arange(0, products.shape[0], layout=gl.SliceLayout(1, LAYOUT))
        seen = (columns + (start - row - (x.n_k - x.n_q)))[None, :] <= index[:, None]
    else:
        seen = (columns + start)[None, :] < x.n_k
    return gl.where(seen, products, HIDDEN)


@gluon.jit
def soften(products, top, scale):
    """Return weights of a tile of products q · k, the new maximum, and the fade of what was before.

    A row that has seen no key keeps the maximum −∞, and LOWEST is subtracted: no −∞ − −∞.
    """
    higher = gl.maximum(top, gl.max(products, 1) * scale)
    shift = gl.maximum(higher, LOWEST)
    return gl.exp2(products * scale - shift[:, None]), higher, gl.exp2(top - shift)


@gluon.jit
def part_sums(weights):
    """Return four sums a row, (ROWS, 4): each thread adds the numbers that it holds, two in eight."""
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
    masked,
    n_tiles,
    query,
    ring,
    turns,
    scale,
    row,
    x,
    nothing,
    W: gl.constexpr,
    KIND: gl.constexpr,
):
    """Take the keys of stages 1 … n_tiles − 1 into the running softmax of a consumer."""
    top, total, sums, weights = state
    for p in range(1, n_tiles):
        take_turn(turns, at, W)
        asked = warpgroup_mma(query, keys_of(ring, at, KIND), nothing, use_acc=False, is_async=True)
        summed = warpgroup_mma(weights, values_of(ring, at, KIND), sums, is_async=True)
        pass_turn(turns, W, KIND)
        products, summed = warpgroup_mma_wait(1, [asked, summed])
        if KIND.CAUSAL:
            if p < masked:
                products = mask(products, (n_tiles - 1 - p) * KIND.BLOCK_K, row, x, True)
        fresh, top, fade = soften(products, top, scale)
        PARTS: gl.constexpr = gl.SliceLayout(1, total.type.layout)
        total = total * gl.convert_layout(fade, PARTS)[:, None] + part_sums(fresh)
        after = following(at, KIND)
        mbarrier.wait(ring.full.index(after.slot), after.phase)
        sums = warpgroup_mma_wait(0, [summed])
        mbarrier.arrive(ring.empty.index(at.slot), count=1)
        sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, sums.type.layout))[:, None]
        weights = factor_of(fresh, sums, ring)
        at = after
    return (top, total, sums, weights), at


@gluon.jit
def consume(outputs, log_total, own, ring, turns, scale, x, W: gl.constexpr, KIND: gl.constexpr):
    """Attend from ROWS queries of each block of this program."""
    ROWS: gl.constexpr = KIND.ROWS
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KIND.BLOCK_K, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KIND.D, 16])
    BY_ROW: gl.constexpr = gl.SliceLayout(1, S)
    nothing = gl.full([ROWS, KIND.BLOCK_K], 0.0, gl.float32, S)
    query = own.buffer.index(W).reshape([ROWS, KIND.D])
    at = Stage(1 if W == 0 else 0, 0, 0)
    for turn in range(rounds_of(x, KIND)):
        number, head, row = block_of(turn, x, KIND)
        n_tiles, whole = tiles_of_keys(row, KIND.CONSUMERS * ROWS, x, KIND)
        row += ROWS * W
        own_tiles, whole = tiles_of_keys(row, ROWS, x, KIND)
        mbarrier.wait(own.full.index(W), turn & 1)
        mbarrier.wait(ring.full.index(at.slot), at.phase)
        take_turn(turns, at, W)
        asked = warpgroup_mma(query, keys_of(ring, at, KIND), nothing, use_acc=False, is_async=True)
        pass_turn(turns, W, KIND)
        products = warpgroup_mma_wait(0, [asked])
        mbarrier.arrive(ring.empty.index(at.slot), count=1)
        top = gl.full([ROWS], HIDDEN, gl.float32, BY_ROW)
        products = mask(products, (n_tiles - 1) * KIND.BLOCK_K, row, x, KIND.CAUSAL)
        fresh, top, fade = soften(products, top, scale)
        total = part_sums(fresh)
        sums = gl.full([ROWS, KIND.D], 0.0, gl.float32, O)
        at = following(at, KIND)
        mbarrier.wait(ring.full.index(at.slot), at.phase)
        weights = factor_of(fresh, sums, ring)
        state, at = attend(
            *((top, total, sums, weights), at, n_tiles - whole, n_tiles, query, ring, turns, scale),
            *(row, x, nothing, W, KIND),
        )
        top, total, sums, weights = state
        take_turn(turns, at, W)
        summed = warpgroup_mma(weights, values_of(ring, at, KIND), sums, is_async=True)
        pass_turn(turns, W, KIND)
        total = gl.convert_layout(gl.sum(total, 1), BY_ROW)
        total = gl.where(total == 0.0, 1.0, total)  # a row that saw no key: log₂ 1 = 0, top is −∞
        rows = row + gl.arange(0, ROWS, layout=BY_ROW)
        logs = (top + gl.log2(total)) * LN2
        gl.store(log_total + gl.cast(number, gl.int64) * x.n_q + rows, logs, mask=rows < x.n_q)
        sums = warpgroup_mma_wait(0, [summed])
        mbarrier.arrive(ring.empty.index(at.slot), count=1)
        at = following(at, KIND)
        sums = sums * gl.convert_layout(1.0 / total, gl.SliceLayout(1, O))[:, None]
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


@gluon.jit(do_not_specialize=["sizes"])
def forward_kernel(
    queries, keys, values, outputs, log_total, sizes, moves, scale, KIND: gl.constexpr
):
    """Divide the work between a producer and CONSUMERS consumers."""
    CONSUMERS: gl.constexpr = KIND.CONSUMERS
    STAGES: gl.constexpr = KIND.STAGES
    own = Queries(
        gl.allocate_shared_memory(
            queries.dtype, [CONSUMERS] + queries.block_type.shape, queries.layout
        ),
        barriers(CONSUMERS),
        barriers(CONSUMERS),
    )
    ring = Ring(
        gl.allocate_shared_memory(keys.dtype, [STAGES] + keys.block_type.shape, keys.layout),
        gl.allocate_shared_memory(values.dtype, [STAGES] + values.block_type.shape, values.layout),
        barriers(STAGES),
        barriers(STAGES),
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
                (produce, (queries, keys, values, moves, own, ring, sizes, KIND)),
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
                (produce, (queries, keys, values, moves, own, ring, sizes, KIND)),
            ],
            [4, 4, 1],
            [KIND.REGISTERS, KIND.REGISTERS, PRODUCER_REGISTERS],
        )


# On the host.


@dataclass(frozen=True)
class Tile:
    """How a program divides its work, see `Kind`."""

    consumers: int
    block_k: int
    stages: int
    registers: int
    rows: int = 64


TILES = {64: Tile(3, 128, 4, 160), 128: Tile(2, 128, 3, 240)}
"""By the width of the rows. All registers and nearly all memory of a multiprocessor are in use."""

REGISTERS, WARPGROUP = 65536, 128
"""Registers of a multiprocessor, and threads of a warpgroup."""

CACHE = 2**25
"""Bytes of keys and values that may be in use at a time: most of the cache of the device."""


def descriptor(x, rows):
    """Return how tiles of an (A, B, G, n, d) array are copied, and along which axes it extends.

    An axis along which the array repeats itself counts as one, since the copy engine knows no
    stride of 0; what stands for a stride that nobody reads is a multiple of 16 bytes.
    """
    steps = [step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True)]
    moves = tuple(int(step > 0) for step in steps[:3])
    shape = [size if step else 1 for size, step in zip(x.shape[:3], steps[:3], strict=True)]
    strides = [step or MAX_WIDTH for step in steps[:4]]
    return described(x, [*shape, *x.shape[3:]], [*strides, 1], rows), moves


def described(x, shape, strides, rows):
    """Return a descriptor of tiles of `rows` rows."""
    block = [1] * (len(shape) - 2) + [rows, shape[-1]]
    dtype = gl.float16 if x.dtype == torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(x, shape, strides, block, layout)


def section_of(x):
    """Return how many heads are worked on at a time, so that their keys and values stay cached.

    One where every block takes equally long, for then no block needs to come early.
    """
    if not x.is_causal:
        return 1
    at_once = CACHE // (2 * x.n_k * x.d_k * x.key.element_size())
    return min(x.heads, max(at_once, 1) * x.n_shared)


def forward(x, tile=None, programs=None):
    """Return the output and log Σ exp(score) of `Operands`: no size 0, and a scale above 0.

    `programs` says how many run at a time: one on each multiprocessor.
    """
    tile, device = tile or TILES[x.d_k], x.query.device
    if programs is None:
        programs = torch.cuda.get_device_properties(device).multi_processor_count
    output, log_total = x.empty(x.n_q, x.d_v, x.query.dtype), x.empty(x.n_q, 1, torch.float32)
    arrays = (x.query, tile.rows), (x.key, tile.block_k), (x.value, tile.block_k)
    descriptors, moves = zip(*(descriptor(*each) for each in arrays), strict=True)
    rows = output.view(x.heads, x.n_q, x.d_v)
    made = described(rows, list(rows.shape), list(rows.stride()), tile.rows), log_total
    sizes = Sizes(*x.query.shape[:4], x.n_k, section_of(x))
    kind = (x.d_k, tile.rows, tile.block_k, tile.consumers, tile.stages, x.is_causal)
    blocks = x.heads * -(-x.n_q // (tile.rows * tile.consumers))
    warpgroups = tile.consumers + 1  # the producer, one warp, counts as a whole one
    with nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        forward_kernel[(min(programs, blocks),)](
            *(*descriptors, *made, sizes, moves, x.scale * math.log2(math.e)),
            KIND=Kind(*kind, tile.registers),
            num_warps=4,
            maxnreg=REGISTERS // (WARPGROUP * warpgroups) // 8 * 8,
        )
    return output, log_total
