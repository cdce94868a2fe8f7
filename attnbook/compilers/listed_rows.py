"""Products of a few rows with rows that a list places anywhere in an array, for Numba.

Each of those rows is read where it lies, once for all rows of the tile. A tile has few rows, whose
sums stay in the registers; arrays and places are those of `register_tiles`, and `places` is a
contiguous array of int64: where each row begins.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from attnbook.compilers.register_tiles import Tile, Vectors

BLOCK = 32
"""Numbers of which `largest` finds the largest."""


def tiles_of(lanes: int) -> tuple[Tile, Tile, Tile]:
    """Return tiles for vectors of so many lanes: of a few rows, of one row, and of a block.

    The registers hold the sums of the rows with as many listed ones as the tile has vectors.
    """
    return (
        Tile(lanes, 4, 4 if lanes == 16 else 2),
        Tile(lanes, 1, 4),
        Tile(lanes, 1, BLOCK // lanes),
    )


_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _listed(code, places, first, array, count):
    """Return pointers to `count` listed rows of an array, from place `first` of the list on."""
    at = [code.builder.gep(places, [code.builder.add(first, _I64(i))]) for i in range(count)]
    return [code.builder.gep(array, [code.builder.load(x)]) for x in at]


def _rows(code, start, step):
    """Return pointers to the rows of the tile, `step` numbers apart."""
    rows = range(code.tile.rows)
    return [code.builder.gep(start, [code.builder.mul(_I64(i), step)]) for i in rows]


def _pick(code, a, b, lanes):
    """Return a vector of these lanes of two vectors, those of `b` counted on from those of `a`."""
    return code.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), [*lanes]))


def _folded(code, vector, count, join):
    """Return a vector of `count` lanes, by joining the halves of a vector again and again."""
    while vector.type.count > count:
        half = vector.type.count // 2
        halves = (_pick(code, vector, vector, range(i, i + half)) for i in (0, half))
        vector = join(*halves)
    return vector


def _sums_of(code, vectors):
    """Return a vector of the sums of the lanes of 2 or 4 vectors."""
    n, add = code.tile.lanes, code.builder.fadd
    first = [4 * q + i for q in range(n // 4) for i in (0, 2, n, n + 2)]  # of pairs of lanes
    second = [lane + 1 for lane in first]

    def paired(a, b):
        return add(_pick(code, a, b, first), _pick(code, a, b, second))

    pairs = [paired(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    fours = paired(pairs[0], pairs[-1])  # four lanes have the sums of four lanes of each vector
    total = _folded(code, fours, 4, add)
    return _pick(code, total, total, range(len(vectors)))


def _multiply(typingctx, tile, a, a0, a_row, b, places, first, c, c0, c_row, depth):
    """Set C[i, j] to Σ A[i, k] B[j, k] of the first `depth` numbers, a multiple of the lanes.

    B[j] is the row at ``places[first + j]``, and there are as many as the tile has vectors. Each
    sum is made in the lanes of a vector, and these are added up at the end.
    """

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 7)
        _, _, a0, a_row, _, _, first, _, c0, c_row, depth = args
        of_a = _rows(code, code.start(1, a0), a_row)
        of_b = _listed(code, code.start(5), first, code.start(4), code.tile.vectors)

        def step(k, sums):
            at = builder.mul(k, _I64(code.tile.lanes))
            b = [code.load(builder.gep(x, [at])) for x in of_b]
            a = [code.load(builder.gep(x, [at])) for x in of_a]
            return [
                [code.multiply_add(x, y, z) for y, z in zip(b, row, strict=True)]
                for x, row in zip(a, sums, strict=True)
            ]

        n_steps = builder.sdiv(depth, _I64(code.tile.lanes))
        sums = code.sums(code.tile.rows, n_steps, step)
        for at, row in zip(_rows(code, code.start(7, c0), c_row), sums, strict=True):
            totals = _sums_of(code, row)
            builder.store(totals, builder.bitcast(at, totals.type.as_pointer()), align=4)
        return context.get_dummy_value()

    n = types.int64
    return types.void(tile, a, n, n, b, places, n, c, n, n, n), generate


def _largest(typingctx, tile, a, at, top):
    """Return the largest of `top` and the numbers of A from `at` on, as many as the tile is wide.

    NaN is not larger.
    """

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 1)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        best = code.spread(args[3])
        for vector in code.row(code.start(1, args[2])):
            best = larger(vector, best)
        return builder.extract_element(_folded(code, best, 1, larger), _I32(0))

    return types.float32(tile, a, types.int64, types.float32), generate


def _add(typingctx, tile, a, a0, a_row, b, places, first, column, c, c0, c_row, depth):
    """Add Σ A[i, k] B[k, j] to C[i, j], where B[k] is the row at ``places[first + k]``.

    There are `depth` listed rows, at least one, and as many columns, from `column` of B on, as the
    tile is wide. Each sum is made in the order of k.
    """

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 8)
        _, _, a0, a_row, _, _, first, column, _, c0, c_row, depth = args
        of_a = _rows(code, code.start(1, a0), a_row)
        of_c = _rows(code, code.start(8, c0), c_row)
        of_b = code.start(4, column)

        def step(k, sums):
            (at,) = _listed(code, code.start(5), builder.add(first, k), of_b, 1)
            b = code.row(at)
            added = []
            for x, row in zip(of_a, sums, strict=True):
                number = code.one(builder.gep(x, [k]))
                added.append([code.multiply_add(number, y, z) for y, z in zip(b, row, strict=True)])
            return added

        sums = code.sums(code.tile.rows, depth, step)
        for at, row in zip(of_c, sums, strict=True):
            code.store(map(builder.fadd, code.row(at), row), at)
        return context.get_dummy_value()

    n = types.int64
    return types.void(tile, a, n, n, b, places, n, n, c, n, n, n), generate


multiply_listed: Any = intrinsic(_multiply)
add_listed: Any = intrinsic(_add)
largest: Any = intrinsic(_largest)
