"""The check of attention with a mask that is always given: masks of every shape."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._attention import (
    ATTENTION,
    hidden_keys_change_nothing,
    order_of_keys_is_free,
    outputs_between_values,
)
from attnbook.check._model import Case, Check, Mistake, Stage
from attnbook.check._recipes import Recipe, swap
from attnbook.check._softmax import LARGE_ERRORS, SPREAD_ERRORS
from attnbook.check._weight_mistakes import RENORMALIZED
from attnbook.check._weights import (
    EMPTY,
    FLIPPED,
    LARGE,
    OUTBID,
    OUTBID_MASK,
    RAGGED,
    SPREAD,
    arrays,
)

_WIDE = np.array([[True, False, True, False, False], [False, True, True, False, True]])
_TALL = np.array([[True, False], [False, True], [True, True], [True, False], [False, True]])
_PADDING = np.array([True, True, True, False, False])
_LENGTHS = np.array([[[True, True, False]], [[True, False, False]], [[True, True, True]]])
"""Masks of which none is its own transpose, nor its own opposite upside down."""

_QUIET = {name: x * 2.0**-17 if name == "query" else x for name, x in OUTBID.items()}
"""Visible scores are −2¹⁵ = −32768, hidden ones +2¹⁵; every product is exact."""


def _model(recipe: Recipe, see: Callable = lambda mask: mask) -> Callable:
    """Return attention by `recipe` with the mask that `see` makes of the mask."""
    return lambda query, key, value, mask: recipe.output(query, key, value, mask=see(mask))


def _is_padding(mask):
    return mask.ndim == 1 or mask.shape[-2] == 1


def _on_the_query_side(mask):
    """Turn a mask of keys alone, and no other, into one of queries."""
    if not _is_padding(mask):
        return mask
    return mask[:, np.newaxis] if mask.ndim == 1 else r.transposed(mask)


def _padding_zeroes(recipe: Recipe) -> Callable:
    """Return attention by `recipe` whose outputs are zero for queries that are padding."""

    def model(query, key, value, mask):
        output = recipe.output(query, key, value, mask=mask)
        return output * _on_the_query_side(mask) if _is_padding(mask) else output

    return model


def _unless_padding(scores, mask):
    return scores if _is_padding(mask) else r.hide(scores, mask)


def _first_visible(scores):
    visible = scores > -np.inf
    return np.where(visible & (np.cumsum(visible, axis=-1) == 1), 1.0, 0.0)


def _shared(scores):
    visible = scores > -np.inf
    return visible / np.maximum(np.sum(visible, axis=-1, keepdims=True), 1)


def _zero_is_hidden(scores, mask):
    return np.where(scores * mask == 0, -np.inf, scores)


def _causal_from_the_first(scores, mask):
    n_q, n_k = scores.shape[-2:]
    return r.hide(scores, np.tri(n_q, n_k, dtype=bool))


def _causal_to_the_last(scores, mask):
    n_q, n_k = scores.shape[-2:]
    return r.hide(scores, np.tri(n_q, n_k, n_k - n_q, dtype=bool))


def _for_axes(see: Callable) -> tuple[Callable, ...]:
    """Return the models that put masks of 3 axes, and of 3 and more, through `see`."""
    return (
        _model(r.RIGHT, lambda mask: see(mask) if mask.ndim == 3 else mask),
        _model(r.RIGHT, lambda mask: see(mask) if mask.ndim > 2 else mask),
    )


_OWN = (
    Mistake(
        "mean of the visible values",
        "Every output is the plain mean of the values that its query may see, whatever it asks "
        "for: the scores never reach the weights.",
        (_model(swap(normalize=_shared)),),
    ),
    Mistake(
        "first visible key alone",
        "Each query gets the value of the first key that it may see, and no other. The mask says "
        "which keys take part; the softmax of their scores says how much each counts.",
        (_model(swap(normalize=_first_visible)),),
    ),
    Mistake(
        "score 0 taken for hidden",
        "You multiply the scores by the mask and then hide every score that is 0. A visible key "
        "that is orthogonal to the query has score 0 too, and is lost. Choose by the mask itself, "
        "as where(mask, scores, −∞) does.",
        (_model(swap(hide=_zero_is_hidden)),),
    ),
    Mistake(
        "another mask",
        "You use a causal mask of your own making, whatever mask is given. Use the argument `mask` "
        "alone; whether it is causal is the business of the caller.",
        (_model(swap(hide=_causal_from_the_first)), _model(swap(hide=_causal_to_the_last))),
    ),
    Mistake(
        "empty row sees everything",
        "A query that may attend to nothing attends to every key, as if it had no mask: it gets "
        "numbers that mean nothing, and what was to be hidden leaks. Such a row must be zero.",
        (_model(r.RIGHT, lambda mask: mask | ~np.any(mask, axis=-1, keepdims=True)),),
    ),
    Mistake(
        "0 times infinity",
        "You multiply −∞ by a mask of 0 and 1. 0 · ∞ is NaN, so the scores that should stay are "
        "lost. Choose instead of multiplying: where(mask, scores, −∞).",
        (_model(swap(hide=lambda s, mask: s + (1.0 - mask) * -np.inf, normalize=r.softmax)),),
    ),
    Mistake(
        "mask with −10⁴",
        "You hide scores with −10⁴ or a number of that size. Scores that are lower still are "
        "outbid by it, and the hidden keys win: here every visible score is −32768. Large logits "
        "occur in trained models. Only −∞ is below every score.",
        tuple(
            _model(swap(hide=lambda s, mask, hide=hide, number=number: hide(s, mask, number)))
            for number in (1e4, 1e3)
            for hide in (
                lambda s, mask, number: np.where(mask, s, -number),
                lambda s, mask, number: s - number * ~mask,
            )
        ),
    ),
    Mistake(
        "hidden keys in the maximum",
        "You zero the exponentials of hidden keys before you divide, but your shift is the maximum "
        "over hidden keys too: what you set their scores to, such as 0, takes part. Where every "
        "visible score lies far below it, the visible exponentials underflow, and 0/0 is NaN, or a "
        "row of zeros if you guard it. Take the maximum of the visible scores alone, or hide the "
        "others with −∞ before it.",
        tuple(
            _model(swap(hide=lambda s, mask, fill=fill: np.where(mask, s, fill), finish=finish))
            for fill in (0.0, -1e4, -1e9)
            for finish in RENORMALIZED
        ),
    ),
    Mistake(
        "padding on the query side",
        "You apply a mask of keys, (1, n_k), to the queries: real tokens still attend to padding, "
        "and the rows of the padding are emptied instead. Its last axis is that of the keys, and "
        "its one row holds for every query: hide columns of the scores.",
        (
            _model(r.RIGHT, _on_the_query_side),
            _model(swap(normalize=r.softmax), _on_the_query_side),
            _padding_zeroes(swap(hide=_unless_padding)),
        ),
    ),
    Mistake(
        "outputs of padding zeroed",
        "You hide the padding from every query, which is right, and also zero the outputs of the "
        "queries at the same places. The mask does not ask for that: its one row, (1, n_k), holds "
        "for every query, and query and key need not be the same sequence. Let the loss leave "
        "those outputs out.",
        (_padding_zeroes(r.RIGHT),),
    ),
    Mistake(
        "mask of the first sequence",
        "You use the mask of the first sequence for the whole batch. Each sequence has its own: "
        "keep the leading axes of the mask.",
        _for_axes(lambda mask: mask[:1]),
    ),
    Mistake(
        "mask broadcast over the wrong axis",
        "You drop the axis of the queries from a mask of shape (batch, 1, n_k). Then its first "
        "axis, the batch, is taken for that of the queries, and fits by chance where the two "
        "sizes are equal. Keep the axis of length 1.",
        _for_axes(lambda mask: mask[..., 0, :] if mask.shape[-2] == 1 else mask),
    ),
)

_INHERITED = {
    "np.dot on a batch",
    "no scale",
    "scale by d_k",
    "scale multiplied",
    "softmax over the query axis",
    "key not transposed",
    "softmax twice",
    "sign of the scores",
    "hard look-up",
    "no maximum",
    "maximum of the whole array",
    "not the maximum",
    "all axes reversed",
    "softmax over axis 1 of a batch",
    "width from shape[1]",
    "mask inverted",
    "mask ignored",
    "mask multiplies the scores",
    "mask added to the scores",
    "mask transposed",
    "mask after the softmax",
    "mask after the exponential",
    "mask with a large negative number",
    "empty row NaN",
    "empty row uniform",
    "weights returned",
    "key used as value",
}


def _with_mask(model: Callable) -> Callable:
    return lambda query, key, value, mask: model(query, key, value, mask=mask)


def _case(sizes, mask, leading=(), dtype="float64"):
    n_q, n_k, d_k, d_v = sizes
    return Case({**arrays(n_q, n_k, d_k, d_v, leading, dtype), "mask": mask})


_LARGE_MASK = np.array([[True, True, False], [False, True, True], [True, False, True]])
_SPREAD_MASK = np.array([[True, False, True], [True, True, False]])

MASKED_ATTENTION = Check(
    name="masked_attention",
    parameters=("query", "key", "value", "mask"),
    results={"output": "(..., n_q, d_v)"},
    reference=attnbook.attention,
    stages=(
        # in each row something is hidden and something is not
        Stage(
            (
                _case((3, 3, 3, 3), FLIPPED),
                _case((2, 5, 3, 7), _WIDE),
                _case((5, 2, 7, 3), _TALL),
                _case((1, 5, 2, 3), _WIDE[:1]),
                _case((2, 3, 5, 5), RAGGED),
            )
        ),
        Stage(
            (
                _case((3, 3, 3, 3), FLIPPED, dtype="float32"),
                _case((2, 5, 3, 7), _WIDE, dtype="float32"),
            )
        ),
        Stage((Case({**LARGE, "mask": _LARGE_MASK}),), errors=LARGE_ERRORS),
        Stage((Case({**SPREAD, "mask": _SPREAD_MASK}),), errors=SPREAD_ERRORS),
        Stage((Case({**_QUIET, "mask": OUTBID_MASK}),)),
        Stage((Case({**OUTBID, "mask": OUTBID_MASK}),)),
        Stage((_case((2, 3, 5, 7), EMPTY), _case((1, 1, 3, 2), np.array([[True]])))),
        Stage(
            (_case((5, 5, 3, 2), _PADDING[np.newaxis]), _case((2, 5, 3, 7), _PADDING[np.newaxis])),
            may_raise="a mask of one row, (1, n_k),",
        ),
        Stage(
            (_case((5, 5, 3, 2), _PADDING), _case((2, 5, 3, 7), _PADDING)),
            may_raise="a mask of one axis, (n_k,),",
        ),
        Stage(
            (_case((5, 2, 3, 7), _PADDING[:, np.newaxis]), _case((5, 5, 3, 2), _PADDING[:, None])),
            may_raise="a mask of one column, (n_q, 1),",
        ),
        Stage(
            (
                _case((2, 3, 5, 7), RAGGED, (11,)),
                _case((3, 3, 3, 3), FLIPPED, (3,)),  # .T fits by chance
                _case((5, 3, 3, 3), _LARGE_MASK[[0, 1, 2, 0, 1]], (3,)),
            ),
            beyond="a batch (leading axes)",
        ),
        Stage(
            (
                _case((2, 3, 5, 7), _LENGTHS, (3,)),
                _case((3, 3, 5, 7), _LENGTHS, (3,)),
                _case((2, 3, 5, 7), np.stack([RAGGED, ~RAGGED, EMPTY]), (3,)),
            ),
            may_raise="a mask for each sequence, (batch, 1, n_k),",
            within="a batch (leading axes)",
        ),
        Stage(
            (_case((2, 3, 5, 7), _LENGTHS[:, np.newaxis], (3, 2)),),
            may_raise="four axes, one for heads,",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(
        *_OWN,
        *(
            Mistake(m.name, m.message, tuple(map(_with_mask, m.models)))
            for m in ATTENTION.mistakes
            if m.name in _INHERITED
        ),
    ),
    properties=(outputs_between_values, order_of_keys_is_free, hidden_keys_change_nothing),
    options=(),
    remarked_options=(),
    sequences=("query", "key", "value"),
)
