"""The sizes of the tiles of the Triton kernels, for each generation of GPUs.

They were chosen by the machine code that the compiler makes of them, without a GPU:
`python tests/kernels/triton_sass.py` prints it. No kernel **spills**, which means that no register
is kept in memory, and each fits into the shared memory of one block. Three generations differ:

- sm_90 (Hopper) multiplies matrices that lie in shared memory, by **wgmma**. Up to a width of 64,
  128 registers per thread let two programs of 8 warps run on one multiprocessor: while one takes
  exponentials, the other multiplies matrices. Wider tiles under that limit would wait for each
  product, so there the two halves of one program take turns.
- sm_100 (Blackwell in data centres) keeps the sums of products in a memory of their own.
- sm_80, 86, 89 and 120 (Ampere, Ada, and the Blackwell of graphics cards) multiply matrices that
  lie in registers, by **mma.sync**. Their tiles fit into the 99 KiB of shared memory that a block
  has on sm_86, 89 and 120; sm_80 has 163.

A capability that no table names takes that of mma.sync, whose instruction all of them have.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from attnbook.kernels.triton_kernels.operands import capability_of


class Tile(NamedTuple):
    """How many queries and keys a program holds, by how many warps, and how far it reads ahead."""

    block_q: int
    block_k: int
    warps: int
    stages: int
    registers: int | None = None  # at most so many per thread
    apart: bool = True  # whether tiles that are visible as a whole are walked apart, unmasked


MOST_HELD = 4
"""So many ranges of each query are kept on the chip; more are read again for each tile."""
MASKED, BIASED, SHARED = 2, 3, 4
"""What loads the registers beside the tiles: any mask, a bias, heads that share keys."""
# A table holds, for widths of rows up to 64, 128 and 256, tiles by the load from which on they are
# used: the sum of the above. Only the gradients of the keys are loaded by heads that share them.
MASK_AND_BIAS, BIAS_SHARED = MASKED + BIASED, BIASED + SHARED

# float32 is multiplied without the Tensor Cores: both factors of a product lie in registers. Told
# how many it may take, the compiler takes them; else it would rather keep some in memory.
SINGLE = {
    "forward": (
        *({0: Tile(16, 32, 4, 1, 168, apart=False)},) * 2,
        {0: Tile(16, 32, 8, 1, 128, apart=False)},
    ),
    "keys": ({0: Tile(16, 16, 8, 1, 255, apart=False)},) * 3,
    "queries": (
        {0: Tile(16, 16, 4, 1, 128, apart=False)},
        *({0: Tile(16, 16, 4, 1, 255, apart=False)},) * 2,
    ),
    "decode": (  # `block_q` of decoding is as many queries as there are
        *({0: Tile(0, 32, 4, 1, 168, apart=False)},) * 2,
        {0: Tile(0, 32, 8, 1, 255, apart=False)},
    ),
}
SINGLE_BY_POINTER = SINGLE | {
    "forward": (
        *({0: Tile(16, 32, 4, 1, 255, apart=False)},) * 2,
        {
            0: Tile(16, 16, 4, 1, 255, apart=False),
            MASKED: Tile(16, 16, 8, 1, 128, apart=False),
            BIASED: Tile(16, 16, 4, 1, 255, apart=False),
        },
    ),
    "queries": ({0: Tile(16, 16, 4, 1, 255, apart=False)},) * 3,
    "decode": (
        *({0: Tile(0, 32, 4, 1, 255, apart=False)},) * 2,
        {0: Tile(0, 32, 8, 1, 255, apart=False)},
    ),
}
HOPPER = {
    "forward": (
        {0: Tile(128, 64, 8, 3, 128)},
        {0: Tile(128, 128, 8, 2)},
        {0: Tile(128, 64, 8, 2), MASK_AND_BIAS: Tile(128, 64, 8, 2, apart=False)},
    ),
    "keys": (
        {0: Tile(64, 128, 8, 2)},
        {
            0: Tile(64, 128, 8, 2),
            SHARED: Tile(64, 128, 8, 2, apart=False),
            MASK_AND_BIAS: Tile(32, 128, 8, 2),
        },
        {
            0: Tile(32, 64, 8, 2, apart=False),
            MASK_AND_BIAS: Tile(16, 64, 8, 2, apart=False),
            MASKED + SHARED: Tile(32, 64, 8, 2, apart=False),
            MASK_AND_BIAS + SHARED: Tile(16, 64, 8, 2, apart=False),
        },
    ),
    "queries": ({0: Tile(128, 64, 8, 2, 128)}, {0: Tile(128, 64, 8, 2)}, {0: Tile(64, 32, 8, 2)}),
    "decode": ({0: Tile(0, 128, 4, 4)}, {0: Tile(0, 64, 4, 4)}, {0: Tile(0, 32, 4, 4, 255)}),
}
BLACKWELL = HOPPER | {
    "forward": (
        {0: Tile(128, 128, 8, 2)},
        {0: Tile(128, 128, 8, 2), MASK_AND_BIAS: Tile(128, 64, 8, 2)},
        {0: Tile(128, 64, 8, 2), MASK_AND_BIAS: Tile(64, 64, 8, 2, apart=False)},
    ),
    "keys": (
        {0: Tile(64, 128, 8, 2), MASK_AND_BIAS: Tile(64, 64, 8, 2)},
        {0: Tile(64, 128, 8, 2), SHARED: Tile(64, 64, 8, 2, apart=False)},
        {0: Tile(32, 64, 8, 2, apart=False), SHARED: Tile(64, 32, 8, 1, apart=False)},
    ),
    "decode": ({0: Tile(0, 128, 4, 4)}, {0: Tile(0, 64, 4, 4)}, {0: Tile(0, 32, 8, 3)}),
}
IN_REGISTERS = {
    "forward": ({0: Tile(128, 128, 8, 2)}, {0: Tile(128, 64, 8, 2)}, {0: Tile(64, 64, 8, 1)}),
    "keys": (
        {0: Tile(32, 128, 8, 2), BIAS_SHARED: Tile(32, 64, 4, 1)},
        {0: Tile(64, 64, 8, 2, apart=False), BIAS_SHARED: Tile(32, 64, 8, 2, apart=False)},
        {0: Tile(32, 32, 8, 2), BIAS_SHARED: Tile(32, 32, 8, 1)},
    ),
    "queries": ({0: Tile(128, 64, 8, 2)}, {0: Tile(128, 32, 8, 2)}, {0: Tile(64, 32, 8, 1)}),
    "decode": ({0: Tile(0, 128, 4, 2)}, {0: Tile(0, 64, 4, 2)}, {0: Tile(0, 32, 8, 2)}),
}
# float32 rounded to TF32, on the Tensor Cores: a row has twice the bytes of one in half precision.
# wgmma takes such factors only along the axis that it sums over: some tiles are transposed first.
TF32_IN_REGISTERS = {
    "forward": ({0: Tile(128, 32, 8, 2)}, {0: Tile(64, 16, 4, 2)}, {0: Tile(32, 16, 4, 1)}),
    "keys": (
        {0: Tile(16, 64, 4, 1, apart=False), MASK_AND_BIAS: Tile(32, 32, 8, 2)},
        {
            0: Tile(32, 32, 8, 2),
            MASKED + SHARED: Tile(32, 32, 8, 2, 255),
            MASK_AND_BIAS + SHARED: Tile(32, 32, 8, 2),
        },
        {0: Tile(16, 16, 8, 1)},
    ),
    "queries": ({0: Tile(32, 64, 4, 2)}, {0: Tile(32, 32, 4, 2)}, {0: Tile(16, 16, 8, 1)}),
    "decode": (
        {0: Tile(0, 64, 4, 2)},
        {0: Tile(0, 32, 4, 2, 255)},
        {0: Tile(0, 16, 4, 2, 255)},
    ),
}
TF32_HOPPER = {
    "forward": ({0: Tile(128, 64, 8, 2)}, {0: Tile(128, 32, 8, 2)}, {0: Tile(64, 32, 8, 2)}),
    "keys": (
        {0: Tile(32, 64, 4, 2, apart=False)},
        {
            0: Tile(32, 32, 8, 2, 255, apart=False),
            MASK_AND_BIAS + SHARED: Tile(32, 32, 8, 2, apart=False),
        },
        {0: Tile(16, 16, 8, 1, apart=False)},
    ),
    "queries": (
        {0: Tile(128, 32, 8, 2)},
        {0: Tile(64, 32, 8, 2)},
        {0: Tile(16, 16, 8, 1, 255, apart=False)},
    ),
    "decode": ({0: Tile(0, 64, 4, 3)}, {0: Tile(0, 32, 4, 3)}, {0: Tile(0, 16, 4, 3)}),
}
TF32_BLACKWELL = TF32_HOPPER | {
    "forward": (
        {0: Tile(128, 64, 8, 2, 255)},
        TF32_HOPPER["forward"][1],
        {0: Tile(64, 32, 8, 1)},
    ),
    "keys": (
        {0: Tile(32, 64, 8, 2), BIAS_SHARED: Tile(32, 64, 8, 1)},
        {0: Tile(32, 64, 8, 1)},
        TF32_HOPPER["keys"][2],
    ),
    "queries": ({0: Tile(64, 32, 8, 2)}, *TF32_HOPPER["queries"][1:]),
}
# What a tile of half precision changes from so many ranges of each query on. More than `MOST_HELD`
# are read in a loop, which keeps of each score whether it is visible.
RANGES_HOPPER = {
    "forward": (
        {8: {"block_k": 32, "registers": None}},
        {8: {"block_k": 32}},
        {8: {"block_k": 16}},
    ),
    "keys": (
        {4: {"block_q": 32}},
        {4: {"block_q": 32, "block_k": 64, "apart": False}},
        {4: {"block_q": 64, "block_k": 32, "stages": 1, "apart": False}},
    ),
    "queries": (
        {4: {"registers": None}, 8: {"block_k": 32, "registers": None}},
        {8: {"block_q": 64, "block_k": 32}},
        {8: {"block_k": 16, "apart": False}},
    ),
    "decode": ({8: {"block_k": 32}}, {8: {"block_k": 32}}, {8: {"block_k": 16, "registers": None}}),
}
RANGES_BLACKWELL = RANGES_HOPPER | {
    "forward": ({8: {"block_q": 64, "block_k": 32}}, *RANGES_HOPPER["forward"][1:]),
    "keys": ({2: {"block_q": 32}}, *RANGES_HOPPER["keys"][1:]),
}
RANGES_IN_REGISTERS = {
    "forward": (
        {4: {"block_k": 64}, 8: {"block_k": 32}},
        {4: {"block_q": 64}, 8: {"block_q": 64, "block_k": 32}},
        {4: {"block_k": 32}, 8: {"block_k": 16}},
    ),
    "keys": (
        {4: {"block_q": 16, "block_k": 128, "warps": 8}},
        {4: {"block_q": 32}},
        {4: {"block_q": 16}},
    ),
    "queries": (
        {8: {"block_k": 32}},
        {8: {"block_q": 64}},
        {2: {"block_q": 32}},
    ),
    "decode": ({8: {"block_k": 32}}, {8: {"block_k": 32}}, {8: {"block_k": 16}}),
}
RANGES_SINGLE: Any = dict.fromkeys(("forward", "keys", "decode"), ({},) * 3) | {
    "queries": ({4: {"registers": 255}}, {}, {2: {"warps": 8}})
}
RANGES_TF32: Any = dict.fromkeys(("keys", "decode"), ({},) * 3) | {
    "forward": ({8: {"block_k": 32}}, {8: {"block_k": 16, "warps": 8}}, {8: {"block_k": 16}}),
    "queries": ({8: {"block_k": 16}}, {8: {"block_k": 16, "warps": 8}}, {}),
}
RANGES_FLOAT32 = {"ieee": RANGES_SINGLE, "tf32": RANGES_TF32}
RANGES: Any = {9: RANGES_HOPPER, 10: RANGES_BLACKWELL}
TABLES = {
    9: {"half": HOPPER, "tf32": TF32_HOPPER, "ieee": SINGLE},
    10: {"half": BLACKWELL, "tf32": TF32_BLACKWELL, "ieee": SINGLE},
}
"""Tables by the major capability, for each way to multiply (`precision_of`)."""
OTHERS = {"half": IN_REGISTERS, "tf32": TF32_IN_REGISTERS, "ieee": SINGLE_BY_POINTER}


def tile_for(x, kernel):
    """Return the `Tile` of a kernel, "forward", "keys", "queries" or "decode", for `Operands`."""
    load = MASKED if x.is_causal or x.mask is not None else 0
    load += BIASED if x.bias is not None else 0
    load += SHARED if kernel == "keys" and x.n_shared > 1 else 0
    major = capability_of(x.query.device)[0]
    d = x.d_k if x.d_k > x.d_v else x.d_v
    ranges = 0 if x.intervals is None else x.mask.shape[-1] // 2
    width = (d > 64) + (d > 128)
    return tile_of(kernel, major, x.precision, width, load, ranges)


@lru_cache
def tile_of(kernel, major, precision, width, load, ranges):
    """Look a `Tile` up; `ranges` of each query take registers of their own."""
    table = TABLES.get(major, OTHERS)[precision][kernel]
    tile = table[width][max(least for least in table[width] if least <= load)]
    of_ranges = RANGES_FLOAT32.get(precision) or RANGES.get(major, RANGES_IN_REGISTERS)
    changes = of_ranges[kernel][width]
    fits = [least for least in changes if least <= ranges]
    return tile._replace(**changes[max(fits)]) if fits else tile
