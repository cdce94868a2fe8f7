"""The mistakes that are made between the heads: in the split, the join, the scale and the mask."""

import math
from collections.abc import Callable

import numpy as np

from attnbook.check import _recipes as r
from attnbook.check._model import Mistake
from attnbook.check._recipes import RIGHT, Recipe, swap
from attnbook.check._split_heads import (
    BARE_RESHAPE,
    INTERLEAVED,
    along_the_sequence,
    bare_join,
    bare_reshape,
    heads_of,
    interleaved,
    interleaved_join,
    joined,
    not_swapped,
    reversed_heads,
    swapped_from_the_front,
)


def _right(x, y, z, a, b, c):
    return x @ a, y @ b, z @ c


def heads_model(
    recipe: Recipe = RIGHT,
    project: Callable = _right,
    split: Callable | tuple[Callable, ...] = heads_of,
    join: Callable = joined,
    finish: Callable = np.matmul,
    width: Callable | None = None,
) -> Callable:
    """Return multi-head attention with some of its steps replaced.

    `split` is one for queries, keys and values, or a triple; `width` replaces d_k in the scale.
    """
    splits = split if isinstance(split, tuple) else (split, split, split)

    def model(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        projected = project(query, key, value, W_Q, W_K, W_V)
        q, k, v = (cut(x, n_heads) for cut, x in zip(splits, projected, strict=True))
        scale = None if width is None else 1 / math.sqrt(width(query, key, W_Q, W_V, n_heads))
        return finish(join(recipe.output(q, k, v, mask=mask, scale=scale)), W_O)

    return model


def _without_heads(width: Callable | None = None) -> Callable:
    def split(x, n_heads):
        return x

    return heads_model(split=split, join=lambda x: x, width=width)


def _from_heads(end: Callable) -> Callable:
    """Return the model that makes its output from the heads (..., h, n_q, d_v) and W_O."""
    return heads_model(join=lambda heads: heads, finish=end)


def _without_output_matrix(x, W_O):
    return x


def _rows_of_first(x, W_O):
    return x @ W_O[: x.shape[-1]]


def _rows_of_last(x, W_O):
    return x @ W_O[-x.shape[-1] :]


def _one_for_all(i: int) -> Callable:
    """Return the join in which head `i` stands in the place of every head."""
    return lambda heads: joined(np.broadcast_to(heads[..., [i], :, :], heads.shape))


def _groups_in_order(x):
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _sequence_first(axes: int) -> Callable:
    """Return the model for (n, batch, width), which it takes inputs of `axes` and more to be."""

    def model(query, key, value, *others, mask=None):
        if query.ndim < axes:
            return heads_model()(query, key, value, *others, mask=mask)
        single = query.ndim == 2
        inputs = (x[np.newaxis] if single else x for x in (query, key, value))
        turned = (np.swapaxes(x, 0, 1) for x in inputs)
        output = np.swapaxes(heads_model()(*turned, *others, mask=mask), 0, 1)
        return output[0] if single else output

    return model


def _weights_averaged(end: Callable) -> Callable:
    def model(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        q, k = heads_of(query @ W_Q, n_heads), heads_of(key @ W_K, n_heads)
        weights = np.mean(RIGHT.weights(q, k, mask=mask), axis=-3)
        return end(weights @ (value @ W_V), W_O)

    return model


def _hidden_in(i: int) -> Recipe:
    def hide(scores, mask):
        mine = np.expand_dims(np.arange(scores.shape[-3]) == i % scores.shape[-3], (-1, -2))
        return np.where(mine, r.hide(scores, mask), scores)

    return swap(hide=hide)


def _hidden_by(see: Callable) -> Callable:
    return heads_model(swap(hide=lambda scores, mask: r.hide(scores, see(mask))))


def _mask_without_axis_of_heads(mask):
    return np.squeeze(mask, -3) if mask.ndim > 3 else mask


HEADS_MISTAKES = (
    Mistake(
        "bare reshape in the split",
        BARE_RESHAPE,
        (
            heads_model(split=bare_reshape),
            *(
                heads_model(split=tuple(bare_reshape if i in wrong else heads_of for i in range(3)))
                for wrong in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2))
            ),
        ),
    ),
    Mistake(
        "bare reshape in the join",
        "You reshape (h, n, d) to (n, h·d) at once. The shape is right and the numbers are not: a "
        "row of the result holds several tokens of one head. Exchange the axes of heads and tokens "
        "first, to (n, h, d), and then reshape.",
        (heads_model(join=bare_join),),
    ),
    Mistake(
        "bare reshape in both",
        "You reshape to (h, n, d) and back to (n, h·d) without exchanging axes. The two undo each "
        "other, so the shapes fit and a copy comes back unharmed; but in between each head holds a "
        "few tokens whole, and tokens meet only within their group. Exchange the axes of tokens "
        "and heads after the first reshape and before the second.",
        (heads_model(split=bare_reshape, join=bare_join),),
    ),
    Mistake(
        "attention between heads",
        "You stop at (n, h, d), so tokens are taken for a batch: each token attends from one of "
        "its heads to the others, and no token sees another. It runs only where n_q = n_k. "
        "Exchange the axes of tokens and heads before the dot products: (h, n, d).",
        (heads_model(split=not_swapped, join=lambda x: x.reshape(*x.shape[:-2], -1)),),
    ),
    Mistake(
        "cut along the sequence",
        "You cut the tokens into n_heads groups, and tokens meet only within their group. Every "
        "head sees every token: cut the last axis, the features.",
        (
            heads_model(split=along_the_sequence, join=_groups_in_order),
            heads_model(
                split=along_the_sequence,
                join=_groups_in_order,
                width=lambda x, y, a, c, h: a.shape[-1] / h,
            ),
        ),
    ),
    Mistake(
        "interleaved features",
        INTERLEAVED,
        (
            heads_model(split=interleaved, join=interleaved_join),
            heads_model(split=interleaved),
            heads_model(join=interleaved_join),
        ),
    ),
    Mistake(
        "heads joined in reverse",
        "The heads are joined in reverse order, so each meets the rows of W_O that belong to "
        "another. Head i takes the columns i·d to (i + 1)·d − 1 of the joined output.",
        (heads_model(join=lambda heads: joined(reversed_heads(heads))),),
    ),
    Mistake(
        "one big head",
        "You never split: there is one head of the full width, with one pattern of weights for "
        "all features. Split queries, keys and values into n_heads heads before the dot products.",
        (_without_heads(), _without_heads(lambda x, y, a, c, h: a.shape[-1] / h)),
    ),
    Mistake(
        "one head alone",
        "Only one of the heads reaches the output. The output is made of all, side by side. In a "
        "loop, look whether each turn overwrites the last one or returns too early.",
        (
            _from_heads(lambda heads, W_O: heads[..., 0, :, :]),
            _from_heads(lambda heads, W_O: heads[..., -1, :, :]),
            _from_heads(lambda heads, W_O: _rows_of_first(heads[..., 0, :, :], W_O)),
            _from_heads(lambda heads, W_O: _rows_of_last(heads[..., -1, :, :], W_O)),
        ),
    ),
    Mistake(
        "one head for all",
        "All heads are the same one: each reads the same columns of the projections. Head i reads "
        "the columns i·d to (i + 1)·d − 1.",
        (heads_model(join=_one_for_all(0)), heads_model(join=_one_for_all(-1))),
    ),
    Mistake(
        "heads averaged",
        "You average the heads. Heads that look for different things blur into one. Join them side "
        "by side, (n, h·d), and let W_O mix them.",
        (
            _from_heads(lambda heads, W_O: np.mean(heads, axis=-3)),
            heads_model(finish=lambda x, W_O: x @ W_O, join=lambda x: joined(x) / x.shape[-3]),
            _from_heads(lambda heads, W_O: _rows_of_first(np.mean(heads, axis=-3), W_O)),
            heads_model(
                join=lambda x: joined(np.broadcast_to(np.mean(x, -3, keepdims=True), x.shape))
            ),
        ),
    ),
    Mistake(
        "heads summed",
        "You add the heads up, and what each of them found can no longer be told apart. Join them "
        "side by side, (n, h·d), and let W_O mix them.",
        (
            _from_heads(lambda heads, W_O: np.sum(heads, axis=-3)),
            _from_heads(lambda heads, W_O: _rows_of_first(np.sum(heads, axis=-3), W_O)),
            heads_model(
                join=lambda x: joined(np.broadcast_to(np.sum(x, -3, keepdims=True), x.shape))
            ),
        ),
    ),
    Mistake(
        "weights averaged over the heads",
        "You average the attention weights over the heads and mix the values with the mean. Each "
        "head mixes its own part of the values with its own weights.",
        (_weights_averaged(np.matmul), _weights_averaged(_without_output_matrix)),
    ),
    Mistake(
        "softmax over the heads",
        "Your softmax runs over the heads: for a query and a key the weights of all heads sum to "
        "one. The heads do not compete, the keys do: the softmax belongs to the last axis.",
        (heads_model(swap(normalize=lambda s: r.softmax(s, -3))),),
    ),
    Mistake(
        "scale by √d_model",
        "You divide the scores by √d_model, the root of the width of all heads together. The dot "
        "products are taken within a head, where each has d_k = d_model / h terms: divide by the "
        "root of the width of one head.",
        (
            heads_model(width=lambda x, y, a, c, h: a.shape[-1]),
            heads_model(width=lambda x, y, a, c, h: x.shape[-1]),
            heads_model(width=lambda x, y, a, c, h: y.shape[-1]),
        ),
    ),
    Mistake(
        "scale by √h",
        "You divide the scores by √h, the root of the number of heads. What makes them large is "
        "the number of terms in each dot product, the width d_k of a head.",
        (heads_model(width=lambda x, y, a, c, h: h),),
    ),
    Mistake(
        "scale from the width of the input",
        "You take d_k to be the width of the input, divided by the number of heads. That holds "
        "only where W_Q is square. The dot products have as many terms as a head of the projected "
        "queries has columns: W_Q.shape[1] / h.",
        (
            heads_model(width=lambda x, y, a, c, h: x.shape[-1] / h),
            heads_model(width=lambda x, y, a, c, h: x.shape[-1] // h),
        ),
    ),
    Mistake(
        "scale by √d_v",
        "You divide the scores by √d_v, the root of the width of the values. The scores are dot "
        "products of query and key, which have d_k terms.",
        (heads_model(width=lambda x, y, a, c, h: c.shape[-1] / h),),
    ),
    Mistake(
        "W_O forgotten",
        "You return the joined heads and do not use W_O. So far no head has seen what another "
        "found: multiply by W_O at the end.",
        (heads_model(finish=_without_output_matrix),),
    ),
    Mistake(
        "W_O transposed",
        "You multiply by the transpose of W_O. It runs only where W_O is square. W_O has shape "
        "(h·d_v, d_out).",
        (heads_model(finish=lambda x, W_O: x @ W_O.T),),
    ),
    Mistake(
        "axes counted from the front",
        "You exchange the axes 0 and 1. For one sequence these are tokens and heads, for a batch "
        "they are not. Count from the end: after the reshape, tokens and heads are axes −3 and −2 "
        "of any array.",
        (
            heads_model(
                split=swapped_from_the_front,
                join=lambda x: np.swapaxes(x, 0, 1).reshape(*np.swapaxes(x, 0, 1).shape[:-2], -1),
            ),
            heads_model(split=swapped_from_the_front),
        ),
    ),
    Mistake(
        "sequence before batch",
        "You take the first axis for the sequence and the second for the batch, as PyTorch's "
        "nn.MultiheadAttention does unless it is told batch_first=True. Here the batch comes "
        "first, (batch, n, width), so your tokens attend across sequences.",
        (_sequence_first(2), _sequence_first(3)),
    ),
    Mistake(
        "softmax over axis 2 of a batch",
        "With heads but no batch, axis 2 is the axis of the keys; for a batch it is that of the "
        "queries. Write −1, which is the last axis of any array.",
        (heads_model(swap(normalize=lambda s: r.softmax(s, 2))),),
    ),
    Mistake(
        "mask on one head",
        "Your mask reaches one head only, and the others still see everything. One mask holds for "
        "all heads.",
        (heads_model(_hidden_in(0)), heads_model(_hidden_in(-1))),
    ),
    Mistake(
        "mask broadcast over the wrong axis",
        "The axes of your mask meet the wrong axes of the scores, which are (batch, h, n_q, n_k): "
        "where sizes are equal by chance, one row of the mask, or the mask of one sequence, goes "
        "to each head. Line them up from the right. A mask for each sequence needs an axis of "
        "length 1 for the heads, (batch, 1, n_q, n_k), and comes with it here.",
        (
            _hidden_by(lambda mask: np.expand_dims(mask, -2)),
            _hidden_by(_mask_without_axis_of_heads),
            _hidden_by(lambda mask: np.expand_dims(mask, -3)),
            _hidden_by(lambda mask: np.expand_dims(mask, 1)),
        ),
    ),
    Mistake(
        "mask of the first sequence",
        "You use the mask of the first sequence for the whole batch. Each sequence has its own: "
        "keep the leading axes of the mask.",
        (_hidden_by(lambda mask: mask[:1] if mask.ndim > 2 else mask),),
    ),
)
