"""Sketches of a long cache: tables or cells for the keys that matter, clouds for the others."""

from collections.abc import Iterator

import numpy as np

from attnbook.sketch import Moments
from benchmarks.cache_past import Past, Read, near
from benchmarks.cache_rivals import cells_of, hashed


def tables(
    past: Past, *, sinks: int, window: int, tables: int, bits: int, estimator: str = "union"
) -> Read:
    """Score the keys that share a bucket with the query in a table, beside sinks and window.

    Those of the tables are weighed as `SketchAttention(SimHash)` does for centred keys: as a
    "union", by "importance" (each key divided by the chance that it is found), or with a "cloud",
    the tail "moments" in the place of all that is not scored. Without tables the cloud is alone.
    """
    d, d_v = past.key.shape[1], past.value.shape[1]
    if tables:
        read = hashed(past, sinks, window, tables, bits, 1, estimator == "importance")
        if estimator != "cloud":
            return read
    some = near(past, sinks, window)
    of_cloud = d * (d + d_v) + past.width
    pairs = list(clouds(past, np.zeros(past.n, np.int64), 1, sinks, window))
    if not tables:
        return Read(some, of_cloud, 0.0, tails(past, pairs))
    limit = np.concatenate([moments.limit(query, past.scale) for moments, query in pairs])
    found = read.scored & ~some
    scored = some | (found & (past.scores > limit[:, None]))
    unused = (found & ~scored).sum(axis=1)  # its key is read, and it is left to the cloud
    numbers = read.numbers + unused * d + of_cloud
    return Read(scored, numbers, 0.0, tails(past, pairs, below=limit))


def cells(past: Past, *, sinks: int, window: int, lists: int, probes: int) -> Read:
    """Score the keys of the best cells; every other cell counts by a normal cloud of its own.

    As RetroInfer (Chen et al. 2025), where the other cells count by their mean keys alone.
    """
    cell, scored = cells_of(past, lists, probes)
    d, d_v = past.key.shape[1], past.value.shape[1]
    whole = np.zeros((past.m, lists), bool)  # cells whose keys are scored
    for c in range(lists):
        whole[:, c] = scored[:, cell == c].any(axis=1)
    pairs = list(clouds(past, cell, lists, sinks, window))
    left = [moments.counts * ~out for (moments, _), out in zip(pairs, whole, strict=True)]
    numbers = lists * (past.width + 2 + d * (probes > 0)) + d * (d + d_v)
    return Read(scored | near(past, sinks, window), numbers, 0.0, tails(past, pairs, counts=left))


Pairs = list[tuple[Moments, np.ndarray]]


def clouds(
    past: Past, cell: np.ndarray, n_cells: int, sinks: int, window: int
) -> Iterator[tuple[Moments, np.ndarray]]:
    """Yield for each query the moments of the keys behind the sinks and before its window.

    Beside them the query, (1, d), in their dtype.
    """
    key, value, query = (x.astype(np.float64) for x in (past.key, past.value, past.query))
    begin = min(sinks, past.n)
    ends = np.maximum(past.place + 1 - window, begin)
    rows = slice(begin, ends[0])
    moments = Moments.fit(key[rows], value[rows], n_cells, cell[rows])
    for i, (start, end) in enumerate(zip([ends[0], *ends], ends, strict=False)):
        if end > start:  # a key leaves the window
            moments = moments.add(key[start:end], value[start:end], cell[start:end])
        yield moments, query[i : i + 1]


def tails(past: Past, pairs: Pairs, below=None, counts=None) -> tuple[np.ndarray, np.ndarray]:
    """Return log mass (m,) and mean value (m, d_v), `below` a score, or of some `counts`."""
    found = [
        moments.tail(
            query,
            past.scale,
            below=None if below is None else below[i : i + 1],
            counts=None if counts is None else counts[i][None],
        )
        for i, (moments, query) in enumerate(pairs)
    ]
    mass, output = (np.concatenate(x) for x in zip(*found, strict=True))
    return mass, output
