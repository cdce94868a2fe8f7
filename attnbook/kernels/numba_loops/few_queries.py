"""The loops for few queries and many keys, as when a model decodes one token after a long cache.

Every key and every value is used a few times only, so the memory sets the pace: nothing is packed,
rows are read once and in order, and are asked for a block ahead. The queries that share a key head,
its groups, stand side by side, four of them in the registers, and the keys are split in chunks, as
many as the sizes say, whose maxima, totals and weighted sums are merged in the order of the keys.

The keys and values of a head are rows of an array one after the other, or they lie in pages. Then a
list says for each key of a chunk in which row it is found, and nothing else changes.
"""

import numpy as np

from attnbook.compilers.jit import compile_fused, compile_loops, compile_sums
from attnbook.compilers.listed_rows import BLOCK, add_listed, largest, multiply_listed
from attnbook.compilers.register_tiles import claim, prefetch_far
from attnbook.kernels.numba_loops.arrays import KEY, OUTPUT, QUERY, VALUE
from attnbook.kernels.numba_loops.panels import add_bias, exp, hide_masked
from attnbook.kernels.numba_loops.ranges import hide_unseen, next_seen

KEYS = BLOCK
"""Keys of a block."""

STEP = 4
"""Keys of a block whose values are added before the next keys are asked for."""

AHEAD = KEYS + STEP
"""Keys after a chunk for which the list of rows goes on, since they may be asked for ahead."""

LINE = 16
"""Numbers that come from memory together."""

_ZERO, _HIDDEN = np.float32(0), np.float32(-np.inf)
_AT = np.uint64


@compile_fused
def row_of(rows, key):
    """Return the row of a key: `key` itself, or what the list `rows` says."""
    return key if rows is None else rows[_AT(key)]


@compile_fused
def find_places(work, head, rows, key, last, places):
    """List where the keys and the values of a block begin; the key `last` stands for later ones."""
    for j in range(KEYS):
        row = row_of(rows, min(key + j, last))
        places[0, j] = work.starts[KEY, head, 0] + row * work.key_row
        places[1, j] = work.starts[VALUE, head, 0] + row * work.value_row


@compile_fused
def score(tiles, work, places, keys, queries, scores):
    """Make the scores of all rows with a block of keys, each sum in the lanes of vectors.

    The values of the block are asked for meanwhile, as are the next keys by `add_values`. After the
    last key come scores of nothing, up to as many as a tile has.
    """
    few, one, _ = tiles
    n_rows, d = queries.shape
    whole = d - d % few.lanes
    in_tiles = n_rows - n_rows % few.rows
    for j in range(0, keys, one.vectors):
        for i in range(j, min(j + one.vectors, keys)):
            fetch(work.value, places[1, i], work.d_v)
        if whole > 0:
            for i in range(j, j + one.vectors, few.vectors):
                for r in range(0, in_tiles, few.rows):
                    to = r * KEYS + i
                    multiply_listed(
                        few, queries, r * d, d, work.key, places, i, scores, to, KEYS, whole
                    )
            for r in range(in_tiles, n_rows):
                to = r * KEYS + j
                multiply_listed(
                    one, queries, r * d, d, work.key, places, j, scores, to, KEYS, whole
                )
        else:
            scores[:, j : j + one.vectors] = _ZERO
        if whole < d:
            for i in range(j, min(j + one.vectors, keys)):
                for r in range(n_rows):
                    for c in range(whole, d):
                        scores[r, i] += queries[r, c] * work.key[_AT(places[0, i] + c)]


@compile_fused
def fetch(x, at, d):
    """Ask for a row of `d` numbers, which is read soon; what is not in `x` is not read at all."""
    for c in range(0, d, LINE):
        prefetch_far(x, at + c)


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
def add_values(tiles, work, head, rows, key, places, keys, weights, weighted):
    """Add the values of a block, as the rows weigh them, a few keys at a time.

    The keys of the next block are asked for meanwhile.
    """
    few, one, _ = tiles
    n_rows, d = weighted.shape
    in_tiles = n_rows - n_rows % few.rows
    whole = d - d % one.width
    start = work.starts[KEY, head, 0]
    for j in range(0, keys, STEP):
        n = min(STEP, keys - j)
        for i in range(key + keys + j, key + keys + j + STEP):
            fetch(work.key, start + row_of(rows, i) * work.key_row, work.d_k)
        for r in range(0, in_tiles, few.rows):
            for c in range(0, whole, few.width):
                a, to = r * KEYS + j, r * d + c
                add_listed(
                    few, weights, a, KEYS, work.value, places, KEYS + j, c, weighted, to, d, n
                )
        for r in range(in_tiles, n_rows):
            for c in range(0, whole, one.width):
                a, to = r * KEYS + j, r * d + c
                add_listed(
                    one, weights, a, KEYS, work.value, places, KEYS + j, c, weighted, to, d, n
                )
        if whole < d:
            for i in range(j, j + n):
                for r in range(n_rows):
                    for c in range(whole, d):
                        weighted[r, c] += weights[r, i] * work.value[_AT(places[1, i] + c)]


@compile_fused
def weigh(row, top):
    """Replace each number x of `row` by e**(x - top)."""
    for j in range(KEYS):
        row[j] = exp(row[j] - top)


@compile_sums
def sum_of(row):
    """Return the sum of `row`, made in vectors."""
    total = _ZERO
    for j in range(KEYS):
        total += row[j]
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
def attend_few(tiles, work, pages, rows, counter, partial):
    """Write the sums, total and maximum of chunk after chunk until `counter` has passed all.

    tiles : from `tiles_of`.
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
    places = np.empty((2, KEYS), np.int64)
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
            find_places(work, head, rows, key, stop - 1, places)
            score(tiles, work, places, keys, queries, scores)
            if work.has_mask or work.has_bias or work.has_ranges or work.is_causal:
                hide(work, head, n_k, key, keys, scores)
            for r in range(n_rows):
                for j in range(keys, KEYS):
                    scores[r, j] = _HIDDEN
                row = scores[r]
                below, top[r] = top[r], largest(tiles[2], scores, r * KEYS, top[r])
                safe = top[r] if top[r] > _HIDDEN else _ZERO
                factor = exp(below - safe)
                weigh(row, safe)
                total[r] = total[r] * factor + sum_of(row)
                if factor != np.float32(1):
                    for c in range(d_v):
                        weighted[r, c] *= factor
            add_values(tiles, work, head, rows, key, places, keys, scores, weighted)
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
