"""Answer queries from near keys of the tables, from heavy keys, and from a tail for the rest.

Each of the three is a group of keys. Its mass is the logarithm of its sum of exponentials, and its
output is its weighted mean value. A softmax over the masses mixes the outputs.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.engines import Reference
from attnbook.sketch.logits import count_and_largest, log_sum
from attnbook.sketch.near_keys import NearKeys
from attnbook.sketch.state import SketchState, gather
from attnbook.sketch.summary import (
    Group,
    diameter,
    group_of,
    heavy_rows,
    moments_of,
    sample_tail,
)
from attnbook.sketch.visible import EVERYTHING, Visible


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""For each query, how much of the context the answer rests on.

    Attributes
    ----------
    n_keys : int
        The number of keys in the sketch. With none the output is zeros, as exact attention over no
        keys is.
    candidates : int64 array, shape (n_q,)
        How many different keys were scored one by one: heavy keys, keys in the window, and keys
        from the tables (with the tail ``"moments"`` only those above its limit).
    found_probability : array, shape (n_q,)
        The chance, over the draw of the tables, to find the scored key with the largest weight. It
        is 1 for a heavy key or one in the window. A small chance says that the key was found by
        luck and that others like it were missed. NaN where nothing was scored or the hash knows no
        probabilities.
    missed_mass : array, shape (n_q,)
        An estimate of 1 − A_R, the share of the exact softmax on keys that were not scored. It
        comes from the tail if there is one, and otherwise from the candidates, each of which stands
        for 1 / P keys like it; keys unlike all of them are in no estimate. It is 1 where there are
        keys and none was scored, and NaN where the hash knows no probabilities.
    bound : array, shape (n_q,)
        :math:`(1 - A_R)\, D_V` with the estimate of A_R. D_V is the diagonal of the box around all
        values. If the estimate is right, the output of ``"union"`` without a tail is no farther
        from the exact one (claim 29); importance weights and other tails can err by more. With the
        tail ``"uniform"`` it is a confidence bound instead. Infinity where nothing was scored.
    """

    n_keys: int
    candidates: Annotated[Array, "n_q"]
    found_probability: Annotated[Array, "n_q"]
    missed_mass: Annotated[Array, "n_q"]
    bound: Annotated[Array, "n_q"]

    @classmethod
    def of_nothing(cls, n_keys: int, zeros: Array) -> "Evidence":
        """Return that of answers of zeros, where there was nothing to score."""
        xp = array_namespace(zeros)
        count, unknown = xp.astype(zeros, xp.int64), xp.full_like(zeros, xp.nan)
        return cls(n_keys, count, unknown, zeros, zeros)


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a block of queries, with its weights if the engine keeps the rows."""

    output: Array  # (n_q, d_v)
    rows: Any = None  # int64 (n_q, M), -1 where there is none
    weights: Any = None  # (n_q, M)
    evidence: Any = None  # the arrays of `Evidence`, in its order


def check_query(state: SketchState, query: Array) -> None:
    """Raise unless `query` is finite and fits the keys."""
    check_floats(query=query)
    state.check_rows("query", query, "n_q, d", state.key)
    hashed = state.index is not None and state.engine.compiled  # then the hash looks at it
    if not hashed and not state.engine.all_finite(query):
        raise ValueError("query must be finite, got NaN or infinity")


def answers(
    state: SketchState,
    query: Array,
    visible: Visible = EVERYTHING,
    with_evidence: bool = False,
    *,
    engine: Reference | None = None,
    local: Group | None = None,
    moments: Any = None,
) -> list[Answer]:
    """Return the answers to blocks of queries (n_q, d), from `engine` if it is given.

    `local` is a group of keys that were scored for all queries.
    `moments` are those of the keys that these queries may see; by default those of all keys.
    """
    engine = state.engine if engine is None else engine
    signatures = state.engine.signatures(query, of_queries=True)
    return [
        answer(
            state,
            query[part, :],
            signatures[part, ...],
            visible.of(part),
            engine,
            local=None if local is None else Group(*(x[part, ...] for x in local)),
            moments=moments,
            with_evidence=with_evidence,
        )
        for part in engine.blocks(state, signatures, with_evidence)
    ]


def joined(parts: list[Answer]) -> Answer:
    """Return the answers to successive blocks as one, without rows and weights."""
    xp = array_namespace(parts[0].output)
    output = xp.concat([a.output for a in parts], axis=0)
    if parts[0].evidence is None:
        return Answer(output)
    fields = zip(*(a.evidence for a in parts), strict=True)
    return Answer(output, evidence=[xp.concat(list(blocks), axis=0) for blocks in fields])


def stacked(parts: list[Array], filler: Any) -> Array:
    """Return blocks (n, M) of different widths M as one array, padded with `filler`."""
    xp = array_namespace(parts[0])
    width = max(x.shape[1] for x in parts)
    filled = []
    for x in parts:
        blank = xp.zeros_like(x[:, :1]) if x.shape[1] else xp.sum(x, axis=1, keepdims=True)
        blank = xp.full_like(xp.broadcast_to(blank, (x.shape[0], width - x.shape[1])), filler)
        filled.append(xp.concat([x, blank], axis=1))
    return xp.concat(filled, axis=0)


def answer(
    state: SketchState,
    query: Array,
    signatures: Array,
    visible: Visible,
    engine: Reference,
    *,
    local: Group | None,
    moments: Any,
    with_evidence: bool,
) -> Answer:
    """Return the mix of near keys, heavy keys and tail for a block of queries (n_q, d)."""
    xp, settings = array_namespace(query), state.settings
    scale, has_tail = settings.scale_of(query), settings.tail != "none"
    q = to_accumulate(query)
    if settings.tail == "moments" and moments is None:
        moments = moments_of(state)
    above = moments.limit(q, scale) if settings.tail == "moments" else None
    close = engine.near(state, query, signatures, visible, above, with_evidence)
    always = [] if local is None else [local]
    if settings.n_heavy:
        always.append(group_of(state, query, heavy_rows(state), visible))
    masses = [close.mass, *(group.mass for group in always)]
    outputs = [close.output, *(group.output for group in always)]
    tail = None
    if settings.tail == "moments":
        mass, output = moments.tail(q, scale, below=above)
        masses, outputs = [*masses, mass], [*outputs, output]
    elif settings.tail == "uniform":
        tail = sample_tail(state, query, signatures, visible)
        masses, outputs = [*masses, tail.log_mass], [*outputs, tail.output]
    if len(masses) == 1:  # also for weights that do not sum to 1
        output, shares = close.output, xp.ones_like(close.mass)[:, None]
    else:
        shares = softmax_of(xp.stack(masses, axis=-1), axis=-1)  # (n_q, groups)
        output = xp.matmul(shares[:, None, :], xp.stack(outputs, axis=1))[:, 0, :]
    rows = weights = evidence = None
    if close.weights is not None:
        rows = xp.concat([close.rows, *(group.rows for group in always)], axis=1)
        parts = [close.weights, *(softmax_of(group.scores, -1) for group in always)]
        parts = [part * shares[:, i, None] for i, part in enumerate(parts)]
        weights = xp.concat(parts, axis=1)
    if with_evidence:
        n_scored = len(masses) - has_tail
        scored = log_sum(xp.stack(masses[:n_scored], axis=-1))  # near keys and the groups
        missed = shares[:, -1] if has_tail else _missed(close, scored, masses[1:])
        bound = missed * diameter(state)
        if state.n == 0:
            missed = bound = xp.zeros_like(missed)  # zeros are what attention to no keys is
        elif tail is not None:
            bound = _sampled_bound(masses, outputs, tail, shares)
        elif not has_tail:  # nothing scored: zeros, which may lie far from all values
            bound = xp.where(scored == -xp.inf, xp.full_like(bound, xp.inf), bound)
        count, probability = close.count, found_probability_of(state, q, close)
        for group in always:
            more, largest = count_and_largest(group.scores)
            count = count + more
            probability = xp.where(largest > close.largest, xp.ones_like(probability), probability)
        evidence = (count, probability, missed, bound)
    return Answer(output, rows, weights, evidence)


def found_probability_of(state: SketchState, q: Array, close: NearKeys) -> Array:
    """Return the chance that the best of the near keys would be found, NaN where there is none."""
    xp = array_namespace(q)
    nan = xp.full_like(close.mass, xp.nan)
    if not state.settings.knows_chances:
        return nan
    some = close.best >= 0
    key = gather(state.key.array(), xp.where(some, close.best, xp.zeros_like(close.best)))
    key = xp.astype(key, q.dtype, copy=False)
    return xp.where(some, state.engine.retrieval_probability(q, key), nan)


def _missed(close: NearKeys, scored: Array, others: list[Array]) -> Array:
    """Return the estimate of 1 - A_R without a tail, from what each candidate stands for."""
    xp = array_namespace(scored)
    missed, nothing = xp.full_like(scored, xp.nan), scored == -xp.inf
    if close.expected is not None:
        expected = log_sum(xp.stack([close.expected, *others], axis=-1))
        # -inf - -inf is NaN: where nothing was scored compare 0 with 0
        safe = (xp.where(nothing, xp.zeros_like(x), x) for x in (scored, expected))
        missed = -xp.expm1(next(safe) - next(safe))
    return xp.where(nothing, xp.ones_like(missed), missed)


def _sampled_bound(masses, outputs, tail, shares):
    """Return how far sampling may move the output: by the tail's output and by its share."""
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
