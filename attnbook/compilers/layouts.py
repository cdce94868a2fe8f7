"""Transposes of square blocks, and pairs of bfloat16 numbers, in the registers, for Numba."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnbook.compilers.register_tiles import Vectors

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _transpose(typingctx, tile, a, a0, a_row, b, b0, b_row):
    """Set a block of B to the transpose of one of A; both have as many rows as a vector has lanes.

    They begin at the numbers a0 and b0, and their rows are a_row and b_row numbers apart. Two rows
    that are `step` apart exchange two of their quarters, eighths, …, for each power of two.
    """

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 1)
        _, _, a0, a_row, _, b0, b_row = args
        lanes = range(code.tile.lanes)
        a, b = code.start(1, a0), code.start(4, b0)
        rows = [code.load(builder.gep(a, [builder.mul(_I64(i), a_row)])) for i in lanes]
        step = 1
        while step < len(lanes):
            upper = [k if not k & step else k - step + len(lanes) for k in lanes]
            lower = [k + step if not k & step else k + len(lanes) for k in lanes]
            words = [ir.Constant(ir.VectorType(_I32, len(lanes)), x) for x in (upper, lower)]
            for i in lanes:
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (builder.shuffle_vector(*pair, x) for x in words)
            step *= 2
        for i in lanes:
            code.store([rows[i]], builder.gep(b, [builder.mul(_I64(i), b_row)]))
        return context.get_dummy_value()

    n = types.int64
    return types.void(tile, a, n, n, b, n, n), generate


def _pair(typingctx, tile, x, at, row, to):
    """Write the rows of X at `at` and at `at` + `row`, rounded to bfloat16, as words at `to`."""

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 1)
        first, second = code.row(code.start(1, args[2])), builder.add(args[2], args[3])
        second = code.row(code.start(1, second))
        words = [code.pair(a, b, even=True) for a, b in zip(first, second, strict=True)]
        code.store(words, code.start(1, args[4]))
        return context.get_dummy_value()

    n = types.int64
    return types.void(tile, x, n, n, n), generate


transpose: Any = intrinsic(_transpose)
pair: Any = intrinsic(_pair)
