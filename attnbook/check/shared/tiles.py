"""Causal attention in tiles with a running softmax, in steps, and the ways to get each wrong.

Both checks of kernels, of tiles that are skipped and of heads that share keys, take them over.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.check.engine.steps import Mistake, Way, each, only
from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft
from attnbook.check.exercises.attention import OUTPUT_MISTAKES
from attnbook.check.exercises.masked_attention import MASKED_ATTENTION
from attnbook.check.shared.masks_of_scores import MASK_MISTAKES
from attnbook.check.shared.merging import MERGE_MISTAKES
from attnbook.check.shared.scores import SCORE_MISTAKES, dot_products, hide

TILE = 16
"""Queries and keys in a tile: the fewest that the matrix units of a GPU take."""


def _finite(m):
    return np.where(m == -np.inf, 0, m)


def _add(p, value):
    return np.sum(p, axis=-1, keepdims=True), p @ value


def tiles_from_steps(s: Any, query, key, value):
    """Return causal attention of (n_heads, n, d) arrays by the steps `s`."""
    dtype = query.dtype
    wide = np.result_type(dtype, np.float32)
    query, key, value = s.inputs(*(x.astype(wide) for x in (query, key, value)))
    n_heads, n = query.shape[:2]
    n_own = len(key)
    heads = [s.key_head(h, n_heads, n_own) for h in range(n_heads)]
    of_values = [s.value_head(own, h, n_heads, n_own) for h, own in enumerate(heads)]
    key, value = key[heads], value[of_values]
    scores = s.rescale(s.product(query, key), s.factor(query, key, value, None))
    scores = s.hide(scores, s.see(np.tri(n, dtype=bool)))
    output = np.zeros((*query.shape[:2], value.shape[-1]), wide)
    for i, top in enumerate(range(0, s.rows(n), TILE)):
        rows = slice(top, min(top + TILE, s.rows(n)))
        m = np.full((n_heads, rows.stop - top, 1), -np.inf, wide)
        total, weighted = np.zeros_like(m), np.zeros_like(output[:, rows])
        for j, left in enumerate(range(0, s.keys(n), TILE)):
            if not s.visit(i, j):
                continue
            columns = slice(left, min(left + TILE, s.keys(n)))
            tile = scores[:, rows, columns]
            before, m = m, s.maximum(m, np.max(tile, axis=-1, keepdims=True))
            base = s.base(m)
            fade = s.power(before - base)
            new_total, new_weighted = s.add(s.power(tile - base), value[:, columns])
            total = s.keep(s.fade_total(fade) * total + new_total, dtype)
            weighted = s.keep(s.fade_weighted(fade) * weighted + new_weighted, dtype)
        output[:, rows] = s.divide(weighted, total)
    return s.store(output, n_own).astype(dtype)


# Wrong steps.


def _one(fade):
    return np.ones_like(fade)


def _faded(change: Callable) -> tuple[Way, ...]:
    """Return the ways to change the factor of what was summed before, of one sum or of both."""
    return (
        {"fade_total": change, "fade_weighted": change},
        {"fade_total": change},
        {"fade_weighted": change},
    )


def _inverse(fade):
    return 1 / np.where(fade == 0, 1, fade)


def of_heads(key_head: Callable) -> tuple[Way, ...]:
    """Return the ways to read keys, values or both of the heads that a function tells."""

    def of_value(own, h, n_heads, n_own):
        return key_head(h, n_heads, n_own)

    def right(own, h, n_heads, n_own):
        return h * n_own // n_heads

    return (
        {"key_head": key_head},
        {"key_head": key_head, "value_head": right},
        {"value_head": of_value},
    )


def _like_merging(**ways: Way | tuple[Way, ...]) -> tuple[Mistake, ...]:
    """Return mistakes that the merge of two parts has as well, in its words."""
    words = {m.name: m.message for m in MERGE_MISTAKES}
    named = {name.replace("_", " "): way for name, way in ways.items()}
    return tuple(
        Mistake(name, words[name], way if isinstance(way, tuple) else (way,))
        for name, way in named.items()
    )


def _whole_tiles(n):
    return n // TILE * TILE


def _to_the_last(n):
    return n - (n % TILE == 1)  # a loop that ends at n - 1 lacks a tile of one place alone


def _within_the_tile(of_query: bool, of_key: bool) -> Callable:
    """Return the mask of places of which one or both are counted within the tile."""

    def see(mask):
        place = np.arange(len(mask))
        queries, keys = (place % TILE if within else place for within in (of_query, of_key))
        return queries[:, np.newaxis] >= keys

    return see


def _whole_later_tiles(mask):
    tile = np.arange(len(mask)) // TILE
    return mask | (tile[:, np.newaxis] < tile)


def _at_once(weigh: Callable, hide: Callable = hide) -> Callable:
    """Return causal attention without tiles whose weights are made of the scores by `weigh`."""

    def compute(query, key, value):
        own = np.arange(len(query)) * len(key) // len(query)
        q, k, v = (x.astype(float) for x in (query, key[own], value[own]))
        scores = dot_products(q, k) / np.sqrt(q.shape[-1])
        weights = weigh(hide(scores, np.tri(q.shape[-2], dtype=bool)))
        return (weights @ v).astype(query.dtype)

    return compute


def _shares(p, value):
    total = np.sum(p, axis=-1, keepdims=True)
    return total, p / soft.or_one(total) @ value


def _tri(surplus: int) -> Callable:
    return lambda mask: np.tri(len(mask), k=surplus, dtype=bool)


_DIVIDED_IN_EACH: Way = {"add": _shares, "divide": lambda weighted, total: weighted}
_MEAN_OF_TILES: Way = {
    "add": lambda p, value: (np.ones_like(p[..., :1]), _shares(p, value)[1]),
    "fade_total": _one,
    "fade_weighted": _one,
}
_BEGINS = (0, -1e4)
_SCORES = ("no scale", "scale by d_k", "scale multiplied", "scale by √n_k")
_MASKS = (
    "hidden scores not low enough",
    "mask inverted",
    "mask multiplies the scores",
    "mask transposed",
    "+∞ or NaN for hidden scores",
)
_OUTPUTS = (
    *("query and key swapped", "value used as key", "key used as value", "key and value swapped"),
    *("query used as value", "query compared with itself", "keys compared with themselves"),
)

TEXT = Text(globals())

TILE_MISTAKES = (
    *TEXT.mistakes,
    *_like_merging(
        no_rescaling=_faded(_one)[0],
        total_not_rescaled=_faded(_one)[1],
        weighted_not_rescaled=_faded(_one)[2],
        sign_of_the_exponent=_faded(_inverse),
        rescaled_twice=_faded(np.square),
        maximum_from_0=each(
            "maximum", *(lambda m, tile, x=x: np.maximum(np.maximum(m, tile), x) for x in _BEGINS)
        ),
        one_maximum_for_all_rows={
            "maximum": lambda m, tile: np.maximum(m, np.max(tile, axis=-2, keepdims=True))
        },
        base_2={"power": np.exp2},
    ),
    *only(SCORE_MISTAKES, *_SCORES),
    *(  # without what is added to the scores, which hides them here
        replace(mistake, ways=mistake.ways[:2])
        for mistake in only(MASKED_ATTENTION.mistakes, "mask with −10⁴")
    ),
    *only(MASK_MISTAKES, *_MASKS),
    *only(OUTPUT_MISTAKES, *_OUTPUTS),
)
