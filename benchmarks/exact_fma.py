"""How fast a core can multiply and add: a loop that touches no memory, compiled by Numba."""

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8  # of float32 in a register
SUMS = 12  # as many in flight hide that each takes four cycles or more
FLOPS = 2 * LANES * SUMS  # a step


def _multiply_add(typingctx, steps, factor):
    """Return the total of `SUMS` vectors s = s · factor + factor, after `steps` steps."""

    def generate(context, builder, signature, args):
        steps, factor = args
        integer, vector = steps.type, ir.VectorType(ir.FloatType(), LANES)
        name = f"llvm.fma.v{LANES}f32"
        shape = ir.FunctionType(vector, [vector] * 3)
        fma = builder.module.globals.get(name) or ir.Function(builder.module, shape, name)
        spread = ir.Constant(vector, ir.Undefined)
        for lane in range(LANES):
            spread = builder.insert_element(spread, factor, ir.IntType(32)(lane))
        before, loop = builder.block, builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(loop)

        builder.position_at_end(loop)
        i = builder.phi(integer)
        sums = [builder.phi(vector) for _ in range(SUMS)]
        added = [builder.call(fma, [one, spread, spread]) for one in sums]
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

    return types.float32(types.int64, types.float32), generate


multiply_add: Any = intrinsic(_multiply_add)


@numba.njit(nogil=True)
def loop(steps: int, factor: float) -> float:
    """Return the total of a loop of `FLOPS` operations a step."""
    return multiply_add(steps, np.float32(factor))


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})
def total(x: np.ndarray) -> float:
    """Return the sum of `x`, which reads it once."""
    found = np.float32(0)
    for i in range(x.size):
        found += x[i]
    return found
