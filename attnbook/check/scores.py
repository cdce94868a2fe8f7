"""The scores and the weights of attention in steps, and the ways to get the scores wrong."""

import math
from collections.abc import Callable

import numpy as np

from attnbook.check import normalization as soft
from attnbook.check.sentences import mistakes
from attnbook.check.steps import each


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


def _off_diagonal(scores):
    return np.eye(*scores.shape[-2:]) == 0


def _all_but(place, scores):
    return np.arange(scores.shape[-1]) != place % scores.shape[-1]


def _unit(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True))


def _cosines(query, key):
    return dot_products(_unit(query), _unit(key))


def _distance(length: Callable) -> Callable:
    return lambda query, key: length(query[..., :, None, :] - key[..., None, :, :])


SCORE_MISTAKES = mistakes(
    """
    no scale: Your weights are those of attention without the 1/√d_k: dot products of d_k terms grow
        like √d_k, and the softmax saturates. Divide the scores by √d_k before the softmax.
    scale by d_k: You divide the scores by d_k: the root is missing, or you divide by it twice. A
        sum of d_k independent terms has standard deviation √d_k, so dividing by d_k makes the
        weights ever more equal.
    scale multiplied: You multiply the scores by √d_k where they are to be divided by it. The scores
        grow instead of shrinking, and one key takes nearly all the weight.
    root cut to an integer: You divide by the integer part of √d_k, as int(√d_k) or √d_k // 1 does.
        The root of 7 is 2.65, not 2: keep the fraction.
    another power of d_k: You divide the scores by another power of d_k, such as its fourth root or
        its square, or by √(2 d_k) or √(d_k ± 1). It is the square root, √d_k.
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
    own place hidden: No query sees the key at its own place: the diagonal of the scores or of the
        weights is hidden, though nobody asked for it. Every query may see every key here.
    scores ignored: Every key gets the same weight, whatever the query asks: the scores have no
        effect.
    sign of the scores: The smallest score gets the largest weight: a minus sign has crept in
        between the dot product and exp. Look also at the order of score and maximum.
    one key left out: The first key gets no weight, or the last: a loop or a slice leaves it out.
        Every query may see every key.
    """,
    {
        "no scale": sized(0),
        "scale by d_k": sized(-1),
        "scale multiplied": (sized(0.5), sized(1)),
        "root cut to an integer": scaled_by(lambda q, k, v: 1 / int(math.sqrt(q.shape[-1]))),
        "another power of d_k": (
            sized(-0.25),
            sized(-2.0),
            *map(sized, (-1 / 3, -0.75, -1.5)),
            scaled_by(lambda q, k, v: (2 * q.shape[-1]) ** -0.5),
            scaled_by(lambda q, k, v: (q.shape[-1] + 1) ** -0.5),
            scaled_by(lambda q, k, v: max(q.shape[-1] - 1, 1) ** -0.5),
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
            {"after": lambda weights, *others: weights / np.sum(weights, -2, keepdims=True)},
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
        "own place hidden": (
            {"rescale": lambda scores, factor: hide(scores * factor, _off_diagonal(scores), -1e9)},
            {"rescale": lambda scores, factor: hide(scores * factor, _off_diagonal(scores))},
            {"after": lambda weights, *others: weights * _off_diagonal(weights)},
        ),
        "one key left out": tuple(
            way
            for i in (-1, 0)
            for way in (
                {"exponents": lambda x, axis, i=i: hide(x, _all_but(i, x))},
                {"after": lambda weights, *others, i=i: weights * _all_but(i, weights)},
                {"exponents": lambda x, axis, i=i: hide(x, _all_but(i, x) | (x.shape[-1] == 1))},
            )
        ),
        "scores ignored": {"product": lambda q, k: 0 * dot_products(q, k)},
        "sign of the scores": (
            {"product": lambda q, k: -dot_products(q, k)},
            {"exponents": lambda x, axis: -x},
            {"power": lambda x: np.exp(-x)},
        ),
    },
)
