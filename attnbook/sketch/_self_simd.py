"""What self-attention asks of LLVM: products that stay in registers, and eight codes at once.

All arrays are C-contiguous; places are counted in numbers from their start, so that one product
reads rows of any stride. On a processor with AVX-512 a vector is one register; elsewhere LLVM
splits it.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES, ROWS = 16, 8
"""Numbers in a vector, and rows of a tile."""

WORD = 8
"""Codes that `near_codes` reads at once: tables end with so many places to spare."""

_F32, _I1, _I8, _I32, _I64 = ir.FloatType(), *(ir.IntType(n) for n in (1, 8, 32, 64))
_VECTOR, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_CODES = ir.VectorType(_I64, WORD)
_FAST = ("reassoc", "contract", "nsz")


def _tile(n_vectors: int) -> Any:
    """Return the intrinsic for a tile of 8 rows and `n_vectors` vectors of columns."""

    def tile(typingctx, x, x0, of_row, of_k, w, w0, w_row, out, out0, out_row, depth, add):
        n = types.int64
        signature = types.void(x, n, n, n, w, n, n, out, n, n, n, types.boolean)

        def generate(context, builder, signature, args):
            x, x0, of_row, of_k, w, w0, w_row, out, out0, out_row, depth, add = args
            rows = builder.gep(_data(context, builder, signature, 0, x), [x0])
            columns = builder.gep(_data(context, builder, signature, 4, w), [w0])
            sums = builder.gep(_data(context, builder, signature, 7, out), [out0])
            places = [builder.mul(of_row, _I64(r)) for r in range(ROWS)]
            before = builder.block
            loop, after = (builder.append_basic_block(name) for name in ("loop", "after"))
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(_I64)
            k.add_incoming(_I64(0), before)
            totals = [[builder.phi(_VECTOR) for _ in range(n_vectors)] for _ in range(ROWS)]
            at = builder.gep(columns, [builder.mul(k, w_row)])
            vectors = [_load(builder, at, j) for j in range(n_vectors)]
            at = builder.gep(rows, [builder.mul(k, of_k)])
            added: list[list[Any]] = [[] for _ in range(ROWS)]
            for r in range(ROWS):
                number = _spread(builder, builder.load(builder.gep(at, [places[r]])), _VECTOR)
                for j in range(n_vectors):
                    product = builder.fmul(number, vectors[j], flags=_FAST)
                    added[r].append(builder.fadd(totals[r][j], product, flags=_FAST))
            following = builder.add(k, _I64(1))
            k.add_incoming(following, loop)
            for r in range(ROWS):
                for j in range(n_vectors):
                    totals[r][j].add_incoming(ir.Constant(_VECTOR, None), before)
                    totals[r][j].add_incoming(added[r][j], loop)
            builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
            builder.position_at_end(after)
            to = [builder.gep(sums, [builder.mul(out_row, _I64(r))]) for r in range(ROWS)]
            with builder.if_else(add) as (more, first):
                with more:
                    for r in range(ROWS):
                        for j in range(n_vectors):
                            old = _load(builder, to[r], j)
                            _store(builder, builder.fadd(old, added[r][j], flags=_FAST), to[r], j)
                with first:
                    for r in range(ROWS):
                        for j in range(n_vectors):
                            _store(builder, added[r][j], to[r], j)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(tile)


_tile1, _tile2 = _tile(1), _tile(2)


@numba.njit(nogil=True, cache=True)
def product(x, x0, of_row, of_k, w, w0, w_row, out, out0, out_row, shape, add):
    """Write, or `add`, X W to `out` for ``shape = (rows, columns, depth)``.

    X[r, k] stands at ``x0 + r of_row + k of_k``, so X may be a transpose; rows of W and of the
    result are contiguous. Rows are a multiple of 8, columns of 16, and depth is at least 1.
    """
    rows, columns, depth = shape
    j = 0
    while j + 2 * LANES <= columns:
        for r in range(0, rows, ROWS):
            at, to = x0 + r * of_row, out0 + r * out_row + j
            _tile2(x, at, of_row, of_k, w, w0 + j, w_row, out, to, out_row, depth, add)
        j += 2 * LANES
    if j < columns:
        for r in range(0, rows, ROWS):
            at, to = x0 + r * of_row, out0 + r * out_row + j
            _tile1(x, at, of_row, of_k, w, w0 + j, w_row, out, to, out_row, depth, add)


def _near_codes(typingctx, codes, first, code, distance):
    """Return a bit for each of the 8 codes from `first` that differs from `code` in so few bits."""
    signature = types.int64(codes, types.int64, types.uint64, types.int64)

    def generate(context, builder, signature, args):
        data = _data(context, builder, signature, 0, args[0])
        at = builder.bitcast(builder.gep(data, [args[1]]), _CODES.as_pointer())
        differing = builder.xor(builder.load(at, align=8), _spread(builder, args[2], _CODES))
        shape = ir.FunctionType(_CODES, [_CODES])
        count = cgutils.get_or_insert_function(builder.module, shape, "llvm.ctpop.v8i64")
        near = builder.icmp_unsigned(
            "<=", builder.call(count, [differing]), _spread(builder, args[3], _CODES)
        )
        return builder.zext(builder.bitcast(near, _I8), _I64)

    return signature, generate


near_codes: Any = intrinsic(_near_codes)


def _first_bit(typingctx, bits):
    """Return the place of the lowest bit that is 1."""
    signature = types.int64(types.int64)

    def generate(context, builder, signature, args):
        shape = ir.FunctionType(_I64, [_I64, _I1])
        count = builder.module.declare_intrinsic("llvm.cttz", [_I64], shape)
        return builder.call(count, [args[0], _I1(0)])

    return signature, generate


first_bit: Any = intrinsic(_first_bit)


def _ranks(typingctx, x, first, n, rank):
    """Write to ``rank[:n]`` how many of the n ≤ 16 numbers have a smaller size than each.

    Equal ones, and those that differ by less than a millionth, are in the order of their places. 16
    numbers are read, and 16 ranks written, whatever n is.
    """
    signature = types.void(x, types.int64, types.int32, rank)

    def generate(context, builder, signature, args):
        data = builder.gep(_data(context, builder, signature, 0, args[0]), [args[1]])
        # sizes of floats are in the order of their bits as integers; the last 4 bits are the place
        bits = builder.bitcast(_load(builder, data, 0), _INTS)
        bits = builder.and_(bits, ir.Constant(_INTS, [0x7FFFFFF0] * LANES))
        places = ir.Constant(_INTS, list(range(LANES)))
        ours = builder.icmp_signed("<", places, _spread(builder, args[2], _INTS))
        bits = builder.select(ours, bits, ir.Constant(_INTS, [0x7FFFFFF0] * LANES))
        bits = builder.or_(bits, places)
        empty, total = ir.Constant(_INTS, ir.Undefined), ir.Constant(_INTS, [0] * LANES)
        for i in range(LANES):
            one = builder.shuffle_vector(bits, empty, ir.Constant(_INTS, [i] * LANES))
            less = builder.icmp_signed("<", one, bits)
            total = builder.add(total, builder.zext(less, _INTS))
        to = builder.bitcast(_data(context, builder, signature, 3, args[3]), _INTS.as_pointer())
        builder.store(total, to, align=4)
        return context.get_dummy_value()

    return signature, generate


ranks: Any = intrinsic(_ranks)


def _sign_bits(typingctx, x, first, threshold):
    """Return 64 bits: bit j is 1 where ``x[first + j] >= threshold[j]``."""
    signature = types.uint64(x, types.int64, threshold)

    def generate(context, builder, signature, args):
        data = builder.gep(_data(context, builder, signature, 0, args[0]), [args[1]])
        limits = _data(context, builder, signature, 2, args[2])
        code = _I64(0)
        for j in range(64 // LANES):
            above = builder.fcmp_ordered(">=", _load(builder, data, j), _load(builder, limits, j))
            part = builder.zext(builder.bitcast(above, ir.IntType(LANES)), _I64)
            code = builder.or_(code, builder.shl(part, _I64(LANES * j)))
        return code

    return signature, generate


sign_bits: Any = intrinsic(_sign_bits)


def _power_of_two(typingctx, n):
    """Return 2**n for a float32 that is an integer from -126 to 127."""
    signature = types.float32(types.float32)

    def generate(context, builder, signature, args):
        exponent = builder.add(builder.fptosi(args[0], _I32), _I32(127))
        return builder.bitcast(builder.shl(exponent, _I32(23)), _F32)

    return signature, generate


_power: Any = intrinsic(_power_of_two)


def _coefficients():
    """Return the coefficients of 2**x on [-1/2, 1/2] through Chebyshev's points, degree 5."""
    points = 0.5 * np.cos(np.pi * (np.arange(6) + 0.5) / 6)
    return np.polynomial.polynomial.polyfit(points, 2.0**points, 5).astype(np.float32)


_C0, _C1, _C2, _C3, _C4, _C5 = _coefficients()
_LOWEST, _HALF = np.float32(-126), np.float32(0.5)


@numba.njit(inline="always")
def exp2(x):
    """Return 2**x of a float32 below 127 to about 3e-7; 2**-126 for anything smaller."""
    x = max(x, _LOWEST)
    n = np.float32(np.floor(x + _HALF))
    f = x - n
    return (_C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))) * _power(n)


def _data(context, builder, signature, i, array):
    return context.make_array(signature.args[i])(context, builder, array).data


def _load(builder, at, j):
    return builder.load(_vector(builder, at, j), align=4)


def _store(builder, vector, at, j):
    builder.store(vector, _vector(builder, at, j), align=4)


def _vector(builder, at, j):
    return builder.bitcast(builder.gep(at, [_I64(LANES * j)]), _VECTOR.as_pointer())


def _spread(builder, number, vector):
    """Return a vector with `number` in all its lanes."""
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, number, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, empty, zeros)
