"""Clusters of keys by k-means, and attention of panels of queries to some of them.

Attention within the clusters that centroids pick, as the Routing Transformer (Roy et al. 2021) and
inverted-file search do. The products are those of rung *packed*, so a key costs what it costs in
exact attention.
"""

import math
from typing import NamedTuple

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_fused, compile_loops
from attnbook.compilers.register_tiles import TILES, claim, lanes
from attnbook.kernels.numba_loops.panels import aligned, raise_top, step_up
from attnbook.kernels.numba_loops.products import product, product_onto, weigh

TILE_KEYS = 128
EVERYWHERE = 2**62
HIDDEN, ZERO, ONE = np.float32(-np.inf), np.float32(0), np.float32(1)


# Compiled loops


@compile_loops
def sort_blocks(x, block, n_cells, steps, first_block, last_block, order, starts):
    """Sort the rows of each block of `x` by their k-means cell, and within it as they were.

    Lloyd's algorithm from rows at even distances. `starts` are the places of all cells.
    """
    n, d = x.shape
    means, near = np.empty((d, n_cells), np.float32), np.empty(n_cells, np.float32)
    half, sums = np.empty(n_cells, np.float32), np.empty((n_cells, d), np.float32)
    labels, counts = np.empty(block, np.int64), np.empty(n_cells, np.int64)
    for b in range(first_block, last_block):
        first = b * block
        size = min(block, n - first)
        for c in range(n_cells):
            row = first + (2 * c + 1) * size // (2 * n_cells)
            for k in range(d):
                means[k, c] = x[row, k]
        for step in range(steps):
            for c in range(n_cells):
                half[c], counts[c] = ZERO, 0
                for k in range(d):
                    half[c] -= np.float32(0.5) * means[k, c] * means[k, c]
                    sums[c, k] = ZERO
            for i in range(size):
                for c in range(n_cells):
                    near[c] = half[c]
                for k in range(d):
                    number = x[first + i, k]
                    for c in range(n_cells):
                        near[c] += number * means[k, c]
                best, most = 0, near[0]
                for c in range(1, n_cells):
                    if near[c] > most:
                        best, most = c, near[c]
                labels[i] = best
                counts[best] += 1
                for k in range(d):
                    sums[best, k] += x[first + i, k]
            for c in range(n_cells):
                if counts[c] > 0 and step + 1 < steps:
                    for k in range(d):
                        means[k, c] = sums[c, k] / np.float32(counts[c])
        place = first
        for c in range(n_cells):
            starts[b * n_cells + c] = place
            place += counts[c]
            counts[c] = place - counts[c]
        for i in range(size):
            order[counts[labels[i]]] = first + i
            counts[labels[i]] += 1


@compile_fused
def fill(query, first, rows, panel):
    for r in range(panel.shape[1]):
        i = first + min(r, rows - 1)
        for k in range(panel.shape[0]):
            panel[k, r] = query[i, k]


@compile_loops
def attend_cells(tile, query, panels, ids, counts, keys, limits, counter, out, log_total):
    """Let panel p, rows panels[p]:panels[p + 1] of `query`, meet its cells ids[p, :counts[p]].

    `keys` are key and value sorted by cell, their places in the sequence and where cells start. A
    row sees places up to its limit; places ascend within a cell.
    """
    key, value, places, starts = keys
    d_k, d_v, width = query.shape[1], value.shape[1], tile.width
    panel, scores = aligned(d_k, width), aligned(TILE_KEYS, width)
    weighted, vectors = aligned(d_v, width), aligned(6, width)
    below, top, safe = vectors[0], vectors[1], vectors[2]
    factor, total, tile_total = vectors[3], vectors[4], vectors[5]
    rows_of, sizes = np.empty(TILE_KEYS, np.int64), np.empty(TILE_KEYS, np.int64)
    flat_key, flat_value = key.reshape(-1), value.reshape(-1)
    while True:
        p = panels.size - 2 - claim(counter)
        if p < 0:
            break
        first, rows = panels[p], panels[p + 1] - panels[p]
        fill(query, first, rows, panel)
        lowest = highest = limits[first]
        for r in range(1, rows):
            lowest, highest = min(lowest, limits[first + r]), max(highest, limits[first + r])
        for r in range(width):
            top[r], below[r], total[r] = HIDDEN, HIDDEN, ZERO
            for k in range(d_v):
                weighted[k, r] = ZERO
        c, row, stop = 0, 0, 0
        while c < counts[p] or row < stop:
            filled, pieces = 0, 0
            while filled < TILE_KEYS and (c < counts[p] or row < stop):
                if row == stop:
                    row, stop = starts[ids[p, c]], starts[ids[p, c] + 1]
                    c += 1
                    while stop > row and places[stop - 1] > highest:
                        stop -= 1
                    while c < counts[p] and starts[ids[p, c]] == stop and highest == EVERYWHERE:
                        stop = starts[ids[p, c] + 1]
                        c += 1
                n = min(stop - row, TILE_KEYS - filled)
                if n > 0:
                    rows_of[pieces], sizes[pieces] = row, n
                    pieces, filled, row = pieces + 1, filled + n, row + n
            if filled == 0:  # cells that begin after the last query of the panel
                continue
            at = 0
            for i in range(pieces):
                begin, n = rows_of[i], sizes[i]
                here = scores[at:]
                product(tile, flat_key, begin * d_k, d_k, 1, panel, here, n, width, d_k, None)
                for j in range(n):
                    if places[begin + j] > lowest:
                        for r in range(width):
                            limit = limits[first + min(r, rows - 1)]
                            here[j, r] = here[j, r] if places[begin + j] <= limit else HIDDEN
                at += n
            raise_top(scores, filled, top)
            step_up(top, below, factor, safe, ONE)
            weigh(tile, scores, filled, safe, tile_total, ONE, None)
            for r in range(width):
                total[r] = total[r] * factor[r] + tile_total[r]
            at = 0
            for i in range(pieces):
                begin, n = rows_of[i] * d_v, sizes[i]
                here = scores[at:]
                if i == 0:
                    product_onto(
                        tile, flat_value, begin, 1, d_v, here, weighted, d_v, width, n, factor
                    )
                else:
                    product_onto(
                        tile, flat_value, begin, 1, d_v, here, weighted, d_v, width, n, None
                    )
                at += n
        for r in range(rows):
            one = total[r] if total[r] > ZERO else ONE
            log_total[first + r] = top[r] + np.log(total[r])
            for k in range(d_v):
                out[first + r, k] = weighted[k, r] / one


def shared(function, work):
    """Call ``function(counter)`` in as many threads as `work` multiplications are worth."""
    counter, n_threads = np.zeros(1, np.int64), n_threads_for(work, None, 2**20)
    in_parts(lambda *_: function(counter), n_threads, n_threads)


def each_head(function, n_heads):
    """Return ``function(i)`` for each head, the heads side by side in the threads there are."""
    found = [None] * n_heads

    def work(first, last, _):
        for i in range(first, last):
            found[i] = function(i)

    in_parts(work, n_heads, min(n_heads, n_threads_for(2**30)))
    return found


def sorted_by_cells(x, block, n_cells, steps):
    """Return the order of the rows, and where each cell of each block starts, one more."""
    n = len(x)
    blocks = -(-n // block)
    order, starts = np.empty(n, np.int64), np.full(blocks * n_cells + 1, n, np.int64)

    def work(first, last, _):
        sort_blocks(x, block, n_cells, steps, first, last, order, starts)

    in_parts(work, blocks, min(blocks, n_threads_for(n * n_cells * x.shape[1])))
    return order, starts


# What is known of the keys of a head


class Sorted(NamedTuple):
    """Keys of a head by cell, and what stands for each cell."""

    keys: tuple[np.ndarray, ...]
    stands: tuple[np.ndarray, ...]
    covariance: np.ndarray
    cross: np.ndarray


def sort_keys(key, value, block, n_cells, steps=4) -> Sorted:
    """Return the keys in k-means cells of their block, with the moments of the cells."""
    order, starts = sorted_by_cells(key, block, n_cells, steps)
    k, v, count = key[order], value[order], np.diff(starts)
    one, cell = np.maximum(count, 1).astype(np.float32), np.repeat(np.arange(len(count)), count)

    def mean(x):
        padded = np.concatenate([x, np.zeros_like(x[:1])])
        return np.where(count > 0, np.add.reduceat(padded, starts[:-1]).T / one, 0).T

    means, value_means = mean(k), mean(v)
    away, value_away = k - means[cell], v - value_means[cell]
    covariance, cross = away.T @ away / len(k), away.T @ value_away / len(k)
    spread = mean(np.sum(away * away, axis=1)) / max(float(np.trace(covariance)), 1e-30)
    log_count = np.where(count > 0, np.log(one), -np.inf)
    stands = (means, np.column_stack([value_means, spread]), log_count, spread)
    float32 = tuple(np.ascontiguousarray(x, np.float32) for x in stands)
    return Sorted((k, v, order, starts), float32, covariance, cross)


# Clusters alone


def prepare(key, value, *, n_clusters, n_probes, is_causal, seed=0):
    """Sort the keys of each head into clusters."""
    del seed
    n = key.shape[1]
    heads = each_head(lambda i: sort_keys(key[i], value[i], n, n_clusters), len(key))
    return heads, n_probes, is_causal


def attend(query, state) -> np.ndarray:
    """Return attention to the keys of the `n_probes` clusters of largest centroid score."""
    heads, n_probes, is_causal = state
    query = query * np.float32(1 / math.sqrt(query.shape[-1]))
    return np.stack(
        each_head(lambda i: _probe(query[i], heads[i], n_probes, is_causal), len(query))
    )


def _probe(query, head, n_probes, is_causal):
    n, means = len(query), head.stands[0]
    n_probes = min(n_probes, len(means))
    near = query @ means.T + np.where(np.isfinite(head.stands[2]), 0, -np.inf)
    picked = np.argpartition(-near, n_probes - 1, axis=1)[:, :n_probes]
    pairs = np.argsort(picked.ravel(), kind="stable")
    asked, cluster = pairs // n_probes, picked.ravel()[pairs]
    panels, ids = panels_by(cluster, TILES[lanes()].width)
    rows = np.ascontiguousarray(query[asked])
    limits = asked if is_causal else np.full(len(asked), EVERYWHERE)
    out, log_total = meet(rows, panels, ids[:, None], np.ones(len(ids), np.int64), head, limits)
    parts, logs = np.empty_like(out), np.empty_like(log_total)
    parts[pairs], logs[pairs] = out, log_total
    parts, logs = parts.reshape(n, n_probes, -1), logs.reshape(n, n_probes)
    return merged([(parts[:, p], logs[:, p]) for p in range(n_probes)])[0]


def panels_by(cluster, width):
    """Return where panels of up to `width` rows of one cluster begin, and their clusters."""
    first = np.flatnonzero(np.diff(cluster, prepend=-1))
    length = np.diff(first, append=len(cluster))
    n_panels = -(-length // width)
    number = np.arange(n_panels.sum()) - np.repeat(np.cumsum(n_panels) - n_panels, n_panels)
    starts = np.repeat(first, n_panels) + number * width
    return np.append(starts, len(cluster)), cluster[starts]


def meet(query, panels, ids, counts, head, limits):
    out = np.empty((len(query), head.keys[1].shape[1]), np.float32)
    log_total = np.empty(len(query), np.float32)
    arrays = (query, panels, ids, counts, head.keys, limits)
    shared(
        lambda counter: attend_cells(TILES[lanes()], *arrays, counter, out, log_total),
        len(query) * 2**12,
    )
    return out, log_total


def merged(parts):
    """Return attention over the keys of all parts, and its log total, from those of each."""
    logs = np.stack([log_total for _, log_total in parts])
    top = logs.max(axis=0)
    safe = np.where(np.isfinite(top), top, 0)
    weights = np.exp(logs - safe)
    total = weights.sum(axis=0)
    one = np.where(total > 0, total, 1)
    out = sum((w / one)[..., None] * o for w, (o, _) in zip(weights, parts, strict=True))
    with np.errstate(divide="ignore"):
        return np.asarray(out, np.float32), safe + np.log(total)
