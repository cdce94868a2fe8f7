"""Products of small matrices whose sums stay in the registers, for Numba.

A `Tile` says how many registers hold the sums. It is a type of its own to Numba, so a loop that is
given another tile is compiled anew, for as many numbers a vector, vectors and rows. All is written
for LLVM, Numba's compiler, which turns it into what the processor has: AVX-512, AVX2, SSE2 or Neon.

Arrays are C-contiguous, of one dtype, float32 or float64. Places are counted in numbers from the
start of an array, so one product reads rows of any stride. A tile of `pairs` multiplies bfloat16
numbers two at a time, whose bits share a word of 32, by one instruction where the processor has it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.imputils import lower_constant
from numba.extending import (
    NativeValue,
    intrinsic,
    models,
    overload_attribute,
    register_model,
    typeof_impl,
    unbox,
)

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FUSED = ("contract",)  # a product and a sum with one rounding, where the processor has that


@dataclass(frozen=True)
class Tile:
    """The shape of a tile of sums: `rows` times `vectors` registers of `lanes` numbers.

    With `pairs`, each step of a product adds up two products of bfloat16 numbers.
    """

    lanes: int
    rows: int
    vectors: int
    pairs: bool = False

    @property
    def width(self) -> int:
        """The columns of the tile."""
        return self.lanes * self.vectors


TILES = {16: Tile(16, 8, 2), 8: Tile(8, 4, 3), 4: Tile(4, 4, 3)}
"""By lanes: with AVX-512 16 of 32 registers hold sums, with AVX2 12 of 16; SSE2 and Neon have 4."""


def features() -> dict[str, bool]:
    """Return what Numba compiles for: this processor's features, or NUMBA_CPU_FEATURES if set."""
    if config.CPU_FEATURES is None:
        return llvmlite.binding.get_host_cpu_features()
    names = filter(None, config.CPU_FEATURES.split(","))
    return {name[1:]: name[0] == "+" for name in names}


@functools.cache
def has_pairs() -> bool:
    """Return whether one instruction multiplies pairs of bfloat16 numbers and adds them up."""
    return bool(features().get("avx512bf16"))


@functools.cache
def lanes() -> int:
    """Return how many float32 numbers a vector register holds, of those that Numba compiles for."""
    has = features()
    if has.get("avx512f"):
        return 16
    return 8 if has.get("avx2") and has.get("fma") else 4


class TileType(types.Type):
    """What Numba knows of a `Tile`: everything."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(name=repr(tile))
        self.tile = tile


_type_of = functools.cache(TileType)
typeof_impl.register(Tile)(lambda tile, context: _type_of(tile))


@unbox(TileType)
def _unbox(typ, obj, context):
    return NativeValue(context.context.get_dummy_value())


@lower_constant(TileType)
def _constant(context, builder, typ, value):
    return context.get_dummy_value()


register_model(TileType)(models.OpaqueModel)


def _constant_of_tile(name):
    """Return how loops get an attribute of their tile: as a constant."""

    def typed(tile):
        number = getattr(tile.tile, name)
        return lambda tile: number

    return typed


for _name in ("lanes", "rows", "vectors", "pairs", "width"):
    overload_attribute(TileType, _name)(_constant_of_tile(_name))


class Vectors:
    """Writes the code of one call: loads, stores and sums of the vectors of its tile."""

    def __init__(self, context, builder, signature, args, sums):
        self.context, self.builder, self.signature, self.args = context, builder, signature, args
        self.tile: Tile = signature.args[0].tile
        number = context.get_value_type(signature.args[sums].dtype)  # of the array of sums
        self.vector = ir.VectorType(number, self.tile.lanes)
        self.words = ir.VectorType(_I32, self.tile.lanes)
        self.columns = range(self.tile.vectors)

    def start(self, i, at=None):
        """Return a pointer to the number `at` of the array that is argument i."""
        make = self.context.make_array(self.signature.args[i])
        data = make(self.context, self.builder, self.args[i]).data
        return data if at is None else self.builder.gep(data, [at])

    def row(self, at):
        """Return the vectors of the row that begins at a pointer."""
        return [self.load(at, j) for j in self.columns]

    def load(self, at, j=0):
        """Return vector j of the row that begins at a pointer."""
        return self.builder.load(self._vector(at, j), align=4)

    def one(self, at):
        """Return a vector of the number, or the pair, at a pointer."""
        number = _I32 if self.tile.pairs else self.vector.element
        at = self.builder.bitcast(at, number.as_pointer())
        return self.spread(self.builder.load(at, align=2))

    def store(self, row, at):
        """Store the vectors of a row from a pointer on."""
        for j, vector in enumerate(row):
            self.builder.store(vector, self._vector(at, j), align=4)

    def _vector(self, at, j):
        at = self.builder.gep(at, [_I64(self.tile.lanes * j)])
        return self.builder.bitcast(at, self.vector.as_pointer())

    def spread(self, number):
        """Return a vector with `number` in all its lanes."""
        empty = ir.Constant(ir.VectorType(number.type, self.tile.lanes), ir.Undefined)
        one = self.builder.insert_element(empty, number, _I32(0))
        zeros = ir.Constant(self.words, [0] * self.tile.lanes)
        return self.builder.shuffle_vector(one, empty, zeros)

    def multiply_add(self, a, b, c):
        """Return a b + c."""
        return self.builder.fadd(self.builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)

    def dot(self, a, b, c):
        """Return c + a b, or the sum of both products of each pair and c."""
        if not self.tile.pairs:
            return self.multiply_add(a, b, c)
        a, b = (self.builder.bitcast(x, self.words) for x in (a, b))
        if self.tile.lanes == 16 and has_pairs():
            shape = ir.FunctionType(self.vector, [self.vector, self.words, self.words])
            name = "llvm.x86.avx512bf16.dpbf16ps.512"
            function = self.builder.module.declare_intrinsic(name, (), shape)
            return self.builder.call(function, [c, a, b])
        for halves in (self._first, self._second):
            c = self.multiply_add(halves(a), halves(b), c)
        return c

    def _first(self, words):
        up = self.builder.shl(words, self.all_lanes(16, self.words))
        return self.builder.bitcast(up, self.vector)

    def _second(self, words):
        kept = self.builder.and_(words, self.all_lanes(0xFFFF0000, self.words))
        return self.builder.bitcast(kept, self.vector)

    def pair(self, a, b, even=False):
        """Return the words whose halves are `a` and `b`, rounded to bfloat16.

        What lies half between two numbers goes away from 0, or to the `even` one.
        """
        a, b = (self._to_upper(self.builder.bitcast(x, self.words), even) for x in (a, b))
        b = self.builder.and_(b, self.all_lanes(0xFFFF0000, self.words))
        a = self.builder.lshr(a, self.all_lanes(16, self.words))
        return self.builder.bitcast(self.builder.or_(a, b), self.vector)

    def _to_upper(self, word, even):
        """Return words whose upper halves are rounded."""
        if not even:
            return self.builder.add(word, self.all_lanes(0x8000, self.words))
        odd = self.builder.lshr(word, self.all_lanes(16, self.words))
        odd = self.builder.and_(odd, self.all_lanes(1, self.words))
        word = self.builder.add(word, self.all_lanes(0x7FFF, self.words))
        return self.builder.add(word, odd)

    def all_lanes(self, number, vector=None):
        """Return a constant with `number` in all lanes."""
        vector = vector or self.vector
        return ir.Constant(vector, [number] * vector.count)

    def sums(self, n_rows, n, step):
        """Return rows of vectors that begin as 0, after ``rows = step(k, rows)`` for each k < n."""
        builder, before = self.builder, self.builder.block
        loop, after = (builder.append_basic_block(name) for name in ("loop", "after"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_I64)
        rows = [[builder.phi(self.vector) for _ in self.columns] for _ in range(n_rows)]
        new = step(k, rows)
        following = builder.add(k, _I64(1))
        k.add_incoming(_I64(0), before)
        k.add_incoming(following, loop)
        for phis, values in zip(rows, new, strict=True):
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(ir.Constant(self.vector, None), before)
                phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, after)
        builder.position_at_end(after)
        return new


# Products. Of a tile, C has `rows` rows and lanes · vectors columns; A has as many rows and `depth`
# columns, at least one, and B the reverse. They stand at places a0, b0, c0: row i and column k of A
# at a0 + i a_row + k a_column, so A may be a transpose; rows of B and C are b_row and c_row apart
# and contiguous. Each sum begins with 0 and is made in the order of k. Where fewer than tile.rows
# rows are asked for, the last one is done more than once.


def _product(end: Callable[..., None]) -> Any:
    """Return the intrinsic that makes the sums of A B and leaves them to `end`."""

    def generate(context, builder, signature, args):
        code = Vectors(context, builder, signature, args, 8)
        _, _, a0, a_row, a_column, _, b0, b_row, _, c0, c_row, rows, depth, _ = args
        a, b, c = code.start(1, a0), code.start(5, b0), code.start(8, c0)
        last = builder.sub(rows, _I64(1))
        clamped = [
            builder.select(builder.icmp_signed("<", _I64(i), last), _I64(i), last)
            for i in range(code.tile.rows)
        ]
        a_rows = [builder.gep(a, [builder.mul(i, a_row)]) for i in clamped]
        c_rows = [builder.gep(c, [builder.mul(i, c_row)]) for i in clamped]

        def step(k, sums):
            of_b = code.row(builder.gep(b, [builder.mul(k, b_row)]))
            at = builder.mul(k, a_column)
            added = []
            for a_at, row in zip(a_rows, sums, strict=True):
                number = code.one(builder.gep(a_at, [at]))
                added.append([code.dot(number, of_b[j], row[j]) for j in code.columns])
            return added

        end(code, c_rows, code.sums(code.tile.rows, depth, step))
        return context.get_dummy_value()

    def product(
        typingctx,
        tile,
        a,
        a0,
        a_row,
        a_column,
        b,
        b0,
        b_row,
        c,
        c0,
        c_row,
        rows,
        depth,
        column=None,
    ):
        n, column = types.int64, types.none if column is None else column
        return types.void(tile, a, n, n, n, b, n, n, c, n, n, n, n, column), generate

    return intrinsic(product)


def _store(code, to, sums):
    for at, row in zip(to, sums, strict=True):
        code.store(row, at)


def _add(code, to, sums):
    old = [code.row(at) for at in to]  # all of them first: the last may be there more than once
    for row, added in zip(old, sums, strict=True):
        row[:] = map(code.builder.fadd, row, added)
    _store(code, to, old)


def _add_to_scaled(code, to, sums):
    factors = code.row(code.start(13))
    old = [code.row(at) for at in to]
    for row, added in zip(old, sums, strict=True):
        row[:] = map(code.multiply_add, row, factors, added)
    _store(code, to, old)


def _store_with_top(code, to, sums):
    _store(code, to, sums)
    builder, top = code.builder, code.start(13)
    highest = code.row(top)
    for row in sums:
        for j in code.columns:  # NaN is not larger
            larger = builder.fcmp_ordered(">", row[j], highest[j])
            highest[j] = builder.select(larger, row[j], highest[j])
    code.store(highest, top)


multiply: Any = _product(_store)
"""C = A B: ``multiply(tile, a, a0, a_row, a_column, b, b0, b_row, c, c0, c_row, rows, depth)``."""

multiply_add: Any = _product(_add)
"""C = C + A B."""

multiply_top: Any = _product(_store_with_top)
"""C = A B, and the last argument, `top`, grows to the largest number of each column."""

multiply_onto: Any = _product(_add_to_scaled)
"""C = C · factor + A B, where the last argument has a factor for each column."""


# Instructions that Numba has no words for


def _claim(typingctx, counter):
    """Return ``counter[0]`` and add 1 to it, in one step that no other thread can part."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, _I64(1), "monotonic")

    return types.int64(counter), generate


def _asks_for(nearness: int) -> Any:
    """Return the intrinsic that asks for a cache line, to be held as near as 3 or as far as 0."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], shape)
        to_read, data_cache = _I32(0), _I32(1)
        builder.call(function, [address, to_read, _I32(nearness), data_cache])
        return context.get_dummy_value()

    def asks(typingctx, x, i):
        return types.void(x, i), generate

    return intrinsic(asks)


claim: Any = intrinsic(_claim)
prefetch: Any = _asks_for(3)
"""Ask for the cache line of ``x.ravel()[i]``; `x` is C-contiguous. A wrong `i` does no harm."""

prefetch_far: Any = _asks_for(2)
"""The same for the second cache; a long row of lines came faster there than into the first."""
