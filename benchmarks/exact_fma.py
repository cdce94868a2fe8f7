"""How fast a core can multiply and add: a loop that touches no memory, compiled by Numba.

`loop` does it with float32 numbers, and `loop_of_pairs` with pairs of bfloat16 numbers, by one
instruction where the processor has it.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnbook.compilers.register_tiles import lanes

LANES = lanes()  # of float32 in a register
SUMS = 12  # as many in flight hide that each takes four cycles or more
FLOPS = 2 * LANES * SUMS  # a step; twice as many with pairs


def _total(spread, add):
    """Return what writes the total of `SUMS` vectors s = add(s, f), f spread, after the steps."""

    def generate(context, builder, signature, args):
        steps, factor = args
        integer, vector = steps.type, ir.VectorType(ir.FloatType(), LANES)
        many = spread(builder, factor)
        before, loop = builder.block, builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(loop)

        builder.position_at_end(loop)
        i = builder.phi(integer)
        sums = [builder.phi(vector) for _ in range(SUMS)]
        added = [add(builder, vector, one, many) for one in sums]
        following = builder.add(i, integer(1))
        i.add_incoming(integer(0), before)
        i.add_incoming(following, loop)
        for k, (one, more) in enumerate(zip(sums, added, strict=True)):
            # different starts, or the compiler would make one sum of all
            one.add_incoming(ir.Constant(vector, [float(k)] * LANES), before)
            one.add_incoming(more, loop)
        builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)

        builder.position_at_end(after)
        total = added[0]
        for one in added[1:]:
            total = builder.fadd(total, one)
        result = builder.extract_element(total, ir.IntType(32)(0))
        for lane in range(1, LANES):  # all lanes are used, so none is left out
            result = builder.fadd(result, builder.extract_element(total, ir.IntType(32)(lane)))
        return result

    return generate


def _spread(builder, number):
    vector = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    for lane in range(LANES):
        vector = builder.insert_element(vector, number, ir.IntType(32)(lane))
    return vector


def _fused(builder, vector, total, factor):
    shape = ir.FunctionType(vector, [vector] * 3)
    fma = builder.module.declare_intrinsic(f"llvm.fma.v{LANES}f32", (), shape)
    return builder.call(fma, [total, factor, factor])


def _of_pairs(builder, vector, total, factor):
    shape = ir.FunctionType(vector, [vector, factor.type, factor.type])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return builder.call(builder.module.declare_intrinsic(name, (), shape), [total, factor, factor])


def _multiply_add(typingctx, steps, factor):
    return types.float32(types.int64, types.float32), _total(_spread, _fused)


def _add_pairs(typingctx, steps, word):
    return types.float32(types.int64, types.int32), _total(_spread, _of_pairs)


multiply_add: Any = intrinsic(_multiply_add)
add_pairs: Any = intrinsic(_add_pairs)


@numba.njit(nogil=True)
def loop(steps: int, factor: float) -> float:
    """Return the total of a loop of `FLOPS` operations a step."""
    return multiply_add(steps, np.float32(factor))


@numba.njit(nogil=True)
def loop_of_pairs(steps: int, word: int) -> float:
    """Return the total of a loop of 2 `FLOPS` operations a step on a word of two numbers."""
    return add_pairs(steps, np.int32(word))


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})
def total(x: np.ndarray) -> float:
    """Return the sum of `x`, which reads it once."""
    found = np.float32(0)
    for i in range(x.size):
        found += x[i]
    return found
