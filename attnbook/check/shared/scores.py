"""The scores and the weights of attention in steps, and the ways to get the scores wrong."""

import math
from collections.abc import Callable

import numpy as np

from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft


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


TEXT = Text(globals())

SCORE_MISTAKES = TEXT.mistakes
