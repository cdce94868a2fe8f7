"""Answer queries from the tables of a sketch in one pass, with Numba.

A query of a million keys does little arithmetic. It reads some thirty cache lines from all over the
memory, each of which names the next: directory, entry, key, value. To wait for one after the other
would take most of the time. So queries are answered in groups: all places in directories of a group
are prefetched before the first is read, then all entries, then keys and values.

`Prepared` holds what does not change between queries, so that one compiled call hashes, looks up
and answers. For a single query, Python itself takes most of the time.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np

from attnbook.arrays.threads import in_parts, n_threads_for
from attnbook.compilers.jit import compile_inner, compile_loops, compile_sums, read_only
from attnbook.compilers.register_tiles import prefetch
from attnbook.hashing.numba_signatures import TILE, arrays_of, probe_rows
from attnbook.hashing.simhash import SimHash
from attnbook.hashing.stable_hash import StableHash
from attnbook.sketch.bucket_tables import BucketTables
from attnbook.sketch.near_keys import NearKeys
from attnbook.sketch.numba_candidates import (
    COUNT,
    Limits,
    collect,
    find_buckets,
    most_candidates,
)
from attnbook.sketch.numba_chance import RetrievalTable, retrieval_chance

UNION, DUPLICATES, IMPORTANCE = 0, 1, 2
ESTIMATORS = {"union": UNION, "duplicates": DUPLICATES, "importance": IMPORTANCE}

WORTH = 64
"""How many queries are worth a thread."""

GROUP = 32
"""How many queries have their places in directories prefetched together."""

WINDOW = 256
"""About how many candidates have keys and values prefetched before the first is read."""


_SURE = RetrievalTable(read_only(np.ones(2)), 0.0, 1, 1)


class _Estimate(NamedTuple):
    scale: float
    mode: int
    weigh: bool  # find P of each candidate
    table: RetrievalTable
    least: float  # of P, the smallest normal number: a weight 1 / P stays finite


class _Out(NamedTuple):
    """The arrays of `NearKeys` that a loop writes."""

    mass: np.ndarray
    output: np.ndarray
    count: np.ndarray
    best: np.ndarray
    largest: np.ndarray
    expected: np.ndarray


class Prepared:
    """A hash, tables, keys and values in the form that one compiled call takes.

    `estimator` is "union" or "duplicates". Keys and values are both float32 or both float64, and
    have the rows of the index. Arguments are not checked.
    """

    def __init__(
        self,
        hash: SimHash | StableHash,
        key: Annotated[np.ndarray, "n d"],
        value: Annotated[np.ndarray, "n d_v"],
        tables: BucketTables,
        *,
        scale: float,
        estimator: str = "union",
        max_bucket: int | None = None,
        n_probes: int = 1,
    ):
        self.dtype, self.d, self.d_v = key.dtype, key.shape[1], value.shape[1]
        limits = _limits(self.dtype, max_bucket, None, None, None)
        estimate = _estimate(self.dtype, scale, estimator, None)
        arrays = arrays_of(hash, self.dtype)
        held = (read_only(key), read_only(value))
        self._given = (arrays, n_probes, *held, tables, limits, estimate)

    def ask(self, query: Annotated[np.ndarray, "n_q d"]) -> Annotated[np.ndarray, "n_q d_v"] | None:
        """Return the output of `answer` for queries of the dtype and width of the keys.

        It is None if one of them has no signature because it holds NaN or infinity.
        """
        n_q, query = len(query), read_only(query)
        output = np.empty((n_q, self.d_v), self.dtype)
        if n_q < 2 * WORTH:
            return None if _ask(query, *self._given, output, 0, n_q) else output
        n_bad = []

        def work(start, stop, thread):
            n_bad.append(_ask(query, *self._given, output, start, stop))

        in_parts(work, n_q, n_threads_for(n_q, None, WORTH))
        return None if any(n_bad) else output


@compile_loops
def _ask(query, arrays, n_probes, key, value, tables, limits, estimate, output, start, stop):
    """Hash queries start … stop, look them up and answer; return how many cannot be hashed."""
    n, dtype = stop - start, query.dtype
    signatures = np.empty((n, len(arrays.offsets) * n_probes), np.int64)
    n_bad = probe_rows(TILE, query[start:stop], arrays, signatures, 0, n)
    out = _Out(
        np.empty(n, dtype),
        output[start:stop],
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, dtype),
        np.empty(n, dtype),
    )
    if n_bad == 0:
        _answer(query[start:stop], key, value, signatures, tables, limits, estimate, out, 0, n)
    return n_bad


def answer(
    query: Annotated[np.ndarray, "n_q d"],
    key: Annotated[np.ndarray, "n d"],
    value: Annotated[np.ndarray, "n d_v"],
    signatures: Annotated[np.ndarray, "n_q n_columns"],
    tables: BucketTables,
    *,
    scale: float,
    estimator: str = "union",
    probability: RetrievalTable | None = None,
    max_bucket: int | None = None,
    before: Annotated[np.ndarray, "n_q"] | None = None,
    above: Annotated[np.ndarray, "n_q"] | None = None,
    allowed: Annotated[np.ndarray, "n"] | None = None,
    n_threads: int | None = None,
) -> NearKeys:
    """Return what its reference `near_keys.near` returns, without rows and weights.

    Arrays are NumPy's, all float32 or all float64, and have the rows of the index. Arguments are
    not checked. `signatures` has equally many columns for each table, and those of a table stand
    side by side. `probability` is needed for ``"importance"`` and for `expected`. A bucket gives
    its lowest `max_bucket` rows that are not removed. Of these a row counts if it is below
    `before`, `allowed` is True for it and its score is above `above`. A query costs O(L), and
    O(d + d_v) for each of its candidates. The scratch is some 70 bytes for each place in the
    buckets of the query that has the most.
    """
    n_q, dtype = len(query), query.dtype
    limits = _limits(dtype, max_bucket, before, above, allowed)
    estimate = _estimate(dtype, scale, estimator, probability)
    out = _Out(
        mass=np.empty(n_q, dtype),
        output=np.empty((n_q, value.shape[1]), dtype),
        count=np.empty(n_q, np.int64),
        best=np.empty(n_q, np.int64),
        largest=np.empty(n_q, dtype),
        expected=np.empty(n_q, dtype),
    )
    arrays = [read_only(x) for x in (query, key, value, signatures)]

    def work(start, stop, thread):
        _answer(*arrays, tables, limits, estimate, out, start, stop)

    in_parts(work, n_q, n_threads_for(n_q, n_threads, WORTH))
    return NearKeys(*out) if estimate.weigh else NearKeys(*out[:-1])


def _limits(dtype, max_bucket, before, above, allowed):
    return Limits(
        read_only(np.empty(0, np.int64) if before is None else before.astype(np.int64)),
        read_only(np.empty(0, dtype) if above is None else above.astype(dtype)),
        read_only(np.empty(0, bool) if allowed is None else allowed),
        COUNT if max_bucket is None else int(max_bucket),
    )


def _estimate(dtype, scale, estimator, probability):
    table = _SURE
    if probability is not None:
        table = probability._replace(ratio=read_only(probability.ratio))
    least = float(np.finfo(dtype).smallest_normal)
    return _Estimate(float(scale), ESTIMATORS[estimator], probability is not None, table, least)


@compile_loops
def _answer(query, key, value, signatures, tables, limits, estimate, out, start, stop):
    """Answer queries start … stop."""
    n_columns = signatures.shape[1]
    begins = np.empty((GROUP, n_columns), np.int64)
    stops = np.empty((GROUP, n_columns), np.int64)
    heads = np.empty((GROUP, n_columns), np.int64)
    ends = np.zeros(GROUP + 1, np.int64)  # candidates of query g: rows[ends[g]:ends[g + 1]]
    room = 2 * WINDOW
    rows, times = np.empty(room, np.int64), np.empty(room, np.int64)
    scores, weights = np.empty(room, query.dtype), np.empty(room, np.float64)
    seen = np.zeros(room, np.int64)
    for first in range(start, stop, GROUP):
        n = min(GROUP, stop - first)
        find_buckets(signatures, tables, first, n, begins, stops, heads)
        done = 0
        while done < n:
            asked, end = done, 0
            ends[done] = 0
            # one query at least, and more until the window is full
            while asked < n and (asked == done or end < WINDOW):
                most = most_candidates(tables, limits, begins, stops, heads, asked)
                if end + most > room:
                    while room < end + most:
                        room *= 2
                    rows, times = _longer(rows, end, room), _longer(times, end, room)
                    scores, weights = np.empty(room, query.dtype), np.empty(room, np.float64)
                while len(seen) < 2 * most:
                    seen = np.zeros(2 * len(seen), np.int64)
                begin = end
                end = collect(
                    tables, limits, begins, stops, heads, asked, first, rows, times, begin, seen
                )
                for c in range(begin, end):
                    _prefetch_row(key, rows[c])
                    _prefetch_row(value, rows[c])
                asked += 1
                ends[asked] = end
            for g in range(done, asked):
                _attend(
                    query, key, value, limits, estimate, out,
                    first + g, rows, times, scores, weights, ends[g], ends[g + 1],
                )  # fmt: skip
            done = asked


@compile_inner
def _longer(x, n, room):
    """Return an array of `room` numbers that starts with the first n of `x`."""
    longer = np.empty(room, x.dtype)
    for i in range(n):
        longer[i] = x[i]
    return longer


@compile_inner
def _prefetch_row(x, row):
    width, line = x.shape[1], 64 // x.itemsize
    for i in range(0, width, line):
        prefetch(x, row * width + i)
    prefetch(x, row * width + width - 1)  # rows may start inside a line


@compile_inner
def _attend(query, key, value, limits, estimate, out, i, rows, times, scores, weights, begin, end):
    """Write the answer to query i from its candidates rows[begin:end]."""
    dtype = query.dtype.type
    scale = dtype(estimate.scale)
    n, best, top = begin, np.int64(-1), dtype(-np.inf)
    for c in range(begin, end):
        row = rows[c]
        score = _dot(query, i, key, row) * scale
        if len(limits.above) and not score > limits.above[i]:
            continue
        if best < 0 or score > top:
            best, top = row, score
        rows[n], times[n], scores[n] = row, times[c], score
        n += 1
    for j in range(value.shape[1]):
        out.output[i, j] = 0
    out.count[i], out.best[i], out.largest[i] = n - begin, best, top
    out.mass[i], out.expected[i] = -np.inf, -np.inf
    if top == -np.inf:  # no candidate, or products below the smallest number
        out.best[i] = -1
        return
    mass, total, expected = 0.0, 0.0, 0.0
    for c in range(begin, n):
        share = math.exp(scores[c] - top)
        weight = np.float64(share)
        if estimate.weigh:
            chance = retrieval_chance(query, i, key, rows[c], estimate.table, estimate.least)
            one_in = weight / chance
            expected += one_in
            if estimate.mode == IMPORTANCE:
                weight = one_in
        if estimate.mode == DUPLICATES:
            weight *= times[c]
        weights[c] = weight
        mass += share
        total += weight
    for c in range(begin, n):
        weight = dtype(weights[c] / total)
        for j in range(value.shape[1]):
            out.output[i, j] += weight * value[rows[c], j]
    out.mass[i] = top + math.log(mass)
    if estimate.weigh:
        out.expected[i] = top + math.log(expected)


@compile_sums
def _dot(x, i, y, j):
    total = x.dtype.type(0)
    for k in range(x.shape[1]):
        total += x[i, k] * y[j, k]
    return total
