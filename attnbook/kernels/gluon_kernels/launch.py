"""The Gluon kernel from the host: how arrays are described, and how a program divides its work."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbook.kernels.gluon_kernels.blocks import Kind
from attnbook.kernels.gluon_kernels.forward import forward_kernel
from attnbook.kernels.triton_kernels.operands import launch
from attnbook.kernels.triton_kernels.tiles import processors_of


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


class Rows(TensorDescriptor):
    """A description of rows; what it would check, `operands` has seen to, once a layout."""

    def __post_init__(self):
        pass


def described(x, shape, strides, rows):
    """Return a description of tiles of `rows` rows of an array."""
    block = (*(1,) * (len(shape) - 2), rows, shape[-1])
    return Rows(x, shape, strides, block, layout_on_chip(block, x.dtype))


@lru_cache
def layout_on_chip(block, dtype):
    """Return how the copy engine lays a tile into shared memory."""
    number = gl.float16 if dtype == torch.float16 else gl.bfloat16
    return gl.NVMMASharedLayout.get_default_for(block, number)


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
    programs = programs or processors_of(device)
    output, log_total = x.empty(x.n_q, x.d_v, x.query.dtype), x.empty(x.n_q, 1, torch.float32)
    given = zip(x.arrays[:3], x.layout.rows, (tile.rows, tile.block_k, tile.block_k), strict=True)
    tiles = [described(array, shape, step, rows) for array, (shape, step), rows in given]
    shape, step = (x.heads, x.n_q, x.d_v), (x.n_q * x.d_v, x.d_v, 1)
    tiles.append(described(output, shape, step, tile.rows))
    kind = (x.d_k, tile.rows, tile.block_k, tile.consumers, tile.stages, x.is_causal)
    blocks = x.heads * -(-x.n_q // (tile.rows * tile.consumers))
    warpgroups = tile.consumers + 1  # the producer, one warp, counts as a whole one
    launch(
        *(forward_kernel, min(programs, blocks), device),
        *(*tiles, log_total, *x.sizes, section_of(x), x.scale * math.log2(math.e)),
        KIND=Kind(*kind, tile.registers),
        num_warps=4,
        maxnreg=REGISTERS // (WARPGROUP * warpgroups) // 8 * 8,
    )
    return output, log_total
