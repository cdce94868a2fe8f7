"""Answer queries from the tables of a sketch in one pass, with Numba.

A query of a million keys does little arithmetic. It reads some seventy cache lines from all over
the memory, each of which names the next: slot, bucket, key, value. One after the other they would
take most of the time, so queries are answered in groups: all slots of a group are asked for before
the first is read, then all buckets, then keys and values.
"""

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from attnbook._arrays import Array
from attnbook._weights import check_choice
from attnbook.sketch._numba_build import (
    COUNT,
    compile_inner,
    compile_loops,
    compile_sums,
    read_only,
)
from attnbook.sketch._simd import prefetch
from attnbook.sketch._threads import in_parts, n_threads_for
from attnbook.sketch.robin_hood import DISPLACEMENT, KEY, VALUE
from attnbook.sketch.simhash import SimHash
from attnbook.sketch.stable_hash import StableHash

UNION, DUPLICATES, IMPORTANCE = 0, 1, 2
ESTIMATORS = {"union": UNION, "duplicates": DUPLICATES, "importance": IMPORTANCE}

WORTH = 64
"""Queries that are worth a thread."""

GROUP = 32
"""Queries whose slots are asked for together."""

WINDOW = 256
"""Candidates, about, whose keys and values are asked for before the first of them is read."""

FEW = 24
"""Up to so many candidates, a new one is compared with each; beyond, a hash set knows them."""


class Answer(NamedTuple):
    """What the tables give for each query, as `attnbook.sketch._answer.Near`.

    `mass` is log Σ exp of the scores of all different candidates, −inf for none; `expected` the
    same with each candidate weighed by 1 / P, or None where no P is known. `output` is 0 and `best`
    −1 where there is no candidate.
    """

    mass: Annotated[Array, "n_q"]
    output: Annotated[Array, "n_q d_v"]
    count: Annotated[Array, "n_q"]
    best: Annotated[Array, "n_q"]
    largest: Annotated[Array, "n_q"]
    expected: Any


class RetrievalTable(NamedTuple):
    """The chance P that a key is found, in a form that a compiled loop reads quickly.

    With u = r/(r + c) for a `StableHash` and u = 1 − θ/π for a `SimHash`, the chance p of one equal
    code is u times a smooth function between 1/√(2π) and 1, which is tabulated: `ratio`, over even
    steps of u from 0 to 1, read with linear interpolation. The relative error of p is below 1e-7.
    """

    ratio: np.ndarray
    width: float  # r, or 0 for angles
    n_projections: int
    n_tables: int

    @classmethod
    def of(cls, hash: SimHash | StableHash) -> "RetrievalTable":
        """Tabulate the chances of `hash`."""
        if isinstance(hash, SimHash):
            return cls(np.ones(2), 0.0, hash.n_projections, hash.n_tables)
        u = np.linspace(0, 1, 2**12 + 1)
        distance = hash.width * (1 - u[1:]) / u[1:]
        ratio = StableHash.collision_probability(distance, hash.width) / u[1:]
        far = 1 / math.sqrt(2 * math.pi)  # p → r / (√(2π) c)
        return cls(np.append(far, ratio), float(hash.width), hash.n_projections, hash.n_tables)


_SURE = RetrievalTable(np.ones(2), 0.0, 1, 1)


class _Tables(NamedTuple):
    """The arrays of a `BucketIndex`, as its `flat()` names them."""

    slots: np.ndarray
    slot_starts: np.ndarray
    order: np.ndarray
    mixer: np.ndarray
    side_slots: np.ndarray
    side_next: np.ndarray
    side_first: int
    n_side: int
    alive: np.ndarray
    n_dead: int


class _Limits(NamedTuple):
    """Which candidates count; an empty array allows all."""

    before: np.ndarray
    above: np.ndarray
    allowed: np.ndarray
    max_bucket: int


class _Estimate(NamedTuple):
    scale: float
    mode: int
    weigh: bool  # find P of each candidate
    table: RetrievalTable
    least: float  # of P, the smallest normal number: a weight 1 / P stays finite


def answer(
    query: Annotated[Array, "n_q d"],
    key: Annotated[Array, "n d"],
    value: Annotated[Array, "n d_v"],
    signatures: Annotated[Array, "n_q n_tables"],
    flat: dict[str, Any],
    *,
    scale: float,
    estimator: str = "union",
    probability: RetrievalTable | None = None,
    max_bucket: int | None = None,
    before: Annotated[Array, "n_q"] | None = None,
    above: Annotated[Array, "n_q"] | None = None,
    allowed: Annotated[Array, "n"] | None = None,
    n_threads: int | None = None,
) -> Answer:
    """Return the estimate of attention from the keys that the tables hold for each query.

    The references are `attnbook.sketch._answer.near` and the functions of
    `attnbook.sketch.estimators`.

    Parameters
    ----------
    query, key, value : arrays
        NumPy, all float32 or all float64; rows of `key` and `value` are the rows of the index.
    signatures : int64 array, shape (n_q, L)
        Of the queries.
    flat : dict
        `BucketIndex.flat()`.
    scale : float
        Scores are scale · q·k.
    estimator : str
        ``"union"``, ``"duplicates"`` or ``"importance"``.
    probability : RetrievalTable, optional
        Needed for ``"importance"``, and for `expected`.
    max_bucket : int, optional
        At most so many rows of a bucket, the lowest of those that are not removed.
    before : int64 array, shape (n_q,), optional
        Only rows below count: causal attention with ``before[i]`` keys in front of query i.
    above : array, shape (n_q,), optional
        Only candidates with a larger score count.
    allowed : boolean array, shape (n,), optional
        Only rows with True count. They are picked after the cut at `max_bucket`.
    n_threads : int, optional
        The cores of the process, or fewer for few queries.

    Returns
    -------
    Answer

    Raises
    ------
    ValueError
        If the estimator is unknown, or is ``"importance"`` without `probability`.

    Notes
    -----
    O(L) a query, and O(d + d_v) for each of its candidates. Scratch: some 70 bytes for each place
    in the buckets of the query that has the most.
    """
    check_choice("estimator", estimator, tuple(ESTIMATORS))
    if estimator == "importance" and probability is None:
        raise ValueError("probability must be a RetrievalTable for importance, got None")
    n_q, dtype = len(query), query.dtype
    tables = _Tables(**{name: flat[name] for name in _Tables._fields})
    limits = _Limits(
        read_only(np.empty(0, np.int64) if before is None else before.astype(np.int64)),
        read_only(np.empty(0, dtype) if above is None else above.astype(dtype)),
        read_only(np.empty(0, bool) if allowed is None else allowed),
        COUNT if max_bucket is None else int(max_bucket),
    )
    table = _SURE if probability is None else probability
    table = table._replace(ratio=read_only(table.ratio))
    estimate = _Estimate(
        *(float(scale), ESTIMATORS[estimator], probability is not None, table),
        float(np.finfo(dtype).smallest_normal),
    )
    out = Answer(
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
    return out if estimate.weigh else out._replace(expected=None)


@compile_loops
def _answer(query, key, value, signatures, tables, limits, estimate, out, start, stop):
    """Answer queries start … stop."""
    n_tables = signatures.shape[1]
    homes = np.empty((GROUP, n_tables), np.int64)
    runs = np.empty((GROUP, n_tables), np.int64)
    heads = np.empty((GROUP, n_tables), np.int64)
    ends = np.zeros(GROUP + 1, np.int64)  # candidates of query g: rows[ends[g]:ends[g + 1]]
    room = 2 * WINDOW
    rows, times = np.empty(room, np.int64), np.empty(room, np.int64)
    scores, weights = np.empty(room, query.dtype), np.empty(room, np.float64)
    seen = np.zeros(room, np.int64)
    for first in range(start, stop, GROUP):
        n = min(GROUP, stop - first)
        _find_buckets(signatures, tables, first, n, homes, runs, heads)
        done = 0
        while done < n:
            asked, end = done, 0
            ends[done] = 0
            # one query at least, and more until the window is full
            while asked < n and (asked == done or end < WINDOW):
                most = _most_candidates(tables, limits, runs, heads, asked)
                if end + most > room:
                    while room < end + most:
                        room *= 2
                    rows, times = _longer(rows, end, room), _longer(times, end, room)
                    scores, weights = np.empty(room, query.dtype), np.empty(room, np.float64)
                while len(seen) < 2 * most:
                    seen = np.zeros(2 * len(seen), np.int64)
                begin = end
                end = _collect(tables, limits, runs, heads, asked, first, rows, times, begin, seen)
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
def _find_buckets(signatures, tables, first, n, homes, runs, heads):
    """Find the buckets of n queries: `runs` as ``start << 31 | count``, and `heads` of side chains.

    Both are -1 where there is none.
    """
    slots, starts = tables.slots, tables.slot_starts
    n_tables, n_main = tables.order.shape
    for g in range(n):
        for t in range(n_tables):
            home = _home(signatures[first + g, t], tables.mixer, starts[t + 1] - starts[t])
            homes[g, t] = home
            prefetch(slots, 3 * (starts[t] + home))
            prefetch(slots, 3 * (starts[t] + home) + 8)  # the next line, for the next slots
    for g in range(n):
        for t in range(n_tables):
            signature = signatures[first + g, t]
            run = _find(slots, starts[t], starts[t + 1] - starts[t], homes[g, t], signature)
            runs[g, t], heads[g, t] = run, -1
            prefetch(tables.order, t * n_main + (run >> 31))
            if tables.n_side > 0:
                n_slots = tables.side_slots.shape[1]
                home = _home(signature, tables.mixer, n_slots)
                side = tables.side_slots.reshape(-1, 3)
                heads[g, t] = _find(side, t * n_slots, n_slots, home, signature) >> 31


@compile_inner
def _home(key, mixer, n_slots):
    """As `robin_hood.home_slot`; a copy, since Numba's cache does not look into other files."""
    hashed = mixer[0, key & 255]
    for i in range(1, 8):
        hashed = hashed ^ mixer[i, (key >> (8 * i)) & 255]
    return ((hashed >> 31) * n_slots) >> 31


@compile_inner
def _find(slots, first, n_slots, home, key):
    """Return the value of `key` in the map ``slots[first:first + n_slots]``, or -1.

    As `robin_hood.find_slot`, from a known home.
    """
    slot, displacement = home, 0
    while slots[first + slot, DISPLACEMENT] >= displacement:
        if slots[first + slot, KEY] == key:
            return slots[first + slot, VALUE]
        displacement += 1
        slot += 1
        if slot == n_slots:
            slot = 0
    return np.int64(-1)


@compile_inner
def _most_candidates(tables, limits, runs, heads, g):
    """Return how many candidates query g of the group has at most."""
    most = 0
    for t in range(runs.shape[1]):
        if runs[g, t] >= 0:
            most += min(runs[g, t] & COUNT, limits.max_bucket)
        if heads[g, t] >= 0:
            most += min(tables.n_side, limits.max_bucket)
    return most


@compile_inner
def _collect(tables, limits, runs, heads, g, first, rows, times, begin, seen):
    """Write the different candidates of query g of the group to rows[begin:end]; return end.

    `times` counts in how many tables each was found. The order is that of the tables, and inside a
    table ascending.
    """
    query = first + g
    before = limits.before[query] if len(limits.before) else np.int64(COUNT)
    end = begin
    for t in range(runs.shape[1]):
        left = limits.max_bucket
        if runs[g, t] >= 0:
            start = runs[g, t] >> 31
            for place in range(start, start + (runs[g, t] & COUNT)):
                row = np.int64(tables.order[t, place])
                if left == 0 or row >= before:
                    break
                if tables.n_dead == 0 or tables.alive[row]:
                    left -= 1
                    if len(limits.allowed) == 0 or limits.allowed[row]:
                        end = _take(row, rows, times, begin, end, seen, query)
        link = heads[g, t]
        while link >= 0:
            row = tables.side_first + link
            if left == 0 or row >= before:
                break
            if tables.n_dead == 0 or tables.alive[row]:
                left -= 1
                if len(limits.allowed) == 0 or limits.allowed[row]:
                    end = _take(row, rows, times, begin, end, seen, query)
            link = np.int64(tables.side_next[t, link])
    return end


@compile_inner
def _take(row, rows, times, begin, end, seen, query):
    """Add `row` to rows[begin:end], or count it once more if it is there; return the new end.

    Beyond a few, the candidates are in a hash set too: `seen` holds their places, and the query
    that they are of, so that what is left of other queries does not count.
    """
    n = end - begin
    if n <= FEW:
        for c in range(begin, end):
            if rows[c] == row:
                times[c] += 1
                return end
    if n >= FEW:
        if n == FEW:
            for c in range(begin, end):
                seen[_free_place(rows[c], rows, begin, seen, query)] = (query + 1) << 31 | c - begin
        place = _free_place(row, rows, begin, seen, query)
        if seen[place] >> 31 == query + 1:
            times[begin + (seen[place] & COUNT)] += 1
            return end
        seen[place] = (query + 1) << 31 | n
    rows[end], times[end] = row, 1
    return end + 1


@compile_inner
def _free_place(row, rows, begin, seen, query):
    """Return where in `seen` the row is, or a free place for it."""
    mask = len(seen) - 1
    place = (row * 0x9E3779B1 >> 12) & mask  # Knuth's multiplier spreads neighbours
    while seen[place] >> 31 == query + 1 and rows[begin + (seen[place] & COUNT)] != row:
        place = (place + 1) & mask
    return place


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
            chance = _probability(query, i, key, rows[c], estimate.table, estimate.least)
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


@compile_inner
def _probability(query, i, key, row, table, least):
    """Return the chance that `row` is found by query i in at least one table, at least `least`.

    As `retrieval_probability` of the hash.
    """
    if table.width > 0:
        u = table.width / (table.width + math.sqrt(_squared_distance(query, i, key, row, 1.0, 1.0)))
    else:
        a, b = _inverse_length(query, i), _inverse_length(key, row)
        apart = _squared_distance(query, i, key, row, a, b)
        together = _squared_distance(query, i, key, row, a, -b)
        u = 1 - 2 / math.pi * math.atan2(math.sqrt(apart), math.sqrt(together))
    n_cells = len(table.ratio) - 1
    cell = min(int(u * n_cells), n_cells - 1)
    beyond = u * n_cells - cell
    p = u * ((1 - beyond) * table.ratio[cell] + beyond * table.ratio[cell + 1])
    in_a_table = min(1.0, p**table.n_projections)
    return max(least, -math.expm1(table.n_tables * math.log1p(-in_a_table)))


@compile_inner
def _inverse_length(x, i):
    """Return 1 / ‖x[i]‖, 0 for a row of zeros."""
    square = _squared_distance(x, i, x, i, 1.0, 0.0)
    return 1 / math.sqrt(square) if square > 0 else 0.0


@compile_sums
def _dot(x, i, y, j):
    total = x.dtype.type(0)
    for k in range(x.shape[1]):
        total += x[i, k] * y[j, k]
    return total


@compile_sums
def _squared_distance(x, i, y, j, a, b):
    """Return ‖a x[i] - b y[j]‖², in float64."""
    total = 0.0
    for k in range(x.shape[1]):
        difference = a * x[i, k] - b * y[j, k]
        total += difference * difference
    return total
