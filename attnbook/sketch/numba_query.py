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
from attnbook.compilers.jit import compile_inner, compile_loops, read_only
from attnbook.compilers.register_tiles import prefetch
from attnbook.hashing.learned_cells import LearnedCells
from attnbook.hashing.numba_signatures import TILE, Hash, arrays_of, probe_rows
from attnbook.hashing.simhash import SimHash
from attnbook.sketch.bucket_tables import BucketTables
from attnbook.sketch.numba_candidates import (
    collect,
    find_buckets,
    most_candidates,
)
from attnbook.sketch.numba_cells import answer_cells, dot
from attnbook.sketch.numba_chance import RetrievalTable, retrieval_chance
from attnbook.sketch.reference_query import NearKeys

UNION, DUPLICATES, IMPORTANCE = 0, 1, 2
ESTIMATORS = {"union": UNION, "duplicates": DUPLICATES, "importance": IMPORTANCE}

WORTH = 64
"""How many queries are worth a thread."""

GROUP = 32
"""How many queries have their places in directories prefetched together."""

WINDOW = 256
"""About how many candidates have keys and values prefetched before the first is read."""


_SURE = RetrievalTable(read_only(np.ones(2)), 0.0, 1, 1)
_EVERY_ROW = read_only(np.empty(0, np.int64))


class _Estimate(NamedTuple):
    scale: float
    mode: int
    weigh: bool  # find P of each candidate
    table: RetrievalTable
    least: float  # of P, the smallest normal number: a weight 1 / P stays finite


class _Out(NamedTuple):
    """What a loop writes."""

    output: np.ndarray  # (n_q, d_v)
    found: np.ndarray  # (5, n_q) float64, the MASS, LARGEST, EXPECTED, COUNT and BEST of `NearKeys`


MASS, LARGEST, EXPECTED, COUNT, BEST = range(5)


class Prepared:
    """A hash, tables, keys and values in the form that one compiled call takes.

    Keys and values are both float32 or both float64, and have the rows of the index. The hash is
    None if queries come with signatures. `estimator` is "union", "duplicates" or "importance",
    which needs `chances`. What was prepared `before` saves a copy. Arguments are not checked.
    """

    def __init__(
        self,
        hash: Hash | None,
        key: Annotated[np.ndarray, "n d"],
        value: Annotated[np.ndarray, "n d_v"],
        tables: BucketTables,
        *,
        scale: float,
        estimator: str = "union",
        chances: RetrievalTable | None = None,
        n_probes: int = 1,
        before: "Prepared | None" = None,
    ):
        dtype = key.dtype
        n_tables = tables.entries.shape[0]
        known = SimHash.init(0, 1, n_tables, 1) if hash is None else hash  # never asked, if None
        self.d_v, self._n_columns = value.shape[1], n_tables * n_probes
        self._entries, self._ordered = tables.entries, None
        if isinstance(hash, LearnedCells) and n_tables == 1:
            if before is not None and before._entries is tables.entries:
                self._ordered = before._ordered
            else:
                self._ordered = _in_order(key, value, tables)
        ordered = (read_only(key[:0]),) * 2 if self._ordered is None else self._ordered
        self._held = (arrays_of(known, dtype), read_only(key), read_only(value), ordered, tables)
        table = _SURE if chances is None else chances
        table = table._replace(ratio=read_only(table.ratio))
        mode, least = ESTIMATORS[estimator], float(np.finfo(dtype).smallest_normal)
        estimate = _Estimate(float(scale), mode, mode == IMPORTANCE, table, least)
        self._estimates = (
            estimate,
            estimate._replace(weigh=chances is not None),
        )  # without `weigh`, with it

    def ask(
        self,
        query: Annotated[np.ndarray, "n_q d"],
        signatures: Annotated[np.ndarray, "n_q n_columns"] | None = None,
        *,
        before: Annotated[np.ndarray, "n_q"] | None = None,
        weigh: bool = False,
        n_threads: int | None = None,
    ) -> NearKeys | None:
        """Return what `reference_query.near` returns, without rows and weights.

        Queries have the dtype and width of the keys. `signatures` has equally many columns for each
        table, side by side; without it the call hashes the queries, and returns None if one of them
        has no signature because it holds NaN or infinity. A row counts if it is below `before`.
        With `weigh` the probabilities to be found are computed for every estimator. A query costs
        O(L), and O(d + d_v) for each of its candidates. The scratch is some 70 bytes for each place
        in the buckets of the query that has the most.
        """
        if signatures is not None:  # writable and contiguous: Numba compiles anew for other arrays
            signatures = np.require(signatures, requirements=["C", "W"])
        before = _EVERY_ROW if before is None else read_only(before.astype(np.int64))
        estimate = self._estimates[weigh]
        out = self._run(query, signatures, before, estimate, n_threads)
        if out is None:
            return None
        mass, largest, expected = out.found[:COUNT].astype(query.dtype)
        count, best = out.found[COUNT:].astype(np.int64)
        expected = expected if estimate.weigh else None
        return NearKeys(mass, out.output, count, best, largest, expected)

    def output(
        self, query: Annotated[np.ndarray, "n_q d"]
    ) -> Annotated[np.ndarray, "n_q d_v"] | None:
        """Return only the output that `ask` has for queries without signatures."""
        out = self._run(query, None, _EVERY_ROW, self._estimates[0], None)
        return None if out is None else out.output

    def _run(self, query, signatures, before, estimate, n_threads):
        n_q, is_asked = len(query), signatures is None
        if is_asked:
            signatures = np.empty((n_q, self._n_columns), np.int64)
        out = _Out(np.empty((n_q, self.d_v), query.dtype), np.empty((5, n_q)))
        given = (read_only(query), is_asked, signatures, before, estimate, out, *self._held)
        n_bad = _ask(*given, 0, n_q) if n_q < 2 * WORTH else _in_threads(given, n_q, n_threads)
        return None if n_bad else out


def _in_order(key, value, tables):
    """Return copies of keys and values in the order of the only table."""
    rows = tables.entries[0] & ((1 << tables.bits) - 1)
    rows = tables.rows[rows] if len(tables.rows) else rows
    keys = read_only(key[rows])
    return keys, keys if value is key else read_only(value[rows])


def _in_threads(given, n_q, n_threads):
    n_bad = []

    def work(start, stop, thread):
        n_bad.append(_ask(*given, start, stop))

    in_parts(work, n_q, n_threads_for(n_q, n_threads, WORTH))
    return sum(n_bad)


@compile_loops
def _ask(
    query,
    is_asked,
    signatures,
    before,
    estimate,
    out,
    arrays,
    key,
    value,
    ordered,
    tables,
    start,
    stop,
):
    """Answer queries start … stop; return how many have no signature, if it has to hash them."""
    if is_asked:
        n_bad = probe_rows(TILE, query, arrays, signatures, start, stop)
        if n_bad > 0:
            return n_bad
    if len(ordered[0]):
        held, scale = (key, value, ordered), estimate.scale
        answer_cells(query, *held, signatures, tables, before, scale, out, start, stop)
    else:
        _answer(query, key, value, signatures, tables, before, estimate, out, start, stop)
    return 0


@compile_inner
def _answer(query, key, value, signatures, tables, before, estimate, out, start, stop):
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
                most = most_candidates(tables, begins, stops, heads, asked)
                if end + most > room:
                    while room < end + most:
                        room *= 2
                    rows, times = _longer(rows, end, room), _longer(times, end, room)
                    scores, weights = np.empty(room, query.dtype), np.empty(room, np.float64)
                while len(seen) < 2 * most:
                    seen = np.zeros(2 * len(seen), np.int64)
                begin = end
                end = collect(
                    tables, before, begins, stops, heads, asked, first, rows, times, begin, seen
                )
                for c in range(begin, end):
                    _prefetch_row(key, rows[c])
                    _prefetch_row(value, rows[c])
                asked += 1
                ends[asked] = end
            for g in range(done, asked):
                _attend(
                    query, key, value, estimate, out,
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
def _attend(query, key, value, estimate, out, i, rows, times, scores, weights, begin, end):
    """Write the answer to query i from its candidates rows[begin:end]."""
    dtype = query.dtype.type
    scale = dtype(estimate.scale)
    best, top = np.int64(-1), dtype(-np.inf)
    for c in range(begin, end):
        row = rows[c]
        score = dot(query, i, key, row) * scale
        if best < 0 or score > top:
            best, top = row, score
        scores[c] = score
    for j in range(value.shape[1]):
        out.output[i, j] = 0
    out.found[COUNT, i], out.found[BEST, i] = end - begin, best
    out.found[MASS, i], out.found[LARGEST, i], out.found[EXPECTED, i] = -np.inf, top, -np.inf
    if top == -np.inf:  # no candidate, or products below the smallest number
        out.found[BEST, i] = -1
        return
    mass, total, expected = 0.0, 0.0, 0.0
    for c in range(begin, end):
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
    for c in range(begin, end):
        weight = dtype(weights[c] / total)
        for j in range(value.shape[1]):
            out.output[i, j] += weight * value[rows[c], j]
    out.found[MASS, i] = top + math.log(mass)
    if estimate.weigh:
        out.found[EXPECTED, i] = top + math.log(expected)
