"""A product of small matrices in loops that any compiler makes vectors of."""

import numpy as np

from attnbook.compilers.jit import compile_fused

_AT = np.uint64  # an index that is not negative, so that no test for that stands in a loop
_ZERO = np.float32(0)


@compile_fused
def product(a, start, a_row, a_column, b, c, rows, columns, depth):
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
