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


def _first_for_all(x, n_heads):
    heads = cut.heads_of(x, n_heads)
    return np.broadcast_to(heads[..., :1, :, :], heads.shape)


def _counted(heads):
    return np.expand_dims(np.arange(heads.shape[-3]), (-1, -2))


def _same(x, *others):
    return x


def _flat(heads):
    return heads.reshape(*heads.shape[:-2], -1)


def _groups_in_order(heads):
    return heads.reshape(*heads.shape[:-3], -1, heads.shape[-1])


UNSPLIT: Way = {**dict.fromkeys(SPLITS, _same), "join": _same}
IN_GROUPS: Way = {**dict.fromkeys(SPLITS, cut.along_the_sequence), "join": _groups_in_order}


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


def _ended(arrange: Callable, output: Callable) -> dict[str, Callable]:
    """Return the way that makes (..., n, any width) of the heads, and its output of that."""
    return {"arrange": arrange, "join": _same, "output": output}


def _rows_of_first(x, W_O):
    return x @ W_O[: x.shape[-1]]


def _rows_of_last(x, W_O):
    return x @ W_O[-x.shape[-1] :]


def _in_place_of_all(reduce: Callable) -> dict[str, Callable]:
    """Return the way in which `reduce(heads)`, (..., 1, n, d), stands in the place of each."""
    return {"arrange": lambda heads: np.broadcast_to(reduce(heads), heads.shape)}


def _merged(reduce: Callable) -> tuple[Way, ...]:
    """Return the ways to make one of all heads, with none, some or all rows of W_O."""
    return (
        _ended(lambda heads: reduce(heads, axis=-3), _same),
        _ended(lambda heads: reduce(heads, axis=-3), _rows_of_first),
        _in_place_of_all(lambda heads: reduce(heads, axis=-3, keepdims=True)),
    )


def by_the_package(query, key, value, *others, mask=None):
    *matrices, n_heads = others
    weights = attnbook.MultiHeadWeights(*matrices, n_heads=n_heads)
    return attnbook.multi_head_attention(query, key, value, weights, mask)


def _sequence_first(axes: int) -> dict[str, Callable]:
    """Return the way that takes inputs of `axes` and more to be (n, batch, width)."""

    def compute(query, key, value, *others, mask=None):
        if query.ndim < axes:
            return by_the_package(query, key, value, *others, mask=mask)
        single = query.ndim == 2
        inputs = (x[np.newaxis] if single else x for x in (query, key, value))
        turned = (np.swapaxes(x, 0, 1) for x in inputs)
        output = np.swapaxes(by_the_package(*turned, *others, mask=mask), 0, 1)
        return output[0] if single else output

    return {"compute": compute}


def _hidden_in(i: int) -> dict[str, Callable]:
    def hide_one(scores, mask):
        mine = np.expand_dims(np.arange(scores.shape[-3]) == i % scores.shape[-3], (-1, -2))
        return np.where(mine, hide(scores, mask), scores)

    return {"hide": hide_one}


TEXT = Text(globals())

HEADS_MISTAKES = TEXT.mistakes
"""Those between the heads: in the split, the join, the scale and the mask."""
