"""The loops for few queries and many keys, as when a model decodes one token after a long cache.

Every key and every value is used a few times only, so the memory sets the pace: nothing is packed,
rows are read once and in order. The queries that share a key head, its groups, stand side by side,
and the keys are split in chunks, as many as the sizes say, whose maxima, totals and weighted sums
are merged in the order of the keys.

The keys and values of a head are rows of an array one after the other, or they lie in pages. Then a
list says for each key of a chunk in which row it is found, and nothing else changes.
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

AHEAD = KEYS + 4
"""Keys after a chunk for which the list of rows goes on, since they may be asked for ahead."""

LINE = 16
"""Numbers that come from memory together."""

_ZERO, _HIDDEN = np.float32(0), np.float32(-np.inf)
_AT = np.uint64


@compile_fused
def row_of(rows, key):
    """Return the row of a key: `key` itself, or what the list `rows` says."""
    return key if rows is None else rows[_AT(key)]


@compile_sums
def score(work, head, rows, key, keys, queries, scores):
    """Make the scores of all rows with a block of keys, each sum in the lanes of vectors.

    The values of the block are asked for meanwhile, as are the next keys by `add_values`.
    """
    n_rows, d = queries.shape
    for j in range(keys):
        row = row_of(rows, key + j)
        at = work.starts[KEY, head, 0] + row * work.key_row
        fetch(work.value, work.starts[VALUE, head, 0] + row * work.value_row, work.d_v)
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
def hide(work, head, n_k, key, keys, scores):
    """Add the bias, and hide what the rows may not see; `n_k` keys are those of the head."""
    n_rows = scores.shape[0]
    if work.has_bias:
        add_bias(work, head, 0, n_rows, key, keys, scores.T)
    if work.has_mask:
        hide_masked(work, head, 0, n_rows, key, keys, scores.T)
    if work.has_ranges:
        hide_unseen(work, head, 0, n_rows, key, keys, scores.T)
    if work.is_causal:
        for r in range(n_rows):
            for j in range(max(0, r % work.n_q + n_k - work.n_q + 1 - key), keys):
                scores[r, j] = _HIDDEN


@compile_fused
def add_values(work, head, rows, key, keys, weights, weighted):
    """Add the values of a block, as the rows weigh them, four keys at a time.

    The keys of the next block are asked for meanwhile.
    """
    n_rows, d = weighted.shape
    start = work.starts[VALUE, head, 0]
    for j in range(0, keys, 4):
        for i in range(4):
            row = row_of(rows, key + keys + j + i)
            fetch(work.key, work.starts[KEY, head, 0] + row * work.key_row, work.d_k)
        if keys - j < 4:
            for i in range(keys - j):
                at = start + row_of(rows, key + j + i) * work.value_row
                for r in range(n_rows):
                    for c in range(d):
                        weighted[r, c] += weights[r, j + i] * work.value[_AT(at + c)]
        else:
            at0 = start + row_of(rows, key + j) * work.value_row
            at1 = start + row_of(rows, key + j + 1) * work.value_row
            at2 = start + row_of(rows, key + j + 2) * work.value_row
            at3 = start + row_of(rows, key + j + 3) * work.value_row
            for r in range(n_rows):
                w0, w1, w2, w3 = four(weights[r], j, 1)
                for c in range(d):
                    v0, v1 = work.value[_AT(at0 + c)], work.value[_AT(at1 + c)]
                    v2, v3 = work.value[_AT(at2 + c)], work.value[_AT(at3 + c)]
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


@compile_fused
def chunk_of(work, pages, n_chunks, task):
    """Return the head of a task, the range of its keys, and how many keys the head has."""
    if pages is None:
        head, chunk = divmod(task, n_chunks)
        return head, work.n_k * chunk // n_chunks, work.n_k * (chunk + 1) // n_chunks, work.n_k
    head = pages.tasks[task, 0]
    return head, pages.tasks[task, 1], pages.tasks[task, 2], pages.lengths[head // pages.heads]


@compile_fused
def find_rows(pages, head, start, stop, rows):
    """List the rows of the keys from `start` to `stop`, and repeat the last one for a while.

    The rows of a page, those of all its heads, stand one after the other, and then the next page.
    """
    if pages is not None and start < stop:
        page, slot = divmod(start, pages.size)
        key, between = start, pages.heads * pages.size
        while key < stop:
            first = pages.table[head // pages.heads, page] * between
            for i in range(slot, min(pages.size, slot + stop - key)):
                rows[key] = first + i
                key += 1
            page, slot = page + 1, 0
        for key in range(stop, stop + AHEAD):
            rows[key] = rows[stop - 1]


@compile_loops
def attend_few(work, pages, rows, counter, partial):
    """Write the sums, total and maximum of chunk after chunk until `counter` has passed all.

    pages : `Pages` that say which keys are a chunk and where they lie, or None: then all heads have
        equally many chunks.
    rows : room for the list of rows, or None.
    partial : (chunks of all heads, rows, d_v + 2)
    """
    _, heads, groups = work.starts.shape
    n_rows, d_v = groups * work.n_q, work.d_v
    queries = np.empty((n_rows, work.d_k), np.float32)
    scores, weighted = np.empty((n_rows, KEYS), np.float32), np.empty((n_rows, d_v), np.float32)
    top, total = np.empty(n_rows, np.float32), np.empty(n_rows, np.float32)
    while True:
        task = claim(counter)
        if task >= len(partial):
            break
        head, start, stop, n_k = chunk_of(work, pages, len(partial) // heads, task)
        find_rows(pages, head, start, stop, rows)
        for r in range(n_rows):
            group, i = divmod(r, work.n_q)
            at = work.starts[QUERY, head, group] + i * work.query_row
            for c in range(work.d_k):
                queries[r, c] = work.query[at + c] * work.scale
        weighted[:], total[:], top[:] = _ZERO, _ZERO, _HIDDEN
        key, keys = start, 0
        while key + keys < stop:
            key += keys
            keys = min(KEYS, stop - key)
            if work.has_ranges:
                key, keys, _ = next_seen(work, head, 0, n_rows, key, stop, KEYS)
                if keys == 0:
                    break
            score(work, head, rows, key, keys, queries, scores)
            if work.has_mask or work.has_bias or work.has_ranges or work.is_causal:
                hide(work, head, n_k, key, keys, scores)
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
            add_values(work, head, rows, key, keys, scores, weighted)
        for r in range(n_rows):
            for c in range(d_v):
                partial[task, r, c] = weighted[r, c]
            partial[task, r, d_v] = total[r]
            partial[task, r, d_v + 1] = top[r]


@compile_fused
def chunks_of(pages, n_chunks, head):
    """Return the first chunk of a head and the one after its last."""
    if pages is None:
        return head * n_chunks, (head + 1) * n_chunks
    return pages.firsts[head], pages.firsts[head + 1]


@compile_loops
def merge(work, pages, partial, output, ends):
    """Write the output from the sums of the chunks, in the order of the keys.

    pages, partial : as in `attend_few`
    ends : (2, rows), the maximum and the total of each row, written
    """
    heads = work.starts.shape[1]
    n_tasks, n_rows, width = partial.shape
    d_v = width - 2
    for head in range(heads):
        first, last = chunks_of(pages, n_tasks // heads, head)
        for r in range(n_rows):
            group, i = divmod(r, work.n_q)
            row = work.starts[OUTPUT, head, group] + i
            top, total = _HIDDEN, _ZERO
            for task in range(first, last):
                top = max(top, partial[task, r, d_v + 1])
            safe = top if top > _HIDDEN else _ZERO
            for task in range(first, last):
                factor = exp(partial[task, r, d_v + 1] - safe)
                total += factor * partial[task, r, d_v]
                for c in range(d_v):
                    output[row, c] += factor * partial[task, r, c]
            for c in range(d_v):
                output[row, c] = output[row, c] / total if total != _ZERO else _ZERO
            ends[0, row], ends[1, row] = top, total
