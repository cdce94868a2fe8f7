"""Which queries a program of the Gluon kernel takes, and which keys they see."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
def tiles_of_keys(row, x, KIND: gl.constexpr):
    """Return how many tiles of keys the block of queries from `row` on visits, at least 1."""
    end = x.n_k
    if KIND.CAUSAL:
        own = row + (x.n_k - x.n_q)  # the last key that the first row sees
        end = gl.minimum(gl.maximum(own + KIND.CONSUMERS * KIND.ROWS, 0), x.n_k)
    return gl.maximum(gl.cdiv(end, KIND.BLOCK_K), 1)
