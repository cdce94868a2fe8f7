"""The backward pass of the rung *packed*.

FlashAttention-2's order (Dao 2023, section 3.1.2): keys outside, queries inside. No weights were
kept, so each tile of them is made again from `log_total`. With a tile of scores S and the gradient
G of its rows of the output,

    P = exp(S − log_total),  D = row sums of G ⊙ O,
    ∂V += Pᵀ G,  E = P ⊙ (G Vᵀ − D),  ∂K += s Eᵀ Q,  ∂Q += s E K:

five products of tiles, where the registers of a CPU do nearly all the work. The gradients of a tile
of keys are kept at hand while all queries pass by. A factor that is common to a row of P, for what
the rounding of `log_total` takes, is put to that row of G instead.

A piece of work is a range of keys and a range of queries of one key head, with all query heads that
share it, so that nothing is written by two threads. What several pieces give to one gradient is
added at the end in the order of the pieces: the bits depend on the shapes alone, not on the number
of threads.

Memory beside the gradients: a copy of the gradient of the output, a few numbers a query, less than
1 MiB a thread, and with fewer key heads than `PIECES` as many copies of the gradient of the queries
as pieces of keys, at most 16. Agrees with `attnbook.attention_vjp` with ``impl="reference"``.
"""

import itertools
import math

import numpy as np

from attnbook.arrays.intervals import Intervals
from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_fused, compile_inner, compile_loops, read_only
from attnbook.compilers.register_tiles import Tile
from attnbook.kernels.numba_loops.arrays import (
    KEY,
    OUTPUT,
    QUERY,
    VALUE,
    arrange,
    float32,
    plain,
    restored,
)
from attnbook.kernels.numba_loops.panels import add_bias, count_seen, exp, hide_masked
from attnbook.kernels.numba_loops.products import product, product_onto
from attnbook.kernels.numba_loops.ranges import all_seen, hide_unseen
from attnbook.kernels.numba_loops.runs import NO_RUNS, runs_at, runs_of, seen_in_pieces

TILES = {16: Tile(16, 12, 2), 8: Tile(8, 6, 2), 4: Tile(4, 6, 2)}
"""By numbers in a vector: 24 of AVX-512's 32 registers hold sums, 12 of 16 elsewhere."""

QUERIES, KEYS = 96, 96
"""Of a tile. All that is read and written for a tile stays in the second cache."""

PIECES = 8
"""With fewer key heads than that, keys are split too, into twice as many pieces in all."""

LARGEST = 1e9
"""Beside larger scores a float64 loses the logarithm of their total."""

WORTH = 2**22
"""Multiply-adds that are worth a thread."""

_AT = np.uint64  # an index that is not negative: no test for that stands in a loop
_ZERO, _ONE, _HIDDEN = np.float32(0), np.float32(1), np.float32(-math.inf)


def backward(tile, query, key, value, mask, bias, scale, is_causal, output, log_total, grad_output):
    """Return the gradients of query, key and value in float32, by products of a tile's shape.

    Their leading axes may be more than those of the inputs, whose gradients are the sums over them.
    """
    inputs, rest = (query, key, value), (mask, bias, scale, is_causal)
    work, leading, of_keys = arrange(*inputs, *rest, repeats_are_shared=False)
    n_key_heads = math.prod(of_keys)
    n_q, n_k, d_k, d_v = work.n_q, work.n_k, work.d_k, value.shape[-1]
    n_rows = math.prod(leading) * n_q
    wanted = 1 if n_key_heads >= PIECES else -(-2 * PIECES // max(1, n_key_heads))
    keys = _split(n_k, KEYS, wanted)
    queries = _split(n_q, QUERIES, -(-wanted // len(keys)))
    grad_q = np.zeros((len(keys), n_rows, d_k + -d_k % tile.width), dtype=np.float32)
    grad_k = np.zeros((len(queries), n_key_heads, n_k, d_k), dtype=np.float32)
    grad_v = np.zeros((len(queries), n_key_heads, n_k, d_v), dtype=np.float32)
    if n_rows * n_k * d_v:  # without any, all gradients are 0
        shift, factor = _rounded(plain(log_total).reshape(n_rows))
        out, grad = (float32(plain(x)).reshape(n_rows, d_v) for x in (output, grad_output))
        grad = grad * factor[:, None]
        mean = np.empty(n_rows, dtype=np.float32)
        row_sums(read_only(out), read_only(grad), mean)
        rows = tuple(read_only(x) for x in (grad.reshape(-1), shift, mean))
        pieces = list(itertools.product(range(n_key_heads), range(len(keys)), range(len(queries))))
        runs = NO_RUNS
        if isinstance(mask, Intervals):
            runs = mask.made(("runs", QUERIES, KEYS), lambda: runs_of(mask, QUERIES, KEYS))
            bounds = [
                [(a // size, -(-b // size)) for a, b in x]
                for x, size in ((keys, KEYS), (queries, QUERIES))
            ]
            seen = seen_in_pieces(work, runs, *bounds)
            pieces.sort(key=lambda piece: -seen[piece])
        todo = iter(pieces)

        def take(start, stop, part):
            for head, i, j in todo:  # whoever is free takes the next
                to = (grad_q[i], grad_k[j, head], grad_v[j, head])
                backward_part(tile, work, head, keys[i], queries[j], runs, rows, *to)

        n_products = n_rows * n_k * (3 * d_k + 2 * d_v)
        n_threads = n_threads_for(n_products, worth=WORTH)
        n_threads = min(n_threads, n_key_heads * len(keys) * len(queries))
        in_parts(take, n_threads, n_threads)
    d_k = query.shape[-1]  # 0 where the loops have a column of zeros
    grads = (
        _sum(grad_q)[:, :d_k].reshape(*leading, n_q, d_k),
        _sum(grad_k)[..., :d_k].reshape(*of_keys, n_k, d_k),
        _sum(grad_v).reshape(*of_keys, n_k, d_v),
    )
    return tuple(restored(grad, query, exact=True) for grad in grads)


def _rounded(log_total):
    """Return `log_total` in float32, and the factor of all weights that are made with that.

    A logarithm of 10 is rounded by up to 5e-7, and so much would all weights of its row be off. A
    row that sees nothing has log 0 = −∞, and gets exp(score − ∞) = 0.
    """
    empty = log_total == -np.inf
    largest = np.max(np.abs(log_total), initial=0, where=np.isfinite(log_total))
    if largest > LARGEST:
        raise ValueError(
            f"scores must be within ±{LARGEST:.0e} for these gradients, got {largest:.3g}; "
            "hide keys with mask=, not with a large negative bias"
        )
    rounded = np.where(empty, np.inf, log_total).astype(np.float32)
    factor = np.exp(np.where(empty, 0.0, rounded - log_total.astype(np.float64)))
    return rounded, factor.astype(np.float32)


def _split(n, size, wanted):
    """Return so many ranges of whole tiles that make up 0 … n, or fewer; at least one."""
    n_tiles = -(-n // size)
    pieces = max(1, min(wanted, n_tiles))
    bounds = [min(n, n_tiles * i // pieces * size) for i in range(pieces + 1)]
    return list(itertools.pairwise(bounds))


def _sum(parts):
    """Return the sum over the first axis, in its order."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


@compile_loops
def backward_part(tile, work, head, keys, queries, runs, of_rows, grad_q, grad_k, grad_v):
    """Write what a range of keys and a range of queries give to the gradients of one key head.

    tile : `Tile` for `product`, whose rows are padded to multiples of its width.
    keys, queries : (start, stop)
    runs : of tiles that are seen, from `runs_of`; not read where there are no ranges.
    of_rows : of all rows of the output
        g (· d_v), flat; log_total, where ∞ hides a row; and mean, the row sums of G ⊙ O.
    grad_q : (rows, padded d_k), added to; grad_k (n_k, d_k), grad_v (n_k, d_v), written.
    """
    grad, log_total, mean = of_rows
    width = tile.width
    d_k, d_v, wide_k = work.d_k, work.d_v, grad_q.shape[-1]
    wide_v = d_v + -d_v % width
    key_t, value_t = zeros(d_k, KEYS), zeros(d_v, KEYS)
    key, query, out = zeros(KEYS, wide_k), zeros(QUERIES, wide_k), zeros(QUERIES, wide_v)
    s, e = zeros(QUERIES, KEYS), zeros(QUERIES, KEYS)
    of_key, of_value = zeros(KEYS, wide_k), zeros(KEYS, wide_v)
    later = work.n_k - work.n_q if work.is_causal else work.n_k  # query i sees keys to i + later
    for j in range(keys[0], keys[1], KEYS):
        columns = min(KEYS, keys[1] - j)
        wide = columns + -columns % width
        clear(of_key)
        clear(of_value)
        row = work.key_row
        at = work.starts[KEY, head, 0] + j * row
        copy_rows(work.key, at, row, columns, d_k, work.scale, key)
        transpose(work.key, at, row, columns, key_t)
        row = work.value_row
        transpose(work.value, work.starts[VALUE, head, 0] + j * row, row, columns, value_t)
        for group in range(work.starts.shape[2]):
            first = max(queries[0], j - later)  # queries before it see none of these keys
            first -= (first - queries[0]) % QUERIES
            run, after = 0, 1
            if work.has_ranges:
                run, after = runs_at(work, runs, head, group, j // KEYS)
            for which in range(run, after):
                start, stop = first, queries[1]
                if work.has_ranges:
                    start = max(start, runs.starts[which] * QUERIES)
                    stop = min(stop, runs.stops[which] * QUERIES)
                for i in range(start, stop, QUERIES):
                    rows, member = min(QUERIES, queries[1] - i), group * work.n_q + i
                    seen = rows * columns
                    if work.has_mask:
                        seen = count_seen(work, head, member, rows, j, columns)
                        if seen == 0:
                            continue
                    if work.has_ranges and not all_seen(work, head, member, rows, j, columns):
                        seen = 0
                    row = work.query_row
                    at = work.starts[QUERY, head, group] + i * row
                    copy_rows(work.query, at, row, rows, d_k, work.scale, query)
                    place = work.starts[OUTPUT, head, group] + i
                    copy_rows(grad, place * d_v, d_v, rows, d_v, _ONE, out)
                    a, b = query.reshape(query.size), out.reshape(out.size)
                    product(tile, a, 0, wide_k, 1, key_t, s, rows, wide, d_k, None)
                    product(tile, b, 0, wide_v, 1, value_t, e, rows, wide, d_v, None)
                    if work.has_bias:
                        add_bias(work, head, member, rows, j, columns, s.T)
                    if work.has_ranges:
                        if seen < rows * columns:
                            hide_unseen(work, head, member, rows, j, columns, s.T)
                    elif seen < rows * columns:
                        hide_masked(work, head, member, rows, j, columns, s.T)
                    if j + columns - 1 > i + later:
                        hide_later(s, i + later - j, rows, columns)
                    weigh(s, e, log_total[place : place + rows], mean[place : place + rows], wide)
                    a, b = s.reshape(s.size), e.reshape(e.size)
                    product_onto(tile, a, 0, 1, KEYS, out, of_value, columns, wide_v, rows, None)
                    product_onto(tile, b, 0, 1, KEYS, query, of_key, columns, wide_k, rows, None)
                    to = grad_q[place : place + rows]
                    product_onto(tile, b, 0, KEYS, 1, key, to, rows, wide_k, columns, None)
        write(of_key, j, columns, grad_k)
        write(of_value, j, columns, grad_v)


@compile_inner
def zeros(rows, columns):
    return np.zeros((rows, columns), dtype=np.float32)


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
def row_sums(x, y, sums):
    """Write Σ x ⊙ y of each row."""
    last = len(sums) - 1
    for i in range(0, last + 1, 4):
        four_sums(x, y, (i, min(i + 1, last), min(i + 2, last), min(i + 3, last)), sums)


@compile_fused
def four_sums(x, y, rows, sums):
    """Do this for four rows: one sum alone would wait for each of its additions.

    In the order of `product`: where a weight is 1, the mean is its gradient to the last bit.
    """
    i, j, k, m = rows
    t_i = t_j = t_k = t_m = _ZERO
    for a in range(x.shape[1]):
        t_i += x[i, a] * y[i, a]
        t_j += x[j, a] * y[j, a]
        t_k += x[k, a] * y[k, a]
        t_m += x[m, a] * y[m, a]
    sums[i], sums[j], sums[k], sums[m] = t_i, t_j, t_k, t_m


@compile_inner
def copy_rows(x, at, step, rows, columns, factor, to):
    """Write rows of x that begin at `at` and are `step` apart, times a factor."""
    for i in range(rows):
        for a in range(columns):
            to[i, a] = x[_AT(at + i * step + a)] * factor


@compile_inner
def transpose(x, at, step, rows, to):
    """Write so many rows of x as columns; the others are 0."""
    for a in range(to.shape[0]):
        for i in range(rows):
            to[a, i] = x[_AT(at + i * step + a)]
        for i in range(rows, to.shape[1]):
            to[a, i] = _ZERO


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
def hide_later(s, last, rows, columns):
    """Write −∞ where a key comes later than its query: row r sees columns up to last + r."""
    for r in range(rows):
        for c in range(max(0, last + r + 1), columns):
            s[r, c] = _HIDDEN
