"""Products of tiles, and weights of scores, in the registers that a `Tile` describes."""

import numpy as np

from attnbook.compilers import exponentials
from attnbook.compilers.jit import compile_fused
from attnbook.compilers.register_tiles import multiply, multiply_add, multiply_onto, multiply_top

_AT = np.uint64  # an index that is not negative, so that no test for that stands in a loop
_HIDDEN, _LOG2_E = np.float32(-np.inf), np.float32(exponentials.LOG2_E)
_HALF = np.uint32(16)


@compile_fused
def product(tile, a, at, a_row, a_column, b, c, rows, columns, depth, top):
    """Set `rows` rows of C to A B, where A[i, k] is ``a[at + i a_row + k a_column]``.

    Each sum begins with 0 and is made in the order of k, with one rounding a step. `top` grows to
    the largest number of each column, if it is not None; there are then as many as the tile has.
    """
    of_b, of_c = b.shape[1], c.shape[1]
    for j in range(0, columns, tile.width):
        for i in range(0, rows, tile.rows):
            here, to, n = at + i * a_row, i * of_c + j, min(tile.rows, rows - i)
            if top is None:
                multiply(tile, a, here, a_row, a_column, b, j, of_b, c, to, of_c, n, depth)
            else:
                w = tile.width  # known to the compiler
                multiply_top(tile, a, here, a_row, a_column, b, 0, w, c, i * w, w, n, depth, top)


@compile_fused
def product_onto(tile, a, at, a_row, a_column, b, c, rows, columns, depth, factor):
    """Add A B to C, whose columns are first multiplied by `factor`, if it is not None.

    With a factor there are as many columns as the tile has.
    """
    of_b, of_c = b.shape[1], c.shape[1]
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

    With `words`, row i has then rows 2 i and 2 i + 1, rounded to bfloat16.
    """
    if words is None:
        exponentials.weigh(tile, scores, 0, keys, top, total, _LOG2_E)
    else:
        if keys % 2:
            scores[keys] = _HIDDEN
        exponentials.weigh(tile, scores, 0, keys + keys % 2, top, total, unit * _LOG2_E)


@compile_fused
def add_values(tile, work, at, words, weights, weighted, keys, factor):
    """Add the values of `keys` keys, as they are weighed, to `weighted` times `factor`."""
    row, d, width = work.value_row, work.d_v, weighted.shape[1]
    if words is None:
        of_values = (work.value, at, 1, row)
        product_onto(tile, *of_values, weights, weighted, d, width, keys, factor)
    else:
        for j in range(0, keys, 2):
            here, to = at + j * row, j // 2 * d
            for c in range(d):
                word = np.uint32(work.value[_AT(here + c)])
                if j + 1 < keys:
                    word |= np.uint32(work.value[_AT(here + row + c)]) << _HALF
                words[_AT(to + c)] = word
        n = (keys + 1) // 2
        product_onto(tile, words, 0, 1, d, weights, weighted, d, width, n, factor)
