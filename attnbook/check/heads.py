"""Several heads in steps: projections, split, attention, join, W_O. The ways to get them wrong."""

import itertools
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import projections as p
from attnbook.check import splitting as cut
from attnbook.check.outputs import attention_from_steps
from attnbook.check.scores import hide
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Way, each

HEADS_STEPS: dict[str, Callable] = {
    **p.HEAD_STEPS,
    "split_query": cut.heads_of,
    "split_key": cut.heads_of,
    "split_value": cut.heads_of,
    "arrange": lambda heads: heads,  # what becomes of (..., h, n, d) before the join
    "join": cut.joined,
}


def heads_from_steps(s, query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    """Return multi-head attention by the steps `s`."""
    given = (query, key, value, W_Q, W_K, W_V)
    q = s.split_query(s.project_query(*given), n_heads)
    k = s.split_key(s.project_key(*given), n_heads)
    v = s.split_value(s.project_value(*given), n_heads)
    scale = p.scale_of(s.width(query, key, W_Q, W_V, n_heads))
    heads = attention_from_steps(s, q, k, v, mask=mask, scale=scale)
    return s.output(s.join(s.arrange(heads)), W_O)


_ALL = ("query", "key", "value")


def _split(function: Callable, *names: str) -> dict[str, Callable]:
    """Return the way that cuts these, or all three, by `function`."""
    return {f"split_{name}": function for name in names or _ALL}


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


def _full_width(x, y, a, c, h):
    return a.shape[-1] / h


_UNSPLIT: Way = {**_split(_same), "join": _same}
_IN_GROUPS: Way = {**_split(cut.along_the_sequence), "join": _groups_in_order}


def _packed(of: int) -> Callable:
    """Return the projection of query, key or value by all three matrices side by side."""
    return lambda *given: given[of] @ np.concatenate(given[3:], axis=-1)


def _third(of: int) -> Callable:
    """Return the split that takes the query, the key or the value out of each head's columns."""
    return lambda x, n_heads: np.split(cut.heads_of(x, n_heads), 3, axis=-1)[of]


_PACKED: tuple[Way, ...] = tuple(
    {
        **{f"project_{name}": _packed(of) for of, name in zip(inputs, _ALL, strict=True)},
        **{f"split_{name}": _third(of) for of, name in enumerate(_ALL)},
    }
    for inputs in ((0, 1, 2), (0, 0, 0))
)


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


HEADS_MISTAKES = mistakes(
    """
    bare reshape in the split: You reshape to (h, n, d) at once. The shape is right and the numbers
        are not: read row by row, the first head gets the first tokens whole, not its piece of every
        token. Reshape to (n, h, d), which cuts each row, and then exchange the axes of tokens and
        heads.
    bare reshape in the join: You reshape (h, n, d) to (n, h·d) at once. The shape is right and the
        numbers are not: a row of the result holds several tokens of one head. Exchange the axes of
        heads and tokens first, to (n, h, d), and then reshape.
    bare reshape in both: You reshape to (h, n, d) and back to (n, h·d) without exchanging axes. The
        two undo each other, so the shapes fit and a copy comes back unharmed; but in between each
        head holds a few tokens whole, and tokens meet only within their group. Exchange the axes of
        tokens and heads after the first reshape and before the second.
    attention between heads: You stop at (n, h, d), so tokens are taken for a batch: each token
        attends from one of its heads to the others, and no token sees another. It fits only where
        n_q = n_k. Exchange the axes of tokens and heads before the dot products: (h, n, d).
    cut along the sequence: You cut the tokens into n_heads groups, and tokens meet only within
        their group. Every head sees every token: cut the last axis, the features.
    interleaved features: Head i gets the features i, i + h, i + 2h, …: the last axis is read as (d,
        h). Head i is a piece in one run, the columns i·d to (i + 1)·d − 1. Read it as (h, d).
    columns by head [GPT-NeoX and the UvA tutorials]: you put W_Q, W_K and W_V side by side, give
        each head a run of columns of all three, and cut it into query, key and value. Matrices that
        are stored so want it. Here W_Q has the columns of all queries, head after head, and so have
        W_K and W_V.
    heads joined in reverse: The heads are joined in reverse order, so each meets the rows of W_O
        that belong to another. Head i takes the columns i·d to (i + 1)·d − 1 of the joined output.
    one big head: You never split: there is one head of the full width, with one pattern of weights
        for all features. Split queries, keys and values into n_heads heads before the dot products.
    one head alone: Only one of the heads reaches the output. The output is made of all, side by
        side. In a loop, look whether each turn overwrites the last one or returns too early.
    one head for all: All heads are the same one: each reads the same columns of the projections.
        Head i reads the columns i·d to (i + 1)·d − 1.
    number and width swapped: You take n_heads for the width of a head, and get d heads of width h.
        There are n_heads heads, each of width h·d / n_heads.
    heads averaged: You average the heads. Heads that look for different things blur into one. Join
        them side by side, (n, h·d), and let W_O mix them.
    heads summed: You add the heads up, and what each of them found can no longer be told apart.
        Join them side by side, (n, h·d), and let W_O mix them.
    weights averaged over the heads: You average the attention weights over the heads and mix the
        values with the mean. Each head mixes its own part of the values with its own weights.
    softmax over the heads: Your softmax runs over the heads: for a query and a key the weights of
        all heads sum to one. Not the heads compete but the keys: the softmax belongs to the last
        axis.
    scale by √d_model: You divide the scores by √d_model, the root of the width of all heads
        together, or by that width. The dot products are taken within a head, where each has d_k =
        d_model / h terms: divide by the root of the width of one head.
    scale by √h: You divide the scores by √h, the root of the number of heads. What makes them large
        is the number of terms in each dot product, the width d_k of a head.
    scale from the width of the input: You take d_k to be the width of the input, divided by the
        number of heads. That holds only where W_Q is square. The dot products have as many terms as
        a head of the projected queries has columns: W_Q.shape[1] / h.
    W_O forgotten: You return the joined heads and do not use W_O. So far no head has seen what
        another found: multiply by W_O at the end.
    W_O applied twice: You multiply by W_O twice, once for the heads and once more at the end. It
        runs only where W_O is square. Once is enough.
    W_O transposed: You multiply by W_Oᵀ. It runs only where W_O is square. Its shape is (h·d_v,
        d_out).
    axes counted from the front: You exchange the axes 0 and 1. For one sequence these are tokens
        and heads, for a batch they are not. Count from the end: tokens and heads are axes −3 and
        −2.
    sequence before batch: You take the first axis for the sequence and the second for the batch, as
        PyTorch's nn.MultiheadAttention does unless it is told batch_first=True. Here the batch
        comes first, (batch, n, width), so your tokens attend across sequences.
    softmax over axis 2 of a batch: With heads but no batch, axis 2 is the axis of the keys; for a
        batch it is that of the queries. Write −1, which is the last axis of any array.
    mask on one head: Your mask reaches one head only; the others see everything. It holds for all.
    mask broadcast over the wrong axis: The axes of your mask meet the wrong axes of the scores,
        which are (batch, h, n_q, n_k): where sizes are equal by chance, one row of the mask, or the
        mask of one sequence, goes to each head. Line them up from the right. A mask for each
        sequence needs an axis of length 1 for the heads, (batch, 1, n_q, n_k), as it has here.
    mask of the first sequence: You use the mask of the first sequence for the whole batch. Each
        sequence has its own: keep the leading axes of the mask.
    one head left out: One head, the first or the last, is 0 where the heads are joined: the loop
        over the heads begins too late or ends too early.
    keys or values of another head: A head reads the keys or the values of its neighbour. Head i
        reads the columns i·d to (i + 1)·d − 1 of all three projections.
    """,
    {
        "bare reshape in the split": tuple(
            _split(cut.bare_reshape, *names)
            for count in (3, 1, 2)
            for names in itertools.combinations(_ALL, count)
        ),
        "bare reshape in the join": {"join": cut.bare_join},
        "bare reshape in both": {**_split(cut.bare_reshape), "join": cut.bare_join},
        "attention between heads": {**_split(cut.not_swapped), "join": _flat},
        "cut along the sequence": (_IN_GROUPS, {**_IN_GROUPS, "width": _full_width}),
        "interleaved features": (
            {**_split(cut.interleaved), "join": cut.interleaved_join},
            _split(cut.interleaved),
            {"join": cut.interleaved_join},
        ),
        "columns by head": _PACKED,
        "heads joined in reverse": {"arrange": cut.reversed_heads},
        "one big head": (_UNSPLIT, {**_UNSPLIT, "width": _full_width}),
        "one head alone": tuple(
            _ended(lambda heads, i=i: heads[..., i, :, :], output)
            for i, rows in ((0, _rows_of_first), (-1, _rows_of_last))
            for output in (_same, rows)
        ),
        "one head for all": (
            _in_place_of_all(lambda heads: heads[..., :1, :, :]),
            _in_place_of_all(lambda heads: heads[..., -1:, :, :]),
            *(_split(_first_for_all, name) for name in _ALL),
        ),
        "one head left out": each(
            "arrange",
            lambda heads: heads * (_counted(heads) < heads.shape[-3] - 1),
            lambda heads: heads * (_counted(heads) > 0),
        ),
        "keys or values of another head": tuple(
            _split(lambda x, h, by=by: np.roll(cut.heads_of(x, h), by, axis=-3), name)
            for name in ("key", "value")
            for by in (-1, 1)
        ),
        "number and width swapped": _split(lambda x, h: cut.heads_of(x, x.shape[-1] // h)),
        "heads averaged": (*_merged(np.mean), {"arrange": lambda heads: heads / heads.shape[-3]}),
        "heads summed": _merged(np.sum),
        "weights averaged over the heads": {
            "mix": lambda weights, value: np.mean(weights, axis=-3, keepdims=True) @ value
        },
        "softmax over the heads": each("axis", lambda x, axis: -3, lambda x, axis: 0),
        "scale by √d_model": each(
            "width",
            lambda x, y, a, c, h: a.shape[-1],
            lambda x, y, a, c, h: x.shape[-1],
            lambda x, y, a, c, h: y.shape[-1],
            lambda x, y, a, c, h: a.shape[-1] ** 2,
            lambda x, y, a, c, h: x.shape[-1] ** 2,
        ),
        "scale by √h": {"width": lambda x, y, a, c, h: h},
        "scale from the width of the input": each(
            "width", lambda x, y, a, c, h: x.shape[-1] / h, lambda x, y, a, c, h: x.shape[-1] // h
        ),
        "W_O forgotten": {"output": _same},
        "W_O applied twice": {"output": lambda output, W_O: output @ W_O @ W_O},
        "W_O transposed": {"output": lambda output, W_O: output @ W_O.T},
        "axes counted from the front": (
            {
                **_split(cut.swapped_from_the_front),
                "join": lambda heads: _flat(np.swapaxes(heads, 0, 1)),
            },
            _split(cut.swapped_from_the_front),
        ),
        "sequence before batch": (_sequence_first(2), _sequence_first(3)),
        "softmax over axis 2 of a batch": {"axis": lambda x, axis: 2},
        "mask on one head": (_hidden_in(0), _hidden_in(-1)),
        "mask broadcast over the wrong axis": each(
            "see",
            lambda mask: np.expand_dims(mask, -2),
            lambda mask: np.squeeze(mask, -3) if mask.ndim > 3 else mask,
            lambda mask: np.expand_dims(mask, -3),
            lambda mask: np.expand_dims(mask, 1),
        ),
        "mask of the first sequence": {"see": lambda mask: mask[:1] if mask.ndim > 2 else mask},
    },
)
"""Those between the heads: in the split, the join, the scale and the mask."""
