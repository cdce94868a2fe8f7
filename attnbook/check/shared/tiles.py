"""Causal attention in tiles with a running softmax, in steps, and the ways to get each wrong.

Both checks of kernels, of tiles that are skipped and of heads that share keys, take them over.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.check.engine.steps import Way, only
from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft
from attnbook.check.exercises.attention import OUTPUT_MISTAKES
from attnbook.check.exercises.masked_attention import MASKED_ATTENTION
from attnbook.check.shared.masks_of_scores import MASK_MISTAKES
from attnbook.check.shared.scores import SCORE_MISTAKES, dot_products

TILE = 16
"""Queries and keys in a tile: the fewest that the Tensor Cores of a GPU take."""


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


def places(mask):
    return np.arange(len(mask))


def _own(n_heads, x):
    return x[np.arange(n_heads) * len(x) // n_heads].astype(float)


def scores_at_once(query, key):
    """Return the scores of all heads, without tiles and without a mask."""
    q, k = query.astype(float), _own(len(query), key)
    return dot_products(q, k) / np.sqrt(q.shape[-1])


def mixed_at_once(weights, value):
    return (weights @ _own(len(weights), value)).astype(value.dtype)


def shares(p, value):
    total = np.sum(p, axis=-1, keepdims=True)
    return total, p / soft.or_one(total) @ value


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
    *TEXT["as in merging"],
    *only(SCORE_MISTAKES, *_SCORES),
    *(  # without what is added to the scores, which hides them here
        replace(mistake, ways=mistake.ways[:2])
        for mistake in only(MASKED_ATTENTION.mistakes, "mask with −10⁴")
    ),
    *only(MASK_MISTAKES, *_MASKS),
    *only(OUTPUT_MISTAKES, *_OUTPUTS),
)
