"""Causal attention in tiles with a running softmax, in steps, and the ways to get each wrong.

Both checks of kernels, of tiles that are skipped and of heads that share keys, take them over.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check import normalization as soft
from attnbook.check.hidden_scores import MASK_MISTAKES
from attnbook.check.masked import MASKED_ATTENTION
from attnbook.check.merge_mistakes import MERGE_MISTAKES
from attnbook.check.outputs import ATTENTION_STEPS, OUTPUT_MISTAKES
from attnbook.check.scores import SCORE_MISTAKES, dot_products, hide_nothing
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Mistake, Way, each, only

TILE = 16
"""Queries and keys in a tile: the fewest that the matrix units of a GPU take."""


def _bare(m):
    return m


def _finite(m):
    return np.where(m == -np.inf, 0, m)


def _add(p, value):
    return np.sum(p, axis=-1, keepdims=True), p @ value


TILE_STEPS: dict[str, Callable] = {
    **{name: ATTENTION_STEPS[name] for name in ("inputs", "product", "factor", "rescale")},
    "key_head": lambda h, n_heads, n_own: h * n_own // n_heads,  # of query head h
    "value_head": lambda own, h, n_heads, n_own: own,  # given the one of the key
    "see": lambda mask: mask,
    "hide": ATTENTION_STEPS["hide"],
    "rows": lambda n: n,  # so many are computed
    "keys": lambda n: n,  # so many are there to be read
    "visit": lambda i, j: j <= i,  # tile of queries, tile of keys
    "maximum": np.maximum,  # of those so far and of the tile
    "base": _finite,
    "power": np.exp,
    "add": _add,
    "fade_total": lambda fade: fade,
    "fade_weighted": lambda fade: fade,
    "keep": lambda sums, dtype: sums,  # from tile to tile; dtype is that of the inputs
    "divide": soft.guarded,  # weighted values, total
    "store": lambda output, n_own: output,
}


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


def _at_once(weigh: Callable, hide: Callable = ATTENTION_STEPS["hide"]) -> Callable:
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
    return total, soft.guarded(p, total) @ value


def _tri(surplus: int) -> Callable:
    return lambda mask: np.tri(len(mask), k=surplus, dtype=bool)


EVERY: Way = {"visit": lambda i, j: True}
_DIVIDED_IN_EACH: Way = {"add": _shares, "divide": lambda weighted, total: weighted}
_MEAN_OF_TILES: Way = {
    "add": lambda p, value: (np.ones_like(p[..., :1]), _shares(p, value)[1]),
    "fade_total": _one,
    "fade_weighted": _one,
}
VARIANTS: tuple[Way, ...] = (
    {"divide": soft.unguarded},
    {"base": _bare},
    EVERY,
    {**EVERY, "base": _bare},
    {**EVERY, "divide": soft.unguarded},
)
"""Not wrong as long as every row sees a key, and as nobody counts the tiles."""

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

TILE_MISTAKES = (
    *mistakes(
        """
    softmax over the query axis: Your softmax runs over the queries. It runs over the keys that a
        query sees, the last axis of the scores.
    softmax over the heads: Your softmax runs over the heads, which share out each key among them.
        It runs over the keys that a query sees, the last axis of the scores.
    softmax twice: You apply the softmax to weights that are already softmaxed. Apply it once.
    mask after the softmax: You set hidden weights to zero after the softmax, so what they had is
        lost and the rows no longer sum to one. Hide the scores, with −∞, before the softmax.
    sign of the scores: The smallest score gets the largest weight: a minus sign has crept in
        between the dot product and exp. Look also at the order of score and maximum.
    another power of d_k: You divide the scores by another number than √16: by 2, by 256, by √32 or
        √15 or √17, or by 16 twice. It is √d_k, the root of the width.
    no mask: Every query sees all keys, those of its future too: nothing is hidden. Where the place
        of a key is after that of the query, the score is −∞.
    diagonal one too far: Each query sees one key too many, the one that follows it: with ≥ and <
        look at the case of two equal places. Key j is visible to query i if j ≤ i.
    query cannot see itself: The diagonal is hidden, so no query sees its own key, and query 0 sees
        nothing. Key j is visible to query i if j ≤ i, the same place included.
    places within the tile: You compare the places within the two tiles, 0 to 15, or one of them, in
        place of those in the sequence. Add where each tile begins.
    later tiles not masked: You hide later keys in the tile on the diagonal alone, and read the
        tiles behind it whole. End with the one on the diagonal.
    diagonal tile left out: The loop ends before the tile on the diagonal, in which the queries see
        themselves and the keys just before. Its keys begin where the queries begin, and it is the
        last one to be read.
    diagonal tile not masked: The loop ends in time, but the last tile is not masked: on the
        diagonal a query still sees the later keys of its own tile. Hide those, in that tile.
    diagonal tile alone: Each tile of queries reads the keys of its own tile alone. Begin at key 0.
    tile before the diagonal left out: The loop over whole tiles ends one tile early, and the one
        just before the diagonal is never read. It goes up to the tile on the diagonal, that one
        excluded.
    first tile left out: The loop begins with the second tile of keys. It begins at key 0.
    last rows not computed: The rows after the last whole tile are not computed. The number of
        tiles is n / 16 rounded up, triton.cdiv(n, 16), and what lies outside is masked at load and
        store.
    last keys dropped: The keys after the last whole tile are not read. The loop goes on to the
        tile that is only partly there, and its load is masked.
    maximum of the tile: The maximum is that of the newest tile, or the smaller of the two, so
        exponents of earlier ones may be above 0, and overflow. The running maximum never falls: the
        larger of both.
    no maximum: You take exp of the scores as they are. Large ones overflow, and far below 0 every
        exponential is 0. The running maximum makes each exponent at most 0.
    divided in each tile: You divide by the total in each tile, and add or average the tiles. A tile
        then counts no more than another one. Add what is not divided, and divide once, at the end.
    not divided: You store the weighted values. Divide them by the total, once, after the last tile.
    sums in half precision: You carry the sums from tile to tile in the precision of the inputs.
        With float16 a large sum does not move any more when small numbers are added. Keep m, z and
        u in float32, and round once, when the output is stored.
    first head alone: Only the first head, or the first group of them, is not 0: the grid has no
        programs for the others, or they are not stored.
    scale by d_model: You divide by the root of the width of all heads together. A score has the
        terms of one head: divide by √d.
    first head for all: All heads read the rows of the first one: the pointer of an array does not
        move with the head. One head is n · d numbers long.
    last tiles alone: Each tile of queries reads the last two or three tiles of keys and no earlier
        ones. The loop begins at key 0.
    every second tile: Every second tile of keys is left out. The step is the width of one tile.
    first key left out: Key 0 is never read: the loop begins at 1.
    first rows alone: Only the first tile of queries is computed. The grid has a program for each.
    maximum of the first tile: The maximum stays that of the first tile. Where scores grow,
        exponents above 0 overflow. The running maximum is the larger of the old one and that of the
        tile.
    sums overwritten: In each tile you set the total, or the weighted sum, to that of the tile
        alone. Add it to what you have, rescaled.
    something added to the total: You add a number to the total before you divide, so the weights of
        a query sum to less than 1. The total is at least 1 where anything is visible.
    last head left out: The output of the last head is 0. The grid has a program for each head.
    keys of another head: A head reads the keys or the values of another one, its neighbour or the
        one counted from the other end.
    heads in another order: The outputs stand in another order. Output h is that of query head h.
    """,
        {
            "softmax over the query axis": {"compute": _at_once(lambda s: soft.normal(s, -2))},
            "softmax over the heads": each(
                "compute",
                *(_at_once(partial(weigh, axis=0)) for weigh in (soft.normal, attnbook.softmax)),
            ),
            "softmax twice": {"compute": _at_once(lambda s: soft.normal(soft.normal(s, -1), -1))},
            "mask after the softmax": {
                "compute": _at_once(lambda s: np.tril(soft.normal(s, -1)), hide=hide_nothing)
            },
            "sign of the scores": {"product": lambda q, k: -dot_products(q, k)},
            "another power of d_k": only(SCORE_MISTAKES, "another power of d_k")[0].ways,
            "no mask": {"hide": hide_nothing, **EVERY},
            "diagonal one too far": {"see": _tri(1)},
            "query cannot see itself": (
                {"see": _tri(-1)},
                {"see": _tri(-1), "hide": lambda s, mask: np.where(mask, s, -1e9), **EVERY},
            ),
            "places within the tile": each(
                "see",
                _within_the_tile(True, True),
                _within_the_tile(True, False),
                _within_the_tile(False, True),
            ),
            "later tiles not masked": {**EVERY, "see": _whole_later_tiles},
            "diagonal tile left out": each(
                "visit", lambda i, j: j < i, lambda i, j: j < i or i == j == 0
            ),
            "diagonal tile not masked": {"hide": hide_nothing},
            "diagonal tile alone": {"visit": lambda i, j: i == j},
            "last tiles alone": each(
                "visit", lambda i, j: i - 1 <= j <= i, lambda i, j: i - 2 <= j <= i
            ),
            "every second tile": {"visit": lambda i, j: j <= i and j % 2 == 0},
            "tile before the diagonal left out": {"visit": lambda i, j: j <= i and j != i - 1},
            "first tile left out": each(
                "visit", lambda i, j: 0 < j <= i, lambda i, j: 0 < j <= i or i == j == 0
            ),
            "first key left out": {"see": lambda mask: mask & (np.arange(len(mask)) > 0)},
            "first rows alone": {"rows": lambda n: min(n, TILE)},
            "last rows not computed": each(
                "rows", _whole_tiles, lambda n: n if n < TILE else _whole_tiles(n), _to_the_last
            ),
            "last keys dropped": each("keys", _whole_tiles, _to_the_last),
            "maximum of the first tile": {
                "maximum": lambda m, tile: np.where(m == -np.inf, tile, m)
            },
            "sums overwritten": (
                {"fade_total": np.zeros_like},
                {"fade_weighted": np.zeros_like},
            ),
            "maximum of the tile": (
                {"maximum": lambda m, tile: tile},
                {"maximum": lambda m, tile: tile, "fade_total": _one, "fade_weighted": _one},
            ),
            "no maximum": {"maximum": lambda m, tile: np.zeros_like(m)},
            "something added to the total": each(
                "divide", *(lambda u, z, x=x: u / (z + x) for x in (1, 0.1, 0.01, 1e-3))
            ),
            "divided in each tile": (
                {"add": _shares},
                {"add": _shares, "fade_weighted": _one},
                _DIVIDED_IN_EACH,
                {**_DIVIDED_IN_EACH, "fade_weighted": _one},
                _MEAN_OF_TILES,
            ),
            "not divided": {"divide": lambda weighted, total: weighted},
            "sums in half precision": {"keep": lambda sums, dtype: sums.astype(dtype)},
            "first head alone": each(
                "inputs", lambda q, k, v: (q, k, v * (np.arange(len(v)) == 0)[:, None, None])
            ),
            "last head left out": each(
                "store", lambda x, n_own: x * (np.arange(len(x))[::-1] > 0)[:, None, None]
            ),
            "heads in another order": each("store", lambda x, n_own: x[::-1]),
            "keys of another head": (
                *of_heads(lambda h, n_heads, n_own: n_own - 1 - h * n_own // n_heads),
                *of_heads(lambda h, n_heads, n_own: (h * n_own // n_heads + 1) % n_own),
                *of_heads(lambda h, n_heads, n_own: (h * n_own // n_heads - 1) % n_own),
            ),
            "scale by d_model": each(
                "factor", lambda q, k, v, mask: (q.shape[0] * q.shape[-1]) ** -0.5
            ),
            "first head for all": each(
                "inputs",
                lambda q, k, v: tuple(0 * x + x[:1] for x in (q, k, v)),
                lambda q, k, v: (q, 0 * k + k[:1], 0 * v + v[:1]),
                lambda q, k, v: (q, 0 * k + k[:1], v),
                lambda q, k, v: (q, k, 0 * v + v[:1]),
            ),
        },
    ),
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
