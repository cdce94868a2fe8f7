"""The loops for few queries and many keys, as when a model decodes one token after a long cache.

Every key and every value is used a few times only, so the memory sets the pace: nothing is packed,
rows are read once and in order. The queries that share a key head, its groups, stand side by side,
and the keys are split in chunks, as many as the sizes say, whose maxima, totals and weighted sums
are merged in the order of the keys.
"""

import numpy as np

from attnbook.compilers.jit import compile_fused, compile_loops, compile_sums
from attnbook.compilers.register_tiles import claim, prefetch
from attnbook.kernels.numba_loops.arrays import KEY, OUTPUT, QUERY, VALUE
from attnbook.kernels.numba_loops.panels import add_bias, exp, hide_masked
from attnbook.kernels.numba_loops.products import four
from attnbook.kernels.numba_loops.ranges import hide_unseen, next_seen

KEYS = 32
"""Keys of a block; what is asked for ahead is to wait in the nearest cache."""

LINE = 16
"""Numbers that come from memory together."""

_ZERO, _HIDDEN = np.float32(0), np.float32(-np.inf)
_AT = np.uint64


@compile_sums
def score(work, head, key, keys, queries, scores):
    """Make the scores of all rows with a block of keys, each sum in the lanes of vectors.

    The values of the block are asked for meanwhile, as are the next keys by `add_values`.
    """
    n_rows, d = queries.shape
    for j in range(keys):
        at = work.starts[KEY, head, 0] + (key + j) * work.key_row
        fetch(work.value, work.starts[VALUE, head, 0] + (key + j) * work.value_row, work.d_v)
        for r in range(n_rows):
            total = _ZERO
            for c in range(d):
                total += queries[r, c] * work.key[_AT(at + c)]
            scores[r, j] = total


@compile_fused
def fetch(x, at, d):
    """Ask for a row of `d` numbers, which is read soon; what is not in `x` is not read at all."""
    for c in range(0, d, LINE):
        prefetch(x, at + c)


@compile_fused
def hide(work, head, key, keys, scores):
    """Add the bias, and hide what the rows may not see."""
    n_rows = scores.shape[0]
    if work.has_bias:
        add_bias(work, head, 0, n_rows, key, keys, scores.T)
    if work.has_mask:
        hide_masked(work, head, 0, n_rows, key, keys, scores.T)
    if work.has_ranges:
        hide_unseen(work, head, 0, n_rows, key, keys, scores.T)
    if work.is_causal:
        for r in range(n_rows):
            for j in range(max(0, r % work.n_q + work.n_k - work.n_q + 1 - key), keys):
                scores[r, j] = _HIDDEN


@compile_fused
def add_values(work, head, key, keys, weights, weighted):
    """Add the values of a block, as the rows weigh them, four keys at a time.

    The keys of the next block are asked for meanwhile.
    """
    n_rows, d = weighted.shape
    row = work.value_row
    for j in range(0, keys, 4):
        at = work.starts[VALUE, head, 0] + (key + j) * row
        for i in range(4):
            next_row = work.starts[KEY, head, 0] + (key + keys + j + i) * work.key_row
            fetch(work.key, next_row, work.d_k)
        if keys - j < 4:
            for i in range(keys - j):
                for r in range(n_rows):
                    for c in range(d):
                        weighted[r, c] += weights[r, j + i] * work.value[_AT(at + i * row + c)]
        else:
            for r in range(n_rows):
                w0, w1, w2, w3 = four(weights[r], j, 1)
                for c in range(d):
                    v0, v1 = work.value[_AT(at + c)], work.value[_AT(at + c + row)]
                    v2, v3 = work.value[_AT(at + c + 2 * row)], work.value[_AT(at + c + 3 * row)]
                    weighted[r, c] += w0 * v0 + w1 * v1 + w2 * v2 + w3 * v3


@compile_fused
def highest(row, top):
    """Return the largest number of `row` and `top`; NaN is not larger."""
    for x in row:
        top = x if x > top else top
    return top


@compile_fused
def weigh(row, top):
    """Replace each number x of `row` by e**(x - top)."""
    for j in range(row.size):
        row[j] = exp(row[j] - top)


@compile_sums
def sum_of(row):
    """Return the sum of `row`, made in vectors."""
    total = _ZERO
    for x in row:
        total += x
    return total


@compile_loops
def attend_few(work, n_chunks, counter, partial):
    """Write the sums, total and maximum of chunk after chunk until `counter` has passed all.

    partial : (heads, n_chunks, rows, d_v + 2)
    """
    _, heads, groups = work.starts.shape
    n_rows, d_v = groups * work.n_q, work.d_v
    queries = np.empty((n_rows, work.d_k), np.float32)
    scores, weighted = np.empty((n_rows, KEYS), np.float32), np.empty((n_rows, d_v), np.float32)
    top, total = np.empty(n_rows, np.float32), np.empty(n_rows, np.float32)
    while True:
        task = claim(counter)
        if task >= heads * n_chunks:
            break
        head, chunk = divmod(task, n_chunks)
        for r in range(n_rows):
            group, i = divmod(r, work.n_q)
            at = work.starts[QUERY, head, group] + i * work.query_row
            for c in range(work.d_k):
                queries[r, c] = work.query[at + c] * work.scale
        weighted[:], total[:], top[:] = _ZERO, _ZERO, _HIDDEN
        stop = work.n_k * (chunk + 1) // n_chunks
        key, keys = work.n_k * chunk // n_chunks, 0
        while key + keys < stop:
            key += keys
            keys = min(KEYS, stop - key)
            if work.has_ranges:
                key, keys, _ = next_seen(work, head, 0, n_rows, key, stop, KEYS)
                if keys == 0:
                    break
            score(work, head, key, keys, queries, scores)
            if work.has_mask or work.has_bias or work.has_ranges or work.is_causal:
                hide(work, head, key, keys, scores)
            for r in range(n_rows):
                row = scores[r, :keys]
                below, top[r] = top[r], highest(row, top[r])
                safe = top[r] if top[r] > _HIDDEN else _ZERO
                factor = exp(below - safe)
                weigh(row, safe)
                total[r] = total[r] * factor + sum_of(row)
                if factor != np.float32(1):
                    for c in range(d_v):
                        weighted[r, c] *= factor
            add_values(work, head, key, keys, scores, weighted)
        for r in range(n_rows):
            for c in range(d_v):
                partial[head, chunk, r, c] = weighted[r, c]
            partial[head, chunk, r, d_v] = total[r]
            partial[head, chunk, r, d_v + 1] = top[r]


@compile_loops
def merge(work, partial, output, ends):
    """Write the output from the sums of the chunks, in the order of the keys.

    ends : (2, rows), the maximum and the total of each row, written
    """
    heads, n_chunks, n_rows, width = partial.shape
    d_v = width - 2
    for head in range(heads):
        for r in range(n_rows):
            group, i = divmod(r, work.n_q)
            row = work.starts[OUTPUT, head, group] + i
            top, total = _HIDDEN, _ZERO
            for chunk in range(n_chunks):
                top = max(top, partial[head, chunk, r, d_v + 1])
            safe = top if top > _HIDDEN else _ZERO
            for chunk in range(n_chunks):
                factor = exp(partial[head, chunk, r, d_v + 1] - safe)
                total += factor * partial[head, chunk, r, d_v]
                for c in range(d_v):
                    output[row, c] += factor * partial[head, chunk, r, c]
            for c in range(d_v):
                output[row, c] = output[row, c] / total if total != _ZERO else _ZERO
            ends[0, row], ends[1, row] = top, total
