"""Two things that Numba has no words for: a product that stays in registers, and a prefetch.

Both are written for LLVM, Numba's compiler, which turns them into what the processor has: AVX-512,
AVX2 or Neon.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # numbers in a vector, and rows of a tile: their sums take 16 of 32 registers of AVX-512

_INT32 = ir.IntType(32)


def _project_tile(typingctx, x, first, panels, p, out):
    """Multiply 16 rows with 16 directions: ``out[:, p] = x[first:first + 16] @ panels[p]``.

    x : (n, d); panels : (n_panels, d, 16); out : (16, n_panels, 16), all C-contiguous and of one
    dtype. The 256 sums stay in registers while the loop runs over d. Each sum is built in the order
    of d with fused multiply-adds, so equal rows have equal sums.
    """

    def generate(context, builder, signature, args):
        rows, directions, sums = (
            context.make_array(signature.args[i])(context, builder, args[i]) for i in (0, 2, 4)
        )
        first, panel, integer = args[1], args[3], args[1].type
        number = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(number, LANES)
        d = builder.extract_value(rows.shape, 1)
        n_panels = builder.extract_value(directions.shape, 0)
        row = [
            builder.gep(rows.data, [builder.mul(builder.add(first, integer(r)), d)])
            for r in range(LANES)
        ]
        before, loop = builder.block, builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(loop)

        builder.position_at_end(loop)
        k = builder.phi(integer)  # 0 … d - 1
        totals = [builder.phi(vector) for _ in range(LANES)]
        place = builder.add(builder.mul(panel, d), k)
        along_k = builder.load(_vector_at(builder, directions.data, place, vector), align=4)
        added = []
        for r in range(LANES):
            in_all_lanes = _spread(builder, builder.load(builder.gep(row[r], [k])), vector)
            added.append(_multiply_add(builder, in_all_lanes, along_k, totals[r]))
        next_k = builder.add(k, integer(1))
        at_first = [integer(0), *[ir.Constant(vector, [0.0] * LANES)] * LANES]
        for phi, start, again in zip([k, *totals], at_first, [next_k, *added], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(again, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, d), loop, after)

        builder.position_at_end(after)
        for r in range(LANES):
            place = builder.add(builder.mul(integer(r), n_panels), panel)
            builder.store(added[r], _vector_at(builder, sums.data, place, vector), align=4)
        return context.get_dummy_value()

    return types.void(x, first, panels, p, out), generate


def _prefetch(typingctx, x, i):
    """Ask for the cache line of ``x.ravel()[i]``; `x` is C-contiguous. A wrong `i` does no harm."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], shape)
        to_read, to_keep, data_cache = _INT32(0), _INT32(3), _INT32(1)
        builder.call(function, [address, to_read, to_keep, data_cache])
        return context.get_dummy_value()

    return types.void(x, i), generate


project_tile: Any = intrinsic(_project_tile)
prefetch: Any = intrinsic(_prefetch)


def _vector_at(builder, data, i, vector):
    """Return a pointer to the i-th vector of an array."""
    first = builder.mul(i, i.type(LANES))
    return builder.bitcast(builder.gep(data, [first]), vector.as_pointer())


def _spread(builder, number, vector):
    """Return a vector with `number` in all its lanes."""
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, number, _INT32(0))
    from_lane_0 = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, empty, from_lane_0)


def _multiply_add(builder, a, b, c):
    fused = ("contract",)  # one rounding where the processor has such an instruction
    return builder.fadd(builder.fmul(a, b, flags=fused), c, flags=fused)
