"""Sketches of a long cache: tables or cells for the keys that matter, clouds for the others."""

import numpy as np

from attnbook.sketch import normal
from benchmarks.cache_past import Past, Read, near
from benchmarks.cache_rivals import cells_of, hashed


def tables(
    past: Past, *, sinks: int, window: int, tables: int, bits: int, estimator: str = "union"
) -> Read:
    """Score the keys that share a bucket with the query in a table, beside sinks and window.

    What `SketchAttention(SimHash)` does for centred keys: as a "union", by "importance" (each key
    divided by the chance that it is found), or with a "cloud", the tail "moments" in the place of
    all that is not scored. Without tables the cloud is alone.
    """
    d, d_v = past.key.shape[1], past.value.shape[1]
    if tables:
        read = hashed(past, sinks, window, tables, bits, 1, estimator == "importance")
        if estimator != "cloud":
            return read
    some = near(past, sinks, window)
    clouds = Clouds(past, np.zeros(past.n, np.int64), 1, sinks, window)
    of_cloud = d * (d + d_v) + past.width
    if not tables:
        return Read(some, of_cloud, 0.0, *clouds.tail())
    found, limit = read.scored & ~some, clouds.limit()
    scored = some | (found & (past.scores > limit[:, None]))
    unused = (found & ~scored).sum(axis=1)  # its key is read, and it is left to the cloud
    numbers = read.numbers + unused * d + of_cloud
    return Read(scored, numbers, 0.0, *clouds.tail(below=limit))


def cells(past: Past, *, sinks: int, window: int, lists: int, probes: int) -> Read:
    """Score the keys of the best cells; every other cell counts by a normal cloud of its own.

    As RetroInfer (Chen et al. 2025), where the other cells count by their mean keys alone.
    """
    cell, scored = cells_of(past, lists, probes)
    d, d_v = past.key.shape[1], past.value.shape[1]
    whole = np.zeros((past.m, lists), bool)  # cells whose keys are scored
    for c in range(lists):
        whole[:, c] = scored[:, cell == c].any(axis=1)
    clouds = Clouds(past, cell, lists, sinks, window)
    numbers = lists * (past.width + 2) + d * (d + d_v)
    return Read(scored | near(past, sinks, window), numbers, 0.0, *clouds.tail(without=whole))


class Clouds:
    """Normal clouds for the keys behind the sinks and before the window of each query.

    The same as `attnbook.sketch.Moments` in cells, grown by the key that leaves the window before
    each query, for all queries at once.
    """

    def __init__(self, past: Past, cell: np.ndarray, n_cells: int, sinks: int, window: int):
        self.scale, self.query = past.scale, past.query.astype(np.float64)
        self.middle = past.prompt.middle.astype(np.float64)
        begin = min(sinks, past.n)
        end = np.maximum(past.place + 1 - window, begin)  # of the keys that each query leaves
        key, value = past.key - self.middle, past.value.astype(np.float64)
        old, new = slice(begin, end[0]), slice(end[0], end[-1])
        member = (cell[:, None] == np.arange(n_cells)).astype(np.float64)  # (n, n_cells)

        def grown(first, steps):
            """Return the sum up to each query, of what the first has and of each step."""
            sums = np.concatenate([first[None], steps]).cumsum(axis=0)
            return sums[end - end[0]]

        def by_cell(x):
            return grown(member[old].T @ x[old], member[new, :, None] * x[new, None, :])

        def products(x, y):
            return grown(x[old].T @ y[old], x[new, :, None] * y[new, None, :])

        self.counts = by_cell(np.ones((past.n, 1)))[..., 0]  # (m, n_cells)
        filled = np.maximum(self.counts, 1)[..., None]
        mean, self.values = by_cell(key) / filled, by_cell(value) / filled
        square = by_cell((key**2).sum(axis=1, keepdims=True))[..., 0]
        total = np.maximum(self.counts.sum(axis=1), 1)
        weighted = (mean * self.counts[..., None]).swapaxes(1, 2)
        cov = (products(key, key) - weighted @ mean) / total[:, None, None]
        cross = (products(key, value) - weighted @ self.values) / total[:, None, None]
        traces = np.maximum(square - self.counts * (mean**2).sum(axis=-1), 0)
        of_all = np.maximum(traces.sum(axis=1, keepdims=True) / total[:, None], 1e-300)
        self.spread = traces / filled[..., 0] / of_all
        q = self.query * self.scale
        self.mean_score = (mean @ q[..., None])[..., 0] + (q @ self.middle)[:, None]
        variance = (q[:, None] @ cov @ q[..., None])[:, 0, 0]
        self.deviation = np.sqrt(np.maximum(variance, 0)[:, None] * self.spread)
        self.step = (q[:, None] @ cross)[:, 0]  # how far a spread of 1 moves the values

    def limit(self) -> np.ndarray:
        """Return the score that hardly a key of the clouds exceeds, (m,)."""
        high = self.mean_score + self.deviation * np.sqrt(2 * np.log1p(self.counts))
        return np.where(self.counts > 0, high, -np.inf).max(axis=1)

    def tail(self, below=None, without=None) -> tuple[np.ndarray, np.ndarray]:
        """Return log mass (m,) and mean value (m, d_v), `below` a score, `without` some cells."""
        counted = self.counts > 0 if without is None else (self.counts > 0) & ~without
        mass = np.log(np.maximum(self.counts, 1)) + self.mean_score + self.deviation**2 / 2
        along = self.spread
        if below is not None:
            safe = np.maximum(self.deviation, 1e-12)
            log_share, ratio = normal.below((below[:, None] - self.mean_score) / safe - safe)
            mass, along = mass + log_share, along * (1 - ratio / safe)
        mass = np.where(counted, mass, -np.inf)
        largest = mass.max(axis=1, keepdims=True)
        share = np.exp(mass - np.where(largest == -np.inf, 0, largest))
        total = share.sum(axis=1, keepdims=True)
        share = share / np.where(total == 0, 1, total)
        output = (share[:, None, :] @ self.values)[:, 0]
        output = output + (share * along).sum(axis=1, keepdims=True) * self.step
        with np.errstate(divide="ignore"):
            return np.log(total[:, 0]) + largest[:, 0], output
