"""The backward pass of the rungs *numba* and *packed*: the loops, compiled by Numba.

FlashAttention-2's order (Dao 2023, section 3.1.2): keys outside, queries inside. No weights were
kept, so each tile of them is made again from `log_total`. With a tile of scores S and the gradient
G of its rows of the output,

    P = exp(S − log_total),  D = row sums of G ⊙ O,
    ∂V += Pᵀ G,  E = P ⊙ (G Vᵀ − D),  ∂K += s Eᵀ Q,  ∂Q += s E K:

five products of tiles, where the matrix units of a GPU or the registers of a CPU do nearly all the
work. The gradients of a tile of keys are kept at hand while all queries pass by. A factor that is
common to a row of P, for what the rounding of `log_total` takes, is put to that row of G instead.

`product` is the only thing in which the two rungs differ: plain loops, or a micro-kernel.
Arrays are float32 and C-contiguous.
"""

import math

import numpy as np

from attnbook.compilers.jit import compile_fused, compile_inner, compile_loops
from attnbook.compilers.register_tiles import multiply, multiply_add
from attnbook.kernels.numba_loops.panels import exp
from attnbook.kernels.numba_loops.plain import product as multiply_plain

QUERIES, KEYS = 96, 96
"""Of a tile. All that is read and written for a tile stays in the second cache."""

_ZERO, _INF = np.float32(0), np.float32(math.inf)


@compile_loops
def backward_part(
    tile, width, heads, keys, queries, arrays, mask, bias, rules, scale, grad_q, grad_k, grad_v
):
    """Write what a range of keys and a range of queries give to the gradients of one key head.

    tile : `Tile` for `product`, or None.
    width : of the tile, or 1: rows that are written by `product` are padded to a multiple.
    heads : int64 (group, 6)
        For each query head of this key head its places in grad_q and in g, and in q, k, v, mask,
        bias.
    keys, queries : (start, stop)
    arrays : q (·, n_q, d_k), k (·, n_k, d_k), v (·, n_k, d_v), g (·, n_q, d_v); and (·, n_q)
        log_total, where ∞ hides a row; factor, of all weights of a row; and mean, of factor ⊙ G.
    mask : bool (·, n_q or 1, n_k or 1), read if rules[0]; bias : the same in float32, rules[1].
    rules : (has_mask, has_bias, is_causal)
    grad_q : (·, n_q, padded d_k), added to; grad_k (n_k, d_k), grad_v (n_k, d_v), written.
    """
    q, k, v, g, log_total, factor, mean = arrays
    has_mask, has_bias, is_causal = rules
    (n_q, d_k), (n_k, d_v) = q.shape[1:], v.shape[1:]
    wide_k, wide_v = grad_q.shape[-1], d_v + -d_v % width
    key_t, value_t = zeros(d_k, KEYS), zeros(d_v, KEYS)
    key, query, out = zeros(KEYS, wide_k), zeros(QUERIES, wide_k), zeros(QUERIES, wide_v)
    s, e = zeros(QUERIES, KEYS), zeros(QUERIES, KEYS)
    of_key, of_value = zeros(KEYS, wide_k), zeros(KEYS, wide_v)
    part = zeros(KEYS, max(wide_k, wide_v))
    later = n_k - n_q if is_causal else n_k  # query i sees no key after i + later
    for j in range(keys[0], keys[1], KEYS):
        columns = min(KEYS, keys[1] - j)
        wide = columns + -columns % width
        clear(of_key)
        clear(of_value)
        i_k, i_v = heads[0, 2], heads[0, 3]  # which the others share
        copy_rows(k[i_k], j, columns, scale, key)
        transpose(k[i_k], j, columns, key_t)
        transpose(v[i_v], j, columns, value_t)
        for head in range(len(heads)):
            i_g, i_q, i_m, i_b = heads[head, 0], heads[head, 1], heads[head, 4], heads[head, 5]
            first = max(queries[0], j - later)  # queries before it see none of these keys
            for i in range(first - (first - queries[0]) % QUERIES, queries[1], QUERIES):
                rows = min(QUERIES, queries[1] - i)
                if has_mask and not any_seen(mask[i_m], i, j, rows, columns):
                    continue
                copy_rows(q[i_q], i, rows, scale, query)
                copy_scaled(g[i_g], i, rows, factor[i_g], out)
                product(tile, part, query, False, key_t, s, 0, rows, wide, d_k, False)
                product(tile, part, out, False, value_t, e, 0, rows, wide, d_v, False)
                if has_bias:
                    add_bias(s, bias[i_b], i, j, rows, columns)
                if has_mask:
                    hide(s, mask[i_m], i, j, rows, columns)
                if j + columns - 1 > i + later:
                    hide_later(s, i + later - j, rows, columns)
                weigh(s, e, log_total[i_g, i : i + rows], mean[i_g, i : i + rows], wide)
                product(tile, part, s, True, out, of_value, 0, columns, wide_v, rows, True)
                product(tile, part, e, True, query, of_key, 0, columns, wide_k, rows, True)
                product(tile, part, e, False, key, grad_q[i_g], i, rows, wide_k, columns, True)
        write(of_key, j, columns, grad_k)
        write(of_value, j, columns, grad_v)


@compile_inner
def zeros(rows, columns):
    return np.zeros((rows, columns), dtype=np.float32)


@compile_fused
def product(tile, part, a, turned, b, c, first, rows, columns, depth, add):
    """Write A B to rows of c from `first` on, or `add` it; A is the transpose of a if `turned`.

    Each sum starts at 0 and is made in the order of k, with one rounding a step: the score of a
    query and a key has the bits that it had in the forward pass. `part` is for the plain loops.
    """
    n, of_b, of_c = a.shape[1], b.shape[1], c.shape[1]
    of_row, of_k = (1, n) if turned else (n, 1)
    if tile is None:
        to = part if add else c
        multiply_plain(a.reshape(a.size), 0, of_row, of_k, b[:depth], to, rows)
        if add:
            for i in range(rows):
                for j in range(columns):
                    c[first + i, j] += part[i, j]
    else:
        for j in range(0, columns, tile.width):
            for i in range(0, rows, tile.rows):
                at, to, some = i * of_row, (first + i) * of_c + j, min(tile.rows, rows - i)
                if add:
                    multiply_add(tile, a, at, of_row, of_k, b, j, of_b, c, to, of_c, some, depth)
                else:
                    multiply(tile, a, at, of_row, of_k, b, j, of_b, c, to, of_c, some, depth)


@compile_fused
def weigh(s, e, log_total, mean, columns):
    """Turn the scores s into weights P, and the gradients e of the weights into P ⊙ (e − mean)."""
    for i in range(len(log_total)):
        of_row, mean_of_row = log_total[i], mean[i]
        for j in range(columns):
            weight = exp(s[i, j] - of_row)
            s[i, j] = weight
            e[i, j] = weight * (e[i, j] - mean_of_row)


@compile_loops
def row_sums(x, y, factor, sums):
    """Write Σ x ⊙ y of each row; a row of y is multiplied by its factor first."""
    last = len(sums) - 1
    for i in range(0, last + 1, 4):
        four_sums(x, y, (i, min(i + 1, last), min(i + 2, last), min(i + 3, last)), factor, sums)


@compile_fused
def four_sums(x, y, rows, factor, sums):
    """Do this for four rows: one sum alone would wait for each of its additions.

    In the order of `product`: where a weight is 1, the mean is its gradient to the last bit.
    """
    i, j, k, m = rows
    f_i, f_j, f_k, f_m = factor[i], factor[j], factor[k], factor[m]
    t_i = t_j = t_k = t_m = _ZERO
    for a in range(x.shape[1]):
        t_i += x[i, a] * np.float32(y[i, a] * f_i)
        t_j += x[j, a] * np.float32(y[j, a] * f_j)
        t_k += x[k, a] * np.float32(y[k, a] * f_k)
        t_m += x[m, a] * np.float32(y[m, a] * f_m)
    sums[i], sums[j], sums[k], sums[m] = t_i, t_j, t_k, t_m


@compile_inner
def copy_rows(x, first, rows, factor, to):
    """Write so many rows of x, times a factor."""
    for i in range(rows):
        for a in range(x.shape[1]):
            to[i, a] = x[first + i, a] * factor


@compile_inner
def copy_scaled(x, first, rows, factors, to):
    """Write so many rows of x, each times a factor of its own."""
    for i in range(rows):
        factor = factors[first + i]
        for a in range(x.shape[1]):
            to[i, a] = x[first + i, a] * factor


@compile_inner
def write(x, first, rows, to):
    """Write so many rows of x, without what pads them, to rows from `first` on."""
    for i in range(rows):
        for a in range(to.shape[1]):
            to[first + i, a] = x[i, a]


@compile_inner
def clear(x):
    for i in range(x.shape[0]):
        for a in range(x.shape[1]):
            x[i, a] = _ZERO


@compile_inner
def transpose(x, first, rows, to):
    """Write so many rows of x as columns; the others are 0."""
    for a in range(x.shape[1]):
        for i in range(rows):
            to[a, i] = x[first + i, a]
        for i in range(rows, to.shape[1]):
            to[a, i] = _ZERO


@compile_inner
def any_seen(mask, i, j, rows, columns):
    """Return whether a tile of the mask has a True. Axes of length 1 are repeated."""
    i, rows = (0, 1) if mask.shape[0] == 1 else (i, rows)
    j, columns = (0, 1) if mask.shape[1] == 1 else (j, columns)
    for r in range(i, i + rows):
        for c in range(j, j + columns):
            if mask[r, c]:
                return True
    return False


@compile_inner
def hide(s, mask, i, j, rows, columns):
    """Write −∞ where a tile of the mask is False."""
    down, right = int(mask.shape[0] != 1), int(mask.shape[1] != 1)
    for r in range(rows):
        for c in range(columns):
            if not mask[(i + r) * down, (j + c) * right]:
                s[r, c] = -_INF


@compile_inner
def hide_later(s, last, rows, columns):
    """Write −∞ where a key comes later than its query: row r sees columns up to last + r."""
    for r in range(rows):
        for c in range(max(0, last + r + 1), columns):
            s[r, c] = -_INF


@compile_inner
def add_bias(s, bias, i, j, rows, columns):
    """Add a tile of the bias."""
    down, right = int(bias.shape[0] != 1), int(bias.shape[1] != 1)
    for r in range(rows):
        for c in range(columns):
            s[r, c] += bias[(i + r) * down, (j + c) * right]
