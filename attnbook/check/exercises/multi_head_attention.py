"""The check of multi-head attention."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signature_of, signed
from attnbook.check.engine.steps import Case, Check, Stage, draw, without
from attnbook.check.engine.symmetries import moved
from attnbook.check.exercises import attention_weights as w
from attnbook.check.exercises import single_head as p
from attnbook.check.exercises import split_heads as cut
from attnbook.check.exercises.attention import OUTPUT_MISTAKES, order_of_keys_is_free
from attnbook.check.shared import attention_cases as cases
from attnbook.check.shared.heads import HEADS_MISTAKES, TEXT, by_the_package, heads_from_steps


@documented
def multi_head_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check multi-head attention: project, split, attend in each head, concatenate, project back.

    Runs `f` on a square and on inputs of different widths, on one token and on one head, on
    projections whose width is not d_model, on scores of ±1000, in float64 and float32, on batches,
    and with masks if it takes them, even with one mask per sequence of a batch.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, W_Q, W_K, W_V, W_O, n_heads)``, by position, on
        (n_q, d_query), (n_k, d_key), (n_k, d_value), (d_query, h·d_k), (d_key, h·d_k),
        (d_value, h·d_v), (h·d_v, d_out) and the int h. If it takes an argument `mask` (**True = may
        attend**), that is passed by name; it is (n_q, n_k), or (batch, 1, n_q, n_k) for a batch. If
        it takes four arguments, it is called as ``f(query, key, value, weights)`` with
        `attnbook.MultiHeadWeights`. It returns only the output, of shape (n_q, d_out). It may be
        written only for one sequence, without leading axes, or only for batches. If W_Q is not
        square, or d_v is not d_k, it may raise an error.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> def my_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads):
    ...     return attention(query @ W_Q, key @ W_K, value @ W_V) @ W_O
    >>> check.multi_head_attention(my_heads).mistake
    'one big head'
    """
    return run(MULTI_HEAD_ATTENTION, f, time_limit)


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of eight, if it takes `MultiHeadWeights` or n_heads elsewhere."""
    signature = signature_of(function)
    if signature is None:
        return function
    names = list(signature.parameters)

    def with_weights(query, key, value, *matrices, **options):
        weights = attnbook.MultiHeadWeights(*matrices[:-1], n_heads=matrices[-1])
        return function(query, key, value, weights, **options)

    def with_name(*given, **options):
        return function(*given[:-1], n_heads=given[-1], **options)

    if p.takes_weights(signature, 7):
        adapted = with_weights
    elif "n_heads" in names and names.index("n_heads") != 7:
        adapted = with_name
    else:
        return function
    return signed(adapted, MULTI_HEAD_ATTENTION.parameters, {"mask"} & {*names})


def _reversed_heads(arguments: dict[str, Any]) -> dict[str, np.ndarray]:
    """Reverse the heads in all four matrices: in the columns, of W_O in the rows."""

    def reverse(W):
        return cut.joined(cut.reversed_heads(cut.heads_of(W, arguments["n_heads"])))

    swapped = {name: reverse(arguments[name]) for name in ("W_Q", "W_K", "W_V")}
    return {**swapped, "W_O": reverse(arguments["W_O"].T).T}


order_of_heads_is_free = moved(
    _reversed_heads,
    np.allclose,
    "Reversing the heads in all four matrices together must change nothing; here it changes the "
    "output.",
)


def _sizes(n_q, n_k, d_query, d_key, d_value, h, d_k, d_v, d_out, leading=(), dtype="float64"):
    inputs = p.drawn(n_q, n_k, d_query, d_key, d_value, h * d_k, h * d_v, leading, dtype)
    W_O = draw(12, h * d_v, d_out) / math.sqrt(h * d_v)
    return {**inputs, "W_O": W_O.astype(dtype), "n_heads": h}


def _twice(inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Give two heads the same queries and keys, through identity matrices."""
    query, key = (np.concat([inputs[name]] * 2, axis=-1) for name in ("query", "key"))
    matrices = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), np.eye(8))
    return {"query": query, "key": key, "value": draw(8, len(key), 8), **matrices, "n_heads": 2}


_SIZES = (
    (6, 6, 6, 6, 6, 2, 3, 3, 6),  # a square
    (3, 5, 14, 11, 13, 2, 7, 7, 14),  # cross-attention, as many sizes as there can be
    (5, 3, 6, 6, 6, 3, 2, 2, 6),  # one width
    (2, 2, 6, 6, 6, 3, 2, 2, 6),  # as many tokens as features in a head
    (1, 1, 6, 6, 6, 2, 3, 3, 6),  # one token
    (3, 3, 5, 5, 5, 1, 5, 5, 5),  # one head
    (3, 3, 2, 2, 2, 2, 1, 1, 2),  # a small one
)
_OWN_WIDTHS = ((3, 5, 7, 11, 13, 2, 2, 5, 17), (3, 3, 10, 10, 10, 3, 2, 5, 10))
_AS_MANY_HEADS = (3, 3, 6, 6, 6, 3, 2, 2, 6)  # as tokens, or as sequences
_MASKED = (10, 7, 11, 2, 5, 5, 10)
_PER_SEQUENCE = np.stack([cases.FLIPPED, ~cases.FLIPPED, np.roll(cases.FLIPPED, 1, axis=1)])[
    :, np.newaxis
]
_PADDING = np.array([[True, True, False], [True, False, False]])[:, np.newaxis, np.newaxis]

MULTI_HEAD_ATTENTION = Check(
    name="multi_head_attention",
    parameters=("query", "key", "value", "W_Q", "W_K", "W_V", "W_O", "n_heads"),
    results={"output": "(..., n_q, d_out)"},
    reference=by_the_package,
    compute=heads_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        *cases.attention_stages(
            _sizes,
            _twice,
            _SIZES,
            ((_SIZES[1], (17,)), ((4, 4, 4, 4, 4, 2, 2, 2, 4), (4,))),
            (cases.RAGGED, (2, 3, *_MASKED)),
            (cases.FLIPPED, (3, 3, *_MASKED)),
            (cases.FLIPPED, _AS_MANY_HEADS),
        ),
        Stage(
            tuple(Case(_sizes(*sizes)) for sizes in _OWN_WIDTHS),
            may_raise="projections of other widths than d_model",
        ),
        Stage(
            (
                Case(_sizes(*_AS_MANY_HEADS, leading=(3,)), {"mask": _PER_SEQUENCE}),
                Case(_sizes(3, 3, *_MASKED, leading=(3,)), {"mask": _PER_SEQUENCE}),
                Case(_sizes(2, 3, *_MASKED, leading=(2,)), {"mask": _PADDING}),
            ),
            option="mask",
            may_raise="a mask for each sequence, (batch, 1, n_q, n_k),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(
        *HEADS_MISTAKES,
        *without(
            w.WEIGHT_MISTAKES,
            "all axes reversed",
            "softmax over axis 1 of a batch",
            "width from shape[1]",
        ),
        *p.PROJECTION_MISTAKES,
        *OUTPUT_MISTAKES,
    ),
    properties=(order_of_keys_is_free, order_of_heads_is_free),
    options=("mask",),
    remarked_options=("mask",),
    adapt=_adapt,
    legible=True,
)
