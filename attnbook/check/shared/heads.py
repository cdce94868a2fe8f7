"""Several heads in steps: projections, split, attention, join, W_O. The ways to get them wrong."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine.steps import Way
from attnbook.check.engine.text import Text
from attnbook.check.exercises import single_head as p
from attnbook.check.exercises import split_heads as cut
from attnbook.check.exercises.attention import attention_from_steps
from attnbook.check.shared.scores import hide


def heads_from_steps(s, query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    """Return multi-head attention by the steps `s`."""
    given = (query, key, value, W_Q, W_K, W_V)
    q = s.split_query(s.project_query(*given), n_heads)
    k = s.split_key(s.project_key(*given), n_heads)
    v = s.split_value(s.project_value(*given), n_heads)
    scale = p.scale_of(s.width(query, key, W_Q, W_V, n_heads))
    heads = attention_from_steps(s, q, k, v, mask=mask, scale=scale)
    return s.output(s.join(s.arrange(heads)), W_O)


SPLITS = ("split_query", "split_key", "split_value")


def first_for_all(heads):
    return np.broadcast_to(heads[..., :1, :, :], heads.shape)


def counted(heads):
    return np.expand_dims(np.arange(heads.shape[-3]), (-1, -2))


def flat(heads):
    return heads.reshape(*heads.shape[:-2], -1)


def below_each_other(heads):
    return heads.reshape(*heads.shape[:-3], -1, heads.shape[-1])


def _packed(of: int) -> Callable:
    """Return the projection of query, key or value by all three matrices side by side."""
    return lambda *given: given[of] @ np.concatenate(given[3:], axis=-1)


def _third(of: int) -> Callable:
    """Return the split that takes the query, the key or the value out of each head's columns."""
    return lambda x, n_heads: np.split(cut.heads_of(x, n_heads), 3, axis=-1)[of]


def packed(*inputs: int) -> Way:
    """Return the way that projects these by all matrices, and splits the columns of each head."""
    names = ("query", "key", "value")
    projects = {f"project_{name}": _packed(of) for of, name in zip(inputs, names, strict=True)}
    return {**projects, **{split: _third(of) for of, split in enumerate(SPLITS)}}


def by_the_package(query, key, value, *others, mask=None):
    *matrices, n_heads = others
    weights = attnbook.MultiHeadWeights(*matrices, n_heads=n_heads)
    return attnbook.multi_head_attention(query, key, value, weights, mask)


def sequence_first(axes, query, key, value, *others, mask=None):
    """Return what several heads make of inputs of `axes` and more that are (n, batch, width)."""
    if query.ndim < axes:
        return by_the_package(query, key, value, *others, mask=mask)
    single = query.ndim == 2
    inputs = (x[np.newaxis] if single else x for x in (query, key, value))
    turned = (np.swapaxes(x, 0, 1) for x in inputs)
    output = np.swapaxes(by_the_package(*turned, *others, mask=mask), 0, 1)
    return output[0] if single else output


def hide_in_head(i, scores, mask):
    mine = counted(scores) == i % scores.shape[-3]
    return np.where(mine, hide(scores, mask), scores)


TEXT = Text(globals())

HEADS_MISTAKES = TEXT.mistakes
"""Those between the heads: in the split, the join, the scale and the mask."""
