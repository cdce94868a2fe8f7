"""What a query does in `self_attention_sketch`: the closed form, the tables, and whole cells.

Arrays and units are those of `_numba_self`.
"""

import math

import numba
import numpy as np

from attnbook.sketch._numba_self import BITS, BLOCK, loops
from attnbook.sketch._self_simd import exp2, first_bit, near_codes, product, ranks, sign_bits
from attnbook.sketch._simd import prefetch

MOST, CROWD = 256, 32
"""Keys that the tables give a query at most, and codes of a bucket that it looks at."""

RUN = 8
"""Queries that look for keys before the first of them scores its own: so long do fetches take."""

LN2, LOG2E = np.float32(math.log(2)), np.float32(1 / math.log(2))
ZERO, ONE, HALF, INF = (np.float32(x) for x in (0, 1, 0.5, np.inf))
WIDE = np.float32(1.5)
"""Deviation of scores up to which the missing end of a Gaussian is not worth the work."""

JUMP = np.float32(60)
"""A score higher than the mass so far by so much becomes the new unit of weight."""


@loops
def _probe(along, start, stop, first, bits, flips_of, begins, codes, own, bounds):
    """Write which buckets each query looks into: its own and those across the nearest planes.

    Probe p flips a set of bits, given by the rank of their plane: those of its parent and one.
    """
    parents, elements = flips_of
    rank, bit = np.empty(16, dtype=np.int32), np.zeros(16, dtype=np.uint32)
    flips, mask = np.zeros(len(parents), dtype=np.uint32), np.uint64((1 << bits) - 1)
    for t in range(len(codes)):
        table, begin = codes[t], begins[t]
        for r in range(start, stop):
            ranks(along, r * along.shape[1] + first + t * bits, np.int32(bits), rank)
            for j in range(bits):
                bit[np.uint32(rank[j])] = np.uint32(1) << np.uint32(j)
            bucket = np.uint32((own[r] >> np.uint64(t * bits)) & mask)
            for p in range(len(parents)):
                if p > 0:
                    flips[p] = flips[parents[p]] | bit[elements[p]]
                b = bucket ^ flips[p]
                bounds[t, r, p, 0] = begin[b]
                bounds[t, r, p, 1] = begin[b + np.uint32(1)]
                prefetch(table, np.int64(begin[b]))


@numba.njit(inline="always")
def _keep(near, at, rows, cell_of, tops, query, key, value, seen, found, r, n):
    """Add the keys of the bits in `near` to `found` unless they are there; return how many are.

    A bit beyond the end of a bucket is a neighbour too, or padding. Keys of the cells in `tops` are
    left out: those are scored whole.
    """
    d, d_v = key.shape[1], value.shape[1]
    while near != 0:
        row = np.uint32(rows[np.uint64(at + first_bit(near))])
        near &= near - 1
        if row < len(key) and seen[row] != query and n < MOST:
            seen[row] = query
            new = True
            for t in range(len(tops)):
                new &= cell_of[row] != tops[t, query]
            if new:
                found[r, n] = row
                n += 1
                for j in range(0, d, 16):
                    prefetch(key, np.int64(row) * d + j)
                for j in range(0, d_v, 16):
                    prefetch(value, np.int64(row) * d_v + j)
    return n


@loops
def _search(start, stop, own, bounds, index, tops, query, key, value, seen, found, n_found):
    """Write to `found` the rows in these buckets whose codes are near, each once."""
    distance, codes, rows, cell_of, long_codes, long_rows, long_distances = index
    n_probes = bounds.shape[2]
    hits, places = np.empty(n_probes, dtype=np.int64), np.empty(n_probes, dtype=np.int64)
    for r in range(start, stop):
        code = own[r]
        n, i = 0, np.int32(query + r)
        for g in range(len(long_distances)):
            if long_distances[g] < 0:
                break  # too short from here on
            near = near_codes(long_codes, 8 * g, code, long_distances[g])
            n = _keep(near, 8 * g, long_rows, cell_of, tops, i, key, value, seen, found, r, n)
        for t in range(len(bounds)):
            table, row_of, n_hits = codes[t], rows[t], 0
            for p in range(n_probes):
                at, end = np.int64(bounds[t, r, p, 0]), np.int64(bounds[t, r, p, 1])
                near = near_codes(table, at, code, distance)
                hits[n_hits], places[n_hits] = near, at
                n_hits += near != 0  # no branch, which no processor could foresee
                end = min(end, at + CROWD)
                while at + 8 < end:
                    at += 8
                    near = near_codes(table, at, code, distance)
                    n = _keep(near, at, row_of, cell_of, tops, i, key, value, seen, found, r, n)
            for p in range(n_hits):
                at, near = places[p], hits[p]
                n = _keep(near, at, row_of, cell_of, tops, i, key, value, seen, found, r, n)
        n_found[r] = n


@loops
def _cut(score, deviation, limit, spread, share, along):
    """Cut the Gaussians at `limit`: write log2 of the share that is left, and spread (1 - φ/σΦ)."""
    for c in range(len(score)):
        sigma = deviation * math.sqrt(spread[c]) * LN2
        share[c], along[c] = ZERO, spread[c]
        if sigma > ZERO:
            a = np.float64((limit - score[c]) * LN2) / sigma - sigma
            log_density = -0.5 * a * a - 0.5 * math.log(2 * math.pi)
            if a > -25:
                log_cdf = math.log(0.5 * math.erfc(-a / math.sqrt(2.0)))
                ratio = math.exp(log_density - log_cdf)
            else:  # the series of φ/Φ for a → -∞, to 1e-9
                ratio = -a - 1 / a + 2 / a**3 - 10 / a**5
                log_cdf = log_density - math.log(ratio)
            share[c] = log_cdf * LOG2E
            along[c] = spread[c] * (1 - ratio / sigma)


@loops
def _add_found(q, r, limit, found, n, key, value, score, mean, unit, total):
    """Add keys that score `limit` or more to row r; return the unit and the sum of weights."""
    kept, high = 0, -INF
    for a in range(n):
        row = found[r, a]
        x = ZERO
        for j in range(q.shape[1]):
            x += q[r, j] * key[row, j]
        score[a] = x
    for a in range(n):
        if score[a] >= limit:
            found[r, kept], score[kept] = found[r, a], score[a]
            high = max(high, score[a])
            kept += 1
    if kept > 0 and (total == ZERO or high > unit + JUMP):
        change = exp2(unit - high) if total > ZERO else ZERO
        total *= change
        unit = high
        for j in range(mean.shape[1]):
            mean[r, j] *= change
    for a in range(kept):
        score[a] = exp2(score[a] - unit)
    for a in range(kept):
        row, weight = found[r, a], score[a]
        total += weight
        for j in range(mean.shape[1]):
            mean[r, j] += weight * value[row, j]
    return unit, total


@loops
def far(query, start, stop, factor, moments, index, n_top, key, value, seen, out, log_mass, tops):
    """Write mean value and log mass of all but the `n_top` best cells, and which those are.

    moments : joined (d, w) = S, C and the directions side by side; means_t (d, C);
        value_means (C, d_v); log_counts, spread, reach (C,)
    index : tables (0 or more), bits, distance, parents, elements, starts, codes, rows, cell of each
        key; codes, rows and distances of long keys
    """
    joined, means_t, value_means, log_counts, spread, reach = moments
    n_tables, bits, distance, parents, elements, starts, codes, rows, cell_of = index[:9]
    long_codes, long_rows, long_distances = index[9:]
    d, d_v, width, n_cells = query.shape[1], value.shape[1], joined.shape[1], means_t.shape[1]
    searched = n_tables > 0 or len(long_distances) > 0
    widest, n_some = np.sqrt(np.max(spread)) * LN2, 0
    for c in range(n_cells):
        n_some += log_counts[c] > -INF
    q = np.zeros((BLOCK, d), dtype=np.float32)
    along = np.zeros((BLOCK + 1, width), dtype=np.float32)  # `ranks` reads beyond the last row
    score = np.empty((BLOCK, n_cells), dtype=np.float32)
    mean = np.empty((BLOCK, d_v), dtype=np.float32)
    share, moved = np.empty(n_cells, dtype=np.float32), np.empty(n_cells, dtype=np.float32)
    limit, unit, total, move = (
        np.empty(BLOCK, dtype=np.float32),
        np.empty(BLOCK, dtype=np.float32),
        np.empty(BLOCK, dtype=np.float32),
        np.empty(BLOCK, dtype=np.float32),
    )
    found, n_found = np.empty((BLOCK, MOST), dtype=np.uint32), np.zeros(BLOCK, dtype=np.int64)
    found_score, near_index = (
        np.empty(MOST, dtype=np.float32),
        (distance, codes, rows, cell_of, long_codes, long_rows, long_distances),
    )
    bounds = np.empty((n_tables, BLOCK, len(parents), 2), dtype=np.int32)
    own, zeros = np.empty(BLOCK, dtype=np.uint64), np.zeros(BITS, dtype=np.float32)
    for i in range(start, stop, BLOCK):
        m = min(BLOCK, stop - i)
        for r in range(m):
            for j in range(d):
                q[r, j] = query[i + r, j] * factor
        product(q, 0, d, 1, joined, 0, width, along, 0, width, (BLOCK, width, d), False)
        product(q, 0, d, 1, means_t, 0, n_cells, score, 0, n_cells, (BLOCK, n_cells, d), False)
        for r in range(m):
            square = ZERO
            for j in range(d):
                square += q[r, j] * along[r, j]
            square = max(square, ZERO)
            deviation = math.sqrt(square)
            high, half, shift = -INF, HALF * LN2 * square, spread
            wide = deviation * widest > WIDE
            if wide or searched:
                for c in range(n_cells):
                    if log_counts[c] > -INF:
                        high = max(high, score[r, c] + deviation * reach[c])
                limit[r] = high
            if wide:
                _cut(score[r], deviation, high, spread, share, moved)
                shift = moved
                for c in range(n_cells):
                    score[r, c] += share[c]
            best = -INF
            for c in range(n_cells):
                score[r, c] += log_counts[c] + half * spread[c]
                best = max(best, score[r, c])
            unit[r], total[r], move[r] = best, ZERO, ZERO
            for t in range(n_top):
                tops[t, i + r] = -1
                if best > -INF:
                    c = 0
                    while score[r, c] < best:
                        c += 1
                    tops[t, i + r] = c
                    score[r, c] = -INF
                    best = -INF
                    if t + 1 < n_top:
                        for c in range(n_cells):
                            best = max(best, score[r, c])
            if unit[r] == -INF or n_top >= n_some:
                score[r] = 0
                continue
            # the unit is the best of all cells: what is 2^-126 of it may vanish
            mass, step = ZERO, ZERO
            for c in range(n_cells):
                weight = exp2(score[r, c] - unit[r])
                score[r, c] = weight
                mass += weight
                step += weight * shift[c]
            total[r], move[r] = mass, step * LN2
        product(
            *(score, 0, n_cells, 1, value_means, 0, d_v),
            *(mean, 0, d_v, (BLOCK, d_v, n_cells), False),
        )
        for r in range(m):
            if searched and r % RUN == 0:
                end, at = min(m, r + RUN), d + d_v
                for a in range(r, end):
                    own[a] = sign_bits(along, a * width + at, zeros)
                _probe(along, r, end, at, bits, (parents, elements), starts, codes, own, bounds)
                _search(
                    *(r, end, own, bounds, near_index, tops, i, key, value, seen),
                    *(found, n_found),
                )
            for j in range(d_v):
                mean[r, j] += move[r] * along[r, d + j]
            if searched and n_found[r] > 0:
                unit[r], total[r] = _add_found(
                    *(q, r, limit[r], found, n_found[r], key, value),
                    *(found_score, mean, unit[r], total[r]),
                )
            if total[r] > ZERO:
                part = ONE / total[r]
                for j in range(d_v):
                    out[i + r, j] = mean[r, j] * part
                log_mass[i + r] = unit[r] + math.log(total[r]) * LOG2E
            else:
                for j in range(d_v):
                    out[i + r, j] = ZERO
                log_mass[i + r] = -INF


@loops
def near(
    query, factor, first, stop, starts, places, turned, value, q_starts, q_order, out, log_mass
):
    """Score cells `first` to `stop` whole for the queries of each, and join that to `out`."""
    d, d_v, most = query.shape[1], value.shape[1], 16
    for c in range(first, stop):
        most = max(most, (starts[c + 1] - starts[c] + 15) // 16 * 16)
    q = np.zeros((BLOCK, d), dtype=np.float32)
    score = np.empty((BLOCK, most), dtype=np.float32)
    mean = np.empty((BLOCK, d_v), dtype=np.float32)
    total, unit = np.empty(BLOCK, dtype=np.float32), np.empty(BLOCK, dtype=np.float32)
    for c in range(first, stop):
        n = starts[c + 1] - starts[c]
        if n == 0:
            continue
        width = (n + 15) // 16 * 16
        for a in range(q_starts[c], q_starts[c + 1], BLOCK):
            m = min(BLOCK, q_starts[c + 1] - a)
            padded = (m + 7) // 8 * 8
            for r in range(m):
                i = q_order[a + r]
                for j in range(d):
                    q[r, j] = query[i, j] * factor
            product(
                *(q, 0, d, 1, turned, places[c], width),
                *(score, 0, most, (padded, width, d), False),
            )
            for r in range(m):
                best, mass = -INF, ZERO
                for j in range(n):
                    best = max(best, score[r, j])
                for j in range(n):
                    weight = exp2(score[r, j] - best)
                    score[r, j] = weight
                    mass += weight
                total[r], unit[r] = mass, best
            product(
                *(score, 0, most, 1, value, starts[c] * d_v, d_v),
                *(mean, 0, d_v, (padded, d_v, n), False),
            )
            for r in range(m):
                i = q_order[a + r]
                log_new = unit[r] + math.log(total[r]) * LOG2E
                high = max(log_new, log_mass[i])
                old = exp2(log_mass[i] - high) if log_mass[i] > -INF else ZERO
                new = exp2(log_new - high)
                whole = old + new
                ours, theirs = new / (whole * total[r]), old / whole
                for j in range(d_v):
                    out[i, j] = out[i, j] * theirs + mean[r, j] * ours
                log_mass[i] = high + math.log(whole) * LOG2E
