"""The check of multi-head attention: its cases, and the mistakes of one head and of several."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._attention import order_of_keys_is_free
from attnbook.check._calls import binds, signature_of
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._multi_head_mistakes import HEADS_MISTAKES, heads_model
from attnbook.check._single_head import PROJECTION_MISTAKES
from attnbook.check._softmax import LARGE_ERRORS, SPREAD_ERRORS
from attnbook.check._split_heads import heads_of, joined, reversed_heads
from attnbook.check._weight_mistakes import ON_A_BATCH, WEIGHT_MISTAKES
from attnbook.check._weights import EMPTY, FLIPPED, LARGE, OUTBID, OUTBID_MASK, RAGGED, SPREAD

_PARAMETERS = ("query", "key", "value", "W_Q", "W_K", "W_V", "W_O", "n_heads")


def _reference(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    weights = attnbook.MultiHeadWeights(W_Q, W_K, W_V, W_O, n_heads=n_heads)
    return attnbook.multi_head_attention(query, key, value, weights, mask)


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of eight, if it takes `MultiHeadWeights` or n_heads elsewhere."""
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return function
    names = list(signature.parameters)

    def with_weights(query, key, value, W_Q, W_K, W_V, W_O, n_heads, **options):
        weights = attnbook.MultiHeadWeights(W_Q, W_K, W_V, W_O, n_heads=n_heads)
        return function(query, key, value, weights, **options)

    def with_name(query, key, value, W_Q, W_K, W_V, W_O, n_heads, **options):
        return function(query, key, value, W_Q, W_K, W_V, W_O, n_heads=n_heads, **options)

    if names[3:4] == ["weights"] or (binds(signature, 4) and not binds(signature, 7)):
        adapted = with_weights
    elif "n_heads" in names and names.index("n_heads") != 7:
        adapted = with_name
    else:
        return function
    if "mask" in names:
        return lambda q, k, v, W_Q, W_K, W_V, W_O, n_heads, mask=None: adapted(
            q, k, v, W_Q, W_K, W_V, W_O, n_heads, **({} if mask is None else {"mask": mask})
        )
    return lambda *arguments: adapted(*arguments)


def order_of_heads_is_free(case: Case, values: Values, again: Callable) -> str | None:
    h = case.arguments["n_heads"]
    swapped = {
        name: joined(reversed_heads(heads_of(case.arrays[name], h)))
        for name in ("W_Q", "W_K", "W_V")
    }
    W_O = case.arrays["W_O"]
    swapped["W_O"] = r.transposed(joined(reversed_heads(heads_of(r.transposed(W_O), h))))
    moved = again(**swapped)
    if moved and not np.allclose(moved[0], values[0]):
        return (
            "Reversing the heads in all four matrices together must change nothing; here it "
            "changes the output."
        )
    return None


def _sizes(n_q, n_k, d_query, d_key, d_value, h, d_k, d_v, d_out, leading=(), dtype="float64"):
    drawn = {
        "query": draw(6, *leading, n_q, d_query),
        "key": draw(7, *leading, n_k, d_key),
        "value": draw(8, *leading, n_k, d_value),
        "W_Q": draw(9, d_query, h * d_k) / math.sqrt(d_query),
        "W_K": draw(10, d_key, h * d_k) / math.sqrt(d_key),
        "W_V": draw(11, d_value, h * d_v) / math.sqrt(d_value),
        "W_O": draw(12, h * d_v, d_out) / math.sqrt(h * d_v),
    }
    return {**{name: x.astype(dtype) for name, x in drawn.items()}, "n_heads": h}


def _twice(inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Give two heads the same queries and keys, through identity matrices."""
    query, key = (np.concat([inputs[name]] * 2, axis=-1) for name in ("query", "key"))
    matrices = dict.fromkeys(_PARAMETERS[3:7], np.eye(8))
    return {"query": query, "key": key, "value": draw(8, len(key), 8), **matrices, "n_heads": 2}


_SIZES = (
    (6, 6, 6, 6, 6, 2, 3, 3, 6),  # a square
    (3, 5, 14, 11, 13, 2, 7, 7, 14),  # cross-attention, as many sizes as there can be
    (5, 3, 6, 6, 6, 3, 2, 2, 6),  # one width
    (2, 2, 6, 6, 6, 3, 2, 2, 6),  # as many tokens as features in a head
    (1, 1, 6, 6, 6, 2, 3, 3, 6),  # one token
    (3, 3, 5, 5, 5, 1, 5, 5, 5),  # one head
)
_OWN_WIDTHS = ((3, 5, 7, 11, 13, 2, 2, 5, 17), (3, 3, 10, 10, 10, 3, 2, 5, 10))
_PER_SEQUENCE = np.stack([FLIPPED, ~FLIPPED, np.roll(FLIPPED, 1, axis=1)])[:, np.newaxis]
_PADDING = np.array([[True, True, False], [True, False, False]])[:, np.newaxis, np.newaxis]

MULTI_HEAD_ATTENTION = Check(
    name="multi_head_attention",
    parameters=_PARAMETERS,
    results={"output": "(..., n_q, d_out)"},
    reference=_reference,
    stages=(
        Stage(tuple(Case(_sizes(*sizes)) for sizes in _SIZES)),
        Stage(tuple(Case(_sizes(*sizes, dtype="float32")) for sizes in _SIZES[:2])),
        Stage(
            tuple(Case(_sizes(*sizes)) for sizes in _OWN_WIDTHS),
            may_raise="projections of other widths than d_model",
        ),
        Stage((Case(_twice(LARGE)),), errors=LARGE_ERRORS),
        Stage((Case(_twice(SPREAD)),), errors=SPREAD_ERRORS),
        Stage(
            (
                Case(_sizes(3, 5, 14, 11, 13, 2, 7, 7, 14, (17,))),
                Case(_sizes(4, 4, 4, 4, 4, 2, 2, 2, 4, (4,))),
            ),
            beyond="a batch (leading axes)",
        ),
        Stage(
            (
                Case(_sizes(2, 3, 10, 7, 11, 2, 5, 5, 10), {"mask": RAGGED}),
                Case(_sizes(3, 3, 6, 6, 6, 3, 2, 2, 6), {"mask": FLIPPED}),  # n_q = h
                Case(_sizes(3, 3, 10, 7, 11, 2, 5, 5, 10), {"mask": FLIPPED}),
            ),
            option="mask",
        ),
        Stage((Case(_twice(OUTBID), {"mask": OUTBID_MASK}),), option="mask"),
        Stage((Case(_sizes(2, 3, 10, 7, 11, 2, 5, 5, 10), {"mask": EMPTY}),), option="mask"),
        Stage(
            (
                Case(_sizes(3, 3, 6, 6, 6, 3, 2, 2, 6, (3,)), {"mask": _PER_SEQUENCE}),  # batch = h
                Case(_sizes(3, 3, 10, 7, 11, 2, 5, 5, 10, (3,)), {"mask": _PER_SEQUENCE}),
                Case(_sizes(2, 3, 10, 7, 11, 2, 5, 5, 10, (2,)), {"mask": _PADDING}),
            ),
            option="mask",
            may_raise="a mask for each sequence, (batch, 1, n_q, n_k),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(
        *HEADS_MISTAKES,
        *(
            Mistake(name, message, tuple(heads_model(recipe) for recipe in recipes))
            for name, message, recipes in WEIGHT_MISTAKES
            if name not in ON_A_BATCH
        ),
        *(
            Mistake(name, message, tuple(heads_model(project=project) for project in projects))
            for name, message, projects in PROJECTION_MISTAKES
        ),
    ),
    properties=(order_of_keys_is_free, order_of_heads_is_free),
    options=("mask",),
    remarked_options=("mask",),
    adapt=_adapt,
    sequences=("query", "key", "value"),
)
