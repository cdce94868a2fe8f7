"""What `self_attention_sketch` keeps of the keys and values of all heads, and how it answers."""

import heapq
import math
import statistics
from typing import Any

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.sketch import _numba_self as build
from attnbook.sketch import _numba_self_query as ask
from attnbook.sketch._self_simd import WORD

LLOYD_STEPS, SAMPLE_PER_CELL = 3, 16
CHUNK = 2048  # rows that a thread takes at once
LANES = 16  # widths are multiples of it


class SelfSketch:
    """Moments, tables and cells of keys and values (h, n, d), float32, of widths 16, 32, …

    Memory: the tables take 12 bytes a key each, cells that are scored whole a second copy of keys
    and values.
    """

    def __init__(self, key, value, n_cells, n_heavy, rng, n_threads):
        h, n, _ = key.shape
        self.n_threads = n_threads_for(h * n, n_threads, CHUNK)
        self.n_cells, self.heavy = n_cells, None
        n_heavy = min(n_heavy, n)
        if n_heavy:
            order = np.argpartition(-self._lengths(key), n_heavy - 1, axis=1)
            self.heavy = [self._taken(x, order[:, :n_heavy]) for x in (key, value)]
            light = np.sort(order[:, n_heavy:], axis=1)
            key, value = (self._taken(x, light) for x in (key, value))
        self.key, self.value = key, value
        self.labels = np.zeros((h, len(key[0])), dtype=np.int32)
        if n_cells > 1 and key.shape[1]:
            self._find_cells(rng)
        self._add_moments()
        self.index: list[Any] = []

    # Sharing work between threads

    def _each(self, n, function):
        def work(start, stop, part):
            for i in range(start, stop):
                function(i)

        in_parts(work, n, max(1, min(n, self.n_threads)))

    def _chunks(self, n, function):
        """Call ``function(head, start, stop, number of the chunk)`` for runs of n rows."""
        per_head = -(-n // CHUNK)

        def one(u):
            i, j = divmod(u, per_head)
            function(i, j * CHUNK, min(n, (j + 1) * CHUNK), j)

        self._each(len(self.key) * per_head, one)

    def _taken(self, x, order):
        """Return the rows of each head in this order."""
        out = np.empty((len(x), order.shape[1], x.shape[2]), dtype=np.float32)
        self._each(len(x), lambda i: build.take_rows(x[i], order[i], 0, order.shape[1], out[i]))
        return out

    def _lengths(self, key):
        """Return how far each key is from the mean, which is no part of any score's differences."""
        out = np.empty(key.shape[:2], dtype=np.float32)

        def measure(i):
            away = key[i] - key[i].mean(axis=0)
            out[i] = np.sqrt(np.einsum("nd,nd->n", away, away))

        self._each(len(key), measure)
        return out

    # Building

    def _find_cells(self, rng):
        h, n, d = self.key.shape
        width, m = _up(self.n_cells), min(n, self.n_cells * SAMPLE_PER_CELL)
        rows = rng.permutation(n)[:m]
        means_t = np.zeros((h, d, width), dtype=np.float32)
        half = np.empty((h, width), dtype=np.float32)

        def find(i):
            sample = self.key[i, rows]
            means = np.zeros((self.n_cells, d), dtype=np.float32)
            means[: min(m, self.n_cells)] = sample[: self.n_cells]
            cells = np.empty(m, dtype=np.int32)
            build.lloyd(sample, means, LLOYD_STEPS, means_t[i], half[i], cells)

        self._each(h, find)
        self._chunks(
            n,
            lambda i, a, b, j: build.nearest(
                self.key[i], a, b, means_t[i], half[i], self.labels[i]
            ),
        )

    def _add_moments(self):
        (h, n, d), d_v, cells = self.key.shape, self.value.shape[2], self.n_cells
        width, parts = _up(cells), max(1, -(-n // CHUNK))
        scatter, cross = np.zeros((h, parts, d, d)), np.zeros((h, parts, d, d_v))
        sums, value_sums = np.zeros((h, parts, cells, d)), np.zeros((h, parts, cells, d_v))

        def add(i, a, b, j):
            key, value = self.key[i], self.value[i]
            build.second_moments(key, value, a, b, 1.0, scatter[i, j], cross[i, j])
            for x, total in ((key, sums[i, j]), (value, value_sums[i, j])):
                if cells == 1:
                    build.column_sums(x, a, b, total[0])
                else:
                    build.group_sums(x, self.labels[i], a, b, total)

        self._chunks(n, add)
        counts = np.stack([np.bincount(x, minlength=cells) for x in self.labels])
        filled = np.maximum(counts, 1)
        means, value_means = (x.sum(axis=1) / filled[..., None] for x in (sums, value_sums))
        scatter, cross = scatter.sum(axis=1), cross.sum(axis=1)
        self.centre = (means * counts[..., None]).sum(axis=1) / max(n, 1)

        def within(i):  # no BLAS: its threads would spin while ours have work
            root = np.sqrt(counts[i])[:, None]
            rows = [np.ascontiguousarray(root * x[i], np.float32) for x in (means, value_means)]
            build.second_moments(*rows, 0, cells, -1.0, scatter[i], cross[i])

        self._each(h, within)
        scatter, cross = scatter / max(n, 1), cross / max(n, 1)
        self.joined = np.concatenate([scatter, cross], axis=2).astype(np.float32)
        self.means_t = np.zeros((h, d, width), dtype=np.float32)
        self.means_t[:, :, :cells] = np.swapaxes(means, 1, 2)
        self.value_means = np.zeros((h, width, d_v), dtype=np.float32)
        self.value_means[:, :cells] = value_means
        self.log_counts = np.full((h, width), -np.inf, dtype=np.float32)
        self.log_counts[:, :cells] = np.log2(np.where(counts > 0, counts, 1))
        self.log_counts[:, :cells][counts == 0] = -np.inf
        self.spread = np.zeros((h, width), dtype=np.float32)
        self.spread[:, :cells] = self._spread(means.astype(np.float32), filled, scatter)
        self.reach = np.zeros((h, width), dtype=np.float32)
        self.reach[:, :cells] = np.sqrt(2 * self.spread[:, :cells] * np.log1p(counts))

    def _spread(self, means, counts, scatter):
        h, cells = counts.shape
        if cells == 1:
            return np.ones((h, 1))
        parts = max(1, -(-self.key.shape[1] // CHUNK))
        traces = np.zeros((h, parts, cells))
        self._chunks(
            self.key.shape[1],
            lambda i, a, b, j: build.group_traces(
                self.key[i], self.labels[i], means[i], a, b, traces[i, j]
            ),
        )
        whole = np.trace(scatter, axis1=1, axis2=2)[:, None]
        return traces.sum(axis=1) / counts / np.where(whole > 0, whole, 1)

    def add_codes(self, n_tables, n_bits, n_probes, distance, n_long, rng):
        """Sort the keys by parts of a code of 64 signs, a part for each table, and the longest."""
        h, n, d = self.key.shape
        if n_bits is None:
            n_bits = min(max(round(math.log2(max(n, 1))) - 2, 4), 16)
        n_tables, n_long = min(n_tables, build.BITS // n_bits) if n else 0, min(n_long, n)
        size = n + WORD if n_tables else 0
        codes = np.empty((h, n if n_tables or n_long else 0), dtype=np.uint64)
        starts = np.zeros((h, n_tables, (1 << n_bits) + 1), dtype=np.int32)
        sorted_codes = np.zeros((h, n_tables, size), dtype=np.uint64)
        rows = np.full((h, n_tables, size), n, dtype=np.int32)
        long_rows = np.full((h, n_long + WORD), n, dtype=np.int32)
        distances = np.zeros((h, -(-n_long // WORD)), dtype=np.int64)
        if n_tables or n_long:
            directions = _directions(d, rng)
            thresholds = (self.centre @ directions).astype(np.float32)
            self._chunks(
                n,
                lambda i, a, b, j: build.sign_codes(
                    self.key[i], a, b, directions, thresholds[i], codes[i]
                ),
            )

            def fill(u):
                i, t = divmod(u, n_tables)
                build.fill_table(
                    *(codes[i], t * n_bits, n_bits),
                    *(x[i, t] for x in (starts, sorted_codes, rows)),
                )

            self._each(h * n_tables, fill)
            same = np.broadcast_to(directions, (h, *directions.shape))
            self.joined = np.concatenate([self.joined, same], axis=2)
        if n_long:
            lengths = self._lengths(self.key)
            long_rows[:, :n_long] = np.argsort(-lengths, axis=1, kind="stable")[:, :n_long]
            for i in range(h):
                distances[i] = long_distances(lengths[i, long_rows[i, :n_long]])
        long_codes = np.zeros((h, n_long + WORD), dtype=np.uint64)
        long_codes[:, :n_long] = np.take_along_axis(codes, long_rows[:, :n_long], axis=1)
        shared = (n_tables, n_bits, distance, *probes(n_bits, n_probes))
        of_heads = (starts, sorted_codes, rows, self.labels, long_codes, long_rows, distances)
        self.index = [(*shared, *(x[i] for x in of_heads)) for i in range(h)]

    # Asking

    def answer(self, query, scale, n_scored):
        """Return the output for queries (h, n_q, d)."""
        h, n_q, _ = query.shape
        n = self.key.shape[1]
        factor = np.float32(scale / math.log(2))  # weights are powers of two
        n_top = min(n_scored, self.n_cells)
        out = np.empty((h, n_q, self.value.shape[2]), dtype=np.float32)
        log_mass = np.empty((h, n_q), dtype=np.float32)
        tops = np.empty((h, n_top, n_q), dtype=np.int32)
        fields = [self.joined, self.means_t, self.value_means]
        fields += [self.log_counts, self.spread, self.reach]
        moments = [tuple(x[i] for x in fields) for i in range(h)]
        per_head = -(-n_q // CHUNK)

        units = h * per_head
        n_threads = max(1, min(units, self.n_threads))

        def work(start, stop, part):
            last = -1
            for u in range(part, units, n_threads):  # all threads in one head: it is in the cache
                i, j = divmod(u, per_head)
                if i != last:  # which query has met a key last, for each key
                    seen, last = np.full(n, -1, dtype=np.int32), i
                ask.far(
                    *(query[i], j * CHUNK, min(n_q, (j + 1) * CHUNK), factor),
                    *(moments[i], self.index[i], n_top, self.key[i], self.value[i]),
                    *(seen, out[i], log_mass[i], tops[i]),
                )

        in_parts(work, units, n_threads)
        if n_top:
            groups = self._grouped(self.key, self.value, self.labels, self.n_cells)
            for t in range(n_top):
                self._score(query, factor, groups, tops[:, t], out, log_mass)
        if self.heavy is not None:
            key, value = self.heavy
            none = np.zeros(key.shape[:2], dtype=np.int32)
            groups = self._grouped(key, value, none, 1)
            self._score(query, factor, groups, np.zeros((h, n_q), dtype=np.int32), out, log_mass)
        return out

    def _grouped(self, key, value, labels, n_groups):
        """Return starts (h, groups + 1), places, keys as columns and values, group by group."""
        h, n, d = key.shape
        starts = np.zeros((h, n_groups + 1), dtype=np.int64)
        places, order = np.zeros_like(starts), np.empty((h, n), dtype=np.int64)
        turned, sorted_values = [None] * h, np.empty_like(value)

        def sort(i):
            build.group(labels[i], n_groups, starts[i], order[i])
            np.cumsum(d * _up(np.diff(starts[i])), out=places[i, 1:])
            turned[i] = np.empty(places[i, -1], dtype=np.float32)
            build.turn_groups(key[i], order[i], starts[i], 0, n_groups, places[i], turned[i])
            build.take_rows(value[i], order[i], 0, n, sorted_values[i])

        self._each(h, sort)
        return starts, places, turned, sorted_values

    def _score(self, query, factor, groups, chosen, out, log_mass):
        """Score for each query one group whole."""
        starts, places, turned, value = groups
        n_groups = starts.shape[1] - 1

        def score(i):
            q_starts, q_order = np.zeros_like(starts[i]), np.empty(query.shape[1], dtype=np.int64)
            build.group(chosen[i], n_groups, q_starts, q_order)
            ask.near(
                *(query[i], factor, 0, n_groups, starts[i], places[i], turned[i], value[i]),
                *(q_starts, q_order, out[i], log_mass[i]),
            )

        self._each(len(query), score)


def probes(n_bits, n_probes):
    """Return sets of planes to flip, best first: the place of a smaller set, and one more rank.

    Planes are ranked by their distance from the query; a set costs the sum of squared distances
    (Lv et al. 2007), here with what these are on average.
    """
    rng = np.random.default_rng(0)
    cost = (np.sort(np.abs(rng.standard_normal((2048, n_bits))), axis=1) ** 2).mean(axis=0).tolist()
    place: dict[tuple[int, ...], int] = {}
    parents: list[int] = []
    elements: list[int] = []
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while heap and len(parents) < n_probes:
        total, ranks = heapq.heappop(heap)
        place[ranks] = len(parents)
        parents.append(place[ranks[:-1]])
        elements.append(ranks[-1] if ranks else 0)
        after = ranks[-1] + 1 if ranks else 0
        if after < n_bits:
            heapq.heappush(heap, (total + cost[after], (*ranks, after)))
            if ranks:
                instead = total - cost[after - 1] + cost[after]
                heapq.heappush(heap, (instead, (*ranks[:-1], after)))
    return np.asarray(parents), np.asarray(elements)


def long_distances(lengths):
    """Return for each 8 of these keys, longest first, in how many signs their codes may differ.

    m of 64 signs estimate the cosine as cos(π m / 64); times the length it is what a score depends
    on. The limit is one for all keys: a query that is nearest to none passes an eighth of them.
    """
    # the number of differing signs is about normal, with mean 32 and deviation 4
    normal = statistics.NormalDist(32, 4)
    chance = np.asarray([normal.cdf(m + 0.5) for m in range(build.BITS // 2)])
    low, high = 0.0, float(lengths[0])
    for _ in range(30):
        limit = (low + high) / 2
        most = _signs(lengths, limit)
        passed = np.where(most >= 0, chance[np.maximum(most, 0)], 0).sum()
        low, high = (limit, high) if passed > len(lengths) / 8 else (low, limit)
    return _signs(lengths[::WORD], high)


def _signs(lengths, limit):
    """Return the largest m below 32 with length · cos(π m / 64) ≥ limit, or -1."""
    cosine = np.clip(limit / np.where(lengths > 0, lengths, 1), 0, 1)
    most = np.floor(np.arccos(cosine) * build.BITS / np.pi).astype(np.int64)
    return np.where(lengths >= limit, np.minimum(most, build.BITS // 2 - 1), -1)


def _directions(d, rng):
    """Return 64 directions (d, 64), orthogonal as far as there is room: their signs vary less."""
    blocks = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(-(-build.BITS // d))]
    joined = np.concatenate(blocks, axis=1)[:, : build.BITS]
    return np.ascontiguousarray(joined, dtype=np.float32)


def _up(n):
    return -(-n // LANES) * LANES
