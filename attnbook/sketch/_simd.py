"""Two things that Numba has no words for: a product that stays in registers, and a prefetch.

Both are written for LLVM, Numba's compiler, which turns them into what the processor has: AVX-512,
AVX2 or Neon.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16  # numbers side by side in a vector, and rows of a tile: 16 of 32 registers hold sums

_INT32 = ir.IntType(32)


@intrinsic
def project_tile(typingctx, x, first, panels, p, out):
    """Multiply 16 rows with 16 directions: ``out[:, p] = x[first:first + 16] @ panels[p]``.

    x : (n, d); panels : (n_panels, d, 16); out : (16, n_panels, 16), all C-contiguous and of one
    dtype. The 256 sums stay in registers while the loop runs over d. Each sum is built in the order
    of d with fused multiply-adds, so equal rows have equal sums.
    """
    signature = types.void(x, first, panels, p, out)

    def generate(context, builder, signature, args):
        x_type, index_type = signature.args[0], args[1].type
        rows, columns, sums = (
            context.make_array(signature.args[i])(context, builder, args[i]) for i in (0, 2, 4)
        )
        n_panels, panel = builder.extract_value(columns.shape, 0), args[3]
        vector = ir.VectorType(context.get_value_type(x_type.dtype), LANES)
        d = builder.extract_value(rows.shape, 1)
        row = [
            builder.gep(rows.data, [builder.mul(builder.add(args[1], index_type(r)), d)])
            for r in range(LANES)
        ]
        before, loop = builder.block, builder.append_basic_block("loop")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(index_type)  # from 0 to d - 1
        totals = [builder.phi(vector) for _ in range(LANES)]
        place = builder.add(builder.mul(panel, d), k)
        directions = builder.load(_vector_at(builder, columns.data, place, vector), align=4)
        added = []
        for r in range(LANES):
            number = _spread(builder, builder.load(builder.gep(row[r], [k])), vector)
            added.append(_multiply_add(builder, number, directions, totals[r]))
        following = builder.add(k, index_type(1))
        for phi, first_time, next_time in zip(
            [k, *totals],
            [index_type(0), *[_zeros(vector)] * LANES],
            [following, *added],
            strict=True,
        ):
            phi.add_incoming(first_time, before)
            phi.add_incoming(next_time, loop)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, d), loop, after)
        builder.position_at_end(after)
        for r in range(LANES):
            place = builder.add(builder.mul(index_type(r), n_panels), panel)
            builder.store(added[r], _vector_at(builder, sums.data, place, vector), align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch(typingctx, x, i):
    """Ask for the cache line of ``x.ravel()[i]``; `x` is C-contiguous. A wrong `i` does no harm."""
    signature = types.void(x, i)

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], shape)
        read, keep, data_cache = _INT32(0), _INT32(3), _INT32(1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return signature, generate


def _vector_at(builder, data, i, vector):
    """Return a pointer to the i-th vector of an array."""
    first = builder.mul(i, i.type(LANES))
    return builder.bitcast(builder.gep(data, [first]), vector.as_pointer())


def _spread(builder, number, vector):
    """Return a vector with `number` in all its lanes."""
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, number, _INT32(0))
    return builder.shuffle_vector(
        one, empty, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    )


def _multiply_add(builder, a, b, c):
    fused = ("contract",)  # one rounding where the processor has such an instruction
    return builder.fadd(builder.fmul(a, b, flags=fused), c, flags=fused)
