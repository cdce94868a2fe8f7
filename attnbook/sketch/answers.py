"""How queries are answered: near keys from the tables, heavy keys, and a tail for the rest.

Each of the three is a group of keys with a mass, the logarithm of its sum of exponentials, and an
output, its weighted mean value. A softmax over the masses mixes the outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat

from attnbook.arrays.arguments import Array, accumulation_dtype, array_namespace
from attnbook.arrays.empty_rows import maximum as maximum_of
from attnbook.arrays.move import move
from attnbook.single_head.softmax import softmax_of
from attnbook.hashing.projections import log_chance
from attnbook.sketch.estimators import ESTIMATORS, Candidates

GATHERED = 2**22
"""Numbers of keys and values that are gathered at once: queries are taken in blocks."""


@dataclass(frozen=True, eq=False)
class Visible:
    """Which keys a query may attend to: rows below `before`, and where `mask` is True."""

    before: Any = None  # int64 (n_q,)
    mask: Any = None  # boolean (n_q, n_rows)

    def of(self, part: slice) -> "Visible":
        """Return the same for some of the queries."""
        before = None if self.before is None else self.before[part]
        return Visible(before, None if self.mask is None else self.mask[part, :])

    def at(self, rows: Array) -> Array:
        """Return whether each of `rows` (n_q, M) may be attended to."""
        xp = array_namespace(rows)
        seen = xp.ones_like(rows, dtype=xp.bool)
        if self.before is not None:
            seen = seen & (rows < self.before[:, None])
        if self.mask is not None and rows.shape[1] > 0:
            seen = seen & xp.take_along_axis(self.mask, rows, axis=-1)
        return seen


@dataclass(frozen=True, eq=False)
class Near:
    """What the tables give for a block of queries.

    Rows and weights (n_q, M) are None where a kernel kept them to itself, and `expected` where the
    hash knows no probabilities.
    """

    mass: Array  # (n_q,)
    output: Array  # (n_q, d_v)
    count: Array  # int64 (n_q,)
    best: Array  # int64 (n_q,), the row with the largest score, or -1
    largest: Array  # (n_q,), its score
    expected: Any = None  # (n_q,), the mass if each key stands for 1 / P like it
    rows: Any = None
    weights: Any = None


def blocks(sketch: Any, signatures: Array) -> Iterator[slice]:
    """Yield runs of queries whose padded candidates fit into memory together."""
    counts = move(sketch._index.counts(signatures, max_bucket=sketch.max_bucket), "numpy")
    widest = counts.max(axis=-1, initial=0).tolist()
    numbers = sketch.hash.n_tables * sum(rows.array().shape[1] + 2 for rows in sketch._stored)
    start, width = 0, 0
    for i in range(len(widest)):
        width = max(width, widest[i])
        if i > start and (i + 1 - start) * width * numbers > GATHERED:
            yield slice(start, i)
            start, width = i, widest[i]
    yield slice(start, len(widest))


def candidates(sketch: Any, signatures: Array, visible: Visible) -> Candidates:
    """Return what the tables hold for each query, of the keys that it may attend to."""
    xp = array_namespace(signatures)
    rows, found = sketch._index.lookup(signatures, max_bucket=sketch.max_bucket)
    flat = xp.reshape(rows, (rows.shape[0], rows.shape[1] * rows.shape[2]))
    return Candidates.of(rows, found & xp.reshape(visible.at(flat), rows.shape))


def near(
    sketch: Any,
    query: Array,
    signatures: Array,
    visible: Visible,
    above: Any = None,
    *,
    weigh: bool = True,
) -> Near:
    """Return the estimate from the tables, of scores larger than `above` alone if it is given.

    Without `weigh` the chances to be found are left out where the estimator does not need them.
    """
    xp = array_namespace(query)
    wide = accumulation_dtype(xp, query.dtype)
    found = candidates(sketch, signatures, visible)
    n_q, n_tables, width = found.rows.shape
    flat = (n_q, n_tables * width)
    rows = xp.reshape(found.rows, flat)
    key, value = (xp.astype(gather(x.array(), rows), wide, copy=False) for x in sketch._stored)
    q = xp.astype(query, wide, copy=False)
    scores = xp.matmul(key, q[:, :, None])[..., 0] * sketch.scale_of(query)  # (n_q, M)
    kept = ~sketch._far.is_heavy(sketch, rows)
    if above is not None:
        kept = kept & (scores > above[:, None])
    kept = xp.reshape(kept, found.rows.shape)
    found = Candidates(found.rows, found.found & kept, found.distinct & kept)

    probability = expected = None
    distinct = xp.reshape(found.distinct, flat)
    weigh = weigh or sketch.estimator == "importance"
    if weigh and hasattr(sketch.hash, "retrieval_probability"):
        probability = sketch.hash.retrieval_probability(q[:, None, :], key)
        sure = xp.where(distinct, probability, xp.ones_like(probability))
        expected = log_sum(masked(scores - log_chance(sure), distinct))
    extra = (xp.reshape(probability, found.rows.shape),) if sketch.estimator == "importance" else ()
    weights = ESTIMATORS[sketch.estimator](xp.reshape(scores, found.rows.shape), found, *extra)
    weights = xp.reshape(weights, flat)
    logits = masked(scores, distinct)
    counted = distinct if sketch.estimator in ("union", "importance") else found.found
    best, largest = first_of_largest(rows, logits)
    return Near(
        mass=log_sum(logits),
        output=xp.matmul(weights[:, None, :], value)[:, 0, :],
        count=xp.astype(xp.count_nonzero(distinct, axis=-1), xp.int64),
        best=best,
        largest=largest,
        expected=expected,
        rows=xp.where(xp.reshape(counted, flat), rows, xp.full_like(rows, -1)),
        weights=weights,
    )


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a block of queries, with its weights if the tables told the rows."""

    output: Array  # (n_q, d_v)
    rows: Any = None  # int64 (n_q, M), -1 where there is none
    weights: Any = None  # (n_q, M)
    candidates: Any = None  # the fields of `Evidence`
    found_probability: Any = None
    missed_mass: Any = None
    bound: Any = None


FIELDS = ("candidates", "found_probability", "missed_mass", "bound")
"""Of the evidence."""


def joined(answers: list[Answer]) -> Answer:
    """Return the answers to successive blocks as one, without rows and weights."""
    xp = array_namespace(answers[0].output)
    names = ["output"] if answers[0].bound is None else ["output", *FIELDS]
    return Answer(**{n: xp.concat([getattr(a, n) for a in answers], axis=0) for n in names})


def answer(
    sketch: Any,
    query: Array,
    signatures: Array,
    visible: Visible,
    near_of: Any,
    *,
    local: Any = None,
    moments: Any = None,
    with_evidence: bool = False,
) -> Answer:
    """Return near keys, heavy keys and tail mixed, for a block of queries (n_q, d).

    `local` is mass, output, count and largest score of keys that were scored elsewhere. `moments`
    stand for the keys that these queries may see, in the place of those of all keys.
    """
    xp, far, scale = array_namespace(query), sketch._far, sketch.scale_of(query)
    q = xp.astype(query, accumulation_dtype(xp, query.dtype), copy=False)
    if sketch.tail == "moments" and moments is None:
        moments = far.moments(sketch)
    above = moments.limit(q, scale) if sketch.tail == "moments" else None
    close = near_of(sketch, query, signatures, visible, above, weigh=with_evidence)
    masses, outputs = [close.mass], [close.output]
    if local is not None:
        masses, outputs = [*masses, local[0]], [*outputs, local[1]]
    heavy_rows = heavy_scores = tail = None
    if sketch.n_heavy:
        heavy_rows, heavy_scores, mass, output = far.heavy_group(sketch, query, scale, visible)
        masses, outputs = [*masses, mass], [*outputs, output]
    if sketch.tail == "moments":
        mass, output = moments.tail(q, scale, below=above)
        masses, outputs = [*masses, mass], [*outputs, output]
    elif sketch.tail == "uniform":
        tail = far.sample_tail(sketch, query, signatures, scale, visible)
        masses, outputs = [*masses, tail.log_mass], [*outputs, tail.output]
    if len(masses) == 1:  # also for weights that do not sum to 1
        output, shares = close.output, xp.ones_like(close.mass)[:, None]
    else:
        shares = softmax_of(xp.stack(masses, axis=-1), axis=-1)  # (n_q, groups)
        output = xp.matmul(shares[:, None, :], xp.stack(outputs, axis=1))[:, 0, :]
    rows, weights = close.rows, close.weights
    if weights is not None:
        weights = weights * shares[:, :1]
        if heavy_rows is not None:
            heavy_share = shares[:, len(masses) - 1 - (sketch.tail != "none"), None]
            rows = xp.concat([rows, heavy_rows], axis=1)
            weights = xp.concat([weights, softmax_of(heavy_scores, -1) * heavy_share], axis=1)
    result = Answer(output, rows, weights)
    if not with_evidence:
        return result
    n_scored = len(masses) - (sketch.tail != "none")
    scored = log_sum(xp.stack(masses[:n_scored], axis=-1))  # near, local and heavy keys
    others = masses[1:n_scored]  # those that are there whatever the tables return
    missed = _missed(sketch, close, scored, others, shares)
    bound = missed * far.diameter(sketch)
    if len(sketch) == 0:
        missed = bound = xp.zeros_like(missed)  # zeros are what attention to no keys is
    elif tail is not None:
        bound = _sampled_bound(masses, outputs, tail, shares)
    elif sketch.tail == "none":  # nothing scored: zeros, which may lie far from all values
        bound = xp.where(scored == -xp.inf, xp.full_like(bound, xp.inf), bound)
    count, probability = close.count, _found_probability(sketch, q, close)
    always = [] if local is None else [local[2:]]  # scored whatever the tables return
    if heavy_scores is not None:
        always.append(count_and_largest(heavy_scores))
    for more, largest in always:
        count = count + more
        probability = xp.where(largest > close.largest, xp.ones_like(probability), probability)
    return replace(
        result,
        candidates=count,
        found_probability=probability,
        missed_mass=missed,
        bound=bound,
    )


def _found_probability(sketch, q, close):
    xp = array_namespace(q)
    nan = xp.full_like(close.mass, xp.nan)
    if not hasattr(sketch.hash, "retrieval_probability"):
        return nan
    some = close.best >= 0
    key = gather(sketch._key.array(), xp.where(some, close.best, xp.zeros_like(close.best)))
    chance = sketch.hash.retrieval_probability(q, xp.astype(key, q.dtype, copy=False))
    return xp.where(some, chance, nan)


def _missed(sketch, close, scored, others, shares):
    """Return the estimate of 1 - M: the share of the tail, or what each candidate stands for."""
    xp = array_namespace(scored)
    if sketch.tail != "none":
        return shares[:, -1]
    missed, nothing = xp.full_like(scored, xp.nan), scored == -xp.inf
    if close.expected is not None:
        expected = log_sum(xp.stack([close.expected, *others], axis=-1))
        # -inf - -inf is NaN: where nothing was scored compare 0 with 0
        safe = (xp.where(nothing, xp.zeros_like(x), x) for x in (scored, expected))
        missed = -xp.expm1(next(safe) - next(safe))
    return xp.where(nothing, xp.ones_like(missed), missed)


def _sampled_bound(masses, outputs, tail, shares):
    """Return how far sampling may move the output: through the tail's own, and its share."""
    xp = array_namespace(shares)
    inner = softmax_of(xp.stack(masses[:-1], axis=-1), axis=-1)[:, None, :]
    scored_output = xp.matmul(inner, xp.stack(outputs[:-1], axis=1))[:, 0, :]
    apart = xp.sqrt(xp.sum((scored_output - tail.output) ** 2, axis=-1))
    near_share = 1 - shares[:, -1]
    # an infinite error of the mass does not matter where nothing else has any
    swing = xp.where(near_share > 0, near_share * tail.mass_error * apart, xp.zeros_like(apart))
    share = shares[:, -1]
    unknown = (share == 0) & (tail.mass_error == xp.inf)  # 0 · ∞: the sample saw nothing unseen
    share = xp.where(unknown, xp.ones_like(share), share)
    return share * (tail.output_error + swing)


def stacked(parts: list[Array], filler: Any) -> Array:
    """Return blocks (n, M) of different M below one another, filled up on the right."""
    xp = array_namespace(parts[0])
    width = max(x.shape[1] for x in parts)
    filled = []
    for x in parts:
        blank = xp.zeros_like(x[:, :1]) if x.shape[1] else xp.sum(x, axis=1, keepdims=True)
        blank = xp.full_like(xp.broadcast_to(blank, (x.shape[0], width - x.shape[1])), filler)
        filled.append(xp.concat([x, blank], axis=1))
    return xp.concat(filled, axis=0)


def gather(x: Array, rows: Array) -> Array:
    """Return the rows of `x` at places of any shape; zeros if it has no rows."""
    xp = array_namespace(x)
    if x.shape[0] == 0:
        shape = (*rows.shape, x.shape[1])
        return xp.zeros(shape, dtype=x.dtype, device=array_api_compat.device(x))
    taken = xp.take(x, xp.reshape(rows, (-1,)), axis=0)
    return xp.reshape(taken, (*rows.shape, x.shape[1]))


def masked(scores: Array, kept: Array) -> Array:
    """Return -inf in the place of every score that is not kept."""
    xp = array_namespace(scores)
    return xp.where(kept, scores, xp.full_like(scores, -xp.inf))


def log_sum(logits: Array) -> Array:
    """Return log Σ exp along the last axis, -inf over nothing."""
    xp = array_namespace(logits)
    top = maximum_of(logits, -1)
    shift = xp.where(top == -xp.inf, xp.zeros_like(top), top)
    total = xp.sum(xp.exp(logits - shift), axis=-1)
    some = total > 0
    logs = xp.log(xp.where(some, total, xp.ones_like(total))) + shift[..., 0]
    return xp.where(some, logs, xp.full_like(logs, -xp.inf))


def count_and_largest(logits: Array) -> tuple[Array, Array]:
    """Return how many of `logits` (n_q, M) are not -inf, and the largest; -inf for none."""
    xp = array_namespace(logits)
    count = xp.astype(xp.count_nonzero(logits > -xp.inf, axis=-1), xp.int64)
    return count, maximum_of(logits, -1)[..., 0]


def first_of_largest(rows: Array, logits: Array) -> tuple[Array, Array]:
    """Return the row of the largest of `logits` (n_q, M) and that score; -1 and -inf for none."""
    xp = array_namespace(logits)
    largest = maximum_of(logits, -1)[..., 0]
    if rows.shape[1] == 0:
        return xp.full_like(largest, -1, dtype=xp.int64), largest
    place = xp.argmax(logits, axis=-1, keepdims=True)
    best = xp.take_along_axis(rows, place, axis=-1)[..., 0]
    return xp.where(largest == -xp.inf, xp.full_like(best, -1), best), largest
