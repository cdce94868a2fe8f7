"""Products of tiles, and weights of scores, by plain loops or in registers.

In the two compiled rungs alone this differs: *numba* passes None for a tile, and *packed* a `Tile`
of the registers. There is nothing in the plain loops but numbers. The innermost loop runs over a
row of a tile, whose numbers do not depend on each other, so LLVM makes it of vectors, whatever the
processor has. Four rows and four terms at a time, each number that is read from the innermost cache
is used four times.
"""

import numpy as np

from attnbook.compilers import exponentials
from attnbook.compilers.jit import compile_fused
from attnbook.compilers.register_tiles import multiply, multiply_add, multiply_onto, multiply_top
from attnbook.kernels.numba_loops.panels import exp, raise_top

_AT = np.uint64  # an index that is not negative, so that no test for that stands in a loop
_ZERO, _HIDDEN, _LOG2_E = np.float32(0), np.float32(-np.inf), np.float32(exponentials.LOG2_E)
_HALF = np.uint32(16)


@compile_fused
def product(tile, a, at, a_row, a_column, b, c, rows, columns, depth, top):
    """Set `rows` rows of C to A B, where A[i, k] is ``a[at + i a_row + k a_column]``.

    Each sum begins with 0 and is made in the order of k, with one rounding a step. `top` grows to
    the largest number of each column, if it is not None; there are then as many as the tile has.
    """
    of_b, of_c = b.shape[1], c.shape[1]
    if tile is None:
        multiply_plain(a, at, a_row, a_column, b, c, rows, columns, depth)
        if top is not None:
            raise_top(c, rows, top)
    else:
        for j in range(0, columns, tile.width):
            for i in range(0, rows, tile.rows):
                here, to, n = at + i * a_row, i * of_c + j, min(tile.rows, rows - i)
                if top is None:
                    multiply(tile, a, here, a_row, a_column, b, j, of_b, c, to, of_c, n, depth)
                else:
                    w = tile.width  # known to the compiler
                    multiply_top(
                        tile, a, here, a_row, a_column, b, 0, w, c, i * w, w, n, depth, top
                    )


@compile_fused
def product_onto(tile, part, a, at, a_row, a_column, b, c, rows, columns, depth, factor):
    """Add A B to C, whose columns are first multiplied by `factor`, if it is not None.

    With a factor there are as many columns as the tile has. `part` is for the plain loops to use.
    """
    of_b, of_c = b.shape[1], c.shape[1]
    if tile is None:
        multiply_plain(a, at, a_row, a_column, b, part, rows, columns, depth)
        for i in range(rows):
            for j in range(columns):
                if factor is None:
                    c[i, j] += part[i, j]
                else:
                    c[i, j] = c[i, j] * factor[j] + part[i, j]
    else:
        for j in range(0, columns, tile.width):
            for i in range(0, rows, tile.rows):
                here, to, n = at + i * a_row, i * of_c + j, min(tile.rows, rows - i)
                if factor is None:
                    multiply_add(tile, a, here, a_row, a_column, b, j, of_b, c, to, of_c, n, depth)
                else:
                    w = tile.width
                    multiply_onto(
                        tile, a, here, a_row, a_column, b, 0, w, c, i * w, w, n, depth, factor
                    )


@compile_fused
def weigh(tile, scores, keys, top, total, unit, words):
    """Replace the first `keys` rows of scores by e**(unit (score - top)), and sum them in `total`.

    The plain loops know a unit of 1 alone. With `words`, row i has then rows 2 i and 2 i + 1,
    rounded to bfloat16.
    """
    if tile is None:
        weigh_plain(scores, keys, top, total)
    elif words is None:
        exponentials.weigh(tile, scores, 0, keys, top, total, _LOG2_E)
    else:
        if keys % 2:
            scores[keys] = _HIDDEN
        exponentials.weigh(tile, scores, 0, keys + keys % 2, top, total, unit * _LOG2_E)


@compile_fused
def add_values(tile, part, work, at, words, weights, weighted, keys, factor):
    """Add the values of `keys` keys, as they are weighed, to `weighted` times `factor`."""
    row, d, width = work.value_row, work.d_v, weighted.shape[1]
    if words is None:
        of_values = (work.value, at, 1, row)
        product_onto(tile, part, *of_values, weights, weighted, d, width, keys, factor)
    else:
        for j in range(0, keys, 2):
            here, to = at + j * row, j // 2 * d
            for c in range(d):
                word = np.uint32(work.value[_AT(here + c)])
                if j + 1 < keys:
                    word |= np.uint32(work.value[_AT(here + row + c)]) << _HALF
                words[_AT(to + c)] = word
        n = (keys + 1) // 2
        product_onto(tile, part, words, 0, 1, d, weights, weighted, d, width, n, factor)


@compile_fused
def multiply_plain(a, start, a_row, a_column, b, c, rows, columns, depth):
    """Set `rows` rows of C to A B by loops."""
    for i in range(rows):
        for j in range(columns):
            c[i, j] = _ZERO
    whole_rows, whole_depth = rows - rows % 4, depth - depth % 4
    for i in range(0, whole_rows, 4):
        i0, i1, i2, i3 = _AT(i), _AT(i + 1), _AT(i + 2), _AT(i + 3)
        for k in range(0, whole_depth, 4):
            k0, k1, k2, k3 = _AT(k), _AT(k + 1), _AT(k + 2), _AT(k + 3)
            at = start + i * a_row + k * a_column
            w0, w1, w2, w3 = four(a, at, a_column)
            x0, x1, x2, x3 = four(a, at + a_row, a_column)
            y0, y1, y2, y3 = four(a, at + 2 * a_row, a_column)
            z0, z1, z2, z3 = four(a, at + 3 * a_row, a_column)
            for j in range(columns):
                r = _AT(j)
                b0, b1, b2, b3 = b[k0, r], b[k1, r], b[k2, r], b[k3, r]
                c[i0, r] = c[i0, r] + w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3
                c[i1, r] = c[i1, r] + x0 * b0 + x1 * b1 + x2 * b2 + x3 * b3
                c[i2, r] = c[i2, r] + y0 * b0 + y1 * b1 + y2 * b2 + y3 * b3
                c[i3, r] = c[i3, r] + z0 * b0 + z1 * b1 + z2 * b2 + z3 * b3
    for i in range(rows):
        for k in range(whole_depth if i < whole_rows else 0, depth):
            number = a[start + i * a_row + k * a_column]
            for j in range(columns):
                c[i, j] += number * b[k, j]


@compile_fused
def four(a, at, step):
    """Return four numbers, `step` apart."""
    return a[_AT(at)], a[_AT(at + step)], a[_AT(at + 2 * step)], a[_AT(at + 3 * step)]


@compile_fused
def weigh_plain(scores, keys, top, total):
    """Replace scores by weights and sum them, by loops."""
    for r in range(total.size):
        total[r] = _ZERO
    for j in range(keys):
        for r in range(scores.shape[1]):
            weight = exp(scores[j, r] - top[r])
            scores[j, r] = weight
            total[r] += weight
