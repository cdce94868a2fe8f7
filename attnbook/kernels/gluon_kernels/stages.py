"""The ring of stages between the copies and the products: who fills it, and whose turn it is."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attnbook.kernels.gluon_kernels.blocks import block_of, rounds_of, tiles_of_keys


class Queries(NamedTuple):
    """A buffer for each consumer, which its output takes over, and their barriers."""

    buffer: Any
    full: Any
    empty: Any


class Ring(NamedTuple):
    """The stages: buffers for a tile of keys and one of values, and their barriers.

    Whether a stage is empty stands at the place after its own in `empty`: a consumer leaves a stage
    when it has just found the next one, and need not compute a second address.
    """

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
def following(at, KIND: gl.constexpr):
    """Return the next place in the ring."""
    slot = at.slot + 1
    wraps = slot == KIND.STAGES
    return Stage(at.turn ^ 1, gl.where(wraps, 0, slot), gl.where(wraps, at.phase ^ 1, at.phase))


@gluon.jit
def bring(rows, head, row, barrier, buffer):
    """Let the copy engine load rows of one head.

    An array that the heads along an axis share has one element there.
    """
    a = gl.minimum(head[0], rows.shape[0] - 1)
    b = gl.minimum(head[1], rows.shape[1] - 1)
    g = gl.minimum(head[2], rows.shape[2] - 1)
    tma.async_copy_global_to_shared(rows, [a, b, g, row, 0], barrier, buffer)


@gluon.jit
def fill(
    at,
    tile,
    head,
    keys,
    values,
    ring,
    HAS_K: gl.constexpr,
    HAS_V: gl.constexpr,
    KIND: gl.constexpr,
):
    """Bring keys of a tile and values of the one after it into a stage, once it is empty."""
    full = ring.full.index(at.slot)
    after = following(at, KIND)
    mbarrier.wait(ring.empty.index(after.slot), at.phase ^ 1)  # see `Ring`
    mbarrier.expect(full, keys.block_type.nbytes * HAS_K + values.block_type.nbytes * HAS_V)
    if HAS_K:
        bring(keys, head, tile * KIND.BLOCK_K, full, ring.k.index(at.slot))
    if HAS_V:
        bring(values, head, (tile + 1) * KIND.BLOCK_K, full, ring.v.index(at.slot))
    return after


@gluon.jit
def produce(queries, keys, values, own, ring, x, KIND: gl.constexpr):
    """Bring the queries, keys and values of all blocks of this program."""
    ROWS: gl.constexpr = KIND.ROWS
    CONSUMERS: gl.constexpr = KIND.CONSUMERS
    at = Stage(0, 0, 0)
    for turn in range(rounds_of(x, KIND)):
        _number, head, row = block_of(turn, x, KIND)
        n_tiles = tiles_of_keys(row, x, KIND)
        at = fill(at, n_tiles - 1, head, keys, values, ring, True, False, KIND)
        for w in gl.static_range(CONSUMERS):
            mbarrier.wait(own.empty.index(w), (turn & 1) ^ 1)
            mbarrier.expect(own.full.index(w), queries.block_type.nbytes)
            bring(queries, head, row + ROWS * w, own.full.index(w), own.buffer.index(w))
        for p in range(1, n_tiles):
            tile = n_tiles - 1 - p
            at = fill(at, tile, head, keys, values, ring, True, True, KIND)
        at = fill(at, -1, head, keys, values, ring, False, True, KIND)


@gluon.jit
def leave(ring, after):
    """Let the producer fill the stage before `after` once all consumers have left it."""
    mbarrier.arrive(ring.empty.index(after.slot), count=1)


@gluon.jit
def take_turn(turns, at, W: gl.constexpr):
    """Wait until it is the turn of consumer W to multiply; number 0 begins."""
    mbarrier.wait(turns.index(W), at.turn)


@gluon.jit
def pass_turn(turns, W: gl.constexpr, KIND: gl.constexpr):
    """Let the next consumer multiply."""
    mbarrier.arrive(turns.index((W + 1) % KIND.CONSUMERS), count=1)
