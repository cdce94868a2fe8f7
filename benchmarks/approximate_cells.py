"""Cells of keys: some are read key by key, the others count by their moments.

A cell that hardly matters to the queries of a panel stands for its keys by their mean, their
values' mean and the spread of both, after fast multipole methods (Greengard and Rokhlin 1987) and
clustered attention (Vyas et al. 2020).
"""

import math
from typing import Any

import numpy as np

from attnbook.compilers.jit import compile_loops
from attnbook.compilers.register_tiles import TILES, claim, lanes
from attnbook.kernels import packed
from attnbook.kernels.numba_loops.panels import aligned, raise_top, step_up
from attnbook.kernels.numba_loops.products import product, product_onto, weigh
from benchmarks.approximate_clusters import (
    EVERYWHERE,
    HIDDEN,
    ONE,
    ZERO,
    each_head,
    fill,
    meet,
    merged,
    panels_by,
    shared,
    sort_keys,
    sorted_by_cells,
)


@compile_loops
def weigh_cells(
    tile, query, half, panels, visible, stands, threshold, counter, out, log_total, ids, counts
):
    """Answer panels by what stands for each cell, and list the cells that ought to be read.

    Panel p sees the first visible[p] cells. `stands` are means, value means with the spread as
    last column, logarithms of counts, and spreads. `half` are ½ qᵀ Σ q. A cell is listed, and left
    out of the answer, where share · ½ w qᵀ Σ q exceeds `threshold` for a query of the panel.
    """
    mean, value_mean, log_count, spread = stands
    d_k, d_v, width = query.shape[1], value_mean.shape[1], tile.width
    panel, far = aligned(d_k, width), aligned(log_count.size, width)
    weighted, vectors = aligned(d_v, width), aligned(6, width)
    below, top, safe = vectors[0], vectors[1], vectors[2]
    factor, total, curve = vectors[3], vectors[4], vectors[5]
    flat_mean, flat_value = mean.reshape(-1), value_mean.reshape(-1)
    while True:
        p = panels.size - 2 - claim(counter)
        if p < 0:
            break
        first, rows, n = panels[p], panels[p + 1] - panels[p], visible[p]
        fill(query, first, rows, panel)
        for r in range(width):
            curve[r] = half[first + min(r, rows - 1)]
            top[r], below[r] = HIDDEN, HIDDEN
        product(tile, flat_mean, 0, d_k, 1, panel, far, n, width, d_k, None)
        for c in range(n):
            of_count, of_spread = log_count[c], spread[c]
            for r in range(width):
                far[c, r] += of_count + of_spread * curve[r]
        raise_top(far, n, top)
        step_up(top, below, factor, safe, ONE)
        weigh(tile, far, n, safe, total, ONE, None)
        for r in range(width):
            factor[r] = curve[r] / total[r]
        count = 0
        for c in range(n):
            share = ZERO
            for r in range(width):
                here = far[c, r] * factor[r]
                share = here if here > share else share
            if share * spread[c] > threshold:
                ids[p, count] = c
                count += 1
                for r in range(width):
                    far[c, r] = ZERO
        counts[p] = count
        for r in range(width):
            total[r] = ZERO
        for c in range(n):
            for r in range(width):
                total[r] += far[c, r]
        for k in range(d_v):
            for r in range(width):
                weighted[k, r] = ZERO
        product_onto(tile, flat_value, 0, 1, d_v, far, weighted, d_v, width, n, None)
        for r in range(rows):
            one = total[r] if total[r] > ZERO else ONE
            log_total[first + r] = top[r] + np.log(total[r])
            for k in range(d_v):
                out[first + r, k] = weighted[k, r] / one


def prepare(key, value, *, block, n_cells, threshold, is_causal, seed=0):
    """Sort the keys of each head into cells: of each block where attention is causal."""
    del seed
    n = key.shape[1]
    block = min(block, n)
    known = (n - 1) // block * block if is_causal else n  # keys that a later block sees
    size = block if is_causal else n
    heads = each_head(
        lambda i: sort_keys(key[i, :known], value[i, :known], size, n_cells) if known else None,
        len(key),
    )
    return key, value, heads, block, n_cells, threshold, is_causal


def attend(query, state, shares: list[Any] | None = None) -> np.ndarray:
    """Return attention in which cells that hardly matter count by their moments.

    Where it is causal, the block of a query is attended to exactly, and only cells of earlier
    blocks, which hold nothing of the future, stand for others. `shares` gets the share of the
    visible keys that were read one by one.
    """
    key, value, heads, block, n_cells, threshold, is_causal = state
    (h, n, d), d_v = query.shape, value.shape[-1]
    scale = 1 / math.sqrt(d)
    start = block if is_causal else 0
    result = np.empty((h, n, d_v), np.float32)

    def work(i):
        own = None
        if is_causal:
            own = _own_block(query[i], key[i], value[i], block, scale)
            result[i, :start] = own[0][:start]
        if start >= n:
            return 0
        q = query[i] * np.float32(scale)
        out, log_total, order, read = _far(q, heads[i], block, n_cells, threshold, is_causal)
        if own is not None:
            out = merged([(own[0][order], own[1][order]), (out, log_total)])[0]
        result[i, order] = out
        return read

    read = each_head(work, h)
    if shares is not None:
        visible = (n - start) * ((n + start) / 2 if is_causal else n)
        shares += [x / visible for x in read]
    return result


def _own_block(query, key, value, block, scale):
    """Return causal attention within blocks, and the logarithms of its totals."""
    whole = len(query) // block * block
    parts = []
    for rows, size in ((slice(0, whole), block), (slice(whole, None), len(query) - whole)):
        if size:
            x = [y[rows].reshape(-1, size, y.shape[-1]) for y in (query, key, value)]
            parts.append(packed.forward(*x, None, None, scale, True))
    out, log_total = (
        np.concatenate([x.reshape(-1, x.shape[-1]) for x in of_parts])
        for of_parts in zip(*parts, strict=True)
    )
    return out, log_total[:, 0]


def _far(query, head, block, n_cells, threshold, is_causal):
    """Return what queries find in the cells before their block, log totals, order, keys read."""
    tile = TILES[lanes()]
    order, _ = sorted_by_cells(query, block, max(1, block // 32), 2)
    order = order[block:] if is_causal else order
    q = query[order]
    half = np.sum((q @ head.covariance) * q, axis=1) / 2
    cells = len(head.stands[2])
    seen_by = order // block if is_causal else np.zeros_like(order)
    panels, of_block = panels_by(seen_by, tile.width)  # queries of a panel see the same cells
    visible = of_block * n_cells if is_causal else np.full(len(of_block), cells)
    ids = np.empty((len(visible), cells), np.int64)
    counts = np.empty(len(visible), np.int64)
    far = np.empty((len(q), head.keys[1].shape[1] + 1), np.float32)
    log_far = np.empty(len(q), np.float32)
    arrays = (q, half.astype(np.float32), panels, visible, head.stands, np.float32(threshold))
    shared(
        lambda counter: weigh_cells(tile, *arrays, counter, far, log_far, ids, counts),
        len(q) * 2**12,
    )
    near, log_near = meet(q, panels, ids, counts, head, np.full(len(q), EVERYWHERE))
    out = far[:, :-1] + far[:, -1:] * (q @ head.cross)
    sizes = np.diff(head.keys[3])
    read = sum(
        int(sizes[ids[p, : counts[p]]].sum()) * (panels[p + 1] - panels[p])
        for p in range(len(visible))
    )
    return *merged([(out, log_far), (near, log_near)]), order, read
