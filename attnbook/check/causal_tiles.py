"""Causal attention in tiles with a running softmax, in steps, and the ways to get each wrong.

Both checks of kernels, of tiles that are skipped and of heads that share keys, take them over.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check import attention_cases as cases
from attnbook.check import normalization as soft
from attnbook.check.engine import documented, run
from attnbook.check.hidden_scores import MASK_MISTAKES
from attnbook.check.masked import MASKED_ATTENTION
from attnbook.check.merging import MERGE_ATTENTION
from attnbook.check.outputs import ATTENTION_STEPS, OUTPUT_MISTAKES, outputs_between_values
from attnbook.check.report import Report
from attnbook.check.scores import SCORE_MISTAKES, dot_products, hide_nothing
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Mistake, Stage, Values, Way, each, only, without

TILE = 16
"""Queries and keys in a tile: the fewest that the matrix units of a GPU take."""

WIDTH = 16
"""Of every head here."""


@documented
def tiled_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check causal attention in tiles of 16 queries and 16 keys that skips what it need not read.

    Runs `f` on one tile and on several, on lengths that no tile divides, on scores that rise,
    fall and lie far below 0, and in float16, where the sums must be kept in more digits. Then it
    makes a late value infinite. A weight of 0 times infinity is NaN, so the rows that become NaN
    tell which tiles were read.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on (n_heads, n, 16) arrays. It returns the
        output, of the same shape; query i sees keys 0 to i. It may be a kernel, compiled or
        interpreted, that takes the tensors of PyTorch alone, and it may raise on float16.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> check.tiled_attention(lambda q, k, v: attention(q, k, v, is_causal=True)).mistake
    'hidden tiles read'
    """
    return run(TILED_ATTENTION, f, time_limit)


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
}


def tiles_from_steps(s: Any, query, key, value):
    """Return causal attention of (n_heads, n, d) arrays by the steps `s`."""
    dtype = query.dtype
    wide = np.result_type(dtype, np.float32)
    query, key, value = s.inputs(*(x.astype(wide) for x in (query, key, value)))
    n_heads, n = query.shape[:2]
    heads = [s.key_head(h, n_heads, len(key)) for h in range(n_heads)]
    of_values = [s.value_head(own, h, n_heads, len(key)) for h, own in enumerate(heads)]
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
    return output.astype(dtype)


# Wrong steps.


def _one(fade):
    return np.ones_like(fade)


def _like_merging(**ways: Way | tuple[Way, ...]) -> tuple[Mistake, ...]:
    """Return mistakes that the merge of two parts has as well, in its words."""
    words = {m.name: m.message for m in MERGE_ATTENTION.mistakes}
    named = {name.replace("_", " "): way for name, way in ways.items()}
    return tuple(
        Mistake(name, words[name], way if isinstance(way, tuple) else (way,))
        for name, way in named.items()
    )


def _whole_tiles(n):
    return n // TILE * TILE


def _within_the_tile(mask):
    place = np.arange(len(mask)) % TILE
    return place[:, np.newaxis] >= place


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


_EVERY: Way = {"visit": lambda i, j: True}
_DIVIDED_IN_EACH: Way = {"add": _shares, "divide": lambda weighted, total: weighted}
VARIANTS: tuple[Way, ...] = (
    {"divide": soft.unguarded},
    {"base": _bare},
    _EVERY,
    {**_EVERY, "base": _bare},
    {**_EVERY, "divide": soft.unguarded},
)
"""Not wrong as long as every row sees a key, and as nobody counts the tiles."""

_SCORES = ("no scale", "scale by d_k", "scale multiplied", "scale by √n_k")
_MASKS = (
    "hidden scores not low enough",
    "mask inverted",
    "mask multiplies the scores",
    "mask transposed",
    "+∞ for hidden scores",
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
    places within the tile: You compare the places within the two tiles, 0 to 15, not those in the
        sequence. The mask of the diagonal tile then lies on every tile. Add where each tile begins.
    diagonal tile left out: The loop ends before the tile on the diagonal, in which the queries see
        themselves and the keys just before. Its keys begin where the queries begin, and it is the
        last one to be read.
    diagonal tile not masked: The loop ends in time, but the last tile is not masked: on the
        diagonal a query still sees the later keys of its own tile. Hide those, in that tile.
    diagonal tile alone: Each tile of queries reads the keys of its own tile and no other. The
        loop begins at key 0 and goes up to its own tile.
    tile before the diagonal left out: The loop over whole tiles ends one tile early, and the one
        just before the diagonal is never read. It goes up to the tile on the diagonal, that one
        excluded.
    first tile left out: The loop begins with the second tile of keys. It begins at key 0.
    last rows not computed: The rows after the last whole tile are not computed. The number of
        tiles is n / 16 rounded up, triton.cdiv(n, 16), and what lies outside is masked at load and
        store.
    last keys dropped: The keys after the last whole tile are not read. The loop goes on to the
        tile that is only partly there, and its load is masked.
    maximum of the tile: The maximum is that of the newest tile, so exponents of earlier ones may be
        above 0, and overflow. The running maximum never falls: the larger of both.
    no maximum: You take exp of the scores as they are. Large ones overflow, and far below 0 every
        exponential is 0. The running maximum makes each exponent at most 0.
    divided in each tile: You divide by the total in each tile, and add the outputs. A tile then
        counts no more than another one. Add what is not divided, and divide once, at the end.
    not divided: You store the weighted values. Divide them by the total, once, after the last tile.
    sums in half precision: You carry the sums from tile to tile in the precision of the inputs.
        With float16 a large sum does not move any more when small numbers are added. Keep m, z and
        u in float32, and round once, when the output is stored.
    first head alone: The outputs of all heads but the first are 0: the grid has no programs for
        them, or they are not stored.
    first head for all: All heads read the rows of the first one: the pointer of an array does not
        move with the head. One head is n · d numbers long.
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
            "no mask": {"hide": hide_nothing, **_EVERY},
            "diagonal one too far": {"see": _tri(1)},
            "query cannot see itself": (
                {"see": _tri(-1)},
                {"see": _tri(-1), "hide": lambda s, mask: np.where(mask, s, -1e9), **_EVERY},
            ),
            "places within the tile": {"see": _within_the_tile},
            "diagonal tile left out": each(
                "visit", lambda i, j: j < i, lambda i, j: j < i or i == j == 0
            ),
            "diagonal tile not masked": {"hide": hide_nothing},
            "diagonal tile alone": {"visit": lambda i, j: i == j},
            "tile before the diagonal left out": {"visit": lambda i, j: j <= i and j != i - 1},
            "first tile left out": {"visit": lambda i, j: 0 < j <= i},
            "last rows not computed": {"rows": _whole_tiles},
            "last keys dropped": {"keys": _whole_tiles},
            "maximum of the tile": (
                {"maximum": lambda m, tile: tile},
                {"maximum": lambda m, tile: tile, "fade_total": _one, "fade_weighted": _one},
            ),
            "no maximum": {"maximum": lambda m, tile: np.zeros_like(m)},
            "divided in each tile": (
                _DIVIDED_IN_EACH,
                {**_DIVIDED_IN_EACH, "fade_weighted": _one},
            ),
            "not divided": {"divide": lambda weighted, total: weighted},
            "sums in half precision": {"keep": lambda sums, dtype: sums.astype(dtype)},
            "first head alone": each(
                "inputs", lambda q, k, v: (q, k, v * (np.arange(len(v)) == 0)[:, None, None])
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
        no_rescaling={"fade_total": _one, "fade_weighted": _one},
        total_not_rescaled={"fade_total": _one},
        weighted_not_rescaled={"fade_weighted": _one},
        base_2={"power": np.exp2},
    ),
    *only(SCORE_MISTAKES, *_SCORES),
    *only(MASKED_ATTENTION.mistakes, "mask with −10⁴"),
    *only(MASK_MISTAKES, *_MASKS),
    *only(OUTPUT_MISTAKES, *_OUTPUTS),
)


# Cases.


def arrays(n_heads: int, n: int, n_own: int = 0, *, dtype: str = "float32") -> dict:
    """Return drawn query, key and value; the last two of fewer heads if `n_own` says so."""
    sizes = (n_heads, n_own or n_heads, n_own or n_heads)
    drawn = (cases.draw(91 + i, size, n, WIDTH) for i, size in enumerate(sizes))
    return dict(zip(("query", "key", "value"), (x.astype(dtype) for x in drawn), strict=True))


def sloped(slope: float, start: float = 0.0) -> dict:
    """Return arrays whose score of key j is exactly start + slope · j, for every query."""
    given = arrays(1, 37)
    query, key = np.zeros_like(given["query"]), np.zeros_like(given["key"])
    query[..., 0], key[..., 0] = 4, start + slope * np.arange(37)  # the scale is 1/4
    return {**given, "query": query, "key": key}


def unmoved_sums(n_heads: int = 1, n_own: int = 1) -> dict:
    """Return arrays of float16 whose weighted sums lose what is added to them in float16.

    All scores are equal. The values of the first tile add up to 32768, where float16 knows every
    32nd number; those of the next three add 8 each, and those of the last take 32768 away.
    """
    value = np.repeat([2048.0, 0.5, 0.5, 0.5, -2048.0], TILE)[:, np.newaxis]
    zeros = np.zeros((n_own, 5 * TILE, WIDTH), np.float16)
    query = np.zeros((n_heads, *zeros.shape[1:]), np.float16)
    return {"query": query, "key": zeros, "value": (zeros + value).astype(np.float16)}


SLOPES = (
    Stage((Case(sloped(3.0), about=" (scores that rise)"),)),
    Stage((Case(sloped(-3.0), about=" (scores that fall)"),)),
    Stage((Case(sloped(-3.0, -32768.0), about=" (scores far below 0)"),)),
)


def _infinite(n: int, place: int) -> Case:
    given = arrays(1, n)
    value = given["value"].copy()
    value[0, place, 3] = np.inf
    return Case({**given, "value": value}, about=f" (a value of key {place} is infinite)")


def what_comes_later_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    later = {name: case.arrays[name].copy() for name in ("key", "value")}
    for x in later.values():
        x[:, -1] += 1
    moved = again(**later)
    if moved and not np.allclose(moved[0][:, :-1], values[0][:, :-1], equal_nan=True):
        return "The last key and value change the output of an earlier query."
    return None


def one_row_is_its_value(case: Case, values: Values, again: Callable) -> str | None:
    value, n_heads = case.arrays["value"], len(values[0])
    first = value[[h * len(value) // n_heads for h in range(n_heads)], 0]
    if values[0].ndim == 3 and np.allclose(values[0][:, 0], first, 1e-2, 1e-2):
        return None
    return "Query 0 sees key 0 alone, so its output is value 0; here it is not."


def check_of(name: str, stages: tuple[Stage, ...], own: tuple[Mistake, ...], *left: str) -> Check:
    """Return a check of tiles with these stages, its own mistakes and all others but those left."""
    return Check(
        name=name,
        parameters=("query", "key", "value"),
        results={"output": "(n_heads, n, 16)"},
        compute=tiles_from_steps,
        steps=TILE_STEPS,
        variants=VARIANTS,
        stages=stages,
        mistakes=(*own, *without(TILE_MISTAKES, *left)),
        properties=(
            one_row_is_its_value,
            what_comes_later_changes_nothing,
            outputs_between_values,
        ),
        legible=True,
    )


TILED_ATTENTION = check_of(
    "tiled_attention",
    (
        Stage((Case(arrays(1, 3)), Case(arrays(2, 16)), Case(arrays(2, 37)))),
        *SLOPES,
        Stage((Case(unmoved_sums()),), may_raise="float16"),
        # in another tile of keys each time: the second, the third and the last
        Stage((_infinite(53, 20), _infinite(53, 47), _infinite(53, 52))),
    ),
    mistakes(
        """
    hidden tiles read: The numbers are right, and tiles are read in vain: in which every key comes
        after every query. The check has made a value there infinite, and rows that may not see it
        became NaN, since 0 · ∞ is NaN. End the loop with the tile on the diagonal.
    one tile too many: You read one tile beyond the diagonal; its weights are all 0. The last tile
        to be read is the one whose keys begin where the queries begin.
    """,
        {
            "hidden tiles read": (_EVERY, {"visit": lambda i, j: j // 2 <= i // 2}),
            "one tile too many": {"visit": lambda i, j: j <= i + 1},
        },
    ),
)
