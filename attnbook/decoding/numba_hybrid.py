"""Buckets of a `HybridCache` and the attention of one token, in compiled loops.

One call hashes the key that leaves the window and all queries of a token, puts the key into its
buckets, counts in how many tables each key meets the query, and attends to those with two hits.
What is read next lies anywhere in memory, so it is prefetched.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from attnbook.compilers.jit import (
    compile_fused,
    compile_inner,
    compile_loops,
    compile_sums,
    read_only,
)
from attnbook.compilers.register_tiles import prefetch
from attnbook.hashing.collision import at_least_twice, log_chance
from attnbook.hashing.numba_signatures import signatures
from attnbook.hashing.simhash import SimHash

CELLS = 2**12
"""Steps of the chance of one equal sign, between which the logarithm of P is interpolated."""

AHEAD = 8
"""Keys and values are asked for so many keys before they are read."""

LINE = 16
"""Numbers of 4 bytes that come from memory together."""

PANEL = 16
"""Tables that a prompt is hashed for at a time."""


class Buckets(NamedTuple):
    """The rows in each bucket, one after the other in a stretch of a pool.

    The stretch of a bucket has as many places as the next power of 2, so that it is full whenever
    its size is one. A full bucket moves to a stretch of twice as many.
    """

    stretch: np.ndarray  # (heads, L, 2^κ, 2) int32, start and size
    pool: np.ndarray  # (heads, L, room) int32
    used: np.ndarray  # (heads, L) int32, of the pool


class Scratch(NamedTuple):
    """What a step writes and no later step reads."""

    hits: np.ndarray  # (room,) uint8
    rows: np.ndarray  # (room + 1,) int32
    scores: np.ndarray  # (room + 1,)


class BucketLayer:
    """The tables of all key heads of a layer, as `SignatureLayer` has them."""

    def __init__(self, hash: Any, centre: np.ndarray, sinks: int, window: int):
        self.centre, self.sinks, self.window, self.stop = centre, sinks, window, sinks
        heads, _, d = centre.shape
        shape: tuple[int, int] = (0, 1) if hash is None else hash.directions.shape[:2]
        self.hash, (self.n_tables, bits) = hash, shape
        directions = np.zeros((-(-d // 4) * 4, bits, self.n_tables), centre.dtype)
        if hash is not None:
            directions[:d] = np.transpose(hash.directions, (2, 1, 0))
        self.directions = read_only(directions.reshape(len(directions), -1))
        self.buckets = Buckets(
            np.zeros((heads, self.n_tables, 2**bits, 2), np.int32),
            np.zeros((heads, self.n_tables, 64), np.int32),
            np.zeros((heads, self.n_tables), np.int32),
        )
        chances = at_least_twice(np.linspace(0, 1, CELLS + 1), max(self.n_tables, 2), bits)
        self.excess = read_only(-log_chance(chances))
        self.scratch = _scratch(64, centre.dtype)

    @property
    def nbytes(self) -> int:
        """The memory of the buckets."""
        return sum(x.nbytes for x in self.buckets)

    def enter(self, key: np.ndarray, stop: int) -> None:
        """Put all keys before row `stop` into the tables that are in none yet, but the sinks."""
        if stop - self.stop > 1 and (self.stop == self.sinks or not self.n_tables):
            if self.n_tables:
                self._build(key[:, self.stop : stop] - self.centre)
            self.stop = stop
        heads, _, d = key.shape
        nothing = np.empty((heads, 0, d), key.dtype)
        for row in range(self.stop, stop):
            self._step(nothing, key, key, row + 1 + self.window, 0.0)

    def attend(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, n: int, scale: float
    ) -> np.ndarray:
        """Return the output of one token, (heads, groups, d_v), which sees the first n rows."""
        self.enter(key, n - self.window - 1)
        return self._step(query, key, value, n, scale)

    def cut(self, n: int) -> None:
        """Take all rows from n on out of the tables."""
        if n < self.stop:
            _forget(self.buckets, n)
            self.stop = max(n, self.sinks)

    def _step(self, query, key, value, n, scale):
        last = max(n - self.window, self.sinks)
        if key.shape[1] > len(self.scratch.hits):
            self.scratch = _scratch(key.shape[1], key.dtype)
        output = np.zeros((*query.shape[:2], value.shape[2]), key.dtype)
        at, size = 0, self.n_tables * len(key)
        while True:
            at = _step(
                *(read_only(query), read_only(key), read_only(value), read_only(self.centre)),
                *(self.directions, self.buckets, self.excess, self.scratch),
                *(self.sinks, self.stop, min(last, n), n, float(scale), at, output),
            )
            if at == size:
                break
            pool = self.buckets.pool  # it is full
            self.buckets = self.buckets._replace(pool=np.concatenate([pool, pool], axis=2))
        self.stop = max(self.stop, last)  # after a cut more may be in the tables already
        return output

    def _build(self, keys):
        """Fill the empty tables with the keys (heads, m, d), which are the rows from `stop` on."""
        n_buckets, (stretch, _, used) = 2**self.hash.n_projections, self.buckets
        room = 2 * keys.shape[1] + 64  # the powers of 2 sum to less than twice the sizes
        pool = np.zeros((*used.shape, room), np.int32)
        for h, t in np.ndindex(len(keys), -(-self.n_tables // PANEL)):
            some = SimHash(self.hash.directions[PANEL * t : PANEL * (t + 1)])
            for i, own in enumerate(signatures(some, keys[h], n_threads=1).T, start=PANEL * t):
                size = np.bincount(own, minlength=n_buckets)
                places = np.where(size, 2 ** np.ceil(np.log2(np.maximum(size, 1))), 0).astype(int)
                start = np.cumsum(places) - places
                stretch[h, i, :, 0], stretch[h, i, :, 1] = start, size
                used[h, i] = places.sum()
                order = np.argsort(own.astype(np.uint16), kind="stable")
                before = np.repeat(start - np.cumsum(size) + size, size)
                pool[h, i, np.arange(len(own)) + before] = self.stop + order
        self.buckets = self.buckets._replace(pool=pool)


def _scratch(n, dtype):
    return Scratch(np.zeros(n, np.uint8), np.empty(n + 1, np.int32), np.empty(n + 1, dtype))


@compile_loops
def _step(
    query, key, value, centre, directions, buckets, excess, scratch,
    sinks, stop, last, n, scale, at, output,
):  # fmt: skip
    """Write the output of a token that sees n rows; those from `last` on are its window.

    Row `stop` enters the tables if it is before `last`. Returns how many tables hold it: where the
    pool was full too few, and then nothing is written; the call goes on from `at`, that number.
    """
    heads, groups, d = query.shape
    n_tables = buckets.stretch.shape[1]
    enters = 1 if stop < last else 0
    x = np.zeros((groups + 1, len(directions)), key.dtype)
    codes = np.empty((heads, groups + 1, n_tables), np.int32)
    projected = np.empty((groups + 1, directions.shape[1]), key.dtype)
    for h in range(heads):
        for g in range(groups):
            for k in range(d):
                x[g, k] = query[h, g, k]
        if enters:
            for k in range(d):
                x[groups, k] = key[h, stop, k] - centre[h, 0, k]
        _project(x[: groups + enters], directions, projected)
        _join(projected[: groups + enters], codes[h])
    if enters:
        at = _enter(buckets, codes[:, groups], stop, at)
        if at < heads * n_tables:
            return at
    for h in range(heads):
        for g in range(groups):
            table = buckets.stretch[h], buckets.pool[h]
            n_found = _look_up(*table, codes[h, g], scratch, last)
            n_read = n_found
            for row in range(min(sinks, n)):
                scratch.rows[n_read] = row
                n_read += 1
            for row in range(last, n):
                scratch.rows[n_read] = row
                n_read += 1
            top = _score(query[h, g], key[h], centre[h, 0], excess, scratch, n_found, n_read, scale)
            _mix(value[h], scratch, n_read, output.dtype.type(top), output[h, g])
    return heads * n_tables


@compile_fused
def _project(x, directions, projected):
    """Multiply a few rows with all directions, four numbers of a row at a time."""
    for r in range(len(x)):
        projected[r] = 0
    for k in range(0, len(directions), 4):
        for r in range(len(x)):
            x0, x1, x2, x3 = x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            for j in range(directions.shape[1]):
                projected[r, j] += (
                    x0 * directions[k, j]
                    + x1 * directions[k + 1, j]
                    + x2 * directions[k + 2, j]
                    + x3 * directions[k + 3, j]
                )


@compile_inner
def _join(projected, codes):
    """Join the signs of each row to the numbers of its buckets; sign j of table t is at (j, t)."""
    n_tables = codes.shape[1]
    for r in range(len(projected)):
        for t in range(n_tables):
            codes[r, t] = 0
        for j in range(projected.shape[1] // max(n_tables, 1)):
            for t in range(n_tables):
                codes[r, t] |= np.int32(projected[r, j * n_tables + t] >= 0) << np.int32(j)


@compile_inner
def _enter(buckets, codes, row, at):
    """Put a row into the buckets of table `at` and all later ones; return where the pool is full.

    The tables of all heads are counted.
    """
    heads, n_tables = buckets.used.shape
    room = buckets.pool.shape[2]
    for i in range(at, heads * n_tables):
        h, t = divmod(i, n_tables)
        code, pool = codes[h, t], buckets.pool[h, t]
        start, size = buckets.stretch[h, t, code, 0], buckets.stretch[h, t, code, 1]
        if (size & (size - 1)) == 0:  # full
            new, more = buckets.used[h, t], max(2 * size, 1)
            if new + more > room:
                return i
            for j in range(size):
                pool[new + j] = pool[start + j]
            buckets.stretch[h, t, code, 0] = start = new
            buckets.used[h, t] = new + more
        pool[start + size] = row
        buckets.stretch[h, t, code, 1] = size + 1
    return heads * n_tables


@compile_loops
def _forget(buckets, n):
    """Drop all rows from n on, which are the last of each bucket."""
    heads, n_tables, n_buckets, _ = buckets.stretch.shape
    for h in range(heads):
        for t in range(n_tables):
            for b in range(n_buckets):
                start, size = buckets.stretch[h, t, b]
                while size > 0 and buckets.pool[h, t, start + size - 1] >= n:
                    size -= 1
                buckets.stretch[h, t, b, 1] = size


@compile_inner
def _look_up(stretch, pool, codes, scratch, last):
    """Write the rows before `last` with two hits or more; return their number."""
    hits, rows = scratch.hits, scratch.rows
    n_tables, n_buckets, _ = stretch.shape
    room = pool.shape[1]
    hits[:last] = 0
    for t in range(n_tables):
        prefetch(stretch, 2 * (t * n_buckets + codes[t]))
    for t in range(n_tables):
        start, size = stretch[t, codes[t], 0], stretch[t, codes[t], 1]
        for i in range(0, size, LINE):
            prefetch(pool, t * room + start + i)
    n_found = 0
    for t in range(n_tables):
        start, size = stretch[t, codes[t], 0], stretch[t, codes[t], 1]
        for i in range(start, start + size):
            row = pool[t, i]
            before = hits[row]
            hits[row] = before + (before < 2)
            rows[n_found] = row
            n_found += (before == 1) & (row < last)  # later ones have come back into the window
    return n_found


@compile_inner
def _score(query, key, centre, excess, scratch, n_found, n_read, scale):
    """Write the scores of the rows, and add -log P to those of the first `n_found`.

    Returns the largest.
    """
    rows, scores = scratch.rows, scratch.scores
    _, d = key.shape
    common, length = _along(query, centre), _along(query, query)
    n_cells = len(excess) - 1
    top = -np.inf
    for i in range(n_read):
        ahead = np.int64(rows[min(i + AHEAD, n_read - 1)])
        for c in range(0, d, LINE):
            prefetch(key, ahead * d + c)
        along, square = _from_centre(query, key[rows[i]], centre)
        score = scale * (along + common)
        if i < n_found:
            both = math.sqrt(length * square)
            cosine = along / both if both > 0 else 0.0
            agree = 1 - math.acos(min(max(cosine, -1.0), 1.0)) / math.pi
            cell = min(int(agree * n_cells), n_cells - 1)
            beyond = agree * n_cells - cell
            score += (1 - beyond) * excess[cell] + beyond * excess[cell + 1]
        scores[i] = score
        top = max(top, score)
    return top


@compile_sums
def _along(x, y):
    """Return x·y."""
    total = x[0] * y[0] * 0
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@compile_sums
def _from_centre(query, key, centre):
    """Return q·(k - c) and ‖k - c‖²."""
    along = square = query[0] * 0
    for k in range(len(query)):
        off = key[k] - centre[k]
        along += query[k] * off
        square += off * off
    return along, square


@compile_fused
def _mix(value, scratch, n_read, top, output):
    """Write the mean of the values of the rows by the exponentials of their scores."""
    rows, scores = scratch.rows, scratch.scores
    d_v = value.shape[1]
    total = 0.0
    for i in range(n_read):
        ahead = np.int64(rows[min(i + AHEAD, n_read - 1)])
        for c in range(0, d_v, LINE):
            prefetch(value, ahead * d_v + c)
        weight = np.exp(scores[i] - top)
        total += weight
        row = value[rows[i]]
        for c in range(d_v):
            output[c] += weight * row[c]
    for c in range(d_v):
        output[c] /= total
