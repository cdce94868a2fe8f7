"""Few queries of many sequences, whose keys and values lie in pages that a block table lists.

The loops are those of `few_queries`. Here each sequence has a length of its own, and therefore its
own number of chunks: into how many its keys are cut depends on its length alone, so a sequence has
the same bits in a batch of any size. Which pages hold the keys changes no bit either.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays.array import dtype_name
from attnbook.arrays.threads import n_threads_for
from attnbook.compilers.jit import read_only
from attnbook.compilers.listed_rows import tiles_of
from attnbook.compilers.register_tiles import lanes
from attnbook.kernels.numba_loops.arrays import (
    KEY,
    OUTPUT,
    QUERY,
    VALUE,
    Work,
    float32,
    plain,
    restored,
)
from attnbook.kernels.numba_loops.few_queries import AHEAD, attend_few, merge
from attnbook.kernels.numba_loops.forward import LEAST, PIECES, WORTH, share


class Pages(NamedTuple):
    """Which keys are a chunk, and in which pages the keys of a sequence lie.

    The heads that are counted here are the key heads of all sequences, one sequence after another.
    """

    tasks: np.ndarray  # (chunks, 3): the head, and the range of its keys
    firsts: np.ndarray  # (heads + 1,): the first chunk of each head, and the end
    table: np.ndarray  # (sequences, most pages)
    lengths: np.ndarray  # (sequences,)
    heads: int  # key heads of a sequence
    size: int  # keys of a page


def paged_attention(
    query: Any, key_pages: Any, value_pages: Any, block_table: Any, lengths: Any, scale: float
) -> Any:
    """Return the output of checked arrays; beside it a few numbers for each chunk of 1,024 keys.

    Half precision is computed in float32, so the pages that the table lists are copied for it.
    """
    (n, h, n_q, d_k), (_, heads, size, d_v) = query.shape, value_pages.shape
    table, n_keys = (plain(x).astype(np.int64, copy=False) for x in (block_table, lengths))
    most = int(np.max(n_keys, initial=0))
    output = np.zeros((n * h * n_q, d_v), np.float32)
    if output.size and most:
        if dtype_name(query.dtype) != "float32":
            key_pages, value_pages, table = _listed(key_pages, value_pages, table, n_keys)
        arrays = [read_only(float32(plain(x))) for x in (query, key_pages, value_pages)]
        tasks, firsts = _chunks(n_keys.tobytes(), heads)
        pages = Pages(tasks, firsts, read_only(table), read_only(n_keys), heads, size)
        work = _work(arrays, (n, heads, h // heads, n_q), (size, d_k, d_v), scale)
        tiles = tiles_of(lanes())
        partial = np.empty((len(tasks), h // heads * n_q, d_v + 2), np.float32)
        n_products = int(np.sum(n_keys)) * h * n_q * (d_k + d_v)

        def take(counter):
            rows = np.empty(most + AHEAD, np.int64)
            attend_few(tiles, work, pages, rows, counter, partial)

        share(take, n_threads_for(n_products, worth=WORTH))
        merge(work, pages, partial, output, np.empty((2, len(output))))
    return restored(output.reshape(n, h, n_q, d_v), query)


def _listed(key_pages, value_pages, table, lengths):
    """Return the pages that hold keys, in float32, and the table that lists them there."""
    size = key_pages.shape[2]
    used = np.arange(table.shape[1]) * size < lengths[:, None]
    ids, places = np.unique(table[used], return_inverse=True)
    renamed = np.zeros_like(table)
    renamed[used] = places.reshape(-1)
    return *(float32(plain(x[ids])) for x in (key_pages, value_pages)), renamed


@functools.lru_cache(64)
def _chunks(lengths, heads):
    """Return `Pages.tasks` and `Pages.firsts` for the bytes of int64 lengths."""
    n_keys = np.repeat(np.frombuffer(lengths, np.int64), heads)
    n_chunks = np.clip(n_keys // LEAST, 1, PIECES)
    firsts = np.concatenate([[0], np.cumsum(n_chunks)])
    head = np.repeat(np.arange(len(n_keys)), n_chunks)
    chunk = np.arange(len(head)) - firsts[head]
    start, stop = (n_keys[head] * i // n_chunks[head] for i in (chunk, chunk + 1))
    return read_only(np.stack([head, start, stop], axis=1)), read_only(firsts)


def _work(arrays, sizes, widths, scale):
    """Return what the loops read, where the rows of a head in the first page are its first rows."""
    (n, heads, groups, n_q), (size, d_k, d_v) = sizes, widths
    of_head = np.arange(heads) * size
    rows = np.arange(n * heads * groups).reshape(n * heads, groups) * n_q
    starts = np.zeros((7, n * heads, groups), np.int64)
    starts[QUERY], starts[OUTPUT] = rows * d_k, rows
    starts[KEY], starts[VALUE] = (np.tile(of_head, n)[:, None] * d for d in (d_k, d_v))
    nothing = read_only(np.zeros(1, np.uint8)), read_only(np.zeros(1, np.float32))
    return Work._make(
        (
            *(x.reshape(-1) for x in arrays),
            *nothing,
            *[read_only(np.zeros(1, np.int32))] * 2,
            read_only(starts),
            *(n_q, 0, d_k, d_v, d_k, d_k, d_v, 0, 0, 0, 0, 0),
            *(False, False, False, n_q > 1),
            *(np.float32(scale), np.float32(1)),
        )
    )
