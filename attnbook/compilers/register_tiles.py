"""What the packed rung asks of LLVM: products of tiles whose sums stay in registers, and 2ˣ.

A `Tile` says how many registers hold the sums. It is a type of its own to Numba, so that a loop
that is given another tile is compiled anew, for as many numbers a vector, vectors and rows.

Arrays are C-contiguous float32 and places are counted in numbers from their start, so that one
product reads rows of any stride.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import (
    NativeValue,
    intrinsic,
    models,
    overload_attribute,
    register_model,
    typeof_impl,
    unbox,
)

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FUSED = ("contract",)  # a product and a sum with one rounding, where the processor has that


@dataclass(frozen=True)
class Tile:
    """The shape of a tile of sums: `rows` times `vectors` registers of `lanes` numbers."""

    lanes: int
    rows: int
    vectors: int

    @property
    def width(self) -> int:
        """The columns of the tile."""
        return self.lanes * self.vectors


TILES = {16: Tile(16, 8, 2), 8: Tile(8, 4, 3), 4: Tile(4, 4, 3)}
"""By lanes: with AVX-512 16 of 32 registers hold sums, with AVX2 12 of 16; SSE2 and Neon have 4."""


@functools.cache
def lanes() -> int:
    """Return how many float32 numbers a vector register of this processor holds."""
    has = llvmlite.binding.get_host_cpu_features()
    if has.get("avx512f"):
        return 16
    return 8 if has.get("avx2") and has.get("fma") else 4


class TileType(types.Type):
    """What Numba knows of a `Tile`: everything."""

    def __init__(self, lanes: int, rows: int, vectors: int) -> None:
        super().__init__(name=f"Tile({lanes}, {rows}, {vectors})")
        self.lanes, self.rows, self.vectors = lanes, rows, vectors
        self.vector = ir.VectorType(_F32, lanes)


@typeof_impl.register(Tile)
def _typeof(tile, context):
    return _type_of(tile)


@functools.cache
def _type_of(tile):
    return TileType(tile.lanes, tile.rows, tile.vectors)


@unbox(TileType)
def _unbox(typ, obj, context):
    return NativeValue(context.context.get_dummy_value())


register_model(TileType)(models.OpaqueModel)


@overload_attribute(TileType, "rows")
def _rows(tile):
    rows = tile.rows
    return lambda tile: rows


@overload_attribute(TileType, "width")
def _width(tile):
    width = tile.lanes * tile.vectors
    return lambda tile: width


# Products. Of a tile, C has `rows` rows and lanes · vectors columns; A has as many rows and `depth`
# columns, B the reverse. They stand at places a0, b0, c0: row i and column k of A at
# a0 + i a_row + k a_column, so A may be a transpose; rows of B and C are b_row and c_row apart and
# contiguous. Where fewer than tile.rows rows are asked for, the last one is done more than once.


def _product(end: Callable[..., None], n_columns: int = 0) -> Any:
    """Return the intrinsic that makes A B and leaves the sums to `end`, with arrays of columns."""

    def generate(context, builder, signature, args):
        tile: TileType = signature.args[0]
        _, a, a0, a_row, a_column, b, b0, b_row, c, c0, c_row, rows, depth, *columns = args
        vectors, vector = range(tile.vectors), tile.vector
        a, b, c = (
            builder.gep(_data(context, builder, signature, i, array), [at])
            for i, array, at in ((1, a, a0), (5, b, b0), (8, c, c0))
        )
        columns = [
            _data(context, builder, signature, 13 + i, column) for i, column in enumerate(columns)
        ]
        last = builder.sub(rows, _I64(1))
        clamped = []
        for i in range(tile.rows):
            inside = builder.icmp_signed("<", _I64(i), last)
            clamped.append(builder.select(inside, _I64(i), last))
        a_rows = [builder.gep(a, [builder.mul(i, a_row)]) for i in clamped]
        c_rows = [builder.gep(c, [builder.mul(i, c_row)]) for i in clamped]
        before = builder.block
        loop, after = (builder.append_basic_block(name) for name in ("loop", "after"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_I64)
        k.add_incoming(_I64(0), before)
        sums = [[builder.phi(vector) for _ in vectors] for _ in clamped]
        at = builder.gep(b, [builder.mul(k, b_row)])
        of_b = [_load(builder, at, j, vector) for j in vectors]
        at = builder.mul(k, a_column)
        added: list[list[Any]] = []
        for i, a_at in enumerate(a_rows):
            number = _spread(builder, builder.load(builder.gep(a_at, [at])), vector)
            added.append([_multiply_add(builder, number, of_b[j], sums[i][j]) for j in vectors])
        following = builder.add(k, _I64(1))
        k.add_incoming(following, loop)
        for i, row in enumerate(sums):
            for j, phi in enumerate(row):
                phi.add_incoming(ir.Constant(vector, None), before)
                phi.add_incoming(added[i][j], loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        end(builder, tile, c_rows, added, *columns)
        return context.get_dummy_value()

    n = types.int64
    if n_columns == 0:

        def product(
            typingctx, tile, a, a0, a_row, a_column, b, b0, b_row, c, c0, c_row, rows, depth
        ):
            return types.void(tile, a, n, n, n, b, n, n, c, n, n, n, n), generate

        return intrinsic(product)

    def product_with(
        typingctx, tile, a, a0, a_row, a_column, b, b0, b_row, c, c0, c_row, rows, depth, column
    ):
        return types.void(tile, a, n, n, n, b, n, n, c, n, n, n, n, column), generate

    return intrinsic(product_with)


def _store_sums(builder, tile, to, sums):
    for at, row in zip(to, sums, strict=True):
        for j, total in enumerate(row):
            _store(builder, total, at, j, tile.vector)


def _add_sums(builder, tile, to, sums):
    old = [[_load(builder, at, j, tile.vector) for j in range(tile.vectors)] for at in to]
    new = [
        [builder.fadd(x, y) for x, y in zip(row, added, strict=True)]
        for row, added in zip(old, sums, strict=True)
    ]
    _store_sums(builder, tile, to, new)


def _add_sums_scaled(builder, tile, to, sums, factor):
    factors = [_load(builder, factor, j, tile.vector) for j in range(tile.vectors)]
    old = [[_load(builder, at, j, tile.vector) for j in range(tile.vectors)] for at in to]
    new = [
        [_multiply_add(builder, *three) for three in zip(row, factors, added, strict=True)]
        for row, added in zip(old, sums, strict=True)
    ]
    _store_sums(builder, tile, to, new)


def _store_sums_with_top(builder, tile, to, sums, top):
    _store_sums(builder, tile, to, sums)
    for j in range(tile.vectors):
        highest = _load(builder, top, j, tile.vector)
        for row in sums:
            highest = _larger(builder, row[j], highest)
        _store(builder, highest, top, j, tile.vector)


multiply: Any = _product(_store_sums)
"""C = A B: ``multiply(tile, a, a0, a_row, a_column, b, b0, b_row, c, c0, c_row, rows, depth)``."""

multiply_add: Any = _product(_add_sums)
"""C = C + A B."""

multiply_top: Any = _product(_store_sums_with_top, 1)
"""C = A B, and the last argument, `top`, grows to the largest number of each column."""

multiply_onto: Any = _product(_add_sums_scaled, 1)
"""C = C · factor + A B, where the last argument has a factor for each column."""


# What is done to all numbers of a tile


def _weigh(typingctx, tile, s, s0, rows, top, total):
    """Replace each of `rows` rows s by e**(s - top), and set `total` to the sum of each column."""
    signature = types.void(tile, s, types.int64, types.int64, top, total)

    def generate(context, builder, signature, args):
        tile = signature.args[0]
        vectors, vector = range(tile.vectors), tile.vector
        s = builder.gep(_data(context, builder, signature, 1, args[1]), [args[2]])
        top, total = (_data(context, builder, signature, i, args[i]) for i in (4, 5))
        tops = [_load(builder, top, j, vector) for j in vectors]
        before = builder.block
        loop, after = (builder.append_basic_block(name) for name in ("loop", "after"))
        builder.branch(loop)
        builder.position_at_end(loop)
        i = builder.phi(_I64)
        i.add_incoming(_I64(0), before)
        sums = [builder.phi(vector) for _ in vectors]
        at = builder.gep(s, [builder.mul(i, _I64(tile.lanes * tile.vectors))])
        for j in vectors:
            below = builder.fsub(_load(builder, at, j, vector), tops[j])
            weight = _exp2(builder, builder.fmul(below, _all_lanes(LOG2_E, vector)), vector)
            _store(builder, weight, at, j, vector)
            sums[j].add_incoming(ir.Constant(vector, None), before)
            sums[j].add_incoming(builder.fadd(sums[j], weight), loop)
        following = builder.add(i, _I64(1))
        i.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[3]), loop, after)
        builder.position_at_end(after)
        for j in vectors:
            _store(builder, sums[j].incomings[1][0], total, j, vector)
        return context.get_dummy_value()

    return signature, generate


weigh: Any = intrinsic(_weigh)


def _claim(typingctx, counter):
    """Return ``counter[0]`` and add 1 to it, in one step that no other thread can part."""

    def generate(context, builder, signature, args):
        data = _data(context, builder, signature, 0, args[0])
        return builder.atomic_rmw("add", data, _I64(1), "monotonic")

    return types.int64(counter), generate


claim: Any = intrinsic(_claim)


LOG2_E = float(np.float32(np.log2(np.e)))


def exp2_coefficients() -> tuple[float, ...]:
    """Return the coefficients of a polynomial for 2**x on [-1/2, 1/2], the first exactly 1.

    So 2**0 is 1: sums that are carried from tile to tile are multiplied by it again and again. The
    others fit (2**x - 1) / x at Chebyshev's points, each error weighed by what it does to 2**x.
    """
    points = 0.5 * np.cos(np.pi * (np.arange(100) + 0.5) / 100)
    slopes = np.expm1(points * np.log(2)) / points
    fitted = np.polynomial.polynomial.polyfit(points, slopes, 4, w=abs(points) / 2**points)
    return 1.0, *fitted.astype(np.float32).tolist()


TO_INTEGER = 1.5 * 2**23
"""float32 numbers of this size are 1 apart, so a sum with it is rounded to an integer."""


def _exp2(builder, x, vector):
    """Return 2**x of a vector below 127.5: exactly 0 where x < -126.5, and NaN where x is NaN."""
    ints = ir.VectorType(_I32, vector.count)
    lowest, to_integer = _all_lanes(-127.0, vector), _all_lanes(TO_INTEGER, vector)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    shifted = builder.fadd(x, to_integer)
    f = builder.fsub(x, builder.fsub(shifted, to_integer))
    *lower, highest = exp2_coefficients()
    power = _all_lanes(highest, vector)
    for coefficient in reversed(lower):
        power = _multiply_add(builder, power, f, _all_lanes(coefficient, vector))
    exponent = builder.add(builder.bitcast(shifted, ints), _all_lanes(127, ints))
    exponent = builder.shl(exponent, _all_lanes(23, ints))  # of -127: the bits of 0
    return builder.fmul(power, builder.bitcast(exponent, vector))


def _all_lanes(number, vector):
    return ir.Constant(vector, [number] * vector.count)


def _larger(builder, x, y):
    """Return the larger numbers of two vectors; y where one of them is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _multiply_add(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def _data(context, builder, signature, i, array):
    return context.make_array(signature.args[i])(context, builder, array).data


def _load(builder, at, j, vector):
    return builder.load(_vector(builder, at, j, vector), align=4)


def _store(builder, value, at, j, vector):
    builder.store(value, _vector(builder, at, j, vector), align=4)


def _vector(builder, at, j, vector):
    return builder.bitcast(builder.gep(at, [_I64(vector.count * j)]), vector.as_pointer())


def _spread(builder, number, vector):
    """Return a vector with `number` in all its lanes."""
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, number, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, empty, zeros)
