"""Which tiles of queries see a tile of keys, as runs: what the backward pass walks along.

`Intervals` say for every query what keys it sees. The backward pass has keys outside and queries
inside, so it needs the transpose, for tiles: of each tile of keys the runs of tiles of queries that
see at least one of its keys.
"""

from typing import NamedTuple

import numpy as np

from attnbook.arrays.intervals import Intervals
from attnbook.compilers.jit import compile_fused
from attnbook.kernels.numba_loops.arrays import RANGES, Work
from attnbook.kernels.numba_loops.ranges import sequences


class Runs(NamedTuple):
    """Runs of tiles of queries, those of a tile of keys one after the other."""

    offsets: np.ndarray  # (sequences · tiles of keys + 1,): where the runs of a tile begin
    starts: np.ndarray  # the first tile of queries of each run, and the one after its last
    stops: np.ndarray
    n_tiles: int  # of keys


_NOTHING = np.zeros(1, np.int64)
NO_RUNS = Runs(_NOTHING, _NOTHING, _NOTHING, 0)


def runs_of(seen: Intervals, queries: int, keys: int) -> Runs:
    """Return the runs for tiles of so many queries and so many keys.

    Notes
    -----
    Cost: O(n_q m log(n_q m)) time, where m ranges belong to a query, and as many runs as there are;
    never a list of all tiles.
    """
    n_tiles = -(-seen.n_k // keys)
    any_of = seen.seen_by_any(queries)
    n_blocks = any_of.n_q
    shape = (-1, n_blocks, any_of.starts.shape[-1])
    starts, stops = any_of.starts.reshape(shape), any_of.stops.reshape(shape)
    stops = np.where(starts < stops, -(-stops // keys), 0)
    tiles = Intervals(starts // keys, stops, n_tiles)
    none = np.full((tiles.starts.shape[0], 1, tiles.starts.shape[-1]), n_tiles)
    before, after = (
        Intervals(
            np.concatenate(join(tiles.starts), axis=1),
            np.concatenate(join(tiles.stops), axis=1),
            n_tiles,
        )
        for join in (lambda x: [none, x[:, :-1]], lambda x: [x[:, 1:], none])
    )
    places, begins = _places(tiles & ~before)
    _, ends = _places(tiles & ~after)
    counts = np.bincount(places, minlength=tiles.starts.shape[0] * n_tiles)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Runs(offsets, begins, ends + 1, n_tiles)


def _places(tiles: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of a tile of keys and a tile of queries, in their order.

    The tiles of keys are counted through all sequences.
    """
    counts = (tiles.stops - tiles.starts).astype(np.int64)
    sequence, block, _ = (np.repeat(x.ravel(), counts.ravel()) for x in np.indices(counts.shape))
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts.ravel(), counts.ravel())
    tile = np.repeat(tiles.starts.ravel(), counts.ravel()) + within
    place = sequence * tiles.n_k + tile
    order = np.lexsort((block, place))
    return place[order], block[order]


def seen_in_pieces(
    work: Work, runs: Runs, keys: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> np.ndarray:
    """Return how many tiles are seen in each piece: (heads, pieces of keys, pieces of queries).

    The pieces are ranges of tiles, without a gap.
    """
    edges = [start for start, _ in keys]
    place = np.repeat(np.arange(len(runs.offsets) - 1), np.diff(runs.offsets))
    seen = []
    for start, stop in queries:
        lengths = np.clip(runs.stops, start, stop) - np.clip(runs.starts, start, stop)
        of_tile = np.bincount(place, lengths, minlength=len(runs.offsets) - 1)
        seen.append(np.add.reduceat(of_tile.reshape(-1, runs.n_tiles), edges, axis=1))
    return np.stack(seen, axis=-1)[sequences(work)].sum(axis=1)


@compile_fused
def runs_at(work, runs, head, group, tile):
    """Return the first run of a tile of keys, and the one after its last, for a head's group."""
    sequence = work.starts[RANGES, head, group] // (work.n_q * work.n_ranges)
    at = sequence * runs.n_tiles + tile
    return runs.offsets[at], runs.offsets[at + 1]
