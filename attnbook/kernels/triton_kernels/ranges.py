"""`Intervals` as the Triton kernels read them: ranges beside the queries, and lists of tiles.

A masked tile compares its keys with the ranges of its queries, so no array of n_q · n_k numbers
exists. The lists come from the ranges as well: what some query of a tile sees is visited, and what
all of them see needs no masking. Both are made once for a rule, its sizes and a device.
"""

import numpy as np
import torch

from attnbook.arrays.intervals import Intervals


def on_device(intervals, device):
    """Return the ranges as an int32 tensor (..., n_q, 2 m): a start, its stop, the next start.

    m is padded to a power of 2 by empty ranges, so that few kernels are compiled.
    """

    def make():
        m = intervals.starts.shape[-1]
        shape = (*intervals.starts.shape[:-1], 1 << (m - 1).bit_length(), 2)
        ranges = np.full(shape, intervals.n_k, np.int32)
        ranges[..., :m, 0], ranges[..., :m, 1] = intervals.starts, intervals.stops
        return torch.as_tensor(ranges.reshape(*shape[:-2], -1), device=device)

    return intervals.made(("triton", "ranges", device), make)


def widened(intervals, leading):
    """Return the same with all of these leading axes."""

    def make():
        shape = (*leading, *intervals.starts.shape[-2:])
        starts, stops = (np.broadcast_to(x, shape) for x in (intervals.starts, intervals.stops))
        return Intervals(starts, stops, intervals.n_k)

    return intervals.made(("triton", "widened", leading), make)


def lists_of(intervals, block_q, block_k, device, *, of_keys=False, heads=1):
    """List the tiles of keys that each tile of queries visits, or, `of_keys`, the transpose.

    Parameters
    ----------
    intervals : Intervals
    block_q, block_k : int
        Queries and keys of a tile.
    device : torch.device
    of_keys : bool
        List the tiles of queries that see each tile of keys.
    heads : int
        So many neighbouring heads have their queries in one tile, which holds all of them;
        `block_q` is then not read.

    Returns
    -------
    int32 tensor (heads, tiles of one side, 2 + w)
        All leading axes are one. A row holds how many tiles are visible as a whole, how many at
        all, and which, in this order; w is the most tiles that any row visits.
    """

    def make():
        tiles = _lists(intervals, block_q, block_k, of_keys, heads)
        return torch.as_tensor(tiles, device=device)

    return intervals.made(("triton", "lists", block_q, block_k, device, of_keys, heads), make)


def _lists(intervals, block_q, block_k, of_keys, heads):
    n_k, shape = intervals.n_k, intervals.starts.shape
    if heads > 1:
        together = (-1, heads * shape[-2], shape[-1])
        starts, stops = (x.reshape(together) for x in (intervals.starts, intervals.stops))
        intervals, block_q = Intervals(starts, stops, n_k), heads * shape[-2]
    k_tiles = -(-n_k // block_k)
    some, all_ = intervals.seen_by_any(block_q), intervals.seen_by_all(block_q)
    q_tiles = some.n_q
    n_heads = some.starts.size // (q_tiles * some.starts.shape[-1])
    # A tile is named by head, tile of queries and tile of keys, in one number.
    ends = np.where(some.starts < some.stops, -(-some.stops // block_k), 0)
    visited = _tiles_in(some.starts // block_k, ends, k_tiles)
    # Keys past the end are a reason to mask: they are seen as a whole by nobody.
    whole = _tiles_in(-(-all_.starts // block_k), all_.stops // block_k, k_tiles)
    is_partial = np.ones(len(visited), bool)
    is_partial[np.searchsorted(visited, whole)] = False
    row, column = visited // k_tiles, visited % k_tiles
    n_rows = n_heads * q_tiles
    if of_keys:
        row, column = row // q_tiles * k_tiles + column, row % q_tiles
        n_rows = n_heads * k_tiles
    order = np.lexsort((column, is_partial, row))
    counts = np.bincount(row, minlength=n_rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    lists = np.zeros((n_rows, 2 + counts.max(initial=0)), np.int32)
    lists[:, 0] = np.bincount(row[~is_partial], minlength=n_rows)
    lists[:, 1] = counts
    lists[row[order], 2 + place] = column[order]
    return lists.reshape(n_heads, -1, lists.shape[-1])


def _tiles_in(first, end, k_tiles):
    """Return the numbers of the tiles from `first` up to `end` of each row, (..., m), sorted.

    Ranges of a row are sorted and apart, but two may share a tile, which is returned once.
    """
    m = first.shape[-1]
    first, end = (x.reshape(-1, m).astype(np.int64) for x in (first, end))
    first[:, 1:] = np.maximum(first[:, 1:], np.maximum.accumulate(end, axis=-1)[:, :-1])
    counts = np.maximum(end - first, 0)
    begins = (first + np.arange(len(first))[:, np.newaxis] * k_tiles).ravel()
    counts = counts.ravel()
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(counts.sum())
