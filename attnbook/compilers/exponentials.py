"""2ˣ of whole vectors, and weights of tiles of scores in the registers, for Numba."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnbook.compilers.register_tiles import Vectors

_I64 = ir.IntType(64)


def _weigh(typingctx, tile, s, s0, rows, top, total, log2):
    """Replace each of `rows` rows s by 2**((s - top) log2), and set `total` to the column sums.

    A tile of pairs leaves the rows 2 i and 2 i + 1, rounded, as words in row i; `rows` is even.
    """
    signature = types.void(tile, s, types.int64, types.int64, top, total, types.float32)

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 1)
        s, tops, log2 = code.start(1, args[2]), code.row(code.start(4)), code.spread(args[6])
        n = 2 if code.tile.pairs else 1  # rows a step
        width = code.tile.width

        def step(i, sums):
            added, found = sums[0], []
            for m in range(n):
                at = builder.add(builder.mul(i, _I64(n * width)), _I64(m * width))
                below = map(builder.fsub, code.row(builder.gep(s, [at])), tops)
                found.append([_exp2(code, builder.fmul(x, log2)) for x in below])
                added = list(map(builder.fadd, added, found[-1]))
            weights = list(map(code.pair, *found)) if code.tile.pairs else found[0]
            code.store(weights, builder.gep(s, [builder.mul(i, _I64(width))]))
            return [added]

        (sums,) = code.sums(1, builder.sdiv(args[3], _I64(n)), step)
        code.store(sums, code.start(5))
        return context.get_dummy_value()

    return signature, generate


weigh: Any = intrinsic(_weigh)

LOG2_E = float(np.float32(np.log2(np.e)))

TO_INTEGER = 1.5 * 2**23
"""float32 numbers of this size are 1 apart, so a sum with it is rounded to an integer."""


def exp2_coefficients() -> tuple[float, ...]:
    """Return the coefficients of a polynomial for 2**x on [-1/2, 1/2], the first exactly 1.

    So 2**0 is 1: sums that are carried from tile to tile are multiplied by it again and again. The
    others fit (2**x - 1) / x at Chebyshev's points, each error weighed by what it does to 2**x.
    """
    points = 0.5 * np.cos(np.pi * (np.arange(100) + 0.5) / 100)
    slopes = np.expm1(points * np.log(2)) / points
    fitted = np.polynomial.polynomial.polyfit(points, slopes, 4, w=abs(points) / 2**points)
    return 1.0, *fitted.astype(np.float32).tolist()


def _exp2(code, x):
    """Return 2**x of a vector below 127.5: exactly 0 where x < -126.5, and NaN where x is NaN."""
    builder, vector = code.builder, code.vector
    ints, all_lanes = code.words, code.all_lanes
    lowest, to_integer = all_lanes(-127.0), all_lanes(TO_INTEGER)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    shifted = builder.fadd(x, to_integer)
    f = builder.fsub(x, builder.fsub(shifted, to_integer))
    *lower, highest = exp2_coefficients()
    power = all_lanes(highest)
    for coefficient in reversed(lower):
        power = code.multiply_add(power, f, all_lanes(coefficient))
    exponent = builder.add(builder.bitcast(shifted, ints), all_lanes(127, ints))
    exponent = builder.shl(exponent, all_lanes(23, ints))  # of -127: the bits of 0
    return builder.fmul(power, builder.bitcast(exponent, vector))
