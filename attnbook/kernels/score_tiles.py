"""Tiles of scores in plain array code, and one head after the other."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from array_api_compat import device

from attnbook.arrays.array import Array, array_namespace, broadcast_shapes
from attnbook.arrays.attention_arguments import causal_mask
from attnbook.arrays.intervals import HIDDEN, WHOLE, Intervals
from attnbook.kernels.naive import scores_of


def tiles(n: int, size: int) -> list[slice]:
    """Return slices that cut 0 … n into pieces of `size` and a rest."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def later(rows: slice, columns: slice, n_q: int, n_k: int) -> bool:
    """Return whether all keys of a tile come later than all of its queries: nothing to see."""
    return columns.start > rows.stop - 1 + n_k - n_q


def visited(
    mask: Any, is_causal: bool, n_q: int, n_k: int, of_rows: int, of_columns: int
) -> Callable[[int], Iterator[tuple[int, slice, Any]]]:
    """Return a function of the tile of queries i that yields the tiles of keys which it sees.

    Of each it yields the number, the keys, and the mask to apply, None where intervals show all.
    """
    rows_of, columns_of = tiles(n_q, of_rows), tiles(n_k, of_columns)
    kinds = mask.tiles(of_rows, of_columns) if isinstance(mask, Intervals) else None

    def of_tile(i: int) -> Iterator[tuple[int, slice, Any]]:
        for j, columns in enumerate(columns_of if n_q else ()):
            if kinds is not None:
                if kinds[i, j] != HIDDEN:
                    yield j, columns, None if kinds[i, j] == WHOLE else mask
            elif not (is_causal and later(rows_of[i], columns, n_q, n_k)):
                yield j, columns, mask

    return of_tile


def tile_of(x: Any, rows: slice, columns: slice) -> Any:
    """Return the part of a mask or bias that belongs to a tile; axes of length 1 stay."""
    if x.ndim > 1 and x.shape[-2] != 1:
        x = x[..., rows, :]
    return x if x.ndim == 0 or x.shape[-1] == 1 else x[..., columns]


def tile_scores(
    query: Array,
    key: Array,
    mask: Array | None,
    bias: Array | None,
    scale: float,
    is_causal: bool,
    rows: slice,
    columns: slice,
) -> Array:
    """Return the scores of a tile, −∞ where a query may not attend."""
    offset = key.shape[-2] - query.shape[-2]
    if isinstance(mask, Intervals):
        seen = mask.tile(rows, columns, query)
    else:
        seen = None if mask is None else tile_of(mask, rows, columns)
    if is_causal and columns.stop - 1 > rows.start + offset:  # the tile crosses the diagonal
        causal = causal_mask(query, rows, columns, offset)
        seen = causal if seen is None else seen & causal
    bias = None if bias is None else tile_of(bias, rows, columns)
    return scores_of(query[..., rows, :], key[..., columns, :], seen, bias, scale)


def head_by_head(
    function: Callable[..., tuple[Array, ...]],
    shapes: Sequence[tuple[int, ...]],
    *arrays: Any,
) -> tuple[Array, ...]:
    """Call `function` with every head of `arrays` in turn, and stack each of its results.

    The leading axes of the arrays broadcast; None stays None. A head of (..., n, d) is (n, d), and
    `shapes` has those of a head of each result.
    """
    xp = array_namespace(arrays[0])
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in arrays if x is not None)) or ()
    spread = [
        x if x is None or isinstance(x, Intervals) else for_each_head(x, leading) for x in arrays
    ]
    results = [
        function(*(_of_head(x, at) for x in spread))
        for at in itertools.product(*(range(n) for n in leading))
    ]
    if not results:
        like = {"dtype": arrays[0].dtype, "device": device(arrays[0])}
        return tuple(xp.zeros((*leading, *shape), **like) for shape in shapes)
    return tuple(
        xp.reshape(xp.stack(parts), (*leading, *shape))
        for parts, shape in zip(zip(*results, strict=True), shapes, strict=True)
    )


def _of_head(x: Any, at: tuple[int, ...]) -> Any:
    if isinstance(x, Intervals):
        return x.of_head(at)
    return None if x is None else x[(*at, ...)]


def for_each_head(x: Any, leading: tuple[int, ...]) -> Any:
    """Return `x` with these leading axes and two more, without copying it."""
    xp = array_namespace(x)
    if x.ndim < 2:
        x = xp.reshape(x, (1,) * (2 - x.ndim) + tuple(x.shape))
    return xp.broadcast_to(x, (*leading, *x.shape[-2:]))
