r"""Self-attention in less than quadratic time: Gaussians for the crowd, scores for the few.

.. math:: \hat O = \frac{\sum_{i \in R} e^{s\,q \cdot k_i} v_i + \sum_c Z_c O_c}
                        {\sum_{i \in R} e^{s\,q \cdot k_i} + \sum_c Z_c}

R are the keys that a query scores one by one; the rest lies in cells c whose mass :math:`Z_c` and
mean value :math:`O_c` come from `Moments`, without looking at a key.
"""

import heapq
import math
from typing import Annotated, Any

import numpy as np

from attnbook._arrays import Array, check_attention_inputs, check_int, dtype_name, library
from attnbook._projections import generator
from attnbook.sketch._threads import in_parts, n_threads_for

LLOYD_STEPS, SAMPLE_PER_CELL = 3, 16
CHUNK = 2048  # rows that a thread takes at once
WIDTH = 16  # widths are padded to vectors of so many numbers


def self_attention_sketch(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    *,
    n_cells: int = 1,
    n_scored: int = 0,
    n_heavy: int = 0,
    n_tables: int = 3,
    n_bits: int | None = None,
    n_probes: int = 20,
    distance: int = 14,
    scale: float | None = None,
    seed: "int | np.random.Generator" = 0,
    n_threads: int | None = None,
) -> Annotated[Array, "... n_q d_v"]:
    check_options = {"n_cells": (n_cells, 1), "n_scored": (n_scored, 0), "n_heavy": (n_heavy, 0)}
    check_options |= {"n_tables": (n_tables, 0), "n_probes": (n_probes, 1)}
    for name, (number, least) in check_options.items():
        check_int(name, number, at_least=least)
    arrays = {"query": query, "key": key, "value": value}
    _, _, _, _, scale = check_attention_inputs(arrays, None, None, scale)
    if library(query) != "numpy" or dtype_name(query.dtype) != "float32":
        raise TypeError(f"query must be a float32 array of NumPy, got {dtype_name(query.dtype)} of {library(query)}")
    n_k, d_v = value.shape[-2:]
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in arrays.values()))
    q, k, v = (
        _padded(np.broadcast_to(x, (*leading, *x.shape[-2:])).reshape(-1, *x.shape[-2:]))
        for x in arrays.values()
    )
    sketch = _Sketch(k, v, n_cells, n_heavy, n_tables, n_bits, n_probes, distance, generator(seed), n_threads)
    out = sketch.answer(q, scale, n_scored)
    return out[..., :d_v].reshape(*leading, q.shape[1], d_v)


def _padded(x):
    """Return a writable contiguous array whose rows are a multiple of 16 wide."""
    short = -x.shape[-1] % WIDTH
    if short:
        return np.pad(x, ((0, 0), (0, 0), (0, short)))
    return np.require(x, requirements=["C", "W"])


def probes(n_bits: int, n_probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sets of planes to flip, best first, as the place of a smaller set and one more rank."""
    # what the j-th smallest of so many margins is on average, squared
    rng = np.random.default_rng(0)
    cost = (np.sort(np.abs(rng.standard_normal((2048, n_bits))), axis=1) ** 2).mean(0)
    place: dict[tuple[int, ...], int] = {}
    parents, elements = [], []
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while heap and len(parents) < n_probes:
        total, ranks = heapq.heappop(heap)
        place[ranks] = len(parents)
        parents.append(place[ranks[:-1]])
        elements.append(ranks[-1] if ranks else 0)
        last = ranks[-1] if ranks else -1
        if last + 1 < n_bits:
            after = (*ranks, last + 1)
            heapq.heappush(heap, (total + cost[last + 1], after))
            if ranks:
                instead = (*ranks[:-1], last + 1)
                heapq.heappush(heap, (total - cost[last] + cost[last + 1], instead))
    return np.asarray(parents), np.asarray(elements)


class _Sketch:
    """Keys and values of all heads (h, n, d), ready for queries."""

    def __init__(self, key, value, n_cells, n_heavy, n_tables, n_bits, n_probes, distance, rng, n_threads):
        from attnbook.sketch import _numba_self as loops
        self.loops = loops
        h, n, d = key.shape
        d_v = value.shape[2]
        self.n_threads = n_threads_for(h * n, n_threads)
        self.n_cells, self.n_heavy = n_cells, min(n_heavy, n)
        light = n - self.n_heavy
        groups = n_cells + (self.n_heavy > 0)
        self.starts = np.zeros((h, groups + 1), dtype=np.int64)
        labels = None
        if groups > 1:
            labels = self._labels(key, rng)
            order = np.empty((h, n), dtype=np.int64)
            self._each(h, lambda i: loops.group(labels[i], groups, self.starts[i], order[i]))
            unsorted, key, value = (key, value), np.empty_like(key), np.empty_like(value)
            for x, out in zip(unsorted, (key, value), strict=True):
                self._chunks(h, n, lambda i, a, b: loops.take_rows(x[i], order[i], a, b, out[i]))
        else:
            self.starts[:, 1] = n
        self.key, self.value = key, value
        self._moments(light)
        self._tables(light, n_tables, n_bits, n_probes, distance, rng)
        self._turned = None

    def _each(self, n, function):
        def work(start, stop, part):
            for i in range(start, stop):
                function(i)

        in_parts(work, n, min(n, self.n_threads) or 1)

    def _chunks(self, h, n, function, chunk=CHUNK):
        per_head = -(-n // chunk)

        def one(u):
            i, j = divmod(u, per_head)
            function(i, j * chunk, min(n, (j + 1) * chunk))

        self._each(h * per_head, one)

    def _labels(self, key, rng):
        """Return the cell of each key; the number of cells for heavy keys."""
        h, n, d = key.shape
        labels = np.zeros((h, n), dtype=np.int32)
        if self.n_cells > 1:
            width = -(-self.n_cells // WIDTH) * WIDTH
            m = min(n, self.n_cells * SAMPLE_PER_CELL)
            rows = rng.permutation(n)[:m]
            means_t = np.zeros((h, d, width), dtype=np.float32)
            half = np.empty((h, width), dtype=np.float32)

            def cells(i):
                sample = key[i, rows]
                means = np.zeros((self.n_cells, d), dtype=np.float32)
                means[:m] = sample[: self.n_cells]
                self.loops.lloyd(sample, means, LLOYD_STEPS, means_t[i], half[i], np.empty(m, np.int32))

            self._each(h, cells)
            self._chunks(h, n, lambda i, a, b: self.loops.nearest(key[i], a, b, means_t[i], half[i], labels[i]))
        if self.n_heavy:
            norms = np.einsum("hnd,hnd->hn", key, key)
            heavy = np.argpartition(-norms, self.n_heavy - 1, axis=1)[:, : self.n_heavy]
            np.put_along_axis(labels, heavy, self.n_cells, axis=1)
        return labels

    def _moments(self, light):
        (h, _, d), d_v = self.key.shape, self.value.shape[2]
        cells = self.n_cells
        width = -(-cells // WIDTH) * WIDTH
        per_head = max(1, -(-light // CHUNK))
        scatter, cross = np.zeros((h, per_head, d, d)), np.zeros((h, per_head, d, d_v))
        means = np.zeros((h, width, d), dtype=np.float32)
        self.value_means = np.zeros((h, width, d_v), dtype=np.float32)
        self._chunks(h, light, lambda i, a, b: self.loops.second_moments(self.key[i], self.value[i], a, b, scatter[i, a // CHUNK], cross[i, a // CHUNK]))
        counts = np.diff(self.starts[:, : cells + 1], axis=1).astype(np.float64)
        for x, out in ((self.key, means), (self.value, self.value_means)):
            if cells == 1:
                sums = np.zeros((h, per_head, x.shape[2]))
                self._chunks(h, light, lambda i, a, b: self.loops.column_sums(x[i], a, b, sums[i, a // CHUNK]))
                out[:, 0] = sums.sum(1) / max(light, 1)
            else:
                self._each(h, lambda i: self.loops.group_means(x[i], self.starts[i], 0, cells, out[i]))
        m, vm = (x[:, :cells].astype(np.float64) for x in (means, self.value_means))
        weighted = np.swapaxes(m * counts[..., None], 1, 2)
        scatter = (scatter.sum(1) - weighted @ m) / max(light, 1)
        cross = (cross.sum(1) - weighted @ vm) / max(light, 1)
        self.spread = np.zeros((h, width), dtype=np.float32)
        self.spread[:, :cells] = 1
        if cells > 1:
            traces = np.zeros((h, cells), dtype=np.float32)
            self._each(h, lambda i: self.loops.group_traces(self.key[i], self.starts[i], means[i], 0, cells, traces[i]))
            whole = np.trace(scatter, axis1=1, axis2=2)[:, None]
            self.spread[:, :cells] = traces / np.maximum(counts, 1) / np.where(whole > 0, whole, 1)
        self.log_counts = np.full((h, width), -np.inf, dtype=np.float32)
        with np.errstate(divide="ignore"):
            self.log_counts[:, :cells] = np.log2(counts)
        self.reach = np.zeros((h, width), dtype=np.float32)
        self.reach[:, :cells] = np.sqrt(self.spread[:, :cells] * 2 * np.log1p(counts))
        self.means_t = np.ascontiguousarray(np.swapaxes(means, 1, 2))
        self.centre = (np.swapaxes(m, 1, 2) @ counts[..., None])[..., 0] / max(light, 1)
        self.joined = np.concatenate([scatter, cross], axis=2).astype(np.float32)

    def _tables(self, light, n_tables, n_bits, n_probes, distance, rng):
        h, _, d = self.key.shape
        n_bits = max(4, min(16, round(math.log2(max(light, 1))) - 2)) if n_bits is None else n_bits
        n_tables = min(n_tables, 64 // n_bits)
        n = light if n_tables else 0
        codes = np.empty((h, n), dtype=np.uint64)
        starts = np.zeros((h, max(n_tables, 1), (1 << n_bits) + 1 if n_tables else 1), dtype=np.int32)
        sorted_codes = np.zeros((h, max(n_tables, 1), n + 8), dtype=np.uint64)
        rows = np.full((h, max(n_tables, 1), n + 8), light, dtype=np.int32)
        parents, elements = probes(n_bits, n_probes)
        if n_tables:
            blocks = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(-(-64 // d))]
            directions = np.ascontiguousarray(np.concatenate(blocks, axis=1)[:, :64], dtype=np.float32)
            thresholds = (self.centre @ directions).astype(np.float32)
            self._chunks(h, n, lambda i, a, b: self.loops.sign_codes(self.key[i], a, b, directions, thresholds[i], codes[i]))

            def fill(u):
                i, t = divmod(u, n_tables)
                self.loops.fill_table(codes[i], t * n_bits, n_bits, starts[i, t], sorted_codes[i, t], rows[i, t])

            self._each(h * n_tables, fill)
            self.joined = np.concatenate([self.joined, np.broadcast_to(directions, (h, *directions.shape))], axis=2)
        cell_of = np.zeros((h, light if self.n_cells > 1 else 1), dtype=np.int32)
        if self.n_cells > 1:
            for i in range(h):
                cell_of[i] = np.repeat(np.arange(self.n_cells), np.diff(self.starts[i, : self.n_cells + 1]))
        self.index = [(n_tables, n_bits, distance, parents, elements, starts[i], sorted_codes[i], rows[i], cell_of[i]) for i in range(h)]

    def answer(self, query, scale, n_scored):
        from attnbook.sketch import _numba_self_query as loops
        h, n_q, _ = query.shape
        light = self.starts[:, self.n_cells]
        factor = np.float32(scale / math.log(2))
        n_top = min(n_scored, self.n_cells)
        out = np.empty((h, n_q, self.value.shape[2]), dtype=np.float32)
        log_mass = np.empty((h, n_q), dtype=np.float32)
        tops = np.empty((h, max(n_top, 1), n_q), dtype=np.int32)
        moments = [tuple(x[i] for x in (self.joined, self.means_t, self.value_means, self.log_counts, self.spread, self.reach)) for i in range(h)]
        per_head = max(1, -(-n_q // CHUNK))

        def work(start, stop, part):
            seen, last = np.empty(0, dtype=np.int32), -1
            for u in range(start, stop):
                i, j = divmod(u, per_head)
                if i != last:
                    seen, last = np.full(int(light[i]) + 1, -1, dtype=np.int32), i
                loops.far(
                    *(query[i], j * CHUNK, min(n_q, (j + 1) * CHUNK), factor, moments[i], self.index[i]),
                    *(n_top, self.key[i, : light[i]], self.value[i], seen, out[i], log_mass[i], tops[i]),
                )

        units = h * per_head
        in_parts(work, units, min(units, self.n_threads) or 1)
        groups = self.starts.shape[1] - 1
        if n_top or self.n_heavy:
            sizes = np.diff(self.starts, axis=1)
            places = np.zeros((h, groups + 1), dtype=np.int64)
            np.cumsum(-(-sizes // WIDTH) * WIDTH * self.key.shape[2], axis=1, out=places[:, 1:])
            turned = [np.empty(int(p[-1]), dtype=np.float32) for p in places]
            first = 0 if n_top else self.n_cells
            self._each(h, lambda i: self.loops.turn_groups(self.key[i], self.starts[i], first, groups, places[i], turned[i]))
            q_starts, q_order = np.zeros((h, groups + 1), dtype=np.int64), np.empty((h, n_q), dtype=np.int64)
            for t in range(n_top + (self.n_heavy > 0)):
                heavy = t == n_top
                if heavy:
                    q_order[:] = np.arange(n_q)
                    q_starts[:] = 0
                    q_starts[:, groups] = n_q
                else:
                    self._each(h, lambda i: self.loops.group(tops[i, t], groups, q_starts[i], q_order[i]))
                a = self.n_cells if heavy else 0
                b = groups if heavy else self.n_cells
                self._each(h, lambda i: loops.near(query[i], factor, a, b, self.starts[i], places[i], turned[i], self.value[i], q_starts[i], q_order[i], out[i], log_mass[i]))
        return out
