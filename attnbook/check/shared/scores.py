"""The scores and the weights of attention in steps, and the ways to get the scores wrong."""

import numpy as np

from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft


def transposed(x):
    return np.swapaxes(x, -1, -2)


def dot_products(query, key):
    return query @ transposed(key)


def scale_or(scale, default):
    """Return the scale that is asked for, or this one."""
    return default if scale is None else scale


def hide(scores, mask, number=-np.inf):
    return np.where(mask, scores, number)


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


def causal(scores, surplus=0):
    """Hide what is later than the diagonal, which is shifted by `surplus`."""
    return hide(scores, np.tri(scores.shape[-2], scores.shape[-1], surplus, dtype=bool))


def causal_to_the_last(scores):
    return causal(scores, scores.shape[-1] - scores.shape[-2])


def off_diagonal(scores):
    return np.eye(*scores.shape[-2:]) == 0


def all_but(place, scores):
    return np.arange(scores.shape[-1]) != place % scores.shape[-1]


def unit(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True))


def differences(query, key):
    """Return each query minus each key, (..., n_q, n_k, d_k)."""
    return query[..., :, None, :] - key[..., None, :, :]


TEXT = Text(globals())

SCORE_MISTAKES = TEXT.mistakes
