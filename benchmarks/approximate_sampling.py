"""MagicPIG: keys drawn by hash tables, each weighed by one over its chance to be drawn.

Chen et al. (2025), "MagicPIG: LSH sampling for efficient LLM generation". A key is drawn if it
shares a bucket of SimHash with the query in at least two tables; the last keys and the first ones
are always read. Keys are centred for the hash.
"""

import math

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_loops, compile_sums


def prepare(key, value, *, n_bits, n_tables, window, n_sinks, is_causal, seed=0):
    """Return the keys of every bucket of every table."""
    d, rng = key.shape[-1], np.random.default_rng(seed)
    centre = key.mean(axis=1, keepdims=True)
    directions = rng.standard_normal((d, n_tables * n_bits)).astype(np.float32)
    codes = _codes(key - centre, directions, n_tables, n_bits)
    order = np.argsort(codes, axis=-1, kind="stable").astype(np.int32)
    sorted_codes = np.take_along_axis(codes, order, axis=-1)
    buckets = np.arange(2**n_bits + 1)
    starts = np.array([[np.searchsorted(c, buckets) for c in of_head] for of_head in sorted_codes])
    return key, value, centre, directions, order, starts, window, n_sinks, is_causal


def attend(query, state) -> np.ndarray:
    """Return attention of (h, n, d) queries to the keys that are drawn for each."""
    key, value, centre, directions, order, starts, window, n_sinks, is_causal = state
    h, n, d = query.shape
    n_tables, n_bits = order.shape[1], directions.shape[1] // order.shape[1]
    codes = _codes(query, directions, n_tables, n_bits)
    out = np.empty((h, n, value.shape[-1]), np.float32)
    fixed = (window, n_sinks, n_bits, is_causal, np.float32(1 / math.sqrt(d)))
    for i in range(h):
        centred = key[i] - centre[i]
        lengths = np.linalg.norm(query[i], axis=-1), np.linalg.norm(centred, axis=-1)
        shift = query[i] @ centre[i, 0]
        arrays = (query[i], key[i], value[i], codes[i], order[i], starts[i], shift, lengths)
        in_parts(
            lambda first, last, _, a=arrays, o=out[i]: draw(*a, fixed, o, first, last),
            n,
            n_threads_for(n * 64),
        )
    return out


@compile_loops
def draw(query, key, value, codes, order, starts, shift, lengths, fixed, out, first, last):
    """Write the output of queries first:last."""
    window, n_sinks, n_bits, is_causal, scale = fixed
    n, n_tables = key.shape[0], order.shape[0]
    times, rows = np.zeros(n, np.int16), np.empty(n, np.int64)
    weights = np.empty(n, np.float32)
    for i in range(first, last):
        begin = max(0, i + 1 - window) if is_causal else n  # from here on all are read
        head = min(n_sinks, begin)
        found = 0
        for t in range(n_tables):
            code = codes[t, i]
            for place in range(starts[t, code], starts[t, code + 1]):
                row = np.int64(order[t, place])
                if row >= begin:
                    break
                if row >= head:
                    if times[row] == 0:
                        rows[found] = row
                        found += 1
                    times[row] += 1
        count, top = 0, np.float32(-np.inf)
        for c in range(found):
            row = rows[c]
            if times[row] >= 2:
                product = _dot(query, i, key, row)
                cosine = (product - shift[i]) / max(lengths[0][i] * lengths[1][row], 1e-30)
                p = (1 - math.acos(min(1.0, max(-1.0, cosine))) / math.pi) ** n_bits
                miss = (1 - p) ** (n_tables - 1)
                chance = 1 - miss * (1 - p) - n_tables * p * miss
                score = product * scale - np.float32(math.log(max(chance, 1e-12)))
                rows[count], weights[count] = row, score
                top = max(top, score)
                count += 1
            times[row] = 0
        for part in range(2):
            for row in range(0 if part == 0 else begin, head if part == 0 else min(i + 1, n)):
                score = _dot(query, i, key, row) * scale
                rows[count], weights[count] = row, score
                top = max(top, score)
                count += 1
        for k in range(value.shape[1]):
            out[i, k] = 0
        total = np.float32(0)
        for c in range(count):
            weights[c] = math.exp(weights[c] - top)
            total += weights[c]
        for c in range(count):
            share = weights[c] / total
            for k in range(value.shape[1]):
                out[i, k] += share * value[rows[c], k]


@compile_sums
def _dot(x, i, y, j):
    total = np.float32(0)
    for k in range(x.shape[1]):
        total += x[i, k] * y[j, k]
    return total


def _codes(x, directions, n_tables, n_bits):
    bits = (x @ directions >= 0).reshape(*x.shape[:-1], n_tables, n_bits)
    return np.moveaxis(bits @ (1 << np.arange(n_bits)), -1, -2)
