"""The weights of attention in steps, the ways to get each wrong, and the check of them.

Attention, a learned head, several heads and the gradients take over steps and mistakes.
"""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import normalization as soft
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes, sentences
from attnbook.check.steps import Case, Check, Mistake, Stage, Way, draw, each, renamed, without


@documented
def attention_weights(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the weights of attention, softmax(Q Kᵀ/√d_k).

    Runs `f` on sizes that are all different primes, on a square, on one token, one query and one
    key, on scores of ±1000, in float64 and float32, on batches; and with masks (causal, ragged, a
    row that hides everything, nothing but such rows), a scale and a bias, for those of these
    arguments that it takes.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key)``, by position, on (n_q, d_k) and (n_k, d_k). If it takes
        arguments named `mask` (**True = may attend**), `scale` or `bias`, they are passed by name.
        It returns weights of shape (n_q, n_k). It may be written for one sequence, without
        leading axes.

    Examples
    --------
    >>> from attnbook import check, softmax
    >>> check.attention_weights(lambda q, k: softmax(q @ k.mT)).mistake
    'no scale'
    """
    return run(WEIGHTS, f, time_limit)


# The steps.


def transposed(x):
    return np.swapaxes(x, -1, -2)


def dot_products(query, key):
    return query @ transposed(key)


def one_over_root(query, key, value, scale):
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def hide(scores, mask, number=-np.inf):
    return np.where(mask, scores, number)


def hide_nothing(scores, mask):
    return scores


WEIGHT_STEPS: dict[str, Callable] = {
    "product": dot_products,
    "factor": one_over_root,  # query, key, value or None, the scale asked for
    "rescale": lambda scores, factor: scores * factor,
    "add": lambda scores, bias, factor: scores + bias,
    "see": lambda mask: mask,
    "hide": hide,
    **soft.SOFTMAX_STEPS,
    "after": lambda weights, mask, bias, factor: weights,
}


def weights_from_steps(s, query, key, *, value=None, mask=None, bias=None, scale=None):
    """Return the weights by the steps `s`; a step of a mistake may look at the value."""
    factor = s.factor(query, key, value, scale)
    scores = s.rescale(s.product(query, key), factor)
    if bias is not None:
        scores = s.add(scores, bias, factor)
    if mask is not None:
        mask = s.see(mask)
        scores = s.hide(scores, mask)
    return s.after(soft.softmax_from_steps(s, scores), mask, bias, factor)


# Wrong steps.


def scaled_by(factor: Callable) -> dict[str, Callable]:
    """Return the way whose default scale is `factor(query, key, value)`."""
    return {"factor": lambda q, k, v, scale: factor(q, k, v) if scale is None else scale}


def sized(power: float, array: int = 0, axis: int = -1) -> dict[str, Callable]:
    """Return the way whose scale is a power of the size of query, key or value along `axis`."""
    return scaled_by(lambda *inputs: inputs[array].shape[axis] ** power)


def causal(scores, surplus=0):
    """Hide what is later than the diagonal, which is shifted by `surplus`."""
    return hide(scores, np.tri(scores.shape[-2], scores.shape[-1], surplus, dtype=bool))


def causal_to_the_last(scores):
    return causal(scores, scores.shape[-1] - scores.shape[-2])


def filled_with(number: float) -> dict[str, Callable]:
    return {"hide": lambda scores, mask: hide(scores, mask, number)}


def _after(function: Callable) -> dict[str, Callable]:
    """Return the way that hides weights instead of scores."""
    return {
        "hide": hide_nothing,
        "after": lambda weights, mask, *others: (
            weights if mask is None else function(weights, mask)
        ),
    }


def _unit(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True))


def _cosines(query, key):
    return dot_products(_unit(query), _unit(key))


def _distance(length: Callable) -> Callable:
    return lambda query, key: length(query[..., :, None, :] - key[..., None, :, :])


RENORMALIZED = tuple(
    _after(lambda weights, mask, guard=guard: guard(soft.normalized(weights * mask)))
    for guard in (np.asarray, np.nan_to_num)
)
"""Zero the hidden weights and divide by the rest, with a guard or without."""

_AXIS_1: Way = {"axis": lambda x, axis: 1}
_WIDTHS: tuple[Way, ...] = ({}, sized(-0.5, 0, 1), sized(-0.5, 1, 1))

SCORE_MISTAKES = mistakes(
    """
    no scale: Your weights are those of attention without the 1/√d_k: dot products of d_k terms grow
        like √d_k, and the softmax saturates. Divide the scores by √d_k before the softmax.
    scale by d_k: You divide the scores by d_k; the root is missing. A sum of d_k independent terms
        has standard deviation √d_k, so dividing by d_k makes the weights ever more equal.
    scale multiplied: You multiply the scores by √d_k where they are to be divided by it. The scores
        grow instead of shrinking, and one key takes nearly all the weight.
    root cut to an integer: You divide by the integer part of √d_k, as int(√d_k) or √d_k // 1 does.
        The root of 7 is 2.65, not 2: keep the fraction.
    another power of d_k: You divide the scores by another power of d_k, its fourth root or its
        square, or by √(2 d_k). It is the square root, √d_k.
    scale by √n_k: You divide by √n_k, the root of the number of keys. What makes the scores large
        is the number of terms in a dot product, the width d_k: the last axis of the key.
    scale by √n_q: You divide by √n_q, the root of the number of queries. What makes the scores
        large is the number of terms in a dot product, the width d_k: the last axis of the query.
    scale after the softmax: You apply 1/√d_k to the weights, after the softmax. Then the softmax
        has saturated already, and the rows sum to 1/√d_k. Scale the scores, before the softmax.
    scaled before and after: You apply the factor to the scores and to the weights again. It belongs
        to the scores alone: the rows of the weights must sum to one.
    softmax over the query axis: Your softmax runs over the queries: the columns sum to one. Each
        query shares its attention among the keys, so each row sums to one: the softmax belongs to
        the last axis.
    no softmax: Your weights are the scaled scores themselves. Without the softmax they may be
        negative and do not sum to one, so nothing that they weigh is a mean.
    key not transposed: You multiply query and key without transposing the key. It runs only because
        n_k = d_k here, and mixes features with tokens. A score is the dot product of a query and a
        key, two rows.
    key reshaped: You reshape the key to (d_k, n_k), which has the shape of its transpose and not
        its numbers: they are read row by row. Exchange the two axes: key.mT, or key.T for a matrix.
    query times key, entry by entry: They are multiplied entry by entry. It runs only where the
        shapes fit by chance. A score is a dot product, of each query with each key: query @ key.mT.
    distance for the product: You compare by distance. The scores are dot products, without the two
        lengths.
    cosine similarity: You compare directions only: each query and key is divided by its length
        before the dot product. Plain attention keeps the lengths: with them a model says how sure
        it is.
    causal by itself: Your scores of later keys are hidden though nobody asked for it: a causal mask
        stands inside. Every query may see every key here; hide what the argument `mask` hides, if
        your function takes one, and nothing else.
    scores ignored: Every key gets the same weight, whatever the query asks: the scores have no
        effect.
    sign of the scores: The smallest score gets the largest weight: a minus sign has crept in
        between the dot product and exp. Look also at the order of score and maximum.
    """,
    {
        "no scale": sized(0),
        "scale by d_k": sized(-1),
        "scale multiplied": (sized(0.5), sized(1)),
        "root cut to an integer": scaled_by(lambda q, k, v: 1 / int(math.sqrt(q.shape[-1]))),
        "another power of d_k": (
            sized(-0.25),
            sized(-2.0),
            scaled_by(lambda q, k, v: (2 * q.shape[-1]) ** -0.5),
        ),
        "scale by √n_k": (sized(-0.5, 1, -2), sized(-1, 1, -2)),
        "scale by √n_q": (sized(-0.5, 0, -2), sized(-1, 0, -2)),
        "scale after the softmax": {
            "rescale": lambda scores, factor: scores,
            "after": lambda weights, mask, bias, factor: weights * factor,
        },
        "scaled before and after": {"after": lambda weights, mask, bias, factor: weights * factor},
        "softmax over the query axis": (
            *each("axis", lambda x, axis: -2, lambda x, axis: 0),
            {"total": soft.along(np.sum, -2)},
        ),
        "no softmax": {"finish": lambda weights, x, axis: x},
        "key not transposed": {"product": lambda q, k: q @ k},
        "key reshaped": {"product": lambda q, k: q @ k.reshape(transposed(k).shape)},
        "query times key, entry by entry": each(
            "product", lambda q, k: q * k, lambda q, k: q * transposed(k)
        ),
        "distance for the product": each(
            "product",
            _distance(lambda d: -np.sum(d**2, axis=-1)),
            _distance(lambda d: -np.sqrt(np.sum(d**2, axis=-1))),
            _distance(lambda d: np.sum(d**2, axis=-1)),
            _distance(lambda d: -np.sum(np.abs(d), axis=-1)),
        ),
        "cosine similarity": ({"product": _cosines}, {"product": _cosines, **sized(0)}),
        "causal by itself": (
            *each(
                "rescale",
                lambda scores, factor: causal(scores * factor),
                lambda scores, factor: causal_to_the_last(scores * factor),
            ),
            {"after": lambda weights, *others: np.tril(weights)},
        ),
        "scores ignored": {"product": lambda q, k: 0 * dot_products(q, k)},
        "sign of the scores": (
            {"product": lambda q, k: -dot_products(q, k)},
            {"exponents": lambda x, axis: -x},
            {"power": lambda x: np.exp(-x)},
        ),
    },
)

_OF_WEIGHTS = sentences(
    """
    one sum for all: All weights together sum to one: you divide by the sum over all queries. Each
        query shares out one unit of attention, so each row needs its own sum.
    not normalised: Your weights are exponentials that nobody divided by their sum, so the rows do
        not sum to one. Divide each row by its sum.
    logarithm returned: You use the logarithm of the softmax as weights. They are negative; their
        exponentials sum to one, not they themselves.
    sigmoid: You apply the sigmoid to each score on its own, so the keys do not compete and a row
        does not sum to one. Attention divides by the sum over the keys.
    hard maximum: All weight goes to the best key, and the others get none: a hard look-up.
        Attention is the soft one: every key gets a share, so that gradients can flow.
    keepdims forgotten: The axis that you reduce is gone, so row i is combined with the maximum or
        the sum of row j. It runs only where n_q = n_k, or with one query. Pass keepdims=True.
    """
)
"""What is said of the mistakes of a softmax here."""

BATCH_MISTAKES = mistakes(
    """
    all axes reversed: On a batch, .T reverses all axes: batch and tokens change places, and where
        the sizes fit by chance the numbers are wrong. Exchange the last two axes only.
    softmax over axis 1 of a batch: For a matrix axis 1 is the axis of the keys, for a batch it is
        that of the queries. Write −1, which is the last axis of any array.
    width from shape[1]: You read d_k from shape[1]. For a batch that is the number of tokens. Read
        it from shape[-1], which is the width of any array.
    """,
    {
        "all axes reversed": tuple(
            {"product": lambda query, key: query @ key.T, **axis, **width}
            for axis in ({}, _AXIS_1)
            for width in _WIDTHS
        ),
        "softmax over axis 1 of a batch": tuple({**_AXIS_1, **width} for width in _WIDTHS),
        "width from shape[1]": _WIDTHS[1:],
    },
)
"""They show on a batch only and come together; the first is told first."""

MASK_MISTAKES = mistakes(
    """
    mask inverted: Your mask is inverted: it hides what it should show. Here True means that the
        query may attend to the key. Other libraries have it the other way round.
    mask ignored: Your function takes a mask and does not use it: every query attends to every key.
    mask multiplies the scores: You multiply the scores by the mask, so a hidden key has score 0.
        exp(0) is 1, not 0, and the key still gets weight. A hidden score must be −∞.
    mask added to the scores: You add the mask to the scores, where True counts as 1 and False as 0:
        a small push, and nothing is hidden. A hidden score must be −∞.
    mask transposed: Your mask is transposed: its rows are the queries and its columns the keys.
        With a causal mask this shows each query the future and hides the past.
    mask after the softmax: You set hidden weights to zero after the softmax, so what they had is
        lost and the rows no longer sum to one. Hide the scores, with −∞, before the softmax.
    −∞ after the softmax: You set hidden weights to −∞, after the softmax. −∞ belongs to the scores:
        exp makes zero of it, and the softmax after that.
    mask after the exponential: You take exp of all scores, hidden ones too, and zero the hidden
        ones afterwards. A hidden score far above the others makes every visible exponential
        underflow, and 0/0 is NaN, or zeros if you guard it. Hide the scores, with −∞, before the
        maximum.
    mask with a large negative number: You hide scores with a large negative number. Scores that are
        lower still are outbid by it, and the hidden keys win. Only −∞ is below every score.
    0 times infinity: You multiply −∞ by a mask of 0 and 1. 0 · ∞ is NaN, so the scores that should
        stay are lost. Choose instead of multiplying: where(mask, scores, −∞).
    +∞ for hidden scores: You hide scores with +∞. The largest score wins, so the hidden keys take
        everything, and ∞/∞ is NaN. A hidden score must be −∞.
    empty row NaN: A query that may attend to nothing gives NaN: its scores are all −∞, and −∞ −
        (−∞) and 0/0 are NaN. Such a row must be zero: shift it by 0 instead of its maximum, divide
        it by 1.
    empty row uniform: A query that may attend to nothing attends to everything: its hidden scores
        are all equal, so the softmax spreads the weight evenly. Such a row must be zero.
    mask that hides everything dropped: A mask without a single True is treated as no mask, as with
        `mask if mask.any() else None`: every query attends to all keys. All rows must be zero.
    empty row sees everything: A query that may attend to nothing attends to every key, as if it had
        no mask: what was to be hidden leaks. Such a row must be zero.
    """,
    {
        "mask inverted": (
            {"see": lambda mask: ~mask},
            *each("hide", lambda s, mask: s + mask * -1e9, lambda s, mask: hide(s, ~mask, -1e9)),
        ),
        "mask ignored": {"hide": hide_nothing},
        "mask multiplies the scores": {"hide": lambda s, mask: s * mask},
        "mask added to the scores": each(
            "hide", lambda s, mask: s + mask, lambda s, mask: s - mask, lambda s, mask: s - ~mask
        ),
        "mask transposed": {"see": transposed},
        "mask after the softmax": _after(lambda weights, mask: weights * mask),
        "−∞ after the softmax": _after(hide),
        "mask after the exponential": RENORMALIZED,
        "mask with a large negative number": filled_with(-1e9),
        "0 times infinity": each(
            "hide",
            lambda s, mask: s + (1.0 - mask) * -np.inf,
            lambda s, mask: s + mask * -np.inf,
        ),
        "+∞ for hidden scores": filled_with(np.inf),
        "empty row NaN": {"divide": soft.unguarded},
        "empty row uniform": filled_with(-1e30),
        "mask that hides everything dropped": {"see": lambda mask: mask if mask.any() else ~mask},
        "empty row sees everything": {
            "see": lambda mask: mask | ~np.any(mask, axis=-1, keepdims=True)
        },
    },
)

OPTION_MISTAKES = mistakes(
    """
    scale ignored: Your function takes `scale` and does not use it. It takes the place of 1/√d_k.
    scale on top of 1/√d_k: You apply both. A scale that is given takes the place of 1/√d_k.
    scale divides: You divide the scores by `scale`. It is the factor itself, by default 1/√d_k.
    bias ignored: Your function takes `bias` and does not use it. Add it to the scores.
    bias before the scale: You add the bias before you scale, so it is scaled as well. Scale first.
    bias subtracted: You subtract the bias from the scores. It is added.
    bias multiplies the scores: You multiply the scores by the bias. It is added.
    bias after the softmax: You add the bias to the weights: rows no longer sum to one. Add it to
        the scores.
    """,
    {
        "scale ignored": {"factor": lambda q, k, v, scale: one_over_root(q, k, v, None)},
        "scale on top of 1/√d_k": {
            "factor": lambda q, k, v, scale: q.shape[-1] ** -0.5 * (1 if scale is None else scale)
        },
        "scale divides": {"factor": lambda q, k, v, scale: 1 / (scale or math.sqrt(q.shape[-1]))},
        "bias ignored": {"add": lambda s, bias, factor: s},
        "bias before the scale": {"add": lambda s, bias, factor: s + bias * factor},
        "bias subtracted": {"add": lambda s, bias, factor: s - bias},
        "bias multiplies the scores": {"add": lambda s, bias, factor: s * bias},
        "bias after the softmax": {
            "add": lambda s, bias, factor: s,
            "after": lambda w, mask, bias, factor: w if bias is None else w + bias,
        },
    },
)
"""Those made with `scale` and `bias`."""

_NOT_HERE = ("sign of the scores", "wrong axis", "axis 1 of a batch", "axis ignored")
WEIGHT_MISTAKES = (
    *SCORE_MISTAKES,
    *renamed(
        without(soft.NORMALIZATION_MISTAKES, *_NOT_HERE),
        {name: (name, message) for name, message in _OF_WEIGHTS.items()},
    ),
    *BATCH_MISTAKES,
    *MASK_MISTAKES,
)
"""What every attention can get wrong in its weights, the more plausible first."""

DOT_ON_A_BATCH = (
    "np.dot on a batch",
    "np.dot of two batches multiplies every matrix of one with every matrix of the other. Use @, "
    "which takes them in pairs.",
)
DOT_PRODUCT = {"product": lambda query, key: np.dot(query, transposed(key))}


# The cases, which other checks use too.

SIZES = (
    (3, 3, 3, 3),
    (2, 5, 3, 7),
    (5, 2, 7, 3),
    (1, 1, 3, 2),
    (1, 5, 2, 3),
    (5, 1, 3, 2),
    (3, 3, 5, 2),
    (2, 3, 5, 5),
    (1, 2, 3, 1),
)
"""n_q, n_k, d_k, d_v: a square, primes in both orders, one token, query or key, a small one."""

CAUSAL = np.tril(np.ones((5, 5), dtype=bool))
RAGGED = np.array([[True, False, True], [False, True, True]])
FLIPPED = np.array([[False, False, True], [True, False, False], [False, True, True]])
EMPTY = np.array([[True, False, True], [False, False, False]])
NOTHING = np.zeros((2, 3), dtype=bool)
"""Masks: none is its own transpose; the last two have rows that hide every key."""

# visible scores are −4e9, hidden ones +4e9; every product is exact
OUTBID_MASK = np.array([[True, True, False], [False, False, True]])
OUTBID = {
    "query": np.array([[2.0**33, 0.0, 0.0, 0.0], [-(2.0**33), 0.0, 0.0, 0.0]]),
    "key": np.array([[-1.0, 1.0, 2.0, 0.0], [-1.0, 0.0, 1.0, 3.0], [1.0, 5.0, 1.0, 1.0]]),
    "value": draw(4, 3, 2),
}
# scores near 1024, −1024 and 1; every product is exact, also in float32
LARGE = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [-2048.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]),
    "key": np.array([[1024, 0, 3072, 512], [1025, 1024, 2048, 0], [1023, 2048, 512, 4096]]) / 1024,
    "value": draw(4, 3, 2),
}
# scores 1024, 0 and −1024, in both orders
SPREAD = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [0.0, 2048.0, 0.0, 0.0]]),
    "key": np.array([[1.0, -1.0, 3.0, 2.0], [0.0, 0.0, 1.0, 5.0], [-1.0, 1.0, 2.0, 0.0]]),
    "value": draw(4, 3, 2),
}


def arrays(n_q, n_k, d_k, d_v, *, leading=(), dtype="float64"):
    """Return query, key and value of these sizes, the same ones every time."""
    return {
        "query": draw(2, *leading, n_q, d_k).astype(dtype),
        "key": draw(3, *leading, n_k, d_k).astype(dtype),
        "value": draw(4, *leading, n_k, d_v).astype(dtype),
    }


def attention_stages(
    make: Callable, through: Callable, sizes: tuple, batches: tuple, *masked: tuple
) -> tuple[Stage, ...]:
    """Return the stages of any attention, whose arguments ``make(*sizes, leading, dtype)`` draws.

    `through` makes them of given query, key and value. Each batch is sizes and leading axes, each
    of `masked` a mask and sizes, of which the first are those of `RAGGED`.
    """
    hidden = tuple(Case(make(*sizes), {"mask": mask}) for mask, sizes in masked)
    return (
        Stage(tuple(Case(make(*some)) for some in sizes)),
        Stage(tuple(Case(make(*some, dtype="float32")) for some in sizes[:2])),
        Stage((Case(through(LARGE)),), errors=soft.LARGE_ERRORS),
        Stage((Case(through(SPREAD)),), errors=soft.SPREAD_ERRORS),
        Stage(
            tuple(Case(make(*some, leading=leading)) for some, leading in batches),
            beyond="a batch (leading axes)",
        ),
        Stage(hidden, option="mask"),
        Stage((Case(through(OUTBID), {"mask": OUTBID_MASK}),), option="mask"),
        Stage((Case(hidden[0].arguments, {"mask": EMPTY}),), option="mask"),
        Stage((Case(hidden[0].arguments, {"mask": NOTHING}),), option="mask"),
    )


def option_stages(make: Callable) -> tuple[Stage, ...]:
    """Return the stages for a scale and a bias."""
    options = {"scale": 0.25, "bias": draw(5, 2, 3)}
    return tuple(Stage((Case(make(2, 3, 5, 7), {o: x}),), option=o) for o, x in options.items())


# in the last two batches .T fits by chance
BATCHES = (((2, 3, 5, 7), (11,)), ((3, 3, 3, 3), (3,)), ((5, 3, 3, 3), (3,)))
MASKED = ((RAGGED, (2, 3, 5, 7)), (FLIPPED, (3, 3, 2, 1)), (CAUSAL, (5, 5, 3, 2)))


def stages_of(make: Callable, through: Callable) -> tuple[Stage, ...]:
    """Return the stages of plain attention, and of its weights."""
    return (
        *attention_stages(make, through, SIZES, BATCHES, *MASKED),
        *option_stages(make),
        Stage(
            (Case(make(2, 3, 5, 7, leading=(11,)), {"mask": RAGGED}),),
            option="mask",
            beyond="a batch (leading axes) with a mask",
        ),
    )


def _without_value(inputs):
    return {name: inputs[name] for name in ("query", "key")}


WEIGHTS = Check(
    name="attention_weights",
    parameters=("query", "key"),
    results={"weights": "(..., n_q, n_k)"},
    reference=attnbook.attention_weights,
    compute=weights_from_steps,
    steps=WEIGHT_STEPS,
    variants=soft.VARIANTS,
    stages=stages_of(lambda *sizes, **how: _without_value(arrays(*sizes, **how)), _without_value),
    mistakes=(
        Mistake(
            "transposed",
            "Your weights are transposed: one row for each key. Each query needs a row of its own, "
            "of shape (n_q, n_k): the dot products are Q Kᵀ, in this order.",
            (
                {"product": lambda q, k: dot_products(k, q)},
                {"after": lambda weights, *others: transposed(weights)},
            ),
        ),
        Mistake(*DOT_ON_A_BATCH, (DOT_PRODUCT,)),
        *WEIGHT_MISTAKES,
        *OPTION_MISTAKES,
    ),
    properties=(soft.rows_sum_to_one, soft.weights_are_positive),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
    legible=True,
)
